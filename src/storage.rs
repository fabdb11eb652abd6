//! Objects: list, read, look at, write, delete. One store per bucket, found by the location's scheme and authority; where a
//! catalog lends keys for a table, one per table and prefix.
//!
//! Everything that touches table storage goes through here. Deletes are called by `sweep` only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::clock::Clock;
use crate::config::Secret;
use crate::model::{Age, BadLocation, Location, LocationRules, ObjectFacts, Timestamp, Unrepresentable};

mod delete;
mod fault;
mod lent;
pub mod list;
mod open;
mod probe;
mod signed;
mod xml;

use delete::Paces;
use signed::Bucket;

pub use delete::Deleted;
pub use lent::{Grant, Keys, Lender, Lent};
pub use list::{Folder, ListProgress, Listed, Listing, Paging};
pub use probe::{ProbeError, Versioning};

/// How long a store may take to tell its time.
const CLOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The stores of a lake; cheap to clone.
#[derive(Clone)]
pub struct Storage {
    rules: Arc<LocationRules>,
    options: Arc<BTreeMap<String, BTreeMap<String, Secret>>>,
    stores: Arc<Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>>,
    /// Those of the stores that the caller brought.
    brought: Arc<Mutex<BTreeSet<String>>>,
    /// Those of S3 that are asked by ourselves, with keys of our own.
    buckets: Arc<Mutex<BTreeMap<String, Arc<Bucket>>>>,
    /// How fast each store takes deletes.
    paces: Arc<Mutex<BTreeMap<String, Arc<Paces>>>>,
    concurrency: usize,
    /// Where this is one table's: what its catalog lends for its files.
    lent: Option<Lent>,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("rules", &self.rules).field("lent", &self.lent).finish_non_exhaustive()
    }
}

/// An object in its store, and what it is asked for with.
struct Place {
    store: Arc<dyn ObjectStore>,
    path: Path,
    loan: Option<Loan>,
}

/// Lent keys, as of one answer of the catalog.
#[derive(Clone)]
struct Loan {
    lent: Lent,
    generation: u64,
    is_renewed: bool,
}

impl Loan {
    fn of(lent: &Lent) -> Self {
        Self { lent: lent.clone(), generation: lent.generation(), is_renewed: false }
    }

    /// After a request that failed: whether to send it again, once, since its keys were refused and there are others
    /// now.
    async fn is_worth_another(&mut self, error: &StorageError) -> bool {
        let is_refused = error.kind == StorageErrorKind::Denied && !self.is_renewed;
        self.is_renewed |= is_refused;
        is_refused && self.lent.renewed(self.generation).await
    }
}

impl Storage {
    /// Stores by the `[storage."scheme://authority"]` options of the configuration, opened when first used.
    pub fn new(rules: LocationRules, options: BTreeMap<String, BTreeMap<String, Secret>>, concurrency: usize) -> Self {
        Self {
            rules: Arc::new(rules),
            options: Arc::new(options),
            stores: Arc::default(),
            brought: Arc::default(),
            buckets: Arc::default(),
            paces: Arc::default(),
            concurrency: concurrency.max(1),
            lent: None,
        }
    }

    /// The same for one table's files: with what its catalog lends for them, else as before. The keys are used through
    /// this value alone, so never for another table's files.
    #[must_use]
    pub fn lending(&self, lent: Option<Lent>) -> Self {
        Self { lent, ..self.clone() }
    }

