//! Files that nobody should write: each is read whole or not at all.

use icewarden::inventory::manifests::{
    ManifestContent, ManifestCounts, ManifestRef, Status, Unreadable, read_manifest, read_manifest_list,
};
use icewarden::model::{Content, SnapshotId};

use crate::container::{CODECS, SYNC, bytes, compress, ends, file, header, long, optional, stored_block};
use crate::rows::{LIST_SCHEMA, ListRow, MANIFEST_SCHEMA, Row, without_ids};
use crate::{OwnedEntry, read};

/// What a list says of a manifest, the length unknown.
fn manifest(added: u64, existing: u64, deleted: u64) -> ManifestRef {
    ManifestRef {
        location: "s3://wh/m.avro".to_owned(),
        length: 0,
        content: ManifestContent::Data,
        added_snapshot: Some(SnapshotId(5)),
        sequence_number: 1,
        counts: Some(ManifestCounts { added, existing, deleted }),
        is_encrypted: false,
    }
}

fn unknown_counts() -> ManifestRef {
    ManifestRef { counts: None, ..manifest(0, 0, 0) }
}

/// Two blocks with an added, an existing and a deleted entry.
fn sound_blocks() -> Vec<(i64, Vec<u8>)> {
    let added = Row { vector: Some(("data".to_owned(), 4, 40)), content: 1, ..Row::new(1, "s3://wh/a.puffin") };
    let existing = Row { snapshot: None, ..Row::new(0, "s3://wh/b.parquet") };
    let deleted = Row { content: 2, ..Row::new(2, "s3://wh/ü.parquet") };
    vec![(2, [added.encode(), existing.encode()].concat()), (1, deleted.encode())]
}

fn sound_entries() -> Vec<OwnedEntry> {
    let entry = |status, content, location: &str| OwnedEntry {
        status,
        snapshot: Some(SnapshotId(77)),
        content,
        location: location.to_owned(),
        size: 1000,
        records: 10,
        content_offset: None,
        content_size: None,
        referenced_data_file: None,
    };
    vec![
        OwnedEntry {
            content_offset: Some(4),
            content_size: Some(40),
            referenced_data_file: Some("data".to_owned()),
            ..entry(Status::Added, Content::PositionDeletes, "s3://wh/a.puffin")
        },
        OwnedEntry { snapshot: Some(SnapshotId(5)), ..entry(Status::Existing, Content::Data, "s3://wh/b.parquet") },
        entry(Status::Deleted, Content::EqualityDeletes, "s3://wh/ü.parquet"),
    ]
}

fn one_row(change: impl FnOnce(&mut Row)) -> Vec<u8> {
    let mut row = Row::new(1, "s3://wh/a.parquet");
    change(&mut row);
    file(MANIFEST_SCHEMA, "null", &[(1, row.encode())])
}

fn reason<T: std::fmt::Debug>(result: Result<T, Unreadable>) -> String {
    result.unwrap_err().reason
}

#[test]
fn a_manifest_is_read_by_field_id_and_without_ids_by_name_and_its_partition_never() {
    for schema in [MANIFEST_SCHEMA.to_owned(), without_ids(MANIFEST_SCHEMA)] {
        for codec in CODECS {
            let bytes = file(&schema, codec, &sound_blocks());
            let manifest = ManifestRef { length: bytes.len() as u64, ..manifest(1, 1, 1) };
            let (_, entries) = read(&bytes, &manifest).unwrap();
            assert_eq!(entries, sound_entries(), "{codec}");
        }
    }
}

#[test]
fn fields_under_other_names_are_found_by_id_and_names_with_other_ids_are_not() {
    let renamed = MANIFEST_SCHEMA.replace("file_size_in_bytes", "record_count2").replace("\"status\"", "\"s\"");
    let bytes = file(&renamed, "null", &sound_blocks());
    assert_eq!(read(&bytes, &manifest(1, 1, 1)).unwrap().1, sound_entries());
    let other_id = MANIFEST_SCHEMA.replace("\"field-id\": 104", "\"field-id\": 999");
    let bytes = file(&other_id, "null", &sound_blocks());
    assert!(reason(read(&bytes, &manifest(1, 1, 1))).contains("no column \"file_size_in_bytes\" (field id 104)"));
}

