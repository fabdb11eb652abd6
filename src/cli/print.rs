//! The one place that writes to stdout and stderr.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

/// A line of data.
pub(crate) fn line(text: impl Display) {
    // A closed pipe (`| head`) is the reader's wish, not an error.
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// A whole file, such as a script, as it is.
pub(crate) fn bytes(text: &[u8]) {
    let _ = std::io::stdout().write_all(text);
}

/// An object as a line of JSON.
pub(crate) fn json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => line(text),
        Err(failed) => error(&failed),
    }
}

/// A note for the reader, not data.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// An error.
pub(crate) fn error(text: &dyn Display) {
    let (style, reset) = (anstyle::AnsiColor::Red.on_default().bold(), anstyle::Reset);
    let _ = writeln!(anstream::stderr(), "{style}error:{reset} {text}");
}
