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
use sqlx::{Any, AnyPool, Executor, Row, SqlSafeStr, Transaction};
use uuid::Uuid;

use crate::config::Secret;
use crate::model::{TableName, Timestamp};

mod audit;
mod error;
mod findings;
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

pub use audit::AuditRow;
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
pub use roots::TableRoots;
pub use runs::Run;

use lock::LockFile;
use place::Place;

/// Writers of SQLite wait for each other this long before they give up.
const BUSY_TIMEOUT_MS: u32 = 10_000;
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
        let pragmas = format!(
            "PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
             PRAGMA foreign_keys = ON"
        );
        let pool = AnyPoolOptions::new()
            .max_connections(CONNECTIONS)
            .after_connect(move |connection, _| {
                let pragmas = sqlx::AssertSqlSafe(pragmas.clone());
                Box::pin(async move { connection.execute(sqlx::raw_sql(pragmas)).await.map(drop) })
            })
            .connect_with(options)
            .await
            .map_err(|error| StateError::from_sqlx(&place.database, "open it", &error))?;
        let state = Self { pool, place: Arc::new(place) };
        state.migrate().await?;
        // A file that cannot be written opens without complaint, and would fail at the first intent only.
        let probe = state.write("write to it").await?;
        probe.rollback().await.map_err(state.failed("write to it"))?;
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

/// A word of a closed set that the database has and this version does not know.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no known {1}")]
pub struct UnknownWord(String, &'static str);
