//! Locations, addresses and databases as the file gives them, relative ones made absolute.

use std::collections::BTreeMap;

use toml::de::DeValue;
use url::Url;

use crate::config::raw::{Section, Text};
use crate::config::reader::Reader;
use crate::config::{PostgresUrl, Secret};
use crate::model::LocationRules;

/// What a relative path is relative to.
fn folder<'a>(reader: &Reader<'a>, text: &Text) -> Option<&'a str> {
    let folder = reader.sources.folder.to_str();
    if folder.is_none() {
        let message = format!("{}: the folder of this file has a name that is not UTF-8", text.shown());
        reader.error_with_hint(&text.at, message, "write an absolute path");
    }
    folder
}

/// Joins a relative path to an absolute folder, `.` and `..` resolved by name.
fn join(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// A location of table storage.
pub(super) fn location(reader: &Reader<'_>, text: &Text, rules: &LocationRules) -> Option<String> {
    let absolute = match text.value.strip_prefix("file:") {
        Some(rest) => file(reader, text, rest)?,
        None => text.value.clone(),
    };
    if rules.parse(&absolute).is_err() {
        let message = format!("{}: not a location", text.shown());
        reader.error_with_hint(&text.at, message, "s3://bucket/prefix, file:///path, or file:./path beside this file");
        return None;
    }
    Some(if absolute.starts_with('/') { format!("file://{absolute}") } else { absolute })
}

fn file(reader: &Reader<'_>, text: &Text, rest: &str) -> Option<String> {
    let relative = match rest.strip_prefix("//") {
        Some(after) if after.starts_with('/') || after.starts_with("localhost/") => return Some(text.value.clone()),
        Some(after) if after == "." || after.starts_with("./") || after.starts_with("../") => after,
        Some(_) => {
            let message = format!("{}: a file has no host", text.shown());
            reader.error_with_hint(&text.at, message, "file:///path, or file:./path beside this file");
            return None;
        }
        None if rest.starts_with('/') => return Some(text.value.clone()),
        None => rest,
    };
    Some(format!("file://{}", join(folder(reader, text)?, relative)))
}

/// A list of locations.
pub(super) fn locations(section: &Section<'_>, key: &str, rules: &LocationRules) -> Vec<String> {
    let texts = section.texts(key).map(toml::Spanned::into_inner).unwrap_or_default();
    texts.iter().filter_map(|text| location(section.reader(), text, rules)).collect()
}

/// A database, in a SQLite file or on a PostgreSQL server. Messages never quote the address, which may hold a password.
pub(super) fn database(reader: &Reader<'_>, key: &str, text: &Text) -> Option<Secret> {
    let hint = "sqlite:///path, sqlite://./path beside this file, or postgres://user:password@host/database";
    if PostgresUrl::is_meant(&text.value) {
        let secret = Secret::new(text.value.clone());
        if let Err(reason) = PostgresUrl::parse(&secret) {
            reader.error(&text.at, format!("{key} {reason}"));
            return None;
        }
        return Some(secret);
    }
    let Some(rest) = text.value.strip_prefix("sqlite://") else {
        reader.error_with_hint(&text.at, format!("{key}: not the address of a SQLite or PostgreSQL database"), hint);
        return None;
    };
    let (path, options) = rest.find('?').map_or((rest, ""), |at| rest.split_at(at));
    if path.is_empty() || path.ends_with('/') || path.contains(":memory:") || options.contains("mode=memory") {
        reader.error_with_hint(&text.at, format!("{key}: the database must be a file"), hint);
        return None;
    }
    if path.starts_with('/') {
        return Some(Secret::new(text.value.clone()));
    }
    // The path is percent-decoded when the database is opened; the folder stands for itself.
    let folder = folder(reader, text)?.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    Some(Secret::new(format!("sqlite://{}{options}", join(&folder, path))))
}

/// The address of a server, without what does not belong there.
pub(super) fn server(reader: &Reader<'_>, key: &str, text: &Text) -> Option<String> {
    // Not quoted: it may hold a password, which is one of the problems.
    let url = Url::parse(&text.value).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(url) = url else {
        reader.error(&text.at, format!("{key}: expected the address of a server, https://… or http://…"));
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() {
        let hint = "credential or token, with ${ENV} or as a *_file";
        reader.error_with_hint(&text.at, format!("{key} holds a password, which would be printed"), hint);
        return None;
    }
    if url.query().is_some() || url.fragment().is_some() {
        reader.error(&text.at, format!("{key}: the address of a server ends before `?` and `#`"));
        return None;
    }
    Some(text.value.trim_end_matches('/').to_owned())
}

/// A table of names that are the same place, each in its canonical form.
pub(super) fn same_places(section: &Section<'_>, canonical: impl Fn(&str) -> String) -> BTreeMap<String, String> {
    let reader = section.reader();
    let mut same = BTreeMap::new();
    let mut places = Vec::new();
    for (key, value) in section.entries() {
        match value.get_ref() {
            DeValue::String(target) => {
                let target = canonical(target);
                places.push((value.span(), target.clone()));
                same.insert(canonical(key.get_ref()), target);
            }
            other => section.wrong_type(key.get_ref(), &value.span(), "text in quotes", other),
        }
    }
    for (at, target) in places {
        // Rules are applied once, so that a chain would leave two names for one place.
        if same.get(&target).is_some_and(|further| *further != target) {
            reader.error(&at, format!("{target:?} is itself the same as another; name that one"));
        }
    }
    same.retain(|name, target| name != target);
    same
}
