//! List files: the marked objects of one table, as zstd-compressed lines of JSON with a checksum.
//!
//! - The first line is a header: `{"format":1, …}` with whatever the writer wants to tell.
//! - Then one line per object, sorted by kind in the order of deletion, then by location; none twice.
//! - Then one line per manifest that was *retained* at the first proof (safety rule 17).
//! - What a reader gets was checked against the SHA-256 of the whole file first (safety rule 16).
//!
//! Lines are encoded and decoded one by one. Expiry holds the marks of one table in memory as well; writers and
//! readers that must not can stream.

use std::io::{BufRead, BufReader, Read, Write};

use bytes::{Buf, Bytes, buf::Reader};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::any::AnyRow;
use zstd::stream::{Decoder, Encoder};

use super::{count, hex};
use crate::model::{FileKind, ObjectFacts};

/// The format that is written, and the only one that is read.
const FORMAT: u64 = 1;
/// zstd's own default: paths compress ten to one, faster than they are made.
const LEVEL: i32 = 3;

/// Where a list file is, and what it must be to be believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFile {
    /// In the plans store.
    pub location: String,
    /// Of the file's bytes, lower-case hex.
    pub sha256: String,
    /// Objects in it; retained manifests do not count.
    pub objects: u64,
    /// Their bytes: the store's size where it is known, else the recorded one.
    pub bytes: u64,
}

impl ListFile {
    pub(super) fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            location: row.try_get("list_location")?,
            sha256: row.try_get("list_sha256")?,
            objects: count(row, "list_objects")?,
            bytes: count(row, "list_bytes")?,
        })
    }
}

/// A marked object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Entry {
    /// What it is to its table.
    pub kind: FileKind,
    /// Where it is, as the table or the listing has it.
    pub location: String,
    /// What the store said; `None` if it was not asked (then only "newer than the mark" can be tested).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<ObjectFacts>,
    /// The size that a manifest or the metadata tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_size: Option<u64>,
}

impl Entry {
    /// Its size: the store's where it is known, else the recorded one, else 0.
    pub fn size(&self) -> u64 {
        self.facts.as_ref().map(|facts| facts.size).or(self.recorded_size).unwrap_or(0)
    }

    fn order(&self) -> (FileKind, &str) {
        (self.kind, &self.location)
    }
}

/// A manifest that was retained at the first proof, and need not be read again if it is still the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Retained {
    /// Its full path.
    pub location: String,
    /// Its length.
    pub length: u64,
}

/// A line after the header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// A marked object.
    Entry(Entry),
    /// A retained manifest.
    Retained(Retained),
}

