//! One page of an S3 listing (`ListObjectsV2`), read strictly: a page that is not whole is no page.

use chrono::{DateTime, Utc};
use percent_encoding::percent_decode;

use crate::model::{ObjectFacts, Timestamp};
use crate::storage::xml::{self, Step};

/// What a bucket has in one place, in the store's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) objects: Vec<(Vec<u8>, ObjectFacts)>,
    /// Folders, where a delimiter was asked for.
    pub(super) folders: Vec<Vec<u8>>,
    /// Where it goes on, if it does.
    pub(super) token: Option<String>,
}

/// What a `+` in an encoded key stands for. S3 means a space, as in forms; some servers leave a plus as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plus {
    Space,
    Plus,
}

/// Why an answer is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoPage {
    /// It may be whole when it is asked for again; in words.
    Broken(String),
    /// The store's error inside an answer that says success.
    Error(String),
    /// Nothing in it tells what a `+` is.
    UnclearPlus,
}

/// An element on the way to where the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum In {
    Answer,
    Object,
    Folder,
    Field(Field),
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Key,
    Size,
    Modified,
    Tag,
    Prefix,
    Encoding,
    Truncated,
    Token,
}

#[derive(Default)]
struct Read {
    objects: Vec<Object>,
    folders: Vec<String>,
    encoding: String,
    truncated: String,
    token: Option<String>,
}

#[derive(Default)]
struct Object {
    key: Option<String>,
    size: String,
    modified: String,
    tag: Option<String>,
}

/// Reads a page. `plus` is what a plus stands for at this store, where that is known.
pub(super) fn read(body: &[u8], plus: Option<Plus>) -> Result<Page, NoPage> {
    let broken = |what: &str| NoPage::Broken(format!("the answer is no whole list of objects: {what}"));
    let text = std::str::from_utf8(body).map_err(|error| broken(&error.to_string()))?;
    if let Some(error) = store_error(text) {
        return Err(NoPage::Error(error));
    }
    let found = elements(text).map_err(|what| broken(&what))?;
    let token = match (found.truncated.trim(), found.token) {
        ("true", Some(token)) if !token.is_empty() => Some(token),
        ("true", _) => return Err(broken("there is more, and it does not say where (NextContinuationToken)")),
        ("false", _) => None,
        (other, _) => return Err(broken(&format!("IsTruncated is {other:?}"))),
    };
    let names = || found.objects.iter().filter_map(|object| object.key.as_ref()).chain(&found.folders);
    let plus = match found.encoding.trim() {
        "" => None,
        "url" if names().any(|name| name.contains('+')) => match plus {
            Some(plus) => Some(plus),
            None if names().any(|name| name.contains("%2B")) => Some(Plus::Space),
            None if names().any(|name| name.contains("%20")) => Some(Plus::Plus),
            None => return Err(NoPage::UnclearPlus),
        },
        "url" => Some(Plus::Plus),
        other => return Err(broken(&format!("keys in an unknown encoding {other:?}"))),
    };
    let decode = |name: &str| -> Vec<u8> {
        match plus {
            None => name.as_bytes().to_vec(),
            Some(Plus::Plus) => percent_decode(name.as_bytes()).collect(),
            Some(Plus::Space) => percent_decode(name.replace('+', "%20").as_bytes()).collect(),
        }
    };
    let mut page = Page { token, ..Page::default() };
    for object in &found.objects {
        let key = object.key.as_ref().ok_or_else(|| broken("an object has no key"))?;
        let size =
            object.size.trim().parse().map_err(|_| broken(&format!("the size of {key} is {:?}", object.size)))?;
        // A time that cannot be read is no time, so that the object is kept (safety rule 3).
        let modified = object.modified.trim().parse::<DateTime<Utc>>().ok().map(Timestamp::from);
        let facts = ObjectFacts {
            size,
            modified: modified.filter(|time| time.0 > 0),
            etag: object.tag.clone().filter(|tag| !tag.is_empty()),
        };
        page.objects.push((decode(key), facts));
    }
    page.folders = found.folders.iter().map(|folder| decode(folder)).collect();
    Ok(page)
}

/// What a store says in an `<Error>`: its code and its message.
pub(super) fn store_error(text: &str) -> Option<String> {
    let start = text.find("<Error>").or_else(|| text.find("<Error "))?;
    if text[..start].contains("<ListBucketResult") {
        return None;
    }
    let of = |name: &str| {
        let (_, rest) = text[start..].split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(said, _)| said.trim().to_owned()).filter(|said| !said.is_empty())
    };
    let said: Vec<String> = [of("Code"), of("Message")].into_iter().flatten().collect();
    Some(if said.is_empty() { "an error without words".to_owned() } else { said.join(": ") })
}

fn elements(text: &str) -> Result<Read, String> {
    let mut read = Read::default();
    let mut path: Vec<In> = Vec::new();
    xml::walk(text, |step| {
        match step {
            Step::Open(name) => {
                let inner = enter(path.last().copied(), name);
                if path.is_empty() && inner != In::Answer {
                    return Err(format!("it is a <{}>", String::from_utf8_lossy(name)));
                }
                if inner == In::Object {
                    read.objects.push(Object::default());
                }
                path.push(inner);
            }
            Step::Close(value) => {
                if let Some(In::Field(field)) = path.pop() {
                    set(&mut read, path.last().copied(), field, value);
                }
            }
        }
        Ok(())
    })?;
    Ok(read)
}

