//! Everything that an orphan must not be: all that a table refers to, in whatever way.
//!
//! Both proofs of the orphan job visit it: entries of any status, since a file that a snapshot removed may come back
//! with a rollback; lists, manifests and statistics; logged metadata files; every text in the metadata that is a
//! location, whatever a later version of the format may add; version hints.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::manifests::{ManifestRef, Unreadable};
use super::reach::{Reader, Scope};
use crate::catalog::{LoadedTable, metadata};
use crate::model::{Root, Snapshot, SnapshotId};

/// Visits all that the table refers to, each with whether it must be there: it is a live file of one of the snapshots
/// in `settled`. Entries of manifests that `skip` names are left out. Returns the manifests, those among them.
pub async fn each(
    reader: &Reader,
    table: &LoadedTable,
    settled: &BTreeSet<SnapshotId>,
    skip: impl Fn(&ManifestRef) -> bool,
    mut visit: impl FnMut(&str, bool),
) -> Result<Vec<Arc<ManifestRef>>, Unreadable> {
    let reader = reader.through(&table.storage);
    let state = &table.state;
    visit(&table.metadata_location, false);
    let strings = metadata::each_string(&table.metadata, |text| visit(text, false));
    strings.map_err(|error| Unreadable { location: table.metadata_location.clone(), reason: error.to_string() })?;
    for file in state.statistics.iter().chain(&state.partition_statistics) {
        visit(&file.location, settled.contains(&file.snapshot));
    }
    let (old, new): (Vec<&Snapshot>, Vec<&Snapshot>) =
        state.snapshots.iter().partition(|snapshot| settled.contains(&snapshot.id));
    let mut manifests =
        reader.reach(old, Scope::AnyStatus, &skip, |reached| visit(reached.location, reached.is_live)).await?;
    let read: HashSet<String> = manifests.iter().map(|manifest| manifest.location.clone()).collect();
    let is_known = |manifest: &ManifestRef| read.contains(&manifest.location) || skip(manifest);
    let more = reader.reach(new, Scope::AnyStatus, is_known, |reached| visit(reached.location, false)).await?;
    manifests.extend(more.into_iter().filter(|manifest| !read.contains(&manifest.location)));
    Ok(manifests)
}

/// Where Hadoop's catalog writes down which version is the newest.
pub fn version_hints(roots: &BTreeSet<Root>) -> impl Iterator<Item = String> {
    roots
        .iter()
        .flat_map(|root| ["metadata/version-hint.text", "version-hint.text"].map(|name| format!("{root}{name}")))
}
