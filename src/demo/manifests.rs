//! Manifests and manifest lists of the demo tables, by the Iceberg crate's writers.

use std::sync::Arc;

use iceberg::spec::{
    DataFile, FormatVersion, ManifestContentType, ManifestFile, ManifestListWriter, ManifestWriter,
    ManifestWriterBuilder, PartitionSpec, Schema, UNASSIGNED_SEQUENCE_NUMBER,
};

use crate::model::Timestamp;

use super::DemoError;
use super::content::ContentFile;
use super::folder::TableFolder;

/// A content file in a manifest.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) status: Status,
    pub(super) file: ContentFile,
    /// That added it.
    pub(super) snapshot: i64,
    /// Of the commit that added it; 0 in format 1.
    pub(super) sequence: i64,
}

/// What the manifest's snapshot did to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Existing,
    Added,
    Deleted,
}

/// A manifest, as a manifest list has it, with its entries.
#[derive(Debug, Clone)]
pub(super) struct Manifest {
    pub(super) file: ManifestFile,
    pub(super) entries: Vec<Entry>,
}

impl Manifest {
    /// The entries that a reader of the snapshot sees.
    pub(super) fn live(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.entries.iter().filter(|entry| entry.status != Status::Deleted)
    }
}

/// What all manifests of a table have in common.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) format: FormatVersion,
    pub(super) schema: Arc<Schema>,
    pub(super) spec: PartitionSpec,
}

/// The snapshot that manifests are written for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Commit {
    pub(super) snapshot: i64,
    pub(super) parent: Option<i64>,
    pub(super) sequence: i64,
    pub(super) at: Timestamp,
}

impl Shape {
    /// Writes a manifest of `entries`, which are all data or all deletes. In format 3 a data manifest is
    /// assigned row ids from `next_row_id` on, which moves.
    pub(super) async fn write_manifest(
        &self,
        folder: &TableFolder,
        relative: &str,
        commit: Commit,
        mut entries: Vec<Entry>,
        next_row_id: &mut u64,
    ) -> Result<Manifest, DemoError> {
        let location = folder.locate(relative);
        let failed = |error: &iceberg::Error| DemoError::write(&location, error);
        let is_data = entries.iter().all(|entry| entry.file.is_data());
        let mut writer = self.writer(folder, relative, commit, is_data)?;
        for entry in &entries {
            add(&mut writer, entry, entry.file.data_file()?).map_err(|error| failed(&error))?;
        }
        let mut file = writer.write_manifest_file().await.map_err(|error| failed(&error))?;
        folder.settle(relative, commit.at).await?;
        file.sequence_number = commit.sequence;
        if file.min_sequence_number == UNASSIGNED_SEQUENCE_NUMBER {
            file.min_sequence_number = commit.sequence;
        }
        if self.format == FormatVersion::V3 && is_data {
            file.first_row_id = Some(*next_row_id);
            for entry in entries.iter_mut().filter(|entry| entry.status != Status::Deleted) {
                entry.file.first_row_id.get_or_insert(*next_row_id);
                *next_row_id += entry.file.records;
            }
        }
        Ok(Manifest { file, entries })
    }

    /// Writes the manifest list of a snapshot; returns its location.
    pub(super) async fn write_list(
        &self,
        folder: &TableFolder,
        relative: &str,
        commit: Commit,
        manifests: &[Manifest],
        first_row_id: u64,
    ) -> Result<String, DemoError> {
        let location = folder.locate(relative);
        let failed = |error: &iceberg::Error| DemoError::write(&location, error);
        let output = folder.output(relative)?.writer().await.map_err(|error| failed(&error))?;
        let Commit { snapshot, parent, sequence, at } = commit;
        let mut list = match self.format {
            FormatVersion::V1 => ManifestListWriter::v1(output, snapshot, parent),
            FormatVersion::V2 => ManifestListWriter::v2(output, snapshot, parent, sequence),
            FormatVersion::V3 => ManifestListWriter::v3(output, snapshot, parent, sequence, Some(first_row_id)),
        };
        list.add_manifests(manifests.iter().map(|manifest| manifest.file.clone())).map_err(|error| failed(&error))?;
        list.close().await.map_err(|error| failed(&error))?;
        folder.settle(relative, at).await?;
        Ok(location)
    }

    fn writer(
        &self,
        folder: &TableFolder,
        relative: &str,
        commit: Commit,
        is_data: bool,
    ) -> Result<ManifestWriter, DemoError> {
        let builder = ManifestWriterBuilder::new(
            folder.output(relative)?,
            Some(commit.snapshot),
            Arc::clone(&self.schema),
            self.spec.clone(),
        );
        Ok(match (self.format, is_data) {
            (FormatVersion::V1, _) => builder.build_v1(),
            (FormatVersion::V2, true) => builder.build_v2_data(),
            (FormatVersion::V2, false) => builder.build_v2_deletes(),
            (FormatVersion::V3, true) => builder.build_v3_data(),
            (FormatVersion::V3, false) => builder.build_v3_deletes(),
        })
    }
}

/// Whether a manifest lists deletes.
pub(super) fn is_deletes(manifest: &Manifest) -> bool {
    manifest.file.content == ManifestContentType::Deletes
}

fn add(writer: &mut ManifestWriter, entry: &Entry, file: DataFile) -> Result<(), iceberg::Error> {
    match entry.status {
        // The sequence number is inherited from the manifest list.
        Status::Added => writer.add_file(file, UNASSIGNED_SEQUENCE_NUMBER),
        Status::Existing => writer.add_existing_file(file, entry.snapshot, entry.sequence, Some(entry.sequence)),
        Status::Deleted => writer.add_delete_file(file, entry.sequence, Some(entry.sequence)),
    }
}
