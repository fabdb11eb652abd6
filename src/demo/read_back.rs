//! Reads every file that a retained snapshot needs: the proof that a clean-up took nothing too much.
//!
//! Manifests are read by the Iceberg crate and not by our own reader, which decided what to delete.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use bytes::Bytes;
use iceberg::spec::{DataFile, DataFileFormat, FormatVersion, Manifest, ManifestList};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;
use roaring::RoaringTreemap;

use crate::model::{ManifestSource, TableState};
use crate::storage::{Storage, StorageError};

use super::content::VECTOR_MAGIC;

/// What was read. Each file counts once, however many snapshots need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Snapshots in the metadata.
    pub snapshots: u64,
    /// Manifest lists, manifests and content files.
    pub files: u64,
    /// Rows of data files; deletes are not taken off.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// The first file that is not as its snapshot needs it.
#[derive(Debug, thiserror::Error)]
#[error("cannot read back {location}: {reason}")]
pub struct ReadBackError {
    /// The file.
    pub location: String,
    /// What is wrong with it.
    pub reason: String,
}

impl From<StorageError> for ReadBackError {
    fn from(error: StorageError) -> Self {
        Self { location: error.location, reason: error.reason }
    }
}

/// Reads all files of all snapshots of a table, whole, and checks lengths and counts.
pub async fn read_back(storage: &Storage, state: &TableState) -> Result<ReadBack, ReadBackError> {
    let mut reader = Reader { storage, counts: ReadBack::default(), puffins: BTreeMap::new(), read: BTreeSet::new() };
    for snapshot in &state.snapshots {
        reader.counts.snapshots += 1;
        match &snapshot.manifests {
            ManifestSource::List(location) => reader.list(location, state.format_version).await?,
            ManifestSource::Inline(manifests) => {
                for location in manifests {
                    reader.manifest(location, None).await?;
                }
            }
        }
    }
    Ok(reader.counts)
}

struct Reader<'a> {
    storage: &'a Storage,
    counts: ReadBack,
    /// Puffin files hold several vectors.
    puffins: BTreeMap<String, Bytes>,
    /// Lists, manifests and content (a vector with its offset) that were read already.
    read: BTreeSet<(String, Option<i64>)>,
}

impl Reader<'_> {
    async fn list(&mut self, location: &str, format: u8) -> Result<(), ReadBackError> {
        if !self.read.insert((location.to_owned(), None)) {
            return Ok(());
        }
        let bytes = self.whole(location, None).await?;
        let format = match format {
            1 => FormatVersion::V1,
            2 => FormatVersion::V2,
            _ => FormatVersion::V3,
        };
        let list = ManifestList::parse_with_version(&bytes, format).map_err(|error| broken(location, &error))?;
        for manifest in list.entries() {
            let length = u64::try_from(manifest.manifest_length).ok();
            self.manifest(&manifest.manifest_path, length).await?;
        }
        Ok(())
    }

    async fn manifest(&mut self, location: &str, length: Option<u64>) -> Result<(), ReadBackError> {
        if !self.read.insert((location.to_owned(), None)) {
            return Ok(());
        }
        let bytes = self.whole(location, length).await?;
        let manifest = Manifest::parse_avro(&bytes).map_err(|error| broken(location, &error))?;
        for entry in manifest.entries().iter().filter(|entry| entry.is_alive()) {
            let file = entry.data_file();
            if self.read.insert((file.file_path().to_owned(), file.content_offset())) {
                self.content(file).await?;
            }
        }
        Ok(())
    }

    async fn content(&mut self, file: &DataFile) -> Result<(), ReadBackError> {
        let location = file.file_path();
        let size = Some(file.file_size_in_bytes());
        let records = match file.file_format() {
            DataFileFormat::Parquet => {
                let bytes = self.whole(location, size).await?;
                let rows = parquet_rows(bytes).map_err(|error| broken(location, &error))?;
                if file.content_type() == iceberg::spec::DataContentType::Data {
                    self.counts.rows += rows;
                }
                rows
            }
            DataFileFormat::Puffin => {
                let puffin = match self.puffins.get(location) {
                    Some(bytes) => bytes.clone(),
                    None => self.whole(location, size).await?,
                };
                self.puffins.insert(location.to_owned(), puffin.clone());
                vector_cardinality(&puffin, file).map_err(|reason| broken(location, &reason))?
            }
            other => return Err(broken(location, &format!("the demo writes no {other} files"))),
        };
        if records == file.record_count() {
            return Ok(());
        }
        Err(broken(location, &format!("it holds {records} records, its manifest says {}", file.record_count())))
    }

    async fn whole(&mut self, location: &str, length: Option<u64>) -> Result<Bytes, ReadBackError> {
        let bytes = self.storage.read(location).await?;
        let size = bytes.len() as u64;
        if let Some(length) = length.filter(|length| *length != size) {
            return Err(broken(location, &format!("it has {size} bytes, its manifest says {length}")));
        }
        self.counts.files += 1;
        self.counts.bytes += size;
        Ok(bytes)
    }
}

/// Decodes all rows of a Parquet file; returns how many there are.
fn parquet_rows(bytes: Bytes) -> Result<u64, ParquetError> {
    let mut rows = 0;
    for batch in ParquetRecordBatchReaderBuilder::try_new(bytes)?.build()? {
        rows += batch?.num_rows() as u64;
    }
    Ok(rows)
}

/// Checks the frame of a deletion vector; returns how many positions it holds.
fn vector_cardinality(puffin: &[u8], file: &DataFile) -> Result<u64, String> {
    let at = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
    let (Some(offset), Some(length)) = (at(file.content_offset()), at(file.content_size_in_bytes())) else {
        return Err("its manifest does not say where the vector is".to_owned());
    };
    let end = offset.checked_add(length).filter(|end| *end <= puffin.len());
    let blob = end.map(|end| &puffin[offset..end]).ok_or("the vector lies beyond its end")?;
    let (Some((head, rest)), Some((_, tail))) = (blob.split_first_chunk::<4>(), blob.split_last_chunk::<4>()) else {
        return Err("the vector is cut short".to_owned());
    };
    let body = rest.get(..rest.len().saturating_sub(4)).unwrap_or_default();
    if u32::from_be_bytes(*head) as usize != body.len() {
        return Err("the vector's length is wrong".to_owned());
    }
    let bitmap = body.strip_prefix(&VECTOR_MAGIC).ok_or("the vector's magic is wrong")?;
    if u32::from_be_bytes(*tail) != crc32fast::hash(body) {
        return Err("the vector's checksum is wrong".to_owned());
    }
    let deleted = RoaringTreemap::deserialize_from(bitmap).map_err(|error| error.to_string())?;
    Ok(deleted.len())
}

fn broken(location: &str, reason: &dyn Display) -> ReadBackError {
    ReadBackError { location: location.to_owned(), reason: reason.to_string() }
}