#[test]
fn a_length_or_a_count_that_differs_from_the_manifest_list_makes_a_manifest_unreadable() {
    let bytes = file(MANIFEST_SCHEMA, "deflate", &sound_blocks());
    let length = bytes.len() as u64;
    let of_length = |length| ManifestRef { length, ..manifest(1, 1, 1) };
    assert!(read(&bytes, &of_length(length)).is_ok());
    for (name, manifest, expected) in [
        ("one byte more", of_length(length + 1), "its manifest list says"),
        ("one byte less", of_length(length - 1), "its manifest list says"),
        (
            "an added entry more",
            manifest(2, 1, 1),
            "1 added, 1 existing and 1 deleted entries, but its manifest list says 2, 1 and 1",
        ),
        ("no existing entry", manifest(1, 0, 1), "says 1, 0 and 1"),
        ("an added entry is a deleted one", manifest(0, 1, 2), "says 0, 1 and 2"),
        ("an encrypted manifest", ManifestRef { is_encrypted: true, ..manifest(1, 1, 1) }, "encrypted"),
    ] {
        let error = read(&bytes, &manifest).unwrap_err();
        assert!(error.reason.contains(expected), "{name}: {error}");
        assert!(error.to_string().starts_with("s3://wh/m.avro: "), "{name}: {error}");
    }
    assert_eq!(read(&bytes, &unknown_counts()).unwrap().1, sound_entries());
}

#[test]
fn a_value_that_makes_no_sense_makes_a_manifest_unreadable() {
    assert!(read(&one_row(|_| ()), &manifest(1, 0, 0)).is_ok());
    let pairs = |parts: &[Vec<u8>]| optional(Some(parts.concat()));
    for (name, bytes, expected) in [
        ("status 3", one_row(|row| row.status = 3), "status of an entry is unknown"),
        ("status -1", one_row(|row| row.status = -1), "status of an entry is unknown"),
        ("status 2^32 + 1", one_row(|row| row.status = (1 << 32) + 1), "status of an entry is unknown"),
        ("content 3", one_row(|row| row.content = 3), "content of a file is unknown"),
        ("no path", one_row(|row| row.location = vec![]), "a location is empty"),
        ("a path that is not UTF-8", one_row(|row| row.location = vec![0xff]), "not UTF-8"),
        ("a negative size", one_row(|row| row.size = -1), "negative"),
        ("a negative row count", one_row(|row| row.records = -1), "negative"),
        ("a union branch that is not there", one_row(|row| row.value_counts = long(2)), "union"),
        ("a negative union branch", one_row(|row| row.value_counts = long(-1)), "union"),
        ("more counts than bytes", one_row(|row| row.value_counts = pairs(&[long(1 << 40), long(0)])), "item count"),
        ("more bounds than bytes", one_row(|row| row.lower_bounds = pairs(&[long(i64::MAX), long(0)])), "item count"),
        (
            "a bound with a negative length",
            one_row(|row| row.lower_bounds = pairs(&[long(1), long(1), long(-5), long(0)])),
            "length",
        ),
        (
            "a bound past the end",
            one_row(|row| row.lower_bounds = pairs(&[long(1), long(1), long(5000), long(0)])),
            "length",
        ),
        ("a jump past the end", one_row(|row| row.lower_bounds = pairs(&[long(-1), long(5000), long(0)])), "length"),
        ("a jump backwards", one_row(|row| row.lower_bounds = pairs(&[long(-1), long(-5), long(0)])), "length"),
    ] {
        let error = reason(read(&bytes, &manifest(1, 0, 0)));
        assert!(error.contains(expected) && error.contains("row 0"), "{name}: {error}");
    }
}

#[test]
fn blocks_of_statistics_with_negative_counts_are_jumped() {
    let junk = vec![0xff; 9];
    let bytes = one_row(|row| {
        row.value_counts =
            optional(Some([long(-70_000), long(9), junk.clone(), long(1), long(3), long(4), long(0)].concat()));
        row.lower_bounds = optional(Some([long(i64::MIN), long(9), junk, long(0)].concat()));
    });
    assert_eq!(read(&bytes, &manifest(1, 0, 0)).unwrap().1[0].location, "s3://wh/a.parquet");
}

