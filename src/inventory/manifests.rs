//! Manifest lists and manifests, of formats 1, 2 and 3.
//!
//! The format is told from the file's own schema, as a table of format 2 can still have files of format 1.
//! Columns are found by field id. Avro has no checksum, so the length and the counts in the manifest list are
//! what proves that a manifest was read whole: a difference makes it unreadable (safety rule 2).

use super::avro::{self, Broken, Column, Flaw, Row, Take};
use crate::model::{Content, SnapshotId};
use crate::state::Retained;

/// A manifest, as its manifest list tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestRef {
    /// Where it is.
    pub location: String,
    /// Its size in bytes; 0 if unknown (a manifest of format 1 that the snapshot names itself).
    pub length: u64,
    /// Which files it lists.
    pub content: ManifestContent,
    /// The snapshot that added it.
    pub added_snapshot: Option<SnapshotId>,
    /// When it was added; 0 in format 1.
    pub sequence_number: i64,
    /// How many entries it has; unknown if one of the three is null, which format 1 allows.
    pub counts: Option<ManifestCounts>,
    /// Whether reading it takes a key, which we have not.
    pub is_encrypted: bool,
}

impl ManifestRef {
    /// As a mark list has it: read at this proof, need not be read at the next.
    pub fn retained(&self) -> Retained {
        Retained { location: self.location.clone(), length: self.length }
    }
}

/// Which files a manifest lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManifestContent {
    /// Data files.
    Data,
    /// Delete files.
    Deletes,
}

/// Entries of a manifest by status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ManifestCounts {
    /// Added by the manifest's snapshot.
    pub added: u64,
    /// Added by earlier snapshots.
    pub existing: u64,
    /// Removed by the manifest's snapshot; these hold nothing.
    pub deleted: u64,
}

/// What an entry says of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// In the table since an earlier snapshot.
    Existing,
    /// In the table since this snapshot.
    Added,
    /// No longer in the table since this snapshot; holds nothing.
    Deleted,
}

/// One entry of a manifest, borrowed from the reader's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What it says of the file.
    pub status: Status,
    /// The snapshot that added or deleted the file; where the entry has none, the one that added the manifest.
    pub snapshot: Option<SnapshotId>,
    /// What the file holds.
    pub content: Content,
    /// Where the file is.
    pub location: &'a str,
    /// The file's bytes, as the writer had it. All entries of one Puffin file have the whole file's.
    pub size: u64,
    /// Its rows, or the positions of a deletion vector.
    pub records: u64,
    /// Where in a Puffin file the deletion vector begins.
    pub content_offset: Option<i64>,
    /// The deletion vector's bytes.
    pub content_size: Option<i64>,
    /// The one data file that a deletion vector or position delete file is about.
    pub referenced_data_file: Option<&'a str>,
}

/// A manifest list or manifest that cannot be read whole and certain. Nothing that was read of it counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {reason}")]
pub struct Unreadable {
    /// The file.
    pub location: String,
    /// What is wrong, and where in the file.
    pub reason: String,
}

impl Unreadable {
    fn new(location: &str, reason: impl Into<String>) -> Self {
        Self { location: location.to_owned(), reason: reason.into() }
    }
}

/// Columns of a manifest list: <https://iceberg.apache.org/spec/#manifest-lists>.
mod list {
    use super::{Column, Take};

    pub(super) const LENGTH: usize = 0;
    pub(super) const CONTENT: usize = 1;
    pub(super) const SEQUENCE_NUMBER: usize = 2;
    pub(super) const ADDED_SNAPSHOT: usize = 3;
    pub(super) const ADDED: usize = 4;
    pub(super) const EXISTING: usize = 5;
    pub(super) const DELETED: usize = 6;
    pub(super) const LOCATION: usize = 0;
    pub(super) const KEY_METADATA: usize = 1;

    /// The counts had other names when there were data files only.
    pub(super) const COLUMNS: &[Column] = &[
        column(500, &["manifest_path"], true, Take::Text(LOCATION)),
        column(501, &["manifest_length"], true, Take::Number(LENGTH)),
        column(517, &["content"], false, Take::Number(CONTENT)),
        column(515, &["sequence_number"], false, Take::Number(SEQUENCE_NUMBER)),
        column(503, &["added_snapshot_id"], false, Take::Number(ADDED_SNAPSHOT)),
        column(504, &["added_files_count", "added_data_files_count"], false, Take::Number(ADDED)),
        column(505, &["existing_files_count", "existing_data_files_count"], false, Take::Number(EXISTING)),
        column(506, &["deleted_files_count", "deleted_data_files_count"], false, Take::Number(DELETED)),
        column(519, &["key_metadata"], false, Take::Text(KEY_METADATA)),
    ];

    const fn column(id: i64, names: &'static [&'static str], is_required: bool, take: Take) -> Column {
        Column { id, names, is_required, take }
    }
}

/// Columns of a manifest: <https://iceberg.apache.org/spec/#manifests>.
mod entry {
    use super::{Column, Take};

    pub(super) const STATUS: usize = 0;
    pub(super) const SNAPSHOT: usize = 1;
    pub(super) const CONTENT: usize = 2;
    pub(super) const RECORDS: usize = 3;
    pub(super) const SIZE: usize = 4;
    pub(super) const CONTENT_OFFSET: usize = 5;
    pub(super) const CONTENT_SIZE: usize = 6;
    pub(super) const LOCATION: usize = 0;
    pub(super) const REFERENCED_DATA_FILE: usize = 1;

