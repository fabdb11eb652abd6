//! Hand-made manifests and lists, in the shapes that Java's writers give them.

use icewarden::inventory::manifests::{ManifestContent, ManifestCounts, ManifestRef};
use icewarden::model::SnapshotId;

use crate::container::{bytes, long, optional};

/// Format 2, with field ids. The partition's names and ids are traps.
pub(crate) const MANIFEST_SCHEMA: &str = r#"{"type": "record", "name": "manifest_entry", "fields": [
  {"name": "status", "type": "int", "field-id": 0},
  {"name": "snapshot_id", "type": ["null", "long"], "default": null, "field-id": 1},
  {"name": "data_file", "field-id": 2, "type": {"type": "record", "name": "r2", "fields": [
    {"name": "content", "type": "int", "field-id": 134},
    {"name": "file_path", "type": "string", "field-id": 100},
    {"name": "partition", "field-id": 102, "type": {"type": "record", "name": "r102", "fields": [
      {"name": "status", "type": ["null", "int"], "field-id": 1000},
      {"name": "file_path", "type": ["null", "string"], "field-id": 100}]}},
    {"name": "record_count", "type": "long", "field-id": 103},
    {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
    {"name": "value_counts", "field-id": 109, "type": ["null", {"type": "array", "logicalType": "map", "items":
      {"type": "record", "name": "k119_v120", "fields": [
        {"name": "key", "type": "int", "field-id": 119}, {"name": "value", "type": "long", "field-id": 120}]}}]},
    {"name": "lower_bounds", "field-id": 125, "type": ["null", {"type": "array", "logicalType": "map", "items":
      {"type": "record", "name": "k126_v127", "fields": [
        {"name": "key", "type": "int", "field-id": 126}, {"name": "value", "type": "bytes", "field-id": 127}]}}]},
    {"name": "referenced_data_file", "type": ["null", "string"], "field-id": 143},
    {"name": "content_offset", "type": ["null", "long"], "field-id": 144},
    {"name": "content_size_in_bytes", "type": ["null", "long"], "field-id": 145}]}}]}"#;

/// Format 2's list, with field ids and the counts' newer names.
pub(crate) const LIST_SCHEMA: &str = r#"{"type": "record", "name": "manifest_file", "fields": [
  {"name": "manifest_path", "type": "string", "field-id": 500},
  {"name": "manifest_length", "type": "long", "field-id": 501},
  {"name": "content", "type": "int", "field-id": 517},
  {"name": "sequence_number", "type": "long", "field-id": 515},
  {"name": "added_snapshot_id", "type": ["null", "long"], "field-id": 503},
  {"name": "added_files_count", "type": ["null", "int"], "field-id": 504},
  {"name": "existing_files_count", "type": ["null", "int"], "field-id": 505},
  {"name": "deleted_files_count", "type": ["null", "int"], "field-id": 506},
  {"name": "key_metadata", "type": ["null", "bytes"], "field-id": 519}]}"#;

/// Without a field id anywhere, as a writer that is not Iceberg's leaves it.
pub(crate) fn without_ids(schema: &str) -> String {
    fn strip(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(object) => {
                object.remove("field-id");
                object.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = serde_json::from_str(schema).unwrap();
    strip(&mut schema);
    schema.to_string()
}

/// A row of [`MANIFEST_SCHEMA`]. Values are as wide as the wire, so that they can be wrong.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) status: i64,
    pub(crate) snapshot: Option<i64>,
    pub(crate) content: i64,
    pub(crate) location: Vec<u8>,
    pub(crate) records: i64,
    pub(crate) size: i64,
    /// Bytes of the two maps, union branch included.
    pub(crate) value_counts: Vec<u8>,
    pub(crate) lower_bounds: Vec<u8>,
    pub(crate) vector: Option<(String, i64, i64)>,
}

impl Row {
    pub(crate) fn new(status: i64, location: &str) -> Self {
        let counts: Vec<u8> = (1..=20).flat_map(|key| [long(key), long(key * 1000)].concat()).collect();
        // Bounds are short but for one.
        let length = |key| if key == 20 { 70 } else { key as usize % 9 };
        let bounds: Vec<u8> = (1..=20).flat_map(|key| [long(key), bytes(&vec![0xff; length(key)])].concat()).collect();
        Self {
            status,
            snapshot: Some(77),
            content: 0,
            location: location.into(),
            records: 10,
            size: 1000,
            value_counts: optional(Some([long(20), counts, long(0)].concat())),
            lower_bounds: optional(Some([long(20), bounds, long(0)].concat())),
            vector: None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let vector = self.vector.as_ref();
        [
            long(self.status),
            optional(self.snapshot.map(long)),
            long(self.content),
            bytes(&self.location),
            optional(Some(long(2))),
            optional(Some(bytes(b"not/the/path"))),
            long(self.records),
            long(self.size),
            self.value_counts.clone(),
            self.lower_bounds.clone(),
            optional(vector.map(|(file, _, _)| bytes(file.as_bytes()))),
            optional(vector.map(|(_, offset, _)| long(*offset))),
            optional(vector.map(|(_, _, size)| long(*size))),
        ]
        .concat()
    }
}

/// A row of [`LIST_SCHEMA`].
#[derive(Clone)]
pub(crate) struct ListRow {
    pub(crate) location: String,
    pub(crate) length: i64,
    pub(crate) content: i64,
    pub(crate) counts: [Option<i64>; 3],
    pub(crate) key_metadata: Option<Vec<u8>>,
}

impl ListRow {
    pub(crate) fn new(location: &str) -> Self {
        Self {
            location: location.to_owned(),
            length: 5000,
            content: 0,
            counts: [Some(1), Some(2), Some(3)],
            key_metadata: None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let [added, existing, deleted] = self.counts.map(|count| optional(count.map(long)));
        [
            bytes(self.location.as_bytes()),
            long(self.length),
            long(self.content),
            long(9),
            optional(Some(long(77))),
            added,
            existing,
            deleted,
            optional(self.key_metadata.as_deref().map(bytes)),
        ]
        .concat()
    }

    /// What is to be read of it.
    pub(crate) fn expected(&self) -> ManifestRef {
        let [added, existing, deleted] = self.counts.map(|count| count.unwrap() as u64);
        ManifestRef {
            location: self.location.clone(),
            length: self.length as u64,
            content: ManifestContent::Data,
            added_snapshot: Some(SnapshotId(77)),
            sequence_number: 9,
            counts: Some(ManifestCounts { added, existing, deleted }),
            is_encrypted: false,
        }
    }
}
