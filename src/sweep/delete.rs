//! Deleting what the second proof let go, batch by batch.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::stream::{self, StreamExt};

use super::Marked;
use super::proof::Proof;
use crate::apply::Work;
use crate::error::Error;
use crate::failpoint;
use crate::model::{ObjectFacts, TableName, Timestamp};
use crate::plan::KeptFile;
use crate::report::Because;
use crate::state::{Entry, MarkList};
use crate::storage::{Deleted, StorageError, StorageErrorKind};

/// Objects that one request deletes, at most.
const BATCH: usize = 1000;
/// Objects that are asked for one by one; of a longer list the listing tells (safety rule 17).
const ASKED: usize = 1000;
/// A store that hangs must not delete on a proof that is long past: what is not deleted by then keeps its mark.
const DELETE_WITHIN: Duration = Duration::from_mins(1);

/// What was deleted, and what was not come to.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Not touched, because the sweep was stopped.
    pub(super) untouched: Vec<Entry>,
    /// Why it was stopped.
    pub(super) stopped: Option<Error>,
}

/// Deletes in the order given. Partial failure is data (safety rule 12): nothing but a lost lease, a hold or a
/// proof that cannot be renewed stops it, and then the rest keeps its marks.
pub(super) async fn all(
    work: &mut Work<'_>,
    proof: &mut Proof,
    name: &TableName,
    list: &MarkList,
    (doomed, listed): (Vec<Marked>, Option<HashMap<String, ObjectFacts>>),
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
) -> Done {
    let mut done = Done::default();
    // A list that is not long is asked for one by one, which is the newest that there is to be known.
    let listed = listed.filter(|_| doomed.len() > ASKED);
    let mut rest = doomed.into_iter().peekable();
    while let Some(kind) = rest.peek().map(|marked| marked.entry.kind) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(marked) = rest.next_if(|marked| batch.len() < BATCH && marked.entry.kind == kind) {
            batch.push(marked);
        }
        let present = identified(work, list, (batch, listed.as_ref()), told, left).await;
        // Everything that may have changed is asked last, right before the deletes.
        let by_hand = match ready(work, proof, name, list).await {
            Ok(by_hand) => by_hand,
            Err(error) => {
                let present = present.into_iter().map(|(marked, _)| marked);
                done.untouched = present.chain(rest).map(|marked| marked.entry).collect();
                done.stopped = Some(error);
                return done;
            }
        };
        let sizes: HashMap<String, u64> =
            present.iter().map(|(marked, size)| (marked.entry.location.clone(), *size)).collect();
        let present = present.into_iter().map(|(marked, _)| marked).collect();
        let (batch, spared) =
            proof.sort(present, &by_hand, work.hands.config.expire.outside_location, work.hands.storage.rules());
        for (marked, because) in spared {
            if because == Because::Kept(KeptFile::ByHand) {
                left.push(marked.entry.clone());
            }
            told.push((marked.entry.location, because));
        }
        one_batch(work, batch, &sizes, told, left, &mut done).await;
        failpoint::pass("mid-sweep").await;
    }
    done
}

/// The lease is ours, nobody holds the table, by its name at the mark or now, and the proof holds.
async fn ready(
    work: &mut Work<'_>,
    proof: &mut Proof,
    name: &TableName,
    list: &MarkList,
) -> Result<BTreeSet<String>, Error> {
    proof.renew(work).await?;
    let by_hand = work.kept_by_hand().await?;
    work.may_go_on(&[name, &list.table], "delete").await?;
    Ok(by_hand)
}

