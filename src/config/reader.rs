//! Takes the problems of one file, knows its lines and what `${ENV}` stands for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use super::Sources;
use super::problem::{Position, Problem, Severity};

/// A place in the text, in bytes.
pub(super) type Span = Range<usize>;

/// Takes the problems of one file.
pub(super) struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    pub(super) sources: &'a Sources<'a>,
    problems: RefCell<Vec<Problem>>,
    /// Every key that was asked for, as `section.key`, and those of them that the file has.
    asked: RefCell<BTreeSet<String>>,
    present: RefCell<BTreeSet<String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, file: &'a str, sources: &'a Sources<'a>) -> Self {
        Self {
            text,
            file,
            sources,
            problems: RefCell::default(),
            asked: RefCell::default(),
            present: RefCell::default(),
        }
    }

    /// The file, as it was named.
    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    pub(super) fn position(&self, at: &Span) -> Position {
        Position::of(self.text, at.start)
    }

    pub(super) fn error(&self, at: &Span, message: impl Into<String>) {
        self.add(Severity::Error, at, message.into(), None);
    }

    pub(super) fn error_with_hint(&self, at: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.add(Severity::Error, at, message.into(), Some(hint.into()));
    }

    pub(super) fn warning(&self, at: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.add(Severity::Warning, at, message.into(), Some(hint.into()));
    }

    fn add(&self, severity: Severity, at: &Span, message: String, hint: Option<String>) {
        let problem = Problem { severity, file: self.file.to_owned(), at: self.position(at), message, hint };
        self.problems.borrow_mut().push(problem);
    }

    /// All problems in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.at);
        problems
    }

    /// Notes that a key is one that the file can have, and whether it has it.
    pub(super) fn note(&self, path: String, is_present: bool) {
        if is_present {
            self.present.borrow_mut().insert(path.clone());
        }
        self.asked.borrow_mut().insert(path);
    }

    /// The keys that the file could have and has not.
    #[cfg(test)]
    pub(super) fn absent(&self) -> Vec<String> {
        self.asked.borrow().difference(&self.present.borrow()).cloned().collect()
    }

    /// Replaces `${NAME}`; `$${` stands for `${`.
    pub(super) fn expand(&self, raw: &str, at: &Span) -> Option<String> {
        let mut out = String::with_capacity(raw.len());
        let mut rest = raw;
        let mut is_good = true;
        while let Some(dollar) = rest.find("${") {
            if rest[..dollar].ends_with('$') {
                out.push_str(&rest[..dollar - 1]);
                out.push_str("${");
                rest = &rest[dollar + 2..];
                continue;
            }
            out.push_str(&rest[..dollar]);
            let after = &rest[dollar + 2..];
            let Some((name, tail)) = after.split_once('}') else {
                self.error_with_hint(at, "`${` without its `}`", "write $${ for the two characters themselves");
                return None;
            };
            rest = tail;
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                // What stands there may be a secret that nobody meant as a name.
                let message = "the name of a variable is made of letters, digits and `_`";
                self.error_with_hint(at, message, "write $${ for the two characters themselves");
                is_good = false;
            } else if let Some(value) = (self.sources.env)(name) {
                out.push_str(&value);
            } else {
                let hint = format!("set it, or write $${{{name}}} for the text itself");
                self.error_with_hint(at, format!("the environment has no variable {name}"), hint);
                is_good = false;
            }
        }
        out.push_str(rest);
        is_good.then_some(out)
    }
}
