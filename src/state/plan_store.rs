//! The plans store: files that belong to the state and are too large for the database, or must outlive it.
//!
//! List files and decision files are written once, under new names. Keeps and holds are in two small files
//! beside them, so that a lost database loses none; [`Plans::restore`] puts them back into a new database.
//! What is kept or held is what either place says: a keep is written to the database first, and released there
//! last, so that a crash in between can only keep more.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::mirror_lock::MirrorLock;
use super::{Hold, HoldScope, Keep, ListError, ListFile, ListReader, State, StateError};
use crate::storage::{Storage, StorageError, StorageErrorKind};

const KEEPS: &str = "keeps.json";
const HOLDS: &str = "holds.json";

/// The folder at `[state] plans`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Plans {
    storage: Storage,
    prefix: String,
}

/// The plans store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlansError {
    /// `[state] plans` is no address of a folder.
    #[error("[state] plans = {plans:?}: {reason} (expected file:///path or s3://bucket/prefix)")]
    BadLocation {
        /// As configured.
        plans: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder cannot be made.
    #[error(
        "cannot create the plans store's folder {folder}: {reason}; create it for this user, or correct [state] plans"
    )]
    NoFolder {
        /// Which folder.
        folder: String,
        /// In the system's words.
        reason: String,
    },
    /// A file's name would lead out of the store, or cannot be asked for.
    #[error("{name:?} is no name for a file in the plans store (letters, digits, `-`, `_`, `.`, `/`)")]
    BadName {
        /// The name.
        name: String,
    },
    /// A file cannot be read or written.
    #[error("plans store: cannot {doing} {source}")]
    Storage {
        /// Verb.
        doing: &'static str,
        /// Names the file.
        source: StorageError,
    },
    /// The file of keeps or of holds is damaged. Until it is mended, nothing may be deleted.
    #[error(
        "plans store: {location} cannot be understood: {reason}; mend it, or move it away if the database is whole"
    )]
    Damaged {
        /// Which file.
        location: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A list file cannot be believed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The database that goes with it cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

impl PlansError {
    /// Whether a list is lost or damaged for good, rather than out of reach now.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::List(_) => true,
            Self::Storage { source, .. } => source.kind == StorageErrorKind::NotFound,
            _ => false,
        }
    }
}

impl Plans {
    /// Opens the store at `file:///path` (the folder is made if it is missing) or `s3://bucket/prefix`.
    pub fn open(storage: Storage, plans: &str) -> Result<Self, PlansError> {
        let bad = |reason: String| PlansError::BadLocation { plans: plans.to_owned(), reason };
        let root = storage.rules().root(plans).map_err(|error| bad(error.to_string()))?;
        if let Some(folder) = root.as_str().strip_prefix("file://") {
            if root.is_whole_store() {
                return Err(bad("is the root of the file system".to_owned()));
            }
            std::fs::create_dir_all(folder)
                .map_err(|error| PlansError::NoFolder { folder: folder.to_owned(), reason: error.to_string() })?;
        }
        Ok(Self { storage, prefix: root.as_str().to_owned() })
    }

