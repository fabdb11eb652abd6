//! Keys to storage that a catalog lends for the files of one table.
//!
//! They are used for that table alone, asked for anew before they end, and once where a store refuses them. They are
//! held in memory only: never logged, shown by `Debug`, or left in what a store says.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};

use futures::future::BoxFuture;
use object_store::ObjectStore;
use object_store::aws::AwsCredential;
use object_store::azure::{AzureCredential, split_sas};
use object_store::client::CredentialProvider;
use object_store::gcp::GcpCredential;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::config::Secret;
use crate::model::{Location, Timestamp};

/// Keys that end are asked for anew this long before, or when four fifths of their life are over.
const RENEW_BEFORE_MS: i64 = 5 * 60_000;

/// Not sooner after an answer: a catalog whose clock is behind lends keys that have ended as they come.
const RENEW_PAUSE_MS: i64 = 10_000;

/// Keys that were refused are asked for anew at most this often: new ones that are refused too have another reason.
const REFUSED_AGAIN_MS: u64 = 60_000;

/// What is lent for the locations that begin with `prefix`.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Canonical. Where it does not end in `/`, it is for that location and what lies below it.
    pub prefix: String,
    /// How the store is reached: options as `object_store` names them. The configuration's own win over them.
    pub settings: BTreeMap<String, String>,
    /// The keys.
    pub keys: Keys,
    /// When they end, where the catalog tells.
    pub until: Option<Timestamp>,
}

/// Keys to one kind of store.
#[derive(Debug, Clone)]
pub enum Keys {
    /// Of S3.
    S3 {
        /// Names the key.
        access_key_id: Secret,
        /// Signs.
        secret_access_key: Secret,
        /// Of keys for a while.
        session_token: Option<Secret>,
    },
    /// A bearer token of Google Cloud Storage.
    Gcs(Secret),
    /// A shared access signature of Azure.
    Azure(Secret),
}

impl Keys {
    /// The scheme of the locations that they are for.
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::S3 { .. } => "s3",
            Self::Gcs(_) => "gs",
            Self::Azure(_) => "abfss",
        }
    }

    fn secrets(&self) -> Vec<&Secret> {
        match self {
            Self::S3 { secret_access_key, session_token, .. } => {
                [Some(secret_access_key), session_token.as_ref()].into_iter().flatten().collect()
            }
            Self::Gcs(secret) | Self::Azure(secret) => vec![secret],
        }
    }
}

impl Grant {
    /// Whether it is for this location. `s3://b/t` is not for `s3://b/t_backup`.
    fn covers(&self, location: &Location) -> bool {
        location.scheme() == self.keys.scheme()
            && location
                .canonical()
                .strip_prefix(&self.prefix)
                .is_some_and(|rest| self.prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
    }
}

/// Asks the catalog for what it lends now; an error is in words for an operator.
pub type Lender = Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<Grant>, String>> + Send + Sync>;

/// What a catalog lends for one table; cheap to clone, and shared by all who work on its files.
#[derive(Clone)]
pub struct Lent(Arc<Inner>);

struct Inner {
    lender: Lender,
    held: Mutex<Held>,
    /// The prefixes at first, longest first. A grant that comes later under another prefix is not used.
    prefixes: Vec<Grant>,
    /// By prefix and `scheme://authority`.
    stores: SyncMutex<BTreeMap<(String, String), Arc<dyn ObjectStore>>>,
    /// What must not be in any message: what is held, and what was.
    hidden: SyncMutex<Vec<Secret>>,
    /// Grows with every answer.
    generation: AtomicU64,
}

struct Held {
    grants: Vec<Grant>,
    /// When to ask again, where that is known.
    renew: Option<Timestamp>,
    /// When keys were last asked for because a store refused them, in boot time.
    refused_at: Option<u64>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes = self.0.prefixes.iter().map(|grant| grant.prefix.as_str());
        f.debug_list().entries(prefixes).finish()
    }
}

impl Lent {
    /// What the catalog lent with its answer at `now`, and how to ask again; none where it lent nothing.
    pub fn new(mut grants: Vec<Grant>, now: Timestamp, lender: Lender) -> Option<Self> {
        if grants.is_empty() {
            return None;
        }
        // Stable: of two with one prefix the first wins.
        grants.sort_by_key(|grant| std::cmp::Reverse(grant.prefix.len()));
        let hidden = SyncMutex::new(secrets(&grants));
        let held = Held { renew: renew_at(&grants, now), grants: grants.clone(), refused_at: None };
        Some(Self(Arc::new(Inner {
            lender,
            held: Mutex::new(held),
            prefixes: grants,
            stores: SyncMutex::default(),
            hidden,
            generation: AtomicU64::new(0),
        })))
    }

    /// What is lent for this location: the longest prefix wins.
    pub(super) fn grant(&self, location: &Location) -> Option<&Grant> {
        self.0.prefixes.iter().find(|grant| grant.covers(location))
    }

