//! Objects: read, look at, write, delete. One store per bucket, found by the location's scheme and authority.
//!
//! Everything that touches table storage goes through here. Deletes are called by `sweep` only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig};

use crate::clock::Clock;
use crate::config::Secret;
use crate::model::{Age, BadLocation, Location, LocationRules, ObjectFacts, Timestamp, Unrepresentable};

mod delete;
mod probe;

pub use delete::Deleted;
pub use probe::{ProbeError, Versioning};

/// How long a store may take to tell its time.
const CLOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The stores of a lake; cheap to clone.
#[derive(Clone)]
pub struct Storage {
    rules: Arc<LocationRules>,
    options: Arc<BTreeMap<String, BTreeMap<String, Secret>>>,
    stores: Arc<Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>>,
    concurrency: usize,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Storage {
    /// Stores by the `[storage."scheme://authority"]` options of the configuration, opened when first used.
    pub fn new(rules: LocationRules, options: BTreeMap<String, BTreeMap<String, Secret>>, concurrency: usize) -> Self {
        Self {
            rules: Arc::new(rules),
            options: Arc::new(options),
            stores: Arc::default(),
            concurrency: concurrency.max(1),
        }
    }

    /// Uses this store for everything under `scheme://authority`.
    #[must_use]
    pub fn with_store(self, store: &str, object_store: Arc<dyn ObjectStore>) -> Self {
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
        let (store, path) = self.locate(location)?;
        let result = async { store.get(&path).await?.bytes().await }.await;
        result.map_err(|error| StorageError::of(location, &error))
    }

    /// Size, modification time and tag as the store has them.
    pub async fn head(&self, location: &str) -> Result<ObjectFacts, StorageError> {
        let (store, path) = self.locate(location)?;
        let meta = store.head(&path).await.map_err(|error| StorageError::of(location, &error))?;
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
        let options = self.options.get(location.store())?;
        let endpoint = ["endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url"]
            .iter()
            .find_map(|key| options.get(*key))?;
        // Any answer carries the time, a refusal too.
        install_crypto();
        let client = reqwest::Client::builder().build().ok()?;
        let answer = client.head(endpoint.reveal()).timeout(CLOCK_TIMEOUT).send().await.ok()?;
        let date = answer.headers().get(reqwest::header::DATE)?.to_str().ok()?;
        let theirs = chrono::DateTime::parse_from_rfc2822(date).ok()?.timestamp_millis();
        Some((location.store().to_owned(), Clock::system().since(Timestamp(theirs))))
    }

    async fn put(&self, location: &str, bytes: Bytes, mode: PutMode) -> Result<(), StorageError> {
        let (store, path) = self.locate(location)?;
        let options = PutOptions { mode, ..PutOptions::default() };
        let put = store.put_opts(&path, PutPayload::from_bytes(bytes), options).await;
        put.map(drop).map_err(|error| StorageError::of(location, &error))
    }

    fn locate(&self, location: &str) -> Result<(Arc<dyn ObjectStore>, Path), StorageError> {
        let parsed = self.rules.parse(location)?;
        let path = parsed.object_path()?;
        Ok((self.store_of(&parsed)?, path))
    }

    fn store_of(&self, location: &Location) -> Result<Arc<dyn ObjectStore>, StorageError> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(location.store()) {
            return Ok(Arc::clone(store));
        }
        let unavailable = |reason: String| StorageError {
            location: location.raw().to_owned(),
            kind: StorageErrorKind::Unavailable,
            reason,
        };
        let store: Arc<dyn ObjectStore> = match location.scheme() {
            "file" => Arc::new(LocalFileSystem::new().with_fsync(true)),
            "s3" => Arc::new(self.s3(location)?.build().map_err(|error| unavailable(error.to_string()))?),
            other => return Err(unavailable(format!("no store is known for {other}:// (known: file, s3)"))),
        };
        stores.insert(location.store().to_owned(), Arc::clone(&store));
        Ok(store)
    }

    /// An S3 client for this location's bucket, as configured.
    fn s3(&self, location: &Location) -> Result<AmazonS3Builder, StorageError> {
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(location.authority()).with_retry(RetryConfig {
            max_retries: 5,
            retry_timeout: std::time::Duration::from_mins(1),
            ..RetryConfig::default()
        });
        for (key, value) in self.options.get(location.store()).into_iter().flatten() {
            let key: AmazonS3ConfigKey = key.parse().map_err(|error: object_store::Error| StorageError {
                location: location.raw().to_owned(),
                kind: StorageErrorKind::Unavailable,
                reason: error.to_string(),
            })?;
            builder = builder.with_config(key, value.reveal());
        }
        Ok(builder)
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
            _ => (Self::kind_of_cause(error), with_causes(error)),
        };
        Self { location: location.to_owned(), kind, reason }
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
