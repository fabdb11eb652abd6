//! When refs were created, as far as the logged metadata files and our own sightings tell.
//!
//! The files are read backwards, the newest first, and only as far as needed. A file that cannot be read ends
//! the reading: what it does not tell can only make a ref younger, and so stay longer. Nothing here decides
//! anything.

use std::collections::BTreeMap;

use crate::catalog::{LoadedTable, metadata};
use crate::model::lineage::Lineage;
use crate::model::{Age, Creation, RefName, Sighting, TableState, Timestamp};
use crate::storage::Storage;

/// What the log tells of a ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Logged {
    /// It has been there since this file was made current, at least.
    since: Timestamp,
    /// It was not there before.
    is_start: bool,
}

/// When each of these refs was created, at the latest. `limits` has the ages from which it does not matter how
/// much older a ref is.
///
/// That is the oldest logged file since which the ref has been there without a break, or its first sighting if
/// that is earlier; where the log shows that it was not there before, the log counts alone. Where there is no log
/// to read, the first sighting counts.
pub async fn created(
    storage: &Storage,
    current: &LoadedTable,
    limits: &BTreeMap<RefName, Age>,
    seen: &BTreeMap<RefName, Sighting>,
    now: Timestamp,
) -> BTreeMap<RefName, Creation> {
    let logged = logged(storage, current, limits, now).await;
    let of = |name: &RefName| {
        let head = current.state.refs.get(name)?.snapshot;
        let seen = seen.get(name).filter(|sighting| sighting.head == head).map(|sighting| sighting.first_seen);
        let at = match (logged.get(name), seen) {
            (Some(Logged { since, is_start: true }), _) | (Some(Logged { since, .. }), None) => *since,
            (Some(Logged { since, .. }), Some(seen)) => seen.min(*since),
            (None, seen) => seen?,
        };
        Some((name.clone(), Creation { head, at }))
    };
    limits.keys().filter_map(of).collect()
}

async fn logged(
    storage: &Storage,
    current: &LoadedTable,
    limits: &BTreeMap<RefName, Age>,
    now: Timestamp,
) -> BTreeMap<RefName, Logged> {
    let mut told = BTreeMap::new();
    let mut open: Vec<(&RefName, Age)> = limits.iter().map(|(name, limit)| (name, *limit)).collect();
    let mut newer: (Timestamp, Option<TableState>) = (current.state.last_updated, None);
    for entry in current.state.metadata_log.iter().rev() {
        if open.is_empty() {
            break;
        }
        let Ok((_, older)) = metadata::read(storage, &entry.location).await else { break };
        if older.uuid != current.state.uuid {
            break;
        }
        let after = newer.1.as_ref().unwrap_or(&current.state);
        let lineage = Lineage::new(&after.snapshots);
        // Of two times of one file the later one: it can only make a ref younger.
        let at = entry.at.max(older.last_updated);
        open.retain(|(name, limit)| {
            let is_same = match (older.refs.get(*name), after.refs.get(*name)) {
                (Some(old), Some(new)) => old.kind == new.kind && lineage.descends(new.snapshot, old.snapshot),
                _ => false,
            };
            let since = if is_same { at } else { newer.0 };
            told.insert((*name).clone(), Logged { since, is_start: !is_same });
            is_same && now.since(since) <= *limit
        });
        newer = (at, Some(older));
    }
    told
}

#[cfg(test)]
#[path = "created_tests.rs"]
mod tests;
