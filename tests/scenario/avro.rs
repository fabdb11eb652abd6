//! Writes manifests and manifest lists of formats 1, 2 and 3: real Avro object container files with
//! Iceberg's schemas and field ids. The crate's own writers refuse what the cases need (any status, any
//! snapshot, formats mixed), so the few lines of Avro are here.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::{Value, json};

/// A value of a field.
#[derive(Debug, Clone)]
pub(crate) enum Datum {
    Int(i64),
    Text(String),
    Record(Vec<Datum>),
    /// Nothing, of an optional field.
    Null,
    /// Something, of an optional field.
    Some(Box<Datum>),
}

/// A field of a record: name, field id, Avro type, and whether it may be null.
struct Field {
    name: String,
    id: i32,
    kind: Value,
    optional: bool,
}

fn field(id: i32, name: &str, kind: impl Into<Value>, optional: bool) -> Field {
    Field { name: name.to_owned(), id, kind: kind.into(), optional }
}

fn record(name: &str, fields: &[Field]) -> Value {
    let fields: Vec<Value> = fields
        .iter()
        .map(|field| match field.optional {
            true => json!({"name": field.name, "type": ["null", field.kind], "default": null, "field-id": field.id}),
            false => json!({"name": field.name, "type": field.kind, "field-id": field.id}),
        })
        .collect();
    json!({"type": "record", "name": name, "fields": fields})
}

/// The values in the order of the fields; what is not given is null.
fn row(fields: &[Field], mut values: BTreeMap<&str, Datum>) -> Vec<Datum> {
    let row = fields
        .iter()
        .map(|field| match (values.remove(field.name.as_str()), field.optional) {
            (Some(Datum::Null) | None, true) => Datum::Null,
            (Some(value), true) => Datum::Some(Box::new(value)),
            (Some(value), false) => value,
            (None, false) => panic!("field {} needs a value", field.name),
        })
        .collect();
    assert!(values.is_empty(), "no such fields: {values:?}");
    row
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    varint(out, value.len() as i64);
    out.extend_from_slice(value);
}

fn encode(out: &mut Vec<u8>, datum: &Datum) {
    match datum {
        Datum::Int(value) => varint(out, *value),
        Datum::Text(value) => bytes(out, value.as_bytes()),
        Datum::Record(fields) => fields.iter().for_each(|field| encode(out, field)),
        Datum::Null => varint(out, 0),
        Datum::Some(value) => {
            varint(out, 1);
            encode(out, value);
        }
    }
}

fn container(schema: &Value, metadata: &[(&str, String)], codec: &str, rows: &[Vec<Datum>]) -> Vec<u8> {
    const SYNC: [u8; 16] = *b"icewarden-sync16";
    let mut out = b"Obj\x01".to_vec();
    varint(&mut out, metadata.len() as i64 + 2);
    let schema = schema.to_string();
    for (key, value) in [("avro.schema", &schema), ("avro.codec", &codec.to_owned())]
        .into_iter()
        .chain(metadata.iter().map(|(key, value)| (*key, value)))
    {
        bytes(&mut out, key.as_bytes());
        bytes(&mut out, value.as_bytes());
    }
    varint(&mut out, 0);
    out.extend_from_slice(&SYNC);
    if !rows.is_empty() {
        let mut block = Vec::new();
        rows.iter().flatten().for_each(|datum| encode(&mut block, datum));
        if codec == "deflate" {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&block).unwrap();
            block = encoder.finish().unwrap();
        }
        varint(&mut out, rows.len() as i64);
        bytes(&mut out, &block);
        out.extend_from_slice(&SYNC);
    }
    out
}

/// The table's schema: one required long, and a string for each partition field.
pub(crate) fn table_schema(partition_fields: &[String]) -> Value {
    let mut fields = vec![json!({"id": 1, "name": "id", "required": true, "type": "long"})];
    for (index, name) in partition_fields.iter().enumerate() {
        fields.push(json!({"id": index + 2, "name": name, "required": false, "type": "string"}));
    }
    json!({"type": "struct", "schema-id": 0, "fields": fields})
}

