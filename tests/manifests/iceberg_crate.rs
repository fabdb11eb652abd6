//! What the iceberg crate writes, both readers read alike, in every codec and format.

use std::collections::HashMap;
use std::sync::Arc;

use iceberg::io::FileIO;
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, FormatVersion, Literal, Manifest,
    ManifestContentType, ManifestFile, ManifestList, ManifestListWriter, ManifestStatus, ManifestWriterBuilder,
    NestedField, PartitionSpec, PrimitiveType, Schema, Struct, Transform, Type,
};
use icewarden::inventory::manifests::{ManifestContent, ManifestCounts, ManifestRef, Status, read_manifest_list};
use icewarden::model::{Content, SnapshotId};
use proptest::prelude::*;

use crate::container::{CODECS, with_codec};
use crate::{OwnedEntry, read};

const SNAPSHOT: i64 = 3_051_729_675_574_597_004;

#[derive(Debug, Clone)]
struct Wanted {
    status: u8,
    is_equality: bool,
    is_vector: bool,
    path: String,
    partition: [Option<String>; 2],
    records: u64,
    size: u64,
    counts: HashMap<i32, u64>,
    bounds: HashMap<i32, Datum>,
    offset: i64,
    sequence_number: i64,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..200u64, 0..1_000_000_000u64, Just(i64::MAX as u64)]
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let bounds = prop_oneof![
        any::<i64>().prop_map(|value| (1, Datum::long(value))),
        "[a-z]{0,200}".prop_map(|value| (2, Datum::string(value))),
        ".{0,20}".prop_map(|value| (3, Datum::string(value))),
    ];
    (
        (0..3u8, any::<bool>(), any::<bool>(), ".{1,80}"),
        // The writers add all records up, so these stay far from overflow.
        (prop::option::of(".{0,20}"), prop::option::of("[a-z]{0,70}"), 0..1u64 << 50, number()),
        (prop::collection::hash_map(1..4i32, number(), 0..4), prop::collection::vec(bounds, 0..4)),
        (0..i64::MAX, 0..1000i64),
    )
        .prop_map(|(kind, (first, second, records, size), (counts, bounds), (offset, sequence_number))| Wanted {
            status: kind.0,
            is_equality: kind.1,
            is_vector: kind.2,
            path: kind.3,
            partition: [first, second],
            records,
            size,
            counts,
            bounds: bounds.into_iter().collect(),
            offset,
            sequence_number,
        })
}

fn data_file(wanted: &Wanted, content: ManifestContentType, version: FormatVersion) -> DataFile {
    let mut builder = DataFileBuilder::default();
    let is_delete = content == ManifestContentType::Deletes;
    let is_vector = is_delete && wanted.is_vector && version == FormatVersion::V3;
    builder
        .content(match (is_delete, wanted.is_equality && !is_vector) {
            (false, _) => DataContentType::Data,
            (true, false) => DataContentType::PositionDeletes,
            (true, true) => DataContentType::EqualityDeletes,
        })
        .file_format(if is_vector { DataFileFormat::Puffin } else { DataFileFormat::Parquet })
        .file_path(wanted.path.clone())
        .partition(wanted.partition.iter().map(|value| value.clone().map(Literal::string)).collect::<Struct>())
        .record_count(wanted.records)
        .file_size_in_bytes(wanted.size)
        .column_sizes(wanted.counts.clone())
        .value_counts(wanted.counts.clone())
        .lower_bounds(wanted.bounds.clone())
        .upper_bounds(wanted.bounds.clone())
        .split_offsets(Some(vec![4, wanted.offset]));
    if is_delete && wanted.is_equality && !is_vector {
        builder.equality_ids(Some(vec![1]));
    }
    if is_vector {
        builder
            .referenced_data_file(Some(format!("{}/data", wanted.path)))
            .content_offset(Some(wanted.offset))
            .content_size_in_bytes(Some(wanted.sequence_number));
    }
    builder.build().unwrap()
}