/// The same without owning, for writing.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum LineRef<'a> {
    Entry(&'a Entry),
    Retained(&'a Retained),
}

/// A list file cannot be written or read. A mark list whose file cannot be read is void.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The file is not the one that was written.
    #[error("list file {location} was changed after it was written (SHA-256 {found}, expected {expected})")]
    WrongChecksum {
        /// Which file.
        location: String,
        /// As the state has it.
        expected: String,
        /// As the file is.
        found: String,
    },
    /// The file has more or fewer objects than the state says.
    #[error("list file {location} holds {found} objects, expected {expected}")]
    WrongCount {
        /// Which file.
        location: String,
        /// As the state has it.
        expected: u64,
        /// As the file is.
        found: u64,
    },
    /// A later version wrote the file.
    #[error("list file {location} has format {format}; this version reads format 1")]
    UnknownFormat {
        /// Which file.
        location: String,
        /// What its header says.
        format: Value,
    },
    /// A line makes no sense.
    #[error("list file {location}, line {line}: {reason}")]
    Malformed {
        /// Which file.
        location: String,
        /// Counted from 1; the header is line 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// The writer was given objects out of order, or one twice, or an object after a manifest.
    #[error("{location} does not come after the line before it")]
    NotSorted {
        /// Which object.
        location: String,
    },
    /// The header is no JSON object, or an encoder failed.
    #[error("cannot encode a list file: {reason}")]
    Encode {
        /// What is wrong.
        reason: String,
    },
}

/// Compressed bytes and the hash of them.
struct Hashed {
    bytes: Vec<u8>,
    hash: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.hash.update(bytes);
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes a list file into memory, line by line.
pub struct ListWriter {
    encoder: Encoder<'static, Hashed>,
    last: Option<(FileKind, String)>,
    has_retained: bool,
    objects: u64,
    bytes: u64,
}

impl std::fmt::Debug for ListWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListWriter").field("objects", &self.objects).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl ListWriter {
    /// Begins a file. The header must serialise as a JSON object without a key `format`.
    pub fn new<H: Serialize>(header: &H) -> Result<Self, ListError> {
        let encode = |reason: String| ListError::Encode { reason };
        let mut first = Map::new();
        first.insert("format".to_owned(), FORMAT.into());
        match serde_json::to_value(header).map_err(|error| encode(error.to_string()))? {
            Value::Object(rest) if !rest.contains_key("format") => first.extend(rest),
            _ => return Err(encode("its header must be a JSON object without a key \"format\"".to_owned())),
        }
        let sink = Hashed { bytes: Vec::new(), hash: Sha256::new() };
        let encoder = Encoder::new(sink, LEVEL).map_err(|error| encode(error.to_string()))?;
        let mut writer = Self { encoder, last: None, has_retained: false, objects: 0, bytes: 0 };
        writer.line(&first)?;
        Ok(writer)
    }

    /// Adds an object. All of them come before the retained manifests, in order, none twice.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), ListError> {
        let is_after = self.last.as_ref().is_none_or(|(kind, location)| entry.order() > (*kind, location));
        if self.has_retained || !is_after {
            return Err(ListError::NotSorted { location: entry.location.clone() });
        }
        self.line(&LineRef::Entry(entry))?;
        self.last = Some((entry.kind, entry.location.clone()));
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(entry.size());
        Ok(())
    }

    /// Adds a retained manifest, in any order.
    pub fn retained(&mut self, manifest: &Retained) -> Result<(), ListError> {
        self.has_retained = true;
        self.line(&LineRef::Retained(manifest))
    }

    /// Ends the file, which is to be written at `location` as it is.
    pub fn finish(self, location: &str) -> Result<(Bytes, ListFile), ListError> {
        let Hashed { bytes, hash } =
            self.encoder.finish().map_err(|error| ListError::Encode { reason: error.to_string() })?;
        let list = ListFile {
            location: location.to_owned(),
            sha256: hex(&hash.finalize()),
            objects: self.objects,
            bytes: self.bytes,
        };
        Ok((bytes.into(), list))
    }

    /// A whole file at once: sorts the objects, and leaves out those that are there twice.
    pub fn write_all<H: Serialize>(
        header: &H,
        mut entries: Vec<Entry>,
        retained: &[Retained],
        location: &str,
    ) -> Result<(Bytes, ListFile), ListError> {
        entries.sort_by(|left, right| left.order().cmp(&right.order()));
        entries.dedup_by(|next, kept| next.order() == kept.order());
        let mut writer = Self::new(header)?;
        for entry in &entries {
            writer.entry(entry)?;
        }
        for manifest in retained {
            writer.retained(manifest)?;
        }
        writer.finish(location)
    }

    fn line<T: Serialize>(&mut self, line: &T) -> Result<(), ListError> {
        // JSON text has no newline in it: control characters are escaped.
        let written = serde_json::to_writer(&mut self.encoder, line).map_err(std::io::Error::from);
        written
            .and_then(|()| self.encoder.write_all(b"\n"))
            .map_err(|error| ListError::Encode { reason: error.to_string() })
    }
}

/// Reads a list file, line by line. The checksum was right before the first line comes out; a wrong count comes
/// out as the last item.
pub struct ListReader {
    lines: BufReader<Box<dyn Read + Send>>,
    expected: ListFile,
    header: Map<String, Value>,
    line: u64,
    objects: u64,
    buffer: Vec<u8>,
    is_done: bool,
}

impl std::fmt::Debug for ListReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListReader").field("list", &self.expected).field("line", &self.line).finish_non_exhaustive()
    }
}

