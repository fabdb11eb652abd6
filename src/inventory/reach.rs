//! What snapshots reach: manifest lists, manifests, content files, statistics.
//!
//! [`Reader::reach`] is the one function for it: expired minus retained ([`freed`]) and the second proof of
//! the sweep are folds over it. A manifest is read once per run; nothing here decides anything.
//!
//! An unreadable file of a snapshot that stays is an error (safety rule 2). One of a snapshot that goes only
//! costs its candidates: they are left for the orphan job and counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::stream::{self, StreamExt};

use super::keys::Keys;
use super::manifests::{self, ManifestContent, ManifestCounts, ManifestRef, Status, Unreadable};
use crate::catalog::LoadedTable;
use crate::model::{Candidate, FileKind, Fingerprint, ManifestSource, Snapshot, SnapshotId, TableState};
use crate::state::Retained;
use crate::storage::{Storage, StorageError};

/// Manifests decoded at once. Each may take tens of megabytes; more would not be faster, since the work is CPU.
const MANIFESTS_IN_FLIGHT: usize = 8;

/// Which entries of a manifest count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// ADDED and EXISTING: what a reader of the snapshot opens.
    Live,
    /// DELETED too.
    AnyStatus,
}

/// One thing that a snapshot reaches.
#[derive(Debug, Clone, Copy)]
pub struct Reached<'a> {
    /// What it is.
    pub kind: FileKind,
    /// As the table has it.
    pub location: &'a str,
    /// What the manifest or its list says its size is.
    pub recorded_size: Option<u64>,
    /// Whether a reader of the snapshot opens it; entries of files that were removed are not.
    pub is_live: bool,
}

/// Plain counters of what was read, for whoever wants to show them.
#[derive(Debug, Default)]
pub struct Progress {
    wanted: AtomicU64,
    manifests: AtomicU64,
    bytes: AtomicU64,
    entries: AtomicU64,
}

impl Progress {
    /// Manifests read and wanted so far, bytes and entries of those read.
    pub fn read(&self) -> (u64, u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.manifests), of(&self.wanted), of(&self.bytes), of(&self.entries))
    }
}

/// Reads manifest lists and manifests, each once.
#[derive(Debug, Clone)]
pub struct Reader {
    storage: Storage,
    progress: Arc<Progress>,
    known: Arc<Mutex<Known>>,
    decoded: Arc<Mutex<Decoded>>,
}

/// Manifests by number, and the lists that were read: 20,000 lists of 200 manifests each are four million
/// numbers, not four million paths.
#[derive(Debug, Default)]
struct Known {
    manifests: Vec<Arc<ManifestRef>>,
    by_location: HashMap<String, u32>,
    lists: HashMap<String, Arc<[u32]>>,
}

#[derive(Debug)]
struct Decoded {
    files: HashMap<u32, Arc<ManifestFiles>>,
    left: usize,
}

/// The entries of one manifest: all paths in one text.
#[derive(Debug, Default)]
struct ManifestFiles {
    paths: String,
    rows: Vec<FileRow>,
}

#[derive(Debug, Clone, Copy)]
struct FileRow {
    end: usize,
    size: u64,
    kind: FileKind,
    is_live: bool,
}

impl ManifestFiles {
    fn each(&self, scope: Scope, mut visit: impl FnMut(Reached<'_>)) {
        let mut start = 0;
        for row in &self.rows {
            let location = self.paths.get(start..row.end).unwrap_or_default();
            start = row.end;
            if row.is_live || scope == Scope::AnyStatus {
                visit(Reached { kind: row.kind, location, recorded_size: Some(row.size), is_live: row.is_live });
            }
        }
    }

    fn bytes(&self) -> usize {
        self.paths.len() + self.rows.len() * size_of::<FileRow>()
    }
}

impl Reader {
    /// A reader for one run on one table. At most `memory` bytes of decoded manifests are kept, so that a plan
    /// that has to be made again does not read them again.
    pub fn new(storage: Storage, memory: u64, progress: Arc<Progress>) -> Self {
        let left = usize::try_from(memory).unwrap_or(usize::MAX);
        Self {
            storage,
            progress,
            known: Arc::default(),
            decoded: Arc::new(Mutex::new(Decoded { files: HashMap::new(), left })),
        }
    }

    /// One that reads another table's files, with what that table's are read with, and shares what was read.
    #[must_use]
    pub fn through(&self, storage: &Storage) -> Self {
        Self { storage: storage.clone(), ..self.clone() }
    }

