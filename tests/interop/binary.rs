//! The built binary as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::parts::variable;

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

/// A process that has reached a failpoint (see `src/failpoint.rs`) and waits there. Dropped, it is killed.
pub(crate) struct Paused {
    process: Option<Child>,
    gate: PathBuf,
}

impl Paused {
    /// Starts the command and waits until it reaches this place.
    #[track_caller]
    pub(crate) fn at(place: &str, mut command: Command) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let gate = PathBuf::from(variable("ICEWARDEN_SCRATCH")).join(format!("gate-{}-{number}", std::process::id()));
        command.env("ICEWARDEN_FAILPOINTS", format!("{place}=wait:{}", gate.display()));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !gate.with_extension("reached").exists() {
            if process.try_wait().unwrap().is_some() {
                let answer = Answer::from(process.wait_with_output().unwrap());
                panic!("ended without reaching {place}: {answer}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { process: Some(process), gate }
    }

    /// Lets it go on, to its end.
    pub(crate) fn go_on(mut self) -> Answer {
        fs::write(&self.gate, "").unwrap();
        self.process.take().unwrap().wait_with_output().unwrap().into()
    }

    /// Sends it a signal, such as `STOP`.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success(), "kill -s {name} {pid}: {sent}");
    }

    /// `kill -9`.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _killed = process.kill();
            let _ended = process.wait();
        }
    }
}
