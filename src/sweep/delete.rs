//! Deleting what the second proof let go, group by group.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::Marked;
use super::proof::Proof;
use crate::apply::Work;
use crate::clock::Clock;
use crate::error::Error;
use crate::failpoint;
use crate::model::{ObjectFacts, TableName, Timestamp};
use crate::plan::KeptFile;
use crate::report::Because;
use crate::state::{Entry, MarkList};
use crate::storage::{Deleted, StorageError, StorageErrorKind};

/// Objects that are asked for one by one; of a longer list the listing tells (safety rule 17).
const ASKED: usize = 1000;

/// Objects that are deleted after one look at the lease, the holds and the proof, at most: several requests' worth, so
/// that they can go side by side.
const GROUP: usize = 10_000;

/// Objects in the first group. Later ones are larger as long as the store is fast.
const FIRST_GROUP: usize = 2_000;

/// A group that was deleted faster than this may be twice as large next time; one that took four times as long, half.
const FAST: Duration = Duration::from_secs(5);

/// Asking what objects are ends after this time: the rest is of the next group.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// How long a store may take to say what one object is.
const LOOK_EACH: Duration = Duration::from_secs(30);

/// What a store said that an object is holds for so long, in boot time. A store that hangs must not delete on a proof
/// that is long past: what is not deleted by then keeps its mark.
const LOOK_HOLDS_MS: u64 = 60_000;

/// With less than this left, what objects are is asked again.
const LEAST_MS: u64 = 10_000;

/// How often, without a delete.
const LOOKS: u32 = 3;

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
    let mut rest = VecDeque::from(doomed);
    let (mut most, mut looks) = (FIRST_GROUP, 0);
    while let Some(kind) = rest.front().map(|marked| marked.entry.kind) {
        let of_kind = rest.iter().take(most).take_while(|marked| marked.entry.kind == kind).count();
        let group: Vec<Marked> = rest.drain(..of_kind).collect();
        let looked_at = Clock::boot_ms();
        let (present, not_asked) = identified(work, list, (group, listed.as_ref()), told, left).await;
        put_back(&mut rest, not_asked);
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
        let within = LOOK_HOLDS_MS.saturating_sub(Clock::boot_ms().saturating_sub(looked_at));
        looks += 1;
        if within < LEAST_MS && looks < LOOKS {
            // The proof had to be renewed, and that took its time.
            put_back(&mut rest, present.into_iter().map(|(marked, _)| marked));
            continue;
        }
        looks = 0;
        let sizes: HashMap<String, u64> =
            present.iter().map(|(marked, size)| (marked.entry.location.clone(), *size)).collect();
        let present = present.into_iter().map(|(marked, _)| marked).collect();
        let (group, spared) =
            proof.sort(present, &by_hand, work.hands.config.expire.outside_location, work.hands.storage.rules());
        for (marked, because) in spared {
            if because == Because::Kept(KeptFile::ByHand) {
                left.push(marked.entry.clone());
            }
            told.push((marked.entry.location, because));
        }
        let began = Instant::now();
        one_group(work, group, Duration::from_millis(within), &sizes, told, left, &mut done).await;
        most = next_most(most, began.elapsed());
        failpoint::pass("mid-sweep").await;
    }
    done
}

/// In their order, before all others.
fn put_back(rest: &mut VecDeque<Marked>, marked: impl IntoIterator<Item = Marked, IntoIter: DoubleEndedIterator>) {
    marked.into_iter().rev().for_each(|marked| rest.push_front(marked));
}