/// A manifest as the crate writes it. The partition's fields are called as an entry's.
async fn write_manifest(
    io: &FileIO,
    version: FormatVersion,
    content: ManifestContentType,
    snapshot: Option<i64>,
    entries: &[Wanted],
) -> (ManifestFile, Vec<u8>) {
    let string = || Type::Primitive(PrimitiveType::String);
    let schema = Schema::builder()
        .with_fields([
            Arc::new(NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long))),
            Arc::new(NestedField::optional(2, "status", string())),
            Arc::new(NestedField::optional(3, "file_path", string())),
        ])
        .build()
        .unwrap();
    let schema = Arc::new(schema);
    let spec = PartitionSpec::builder(schema.clone())
        .with_spec_id(0)
        .add_partition_field("status", "status", Transform::Identity)
        .unwrap()
        .add_partition_field("file_path", "file_path", Transform::Identity)
        .unwrap()
        .build()
        .unwrap();
    let location = format!("memory://lake/{version:?}-{content:?}.avro");
    let builder = ManifestWriterBuilder::new(io.new_output(&location).unwrap(), snapshot, schema, spec);
    let mut writer = match (version, content) {
        (FormatVersion::V1, _) => builder.build_v1(),
        (FormatVersion::V2, ManifestContentType::Data) => builder.build_v2_data(),
        (FormatVersion::V2, ManifestContentType::Deletes) => builder.build_v2_deletes(),
        (_, ManifestContentType::Data) => builder.build_v3_data(),
        (_, ManifestContentType::Deletes) => builder.build_v3_deletes(),
    };
    for wanted in entries {
        let (file, number) = (data_file(wanted, content, version), wanted.sequence_number);
        match wanted.status {
            0 => writer.add_existing_file(file, number + 1, number, Some(number)),
            1 => writer.add_file(file, number),
            _ => writer.add_delete_file(file, number, Some(number)),
        }
        .unwrap();
    }
    let manifest = writer.write_manifest_file().await.unwrap();
    let bytes = io.new_input(&location).unwrap().read().await.unwrap();
    (manifest, bytes.to_vec())
}

async fn write_list(io: &FileIO, version: FormatVersion, manifests: Vec<ManifestFile>) -> Vec<u8> {
    let output = io.new_output("memory://lake/list.avro").unwrap();
    let file = output.writer().await.unwrap();
    let mut writer = match version {
        FormatVersion::V1 => ManifestListWriter::v1(file, SNAPSHOT, None),
        FormatVersion::V2 => ManifestListWriter::v2(file, SNAPSHOT, Some(1), 7),
        FormatVersion::V3 => ManifestListWriter::v3(file, SNAPSHOT, Some(1), 7, Some(0)),
    };
    writer.add_manifests(manifests.into_iter()).unwrap();
    writer.close().await.unwrap();
    output.to_input_file().read().await.unwrap().to_vec()
}

/// What the crate's reader says of a list.
fn lists_by_the_crate(bytes: &[u8], version: FormatVersion) -> Vec<ManifestRef> {
    let list = ManifestList::parse_with_version(bytes, version).unwrap();
    list.entries()
        .iter()
        .map(|manifest| ManifestRef {
            location: manifest.manifest_path.clone(),
            length: manifest.manifest_length as u64,
            content: match manifest.content {
                ManifestContentType::Data => ManifestContent::Data,
                ManifestContentType::Deletes => ManifestContent::Deletes,
            },
            added_snapshot: Some(SnapshotId(manifest.added_snapshot_id)),
            sequence_number: manifest.sequence_number,
            counts: Some(ManifestCounts {
                added: manifest.added_files_count.unwrap().into(),
                existing: manifest.existing_files_count.unwrap().into(),
                deleted: manifest.deleted_files_count.unwrap().into(),
            }),
            is_encrypted: manifest.key_metadata.is_some(),
        })
        .collect()
}

