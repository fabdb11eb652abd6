//! The file as sections whose values know their place.
//!
//! A [`Section`] hands out its values one by one, each checked for its type, and at the end reports every key
//! that nobody asked for. Nothing here stops at the first problem: what cannot be read is `None`, and noted.
//! Texts are quoted in messages as the file has them, so that what `${ENV}` stands for is never printed.

use std::cell::RefCell;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Secret;
use super::reader::{Reader, Span};
use crate::model::Age;

/// A text of the file.
pub(super) struct Text {
    key: String,
    /// As the file has it, for messages.
    raw: String,
    /// For use.
    pub(super) value: String,
    pub(super) at: Span,
}

impl Text {
    /// Key and value as the file has them, for messages.
    pub(super) fn shown(&self) -> String {
        format!("{} {:?}", self.key, self.raw)
    }

    /// As the file has it.
    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    /// Whether the value comes from the environment, in part at least.
    pub(super) fn has_variable(&self) -> bool {
        self.raw != self.value
    }
}

/// A table of the file, or one that it does not have.
pub(super) struct Section<'a> {
    reader: &'a Reader<'a>,
    /// As messages call it: `[expire]`, `[[policy]] refs`.
    name: String,
    /// `expire`, `policy.refs`.
    path: String,
    table: Option<&'a DeTable<'a>>,
    /// Its header, or what it is part of.
    pub(super) at: Span,
    asked: RefCell<Vec<String>>,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(reader: &'a Reader<'a>, table: &'a DeTable<'a>) -> Self {
        Self {
            reader,
            name: String::new(),
            path: String::new(),
            table: Some(table),
            at: 0..0,
            asked: RefCell::default(),
        }
    }

    /// Whether the file has it.
    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether it has a key, good or bad.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    /// As messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn reader(&self) -> &'a Reader<'a> {
        self.reader
    }

    /// Reports every key that was not asked for.
    pub(super) fn close(self) {
        let asked = self.asked.into_inner();
        for (key, value) in self.table.into_iter().flatten() {
            let name: &str = key.get_ref();
            if asked.iter().any(|known| known == name) {
                continue;
            }
            let close = closest(name, asked.iter().map(String::as_str));
            let is_section = self.path.is_empty() && !matches!(value.get_ref(), DeValue::String(_));
            let (what, close) = if is_section {
                (format!("unknown section [{name}]"), close.map(|close| format!("[{close}]")))
            } else if self.path.is_empty() {
                (format!("unknown key `{name}` outside of any section"), None)
            } else {
                (format!("unknown key `{name}` in {}", self.name), close.map(|close| format!("`{close}`")))
            };
            self.reader.error(&key.span(), what + &did_you_mean(close.as_deref()));
        }
    }

    /// The value of a key and where it stands.
    pub(super) fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        let value = self.table.and_then(|table| table.get(key));
        self.reader.note(path, value.is_some());
        self.asked.borrow_mut().push(key.to_owned());
        value
    }

    /// All keys with their values in the order of the file, for sections whose keys are free.
    pub(super) fn entries(&self) -> Vec<(Spanned<&'a str>, &'a Spanned<DeValue<'a>>)> {
        let entries = self.table.into_iter().flatten();
        let mut named: Vec<_> = entries
            .map(|(key, value)| {
                let name: &'a str = key.get_ref();
                self.asked.borrow_mut().push(name.to_owned());
                (Spanned::new(key.span(), name), value)
            })
            .collect();
        named.sort_by_key(|(key, _)| key.span().start);
        named
    }

    /// How messages call a table under this key.
    fn name_below(&self, key: &str) -> String {
        let is_bare = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        match (self.path.is_empty(), is_bare) {
            (true, _) => format!("[{key}]"),
            (false, true) => format!("{} {key}", self.name),
            (false, false) => format!("[{}.{key:?}]", self.path),
        }
    }

    pub(super) fn section(&self, key: &str) -> Self {
        let name = self.name_below(key);
        let value = self.value(key);
        let table = value.and_then(|value| match value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                let expected = if self.path.is_empty() { "a section" } else { "a table" };
                self.wrong_type(key, &value.span(), expected, other);
                None
            }
        });
        self.child(key, name, table, value.map_or(self.at.clone(), Spanned::span))
    }

    /// The tables of an array; `None` where the key is not there.
    pub(super) fn sections(&self, key: &str) -> Option<Vec<Self>> {
        let name = if self.path.is_empty() { format!("[[{key}]]") } else { self.name_below(key) };
        let value = self.value(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            let expected = if self.path.is_empty() {
                format!("one or several [[{key}]]")
            } else {
                "an array of tables such as [{ name = \"…\" }]".to_owned()
            };
            self.wrong_type(key, &value.span(), &expected, value.get_ref());
            return None;
        };
        let sections = items.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(self.child(key, name.clone(), Some(table), item.span())),
            other => {
                self.wrong_type(key, &item.span(), "tables", other);
                None
            }
        });
        Some(sections.collect())
    }

    fn child(&self, key: &str, name: String, table: Option<&'a DeTable<'a>>, at: Span) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { reader: self.reader, name, path, table, at, asked: RefCell::default() }
    }

    /// Reports that a key must be there.
    pub(super) fn missing(&self, key: &str, hint: &str) {
        self.reader.error_with_hint(&self.at, format!("{} has no `{key}`", self.name), hint);
    }

    pub(super) fn wrong_type(&self, key: &str, at: &Span, expected: &str, found: &DeValue<'_>) {
        let found = match found {
            DeValue::String(_) => "text in quotes",
            DeValue::Integer(_) | DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.reader.error(at, format!("{key}: expected {expected}, found {found}"));
    }

    fn as_text(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) -> Option<Text> {
        let Some(raw) = value.get_ref().as_str() else {
            self.wrong_type(key, &value.span(), expected, value.get_ref());
            return None;
        };
        let at = value.span();
        Some(Text { key: key.to_owned(), raw: raw.to_owned(), value: self.reader.expand(raw, &at)?, at })
    }

    /// A text, with `${ENV}` replaced; an empty one is a problem.
    pub(super) fn text(&self, key: &str) -> Option<Text> {
        self.text_of(key, "text in quotes")
    }

    fn text_of(&self, key: &str, expected: &str) -> Option<Text> {
        let text = self.as_text(key, self.value(key)?, expected)?;
        if text.value.trim().is_empty() {
            self.reader.error(&text.at, format!("{key} is empty"));
            return None;
        }
        Some(text)
    }

    /// A list of texts, and where it stands.
    pub(super) fn texts(&self, key: &str) -> Option<Spanned<Vec<Text>>> {
        let value = self.value(key)?;
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(key, &value.span(), "an array of texts such as [\"…\"]", value.get_ref());
            return None;
        };
        let texts = items.iter().filter_map(|item| self.as_text(key, item, "text in quotes"));
        let texts = texts.filter(|text| {
            let is_empty = text.value.trim().is_empty();
            if is_empty {
                self.reader.error(&text.at, format!("{key} has an empty text"));
            }
            !is_empty
        });
        Some(Spanned::new(value.span(), texts.collect()))
    }

    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        let value = self.value(key)?;
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.wrong_type(key, &value.span(), "true or false", value.get_ref());
        }
        boolean
    }

    /// A whole number of this range, whose type bounds it too.
    pub(super) fn number<T>(&self, key: &str, range: impl RangeBounds<T>, words: &str) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd,
    {
        let value = self.value(key)?;
        let DeValue::Integer(number) = value.get_ref() else {
            self.wrong_type(key, &value.span(), "a whole number", value.get_ref());
            return None;
        };
        let read =
            i64::from_str_radix(number.as_str(), number.radix()).ok().and_then(|number| T::try_from(number).ok());
        let read = read.filter(|number| range.contains(number));
        if read.is_none() {
            self.reader.error(&value.span(), format!("{key} {number}: expected {words}"));
        }
        read
    }

    /// A number from 0 to 1.
    pub(super) fn ratio(&self, key: &str) -> Option<f64> {
        let value = self.value(key)?;
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            other => {
                self.wrong_type(key, &value.span(), "a number from 0 to 1", other);
                return None;
            }
        };
        let read = f64::from_str(number).ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        if read.is_none() {
            self.reader.error(&value.span(), format!("{key} {number}: expected a number from 0 to 1"));
        }
        read
    }

    /// A text that `read` understands.
    fn parsed<T>(&self, key: &str, expected: &str, read: impl Fn(&str) -> Option<T>) -> Option<Spanned<T>> {
        let text = self.text_of(key, expected)?;
        let value = read(&text.value);
        if value.is_none() {
            self.reader.error(&text.at, format!("{}: expected {expected}", text.shown()));
        }
        Some(Spanned::new(text.at, value?))
    }

    /// A duration.
    pub(super) fn age(&self, key: &str) -> Option<Spanned<Age>> {
        let expected = "a duration such as \"5d\", \"36h\" or \"30m\" (units w, d, h, m, s, ms)";
        self.parsed(key, expected, |text| text.parse().ok())
    }

    /// A number of bytes.
    pub(super) fn size(&self, key: &str) -> Option<u64> {
        let expected = "a size such as \"2GiB\" or \"500MB\" (units B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)";
        self.parsed(key, expected, |text| bytes(text).filter(|bytes| *bytes > 0)).map(Spanned::into_inner)
    }

    /// A text that is read by its type.
    pub(super) fn by_type<T: FromStr>(&self, key: &str, expected: &str) -> Option<T> {
        self.parsed(key, expected, |text| text.parse().ok()).map(Spanned::into_inner)
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = choices.iter().find(|(name, _)| *name == text.value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            // The suggestion is made of what the file shows, never of what a variable stands for.
            let close = closest(&text.raw, names.iter().copied());
            let close = did_you_mean(close.map(|close| format!("{close:?}")).as_deref());
            self.reader.error(&text.at, format!("{}: expected {}{close}", text.shown(), one_of(&names)));
        }
        found.map(|(_, value)| *value)
    }

    /// A secret by its key, or by the file that `key_file` names.
    pub(super) fn secret(&self, key: &str) -> Option<Spanned<Secret>> {
        let file_key = format!("{key}_file");
        // A secret is never quoted, not even as the file has it.
        let direct = self.text(key).map(|text| Spanned::new(text.at, Secret::new(text.value)));
        let file = self.text(&file_key);
        if let (Some(_), Some(file)) = (&direct, &file) {
            self.reader.error(&file.at, format!("{} has both `{key}` and `{file_key}`", self.name));
        }
        direct.or_else(|| self.secret_of(file?))
    }

    /// The secret in the file that this text names.
    pub(super) fn secret_of(&self, file: Text) -> Option<Spanned<Secret>> {
        let path: PathBuf = self.reader.sources.folder.join(&file.value);
        let content = (self.reader.sources.read)(&path);
        let read = content.map(|content| content.trim_end_matches(['\r', '\n']).to_owned());
        match read {
            Ok(secret) if secret.is_empty() => {
                self.reader.error(&file.at, format!("{}: the file is empty", file.shown()));
            }
            Ok(secret) => return Some(Spanned::new(file.at, Secret::new(secret))),
            Err(error) => self.reader.error(&file.at, format!("{}: cannot read it: {error}", file.shown())),
        }
        None
    }
}

/// `a, b or c`, each in quotes.
fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// The name that somebody who wrote `wrong` may have meant.
pub(super) fn closest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // A third of the letters may differ; further away a suggestion misleads.
    let limit = (wrong.chars().count() / 3).max(1);
    let distance = |name: &str| strsim::osa_distance(wrong, name);
    names.map(|name| (distance(name), name)).filter(|(far, _)| *far <= limit).min().map(|(_, name)| name)
}

pub(super) fn did_you_mean(close: Option<&str>) -> String {
    close.map(|close| format!(", did you mean {close}?")).unwrap_or_default()
}

/// Reads `2GiB`, `500 MB`, `17B`.
fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == text[digits..].trim_start())?;
    text[..digits].parse::<u64>().ok()?.checked_mul(*unit)
}
