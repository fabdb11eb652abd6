//! What Icewarden remembers between runs: one database, and a folder of files beside it (the plans store).
//!
//! - Owns the database's layout (`migrations/`) and every statement that is sent to it; one noun a file.
//! - Decides nothing, and reads no clock but that of a PostgreSQL server, for leases: other times are arguments.
//! - An intent or a lease that was written is on the disk when the call returns (SQLite: WAL, `synchronous = FULL`;
//!   PostgreSQL: `synchronous_commit = on`).
//! - What reads first and writes then does so in a transaction that no other one overlaps: see `State::write`.
//! - Losing all of it loses history and pending marks, never data: keeps and holds are files too.
//!
//! The statements are text that SQLite and PostgreSQL both read, sent through sqlx's `Any` driver.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::{AnyPoolOptions, AnyRow};
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Any, AnyConnection, AnyPool, Connection, Executor, Row, SqlSafeStr, Transaction};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::config::Secret;
use crate::model::{Age, TableName, Timestamp};
use crate::postgres;

mod audit;
mod borders;
mod error;
mod findings;
mod holds;
mod intents;
mod keeps;
mod leases;
mod list_file;
mod lock;
mod marks;
mod mirror_lock;
mod place;
mod plan_store;
mod plans;
mod ref_memory;
mod roots;
mod runs;
#[cfg(test)]
mod tests;

pub use audit::AuditRow;
pub use borders::Borders;
pub use error::StateError;
pub use findings::{Finding, FindingKind, Observation, Severity};
pub use holds::{Hold, HoldScope};
pub use intents::{Closed, Intent};
pub use keeps::Keep;
pub use leases::{Acquired, Holder, Lease, LeaseGuard};
pub use list_file::{Entry, Line, ListError, ListFile, ListReader, ListWriter, Retained};
pub use marks::{MarkFilter, MarkList, MarkStatus};
pub use plan_store::{Plans, PlansError};
pub use plans::{Bound, Confirmation, PlanRecord};
pub use runs::Run;

use lock::LockFile;
use place::Place;

/// One writes while others read; more would only wait.
const CONNECTIONS: u32 = 4;
/// How long a statement may wait for a connection before the database counts as out of reach.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// The advisory lock of PostgreSQL that stands for SQLite's lock on writing; any number that nobody else takes.
const WRITERS: i64 = 0x6963_6577_6172_6465;

/// The state database. Cheap to clone; all clones share one pool of connections.
#[derive(Debug, Clone)]
pub struct State {
    pool: AnyPool,
    place: Arc<Place>,
    /// Whoever changes files of the plans store in this process (see `mirror_lock.rs`).
    mirrors: Arc<Mutex<()>>,
}