#[test]
fn a_container_that_is_not_whole_is_unreadable() {
    let row = Row::new(1, "s3://wh/a.parquet").encode();
    let start = || file(MANIFEST_SCHEMA, "null", &[]);
    let schema = ("avro.schema", MANIFEST_SCHEMA.as_bytes());
    let after = |rest: Vec<u8>| [start(), rest].concat();
    let magic = b"Obj\x01".to_vec();
    let mut wrong_sync = after(stored_block(1, &row));
    *wrong_sync.last_mut().unwrap() ^= 1;
    for (name, bytes, expected) in [
        ("no bytes", vec![], "not an Avro file"),
        ("another file", b"PAR1 and so on".to_vec(), "not an Avro file"),
        ("an encrypted stream", b"AGS1\x00\x00\x10\x00".to_vec(), "not an Avro file"),
        ("the magic only", magic.clone(), "ends inside a value"),
        ("a huge metadata count", [magic.clone(), long(i64::MAX), vec![0; 40]].concat(), "item count"),
        (
            "a hugely negative metadata count",
            [magic.clone(), long(i64::MIN), long(1), vec![0; 40]].concat(),
            "item count",
        ),
        ("no schema", [header(&[]), stored_block(1, &row)].concat(), "schema: is missing"),
        ("a schema that is not JSON", header(&[("avro.schema", b"{nope")]), "schema: is not JSON"),
        ("a schema that is not UTF-8", header(&[("avro.schema", b"\"\xff\"")]), "schema: is not JSON"),
        ("another schema", header(&[("avro.schema", LIST_SCHEMA.as_bytes())]), "no column \"status\""),
        ("two schemas", header(&[schema, schema]), "occurs twice"),
        ("an unknown codec", header(&[schema, ("avro.codec", b"lzma\xff")]), "is not supported"),
        ("a wrong sync marker", wrong_sync, "sync marker"),
        ("bytes after the last block", after([stored_block(1, &row), vec![0]].concat()), "block at byte"),
        ("zeroes after the last block", after([stored_block(1, &row), vec![0; 40]].concat()), "sync marker"),
        ("a negative row count", after(stored_block(-1, &row)), "row count"),
        ("a huge row count", after(stored_block(i64::MAX, &row)), "row count"),
        ("a row more than there are", after(stored_block(2, &row)), "row 1 of the file: ends inside a value"),
        ("a row less than there are", after(stored_block(1, &[row.clone(), row.clone()].concat())), "bytes are left"),
        ("no row and yet bytes", after(stored_block(0, &row)), "bytes are left"),
        ("a negative block length", after([long(1), long(-1), SYNC.to_vec()].concat()), "length"),
        ("a block length past the end", after([long(1), long(1 << 40), row.clone()].concat()), "length"),
        ("an integer of eleven bytes", after(vec![0xff; 11]), "longer than 64 bits"),
        (
            "a type that holds itself",
            header(&[(
                "avro.schema",
                MANIFEST_SCHEMA
                    .replacen("\"type\": \"int\", \"field-id\": 1000", "\"type\": \"r102\", \"field-id\": 1000", 1)
                    .replace("[\"null\", \"int\"]", "[\"null\", \"r102\"]")
                    .as_bytes(),
            )]),
            "holds itself",
        ),
    ] {
        let error = reason(read(&bytes, &manifest(1, 0, 0)));
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn codecs_are_checked_block_by_block() {
    let row = Row::new(1, "s3://wh/a.parquet").encode();
    for codec in &CODECS[1..] {
        let start = file(MANIFEST_SCHEMA, codec, &[(1, row.clone())]);
        let second_block = |stored: &[u8]| [start.clone(), stored_block(1, stored)].concat();
        let mut cut = compress(codec, &row);
        cut.truncate(cut.len() - 5);
        for (name, stored) in [("no bytes", vec![]), ("raw rows", row.clone()), ("a cut stream", cut)] {
            let error = reason(read(&second_block(&stored), &manifest(2, 0, 0)));
            assert!(error.contains(&format!("block at byte {}", start.len())), "{codec}, {name}: {error}");
        }
        let sound = second_block(&compress(codec, &row));
        assert_eq!(read(&sound, &manifest(2, 0, 0)).unwrap().1.len(), 2, "{codec}");
    }
}

#[test]
fn a_file_without_a_codec_is_not_compressed_and_metadata_may_have_a_negative_count() {
    let block = stored_block(1, &Row::new(1, "s3://wh/a.parquet").encode());
    let schema = ("avro.schema", MANIFEST_SCHEMA.as_bytes());
    assert!(read(&[header(&[schema]), block.clone()].concat(), &manifest(1, 0, 0)).is_ok());
    let items = [bytes(b"avro.schema"), bytes(MANIFEST_SCHEMA.as_bytes())].concat();
    let negative =
        [b"Obj\x01".to_vec(), long(-1), long(items.len() as i64), items, long(0), SYNC.to_vec(), block].concat();
    assert!(read(&negative, &manifest(1, 0, 0)).is_ok());
}

#[test]
fn a_huge_array_of_items_without_bytes_is_not_looped_over() {
    let schema = MANIFEST_SCHEMA.replacen(
        r#"{"name": "status", "type": "int""#,
        r#"{"name": "empty", "type": {"type": "array", "items": "null"}}, {"name": "status", "type": "int""#,
        1,
    );
    let row = [long(i64::MAX), long(i64::MAX), long(0), Row::new(1, "s3://wh/a.parquet").encode()].concat();
    assert!(read(&file(&schema, "null", &[(1, row)]), &manifest(1, 0, 0)).is_ok());
}

#[test]
fn a_manifest_without_entries_is_one_only_if_the_list_says_so() {
    let bytes = file(MANIFEST_SCHEMA, "null", &[]);
    assert_eq!(read(&bytes, &manifest(0, 0, 0)).unwrap().1, vec![]);
    assert!(reason(read(&bytes, &manifest(1, 0, 0))).contains("0 added"));
}

#[test]
fn every_truncation_of_a_manifest_is_an_error() {
    for codec in CODECS {
        let bytes = file(MANIFEST_SCHEMA, codec, &sound_blocks());
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut], &manifest(1, 1, 1)).is_err(), "{codec}, cut at {cut} of {}", bytes.len());
        }
        // Without counts from the list, only a cut between blocks looks like a whole file.
        let looks_whole: Vec<_> =
            (0..=bytes.len()).filter(|cut| read(&bytes[..*cut], &unknown_counts()).is_ok()).collect();
        assert_eq!(looks_whole, ends(&bytes), "{codec}");
    }
}

