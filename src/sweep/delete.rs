//! Deleting what the second proof let go, batch by batch.

use futures::stream::{self, StreamExt};

use super::Marked;
use super::proof::Proof;
use crate::apply::Work;
use crate::error::Error;
use crate::failpoint;
use crate::model::{ObjectFacts, Timestamp};
use crate::report::Because;
use crate::state::{Entry, MarkList};
use crate::storage::{Deleted, StorageError, StorageErrorKind};

/// Objects that one request deletes, at most.
const BATCH: usize = 1000;

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
    list: &MarkList,
    doomed: Vec<Marked>,
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
) -> Done {
    let mut done = Done::default();
    let outside = work.hands.config.expire.outside_location;
    let mut rest = doomed.into_iter().peekable();
    while let Some(kind) = rest.peek().map(|marked| marked.entry.kind) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Some(marked) = rest.next_if(|marked| batch.len() < BATCH && marked.entry.kind == kind) {
            batch.push(marked);
        }
        // Everything that may have changed since the batch before is asked again, the proof last.
        let ready = async {
            work.may_go_on(&list.table, "delete").await?;
            proof.renew(work).await?;
            Ok::<_, Error>(work.hands.state.kept().await?)
        };
        let by_hand = match ready.await {
            Ok(by_hand) => by_hand,
            Err(error) => {
                done.untouched = batch.into_iter().chain(rest).map(|marked| marked.entry).collect();
                done.stopped = Some(error);
                return done;
            }
        };
        let (batch, spared) = proof.sort(batch, &by_hand, outside);
        for (marked, because) in spared {
            if because == Because::Kept(crate::plan::KeptFile::ByHand) {
                left.push(marked.entry.clone());
            }
            told.push((marked.entry.location, because));
        }
        one_batch(work, list, batch, told, left, &mut done).await;
        failpoint::pass("mid-sweep").await;
    }
    done
}

async fn one_batch(
    work: &Work<'_>,
    list: &MarkList,
    batch: Vec<Marked>,
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
    done: &mut Done,
) {
    let storage = &work.hands.storage;
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
    let locations = present.iter().map(|(marked, _)| marked.location.clone()).collect();
    let outcomes = storage.delete(locations).await;
    for ((marked, size), (_, outcome)) in present.into_iter().zip(outcomes) {
        match outcome {
            Ok(Deleted::Deleted) => {
                done.objects += 1;
                done.bytes += size;
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