/// The fields of the table's partition spec.
pub(crate) fn partition_spec(partition_fields: &[String]) -> Vec<Value> {
    partition_fields
        .iter()
        .enumerate()
        .map(|(index, name)| {
            json!({"source-id": index + 2, "field-id": index + 1000, "name": name, "transform": "identity"})
        })
        .collect()
}

/// An entry as it is written.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// 0 existing, 1 added, 2 deleted.
    pub(crate) status: i64,
    /// `None` is inherited from the manifest list; format 1 has it always.
    pub(crate) snapshot: Option<i64>,
    pub(crate) sequence_number: Option<i64>,
    /// 0 data, 1 position deletes, 2 equality deletes.
    pub(crate) content: i64,
    pub(crate) location: String,
    pub(crate) format: &'static str,
    pub(crate) size: u64,
    pub(crate) records: u64,
    pub(crate) offset: Option<i64>,
    pub(crate) length: Option<i64>,
    pub(crate) referenced: Option<String>,
}

/// Writes a manifest.
pub(crate) fn manifest(format: u8, partition_fields: &[String], deletes: bool, entries: &[Entry]) -> Vec<u8> {
    let partition: Vec<Field> = partition_fields
        .iter()
        .enumerate()
        .map(|(index, name)| field(index as i32 + 1000, name, "string", true))
        .collect();
    let counts = |name: &str, id: i32, key: i32, kind: &str| {
        let pair = record(
            &format!("k{key}_v{}", key + 1),
            &[field(key, "key", "int", false), field(key + 1, "value", kind, false)],
        );
        field(id, name, json!({"type": "array", "items": pair, "logicalType": "map"}), true)
    };
    let mut file = Vec::new();
    if format > 1 {
        file.push(field(134, "content", "int", false));
    }
    file.extend([
        field(100, "file_path", "string", false),
        field(101, "file_format", "string", false),
        field(102, "partition", record("r102", &partition), false),
        field(103, "record_count", "long", false),
        field(104, "file_size_in_bytes", "long", false),
    ]);
    if format == 1 {
        file.push(field(105, "block_size_in_bytes", "long", false));
    }
    file.extend([
        counts("column_sizes", 108, 117, "long"),
        counts("value_counts", 109, 119, "long"),
        counts("null_value_counts", 110, 121, "long"),
        counts("nan_value_counts", 137, 138, "long"),
        counts("lower_bounds", 125, 126, "bytes"),
        counts("upper_bounds", 128, 129, "bytes"),
        field(131, "key_metadata", "bytes", true),
        field(132, "split_offsets", json!({"type": "array", "items": "long", "element-id": 133}), true),
    ]);
    if format > 1 {
        file.push(field(135, "equality_ids", json!({"type": "array", "items": "int", "element-id": 136}), true));
    }
    file.push(field(140, "sort_order_id", "int", true));
    if format > 1 {
        file.extend([
            field(142, "first_row_id", "long", true),
            field(143, "referenced_data_file", "string", true),
            field(144, "content_offset", "long", true),
            field(145, "content_size_in_bytes", "long", true),
        ]);
    }
    let mut fields = vec![field(0, "status", "int", false), field(1, "snapshot_id", "long", format > 1)];
    if format > 1 {
        fields.extend([field(3, "sequence_number", "long", true), field(4, "file_sequence_number", "long", true)]);
    }
    fields.push(field(2, "data_file", record("r2", &file), false));

    let rows: Vec<Vec<Datum>> = entries
        .iter()
        .map(|entry| {
            let mut data = BTreeMap::from([
                ("file_path", Datum::Text(entry.location.clone())),
                ("file_format", Datum::Text(entry.format.to_owned())),
                ("partition", Datum::Record(partition.iter().map(|_| Datum::Null).collect())),
                ("record_count", Datum::Int(entry.records as i64)),
                ("file_size_in_bytes", Datum::Int(entry.size as i64)),
            ]);
            let mut outer = BTreeMap::from([("status", Datum::Int(entry.status))]);
            if format == 1 {
                data.insert("block_size_in_bytes", Datum::Int(0));
            } else {
                data.insert("content", Datum::Int(entry.content));
                data.extend(entry.offset.map(|offset| ("content_offset", Datum::Int(offset))));
                data.extend(entry.length.map(|length| ("content_size_in_bytes", Datum::Int(length))));
                data.extend(entry.referenced.clone().map(|file| ("referenced_data_file", Datum::Text(file))));
                for name in ["sequence_number", "file_sequence_number"] {
                    outer.extend(entry.sequence_number.map(|number| (name, Datum::Int(number))));
                }
            }
            outer.extend(entry.snapshot.map(|id| ("snapshot_id", Datum::Int(id))));
            outer.insert("data_file", Datum::Record(row(&file, data)));
            row(&fields, outer)
        })
        .collect();
    let mut metadata = vec![
        ("schema", table_schema(partition_fields).to_string()),
        ("schema-id", "0".to_owned()),
        ("partition-spec", Value::from(partition_spec(partition_fields)).to_string()),
        ("partition-spec-id", "0".to_owned()),
        ("format-version", format.to_string()),
    ];
    if format > 1 {
        metadata.push(("content", if deletes { "deletes" } else { "data" }.to_owned()));
    }
    container(&record("manifest_entry", &fields), &metadata, "deflate", &rows)
}