fn next_most(most: usize, took: Duration) -> usize {
    if took < FAST {
        (most * 2).min(GROUP)
    } else if took > FAST * 4 {
        (most / 2).max(FIRST_GROUP / 2)
    } else {
        most
    }
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

/// Asks the store what each object is now: those that are still what was marked, with their sizes; and those that were
/// not asked for in time.
async fn identified(
    work: &Work<'_>,
    list: &MarkList,
    (group, listed): (Vec<Marked>, Option<&HashMap<String, ObjectFacts>>),
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
) -> (Vec<(Marked, u64)>, Vec<Marked>) {
    let storage = &work.storage;
    if let Some(listed) = listed {
        return (as_listed(list, group, listed, told), Vec::new());
    }
    let end = Instant::now() + LOOK_WITHIN;
    let locations: Vec<String> = group.iter().map(|marked| marked.location.raw().to_owned()).collect();
    let mut answers = stream::iter(locations)
        .map(|location| async move {
            let answer = timeout(LOOK_EACH, storage.head(&location)).await;
            answer.unwrap_or_else(|_| Err(no_answer(location)))
        })
        .buffered(storage.concurrency());
    let mut asked: Vec<Result<ObjectFacts, StorageError>> = Vec::with_capacity(group.len());
    loop {
        // At least one, so that it comes to an end.
        let answer = match asked.len() {
            0 => Ok(answers.next().await),
            _ => timeout_at(end, answers.next()).await,
        };
        let Ok(Some(answer)) = answer else { break };
        asked.push(answer);
    }
    drop(answers);
    let mut present = Vec::new();
    let mut group = group.into_iter();
    for (marked, facts) in group.by_ref().zip(asked) {
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
    (present, group.collect())
}

/// The same of a long list, by the listing that the second proof began with.
fn as_listed(
    list: &MarkList,
    group: Vec<Marked>,
    listed: &HashMap<String, ObjectFacts>,
    told: &mut Vec<(String, Because)>,
) -> Vec<(Marked, u64)> {
    let mut present = Vec::new();
    for marked in group {
        match listed.get(marked.location.canonical()) {
            Some(facts) if is_same(&marked.entry, facts, list.created_at) => present.push((marked, facts.size)),
            Some(_) => told.push((marked.entry.location, Because::Changed)),
            None => told.push((marked.entry.location, Because::AlreadyGone)),
        }
    }
    present
}

fn no_answer(location: String) -> StorageError {
    StorageError {
        location,
        kind: StorageErrorKind::Unavailable,
        reason: format!("the store did not say in {} s what it is", LOOK_EACH.as_secs()),
    }
}

async fn one_group(
    work: &Work<'_>,
    group: Vec<Marked>,
    within: Duration,
    sizes: &HashMap<String, u64>,
    told: &mut Vec<(String, Because)>,
    left: &mut Vec<Entry>,
    done: &mut Done,
) {
    let locations = group.iter().map(|marked| marked.location.clone()).collect();
    let outcomes = work.storage.delete(locations, within).await;
    for (marked, (_, outcome)) in group.into_iter().zip(outcomes) {
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
        Some(then) => then.size == now.size && tag(then) == tag(now) && is_same_time(then.modified, now.modified),
        None => now.modified.is_some_and(|modified| modified <= marked_at),
    }
}

/// Azure lists tags without the quotes that it answers for one object.
fn tag(of: &ObjectFacts) -> Option<&str> {
    of.etag.as_deref().map(|tag| tag.trim_matches('"'))
}

/// S3 tells the same time to the millisecond where it lists, and to the second where it is asked for one object. So where
/// one side has whole seconds, seconds are compared.
fn is_same_time(then: Option<Timestamp>, now: Option<Timestamp>) -> bool {
    let is_whole = |time: Timestamp| time.0.rem_euclid(1000) == 0;
    match (then, now) {
        (Some(then), Some(now)) if is_whole(then) || is_whole(now) => then.0.div_euclid(1000) == now.0.div_euclid(1000),
        (then, now) => then == now,
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
            (marked(Some(then.clone())), facts(10, Some(100), Some("\"a\"")), true),
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

    #[test]
    fn times_are_compared_in_seconds_where_one_side_tells_no_more() {
        for (then, now, same) in [
            (Some(5000), Some(5000), true),
            (Some(5789), Some(5000), true),
            (Some(5000), Some(5789), true),
            (Some(5789), Some(5789), true),
            (Some(5789), Some(5788), false),
            (Some(5789), Some(6000), false),
            (Some(5000), Some(4999), false),
            (Some(5000), Some(6000), false),
            (Some(5000), None, false),
            (None, Some(5000), false),
            (None, None, true),
        ] {
            assert_eq!(is_same_time(then.map(Timestamp), now.map(Timestamp)), same, "{then:?} {now:?}");
        }
    }

    #[test]
    fn a_group_is_as_large_as_the_store_is_fast() {
        let mut most = FIRST_GROUP;
        (0..9).for_each(|_| most = next_most(most, Duration::from_secs(1)));
        assert_eq!(most, GROUP);
        assert_eq!(next_most(most, FAST * 2), GROUP);
        (0..9).for_each(|_| most = next_most(most, FAST * 5));
        assert_eq!(most, FIRST_GROUP / 2);
    }

    #[test]
    fn what_is_put_back_comes_first_in_its_order() {
        let marked = |name: &str| {
            let location = format!("s3://b/{name}");
            let entry = Entry { kind: FileKind::Data, location: location.clone(), facts: None, recorded_size: None };
            Marked { entry, location: crate::model::LocationRules::default().parse(&location).unwrap() }
        };
        let mut rest = VecDeque::from([marked("c"), marked("d")]);
        put_back(&mut rest, vec![marked("a"), marked("b")]);
        let names: Vec<&str> = rest.iter().map(|marked| marked.location.key()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }
}
