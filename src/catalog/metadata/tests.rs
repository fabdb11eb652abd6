use std::io::Write;

use serde_json::{Value, json};

use super::*;

const AT: &str = "s3://wh/db/t/metadata/3.metadata.json";

fn format_2() -> Value {
    json!({
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "s3://wh/db/t",
        "last-sequence-number": 34,
        "last-updated-ms": 1_602_638_573_590_i64,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{ "type": "struct", "schema-id": 0, "fields": [
            { "id": 1, "name": "x", "required": true, "type": "geography(OGC:CRS84, spherical)" } ] }],
        "default-spec-id": 1,
        "partition-specs": [
            { "spec-id": 0, "fields": [] },
            { "spec-id": 1, "fields": [{ "name": "_x", "transform": "unheard-of[7]", "source-id": 1, "field-id": 1000 }] },
            { "spec-id": 2, "fields": [{ "name": "y", "transform": "void", "source-ids": [1, 2], "field-id": 1001 }] } ],
        "properties": { "gc.enabled": "true", "n": 7, "empty": null },
        "current-snapshot-id": 3_055_729_675_574_597_004_i64,
        "snapshots": [
            { "snapshot-id": 3_051_729_675_574_597_004_i64, "timestamp-ms": 1_515_100_955_770_i64, "sequence-number": 1,
              "manifest-list": "s3://wh/db/t/metadata/ml1.avro", "summary": { "operation": "append", "added": 3 } },
            { "snapshot-id": 3_055_729_675_574_597_004_i64, "parent-snapshot-id": 3_051_729_675_574_597_004_i64,
              "timestamp-ms": 1_555_100_955_770_i64, "sequence-number": 2, "manifest-list": "s3://wh/db/t/metadata/ml2.avro",
              "schema-id": 0 } ],
        "refs": {
            "main": { "snapshot-id": 3_055_729_675_574_597_004_i64, "type": "branch", "min-snapshots-to-keep": 4,
                      "max-snapshot-age-ms": 5, "max-ref-age-ms": 6 },
            "gone": { "snapshot-id": 12, "type": "TAG", "max-ref-age-ms": 8 } },
        "snapshot-log": [],
        "metadata-log": [
            { "timestamp-ms": 10, "metadata-file": "s3://wh/db/t/metadata/1.metadata.json" },
            { "timestamp-ms": 20, "metadata-file": "s3://wh/db/t/metadata/2.metadata.json" } ],
        "statistics": [
            { "snapshot-id": 3_055_729_675_574_597_004_i64, "statistics-path": "s3://wh/db/t/metadata/a.puffin", "blob-metadata": [] },
            { "snapshot-id": 3_055_729_675_574_597_004_i64, "statistics-path": "s3://wh/db/t/metadata/b.puffin" } ],
        "partition-statistics": [
            { "snapshot-id": 12, "statistics-path": "s3://wh/db/t/metadata/p.parquet", "file-size-in-bytes": 1 } ],
    })
}

