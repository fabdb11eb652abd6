//! What Icewarden remembers between runs: one database, and a folder of files beside it (the plans store).
//!
//! - Owns the database's layout (`migrations/`) and every statement that is sent to it; one noun a file.
//! - Decides nothing, and reads no clock: times are arguments.
//! - An intent or a lease that was written is on the disk when the call returns (WAL, `synchronous = FULL`).
//! - Losing all of it loses history and pending marks, never data: keeps and holds are files too.
//!
//! The statements are text that SQLite and PostgreSQL both read, sent through sqlx's `Any` driver.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, AnyRow};
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Any, AnyConnection, AnyPool, Connection, Executor, Row, SqlSafeStr, Transaction};
use uuid::Uuid;

use crate::config::Secret;
use crate::model::{TableName, Timestamp};

mod audit;
mod drops;
mod error;
mod findings;
mod fork_points;
mod holds;
mod intents;
mod keeps;
mod leases;
mod list_file;
mod lock;
mod marks;
mod place;
mod plan_store;
mod plans;
mod roots;
mod runs;
mod sightings;
#[cfg(test)]
mod tests;

pub use audit::AuditRow;
pub use drops::DropRecord;
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
pub use sightings::KnownRefs;

use lock::LockFile;
use place::Place;

/// One writes while others read; more would only wait.
const CONNECTIONS: u32 = 4;

/// The state database. Cheap to clone; all clones share one pool of connections.
#[derive(Debug, Clone)]
pub struct State {
    pool: AnyPool,
    place: Arc<Place>,
}

impl State {
    /// Opens the database at `sqlite:///path`, and creates the file if it is missing. Its folder must be there.
    ///
    /// Processes that open one database at once wait for each other, so that its layout is made once.
    pub async fn open(database: &Secret) -> Result<Self, StateError> {
        let place = Place::of(database)?;
        place.prepare()?;
        let opening = LockFile::wait(&place.lock_file("_open")).await?;
        sqlx::any::install_default_drivers();
        let options: AnyConnectOptions =
            place.url().parse().map_err(|error: sqlx::Error| StateError::BadUrl { reason: error.to_string() })?;
        let failed = |error| StateError::from_sqlx(&place.database, "open it", &error);
        // By itself first: a pool takes a connection that cannot be set up for one that may get better, and
        // tries again for half a minute.
        let mut first = AnyConnection::connect_with(&options).await.map_err(failed)?;
        set_up(&mut first).await.map_err(failed)?;
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .after_connect(|connection, _| Box::pin(set_up(connection)))
            .connect_with(options)
            .await
            .map_err(failed)?;
        first.close().await.map_err(failed)?;
        let state = Self { pool, place: Arc::new(place) };
        state.migrate().await?;
        state.probe().await?;
        drop(opening);
        Ok(state)
    }

    /// The database's file, for messages.
    pub fn database(&self) -> &Path {
        &self.place.database
    }

    /// Ends all connections. The last one folds the write-ahead log into the database.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    async fn migrate(&self) -> Result<(), StateError> {
        let first = Migration::new(
            1,
            "state".into(),
            MigrationType::Simple,
            include_str!("../migrations/sqlite/0001_state.sql").into_sql_str(),
            false,
        );
        Migrator::with_migrations(vec![first]).run(&self.pool).await.map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                StateError::from_sqlx(&self.place.database, "lay out its tables", &error)
            }
            MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => {
                StateError::OtherVersion { database: self.place.database.clone(), version }
            }
            other => StateError::Failed {
                database: self.place.database.clone(),
                doing: "lay out its tables",
                reason: other.to_string(),
            },
        })
    }

    /// A file that cannot be written opens without complaint, and would fail at the first intent only. The
    /// statement changes nothing, but needs the right to write.
    async fn probe(&self) -> Result<(), StateError> {
        sqlx::query("UPDATE leases SET token = token WHERE name = ''")
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("write to it"))
    }

    /// A transaction that will write. It takes SQLite's write lock at once: one that reads first and writes
    /// later is refused, without waiting, if somebody wrote in between.
    async fn write(&self, doing: &'static str) -> Result<Transaction<'static, Any>, StateError> {
        self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(self.failed(doing))
    }

    /// Turns a database error into ours. `doing` completes "cannot …".
    fn failed(&self, doing: &'static str) -> impl Fn(sqlx::Error) -> StateError + '_ {
        move |error| StateError::from_sqlx(&self.place.database, doing, &error)
    }
}

/// What each connection must be told. WAL lets others read while one writes; FULL puts each commit on the disk.
async fn set_up(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
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
