//! References that the listing does not match: files that should have been listed, and keys under another authority
//! (safety rules 7 and 11).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use serde_json::json;

use crate::apply::Work;
use crate::catalog::LoadedTable;
use crate::error::Error;
use crate::inventory::keys::Keys;
use crate::inventory::manifests::Unreadable;
use crate::inventory::reach::Reader;
use crate::inventory::referenced;
use crate::inventory::spill::{Sorted, SpillError};
use crate::model::{Fingerprint, ObjectFacts, SnapshotId, TableName};
use crate::state::{FindingKind, Observation, Severity};
use crate::storage::{StorageError, StorageErrorKind};

/// Files that are asked for one by one.
const ASKED: usize = 1000;

/// What became of files that a snapshot needs and that the listing did not have.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// They are there: the listing lies.
    pub(super) unlisted: Vec<String>,
    /// They are not, and nobody has said that they know.
    pub(super) missing: Vec<String>,
}

/// Asks the store for the files with these fingerprints. `settled` are the snapshots that were there before the listing
/// began.
pub(super) async fn check(
    work: &Work<'_>,
    table: &LoadedTable,
    settled: &BTreeSet<SnapshotId>,
    unseen: Vec<Fingerprint>,
) -> Result<Checked, Error> {
    let names = names(work, table, settled, unseen.into_iter().collect()).await?;
    let storage = &work.storage;
    let first: Vec<(&String, &String)> = names.iter().take(ASKED).collect();
    // By number: a closure over references would keep callers from being spawned.
    let asked: Vec<Result<ObjectFacts, StorageError>> = stream::iter(0..first.len())
        .map(|at| storage.head(first[at].1).boxed())
        .buffered(storage.concurrency())
        .collect()
        .await;
    let mut checked = Checked::default();
    for ((name, _), there) in first.into_iter().zip(asked) {
        match there {
            Ok(_) => checked.unlisted.push(name.clone()),
            Err(error) if error.kind == StorageErrorKind::NotFound => {}
            Err(error) => return Err(Unreadable { location: error.location, reason: error.reason }.into()),
        }
    }
    if !checked.unlisted.is_empty() {
        return Ok(checked);
    }
    let missing: Vec<String> = names.into_keys().collect();
    if let Some(first) = missing.first()
        && work.load(&table.name).await?.metadata_location != table.metadata_location
    {
        // An expiry by somebody else, perhaps.
        let reason = "is not there; the table was changed during the run, so run it again".to_owned();
        return Err(Unreadable { location: first.clone(), reason }.into());
    }
    if told(work, &table.name, &missing).await? {
        return Ok(checked);
    }
    checked.missing = missing;
    Ok(checked)
}

/// The files with these fingerprints that can be asked for, by their canonical locations.
async fn names(
    work: &Work<'_>,
    table: &LoadedTable,
    settled: &BTreeSet<SnapshotId>,
    unseen: HashSet<Fingerprint>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut names = BTreeMap::new();
    if unseen.is_empty() {
        return Ok(names);
    }
    let rules = work.hands.storage.rules();
    let reader = Reader::new(work.storage.clone(), 0, Arc::clone(&work.hands.progress));
    let visit = |location: &str, must: bool| {
        let Some(parsed) = rules.parse(location).ok().filter(|_| must) else { return };
        if unseen.contains(&Fingerprint::of(parsed.canonical()))
            && parsed.object_path().is_ok()
            && !parsed.is_ambiguous()
        {
            names.insert(parsed.canonical().to_owned(), location.to_owned());
        }
    };
    referenced::each(&reader, table, settled, |_| false, visit).await?;
    Ok(names)
}

/// Raises the finding, or resolves it. Tells whether somebody has said that they know of all these files.
async fn told(work: &Work<'_>, table: &TableName, missing: &[String]) -> Result<bool, Error> {
    let (state, now) = (&work.hands.state, work.now);
    let Some(first) = missing.first() else {
        state.resolve_kind(FindingKind::MissingFile, table, Some(work.uuid), now).await?;
        return Ok(true);
    };
    let count = missing.len();
    let seen = Observation {
        kind: FindingKind::MissingFile,
        table: table.clone(),
        uuid: Some(work.uuid),
        ref_name: None,
        severity: Severity::Critical,
        numbers: json!({}),
        message: format!("{count} files that a snapshot of {table} needs are not there, such as {first}"),
        advice:
            "restore them, or expire the snapshots that need them; acknowledged, the orphan job goes on without them"
                .to_owned(),
    };
    Ok(state.raise_named(seen, missing, now).boxed().await?)
}

/// Orphans that have the key of something referred to under another authority: two names of one bucket, perhaps.
pub(super) async fn conflicts(
    work: &Work<'_>,
    tables: &[LoadedTable],
    stores: &[String],
    orphans: &mut Sorted,
) -> Result<Vec<(String, String)>, Error> {
    let rules = work.hands.storage.rules();
    let mut keys = Keys::default();
    // In nearly every table all files are in one place; then nothing can be under another.
    if stores.len() < 2 {
        return Ok(Vec::new());
    }
    orphans.each(|entry| {
        keys.add(&entry.location, rules);
        Ok::<_, SpillError>(())
    })?;
    let mut found = BTreeMap::new();
    let reader = Reader::new(work.storage.clone(), 0, Arc::clone(&work.hands.progress));
    let none = BTreeSet::new();
    for table in tables {
        let visit = |location: &str, _| {
            for listed in keys.conflicts(location, rules) {
                found.entry(listed).or_insert_with(|| location.to_owned());
            }
        };
        referenced::each(&reader, table, &none, |_| false, visit).await?;
    }
    Ok(found.into_iter().collect())
}