#[test]
fn no_flipped_bit_of_a_manifest_changes_the_number_of_rows() {
    for codec in CODECS {
        let bytes = file(MANIFEST_SCHEMA, codec, &sound_blocks());
        let expected = ManifestCounts { added: 1, existing: 1, deleted: 1 };
        // Bzip2 is slow where it is not optimised; a stride that is prime to eight meets every bit of a byte.
        let stride = if codec == "bzip2" { 7 } else { 1 };
        let mut refused = 0;
        for bit in (ends(&bytes)[0] * 8..bytes.len() * 8).step_by(stride) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read(&flipped, &manifest(1, 1, 1)) {
                Ok((counts, entries)) => {
                    assert_eq!(counts, expected, "{codec}, bit {bit}");
                    // These two have checksums over a block's bytes, so that no damage goes unnoticed.
                    if matches!(codec, "snappy" | "bzip2") {
                        assert_eq!(entries, sound_entries(), "{codec}, bit {bit}");
                    }
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0, "{codec}");
    }
}

#[test]
fn no_flipped_bit_of_a_header_is_a_panic() {
    let bytes = file(MANIFEST_SCHEMA, "null", &sound_blocks());
    for bit in 0..ends(&bytes)[0] * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(counts) = read_manifest(&flipped, &manifest(1, 1, 1), |_| ()) {
            assert_eq!(counts, ManifestCounts { added: 1, existing: 1, deleted: 1 }, "bit {bit}");
        }
    }
}

#[test]
fn manifest_lists_are_read_under_all_their_names_and_counts() {
    let row = ListRow::new("s3://wh/m1.avro");
    let other = ListRow { counts: [Some(0); 3], ..ListRow::new("s3://wh/m2.avro") };
    let expected = vec![row.expected(), other.expected()];
    let old_names = ["added", "existing", "deleted"].iter().fold(LIST_SCHEMA.to_owned(), |schema, name| {
        schema.replace(&format!("{name}_files_count"), &format!("{name}_data_files_count"))
    });
    for schema in [LIST_SCHEMA.to_owned(), without_ids(LIST_SCHEMA), old_names.clone(), without_ids(&old_names)] {
        for codec in CODECS {
            let bytes = file(&schema, codec, &[(1, row.encode()), (1, other.encode())]);
            assert_eq!(read_manifest_list(&bytes, "list"), Ok(expected.clone()), "{codec}, {schema}");
        }
    }
}