impl State {
    /// Opens the database at `sqlite:///path`, and creates the file if it is missing (its folder must be there), or at
    /// `postgres://user:password@host/database`, which must be there, with our tables or with none.
    ///
    /// Processes that open one database at once wait for each other, so that its layout is made once.
    pub async fn open(database: &Secret) -> Result<Self, StateError> {
        let place = Place::of(database)?;
        let opening = match &place {
            Place::File(file) => {
                file.prepare()?;
                Some(LockFile::wait(&file.lock_file("_open")).await?)
            }
            // sqlx's migrations take an advisory lock there.
            Place::Server(_) => None,
        };
        let options = place.options()?;
        let failed = |error| StateError::from_sqlx(place.shown(), "open it", &error);
        // By itself first: a pool takes a connection that cannot be set up for one that may get better, and
        // tries again for half a minute.
        let first = match &place {
            Place::File(_) => {
                let mut first = AnyConnection::connect_with(&options).await.map_err(failed)?;
                set_up_file(&mut first).await.map_err(failed)?;
                first
            }
            Place::Server(server) => server.connect().await.map_err(failed)?,
        };
        let is_server = matches!(place, Place::Server(_));
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    if is_server { postgres::set_up(connection).await } else { set_up_file(connection).await }
                })
            })
            .connect_with(options)
            .await
            .map_err(failed)?;
        first.close().await.map_err(failed)?;
        let state = Self { pool, place: Arc::new(place), mirrors: Arc::default() };
        if is_server {
            state.refuse_foreign().await?;
        }
        state.migrate().await?;
        state.probe().await?;
        drop(opening);
        Ok(state)
    }

    /// The database's file, or its address without a password: for messages.
    pub fn database(&self) -> String {
        self.place.shown()
    }

    /// Ends all connections. The last one folds SQLite's write-ahead log into the database.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// How far our system clock is ahead of the database's, and whose clock that is; `None` for a file (safety rule 3).
    pub async fn clock_skew(&self) -> Result<Option<(String, Age)>, StateError> {
        if matches!(*self.place, Place::File(_)) {
            return Ok(None);
        }
        let failed = self.failed("ask what time it is");
        let mut connection = self.pool.acquire().await.map_err(&failed)?;
        let skew = postgres::clock_skew(&mut connection).await.map_err(&failed)?;
        Ok(Some((self.database(), skew)))
    }

    /// A database that has tables, but none of ours, is somebody else's: nothing is added to it.
    async fn refuse_foreign(&self) -> Result<(), StateError> {
        let doing = "look what it holds";
        let rows = sqlx::query(
            "SELECT CAST(table_name AS TEXT) AS name FROM information_schema.tables
             WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' ORDER BY table_name",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(self.failed(doing))?;
        let names: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get("name")).collect();
        let names = names.map_err(self.failed(doing))?;
        // Its migrations say whose they are.
        if names.is_empty() || names.iter().any(|name| name == "_sqlx_migrations") {
            return Ok(());
        }
        let more = if names.len() > 3 { ", …" } else { "" };
        let tables = format!("{}{more}", names[..names.len().min(3)].join(", "));
        Err(StateError::NotOurs { database: self.database(), tables })
    }

    async fn migrate(&self) -> Result<(), StateError> {
        let first = Migration::new(
            1,
            "state".into(),
            MigrationType::Simple,
            include_str!("../migrations/0001_state.sql").into_sql_str(),
            false,
        );
        let doing = "lay out its tables";
        Migrator::with_migrations(vec![first]).run(&self.pool).await.map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                StateError::from_sqlx(self.database(), doing, &error)
            }
            MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => {
                StateError::OtherVersion { database: self.database(), version }
            }
            other => StateError::Failed { database: self.database(), doing, reason: other.to_string() },
        })
    }

    /// A file that cannot be written opens without complaint, and so does a server that only reads; both would fail at
    /// the first intent only. The statement changes nothing, but needs the right to write.
    async fn probe(&self) -> Result<(), StateError> {
        sqlx::query("UPDATE leases SET token = token WHERE name = ''")
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("write to it"))
    }

    /// A transaction that will write, and that no other such one overlaps: what it has read is still so when it writes.
    ///
    /// SQLite's own lock is taken at once: a transaction that reads first and writes later is refused, without waiting,
    /// if somebody wrote in between. In PostgreSQL an advisory lock is taken first and kept until the end. Serialisable
    /// transactions would do, too, but each would have to be a closure that can be run again; these are short, and the
    /// work that they are about takes minutes. They must be `read committed`, as `postgres::set_up` says: with the other
    /// levels what a transaction sees would be chosen before the lock is had.
    ///
    /// A single statement needs no such transaction: both databases look at its condition again once they have the row.
    async fn write(&self, doing: &'static str) -> Result<Transaction<'static, Any>, StateError> {
        match &*self.place {
            Place::File(_) => self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(self.failed(doing)),
            Place::Server(_) => {
                let mut transaction = self.begin_on_server().await.map_err(self.failed(doing))?;
                advisory_lock(&mut transaction, WRITERS).await.map_err(self.failed(doing))?;
                Ok(transaction)
            }
        }
    }

    /// Begins a transaction in PostgreSQL, in a task of its own: should the caller be dropped while BEGIN is under way,
    /// sqlx would put the connection back with a transaction that it does not know of, and what others then write on
    /// it would wait for a commit that never comes. What the task has begun is rolled back when nobody takes it.
    async fn begin_on_server(&self) -> Result<Transaction<'static, Any>, sqlx::Error> {
        let pool = self.pool.clone();
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        begun.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed))
    }

    /// Turns a database error into ours. `doing` completes "cannot …".
    fn failed(&self, doing: &'static str) -> impl Fn(sqlx::Error) -> StateError + '_ {
        move |error| StateError::from_sqlx(self.database(), doing, &error)
    }
}

/// Waits for an advisory lock of PostgreSQL; it ends with the transaction, however that ends.
async fn advisory_lock(transaction: &mut Transaction<'static, Any>, lock: i64) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(lock).execute(&mut **transaction).await.map(drop)
}

/// What each connection to SQLite must be told. WAL lets others read while one writes; FULL puts each commit on the disk.
async fn set_up_file(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let pragmas = "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
                   PRAGMA foreign_keys = ON";
    connection.execute(sqlx::raw_sql(pragmas)).await.map(drop)
}

/// Levels of a namespace as one column.
fn namespace(table: &TableName) -> String {
    json(&table.namespace)
}

/// JSON text of a value whose serialisation cannot fail: lists of strings and numbers, plain structs.
fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn from_json<T: DeserializeOwned>(row: &AnyRow, column: &str) -> Result<T, sqlx::Error> {
    let text: String = row.try_get(column)?;
    serde_json::from_str(&text)
        .map_err(|error| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}

fn parsed<T>(row: &AnyRow, column: &str) -> Result<T, sqlx::Error>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text: String = row.try_get(column)?;
    text.parse().map_err(|error: T::Err| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}

fn table(row: &AnyRow) -> Result<TableName, sqlx::Error> {
    Ok(TableName {
        catalog: row.try_get("catalog")?,
        namespace: from_json(row, "namespace")?,
        name: row.try_get("table_name")?,
    })
}

fn time(row: &AnyRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get(column).map(Timestamp)
}

fn time_or_none(row: &AnyRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp))
}

fn uuid_or_none(row: &AnyRow, column: &str) -> Result<Option<Uuid>, sqlx::Error> {
    row.try_get::<Option<String>, _>(column)?.map(|_| parsed(row, column)).transpose()
}

/// Counts and bytes; the database's integers are signed, and nothing we count comes near their end.
fn count(row: &AnyRow, column: &str) -> Result<u64, sqlx::Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|error| sqlx::Error::ColumnDecode { index: column.to_owned(), source: error.into() })
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// A word of a closed set that the database has and this version does not know.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no known {1}")]
pub struct UnknownWord(String, &'static str);
