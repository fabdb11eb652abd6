//! Why the state database cannot be used, in words that say what to do.

use std::path::PathBuf;

use crate::postgres;

/// The state database cannot be used. Nothing may be committed or deleted without it.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// `[state] database` is no address of a database.
    #[error(
        "[state] database {reason} (expected sqlite:///path/to/state.db or postgres://user:password@host/database)"
    )]
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
    #[error(
        "{} is not a state database, or is damaged: {reason}; move it away, and a new one is created \
             (history and pending marks start again, no data is lost)",
        database
    )]
    NotADatabase {
        /// The file.
        database: String,
        /// In SQLite's words.
        reason: String,
    },
    /// The database was made by another version.
    #[error(
        "state database {database} was laid out by another version of icewarden (step {version}); use that version or a \
         newer one"
    )]
    OtherVersion {
        /// The file.
        database: String,
        /// The migration that this version does not have.
        version: i64,
    },
    /// The server does not answer.
    #[error(
        "cannot {doing}: state database {database} cannot be reached: {reason}; nothing is committed or deleted without it"
    )]
    Unreachable {
        /// Its address, without a password.
        database: String,
        /// Verb and object.
        doing: &'static str,
        /// In the system's words.
        reason: String,
    },
    /// The server does not let us in, or there is no such database on it.
    #[error("state database {database} refuses us: {reason}; check user, password and database of [state] database")]
    Refused {
        /// Its address, without a password.
        database: String,
        /// In the server's words.
        reason: String,
    },
    /// The user may not do what is needed.
    #[error(
        "state database {database}: cannot {doing}: {reason}; its user must own the database, or may CREATE in its schema, \
         and the server must not be a read-only standby"
    )]
    NotAllowed {
        /// Its address, without a password.
        database: String,
        /// Verb and object.
        doing: &'static str,
        /// In the server's words.
        reason: String,
    },
    /// The database is used by something else.
    #[error(
        "database {database} has tables of something else ({tables}); give the state a database of its own, or a schema: \
         add ?options=-csearch_path%3Dicewarden to the address"
    )]
    NotOurs {
        /// Its address, without a password.
        database: String,
        /// Which tables.
        tables: String,
    },
    /// The file, or its folder, cannot be written.
    #[error(
        "state database {} cannot be written: {reason}; make the file and its folder writable for this user",
        database
    )]
    ReadOnly {
        /// The file.
        database: String,
        /// In SQLite's words.
        reason: String,
    },
    /// No room for the database to grow.
    #[error("no room to write state database {}: {reason}; free some space on its disk", database)]
    DiskFull {
        /// The file.
        database: String,
        /// In SQLite's words.
        reason: String,
    },
    /// Others keep the database locked.
    #[error("state database {}: cannot {doing}: other processes keep it locked", database)]
    Busy {
        /// The file.
        database: String,
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
    #[error("state database {}: cannot {doing}: {reason}", database)]
    Failed {
        /// The file.
        database: String,
        /// Verb and object.
        doing: &'static str,
        /// In the database's words.
        reason: String,
    },
}

impl StateError {
    /// Sorts a database error by PostgreSQL's SQLSTATE or SQLite's primary result code.
    pub(super) fn from_sqlx(database: String, doing: &'static str, error: &sqlx::Error) -> Self {
        if let Some(state) = postgres::sqlstate(error) {
            let reason = error.as_database_error().map(|said| said.message().to_owned()).unwrap_or_default();
            // https://www.postgresql.org/docs/15/errcodes-appendix.html
            return match state {
                "55P03" | "40P01" => Self::Busy { database, doing },
                "53100" => Self::DiskFull { database, reason },
                "25006" | "42501" => Self::NotAllowed { database, doing, reason },
                "3D000" => Self::Refused { database, reason },
                _ => match state.get(..2) {
                    Some("28") => Self::Refused { database, reason },
                    Some("08" | "53" | "57") => Self::Unreachable { database, doing, reason },
                    _ => Self::Failed { database, doing, reason },
                },
            };
        }
        if matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut) {
            return Self::Unreachable { database, doing, reason: error.to_string() };
        }
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