    /// Visits everything that these snapshots reach, each manifest once: lists, manifests, entries in `scope`.
    /// Entries of manifests that `skip` names are left out, the manifests themselves are not.
    pub async fn reach(
        &self,
        snapshots: impl IntoIterator<Item = &Snapshot>,
        scope: Scope,
        skip: impl Fn(&ManifestRef) -> bool,
        mut visit: impl FnMut(Reached<'_>),
    ) -> Result<Vec<Arc<ManifestRef>>, Unreadable> {
        let mut all = BTreeSet::new();
        for (snapshot, list) in self.lists(snapshots).await {
            all.extend(list?.iter().copied());
            if let ManifestSource::List(location) = &snapshot.manifests {
                visit(Reached { kind: FileKind::ManifestList, location, recorded_size: None, is_live: true });
            }
        }
        let manifests = self.numbered(all);
        for (_, manifest) in &manifests {
            visit(manifest_reached(manifest));
        }
        let wanted: Vec<_> = manifests.iter().filter(|(_, manifest)| !skip(manifest)).cloned().collect();
        let mut files = self.files(wanted);
        while let Some((_, read)) = files.next().await {
            read?.each(scope, &mut visit);
        }
        drop(files);
        Ok(manifests.into_iter().map(|(_, manifest)| manifest).collect())
    }

    /// The manifests of these snapshots by number, each snapshot with its own outcome, in the order given.
    async fn lists<'s>(
        &self,
        snapshots: impl IntoIterator<Item = &'s Snapshot>,
    ) -> Vec<(&'s Snapshot, Result<Arc<[u32]>, Unreadable>)> {
        let snapshots: Vec<&'s Snapshot> = snapshots.into_iter().collect();
        // By number: a closure over references would keep callers from being spawned.
        let read: Vec<_> = stream::iter(0..snapshots.len())
            .map(|at| self.list(snapshots[at]).boxed())
            .buffered(self.storage.concurrency())
            .collect()
            .await;
        let of = |(snapshot, list): (&'s Snapshot, Result<Arc<[u32]>, Unreadable>)| {
            (snapshot, list.map_err(|error| of_snapshot(error, snapshot)))
        };
        snapshots.into_iter().zip(read).map(of).collect()
    }

    async fn list(&self, snapshot: &Snapshot) -> Result<Arc<[u32]>, Unreadable> {
        match &snapshot.manifests {
            ManifestSource::Inline(manifests) => {
                let refs = manifests.iter().map(|location| ManifestRef {
                    location: location.clone(),
                    length: 0,
                    content: ManifestContent::Data,
                    added_snapshot: Some(snapshot.id),
                    sequence_number: 0,
                    counts: None,
                    is_encrypted: false,
                });
                self.intern(refs.collect())
            }
            ManifestSource::List(location) => {
                if let Some(list) = self.known().lists.get(location) {
                    return Ok(Arc::clone(list));
                }
                let bytes = self.storage.read(location).await.map_err(unreadable)?;
                let name = location.clone();
                let refs = blocking(location, move || manifests::read_manifest_list(&bytes, &name)).await?;
                check_total(snapshot, location, &refs)?;
                if let Some(encrypted) = refs.iter().find(|manifest| manifest.is_encrypted) {
                    return Err(Unreadable {
                        location: encrypted.location.clone(),
                        reason: "is encrypted, which is not supported".to_owned(),
                    });
                }
                let list = self.intern(refs)?;
                self.known().lists.insert(location.clone(), Arc::clone(&list));
                Ok(list)
            }
        }
    }

    fn intern(&self, refs: Vec<ManifestRef>) -> Result<Arc<[u32]>, Unreadable> {
        let mut known = self.known();
        let mut numbers = Vec::with_capacity(refs.len());
        for manifest in refs {
            if let Some(number) = known.by_location.get(&manifest.location).copied() {
                let before = &known.manifests[number as usize];
                if before.length > 0 && manifest.length > 0 && before.length != manifest.length {
                    return Err(Unreadable {
                        location: manifest.location,
                        reason: format!(
                            "one manifest list says it has {} bytes, another {}",
                            before.length, manifest.length
                        ),
                    });
                }
                numbers.push(number);
                continue;
            }
            let number = u32::try_from(known.manifests.len()).map_err(|_| Unreadable {
                location: manifest.location.clone(),
                reason: "the table has more than four thousand million manifests".to_owned(),
            })?;
            known.by_location.insert(manifest.location.clone(), number);
            known.manifests.push(Arc::new(manifest));
            numbers.push(number);
        }
        Ok(numbers.into())
    }