    /// Where a file of this name is.
    pub fn location(&self, name: &str) -> Result<String, PlansError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_segment =
            |segment: &str| !segment.is_empty() && !segment.starts_with('.') && segment.chars().all(is_plain);
        if !name.split('/').all(is_segment) {
            return Err(PlansError::BadName { name: name.to_owned() });
        }
        Ok(format!("{}{name}", self.prefix))
    }

    /// Writes a file whole or not at all, in the place of one of the same name, and returns its location. It is
    /// on the disk when this returns.
    pub async fn write(&self, name: &str, bytes: Bytes) -> Result<String, PlansError> {
        let location = self.location(name)?;
        self.storage.write(&location, bytes).await.map_err(|source| PlansError::Storage { doing: "write", source })?;
        Ok(location)
    }

    /// Reads a file.
    pub async fn read(&self, location: &str) -> Result<Bytes, PlansError> {
        self.storage.read(location).await.map_err(|source| PlansError::Storage { doing: "read", source })
    }

    /// Opens a list file, checked.
    pub async fn read_list(&self, list: &ListFile) -> Result<ListReader, PlansError> {
        Ok(ListReader::open(self.read(&list.location).await?, list)?)
    }

    /// Puts the keeps and holds of the files into the database, and tells how many it did not have. To be called
    /// when both are opened; an error means that keeps may be unknown, so that nothing may be deleted.
    pub async fn restore(&self, state: &State) -> Result<usize, PlansError> {
        let _lock = self.lock(state).await?;
        let known = state.kept().await?;
        let mut restored = 0;
        for keep in self.mirror::<Keep>(KEEPS).await?.iter().filter(|keep| !known.contains(&keep.location)) {
            state.insert_keep(keep).await?;
            restored += 1;
        }
        let known = state.holds().await?;
        let is_new = |hold: &&Hold| known.iter().all(|other| other.scope != hold.scope);
        for hold in self.mirror::<Hold>(HOLDS).await?.iter().filter(is_new) {
            state.insert_hold(hold).await?;
            restored += 1;
        }
        Ok(restored)
    }

    /// Keeps a file, by its canonical location, until it is released. One that is kept already stays as it is.
    pub async fn keep(&self, state: &State, keep: &Keep) -> Result<(), PlansError> {
        let mut lock = self.lock(state).await?;
        state.insert_keep(keep).await?;
        let mut keeps = self.mirror::<Keep>(KEEPS).await?;
        for known in state.keeps().await? {
            if keeps.iter().all(|other| other.location != known.location) {
                keeps.push(known);
            }
        }
        self.write_mirror(&mut lock, KEEPS, &mut keeps, |keep| keep.location.clone()).await
    }

    /// Releases a kept file. Tells whether it was kept.
    pub async fn release_keep(&self, state: &State, location: &str) -> Result<bool, PlansError> {
        let mut lock = self.lock(state).await?;
        let mut keeps = self.mirror::<Keep>(KEEPS).await?;
        let before = keeps.len();
        keeps.retain(|keep| keep.location != location);
        let was_mirrored = keeps.len() < before;
        if was_mirrored {
            self.write_mirror(&mut lock, KEEPS, &mut keeps, |keep| keep.location.clone()).await?;
        }
        Ok(state.delete_keep(location).await? || was_mirrored)
    }

    /// Stops commits and deletes in a scope until it is released. A hold on the same scope stays as it is.
    pub async fn hold(&self, state: &State, hold: &Hold) -> Result<(), PlansError> {
        let mut lock = self.lock(state).await?;
        state.insert_hold(hold).await?;
        let mut holds = self.mirror::<Hold>(HOLDS).await?;
        for known in state.holds().await? {
            if holds.iter().all(|other| other.scope != known.scope) {
                holds.push(known);
            }
        }
        self.write_mirror(&mut lock, HOLDS, &mut holds, |hold| hold.scope.to_string()).await
    }

    /// Ends the hold on exactly this scope. Tells whether there was one.
    pub async fn release_hold(&self, state: &State, scope: &HoldScope) -> Result<bool, PlansError> {
        let mut lock = self.lock(state).await?;
        let mut holds = self.mirror::<Hold>(HOLDS).await?;
        let before = holds.len();
        holds.retain(|hold| hold.scope != *scope);
        let was_mirrored = holds.len() < before;
        if was_mirrored {
            self.write_mirror(&mut lock, HOLDS, &mut holds, |hold| hold.scope.to_string()).await?;
        }
        Ok(state.delete_hold(scope).await? || was_mirrored)
    }

    /// Two processes that change a mirror at once would lose one of the changes.
    async fn lock(&self, state: &State) -> Result<MirrorLock, PlansError> {
        let mut store = [0; 8];
        store.copy_from_slice(&Sha256::digest(&self.prefix)[..8]);
        Ok(MirrorLock::wait(state, store).await?)
    }

    async fn mirror<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, PlansError> {
        let location = self.location(name)?;
        let bytes = match self.storage.read(&location).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind == StorageErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(PlansError::Storage { doing: "read", source }),
        };
        serde_json::from_slice(&bytes).map_err(|error| PlansError::Damaged { location, reason: error.to_string() })
    }

    async fn write_mirror<T: Serialize>(
        &self,
        lock: &mut MirrorLock,
        name: &str,
        all: &mut [T],
        key: impl Fn(&T) -> String,
    ) -> Result<(), PlansError> {
        all.sort_by_cached_key(key);
        let bytes = serde_json::to_vec_pretty(all)
            .map_err(|error| PlansError::Damaged { location: name.to_owned(), reason: error.to_string() })?;
        lock.still_held().await?;
        self.write(name, bytes.into()).await.map(drop)
    }
}
