//! Why the state database cannot be used, in words that say what to do.

use std::path::{Path, PathBuf};

/// The state database cannot be used. Nothing may be committed or deleted without it.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// `[state] database` is no address of a database.
    #[error("[state] database {reason} (expected sqlite:///path/to/state.db)")]
    BadUrl {
        /// What is wrong with it. Never the address itself, which may hold a password.
        reason: String,
    },
    /// The folder that should hold the database is missing.
    #[error("the folder of the state database, {}, does not exist; create it, or correct [state] database", folder.display())]
    NoFolder {
        /// The missing folder.
        folder: PathBuf,
    },
    /// The database's file is something else, or is damaged.
    #[error("{} is not a state database, or is damaged: {reason}; move it away, and a new one is created \
             (history and pending marks start again, no data is lost)", database.display())]
    NotADatabase {
        /// The file.
        database: PathBuf,
        /// In SQLite's words.
        reason: String,
    },
    /// The database was made by another version.
    #[error("state database {} was laid out by another version of icewarden (step {version}); use that version or a newer one",
            database.display())]
    OtherVersion {
        /// The file.
        database: PathBuf,
        /// The migration that this version does not have.
        version: i64,
    },
    /// The file, or its folder, cannot be written.
    #[error("state database {} cannot be written: {reason}; make the file and its folder writable for this user",
            database.display())]
    ReadOnly {
        /// The file.
        database: PathBuf,
        /// In SQLite's words.
        reason: String,
    },
    /// No room for the database to grow.
    #[error("no room to write state database {}: {reason}; free some space on its disk", database.display())]
    DiskFull {
        /// The file.
        database: PathBuf,
        /// In SQLite's words.
        reason: String,
    },
    /// Others keep the database locked.
    #[error("state database {}: cannot {doing}: other processes keep it locked", database.display())]
    Busy {
        /// The file.
        database: PathBuf,
        /// Verb and object.
        doing: &'static str,
    },
    /// A lock file, or the folder of lock files, cannot be used.
    #[error("cannot {doing} {}: {reason}", path.display())]
    Lock {
        /// The file or folder.
        path: PathBuf,
        /// Verb.
        doing: &'static str,
        /// In the system's words.
        reason: String,
    },
    /// The intent was resolved by somebody else in the meantime.
    #[error("intent {id} is not open any more; another run has resolved it")]
    NotOpen {
        /// Which intent.
        id: String,
    },
    /// Anything else, such as an unreadable row.
    #[error("state database {}: cannot {doing}: {reason}", database.display())]
    Failed {
        /// The file.
        database: PathBuf,
        /// Verb and object.
        doing: &'static str,
        /// In the database's words.
        reason: String,
    },
}

impl StateError {
    /// Sorts a database error by SQLite's primary result code.
    pub(super) fn from_sqlx(database: &Path, doing: &'static str, error: &sqlx::Error) -> Self {
        let database = database.to_owned();
        let code = match error {
            sqlx::Error::Database(error) => error.code().and_then(|code| code.parse::<i32>().ok()),
            _ => None,
        };
        let reason = match error {
            sqlx::Error::Database(error) => error.message().to_owned(),
            other => other.to_string(),
        };
        // https://www.sqlite.org/rescode.html; the low byte is the primary code.
        match code.map(|code| code & 0xff) {
            Some(5 | 6) => Self::Busy { database, doing },
            // PERM, READONLY; CANTOPEN is a folder or journal that cannot be written, or a file that is a folder.
            Some(3 | 8 | 14) => Self::ReadOnly { database, reason },
            Some(11 | 26) => Self::NotADatabase { database, reason },
            Some(13) => Self::DiskFull { database, reason },
            _ => Self::Failed { database, doing, reason },
        }
    }
}