    fn numbered(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, Arc<ManifestRef>)> {
        let known = self.known();
        numbers.into_iter().map(|number| (number, Arc::clone(&known.manifests[number as usize]))).collect()
    }

    /// Decodes these manifests, several at a time, in the order given.
    fn files(
        &self,
        wanted: Vec<(u32, Arc<ManifestRef>)>,
    ) -> stream::BoxStream<'_, (u32, Result<Arc<ManifestFiles>, Unreadable>)> {
        self.progress.wanted.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        stream::iter(wanted)
            .map(move |(number, manifest)| async move { (number, self.decode(number, manifest).await) })
            .buffered(MANIFESTS_IN_FLIGHT)
            .boxed()
    }

    async fn decode(&self, number: u32, manifest: Arc<ManifestRef>) -> Result<Arc<ManifestFiles>, Unreadable> {
        if let Some(files) = self.decoded.lock().unwrap_or_else(PoisonError::into_inner).files.get(&number) {
            return Ok(Arc::clone(files));
        }
        let bytes = self.storage.read(&manifest.location).await.map_err(unreadable)?;
        let (location, length) = (manifest.location.clone(), bytes.len() as u64);
        let files = blocking(&location, move || {
            let mut files = ManifestFiles::default();
            manifests::read_manifest(&bytes, &manifest, |entry| {
                files.paths.push_str(entry.location);
                files.rows.push(FileRow {
                    end: files.paths.len(),
                    size: entry.size,
                    kind: entry.content.into(),
                    is_live: entry.status != Status::Deleted,
                });
            })
            .map(|_: ManifestCounts| files)
        })
        .await?;
        let files = Arc::new(files);
        self.progress.manifests.fetch_add(1, Ordering::Relaxed);
        self.progress.bytes.fetch_add(length, Ordering::Relaxed);
        self.progress.entries.fetch_add(files.rows.len() as u64, Ordering::Relaxed);
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = decoded.left.checked_sub(files.bytes()) {
            decoded.left = left;
            decoded.files.insert(number, Arc::clone(&files));
        }
        Ok(files)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list that was cut between two of its blocks reads as a shorter one: nothing in it tells its length. The
/// snapshot's summary does, where its writer kept count.
fn check_total(snapshot: &Snapshot, location: &str, refs: &[ManifestRef]) -> Result<(), Unreadable> {
    let claimed = snapshot.summary.get("total-data-files").and_then(|n| n.parse::<u64>().ok());
    let data = refs.iter().filter(|manifest| manifest.content == ManifestContent::Data);
    let found: Option<u64> = data.map(|manifest| manifest.counts.map(|counts| counts.added + counts.existing)).sum();
    match (claimed, found) {
        (Some(claimed), Some(found)) if found < claimed => Err(Unreadable {
            location: location.to_owned(),
            reason: format!("names {found} data files, but the snapshot's summary says that there are {claimed}"),
        }),
        _ => Ok(()),
    }
}

/// What only expired snapshots reach.
#[derive(Debug, Default)]
pub struct Freed {
    /// Unsorted; one per canonical location.
    pub candidates: Vec<Candidate>,
    /// Every manifest of a snapshot that stays: read at this proof, need not be read at the next.
    pub retained: Vec<Retained>,
    /// Candidates whose key a retained snapshot names under another authority, with that name (safety rule 11).
    pub conflicts: Vec<(String, String)>,
    /// Files of expired snapshots that cannot be read. What only they name is left for the orphan job.
    pub left: Vec<Unreadable>,
}

/// Expired minus retained. `steps` gives, for each snapshot that goes, the commit that removes it. What
/// `neighbours` reach counts as retained (safety rule 6).
pub async fn freed(
    reader: &Reader,
    state: &TableState,
    steps: &BTreeMap<SnapshotId, u32>,
    neighbours: &[LoadedTable],
) -> Result<Freed, Unreadable> {
    let rules = reader.storage.rules().clone();
    let mut found: HashMap<Fingerprint, Candidate> = HashMap::new();
    let mut odd = Vec::new();
    let mut add = |reached: Reached<'_>, step: u32| {
        let candidate = |location: &str| Candidate {
            kind: reached.kind,
            location: location.to_owned(),
            recorded_size: reached.recorded_size,
            step,
        };
        match rules.canonical(reached.location) {
            Ok(canonical) => {
                found
                    .entry(Fingerprint::of(&canonical))
                    .and_modify(|known| known.step = known.step.max(step))
                    .or_insert_with(|| candidate(reached.location));
            }
            // It is no location: kept and counted by the plan.
            Err(_) => odd.push(candidate(reached.location)),
        }
    };

    let (goes, stays): (Vec<_>, Vec<_>) = state.snapshots.iter().partition(|snapshot| steps.contains_key(&snapshot.id));
    let step_of = |id: SnapshotId| steps.get(&id).copied().unwrap_or_default();
    let mut freed = Freed::default();
    let mut expired: BTreeMap<u32, u32> = BTreeMap::new();
    for (snapshot, list) in reader.lists(goes.iter().copied()).await {
        let step = step_of(snapshot.id);
        if let ManifestSource::List(location) = &snapshot.manifests {
            add(Reached { kind: FileKind::ManifestList, location, recorded_size: None, is_live: true }, step);
        }
        match list {
            Ok(numbers) => {
                for number in numbers.iter() {
                    expired.entry(*number).and_modify(|known| *known = step.max(*known)).or_insert(step);
                }
            }
            Err(error) => freed.left.push(error),
        }
    }
    for file in state.statistics.iter().chain(&state.partition_statistics) {
        if let Some(step) = steps.get(&file.snapshot) {
            add(
                Reached { kind: FileKind::Statistics, location: &file.location, recorded_size: None, is_live: true },
                *step,
            );
        }
    }

    // The lists of what stays are read first: a manifest that any of them names is never a candidate, so
    // its entries are read once, below.
    let mut retained = HashSet::new();
    for (_, list) in reader.lists(stays.iter().copied()).await {
        retained.extend(list?.iter().copied());
    }
    let only_expired = reader.numbered(expired.keys().copied().filter(|number| !retained.contains(number)));
    for (number, manifest) in &only_expired {
        add(manifest_reached(manifest), expired.get(number).copied().unwrap_or_default());
    }
    let mut files = reader.files(only_expired);
    while let Some((number, read)) = files.next().await {
        let step = expired.get(&number).copied().unwrap_or_default();
        match read {
            Ok(files) => files.each(Scope::Live, |reached| add(reached, step)),
            Err(error) => freed.left.push(error),
        }
    }
    drop(files);

    let keys = Keys::of(found.values().map(|candidate| candidate.location.as_str()), &rules);
    let mut conflicts = Vec::new();
    let mut keep = |reached: Reached<'_>| {
        // Text that is no location can be nobody's candidate.
        let _ = rules.fingerprints(reached.location, |form| _ = found.remove(&form));
        for candidate in keys.conflicts(reached.location, &rules) {
            conflicts.push((candidate, reached.location.to_owned()));
        }
    };
    let manifests = reader.reach(stays, Scope::Live, |_| false, &mut keep).await?;
    freed.retained = manifests.iter().map(|manifest| manifest.retained()).collect();
    for file in state.statistics.iter().chain(&state.partition_statistics) {
        if !steps.contains_key(&file.snapshot) {
            keep(Reached { kind: FileKind::Statistics, location: &file.location, recorded_size: None, is_live: true });
        }
    }
    for LoadedTable { state: neighbour, storage, .. } in neighbours {
        reader.through(storage).reach(&neighbour.snapshots, Scope::Live, |_| false, &mut keep).await?;
        for file in neighbour.statistics.iter().chain(&neighbour.partition_statistics) {
            keep(Reached { kind: FileKind::Statistics, location: &file.location, recorded_size: None, is_live: true });
        }
    }
    freed.conflicts = conflicts;
    freed.candidates = found.into_values().chain(odd).collect();
    Ok(freed)
}

fn manifest_reached(manifest: &ManifestRef) -> Reached<'_> {
    Reached {
        kind: FileKind::Manifest,
        location: &manifest.location,
        recorded_size: Some(manifest.length).filter(|length| *length > 0),
        is_live: true,
    }
}

fn unreadable(error: StorageError) -> Unreadable {
    Unreadable { location: error.location, reason: error.reason }
}

fn of_snapshot(error: Unreadable, snapshot: &Snapshot) -> Unreadable {
    Unreadable { reason: format!("{} (of snapshot {})", error.reason, snapshot.id), ..error }
}

/// Decoding is CPU work; it must not hold up the runtime.
async fn blocking<T: Send + 'static>(
    location: &str,
    work: impl FnOnce() -> Result<T, Unreadable> + Send + 'static,
) -> Result<T, Unreadable> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Unreadable { location: location.to_owned(), reason: format!("the reader failed: {error}") })
    })
}
