//! Everything that a folder holds, by listing: streamed, in parallel, counted, and never with a silent gap.
//!
//! What comes is a stream of small batches, in no order. It is whole if and only if it ends with `Ok(None)`; whatever
//! stands in the way is an error that names the folder (or the one in it) and has the store's words. An object whose key
//! we could not ask for byte for byte comes too, as [`Listed::Unrepresentable`], and does not hide its neighbours.
//!
//! `docs/adr/0005-listing.md` says why S3 and local files are not listed by `object_store`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Loan, Storage, StorageError, StorageErrorKind};
use crate::model::location::path_of_key;
use crate::model::{Location, ObjectFacts, Root, Timestamp};

mod ask;
mod files;
mod folder;
mod order;
mod page;
mod ranges;

pub use folder::Folder;

/// Objects in a batch at most.
const BATCH: usize = 1000;

/// Batches that wait to be taken.
const WAITING: usize = 4;

/// Pages asked for at once at most, however high the configured concurrency: each may hold a thousand keys.
const MAX_AT_ONCE: usize = 64;

/// One object of a listing. Locations are canonical: `scheme://authority/key`, the key byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// It can be asked for.
    Object {
        /// Where it is.
        location: String,
        /// What the listing says of it. S3 tells times to the millisecond here, and to the second when asked for one
        /// object.
        facts: ObjectFacts,
    },
    /// It is there, and cannot be asked for: it is kept, counted, and never passed to delete (safety rule 11).
    Unrepresentable {
        /// Where it is; text that is not UTF-8 with replacements.
        location: String,
        /// What the listing says of it.
        facts: ObjectFacts,
        /// What stands in the way.
        why: &'static str,
    },
}

impl Listed {
    /// Where it is.
    pub fn location(&self) -> &str {
        match self {
            Self::Object { location, .. } | Self::Unrepresentable { location, .. } => location,
        }
    }

    /// What the listing says of it.
    pub fn facts(&self) -> &ObjectFacts {
        match self {
            Self::Object { facts, .. } | Self::Unrepresentable { facts, .. } => facts,
        }
    }

    /// The object with this key in `scheme://authority`.
    fn of(store: &str, key: &[u8], facts: ObjectFacts) -> Self {
        if let Ok(key) = std::str::from_utf8(key) {
            return Self::of_text(store, key, facts);
        }
        let location = format!("{store}/{}", String::from_utf8_lossy(key));
        Self::Unrepresentable { location, facts, why: "its key is not UTF-8" }
    }

    fn of_text(store: &str, key: &str, facts: ObjectFacts) -> Self {
        let location = format!("{store}/{key}");
        let scheme = store.split_once("://").map_or(store, |(scheme, _)| scheme);
        match path_of_key(scheme, key) {
            Ok(_) => Self::Object { location, facts },
            Err(why) => Self::Unrepresentable { location, facts, why },
        }
    }
}

/// How far listings are; others read it while they run.
#[derive(Debug, Default)]
pub struct ListProgress {
    objects: AtomicU64,
    bytes: AtomicU64,
    unrepresentable: AtomicU64,
    requests: AtomicU64,
}

impl ListProgress {
    /// Objects so far, those that cannot be represented among them.
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Objects that cannot be represented.
    pub fn unrepresentable(&self) -> u64 {
        self.unrepresentable.load(Ordering::Relaxed)
    }

    /// Pages asked for, or folders read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn count(&self, batch: &[Listed]) {
        let odd = batch.iter().filter(|listed| matches!(listed, Listed::Unrepresentable { .. })).count();
        self.objects.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(batch.iter().map(|listed| listed.facts().size).sum(), Ordering::Relaxed);
        self.unrepresentable.fetch_add(odd as u64, Ordering::Relaxed);
    }
}

/// How S3 is paged through. The default is right; tests choose other values to have many pages and splits.
#[derive(Debug, Clone, Copy)]
pub struct Paging {
    /// Keys on a page, at most 1000.
    pub page_size: usize,
    /// Full pages of a range after which its rest is split, if a request may be sent; 0 never splits.
    pub split_after: u32,
    /// Levels of folders that are looked at to find where to split.
    pub levels: u32,
    /// Before a page is asked for again; longer each time.
    pub pause: Duration,
}

impl Default for Paging {
    fn default() -> Self {
        Self { page_size: BATCH, split_after: 2, levels: 3, pause: Duration::from_millis(100) }
    }
}

/// A running listing; it stops when this is dropped.
#[derive(Debug)]
pub struct Listing {
    root: Root,
    told: mpsc::Receiver<Told>,
    task: JoinHandle<()>,
    is_over: bool,
}

/// What the task of a listing tells.
#[derive(Debug)]
enum Told {
    Batch(Vec<Listed>),
    /// There is no more: without this word a listing is not whole.
    End,
    Failed(StorageError),
}