impl ListReader {
    /// Checks the bytes against what the state knows of them, and reads the header.
    pub fn open(bytes: Bytes, expected: &ListFile) -> Result<Self, ListError> {
        let found = hex(&Sha256::digest(&bytes));
        if found != expected.sha256 {
            return Err(ListError::WrongChecksum {
                location: expected.location.clone(),
                expected: expected.sha256.clone(),
                found,
            });
        }
        let malformed = |reason: String| ListError::Malformed { location: expected.location.clone(), line: 1, reason };
        let decoder: Decoder<'static, BufReader<Reader<Bytes>>> =
            Decoder::new(bytes.reader()).map_err(|error| malformed(error.to_string()))?;
        let mut reader = Self {
            lines: BufReader::with_capacity(1 << 16, Box::new(decoder)),
            expected: expected.clone(),
            header: Map::new(),
            line: 0,
            objects: 0,
            buffer: Vec::new(),
            is_done: false,
        };
        let header: Option<Map<String, Value>> = reader.read_line()?;
        let mut header = header.ok_or_else(|| malformed("the file is empty".to_owned()))?;
        // Not `remove`: that would put the last key in the place of the first.
        let format = header.shift_remove("format").unwrap_or(Value::Null);
        if format != FORMAT {
            return Err(ListError::UnknownFormat { location: expected.location.clone(), format });
        }
        reader.header = header;
        Ok(reader)
    }

    /// What the writer told in the header.
    pub fn header<H: DeserializeOwned>(&self) -> Result<H, ListError> {
        serde_json::from_value(Value::Object(self.header.clone())).map_err(|error| ListError::Malformed {
            location: self.expected.location.clone(),
            line: 1,
            reason: error.to_string(),
        })
    }

    /// The whole rest at once.
    pub fn read_all(self) -> Result<(Vec<Entry>, Vec<Retained>), ListError> {
        let (mut entries, mut retained) = (Vec::new(), Vec::new());
        for line in self {
            match line? {
                Line::Entry(entry) => entries.push(entry),
                Line::Retained(manifest) => retained.push(manifest),
            }
        }
        Ok((entries, retained))
    }

    fn read_line<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ListError> {
        self.line += 1;
        self.buffer.clear();
        let malformed =
            |reason: String| ListError::Malformed { location: self.expected.location.clone(), line: self.line, reason };
        let read = self.lines.read_until(b'\n', &mut self.buffer).map_err(|error| malformed(error.to_string()))?;
        if read == 0 {
            return Ok(None);
        }
        serde_json::from_slice(&self.buffer).map(Some).map_err(|error| malformed(error.to_string()))
    }

    fn next_line(&mut self) -> Result<Option<Line>, ListError> {
        let line = self.read_line()?;
        match &line {
            Some(Line::Entry(_)) => self.objects += 1,
            None if self.objects != self.expected.objects => {
                return Err(ListError::WrongCount {
                    location: self.expected.location.clone(),
                    expected: self.expected.objects,
                    found: self.objects,
                });
            }
            Some(Line::Retained(_)) | None => {}
        }
        Ok(line)
    }
}

impl Iterator for ListReader {
    type Item = Result<Line, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let line = self.next_line();
        self.is_done = !matches!(line, Ok(Some(_)));
        line.transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::model::Timestamp;

    fn data(location: &str) -> Entry {
        Entry { kind: FileKind::Data, location: location.into(), facts: None, recorded_size: Some(10) }
    }

    fn written() -> (Bytes, ListFile) {
        let entries = vec![data("s3://b/b"), data("s3://b/a"), Entry { kind: FileKind::Manifest, ..data("s3://b/0") }];
        let retained = [Retained { location: "s3://b/r".into(), length: 7 }];
        ListWriter::write_all(&json!({ "id": "m-1", "table": "t" }), entries, &retained, "file:///p/l.zst").unwrap()
    }

