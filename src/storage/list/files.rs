//! Folders of this machine, walked by ourselves: `object_store` follows symbolic links out of the folder, hides names that
//! end in `#` and digits, and fails on names that it cannot represent.

use std::fs::{DirEntry, FileType, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use tokio::task::JoinSet;

use super::{BATCH, Listed, Sink, Stopped, error_of};
use crate::model::{Location, ObjectFacts, Root, Timestamp};
use crate::storage::{StorageError, StorageErrorKind};

/// What one folder held beside its files.
struct Walked {
    folders: Vec<PathBuf>,
    /// It was gone when we came to it.
    is_gone: bool,
}

/// Lists the folder at `at`; some of those in it side by side.
pub(super) async fn list(root: &Root, at: &Location, at_once: usize, sink: &Sink) -> Result<(), Stopped> {
    let top = PathBuf::from(format!("/{}", at.key()));
    // What a link at the root itself leads to is what was configured; none in it is followed.
    let mut waiting = vec![top.clone()];
    let mut walks: JoinSet<Result<Walked, Stopped>> = JoinSet::new();
    let store: Arc<str> = at.store().into();
    let mut was_there = false;
    loop {
        while walks.len() < at_once
            && let Some(folder) = waiting.pop()
        {
            let (sink, store, root) = (sink.clone(), Arc::clone(&store), root.clone());
            walks.spawn_blocking(move || walk(&root, &store, &folder, &sink));
        }
        let Some(walked) = walks.join_next().await else { return Ok(()) };
        let broke = |error| error_of(root, StorageErrorKind::Unavailable, &format!("reading broke off ({error})"));
        let walked = walked.map_err(broke)??;
        // A folder in it may be deleted while we read. If all is gone, somebody took the disk away.
        was_there |= !walked.is_gone;
        if walked.is_gone && was_there && !matches!(top.try_exists(), Ok(true)) {
            return Err(error_of(root, StorageErrorKind::NotFound, "it was taken away meanwhile").into());
        }
        waiting.extend(walked.folders);
    }
}

/// Reads one folder.
fn walk(root: &Root, store: &str, folder: &Path, sink: &Sink) -> Result<Walked, Stopped> {
    sink.progress.requests.fetch_add(1, Ordering::Relaxed);
    let mut folders = Vec::new();
    let mut batch = Vec::new();
    let is_there = read(root, store, folder, |entry| {
        match entry {
            Entry::Folder(folder) => folders.push(folder.path()),
            Entry::File(listed) => batch.push(listed),
        }
        if batch.len() == BATCH {
            sink.send_blocking(std::mem::take(&mut batch))?;
        }
        Ok::<(), Stopped>(())
    })?;
    sink.send_blocking(batch)?;
    Ok(Walked { folders, is_gone: !is_there })
}

/// The names of the folders directly in one, and what else is in it.
pub(super) fn level(root: &Root, store: &str, folder: &Path) -> Result<(Vec<Vec<u8>>, Vec<Listed>), StorageError> {
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    // What is not there holds nothing.
    let _is_there = read(root, store, folder, |entry| {
        match entry {
            Entry::Folder(folder) => folders.push(folder.file_name().as_bytes().to_vec()),
            Entry::File(listed) => files.push(listed),
        }
        Ok::<(), StorageError>(())
    })?;
    Ok((folders, files))
}

/// Something in a folder.
enum Entry {
    Folder(DirEntry),
    File(Listed),
}

/// Tells all that is in a folder; whether the folder is there.
fn read<E: From<StorageError>>(
    root: &Root,
    store: &str,
    folder: &Path,
    mut each: impl FnMut(Entry) -> Result<(), E>,
) -> Result<bool, E> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        // A folder that is not there holds nothing, as a prefix of a bucket.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(root, store, folder, &error).into()),
    };
    for entry in entries {
        let entry = entry.map_err(|error| failed(root, store, folder, &error))?;
        let seen = entry
            .file_type()
            .and_then(|kind| if kind.is_dir() { Ok(None) } else { Ok(Some((kind, entry.metadata()?))) });
        match seen {
            Ok(None) => each(Entry::Folder(entry))?,
            Ok(Some((kind, metadata))) => each(Entry::File(listed(store, &entry, kind, &metadata)))?,
            // Deleted since the folder was read.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(root, store, &entry.path(), &error).into()),
        }
    }
    Ok(true)
}

fn listed(store: &str, entry: &DirEntry, kind: FileType, metadata: &Metadata) -> Listed {
    let facts = facts(metadata);
    let path = entry.path();
    let key = path.as_os_str().as_bytes();
    let listed = Listed::of(store, key.strip_prefix(b"/").unwrap_or(key), facts);
    let why = if kind.is_symlink() {
        "it is a symbolic link, which is not followed"
    } else if !kind.is_file() {
        "it is no regular file"
    } else if is_hidden(entry.file_name().as_bytes()) {
        "its name ends in # and digits, as the parts of an upload"
    } else {
        return listed;
    };
    Listed::Unrepresentable { location: listed.location().to_owned(), facts: listed.facts().clone(), why }
}

/// Names that `object_store` keeps for uploads that are not done: what it has after the first `#` are digits.
fn is_hidden(name: &[u8]) -> bool {
    let Some(at) = name.iter().position(|byte| *byte == b'#') else { return false };
    let suffix = &name[at + 1..];
    !suffix.is_empty() && suffix.iter().all(u8::is_ascii_digit)
}

/// As `object_store` tells them of one file, so that both can be compared.
fn facts(metadata: &Metadata) -> ObjectFacts {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let modified = i64::try_from(since.as_millis()).ok().map(Timestamp).filter(|time| time.0 > 0);
    let etag = format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), since.as_micros(), metadata.len());
    ObjectFacts { size: metadata.len(), modified, etag: Some(etag) }
}

fn failed(root: &Root, store: &str, path: &Path, error: &std::io::Error) -> StorageError {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => StorageErrorKind::Denied,
        ErrorKind::NotFound => StorageErrorKind::NotFound,
        _ => StorageErrorKind::Unavailable,
    };
    let location = format!("{store}{}", path.display());
    let reason = format!("cannot be listed: {error} (of {root})");
    StorageError { location, kind, reason }
}
