//! Metadata files that lie in a table's folders and that neither its catalog nor its log names.
//!
//! They tell whether the folder is another table's too (safety rule 6), and what a commit that is not the table's
//! state, not yet or not any more, needs of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use uuid::Uuid;

use super::manifests::Unreadable;
use crate::catalog::LoadedTable;
use crate::catalog::metadata::{self, MetadataError};
use crate::model::{Age, LocationRules, ObjectFacts, TableState, Timestamp};
use crate::storage::{Storage, StorageErrorKind};

/// Read at once. Some have a hundred megabytes.
const READS_IN_FLIGHT: usize = 8;

/// A commit whose metadata file is younger may still become the table's state, or be wanted back.
const PROTECTS_FOR: Age = Age::days(7);

/// What the loose metadata files of a table tell.
#[derive(Debug, Default)]
pub struct Loose {
    /// Of other tables, with their uuids.
    pub foreign: Vec<(String, Uuid)>,
    /// Not understood, or no table's, with the reason.
    pub unknown: Vec<(String, String)>,
    /// What these reach counts as referenced.
    pub protecting: Vec<LoadedTable>,
    /// Of this table, but of another line than its log's: somebody restored an earlier state, or two catalogs write.
    pub forked: Vec<String>,
    /// The same where the file is old, so that what it reaches is not protected.
    pub forked_before: Vec<String>,
}

/// Reads the metadata files that the table's state and log do not name. `now` is for their ages.
pub async fn read(
    storage: &Storage,
    files: &[(String, ObjectFacts)],
    table: &LoadedTable,
    now: Timestamp,
) -> Result<Loose, Unreadable> {
    let rules = storage.rules();
    let known = known(table, rules);
    let files: Vec<&(String, ObjectFacts)> = files.iter().filter(|(location, _)| !known.contains(location)).collect();
    // By number: a closure over references would keep callers from being spawned.
    let mut read = stream::iter(0..files.len()).map(|at| one(storage, &files[at].0).boxed()).buffered(READS_IN_FLIGHT);
    let mut loose = Loose::default();
    for (location, facts) in &files {
        // One by one: most of them are only looked at, and some are large.
        let Some(told) = read.next().await else { break };
        match told? {
            // It was deleted since it was listed.
            None => {}
            Some(Told::Unknown(reason)) => loose.unknown.push((location.clone(), reason)),
            Some(Told::Of(uuid, _)) if Some(uuid) != table.state.uuid => loose.foreign.push((location.clone(), uuid)),
            Some(Told::Of(_, read)) => ours(table, location, facts, read, (rules, &known, now), &mut loose)?,
        }
    }
    Ok(loose)
}

/// The canonical locations of the table's own metadata files.
fn known(table: &LoadedTable, rules: &LocationRules) -> BTreeSet<String> {
    let logged = table.state.metadata_log.iter().map(|entry| entry.location.as_str());
    let all = logged.chain([table.metadata_location.as_str()]);
    all.filter_map(|location| rules.canonical(location).ok().map(std::borrow::Cow::into_owned)).collect()
}

fn ours(
    table: &LoadedTable,
    location: &str,
    facts: &ObjectFacts,
    read: Result<(bytes::Bytes, TableState), MetadataError>,
    (rules, known, now): (&LocationRules, &BTreeSet<String>, Timestamp),
    loose: &mut Loose,
) -> Result<(), Unreadable> {
    // Of unknown age is young.
    let is_young = facts.modified.is_none_or(|modified| now.since(modified) < PROTECTS_FOR);
    let (metadata, state) = match read {
        Ok(read) => read,
        Err(error) if is_young => {
            let reason = format!("{error}; it is the table's own and young, and what it needs cannot be told");
            return Err(Unreadable { location: location.to_owned(), reason });
        }
        Err(error) => {
            loose.unknown.push((location.to_owned(), without(&error.to_string(), location)));
            return Ok(());
        }
    };
    let oldest = table.state.metadata_log.first();
    // An earlier one fell off the log.
    if oldest.is_some_and(|oldest| state.last_updated < oldest.at) {
        return Ok(());
    }
    if let (Some(oldest), Some(before)) = (oldest, state.metadata_log.last()) {
        let is_known = rules.canonical(&before.location).is_ok_and(|before| known.contains(&*before));
        if !is_known && before.at >= oldest.at {
            // The line of another catalog that nobody has written for a week is a table all the same.
            let forked = if is_young { &mut loose.forked } else { &mut loose.forked_before };
            forked.push(location.to_owned());
        }
    }
    if !is_young {
        return Ok(());
    }
    loose.protecting.push(LoadedTable {
        name: table.name.clone(),
        metadata_location: location.to_owned(),
        metadata,
        state: Arc::new(state),
        storage: table.storage.clone(),
    });
    Ok(())
}

enum Told {
    /// A table's, by its uuid; perhaps not to be understood further.
    Of(Uuid, Result<(bytes::Bytes, TableState), MetadataError>),
    Unknown(String),
}

#[derive(Deserialize)]
struct Identity {
    #[serde(rename = "table-uuid")]
    uuid: Option<Uuid>,
}

async fn one(storage: &Storage, location: &str) -> Result<Option<Told>, Unreadable> {
    let told = match metadata::read(storage, location).await {
        Ok((metadata, state)) => match state.uuid {
            Some(uuid) => Told::Of(uuid, Ok((metadata, state))),
            None => Told::Unknown("it has no table-uuid".to_owned()),
        },
        Err(MetadataError::Storage(error)) if error.kind == StorageErrorKind::NotFound => return Ok(None),
        Err(MetadataError::Storage(error)) if error.kind == StorageErrorKind::Unrepresentable => {
            Told::Unknown(error.reason)
        }
        // Whose it is cannot be told.
        Err(MetadataError::Storage(error)) => {
            return Err(Unreadable { location: error.location, reason: error.reason });
        }
        Err(error) => match uuid_of(storage, location).await {
            Some(uuid) => Told::Of(uuid, Err(error)),
            None => Told::Unknown(without(&error.to_string(), location)),
        },
    };
    Ok(Some(told))
}

/// The error's text without the name that stands beside it already.
fn without(error: &str, location: &str) -> String {
    error.strip_prefix(location).map_or(error, |rest| rest.trim_start_matches(": ")).to_owned()
}

/// The uuid in a metadata file of which no more can be understood: a later format's, perhaps.
async fn uuid_of(storage: &Storage, location: &str) -> Option<Uuid> {
    let json = metadata::read_json(storage, location).await.ok()?;
    serde_json::from_slice::<Identity>(&json).ok()?.uuid
}