    #[test]
    fn objects_come_out_in_the_order_of_deletion() {
        let (bytes, list) = written();
        let reader = ListReader::open(bytes, &list).unwrap();
        assert_eq!(reader.header::<Value>().unwrap(), json!({ "id": "m-1", "table": "t" }));
        let (entries, retained) = reader.read_all().unwrap();
        let order: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.location.as_str())).collect();
        assert_eq!(
            order,
            [(FileKind::Data, "s3://b/a"), (FileKind::Data, "s3://b/b"), (FileKind::Manifest, "s3://b/0")]
        );
        assert_eq!(retained, [Retained { location: "s3://b/r".into(), length: 7 }]);
        assert_eq!((list.objects, list.bytes), (3, 30));
    }

    #[test]
    fn the_writer_takes_no_object_out_of_order_or_twice() {
        let mut writer = ListWriter::new(&json!({})).unwrap();
        writer.entry(&data("s3://b/b")).unwrap();
        for bad in [data("s3://b/b"), data("s3://b/a")] {
            assert!(matches!(writer.entry(&bad), Err(ListError::NotSorted { .. })), "{}", bad.location);
        }
        writer.retained(&Retained { location: "s3://b/r".into(), length: 7 }).unwrap();
        assert!(matches!(writer.entry(&data("s3://b/c")), Err(ListError::NotSorted { .. })));
        assert_eq!(writer.finish("l").unwrap().1.objects, 1);
        for bad in [json!([]), json!(1), json!({ "format": 2 })] {
            assert!(matches!(ListWriter::new(&bad), Err(ListError::Encode { .. })), "{bad}");
        }
    }

    #[test]
    fn a_file_with_one_bit_flipped_anywhere_is_not_believed() {
        let (bytes, list) = written();
        for at in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            let outcome = ListReader::open(flipped.into(), &list);
            assert!(matches!(outcome, Err(ListError::WrongChecksum { .. })), "byte {at}");
        }
        let shorter = ListReader::open(bytes.slice(1..), &list).unwrap_err().to_string();
        assert!(shorter.contains("file:///p/l.zst was changed"), "{shorter}");
    }

    #[test]
    fn a_count_that_differs_from_the_state_is_an_error_after_the_last_line() {
        let (bytes, list) = written();
        let wrong = ListFile { objects: 2, ..list };
        let lines: Vec<_> = ListReader::open(bytes, &wrong).unwrap().collect();
        assert_eq!(lines.len(), 5);
        assert!(matches!(lines[4], Err(ListError::WrongCount { expected: 2, found: 3, .. })), "{:?}", lines[4]);
    }

    #[test]
    fn what_is_no_list_file_is_told_by_line() {
        for (text, words) in [
            ("", "line 1: the file is empty"),
            ("[]\n", "line 1: invalid type"),
            ("{\"format\":2}\n", "has format 2"),
            ("{}\n", "has format null"),
            ("{\"format\":1}\n{\"entry\":{}}\n", "line 2: missing field"),
            ("{\"format\":1}\n{\"entry\":{\"kind\":\"data\",\"location\":\"x\"", "line 2: EOF"),
        ] {
            let bytes = Bytes::from(zstd::encode_all(text.as_bytes(), 0).unwrap());
            let list = ListFile { location: "l".into(), sha256: hex(&Sha256::digest(&bytes)), objects: 0, bytes: 0 };
            let error = ListReader::open(bytes, &list).and_then(ListReader::read_all).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let bytes = Bytes::from_static(b"not zstd");
        let list = ListFile { location: "l".into(), sha256: hex(&Sha256::digest(&bytes)), objects: 0, bytes: 0 };
        assert!(matches!(ListReader::open(bytes, &list), Err(ListError::Malformed { line: 1, .. })));
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let facts = (any::<u64>(), proptest::option::of(any::<i64>()), proptest::option::of(".*"))
            .prop_map(|(size, modified, etag)| ObjectFacts { size, modified: modified.map(Timestamp), etag });
        let entry = (0..FileKind::ALL.len(), ".*", proptest::option::of(facts), proptest::option::of(any::<u64>()))
            .prop_map(|(kind, location, facts, recorded_size)| Entry {
                kind: FileKind::ALL[kind],
                location,
                facts,
                recorded_size,
            });
        proptest::collection::vec(entry, 0..40)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            entries in entries(),
            retained in proptest::collection::vec((".*", any::<u64>()), 0..10),
        ) {
            let retained: Vec<_> =
                retained.into_iter().map(|(location, length)| Retained { location, length }).collect();
            let (bytes, list) = ListWriter::write_all(&json!({ "a": 1 }), entries.clone(), &retained, "l").unwrap();
            let (read, manifests) = ListReader::open(bytes, &list).unwrap().read_all().unwrap();
            prop_assert_eq!(manifests, retained);
            prop_assert_eq!(list.objects, read.len() as u64);
            prop_assert!(read.windows(2).all(|pair| pair[0].order() < pair[1].order()));
            prop_assert!(read.iter().all(|entry| entries.contains(entry)));
            prop_assert!(entries.iter().all(|entry| read.iter().any(|other| other.order() == entry.order())));
        }
    }
}
