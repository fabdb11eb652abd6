//! Walks through an answer of S3: element by element, and to its very end.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

/// What comes next.
pub(super) enum Step<'a> {
    /// An element begins; its name without a namespace.
    Open(&'a [u8]),
    /// The innermost element ends; the text since the last begin or end, as it was meant, with its white space.
    Close(String),
}

/// Tells every step. An error, in words, where the text is no whole document, or `each` says so.
pub(super) fn walk(text: &str, mut each: impl FnMut(Step<'_>) -> Result<(), String>) -> Result<(), String> {
    let mut reader = Reader::from_str(text);
    let (mut depth, mut is_whole) = (0_usize, false);
    let mut value = String::new();
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(start) => {
                if is_whole {
                    return Err("it goes on behind its end".to_owned());
                }
                value.clear();
                depth += 1;
                each(Step::Open(start.local_name().as_ref()))?;
            }
            Event::End(_) => {
                depth = depth.checked_sub(1).ok_or("an element ends that did not begin")?;
                is_whole = depth == 0;
                each(Step::Close(std::mem::take(&mut value)))?;
            }
            Event::Text(text) => value.push_str(&text.decode().map_err(|error| error.to_string())?),
            Event::CData(text) => value.push_str(&text.decode().map_err(|error| error.to_string())?),
            Event::GeneralRef(name) => {
                if let Some(character) = name.resolve_char_ref().map_err(|error| error.to_string())? {
                    value.push(character);
                } else {
                    let name: Cow<'_, str> = name.decode().map_err(|error| error.to_string())?;
                    value.push_str(resolve_predefined_entity(&name).ok_or_else(|| format!("&{name}; is unknown"))?);
                }
            }
            // One without content as the whole document; within one, it tells nothing.
            Event::Empty(start) if depth == 0 && !is_whole => {
                is_whole = true;
                each(Step::Open(start.local_name().as_ref()))?;
                each(Step::Close(String::new()))?;
            }
            Event::Eof if is_whole => return Ok(()),
            Event::Eof => return Err("it ends in the middle".to_owned()),
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}