/// A manifest as a list names it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) location: String,
    pub(crate) length: u64,
    pub(crate) deletes: bool,
    pub(crate) sequence_number: i64,
    pub(crate) min_sequence_number: i64,
    pub(crate) adder: i64,
    /// Files added, existing, deleted.
    pub(crate) files: [u64; 3],
    /// Rows added, existing, deleted.
    pub(crate) rows: [u64; 3],
}

/// Writes the manifest list of a snapshot.
pub(crate) fn manifest_list(
    format: u8,
    snapshot: i64,
    parent: Option<i64>,
    sequence_number: i64,
    manifests: &[Listed],
) -> Vec<u8> {
    let v1 = format == 1;
    let mut fields = vec![
        field(500, "manifest_path", "string", false),
        field(501, "manifest_length", "long", false),
        field(502, "partition_spec_id", "int", false),
    ];
    if !v1 {
        fields.extend([
            field(517, "content", "int", false),
            field(515, "sequence_number", "long", false),
            field(516, "min_sequence_number", "long", false),
        ]);
    }
    fields.push(field(503, "added_snapshot_id", "long", false));
    let files = match v1 {
        true => ["added_data_files_count", "existing_data_files_count", "deleted_data_files_count"],
        false => ["added_files_count", "existing_files_count", "deleted_files_count"],
    };
    let rows = ["added_rows_count", "existing_rows_count", "deleted_rows_count"];
    fields.extend((504..).zip(files).map(|(id, name)| field(id, name, "int", v1)));
    fields.extend((512..).zip(rows).map(|(id, name)| field(id, name, "long", v1)));
    let summary = record(
        "r508",
        &[
            field(509, "contains_null", "boolean", false),
            field(518, "contains_nan", "boolean", true),
            field(510, "lower_bound", "bytes", true),
            field(511, "upper_bound", "bytes", true),
        ],
    );
    fields.push(field(507, "partitions", json!({"type": "array", "items": summary, "element-id": 508}), true));
    fields.push(field(519, "key_metadata", "bytes", true));
    if format > 2 {
        fields.push(field(520, "first_row_id", "long", true));
    }
    let encoded: Vec<Vec<Datum>> = manifests
        .iter()
        .map(|listed| {
            let mut values = BTreeMap::from([
                ("manifest_path", Datum::Text(listed.location.clone())),
                ("manifest_length", Datum::Int(listed.length as i64)),
                ("partition_spec_id", Datum::Int(0)),
                ("added_snapshot_id", Datum::Int(listed.adder)),
            ]);
            for (names, counts) in [(files, listed.files), (rows, listed.rows)] {
                values.extend(names.into_iter().zip(counts).map(|(name, count)| (name, Datum::Int(count as i64))));
            }
            if !v1 {
                values.insert("content", Datum::Int(i64::from(listed.deletes)));
                values.insert("sequence_number", Datum::Int(listed.sequence_number));
                values.insert("min_sequence_number", Datum::Int(listed.min_sequence_number));
            }
            if format > 2 && !listed.deletes {
                values.insert("first_row_id", Datum::Int(0));
            }
            row(&fields, values)
        })
        .collect();
    let mut metadata = vec![
        ("snapshot-id", snapshot.to_string()),
        ("parent-snapshot-id", parent.map_or_else(|| "null".to_owned(), |id| id.to_string())),
        ("format-version", format.to_string()),
    ];
    if !v1 {
        metadata.push(("sequence-number", sequence_number.to_string()));
    }
    container(&record("manifest_file", &fields), &metadata, "null", &encoded)
}

