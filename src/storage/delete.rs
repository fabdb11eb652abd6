//! Bulk deletes with one outcome per object (safety rule 12). The only caller is `sweep`.
//!
//! Batches of at most a thousand objects of one store are in flight side by side, as many as the store takes
//! (`delete/pace.rs`). `docs/adr/0006-deletes.md` says why those of S3 are not sent by `object_store`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::path::Path;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::signed::Bucket;
use super::{Lent, Loan, Storage, StorageError, StorageErrorKind};
use crate::clock::Clock;
use crate::model::Location;

mod list;
mod other;
mod pace;
mod s3;

pub(super) use pace::Paces;

/// A delete that did what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// The store took the delete.
    Deleted,
    /// There was no such object.
    AlreadyGone,
}

/// S3's limit on keys in one request.
const BATCH: usize = 1000;

/// Single deletes of a batch at once, where a bulk request did not settle a key.
const SINGLE: usize = 16;

/// The objects of one store that are asked for with the same keys.
struct Group {
    way: Result<Way, StorageError>,
    keys: Vec<Key>,
}

/// How they are deleted.
enum Way {
    S3(Arc<Bucket>, Option<Lent>),
    Other(Arc<dyn ObjectStore>, Option<Loan>),
}

/// An object, and its places in the outcomes.
struct Key {
    path: Path,
    places: Vec<usize>,
}

/// What is not done then is not tried any more.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    /// In boot time: `at` stands still while the machine sleeps.
    boot_ms: u64,
}

impl Deadline {
    fn after(within: Duration) -> Self {
        let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        Self { at: Instant::now() + within, boot_ms: Clock::boot_ms().saturating_add(ms) }
    }

    fn is_over(self) -> bool {
        Clock::boot_ms() >= self.boot_ms
    }
}

/// What became of an object.
type Settled = Result<Deleted, Failure>;

/// Why an object was not deleted.
#[derive(Debug, Clone)]
struct Failure {
    kind: StorageErrorKind,
    reason: String,
}

impl Failure {
    fn unavailable(reason: &str) -> Self {
        Self { kind: StorageErrorKind::Unavailable, reason: reason.to_owned() }
    }

    fn denied(reason: &str) -> Self {
        Self { kind: StorageErrorKind::Denied, reason: reason.to_owned() }
    }

    fn too_late(last: Option<&str>) -> Self {
        let last = last.map(|said| format!("; the last answer: {said}")).unwrap_or_default();
        Self::unavailable(&format!("the store took too long; it was not deleted, or the store did not say so{last}"))
    }

    fn of(self, location: &str) -> StorageError {
        StorageError { location: location.to_owned(), kind: self.kind, reason: self.reason }
    }
}

/// A batch, and what was told of its objects so far.
struct Told {
    keys: Vec<Key>,
    settled: Vec<Option<Settled>>,
    /// The last that went wrong.
    last: Option<String>,
}

