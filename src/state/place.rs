//! Where the state database is: its file, its address for sqlx, the folder of its lock files.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::StateError;
use crate::config::Secret;

/// What a path may not hold as part of a URL. `%` is among them, so that decoding gives the path back.
const PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');
/// What a lock file's name may not hold.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

#[derive(Debug)]
pub(super) struct Place {
    pub(super) database: PathBuf,
    mode: String,
}

impl Place {
    pub(super) fn of(database: &Secret) -> Result<Self, StateError> {
        let bad = |reason: &str| StateError::BadUrl { reason: reason.to_owned() };
        let text = database.reveal();
        let (scheme, rest) = text.split_once(':').ok_or_else(|| bad("has no scheme"))?;
        if scheme != "sqlite" {
            return Err(StateError::BadUrl {
                reason: format!("is of kind {scheme:?}, which this version does not know"),
            });
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mode = match query {
            "" => "rwc",
            "mode=rwc" | "mode=rw" | "mode=ro" => &query["mode=".len()..],
            _ => return Err(bad("has parameters; only mode=rwc, mode=rw and mode=ro are known")),
        };
        let path = path.strip_prefix("//").unwrap_or(path);
        let path = percent_decode_str(path).decode_utf8().map_err(|_| bad("is not UTF-8 after decoding"))?;
        if path.is_empty() || path == ":memory:" {
            return Err(bad("names no file"));
        }
        let database = std::path::absolute(Path::new(&*path)).map_err(|_| bad("is a path that cannot be resolved"))?;
        Ok(Self { database, mode: mode.to_owned() })
    }

    /// The folder must be there; that of the lock files is made.
    pub(super) fn prepare(&self) -> Result<(), StateError> {
        let folder = self.folder();
        if !folder.is_dir() {
            return Err(StateError::NoFolder { folder: folder.to_owned() });
        }
        let locks = self.locks();
        std::fs::create_dir_all(&locks).map_err(|error| StateError::Lock {
            path: locks,
            doing: "create folder",
            reason: error.to_string(),
        })
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite://{}?mode={}", utf8_percent_encode(&self.database.to_string_lossy(), PATH), self.mode)
    }

    /// The lock file for this name. Lock files are never removed: whoever still holds a removed one would
    /// not be seen by the next.
    pub(super) fn lock_file(&self, name: &str) -> PathBuf {
        self.locks().join(format!("{}.lock", utf8_percent_encode(name, NAME)))
    }

    fn locks(&self) -> PathBuf {
        self.folder().join("locks")
    }

    fn folder(&self) -> &Path {
        self.database.parent().unwrap_or(Path::new("/"))
    }
}
