//! What the demo tables hold: rows in Parquet, position deletes in Parquet, deletion vectors in Puffin.
//!
//! All tables have the same four columns: the demo is about files, not about rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema as ArrowSchema, SchemaRef as ArrowSchemaRef};
use iceberg::arrow::schema_to_arrow_schema;
use iceberg::puffin::{Blob, CompressionCodec, DELETION_VECTOR_V1, PuffinWriter};
use iceberg::spec::{
    DataContentType, DataFile, DataFileBuilder, DataFileFormat, Datum, Literal, NestedField, PrimitiveType, Schema,
    Struct, Type,
};
use parquet::arrow::{ArrowWriter, PARQUET_FIELD_ID_META_KEY};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use roaring::RoaringTreemap;
use xxhash_rust::xxh3::xxh3_128;

use crate::model::Timestamp;

use super::DemoError;
use super::folder::TableFolder;

/// Bytes of a deletion vector's frame before the bitmap: length (big-endian) and magic.
const VECTOR_HEAD: usize = 8;
/// The first four bytes after the length of a deletion vector (Puffin spec, `deletion-vector-v1`).
pub(super) const VECTOR_MAGIC: [u8; 4] = [0xD1, 0xD3, 0x39, 0x64];
/// Bytes of a Puffin file before its first blob.
const PUFFIN_HEAD: u64 = 4;
const DAY_MS: i64 = 86_400_000;

/// The columns of every table.
pub(super) fn schema() -> Result<Schema, iceberg::Error> {
    let column = |id, name, kind| NestedField::optional(id, name, Type::Primitive(kind)).into();
    Schema::builder()
        .with_schema_id(0)
        .with_fields([
            NestedField::required(1, "id", Type::Primitive(PrimitiveType::Long)).into(),
            column(2, "at", PrimitiveType::Timestamptz),
            column(3, "name", PrimitiveType::String),
            column(4, "amount", PrimitiveType::Double),
        ])
        .build()
}

/// Rows with consecutive ids, one every `step_ms`. The same rows always have the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) first_id: i64,
    pub(super) count: i64,
    pub(super) from: Timestamp,
    pub(super) step_ms: i64,
    /// Rows that were corrected have a higher one.
    pub(super) revision: u8,
}

impl Rows {
    /// `count` rows of the last minutes before `until`, all of one day.
    pub(super) fn until(until: Timestamp, first_id: i64, count: i64) -> Self {
        let midnight = until.0.div_euclid(DAY_MS) * DAY_MS;
        let from = midnight.max(until.0 - 5_400_000);
        Self { first_id, count, from: Timestamp(from), step_ms: (until.0 - from) / count.max(1), revision: 0 }
    }

    /// The rows in two halves.
    pub(super) fn halves(self) -> [Self; 2] {
        let half = self.count / 2;
        let from = Timestamp(self.from.0 + half * self.step_ms);
        [Self { count: half, ..self }, Self { first_id: self.first_id + half, count: self.count - half, from, ..self }]
    }

    /// These rows and the `next` ones, which must follow on them.
    pub(super) fn and(self, next: Self) -> Self {
        Self { count: self.count + next.count, ..self }
    }

    /// Days since the epoch.
    pub(super) fn day(self) -> i32 {
        i32::try_from(self.from.0.div_euclid(DAY_MS)).unwrap_or_default()
    }

    fn last_id(self) -> i64 {
        self.first_id + self.count - 1
    }

    fn micros(self, row: i64) -> i64 {
        (self.from.0 + row * self.step_ms) * 1000
    }

    fn batch(self, schema: ArrowSchemaRef) -> Result<RecordBatch, arrow_schema::ArrowError> {
        let hash = |id: i64| xxh3_128(&[&id.to_be_bytes()[..], &[self.revision]].concat());
        let ids = self.first_id..self.first_id + self.count;
        let times = (0..self.count).map(|row| self.micros(row));
        let columns: [ArrayRef; 4] = [
            Arc::new(Int64Array::from_iter_values(ids.clone())),
            Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone("+00:00")),
            Arc::new(StringArray::from_iter_values(ids.clone().map(|id| format!("{:032x}", hash(id))))),
            Arc::new(Float64Array::from_iter_values(ids.map(|id| (hash(id) % 100_000) as f64 / 100.0))),
        ];
        RecordBatch::try_new(schema, columns.to_vec())
    }
}

