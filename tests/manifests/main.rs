//! Manifests and manifest lists: the same answers as the iceberg crate's reader, and no answer at all from
//! damaged or hostile files.

// Helpers of a test are test code too, which clippy's `allow-*-in-tests` does not see.
#![allow(clippy::unwrap_used, clippy::panic)]
// Writers that can lie turn numbers into bytes as they come.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

mod container;
mod hostile;
mod iceberg_crate;
mod rows;

use icewarden::inventory::manifests::{ManifestCounts, ManifestRef, Unreadable, read_manifest};
use icewarden::model::{Content, SnapshotId};

/// An entry that outlives the reader's buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnedEntry {
    status: icewarden::inventory::manifests::Status,
    snapshot: Option<SnapshotId>,
    content: Content,
    location: String,
    size: u64,
    records: u64,
    content_offset: Option<i64>,
    content_size: Option<i64>,
    referenced_data_file: Option<String>,
}

fn read(bytes: &[u8], manifest: &ManifestRef) -> Result<(ManifestCounts, Vec<OwnedEntry>), Unreadable> {
    let mut entries = vec![];
    let counts = read_manifest(bytes, manifest, |entry| {
        entries.push(OwnedEntry {
            status: entry.status,
            snapshot: entry.snapshot,
            content: entry.content,
            location: entry.location.to_owned(),
            size: entry.size,
            records: entry.records,
            content_offset: entry.content_offset,
            content_size: entry.content_size,
            referenced_data_file: entry.referenced_data_file.map(str::to_owned),
        });
    })?;
    assert_eq!(entries.len() as u64, counts.added + counts.existing + counts.deleted);
    Ok((counts, entries))
}
