//! What is wrong with a configuration: every problem with its place, in words, and what to do about it.

use std::fmt;
use std::io;
use std::path::Path;

/// A place in the file; lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

impl Position {
    /// The place of a byte offset; one beyond the text is its end.
    pub(crate) fn of(text: &str, offset: usize) -> Self {
        let before = text.char_indices().take_while(|(at, _)| *at < offset);
        let (line, column) =
            before.fold((1, 1), |(line, column), (_, c)| if c == '\n' { (line + 1, 1) } else { (line, column + 1) });
        Self { line, column }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Whether the configuration can be used all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can.
    Warning,
}

/// One thing that is wrong. It never holds a secret: values are quoted as the file has them, before `${ENV}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Whether the configuration can be used all the same.
    pub severity: Severity,
    /// The file, as it was named.
    pub file: String,
    /// The key or value.
    pub at: Position,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Problem {
    fn place(&self) -> String {
        format!("{}:{}", self.file, self.at)
    }

    fn line(&self, width: usize) -> String {
        let hint = self.hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
        let warning = if self.severity == Severity::Warning { "      (warning)" } else { "" };
        format!("{:width$}  {}{hint}{warning}", self.place(), self.message)
    }

    /// All of them below each other, each indented, places in one column, in the order of the file.
    pub fn list(problems: &[Self]) -> String {
        let width = problems.iter().map(|problem| problem.place().chars().count()).max().unwrap_or(0);
        let mut sorted: Vec<&Self> = problems.iter().collect();
        sorted.sort_by_key(|problem| problem.at);
        let lines: Vec<String> = sorted.iter().map(|problem| format!("  {}", problem.line(width))).collect();
        lines.join("\n")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(0))
    }
}

/// The configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no text to read.
    #[error("cannot read the configuration {file}: {reason} (hint: name it with --config FILE or ICEWARDEN_CONFIG)")]
    Unreadable {
        /// The file, as it was named.
        file: String,
        /// In the system's words.
        reason: String,
    },
    /// At least one of these is an error.
    #[error("{file} has {}\n{}", count(problems.len()), Problem::list(problems))]
    Invalid {
        /// The file, as it was named.
        file: String,
        /// All that is wrong, warnings included, in the order of the file.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::Unreadable { file: path.display().to_string(), reason: error.to_string() }
    }
}

fn count(problems: usize) -> String {
    if problems == 1 { "1 problem".to_owned() } else { format!("{problems} problems") }
}