    pub(super) const COLUMNS: &[Column] = &[
        column(0, &["status"], true, Take::Number(STATUS)),
        column(1, &["snapshot_id"], false, Take::Number(SNAPSHOT)),
        column(2, &["data_file"], true, Take::Record(DATA_FILE)),
    ];
    const DATA_FILE: &[Column] = &[
        column(134, &["content"], false, Take::Number(CONTENT)),
        column(100, &["file_path"], true, Take::Text(LOCATION)),
        column(103, &["record_count"], true, Take::Number(RECORDS)),
        column(104, &["file_size_in_bytes"], true, Take::Number(SIZE)),
        column(143, &["referenced_data_file"], false, Take::Text(REFERENCED_DATA_FILE)),
        column(144, &["content_offset"], false, Take::Number(CONTENT_OFFSET)),
        column(145, &["content_size_in_bytes"], false, Take::Number(CONTENT_SIZE)),
    ];

    const fn column(id: i64, names: &'static [&'static str], is_required: bool, take: Take) -> Column {
        Column { id, names, is_required, take }
    }
}

/// The manifests that a manifest list names, in its order.
///
/// # Errors
/// If the file is not a whole manifest list.
pub fn read_manifest_list(bytes: &[u8], location: &str) -> Result<Vec<ManifestRef>, Unreadable> {
    let mut manifests = Vec::new();
    avro::read_rows(bytes, list::COLUMNS, |row| {
        manifests.push(manifest_ref(row)?);
        Ok(())
    })
    .map_err(|broken| unreadable(location, "manifest list", &broken))?;
    Ok(manifests)
}

fn manifest_ref(row: &Row<'_>) -> Result<ManifestRef, Flaw> {
    let length = match row.required_number(list::LENGTH)? {
        length if length > 0 => length.unsigned_abs(),
        _ => return Err(Flaw::ManifestLength),
    };
    // Format 1 has data files only, and no column for it.
    let content = match row.number(list::CONTENT) {
        None | Some(0) => ManifestContent::Data,
        Some(1) => ManifestContent::Deletes,
        Some(_) => return Err(Flaw::Content),
    };
    let count = |place| row.number(place).map(|count| u64::try_from(count).map_err(|_| Flaw::Negative)).transpose();
    let counts = match (count(list::ADDED)?, count(list::EXISTING)?, count(list::DELETED)?) {
        (Some(added), Some(existing), Some(deleted)) => Some(ManifestCounts { added, existing, deleted }),
        _ => None,
    };
    Ok(ManifestRef {
        location: row.location(list::LOCATION)?.to_owned(),
        length,
        content,
        added_snapshot: row.number(list::ADDED_SNAPSHOT).map(SnapshotId),
        sequence_number: row.number(list::SEQUENCE_NUMBER).unwrap_or(0),
        counts,
        // Some writers have no bytes where others have null.
        is_encrypted: row.bytes(list::KEY_METADATA).is_some_and(|key| !key.is_empty()),
    })
}

/// Gives every entry of a manifest to `each`, deleted ones too, and returns how many there are by status. The
/// file's length and counts are compared with what the manifest list said, where it did.
///
/// # Errors
/// If the file is not a whole manifest, or not the one that the manifest list names. `each` may have seen
/// entries by then: they are to be dropped, as a damaged file can hold wrong ones.
pub fn read_manifest(
    bytes: &[u8],
    manifest: &ManifestRef,
    mut each: impl FnMut(Entry<'_>),
) -> Result<ManifestCounts, Unreadable> {
    let location = &manifest.location;
    if manifest.is_encrypted {
        return Err(Unreadable::new(location, "the manifest is encrypted; encrypted tables are not supported"));
    }
    if manifest.length > 0 && manifest.length != bytes.len() as u64 {
        let reason = format!("the manifest has {} bytes, but its manifest list says {}", bytes.len(), manifest.length);
        return Err(Unreadable::new(location, reason));
    }
    let mut counts = ManifestCounts::default();
    avro::read_rows(bytes, entry::COLUMNS, |row| {
        let entry = manifest_entry(row, manifest.added_snapshot)?;
        *match entry.status {
            Status::Added => &mut counts.added,
            Status::Existing => &mut counts.existing,
            Status::Deleted => &mut counts.deleted,
        } += 1;
        each(entry);
        Ok(())
    })
    .map_err(|broken| unreadable(location, "manifest", &broken))?;
    match manifest.counts {
        Some(expected) if expected != counts => Err(Unreadable::new(
            location,
            format!(
                "the manifest has {} added, {} existing and {} deleted entries, but its manifest list says {}, {} and {}",
                counts.added, counts.existing, counts.deleted, expected.added, expected.existing, expected.deleted
            ),
        )),
        _ => Ok(counts),
    }
}

fn manifest_entry<'a>(row: &Row<'a>, added_snapshot: Option<SnapshotId>) -> Result<Entry<'a>, Flaw> {
    Ok(Entry {
        status: match row.required_number(entry::STATUS)? {
            0 => Status::Existing,
            1 => Status::Added,
            2 => Status::Deleted,
            _ => return Err(Flaw::Status),
        },
        snapshot: row.number(entry::SNAPSHOT).map(SnapshotId).or(added_snapshot),
        // Format 1 has data files only, and no column for it.
        content: match row.number(entry::CONTENT) {
            None | Some(0) => Content::Data,
            Some(1) => Content::PositionDeletes,
            Some(2) => Content::EqualityDeletes,
            Some(_) => return Err(Flaw::Content),
        },
        location: row.location(entry::LOCATION)?,
        size: row.size(entry::SIZE)?,
        records: row.size(entry::RECORDS)?,
        content_offset: row.number(entry::CONTENT_OFFSET),
        content_size: row.number(entry::CONTENT_SIZE),
        referenced_data_file: row.text(entry::REFERENCED_DATA_FILE)?,
    })
}

fn unreadable(location: &str, kind: &str, broken: &Broken) -> Unreadable {
    Unreadable::new(location, format!("the {kind} cannot be read: {broken}"))
}