impl Told {
    fn new(keys: Vec<Key>) -> Self {
        Self { settled: keys.iter().map(|_| None).collect(), keys, last: None }
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn path(&self, at: usize) -> &Path {
        &self.keys[at].path
    }

    fn key(&self, at: usize) -> &str {
        self.path(at).as_ref()
    }

    fn settle(&mut self, at: usize, settled: Settled) {
        self.settled[at] = Some(settled);
    }

    fn fail(&mut self, all: &[usize], failure: &Failure) {
        for at in all {
            self.settle(*at, Err(failure.clone()));
        }
    }

    /// Those of which nothing was told.
    fn open(&self) -> Vec<usize> {
        (0..self.len()).filter(|at| self.settled[*at].is_none()).collect()
    }

    /// Takes lent keys out of what the store said.
    fn redact(&mut self, lent: &Lent) {
        for failure in self.settled.iter_mut().filter_map(|settled| settled.as_mut()?.as_mut().err()) {
            failure.reason = lent.redact(std::mem::take(&mut failure.reason));
        }
        self.last = self.last.take().map(|said| lent.redact(said));
    }
}

impl Storage {
    /// Deletes these objects; every one of them has an outcome, in the order given. What is not done `within` that
    /// time is not tried any more, and has failed. Of one that is named twice the first is told to be deleted.
    pub async fn delete(
        &self,
        locations: Vec<Location>,
        within: Duration,
    ) -> Vec<(Location, Result<Deleted, StorageError>)> {
        let deadline = Deadline::after(within);
        let mut outcomes: Vec<Option<Settled>> = locations.iter().map(|_| None).collect();
        let mut batches: JoinSet<Told> = JoinSet::new();
        for ((of, _), group) in self.groups(&locations, &mut outcomes) {
            let paces = self.paces_of(of);
            let mut keys = group.keys.into_iter().peekable();
            while keys.peek().is_some() {
                let told = Told::new(keys.by_ref().take(BATCH).collect());
                let paces = Arc::clone(&paces);
                match &group.way {
                    Ok(Way::S3(bucket, lent)) => {
                        let (bucket, lent) = (Arc::clone(bucket), lent.clone());
                        batches.spawn(s3::Deleter { bucket, lent, paces, deadline }.delete(told));
                    }
                    Ok(Way::Other(store, loan)) => {
                        let (store, loan) = (Arc::clone(store), loan.clone());
                        batches.spawn(other::Deleter { store, loan, paces, deadline }.delete(told));
                    }
                    Err(error) => {
                        let failure = Failure { kind: error.kind, reason: error.reason.clone() };
                        for place in told.keys.into_iter().flat_map(|key| key.places) {
                            outcomes[place] = Some(Err(failure.clone()));
                        }
                    }
                }
            }
        }
        let mut broken = None;
        while let Some(batch) = batches.join_next().await {
            match batch {
                Ok(Told { keys, settled, last }) => {
                    for (key, settled) in keys.into_iter().zip(settled) {
                        let settled = settled.unwrap_or_else(|| Err(Failure::too_late(last.as_deref())));
                        for (at, place) in key.places.into_iter().enumerate() {
                            let is_again = at > 0 && settled.is_ok();
                            outcomes[place] = Some(if is_again { Ok(Deleted::AlreadyGone) } else { settled.clone() });
                        }
                    }
                }
                Err(error) => broken = Some(error.to_string()),
            }
        }
        // Only those of a batch that broke off have none.
        let reason = format!("the client failed: {}", broken.as_deref().unwrap_or("without a word"));
        let told = locations.into_iter().zip(outcomes).map(|(location, outcome)| {
            let outcome = outcome.unwrap_or_else(|| Err(Failure::unavailable(&reason)));
            let outcome = outcome.map_err(|failure| failure.of(location.raw()));
            (location, outcome)
        });
        told.collect()
    }

    /// By store, and where keys are lent by what they are lent for. What cannot be asked for has failed.
    fn groups<'a>(
        &self,
        locations: &'a [Location],
        outcomes: &mut [Option<Settled>],
    ) -> BTreeMap<(&'a str, Option<String>), Group> {
        let mut groups: BTreeMap<(&str, Option<String>), Group> = BTreeMap::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (place, location) in locations.iter().enumerate() {
            let path = match location.object_path() {
                Ok(path) => path,
                Err(error) => {
                    let error = StorageError::from(error);
                    outcomes[place] = Some(Err(Failure { kind: error.kind, reason: error.reason }));
                    continue;
                }
            };
            let prefix = self.lent_for(location).map(|(_, grant)| grant.prefix.clone());
            let group = groups.entry((location.store(), prefix));
            let group = group.or_insert_with(|| Group { way: self.delete_way(location), keys: Vec::new() });
            let at = *known.entry(location.canonical()).or_insert(group.keys.len());
            match group.keys.get_mut(at) {
                Some(key) => key.places.push(place),
                None => group.keys.push(Key { path, places: vec![place] }),
            }
        }
        groups
    }

    fn delete_way(&self, at: &Location) -> Result<Way, StorageError> {
        if at.scheme() == "s3" && !self.is_brought(at.store()) {
            return Ok(Way::S3(self.bucket(at)?, self.lent_for(at).map(|(lent, _)| lent.clone())));
        }
        let (store, loan) = self.store_of(at)?;
        Ok(Way::Other(store, loan))
    }

    fn paces_of(&self, store: &str) -> Arc<Paces> {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        let paces = paces.entry(store.to_owned()).or_insert_with(|| Arc::new(Paces::new(self.concurrency)));
        Arc::clone(paces)
    }
}

#[cfg(test)]
mod tests;