/// What the crate's reader says of a manifest, with the snapshot inherited.
fn entries_by_the_crate(bytes: &[u8], manifest: &ManifestRef) -> Vec<OwnedEntry> {
    let parsed = Manifest::parse_avro(bytes).unwrap();
    parsed
        .entries()
        .iter()
        .map(|entry| {
            let file = entry.data_file();
            OwnedEntry {
                status: match entry.status() {
                    ManifestStatus::Existing => Status::Existing,
                    ManifestStatus::Added => Status::Added,
                    ManifestStatus::Deleted => Status::Deleted,
                },
                snapshot: entry.snapshot_id().map(SnapshotId).or(manifest.added_snapshot),
                content: match file.content_type() {
                    DataContentType::Data => Content::Data,
                    DataContentType::PositionDeletes => Content::PositionDeletes,
                    DataContentType::EqualityDeletes => Content::EqualityDeletes,
                },
                location: file.file_path().to_owned(),
                size: file.file_size_in_bytes(),
                records: file.record_count(),
                content_offset: file.content_offset(),
                content_size: file.content_size_in_bytes(),
                referenced_data_file: file.referenced_data_file(),
            }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_and_manifests_of_the_iceberg_crate_are_read_as_the_crate_reads_them(
        version in prop_oneof![Just(FormatVersion::V1), Just(FormatVersion::V2), Just(FormatVersion::V3)],
        content in prop_oneof![Just(ManifestContentType::Data), Just(ManifestContentType::Deletes)],
        has_snapshot in prop::bool::weighted(0.8),
        is_encrypted in prop::bool::weighted(0.1),
        entries in prop::collection::vec(wanted(), 0..25),
    ) {
        let content = if version == FormatVersion::V1 { ManifestContentType::Data } else { content };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let io = FileIO::new_with_memory();
        let (mut file, bytes) =
            runtime.block_on(write_manifest(&io, version, content, has_snapshot.then_some(SNAPSHOT), &entries));
        file.added_snapshot_id = SNAPSHOT;
        file.key_metadata = is_encrypted.then(|| vec![1, 2, 3]);
        let list = runtime.block_on(write_list(&io, version, vec![file.clone(), file]));
        let expected_list = lists_by_the_crate(&list, version);
        for codec in CODECS {
            let list = with_codec(&list, codec);
            prop_assert_eq!(&read_manifest_list(&list, "list").unwrap(), &expected_list, "{}", codec);
        }
        let manifest = ManifestRef { is_encrypted: false, ..expected_list[0].clone() };
        let expected = entries_by_the_crate(&bytes, &manifest);
        prop_assert_eq!(expected.len(), entries.len());
        let (counts, found) = read(&bytes, &manifest).unwrap();
        prop_assert_eq!(Some(counts), manifest.counts);
        prop_assert_eq!(&found, &expected);
        for codec in CODECS {
            let bytes = with_codec(&bytes, codec);
            let manifest = ManifestRef { length: bytes.len() as u64, ..manifest.clone() };
            // Proves that the change of codec is a genuine one; the crate has no bzip2.
            if codec != "bzip2" {
                prop_assert_eq!(&entries_by_the_crate(&bytes, &manifest), &expected, "{}", codec);
            }
            prop_assert_eq!(&read(&bytes, &manifest).unwrap().1, &expected, "{}", codec);
        }
    }

    #[test]
    fn damage_to_a_manifest_of_the_iceberg_crate_is_never_a_panic_nor_another_number_of_rows(
        version in prop_oneof![Just(FormatVersion::V1), Just(FormatVersion::V2)],
        codec in prop::sample::select(&CODECS[..]),
        entries in prop::collection::vec(wanted(), 1..10),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (file, bytes) = runtime.block_on(write_manifest(
            &FileIO::new_with_memory(), version, ManifestContentType::Data, Some(SNAPSHOT), &entries,
        ));
        let expected = ManifestCounts {
            added: file.added_files_count.unwrap().into(),
            existing: file.existing_files_count.unwrap().into(),
            deleted: file.deleted_files_count.unwrap().into(),
        };
        let sound = with_codec(&bytes, codec);
        let mut bytes = sound.clone();
        for (place, byte, how) in damage {
            let place = place.index(bytes.len());
            match how {
                0 => bytes[place] = byte,
                1 => bytes[place] ^= 1 << (byte % 8),
                _ => bytes.insert(place, byte),
            }
        }
        let manifest = ManifestRef {
            location: "m".to_owned(),
            length: 0,
            content: ManifestContent::Data,
            added_snapshot: None,
            sequence_number: 0,
            counts: Some(expected),
            is_encrypted: false,
        };
        prop_assert_eq!(read(&sound, &manifest).unwrap().0, expected);
        if let Ok((counts, _)) = read(&bytes, &manifest) {
            prop_assert_eq!(counts, expected);
        }
    }
}
