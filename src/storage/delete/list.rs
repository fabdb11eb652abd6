//! The list of objects that one request deletes (`DeleteObjects`), and what S3 answers for each.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::storage::fault::Fault;
use crate::storage::xml::{self, Step};

/// What was said of the keys of a request, by key, byte for byte.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) deleted: HashSet<String>,
    pub(super) failed: HashMap<String, Fault>,
}

/// Why there is no such answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// It is an error, whatever its status says.
    Fault(Fault),
    /// In words.
    Broken(String),
}

/// Whether a list can name this key so that every server reads it as it is. XML has no control characters, and there are
/// servers that cut off white space around a text, which would name another object.
pub(super) fn can_name(key: &str) -> bool {
    let is_text = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    key.chars().all(is_text) && key.trim() == key
}

/// The body of the request.
pub(super) fn write<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let mut body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                    <Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        .to_owned();
    for key in keys {
        body.push_str("<Object><Key>");
        for character in key.chars() {
            match character {
                '&' => body.push_str("&amp;"),
                '<' => body.push_str("&lt;"),
                '>' => body.push_str("&gt;"),
                '"' => body.push_str("&quot;"),
                '\'' => body.push_str("&apos;"),
                // A reader makes other white space of them.
                '\t' | '\n' | '\r' => _ = write!(body, "&#{};", u32::from(character)),
                _ => body.push(character),
            }
        }
        body.push_str("</Key></Object>");
    }
    body.push_str("</Delete>");
    body
}

/// An element on the way to where the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum In {
    Answer,
    Deleted,
    Failed,
    Key,
    Code,
    Message,
    Other,
}

/// Reads an answer strictly: one that is not whole is none.
pub(super) fn read(body: &[u8]) -> Result<Answer, NoAnswer> {
    if let Some(fault) = Fault::read(body) {
        return Err(NoAnswer::Fault(fault));
    }
    let broken = |what: String| NoAnswer::Broken(format!("the answer is no whole list of deleted objects: {what}"));
    let text = std::str::from_utf8(body).map_err(|error| broken(error.to_string()))?;
    let mut answer = Answer::default();
    let mut path: Vec<In> = Vec::new();
    let (mut key, mut fault) = (None, Fault::default());
    xml::walk(text, |step| {
        match step {
            Step::Open(name) => {
                let inner = match (path.last(), name) {
                    (None, b"DeleteResult") => In::Answer,
                    (None, _) => return Err(format!("it is a <{}>", String::from_utf8_lossy(name))),
                    (Some(In::Answer), b"Deleted") => In::Deleted,
                    (Some(In::Answer), b"Error") => In::Failed,
                    (Some(In::Deleted | In::Failed), b"Key") => In::Key,
                    (Some(In::Failed), b"Code") => In::Code,
                    (Some(In::Failed), b"Message") => In::Message,
                    _ => In::Other,
                };
                if matches!(inner, In::Deleted | In::Failed) {
                    (key, fault) = (None, Fault::default());
                }
                path.push(inner);
            }
            Step::Close(value) => match path.pop() {
                Some(In::Key) => key = Some(value),
                Some(In::Code) => value.trim().clone_into(&mut fault.code),
                Some(In::Message) => value.trim().clone_into(&mut fault.message),
                // One that names no key is about none.
                Some(In::Deleted) => answer.deleted.extend(key.take()),
                Some(In::Failed) => {
                    let fault = std::mem::take(&mut fault);
                    answer.failed.extend(key.take().map(|key| (key, fault)));
                }
                _ => {}
            },
        }
        Ok(())
    })
    .map_err(broken)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_key_byte_for_byte() {
        for key in ["t/a b", "t/a+b%2F%", "t/é e\u{301} 日本 🦀", "t/&amp;<a>\"'", "t/a#1?b=*~", "t/a\u{a0}b", "t/]]>"]
        {
            assert!(can_name(key), "{key}");
            let body = write([key].into_iter());
            let answer = body.replace("<Object>", "<Deleted>").replace("</Object>", "</Deleted>");
            let answer = answer.replace("<Delete ", "<DeleteResult ").replace("</Delete>", "</DeleteResult>");
            assert_eq!(read(answer.as_bytes()).unwrap().deleted, [key.to_owned()].into(), "{body}");
        }
        assert!(write(["a\r\n\tb"].into_iter()).contains("<Key>a&#13;&#10;&#9;b</Key>"));
        for key in ["t/\u{1}x", "t/\u{0}", "t/\u{fffe}", " t", "t/a ", "t/a\u{a0}", "t\n"] {
            assert!(!can_name(key), "{key:?}");
        }
    }

    #[test]
    fn each_key_has_what_was_said_of_it() {
        let text = "<?xml version=\"1.0\"?>\n<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                    <Deleted><Key>a</Key><DeleteMarker>true</DeleteMarker></Deleted>\
                    <Error><Key>b</Key><Code>AccessDenied</Code><Message>No &lt;b&gt;</Message></Error>\
                    <Error><Code>InternalError</Code></Error>\
                    <Deleted><Key> c&#x20;</Key></Deleted><Other><Key>d</Key></Other></DeleteResult>";
        let answer = read(text.as_bytes()).unwrap();
        assert_eq!(answer.deleted, ["a".to_owned(), " c ".to_owned()].into());
        let fault = Fault { code: "AccessDenied".to_owned(), message: "No <b>".to_owned() };
        assert_eq!(answer.failed, [("b".to_owned(), fault)].into());
        for at in 0..text.len() - 1 {
            assert!(matches!(read(&text.as_bytes()[..at]), Err(NoAnswer::Broken(_))), "{}", &text[..at]);
        }
        assert!(matches!(read(b"<html></html>"), Err(NoAnswer::Broken(what)) if what.contains("<html>")));
        assert!(matches!(read(b"\xff"), Err(NoAnswer::Broken(_))));
        let error = read(b"<Error><Code>SlowDown</Code><Message>Later</Message></Error>");
        assert!(matches!(error, Err(NoAnswer::Fault(fault)) if fault.words() == "SlowDown: Later"));
        for none in ["<DeleteResult></DeleteResult>", "<DeleteResult xmlns=\"x\"/>"] {
            assert_eq!(read(none.as_bytes()), Ok(Answer::default()));
        }
    }
}