#[test]
fn a_list_of_format_1_has_data_manifests_and_may_leave_counts_out() {
    let schema = r#"{"type": "record", "name": "manifest_file", "fields": [
      {"name": "manifest_path", "type": "string", "field-id": 500},
      {"name": "manifest_length", "type": "long", "field-id": 501},
      {"name": "added_snapshot_id", "type": ["null", "long"], "field-id": 503},
      {"name": "added_data_files_count", "type": ["null", "int"], "field-id": 504},
      {"name": "existing_data_files_count", "type": ["null", "int"], "field-id": 505},
      {"name": "deleted_data_files_count", "type": ["null", "int"], "field-id": 506}]}"#;
    let row = |snapshot: Option<i64>, counts: [Option<i64>; 3]| {
        let counts = counts.map(|count| optional(count.map(long))).concat();
        [bytes(b"s3://wh/m.avro"), long(9), optional(snapshot.map(long)), counts].concat()
    };
    let rows =
        [row(Some(3), [None; 3]), row(None, [Some(1), None, Some(0)]), row(Some(3), [Some(1), Some(2), Some(0)])];
    let expected = ManifestRef {
        location: "s3://wh/m.avro".to_owned(),
        length: 9,
        content: ManifestContent::Data,
        added_snapshot: Some(SnapshotId(3)),
        sequence_number: 0,
        counts: None,
        is_encrypted: false,
    };
    let counts = Some(ManifestCounts { added: 1, existing: 2, deleted: 0 });
    assert_eq!(
        read_manifest_list(&file(schema, "deflate", &[(3, rows.concat())]), "list"),
        Ok(vec![
            expected.clone(),
            ManifestRef { added_snapshot: None, ..expected.clone() },
            ManifestRef { counts, ..expected }
        ])
    );
}

#[test]
fn encrypted_manifests_are_told_by_their_key() {
    for (key_metadata, is_encrypted) in [(None, false), (Some(vec![]), false), (Some(vec![1]), true)] {
        let row = ListRow { key_metadata: key_metadata.clone(), ..ListRow::new("m") };
        let list = read_manifest_list(&file(LIST_SCHEMA, "null", &[(1, row.encode())]), "list").unwrap();
        assert_eq!(list[0].is_encrypted, is_encrypted, "{key_metadata:?}");
    }
}

#[test]
fn a_value_that_makes_no_sense_makes_a_manifest_list_unreadable() {
    let row = || ListRow::new("s3://wh/m.avro");
    for (name, row, expected) in [
        ("no length", ListRow { length: 0, ..row() }, "zero or negative"),
        ("a negative length", ListRow { length: -1, ..row() }, "zero or negative"),
        ("content 2", ListRow { content: 2, ..row() }, "unknown"),
        ("no location", ListRow { location: String::new(), ..row() }, "empty"),
        ("a negative count", ListRow { counts: [Some(1), Some(-1), Some(1)], ..row() }, "negative"),
    ] {
        let bytes = file(LIST_SCHEMA, "null", &[(1, row.encode())]);
        let error = read_manifest_list(&bytes, "s3://wh/list.avro").unwrap_err();
        assert!(error.reason.contains(expected), "{name}: {error}");
        assert!(error.to_string().starts_with("s3://wh/list.avro: the manifest list cannot be read: "), "{error}");
    }
    for column in ["manifest_path", "manifest_length"] {
        let bytes = file(&without_ids(LIST_SCHEMA).replace(column, "other"), "null", &[(1, row().encode())]);
        assert!(reason(read_manifest_list(&bytes, "list")).contains(column), "{column}");
    }
}

#[test]
fn a_truncated_manifest_list_is_an_error_but_for_a_cut_between_blocks() {
    // Nothing tells how long a list is or how many manifests it has, so this is for the store to notice.
    let rows = ListRow::new("s3://wh/m.avro").encode();
    for codec in CODECS {
        let bytes = file(LIST_SCHEMA, codec, &[(1, rows.clone()), (2, rows.repeat(2))]);
        let looks_whole: Vec<_> =
            (0..=bytes.len()).filter(|cut| read_manifest_list(&bytes[..*cut], "list").is_ok()).collect();
        assert_eq!(looks_whole, ends(&bytes), "{codec}");
    }
}
