//! The built binary as a user runs it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

/// The command `icewarden --config CONFIG ARGUMENTS`, the latter parted at spaces.
pub(crate) fn icewarden(config: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_icewarden"));
    command.arg("--config").arg(config).args(arguments.split(' ')).stdin(Stdio::null());
    command
}

/// What it said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().unwrap().into()
    }

    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// The answer of `--json`.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON: {error}\n{self}"))
    }

    /// The part of a run's report that is about this table.
    #[track_caller]
    pub(crate) fn table(&self, name: &str) -> Value {
        let report = self.json();
        let is_it = |table: &&Value| full_name(&table["table"]) == name;
        let tables = report["tables"].as_array().unwrap_or_else(|| panic!("no tables in the report\n{self}"));
        tables.iter().find(is_it).unwrap_or_else(|| panic!("nothing about {name}\n{self}")).clone()
    }

    /// Fails the test unless stdout or stderr holds this text.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.stdout.contains(text) || self.stderr.contains(text), "does not say {text:?}\n{self}");
        self
    }
}

/// `namespace.table` of a table's name in JSON.
fn full_name(name: &Value) -> String {
    let levels = name["namespace"].as_array().into_iter().flatten().chain([&name["name"]]);
    levels.filter_map(Value::as_str).collect::<Vec<_>>().join(".")
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// A process that has reached a failpoint (see `src/failpoint.rs`) and waits there.
pub(crate) struct Paused {
    process: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Paused {
    /// Starts the command and waits until it reaches this place.
    #[track_caller]
    pub(crate) fn at(place: &str, mut command: Command) -> Self {
        command.env("ICEWARDEN_FAILPOINT", place).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut said = String::new();
        while !said.ends_with(&format!("failpoint {place}\n")) {
            if stderr.read_line(&mut said).unwrap() == 0 {
                let answer = Answer::from(process.wait_with_output().unwrap());
                panic!("ended without reaching {place}:\n{said}\n{answer}");
            }
        }
        Self { process, stderr, said }
    }

    /// Lets it go on, to its end.
    pub(crate) fn go_on(mut self) -> Answer {
        drop(self.process.stdin.take());
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            self.stderr.read_to_string(&mut rest).unwrap();
            rest
        });
        let mut answer = Answer::from(self.process.wait_with_output().unwrap());
        answer.stderr = self.said + &rest.join().unwrap();
        answer
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