fn enter(outer: Option<In>, name: &[u8]) -> In {
    match (outer, name) {
        (None, b"ListBucketResult") => In::Answer,
        (Some(In::Answer), b"Contents") => In::Object,
        (Some(In::Answer), b"CommonPrefixes") => In::Folder,
        (Some(In::Answer), b"EncodingType") => In::Field(Field::Encoding),
        (Some(In::Answer), b"IsTruncated") => In::Field(Field::Truncated),
        (Some(In::Answer), b"NextContinuationToken") => In::Field(Field::Token),
        (Some(In::Object), b"Key") => In::Field(Field::Key),
        (Some(In::Object), b"Size") => In::Field(Field::Size),
        (Some(In::Object), b"LastModified") => In::Field(Field::Modified),
        (Some(In::Object), b"ETag") => In::Field(Field::Tag),
        (Some(In::Folder), b"Prefix") => In::Field(Field::Prefix),
        _ => In::Other,
    }
}

fn set(read: &mut Read, outer: Option<In>, field: Field, value: String) {
    match (outer, field) {
        (Some(In::Answer), Field::Encoding) => read.encoding = value,
        (Some(In::Answer), Field::Truncated) => read.truncated = value,
        (Some(In::Answer), Field::Token) => read.token = Some(value),
        (Some(In::Folder), Field::Prefix) => read.folders.push(value),
        (Some(In::Object), field) => {
            let Some(object) = read.objects.last_mut() else { return };
            match field {
                Field::Key => object.key = Some(value),
                Field::Size => object.size = value,
                Field::Modified => object.modified = value,
                Field::Tag => object.tag = Some(value),
                _ => {}
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(encoding: &str, keys: &[&str], end: &str) -> String {
        let object = |key: &&str| {
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified>\
                 <ETag>&quot;e&quot;</ETag><Size>7</Size><Owner><ID>x</ID></Owner></Contents>"
            )
        };
        let objects = keys.iter().map(object).collect::<Vec<_>>().concat();
        format!(
            "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
             <Prefix>t/</Prefix>{encoding}{objects}{end}</ListBucketResult>"
        )
    }

    fn keys(page: &Page) -> Vec<String> {
        page.objects.iter().map(|(key, _)| String::from_utf8(key.clone()).unwrap()).collect()
    }

    const URL: &str = "<EncodingType>url</EncodingType>";
    const END: &str = "<IsTruncated>false</IsTruncated>";

    #[test]
    fn keys_are_read_byte_for_byte() {
        let raw = page("", &["t/a&amp;b", "t/&#x41;+%2B", " t/é "], END);
        let read_raw = read(raw.as_bytes(), None).unwrap();
        assert_eq!(keys(&read_raw), ["t/a&b", "t/A+%2B", " t/é "]);
        let facts = &read_raw.objects[0].1;
        assert_eq!((facts.size, facts.etag.as_deref()), (7, Some("\"e\"")));
        assert_eq!(facts.modified, Some("2026-11-30T12:00:00Z".parse().unwrap()));

        for (given, plus, wanted) in [
            ("t/a+b%2B", None, "t/a b+"),
            ("t/a+b%20", None, "t/a+b "),
            ("t/a+b", Some(Plus::Space), "t/a b"),
            ("t/a+b", Some(Plus::Plus), "t/a+b"),
            ("t/%252F%01", None, "t/%2F\u{1}"),
        ] {
            assert_eq!(keys(&read(page(URL, &[given], END).as_bytes(), plus).unwrap()), [wanted], "{given}");
        }
        assert_eq!(read(page(URL, &["t/a+b"], END).as_bytes(), None), Err(NoPage::UnclearPlus));
    }

    #[test]
    fn what_is_no_whole_page_is_none() {
        let whole = page("", &["t/a"], END);
        for at in 0..whole.len() - 1 {
            assert!(matches!(read(&whole.as_bytes()[..at], None), Err(NoPage::Broken(_))), "{}", &whole[..at]);
        }
        for end in [
            "",
            "<IsTruncated>true</IsTruncated>",
            "<IsTruncated>true</IsTruncated><NextContinuationToken></NextContinuationToken>",
            "<IsTruncated>maybe</IsTruncated>",
        ] {
            assert!(matches!(read(page("", &["t/a"], end).as_bytes(), None), Err(NoPage::Broken(_))), "{end}");
        }
        let no_size = whole.replace("<Size>7</Size>", "");
        assert!(matches!(read(no_size.as_bytes(), None), Err(NoPage::Broken(_))));
        let error = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Later</Message></Error>";
        assert_eq!(read(error.as_bytes(), None), Err(NoPage::Error("SlowDown: Later".to_owned())));
        let html = read(b"<html></html>", None);
        assert!(matches!(&html, Err(NoPage::Broken(what)) if what.contains("<html>")), "{html:?}");
    }

    #[test]
    fn a_key_that_looks_like_an_error_is_a_key() {
        let text = page("", &["t/&lt;Error>"], END);
        assert_eq!(keys(&read(text.as_bytes(), None).unwrap()), ["t/<Error>"]);
    }
}