/// Asks the store what each object is now: those that are still what was marked, with their sizes.
async fn identified(
    work: &Work<'_>,
    list: &MarkList,
    (batch, listed): (Vec<Marked>, Option<&HashMap<String, ObjectFacts>>),
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
) -> Vec<(Marked, u64)> {
    let storage = &work.storage;
    if let Some(listed) = listed {
        return as_listed(list, batch, listed, told);
    }
    let asked: Vec<(Marked, Result<ObjectFacts, StorageError>)> = stream::iter(batch)
        .map(|marked| async move {
            let facts = storage.head(marked.location.raw()).await;
            (marked, facts)
        })
        .buffered(storage.concurrency())
        .collect()
        .await;
    let mut present = Vec::new();
    for (marked, facts) in asked {
        match facts {
            Ok(facts) if is_same(&marked.entry, &facts, list.created_at) => present.push((marked, facts.size)),
            Ok(_) => told.push((marked.entry.location, Because::Changed)),
            Err(error) if error.kind == StorageErrorKind::NotFound => {
                told.push((marked.entry.location, Because::AlreadyGone));
            }
            Err(error) => {
                told.push((marked.entry.location.clone(), failed(error)));
                left.push(marked.entry);
            }
        }
    }
    present
}

/// The same of a long list, by the listing that the second proof began with.
fn as_listed(
    list: &MarkList,
    batch: Vec<Marked>,
    listed: &HashMap<String, ObjectFacts>,
    told: &mut Vec<(String, Because)>,
) -> Vec<(Marked, u64)> {
    let mut present = Vec::new();
    for marked in batch {
        match listed.get(marked.location.canonical()) {
            Some(facts) if is_same(&marked.entry, facts, list.created_at) => present.push((marked, facts.size)),
            Some(_) => told.push((marked.entry.location, Because::Changed)),
            None => told.push((marked.entry.location, Because::AlreadyGone)),
        }
    }
    present
}

async fn one_batch(
    work: &Work<'_>,
    batch: Vec<Marked>,
    sizes: &HashMap<String, u64>,
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
    done: &mut Done,
) {
    let locations = batch.iter().map(|marked| marked.location.clone()).collect();
    let outcomes = work.storage.delete(locations, DELETE_WITHIN).await;
    for (marked, (_, outcome)) in batch.into_iter().zip(outcomes) {
        match outcome {
            Ok(Deleted::Deleted) => {
                done.objects += 1;
                done.bytes += sizes.get(&marked.entry.location).copied().unwrap_or_default();
            }
            Ok(Deleted::AlreadyGone) => told.push((marked.entry.location, Because::AlreadyGone)),
            Err(error) => {
                told.push((marked.entry.location.clone(), failed(error)));
                left.push(marked.entry);
            }
        }
    }
}

fn failed(error: StorageError) -> Because {
    Because::Failed { kind: error.kind, reason: error.reason }
}

/// Whether the object is still the one that was marked: the same size, time and tag, and not newer than the
/// mark. A mark without them is only tested for the last (safety rules 16 and 17).
fn is_same(marked: &Entry, now: &ObjectFacts, marked_at: Timestamp) -> bool {
    match &marked.facts {
        Some(then) => then == now,
        None => now.modified.is_some_and(|modified| modified <= marked_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FileKind;

    #[test]
    fn only_the_object_that_was_marked_is_the_same() {
        let facts = |size, modified: Option<i64>, etag: Option<&str>| ObjectFacts {
            size,
            modified: modified.map(Timestamp),
            etag: etag.map(str::to_owned),
        };
        let then = facts(10, Some(100), Some("a"));
        let marked = |facts: Option<ObjectFacts>| Entry {
            kind: FileKind::Data,
            location: "s3://b/k".to_owned(),
            facts,
            recorded_size: Some(10),
        };
        for (marked, now, same) in [
            (marked(Some(then.clone())), then.clone(), true),
            (marked(Some(then.clone())), facts(11, Some(100), Some("a")), false),
            (marked(Some(then.clone())), facts(10, Some(101), Some("a")), false),
            (marked(Some(then.clone())), facts(10, Some(100), Some("b")), false),
            (marked(Some(then.clone())), facts(10, None, Some("a")), false),
            (marked(None), facts(10, Some(1000), None), true),
            (marked(None), facts(10, Some(1001), None), false),
            (marked(None), facts(10, None, None), false),
        ] {
            assert_eq!(is_same(&marked, &now, Timestamp(1000)), same, "{marked:?} {now:?}");
        }
    }
}
