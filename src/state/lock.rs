//! Locks of the operating system on files: the kernel frees them when their process dies, however it dies.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::StateError;

/// A lock that is held until this is dropped. Two handles exclude each other in one process, too.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
}

impl LockFile {
    /// Takes the lock, or tells that somebody has it.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, StateError> {
        let failed = |doing| {
            move |error: std::io::Error| StateError::Lock { path: path.to_owned(), doing, reason: error.to_string() }
        };
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed("open lock file"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed("lock")(error)),
        }
    }

    /// Waits up to ten seconds for a lock that is only ever held for a moment.
    pub(super) async fn wait(path: &Path) -> Result<Self, StateError> {
        for _ in 0..500 {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(StateError::Lock {
            path: path.to_owned(),
            doing: "lock",
            reason: "another process has held it for 10 s; find it, and end it".to_owned(),
        })
    }

    /// Tells this file from one made anew under the same name, and from one in another folder: device and inode.
    pub(super) fn identity(&self) -> Result<String, std::io::Error> {
        let meta = self.file.metadata()?;
        Ok(format!("{}:{}", meta.dev(), meta.ino()))
    }
}
