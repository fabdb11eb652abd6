//! Folders with Iceberg metadata that no catalogued table owns: what a `DROP TABLE` without `PURGE` leaves.
//!
//! They are reported only. Whether such a table is in a catalog that is not configured here, nobody can tell but the
//! operator.

use std::sync::Arc;

use futures::FutureExt;

use crate::model::file::is_metadata_file;
use crate::model::{Root, Tally, Timestamp};
use crate::storage::{ListProgress, Listed, Storage, StorageError};

/// Folders between the warehouse and a table that are looked into: namespaces of namespaces.
const LEVELS: u32 = 6;

/// A folder with more folders in it than this holds partitions, not tables.
const FOLDERS: usize = 10_000;

/// A table's folder without a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedTable {
    /// Its folder.
    pub folder: Root,
    /// Everything in it.
    pub held: Tally,
    /// Its metadata files.
    pub metadata_files: u64,
    /// When the newest object was written.
    pub last_write: Option<Timestamp>,
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct Walk {
    /// In no order that matters.
    pub dropped: Vec<DroppedTable>,
    /// Folders that hold too many folders, or lie too deep, to be looked into.
    pub left_out: Vec<Root>,
}

/// Walks a warehouse. `known` are the folders of all catalogued tables, those that cannot be loaded among them: what
/// lies in one is its table's. `listed` counts.
pub async fn find(
    storage: &Storage,
    warehouse: &Root,
    known: &[&Root],
    listed: &Arc<ListProgress>,
) -> Result<Walk, StorageError> {
    let mut walk = Walk::default();
    let mut open = vec![(warehouse.clone(), 0)];
    while let Some((folder, level)) = open.pop() {
        if known.iter().any(|root| root.covers(&folder)) {
            continue;
        }
        let inside = storage.folder(&folder).boxed().await?;
        if let Some(metadata) = inside.folders.iter().find(|inner| inner.as_str().ends_with("/metadata/")) {
            let files = storage.folder(metadata).boxed().await?;
            let is_metadata = |listed: &&Listed| is_metadata_file(listed.location());
            let metadata_files = files.objects.iter().filter(is_metadata).count() as u64;
            if metadata_files > 0 {
                walk.dropped.push(measure(storage, folder, known, metadata_files, listed).boxed().await?);
                continue;
            }
        }
        let is_partition =
            |inner: &Root| inner.as_str().trim_end_matches('/').rsplit('/').next().is_some_and(|n| n.contains('='));
        if level >= LEVELS || inside.folders.len() > FOLDERS {
            walk.left_out.push(folder);
            continue;
        }
        open.extend(inside.folders.into_iter().filter(|inner| !is_partition(inner)).map(|inner| (inner, level + 1)));
    }
    walk.dropped.sort_by(|left, right| left.folder.cmp(&right.folder));
    Ok(walk)
}

/// Sums up what lies in a folder, but for what catalogued tables have in it.
async fn measure(
    storage: &Storage,
    folder: Root,
    known: &[&Root],
    metadata_files: u64,
    progress: &Arc<ListProgress>,
) -> Result<DroppedTable, StorageError> {
    let inner: Vec<&&Root> = known.iter().filter(|root| folder.covers(root)).collect();
    let mut dropped = DroppedTable { folder, held: Tally::default(), metadata_files, last_write: None };
    let mut listing = storage.list(&dropped.folder, progress);
    while let Some(batch) = listing.next().await? {
        for object in batch {
            if inner.iter().any(|root| object.location().starts_with(root.as_str())) {
                continue;
            }
            dropped.held.add(object.facts().size);
            dropped.last_write = dropped.last_write.max(object.facts().modified);
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;
    use crate::model::LocationRules;

    #[tokio::test]
    async fn folders_with_metadata_that_no_table_owns_are_found_and_measured() {
        let temporary = tempfile::tempdir().unwrap();
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 4);
        let at = |name: &str| format!("file://{}/wh/{name}", temporary.path().display());
        for name in [
            "db/kept/metadata/1.metadata.json",
            "db/kept/gone-inside/metadata/1.metadata.json",
            "db/gone/metadata/1.metadata.json",
            "db/gone/metadata/2.gz.metadata.json",
            "db/gone/data/day=1/a.parquet",
            "db/gone/inner/data/b.parquet",
            "a/b/c/gone too/metadata/v1.metadata.json",
            "db/hive/day=1/metadata/1.metadata.json",
            "db/no-table/metadata/readme",
            "db/plain/data/c.parquet",
        ] {
            storage.write_new(&at(name), Bytes::from_static(b"xyz")).await.unwrap();
        }
        let root = |name: &str| LocationRules::default().root(&at(name)).unwrap();
        let (kept, inner) = (root("db/kept"), root("db/gone/inner"));
        let walk = find(&storage, &root(""), &[&kept, &inner], &Arc::default()).await.unwrap();
        let told: Vec<_> =
            walk.dropped.iter().map(|of| (of.folder.clone(), of.held.objects, of.metadata_files)).collect();
        assert_eq!(told, [(root("a/b/c/gone too"), 1, 1), (root("db/gone"), 3, 2)]);
        assert!(walk.dropped.iter().all(|of| of.held.bytes == 3 * of.held.objects && of.last_write.is_some()));
        assert_eq!(walk.left_out, []);
    }
}