#[cfg(test)]
mod tests {
    use iceberg::spec::{FormatVersion, Manifest, ManifestContentType, ManifestList, ManifestStatus};

    use super::*;

    fn entry(status: i64, location: &str) -> Entry {
        Entry {
            status,
            snapshot: Some(7),
            sequence_number: Some(3),
            content: 0,
            location: location.to_owned(),
            format: "PARQUET",
            size: 100,
            records: 10,
            offset: None,
            length: None,
            referenced: None,
        }
    }

    #[test]
    fn the_iceberg_crate_reads_our_manifests_of_every_format() {
        for (format, partition) in [(1, vec![]), (2, vec!["region".to_owned()]), (3, vec![])] {
            let mut entries = vec![entry(1, "s3://b/a"), entry(0, "s3a://b/b"), entry(2, "s3://b/c")];
            if format == 3 {
                entries[0].offset = Some(4);
                entries[0].length = Some(40);
                entries[0].referenced = Some("s3://b/d".to_owned());
            }
            let bytes = manifest(format, &partition, false, &entries);
            let manifest = Manifest::parse_avro(&bytes).unwrap_or_else(|error| panic!("format {format}: {error:?}"));
            let read: Vec<_> =
                manifest.entries().iter().map(|entry| (entry.status(), entry.file_path().to_owned())).collect();
            assert_eq!(
                read,
                [
                    (ManifestStatus::Added, "s3://b/a".to_owned()),
                    (ManifestStatus::Existing, "s3a://b/b".to_owned()),
                    (ManifestStatus::Deleted, "s3://b/c".to_owned())
                ]
            );
            let first = manifest.entries()[0].data_file();
            assert_eq!((first.file_size_in_bytes(), first.record_count()), (100, 10));
            if format == 3 {
                assert_eq!(first.content_offset(), Some(4));
                assert_eq!(first.referenced_data_file().as_deref(), Some("s3://b/d"));
            }
        }
    }

    #[test]
    fn the_iceberg_crate_reads_our_manifest_lists_of_every_format() {
        let listed = Listed {
            location: "s3://b/m".to_owned(),
            length: 1234,
            deletes: false,
            sequence_number: 5,
            min_sequence_number: 3,
            adder: 7,
            files: [1, 2, 3],
            rows: [10, 20, 30],
        };
        for (format, version) in [(1, FormatVersion::V1), (2, FormatVersion::V2), (3, FormatVersion::V3)] {
            let bytes = manifest_list(format, 7, None, 5, std::slice::from_ref(&listed));
            let list = ManifestList::parse_with_version(&bytes, version)
                .unwrap_or_else(|error| panic!("format {format}: {error:?}"));
            let read = &list.entries()[0];
            assert_eq!(
                (read.manifest_path.as_str(), read.manifest_length, read.added_snapshot_id),
                ("s3://b/m", 1234, 7)
            );
            assert_eq!(read.content, ManifestContentType::Data);
            assert_eq!(
                (read.added_files_count, read.existing_files_count, read.deleted_files_count),
                (Some(1), Some(2), Some(3))
            );
            assert_eq!(read.sequence_number, if format == 1 { 0 } else { 5 });
            assert!(ManifestList::parse_with_version(&manifest_list(format, 7, None, 5, &[]), version).is_ok());
        }
    }
}