/// A content file, as far as a manifest entry tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentFile {
    pub(super) location: String,
    pub(super) size: u64,
    pub(super) records: u64,
    pub(super) holds: Holds,
    /// The partition, of the target where it holds deletes.
    pub(super) day: Option<i32>,
    /// Row lineage of format 3, once it is assigned.
    pub(super) first_row_id: Option<u64>,
}

/// What a content file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    Rows(Rows),
    /// Of one data file.
    PositionDeletes {
        target: String,
    },
    /// A blob in a Puffin file.
    Vector {
        target: String,
        offset: u64,
        length: u64,
    },
}

impl ContentFile {
    /// Whether manifests list it as data, not as deletes.
    pub(super) fn is_data(&self) -> bool {
        matches!(self.holds, Holds::Rows(_))
    }

    /// The data file whose rows it deletes.
    pub(super) fn target(&self) -> Option<&str> {
        match &self.holds {
            Holds::Rows(_) => None,
            Holds::PositionDeletes { target } | Holds::Vector { target, .. } => Some(target),
        }
    }

    /// The rows, where it holds any.
    pub(super) fn rows(&self) -> Option<Rows> {
        match self.holds {
            Holds::Rows(rows) => Some(rows),
            _ => None,
        }
    }

    /// As the manifest writers take it.
    pub(super) fn data_file(&self) -> Result<DataFile, DemoError> {
        let mut file = DataFileBuilder::default();
        file.file_path(self.location.clone())
            .file_format(DataFileFormat::Parquet)
            .content(DataContentType::PositionDeletes)
            .partition(self.day.map_or_else(Struct::empty, |day| Struct::from_iter([Some(Literal::date(day))])))
            .record_count(self.records)
            .file_size_in_bytes(self.size)
            .first_row_id(self.first_row_id.and_then(|id| i64::try_from(id).ok()))
            .referenced_data_file(self.target().map(str::to_owned));
        match &self.holds {
            Holds::Rows(rows) => {
                let bounds =
                    |id, row| HashMap::from([(1, Datum::long(id)), (2, Datum::timestamptz_micros(rows.micros(row)))]);
                file.content(DataContentType::Data)
                    .value_counts((1..=4).map(|column| (column, self.records)).collect())
                    .null_value_counts((1..=4).map(|column| (column, 0)).collect())
                    .lower_bounds(bounds(rows.first_id, 0))
                    .upper_bounds(bounds(rows.last_id(), rows.count - 1));
            }
            Holds::PositionDeletes { .. } => {}
            Holds::Vector { offset, length, .. } => {
                file.file_format(DataFileFormat::Puffin)
                    .content_offset(i64::try_from(*offset).ok())
                    .content_size_in_bytes(i64::try_from(*length).ok());
            }
        }
        file.build().map_err(|error| DemoError::write(&self.location, &error))
    }
}

/// Writes rows as a data file; `day` is its partition, where the table has partitions.
pub(super) fn write_rows(
    folder: &TableFolder,
    relative: &str,
    rows: Rows,
    day: Option<i32>,
    at: Timestamp,
) -> Result<ContentFile, DemoError> {
    let location = folder.locate(relative);
    let failed = |error: &dyn std::error::Error| DemoError::write(&location, error);
    let arrow = schema().and_then(|schema| schema_to_arrow_schema(&schema)).map_err(|error| failed(&error))?;
    let batch = rows.batch(Arc::new(arrow)).map_err(|error| failed(&error))?;
    let bytes = parquet(&batch).map_err(|error| failed(&error))?;
    folder.write(relative, &bytes, at)?;
    let (size, records) = (bytes.len() as u64, rows.count.unsigned_abs());
    Ok(ContentFile { location, size, records, holds: Holds::Rows(rows), day, first_row_id: None })
}