    /// Uses this store for everything under `scheme://authority`.
    #[must_use]
    pub fn with_store(self, store: &str, object_store: Arc<dyn ObjectStore>) -> Self {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).insert(store.to_owned());
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).insert(store.to_owned(), object_store);
        self
    }

    /// How locations are compared here.
    pub fn rules(&self) -> &LocationRules {
        &self.rules
    }

    /// Requests that may be in flight at once.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// The whole object.
    pub async fn read(&self, location: &str) -> Result<Bytes, StorageError> {
        let mut place = self.locate(location)?;
        loop {
            let result = async { place.store.get(&place.path).await?.bytes().await }.await;
            match result {
                Ok(bytes) => return Ok(bytes),
                Err(error) => self.again(&mut place, StorageError::of(location, &error)).await?,
            }
        }
    }

    /// Size, modification time and tag as the store has them.
    pub async fn head(&self, location: &str) -> Result<ObjectFacts, StorageError> {
        let mut place = self.locate(location)?;
        let meta = loop {
            match place.store.head(&place.path).await {
                Ok(meta) => break meta,
                Err(error) => self.again(&mut place, StorageError::of(location, &error)).await?,
            }
        };
        Ok(ObjectFacts {
            size: meta.size,
            // A store that keeps no time answers the epoch; that is no time (safety rule 3).
            modified: Some(meta.last_modified.into()).filter(|time: &Timestamp| time.0 > 0),
            etag: meta.e_tag,
        })
    }

    /// Writes an object that must not be there yet.
    pub async fn write_new(&self, location: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.put(location, bytes, PutMode::Create).await
    }

    /// Writes an object, replacing what is there.
    pub async fn write(&self, location: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.put(location, bytes, PutMode::Overwrite).await
    }

    /// How much the clock of the store at this location and our system clock differ, and whose clock that is;
    /// `None` where the store has no clock of its own or does not tell (safety rule 3).
    pub async fn clock_skew(&self, location: &str) -> Option<(String, Age)> {
        let location = self.rules.parse(location).ok()?;
        if location.scheme() != "s3" {
            return None;
        }
        let endpoint = self.endpoint(&location)?;
        // Any answer carries the time, a refusal too.
        install_crypto();
        let client = reqwest::Client::builder().build().ok()?;
        let answer = client.head(endpoint).timeout(CLOCK_TIMEOUT).send().await.ok()?;
        let date = answer.headers().get(reqwest::header::DATE)?.to_str().ok()?;
        let theirs = chrono::DateTime::parse_from_rfc2822(date).ok()?.timestamp_millis();
        Some((location.store().to_owned(), Clock::system().since(Timestamp(theirs))))
    }

    /// Where the store of this location is, if it is not where its kind of store is by itself.
    fn endpoint(&self, location: &Location) -> Option<&str> {
        let options = self.options.get(location.store());
        let configured = ["endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url"]
            .iter()
            .find_map(|key| options?.get(*key))
            .map(Secret::reveal);
        let lent = || self.lent.as_ref()?.grant(location)?.settings.get("endpoint");
        configured.or_else(|| lent().map(String::as_str))
    }

    async fn put(&self, location: &str, bytes: Bytes, mode: PutMode) -> Result<(), StorageError> {
        let Place { store, path, .. } = self.locate(location)?;
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = store.put_opts(&path, PutPayload::from_bytes(bytes), options).await;
        put.map(drop).map_err(|error| StorageError::of(location, &error))
    }

    fn locate(&self, location: &str) -> Result<Place, StorageError> {
        self.object(&self.rules.parse(location)?)
    }

    fn object(&self, location: &Location) -> Result<Place, StorageError> {
        let path = location.object_path()?;
        let (store, loan) = self.store_of(location)?;
        Ok(Place { store, path, loan })
    }

    fn store_of(&self, location: &Location) -> Result<(Arc<dyn ObjectStore>, Option<Loan>), StorageError> {
        let options = self.options.get(location.store());
        if let Some((lent, grant)) = self.lent_for(location) {
            let store = lent.store(grant, location, || open::open(location, options, Some((lent, grant))))?;
            return Ok((store, Some(Loan::of(lent))));
        }
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(location.store()) {
            return Ok((Arc::clone(store), None));
        }
        let store = open::open(location, options, None)?;
        stores.insert(location.store().to_owned(), Arc::clone(&store));
        Ok((store, None))
    }

    fn is_brought(&self, store: &str) -> bool {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).contains(store)
    }

    fn lent_for(&self, location: &Location) -> Option<(&Lent, &Grant)> {
        let lent = self.lent.as_ref()?;
        Some((lent, lent.grant(location)?))
    }

    /// An S3 client for this location's bucket.
    fn s3(&self, location: &Location) -> Result<AmazonS3Builder, StorageError> {
        open::s3(location, self.options.get(location.store()), self.lent_for(location))
    }

    /// After a request for an object that failed: sends it again by returning, or gives back the error.
    async fn again(&self, place: &mut Place, error: StorageError) -> Result<(), StorageError> {
        let Some(loan) = &mut place.loan else { return Err(error) };
        if loan.is_worth_another(&error).await { Ok(()) } else { Err(error.without_secrets(loan)) }
    }
}

/// A request to a store did not do what it should.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{location}: {reason}")]
pub struct StorageError {
    /// The object asked for.
    pub location: String,
    /// What kind of failure.
    pub kind: StorageErrorKind,
    /// In the store's words.
    pub reason: String,
}

/// What kind of failure a store reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// There is no such object.
    NotFound,
    /// We may not do that, or our credentials are no good.
    Denied,
    /// The location cannot be asked for byte for byte.
    Unrepresentable,
    /// The object is there already.
    AlreadyExists,
    /// Anything else: the store failed, cannot be reached, or is not configured.
    Unavailable,
}

impl StorageError {
    fn of(location: &str, error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let (kind, reason) = match error {
            E::NotFound { .. } => (StorageErrorKind::NotFound, "not found (404)".to_owned()),
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => (StorageErrorKind::Denied, with_causes(error)),
            E::AlreadyExists { .. } | E::Precondition { .. } => {
                (StorageErrorKind::AlreadyExists, "is there already".to_owned())
            }
            E::InvalidPath { .. } => (StorageErrorKind::Unrepresentable, error.to_string()),
            _ => match (Self::kind_of_cause(error), with_causes(error)) {
                // S3 answers 400 to keys whose time is over.
                (_, reason) if reason.contains("ExpiredToken") => (StorageErrorKind::Denied, reason),
                told => told,
            },
        };
        Self { location: location.to_owned(), kind, reason }
    }

    fn without_secrets(self, loan: &Loan) -> Self {
        Self { reason: loan.lent.redact(self.reason), ..self }
    }

    /// The local file system reports what the system said inside a generic error.
    fn kind_of_cause(error: &object_store::Error) -> StorageErrorKind {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = cause {
            match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                Some(std::io::ErrorKind::NotFound) => return StorageErrorKind::NotFound,
                Some(std::io::ErrorKind::PermissionDenied) => return StorageErrorKind::Denied,
                _ => cause = error.source(),
            }
        }
        StorageErrorKind::Unavailable
    }
}

/// Chooses the cryptography of https, once for the process; `https://` clients cannot be built before. Whoever builds a
/// client calls it first.
pub fn install_crypto() {
    // It fails if there is a choice already, which then stands.
    let _chosen_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// What went wrong with what was behind it, such as a refused connection; each text once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

impl From<BadLocation> for StorageError {
    fn from(error: BadLocation) -> Self {
        let reason = error.to_string();
        Self { location: error.0, kind: StorageErrorKind::Unrepresentable, reason }
    }
}

impl From<Unrepresentable> for StorageError {
    fn from(error: Unrepresentable) -> Self {
        Self { location: error.location, kind: StorageErrorKind::Unrepresentable, reason: error.why.to_owned() }
    }
}

#[cfg(test)]
pub(crate) mod tests;
