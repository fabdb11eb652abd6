//! The lock on the files of the plans store that mirror the database: keeps and holds.
//!
//! Two processes that change a mirror at once would lose one of the changes. On one machine a lock file keeps them
//! apart. Replicas share PostgreSQL, so there it is an advisory lock, kept by a transaction while the files are read and
//! written. Should that transaction be ended meanwhile (the server was restarted, or this process was stopped for
//! minutes), [`MirrorLock::still_held`] says so before the file is written. In the moment after, a file may still be
//! overwritten by an older one; the database has all keeps, and the next change writes them to the file again.

use sqlx::{Any, Transaction};
use tokio::sync::OwnedMutexGuard;

use super::lock::LockFile;
use super::place::Place;
use super::{State, StateError, advisory_lock};

#[derive(Debug)]
pub(super) enum MirrorLock {
    File {
        _lock: LockFile,
    },
    Server {
        state: State,
        transaction: Transaction<'static, Any>,
        /// In one process one after another, each with one connection: those that wait must not have all of them.
        _turn: OwnedMutexGuard<()>,
    },
}

impl MirrorLock {
    const DOING: &str = "lock the keeps and holds in the plans store";

    /// Waits for the lock on the mirrors of the plans store that `store` stands for.
    pub(super) async fn wait(state: &State, store: [u8; 8]) -> Result<Self, StateError> {
        match &*state.place {
            Place::File(file) => {
                let path = file.lock_file(&format!("_plans-{}", super::hex(&store)));
                Ok(Self::File { _lock: LockFile::wait(&path).await? })
            }
            Place::Server(_) => {
                let turn = std::sync::Arc::clone(&state.mirrors).lock_owned().await;
                let mut transaction = state.begin_on_server().await.map_err(state.failed(Self::DOING))?;
                advisory_lock(&mut transaction, i64::from_be_bytes(store)).await.map_err(state.failed(Self::DOING))?;
                Ok(Self::Server { state: state.clone(), transaction, _turn: turn })
            }
        }
    }

    /// Makes sure, right before a file is written, that nobody else may have the lock.
    pub(super) async fn still_held(&mut self) -> Result<(), StateError> {
        match self {
            Self::File { .. } => Ok(()),
            Self::Server { state, transaction, .. } => {
                let asked = sqlx::query("SELECT 1").execute(&mut **transaction).await;
                asked.map(drop).map_err(state.failed(Self::DOING))
            }
        }
    }
}