/// Writes a position delete file for the rows of `target` at `positions`, which are sorted.
pub(super) fn write_position_deletes(
    folder: &TableFolder,
    relative: &str,
    target: &ContentFile,
    positions: &[u32],
    at: Timestamp,
) -> Result<ContentFile, DemoError> {
    let location = folder.locate(relative);
    // The reserved field ids of position deletes (spec, "Reserved Field IDs").
    let column = |name, kind, id: &str| {
        Field::new(name, kind, false)
            .with_metadata(HashMap::from([(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_owned())]))
    };
    let schema = ArrowSchema::new(vec![
        column("file_path", DataType::Utf8, "2147483546"),
        column("pos", DataType::Int64, "2147483545"),
    ]);
    let paths: ArrayRef = Arc::new(StringArray::from_iter_values(positions.iter().map(|_| &target.location)));
    let deleted: ArrayRef = Arc::new(Int64Array::from_iter_values(positions.iter().copied().map(i64::from)));
    let bytes = RecordBatch::try_new(Arc::new(schema), vec![paths, deleted])
        .map_err(Into::into)
        .and_then(|batch| parquet(&batch))
        .map_err(|error| DemoError::write(&location, &error))?;
    folder.write(relative, &bytes, at)?;
    Ok(ContentFile {
        size: bytes.len() as u64,
        records: positions.len() as u64,
        holds: Holds::PositionDeletes { target: target.location.clone() },
        day: target.day,
        first_row_id: None,
        location,
    })
}

/// Writes one Puffin file with a deletion vector for each target, of all its deleted positions.
pub(super) async fn write_vectors(
    folder: &TableFolder,
    relative: &str,
    vectors: &[(&ContentFile, RoaringTreemap)],
    at: Timestamp,
) -> Result<Vec<ContentFile>, DemoError> {
    let location = folder.locate(relative);
    let failed = |error: &dyn std::error::Error| DemoError::write(&location, error);
    let output = folder.output(relative)?;
    let mut writer = PuffinWriter::new(&output, HashMap::new(), false).await.map_err(|error| failed(&error))?;
    let mut files = Vec::new();
    let mut offset = PUFFIN_HEAD;
    for (target, deleted) in vectors {
        let data = frame(deleted).map_err(|error| failed(&error))?;
        let length = data.len() as u64;
        let blob = Blob::builder()
            .r#type(DELETION_VECTOR_V1.to_owned())
            // The row position column, and -1 as the spec asks: the vector is older than its snapshot's numbers.
            .fields(vec![2_147_483_645])
            .snapshot_id(-1)
            .sequence_number(-1)
            .data(data)
            .properties(HashMap::from([
                ("referenced-data-file".to_owned(), target.location.clone()),
                ("cardinality".to_owned(), deleted.len().to_string()),
            ]))
            .build();
        writer.add(blob, CompressionCodec::None).await.map_err(|error| failed(&error))?;
        files.push(ContentFile {
            location: location.clone(),
            size: 0,
            records: deleted.len(),
            holds: Holds::Vector { target: target.location.clone(), offset, length },
            day: target.day,
            first_row_id: None,
        });
        offset += length;
    }
    writer.close().await.map_err(|error| failed(&error))?;
    let size = folder.settle(relative, at).await?;
    Ok(files.into_iter().map(|file| ContentFile { size, ..file }).collect())
}

/// The blob of a deletion vector: length, magic, bitmap, CRC.
fn frame(deleted: &RoaringTreemap) -> std::io::Result<Vec<u8>> {
    let mut blob = vec![0; VECTOR_HEAD];
    blob[4..].copy_from_slice(&VECTOR_MAGIC);
    deleted.serialize_into(&mut blob)?;
    let length = u32::try_from(blob.len() - 4).map_err(std::io::Error::other)?;
    blob[..4].copy_from_slice(&length.to_be_bytes());
    let crc = crc32fast::hash(&blob[4..]);
    blob.extend(crc.to_be_bytes());
    Ok(blob)
}

fn parquet(batch: &RecordBatch) -> Result<Vec<u8>, parquet::errors::ParquetError> {
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
    writer.write(batch)?;
    writer.into_inner()
}
