//! Where the state database is: a SQLite file with its folder of lock files, or a PostgreSQL server.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sqlx::any::AnyConnectOptions;

use super::StateError;
use crate::config::{PostgresUrl, Secret};
use crate::postgres::{self, Server};

/// What a path may not hold as part of a URL. `%` is among them, so that decoding gives the path back.
const PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');
/// What a lock file's name may not hold.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

#[derive(Debug)]
pub(super) enum Place {
    /// SQLite, for processes of one machine.
    File(DatabaseFile),
    /// PostgreSQL, for replicas anywhere.
    Server(Server),
}

#[derive(Debug)]
pub(super) struct DatabaseFile {
    database: PathBuf,
    mode: String,
}

impl Place {
    pub(super) fn of(database: &Secret) -> Result<Self, StateError> {
        if PostgresUrl::is_meant(database.reveal()) {
            return Server::of(database).map(Self::Server).map_err(|reason| StateError::BadUrl { reason });
        }
        DatabaseFile::of(database).map(Self::File)
    }

    /// For messages: a path, or an address without its password.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::File(file) => file.database.display().to_string(),
            Self::Server(server) => server.shown(),
        }
    }

    pub(super) fn options(&self) -> Result<AnyConnectOptions, StateError> {
        match self {
            Self::File(file) => {
                postgres::install_drivers();
                file.url().parse().map_err(|error: sqlx::Error| StateError::BadUrl { reason: error.to_string() })
            }
            Self::Server(server) => Ok(server.options()),
        }
    }
}

impl DatabaseFile {
    fn of(database: &Secret) -> Result<Self, StateError> {
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

    fn url(&self) -> String {
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
