//! `completions`: what a shell needs to complete commands and options, from the command line's own description.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Arguments, print};

/// Prints the script for this shell.
pub(super) fn command(shell: Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "icewarden", &mut script);
    print::bytes(&script);
    0
}

#[cfg(test)]
mod tests {
    use clap::{Command, ValueEnum};

    use super::*;

    fn script(shell: Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "icewarden", &mut script);
        String::from_utf8(script).unwrap()
    }

    /// Names of all subcommands, of those below them too.
    fn names(command: &Command, found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            found.push(inner.get_name().to_owned());
            names(inner, found);
        }
    }

    #[test]
    fn every_shell_completes_every_subcommand() {
        let mut all = Vec::new();
        names(&Arguments::command(), &mut all);
        assert!(all.len() > 20 && all.contains(&"sweep".to_owned()), "{all:?}");
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for name in &all {
                assert!(script.contains(name.as_str()), "{shell}: {name}");
            }
            assert!(script.contains("older-than"), "{shell}");
        }
    }
}