fn with(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Value {
    let mut metadata = format_2();
    change(metadata.as_object_mut().unwrap());
    metadata
}

fn state(metadata: &Value) -> TableState {
    parse(metadata.to_string().as_bytes(), AT).unwrap()
}

fn refusal(metadata: &Value) -> String {
    parse(metadata.to_string().as_bytes(), AT).unwrap_err().to_string()
}

#[test]
fn format_2_is_read_whole_with_types_and_transforms_that_nobody_knows() {
    let state = state(&format_2());
    assert_eq!((state.format_version, state.last_sequence_number, state.last_updated.0), (2, 34, 1_602_638_573_590));
    assert_eq!(state.uuid.unwrap().to_string(), "9c12d441-03fe-4693-9a96-a0705ddf69c1");
    assert_eq!(state.location, "s3://wh/db/t");
    assert_eq!(state.property("n"), Some("7"));
    assert_eq!(state.property("empty"), Some("null"));
    assert_eq!(state.partition_fields, BTreeSet::from(["_x".to_owned(), "y".to_owned()]));
    assert_eq!(state.current_snapshot, Some(SnapshotId(3_055_729_675_574_597_004)));
    assert_eq!(
        state.snapshots,
        [
            Snapshot {
                id: SnapshotId(3_051_729_675_574_597_004),
                parent: None,
                at: Timestamp(1_515_100_955_770),
                sequence_number: 1,
                manifests: ManifestSource::List("s3://wh/db/t/metadata/ml1.avro".into()),
                summary: BTreeMap::from([("operation".into(), "append".into()), ("added".into(), "3".into())]),
            },
            Snapshot {
                id: SnapshotId(3_055_729_675_574_597_004),
                parent: Some(SnapshotId(3_051_729_675_574_597_004)),
                at: Timestamp(1_555_100_955_770),
                sequence_number: 2,
                manifests: ManifestSource::List("s3://wh/db/t/metadata/ml2.avro".into()),
                summary: BTreeMap::new(),
            },
        ]
    );
    assert_eq!(
        state.refs,
        BTreeMap::from([
            (
                RefName::from("main"),
                Ref {
                    snapshot: SnapshotId(3_055_729_675_574_597_004),
                    kind: RefKind::Branch,
                    retention: Retention {
                        min_snapshots_to_keep: Some(4),
                        max_snapshot_age_ms: Some(5),
                        max_ref_age_ms: Some(6)
                    },
                }
            ),
            (
                RefName::from("gone"),
                Ref {
                    snapshot: SnapshotId(12),
                    kind: RefKind::Tag,
                    retention: Retention { max_ref_age_ms: Some(8), ..Retention::default() },
                }
            ),
        ])
    );
    let files: Vec<&str> = state.statistics.iter().map(|file| file.location.as_str()).collect();
    assert_eq!(files, ["s3://wh/db/t/metadata/a.puffin", "s3://wh/db/t/metadata/b.puffin"]);
    assert_eq!(state.partition_statistics[0].snapshot, SnapshotId(12));
    let log: Vec<(i64, &str)> = state.metadata_log.iter().map(|entry| (entry.at.0, entry.location.as_str())).collect();
    assert_eq!(log, [(10, "s3://wh/db/t/metadata/1.metadata.json"), (20, "s3://wh/db/t/metadata/2.metadata.json")]);
    assert!(!state.is_encrypted);
}

#[test]
fn format_1_needs_neither_uuid_nor_refs_nor_sequence_numbers_nor_manifest_lists() {
    let state = state(&json!({
        "format-version": 1,
        "location": "file:/lake/t",
        "last-updated-ms": 5,
        "last-column-id": 1,
        "schema": { "type": "struct", "fields": [] },
        "partition-spec": [{ "name": "day", "transform": "day", "source-id": 1, "field-id": 1000 }],
        "properties": {},
        "current-snapshot-id": 7,
        "snapshots": [
            { "snapshot-id": 6, "timestamp-ms": 3, "manifests": ["file:/lake/t/metadata/m1.avro"] },
            { "snapshot-id": 7, "parent-snapshot-id": 6, "timestamp-ms": 4, "manifest-list": "l", "manifests": ["m"] } ],
    }));
    assert_eq!((state.format_version, state.uuid, state.last_sequence_number), (1, None, 0));
    assert_eq!(state.partition_fields, BTreeSet::from(["day".to_owned()]));
    assert_eq!(state.snapshots[0].manifests, ManifestSource::Inline(vec!["file:/lake/t/metadata/m1.avro".into()]));
    assert_eq!(state.snapshots[1].manifests, ManifestSource::List("l".into()));
    assert_eq!(state.snapshots[1].sequence_number, 0);
    let main = Ref { snapshot: SnapshotId(7), kind: RefKind::Branch, retention: Retention::default() };
    assert_eq!(state.refs, BTreeMap::from([(RefName::from("main"), main)]));
    assert!(state.metadata_log.is_empty() && state.statistics.is_empty() && state.partition_statistics.is_empty());
}

#[test]
fn format_3_is_read_with_its_own_fields() {
    let state = state(&with(|metadata| {
        metadata["format-version"] = json!(3);
        metadata.insert("next-row-id".into(), json!(100));
        metadata["snapshots"][0]["first-row-id"] = json!(0);
        metadata["snapshots"][0]["key-id"] = json!(null);
        metadata.insert("encryption-keys".into(), json!([]));
    }));
    assert_eq!((state.format_version, state.snapshots.len(), state.is_encrypted), (3, 2, false));
}

#[test]
fn what_a_writer_may_leave_out_is_no_error() {
    for missing in [json!(null), json!(-1)] {
        let state = state(&with(|metadata| {
            metadata["current-snapshot-id"] = missing;
            for key in ["refs", "snapshots", "statistics", "partition-statistics", "metadata-log", "properties"] {
                metadata[key] = json!(null);
            }
        }));
        assert_eq!((state.current_snapshot, state.refs.len(), state.snapshots.len()), (None, 0, 0));
    }
    let state = state(&with(|metadata| {
        for key in [
            "table-uuid",
            "current-snapshot-id",
            "refs",
            "snapshots",
            "statistics",
            "partition-statistics",
            "metadata-log",
            "properties",
            "partition-specs",
            "schemas",
            "snapshot-log",
            "last-sequence-number",
        ] {
            metadata.remove(key).unwrap();
        }
    }));
    assert_eq!((state.current_snapshot, state.uuid, state.refs.len()), (None, None, 0));
}

#[test]
fn a_current_snapshot_without_main_is_held_by_main() {
    let state = state(&with(|metadata| metadata["refs"] = json!({ "audit": { "snapshot-id": 1, "type": "branch" } })));
    assert_eq!(state.refs[&RefName::from("main")].snapshot, SnapshotId(3_055_729_675_574_597_004));
    assert_eq!(state.refs.len(), 2);
}

#[test]
fn encryption_is_seen_wherever_it_is_told() {
    for (what, metadata) in [
        ("keys", with(|m| drop(m.insert("encryption-keys".into(), json!([{ "key-id": "k" }]))))),
        ("snapshot", with(|m| m["snapshots"][1]["key-id"] = json!("k"))),
        ("property", with(|m| m["properties"]["encryption.key-id"] = json!("k"))),
    ] {
        assert!(state(&metadata).is_encrypted, "{what}");
    }
}

#[test]
fn what_could_lose_data_if_guessed_is_refused_with_its_reason_and_file() {
    for (metadata, reason) in [
        (with(|m| m["format-version"] = json!(4)), "format version 4 is not supported"),
        (with(|m| m["format-version"] = json!(0)), "format version 0 is not supported"),
        (with(|m| m["format-version"] = json!("two")), "format version \"two\" is not supported"),
        (with(|m| drop((m.remove("location"), m.insert("format-version".into(), json!(4))))), "format version 4"),
        (
            with(|m| drop((m.insert("format-version".into(), json!(5)), m.insert("snapshots".into(), json!({}))))),
            "format version 5",
        ),
        (with(|m| drop(m.remove("format-version"))), "no format-version"),
        (with(|m| drop(m.remove("location"))), "no location"),
        (with(|m| m["location"] = json!("")), "no location"),
        (with(|m| drop(m.remove("last-updated-ms"))), "no last-updated-ms"),
        (with(|m| m["table-uuid"] = json!("seven")), "table-uuid \"seven\" is no uuid"),
        (with(|m| m["refs"]["gone"]["type"] = json!("bookmark")), "ref \"gone\" is a \"bookmark\""),
        (with(|m| m["refs"]["main"]["snapshot-id"] = json!(12)), "main is at snapshot 12, but the current"),
        (with(|m| m["current-snapshot-id"] = json!(null)), "there is no current snapshot"),
        (
            with(|m| m["snapshots"][1]["snapshot-id"] = json!(3_051_729_675_574_597_004_i64)),
            "two snapshots have the id",
        ),
        (with(|m| m["snapshots"][0]["manifest-list"] = json!(null)), "has no manifest list"),
        (with(|m| m["snapshots"][0]["timestamp-ms"] = json!(null)), "invalid table metadata"),
        (with(|m| m["snapshots"][0]["snapshot-id"] = json!(1e30)), "invalid table metadata"),
        (json!([]), "invalid table metadata"),
    ] {
        let message = refusal(&metadata);
        assert!(message.contains(reason) && message.starts_with(AT), "{message} ({reason})");
    }
}

#[test]
fn bytes_that_are_no_json_are_told_from_json_that_is_no_table() {
    let whole = format_2().to_string();
    for bytes in [&b""[..], b"<html>", &whole.as_bytes()[..whole.len() - 9], &[whole.as_bytes(), b"x"].concat()] {
        assert!(matches!(parse(bytes, AT), Err(MetadataError::NotJson { .. })), "{:?}", String::from_utf8_lossy(bytes));
    }
    // Which of the two counts, nobody knows.
    let twice = whole.replacen('{', "{\"location\":\"s3://wh/db/other\",", 1);
    assert!(matches!(parse(twice.as_bytes(), AT), Err(MetadataError::Invalid { .. })));
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap().into()
}

#[test]
fn gzip_is_told_by_content_and_bounded() {
    let json = format_2().to_string();
    let zipped = gzip(json.as_bytes());
    assert_eq!(inflate(zipped.clone(), AT, 1 << 20).unwrap(), json.as_bytes());
    assert_eq!(inflate(zipped.clone(), AT, json.len() as u64).unwrap(), json.as_bytes());
    assert_eq!(inflate(json.clone().into(), AT, 3).unwrap(), json.as_bytes(), "what is not compressed has no limit");
    let bomb = inflate(zipped.clone(), AT, json.len() as u64 - 1).unwrap_err().to_string();
    assert!(bomb.contains("inflates to more than") && bomb.starts_with(AT), "{bomb}");
    let torn = inflate(zipped.slice(..zipped.len() - 20), AT, 1 << 20).unwrap_err().to_string();
    assert!(torn.contains("cannot inflate") && torn.starts_with(AT), "{torn}");
}

#[test]
fn every_string_is_handed_out_unescaped_wherever_it_hides() {
    let json = br#"{"a":"s3:\/\/b\/k","b":[1,-2,3.5,null,true,["\u0078",{"c":{}}]],"d":""}"#;
    let mut met = Vec::new();
    each_string(json, |text| met.push(text.to_owned())).unwrap();
    assert_eq!(met, ["a", "s3://b/k", "b", "x", "c", "d", ""]);
    for bad in [&b"{\"a\":"[..], b"{} {}"] {
        assert!(each_string(bad, |_| ()).is_err());
    }
}