    /// The store for this prefix and bucket, opened once.
    pub(super) fn store(
        &self,
        grant: &Grant,
        location: &Location,
        open: impl FnOnce() -> Result<Arc<dyn ObjectStore>, super::StorageError>,
    ) -> Result<Arc<dyn ObjectStore>, super::StorageError> {
        let mut stores = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (grant.prefix.clone(), location.store().to_owned());
        if let Some(store) = stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = open()?;
        stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    /// Which answer of the catalog is held now.
    pub(super) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::SeqCst)
    }

    /// After a store refused the keys of this generation: whether there are others now.
    pub(super) async fn renewed(&self, refused: u64) -> bool {
        let mut held = self.0.held.lock().await;
        if self.generation() != refused {
            // Somebody else was refused too, and has new ones already.
            return true;
        }
        let now = Clock::boot_ms();
        if held.refused_at.is_some_and(|at| now.saturating_sub(at) < REFUSED_AGAIN_MS) {
            return false;
        }
        held.refused_at = Some(now);
        match self.ask(&mut held).await {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!(reason, "the catalog lends no new keys in place of those that were refused");
                false
            }
        }
    }

    /// The keys for a prefix, asked for anew if they are about to end.
    async fn keys(&self, prefix: &str) -> Result<Keys, String> {
        let mut held = self.0.held.lock().await;
        let now = Clock::system();
        if held.renew.is_some_and(|renew| renew <= now)
            && let Err(reason) = self.ask(&mut held).await
        {
            let Some(end) = held.grants.iter().filter_map(|grant| grant.until).min().filter(|end| *end > now) else {
                return Err(format!("the keys that the catalog lent have ended, and it lends no new ones: {reason}"));
            };
            tracing::warn!(reason, "the catalog lends no new keys yet; the old ones still hold");
            // Not at every request until then.
            held.renew = Some(Timestamp(now.0 + (end.0 - now.0) / 2));
        }
        let grant = held.grants.iter().find(|grant| grant.prefix == prefix);
        grant.map(|grant| grant.keys.clone()).ok_or_else(|| format!("the catalog lends no keys for {prefix} any more"))
    }

    async fn ask(&self, held: &mut Held) -> Result<(), String> {
        // Their life counts from before they were asked for.
        let now = Clock::system();
        let grants = (self.0.lender)().await?;
        self.0.hidden.lock().unwrap_or_else(PoisonError::into_inner).extend(secrets(&grants));
        let soonest = Timestamp(now.0 + RENEW_PAUSE_MS);
        held.renew = renew_at(&grants, now).map(|renew| renew.max(soonest));
        held.grants = grants;
        self.0.generation.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// What a store said, without what we sent it.
    pub(super) fn redact(&self, said: String) -> String {
        let hidden = self.0.hidden.lock().unwrap_or_else(PoisonError::into_inner);
        hidden.iter().fold(said, |said, secret| said.replace(secret.reveal(), "***"))
    }
}

fn secrets(grants: &[Grant]) -> Vec<Secret> {
    grants.iter().flat_map(|grant| grant.keys.secrets()).filter(|secret| !secret.reveal().is_empty()).cloned().collect()
}

/// When to ask again for keys that were asked for at `now`.
fn renew_at(grants: &[Grant], now: Timestamp) -> Option<Timestamp> {
    let end = grants.iter().filter_map(|grant| grant.until).min()?;
    let life = end.0.saturating_sub(now.0).max(0);
    Some(Timestamp(end.0 - RENEW_BEFORE_MS.min(life / 5)))
}

/// Hands the keys for one prefix to a store, whenever it signs a request.
pub(super) struct Borrowed<C> {
    lent: Lent,
    prefix: String,
    /// An error does not quote the keys.
    as_credential: fn(Keys) -> Result<C, &'static str>,
}

impl<C> fmt::Debug for Borrowed<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({})", self.prefix)
    }
}

#[async_trait::async_trait]
impl<C: Send + Sync> CredentialProvider for Borrowed<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let keys = self.lent.keys(&self.prefix).await;
        let credential = keys.and_then(|keys| (self.as_credential)(keys).map_err(str::to_owned));
        let failed = |reason: String| object_store::Error::Generic { store: "lent", source: reason.into() };
        credential.map(Arc::new).map_err(failed)
    }
}

/// The catalog's later answer has keys of another kind.
const OTHER_KIND: &str = "the catalog lends keys of another kind of store now";

impl Lent {
    /// For a store of S3.
    pub(super) fn for_s3(&self, grant: &Grant) -> Arc<Borrowed<AwsCredential>> {
        self.borrowed(grant, |keys| match keys {
            Keys::S3 { access_key_id, secret_access_key, session_token } => Ok(AwsCredential {
                key_id: access_key_id.reveal().to_owned(),
                secret_key: secret_access_key.reveal().to_owned(),
                token: session_token.map(|token| token.reveal().to_owned()),
            }),
            Keys::Gcs(_) | Keys::Azure(_) => Err(OTHER_KIND),
        })
    }

    /// For a store of Google Cloud Storage.
    pub(super) fn for_gcs(&self, grant: &Grant) -> Arc<Borrowed<GcpCredential>> {
        self.borrowed(grant, |keys| match keys {
            Keys::Gcs(token) => Ok(GcpCredential { bearer: token.reveal().to_owned() }),
            Keys::S3 { .. } | Keys::Azure(_) => Err(OTHER_KIND),
        })
    }

    /// For a store of Azure.
    pub(super) fn for_azure(&self, grant: &Grant) -> Arc<Borrowed<AzureCredential>> {
        self.borrowed(grant, |keys| match keys {
            Keys::Azure(signature) => split_sas(signature.reveal())
                .map(AzureCredential::SASToken)
                .map_err(|_| "the catalog lends no valid shared access signature"),
            Keys::S3 { .. } | Keys::Gcs(_) => Err(OTHER_KIND),
        })
    }

    fn borrowed<C>(&self, grant: &Grant, as_credential: fn(Keys) -> Result<C, &'static str>) -> Arc<Borrowed<C>> {
        Arc::new(Borrowed { lent: self.clone(), prefix: grant.prefix.clone(), as_credential })
    }
}