impl Listing {
    /// The next objects; `None` at the end of a whole listing. After an error there is nothing more to be had.
    pub async fn next(&mut self) -> Result<Option<Vec<Listed>>, StorageError> {
        if self.is_over {
            return Ok(None);
        }
        match self.told.recv().await {
            Some(Told::Batch(batch)) => Ok(Some(batch)),
            Some(Told::End) => {
                self.is_over = true;
                Ok(None)
            }
            Some(Told::Failed(error)) => Err(error),
            // Its task ended without a word, so by a fault of ours.
            None => Err(error_of(&self.root, StorageErrorKind::Unavailable, "the listing broke off")),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where found objects go.
#[derive(Debug, Clone)]
struct Sink {
    told: mpsc::Sender<Told>,
    progress: Arc<ListProgress>,
}

/// Nobody listens any more.
#[derive(Debug)]
struct Unheard;

impl Sink {
    async fn send(&self, batch: Vec<Listed>) -> Result<(), Unheard> {
        if batch.is_empty() {
            return Ok(());
        }
        self.progress.count(&batch);
        self.told.send(Told::Batch(batch)).await.map_err(|_| Unheard)
    }

    /// The same from a thread that may wait.
    fn send_blocking(&self, batch: Vec<Listed>) -> Result<(), Unheard> {
        if batch.is_empty() {
            return Ok(());
        }
        self.progress.count(&batch);
        self.told.blocking_send(Told::Batch(batch)).map_err(|_| Unheard)
    }
}

/// Why a listing did not come to its end.
#[derive(Debug)]
enum Stopped {
    Failed(StorageError),
    Unheard,
}

impl From<StorageError> for Stopped {
    fn from(error: StorageError) -> Self {
        Self::Failed(error)
    }
}

impl From<Unheard> for Stopped {
    fn from(_: Unheard) -> Self {
        Self::Unheard
    }
}

/// How a folder is listed.
enum Way {
    Files,
    S3(ask::Source),
    Other(Arc<dyn ObjectStore>, Option<Loan>),
}

impl Storage {
    /// Lists everything under a folder.
    pub fn list(&self, root: &Root, progress: &Arc<ListProgress>) -> Listing {
        self.list_paged(root, progress, Paging::default())
    }

    /// The same with another paging.
    pub fn list_paged(&self, root: &Root, progress: &Arc<ListProgress>, paging: Paging) -> Listing {
        let (told, receiver) = mpsc::channel(WAITING);
        let (storage, of, sink) = (self.clone(), root.clone(), Sink { told, progress: Arc::clone(progress) });
        let task = tokio::spawn(async move {
            let last = match storage.list_into(&of, paging, &sink).await {
                Ok(()) => Told::End,
                Err(Stopped::Failed(error)) => Told::Failed(error),
                Err(Stopped::Unheard) => return,
            };
            let _heard = sink.told.send(last).await;
        });
        Listing { root: root.clone(), told: receiver, task, is_over: false }
    }

    async fn list_into(&self, root: &Root, paging: Paging, sink: &Sink) -> Result<(), Stopped> {
        let at = self.rules.parse(root.as_str()).map_err(StorageError::from)?;
        let at_once = self.concurrency.min(MAX_AT_ONCE);
        match self.way(root, &at, paging, &sink.progress)? {
            Way::Files => files::list(root, &at, at_once, sink).await,
            Way::S3(source) => ranges::list(source, &at, paging, at_once, sink).await,
            Way::Other(store, loan) => list_other(root, &at, store.as_ref(), loan.as_ref(), sink).await,
        }
    }

    fn way(
        &self,
        root: &Root,
        at: &Location,
        paging: Paging,
        progress: &Arc<ListProgress>,
    ) -> Result<Way, StorageError> {
        let is_brought = self.is_brought(at.store());
        match at.scheme() {
            "file" if !is_brought => Ok(Way::Files),
            "s3" if !is_brought => Ok(Way::S3(ask::Source::open(self, root, at, paging, Arc::clone(progress))?)),
            _ => {
                let (store, loan) = self.store_of(at)?;
                Ok(Way::Other(store, loan))
            }
        }
    }
}

/// By `object_store`, one page after another. A key that it cannot represent fails the page, and so the listing.
async fn list_other(
    root: &Root,
    at: &Location,
    store: &dyn ObjectStore,
    loan: Option<&Loan>,
    sink: &Sink,
) -> Result<(), Stopped> {
    let prefix = prefix_of(root, at)?;
    let mut found = store.list(prefix.as_ref()).chunks(BATCH);
    while let Some(chunk) = found.next().await {
        sink.progress.requests.fetch_add(1, Ordering::Relaxed);
        let mut batch = Vec::with_capacity(chunk.len());
        for meta in chunk {
            let meta = meta.map_err(|error| {
                let told = StorageError::of(root.as_str(), &error);
                let told = error_of(root, told.kind, &told.reason);
                loan.map_or_else(|| told.clone(), |loan| told.clone().without_secrets(loan))
            })?;
            let key = meta.location.to_string();
            batch.push(Listed::of_text(at.store(), &key, facts_of(meta)));
        }
        sink.send(batch).await?;
    }
    Ok(())
}

/// What `object_store` is asked for; a whole bucket has no prefix.
fn prefix_of(root: &Root, at: &Location) -> Result<Option<Path>, StorageError> {
    match at.key().trim_end_matches('/') {
        "" => Ok(None),
        key => path_of_key(at.scheme(), key)
            .map(Some)
            .map_err(|why| error_of(root, StorageErrorKind::Unrepresentable, why)),
    }
}

fn facts_of(meta: ObjectMeta) -> ObjectFacts {
    ObjectFacts {
        size: meta.size,
        modified: Some(meta.last_modified.into()).filter(|time: &Timestamp| time.0 > 0),
        etag: meta.e_tag,
    }
}

fn error_of(root: &Root, kind: StorageErrorKind, reason: &str) -> StorageError {
    StorageError { location: root.as_str().to_owned(), kind, reason: format!("cannot be listed: {reason}") }
}

/// Of a table's folders, those that hold all others of it: each object is listed once.
pub fn outermost(roots: &BTreeSet<Root>) -> Vec<&Root> {
    roots.iter().filter(|root| !roots.iter().any(|other| other != *root && other.covers(root))).collect()
}

#[cfg(test)]
mod tests;
