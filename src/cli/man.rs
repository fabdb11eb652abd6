//! `man`: manual pages, from the command line's own description.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Arguments, print};

/// Writes a page for each subcommand into the folder; without one, prints the first page. Returns the exit code.
pub(super) fn command(folder: Option<&Path>) -> u8 {
    let command = Arguments::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        return match Man::new(command).render(&mut page) {
            Ok(()) => {
                print::bytes(&page);
                0
            }
            Err(error) => failed(&error.to_string()),
        };
    };
    match fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder)) {
        Ok(()) => {
            print::line(format!("manual pages are in {}", folder.display()));
            0
        }
        Err(error) => failed(&format!("cannot write manual pages into {}: {error}", folder.display())),
    }
}

fn failed(text: &str) -> u8 {
    print::error(&text);
    1
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// The page's file name, and the subcommands that it must tell of.
    fn pages(command: &Command, prefix: &str, found: &mut Vec<(String, Vec<String>)>) {
        let visible = || command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set());
        found.push((format!("{prefix}.1"), visible().map(|inner| inner.get_name().to_owned()).collect()));
        for inner in visible() {
            pages(inner, &format!("{prefix}-{}", inner.get_name()), found);
        }
    }

    #[test]
    fn every_subcommand_has_a_page_of_the_right_form() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(command(Some(&folder.path().join("man"))), 0);
        let mut expected = Vec::new();
        pages(&Arguments::command(), "icewarden", &mut expected);
        assert!(expected.iter().any(|(name, _)| name == "icewarden-plan-expire.1"), "{expected:?}");
        for (name, inner) in &expected {
            let page =
                fs::read_to_string(folder.path().join("man").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(page.contains("\n.TH ") || page.starts_with(".TH "), "{name} has no title");
            for section in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
                assert!(page.contains(section), "{name} has no {section}");
            }
            for subcommand in inner {
                assert!(page.contains(&format!("\\-{}(1)", subcommand.replace('-', "\\-"))), "{name}: {subcommand}");
            }
        }
        assert_eq!(fs::read_dir(folder.path().join("man")).unwrap().count(), expected.len());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(command(Some(&file.join("man"))), 1);
    }
}
