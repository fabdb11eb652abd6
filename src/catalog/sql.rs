//! SQL catalogs in the JDBC layout: the rows that pyiceberg's and Java's SQL catalogs read and write, in SQLite or
//! PostgreSQL.
//!
//! A commit writes the next metadata file, then swaps the table's pointer in one UPDATE that holds only while the
//! pointer is the one the commit was made for. The SQL is the same for both. The catalog's tables are its writers' to
//! make: none are made here, but in new SQLite files for the demo.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iceberg::{TableRequirement, TableUpdate};
use sqlx::{AnyConnection, Row};
use uuid::Uuid;

use super::metadata::edit::{self, RequirementError};
use super::metadata::{self, MetadataError};
use super::{CatalogError, CommitOutcome, Committing, ListedTable, LoadedTable};
use crate::config::Secret;
use crate::model::{Age, TableName, TableState, Timestamp};
use crate::postgres;
use crate::storage::{Storage, StorageErrorKind};

mod place;

use place::{Place, parse_uri, told};

/// How often a load follows a pointer that moves while its file is read.
const LOAD_ATTEMPTS: usize = 5;

/// How long the swap may take. A server that does not answer by then may make it still, or have made it.
const SWAP_TIMEOUT: Duration = Duration::from_mins(1);

/// Layout V0 has no `iceberg_type`; V1 has, and keeps views in the same table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    V0,
    V1,
}

impl Layout {
    fn list(self) -> &'static str {
        match self {
            Self::V0 => {
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = $1"
            }
            Self::V1 => {
                "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = $1 \
                 AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
            }
        }
    }

    fn load(self) -> &'static str {
        match self {
            Self::V0 => {
                "SELECT metadata_location FROM iceberg_tables \
                 WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3"
            }
            Self::V1 => {
                "SELECT metadata_location FROM iceberg_tables \
                 WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3 \
                 AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
            }
        }
    }

    fn swap(self) -> &'static str {
        match self {
            Self::V0 => {
                "UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2 \
                 WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND metadata_location = $6"
            }
            Self::V1 => {
                "UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2 \
                 WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND metadata_location = $6 \
                 AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
            }
        }
    }
}

const CREATE_TABLES: &str = "CREATE TABLE iceberg_tables (\
     catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, \
     metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5), \
     PRIMARY KEY (catalog_name, table_namespace, table_name))";

const CREATE_NAMESPACE_PROPERTIES: &str = "CREATE TABLE iceberg_namespace_properties (\
     catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL, \
     property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))";

/// A SQL catalog in a SQLite file or a PostgreSQL database. Its name is the `catalog_name` of its rows.
#[derive(Debug, Clone)]
pub struct SqlCatalog {
    name: String,
    place: Place,
    storage: Storage,
}

impl SqlCatalog {
    /// Opens the catalog at `uri`: `sqlite:///absolute/path` or `postgres://user:password@host/database`. It must be
    /// there and hold the catalog's tables: a mistyped path must not become an empty catalog. `warehouse` is not needed:
    /// rows name full locations.
    pub async fn open(
        name: &str,
        uri: &Secret,
        warehouse: Option<&str>,
        storage: Storage,
    ) -> Result<Self, CatalogError> {
        let _ = warehouse;
        let place = Place::of(uri).map_err(|reason| unavailable(name, "open", reason))?;
        let catalog = Self { name: name.to_owned(), place, storage };
        let mut connection = catalog.connect("open").await?;
        catalog.layout(&mut connection, "open").await?;
        Ok(catalog)
    }

    /// Makes a new catalog file in layout V1 and opens it. For demonstrations and tests; an existing file is an error,
    /// and so is a server.
    pub async fn create(name: &str, uri: &Secret, storage: Storage) -> Result<Self, CatalogError> {
        let (options, file) = parse_uri(uri.reveal()).map_err(|reason| unavailable(name, "create", reason))?;
        let failed = |error: &dyn std::fmt::Display| unavailable(name, "create", error.to_string());
        // An empty file is an empty database, and this is the one way to make it that never takes over another's.
        tokio::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&file)
            .await
            .map_err(|error| unavailable(name, "create", format!("{}: {error}", file.display())))?;
        let catalog = Self { name: name.to_owned(), place: Place::File { file, options }, storage };
        let mut connection = catalog.connect("create").await?;
        for statement in [CREATE_TABLES, CREATE_NAMESPACE_PROPERTIES] {
            sqlx::query(statement).execute(&mut connection).await.map_err(|error| failed(&error))?;
        }
        Ok(catalog)
    }

    /// Enters a table whose metadata file is there already. For demonstrations and tests.
    pub async fn register(&self, table: &TableName, metadata_location: &str) -> Result<(), CatalogError> {
        const ACTION: &str = "register a table in";
        let failed = |error: sqlx::Error| unavailable(&self.name, ACTION, error.to_string());
        let mut connection = self.connect(ACTION).await?;
        let namespace = table.namespace.join(".");
        // As pyiceberg marks a namespace that has no properties.
        sqlx::query(
            "INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value) \
             VALUES ($1, $2, 'exists', 'true') ON CONFLICT DO NOTHING",
        )
        .bind(&self.name)
        .bind(&namespace)
        .execute(&mut connection)
        .await
        .map_err(failed)?;
        sqlx::query(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) \
             VALUES ($1, $2, $3, $4, 'TABLE')",
        )
        .bind(&self.name)
        .bind(&namespace)
        .bind(&table.name)
        .bind(metadata_location)
        .execute(&mut connection)
        .await
        .map_err(failed)?;
        Ok(())
    }

    /// The name of its `[[catalog]]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How far our system clock is ahead of the server's, and whose clock that is; `None` for a file (safety rule 3).
    pub async fn clock_skew(&self) -> Result<Option<(String, Age)>, CatalogError> {
        const ACTION: &str = "ask for the time of";
        if matches!(self.place, Place::File { .. }) {
            return Ok(None);
        }
        let mut connection = self.connect(ACTION).await?;
        let skew = postgres::clock_skew(&mut connection).await;
        let skew = skew.map_err(|error| unavailable(&self.name, ACTION, error.to_string()))?;
        Ok(Some((self.place.shown(), skew)))
    }

    /// Every table of this catalog's name, sorted by name; views are left out.
    pub async fn list_tables(&self) -> Result<Vec<ListedTable>, CatalogError> {
        const ACTION: &str = "list tables of";
        let failed = |error: sqlx::Error| unavailable(&self.name, ACTION, error.to_string());
        let mut connection = self.connect(ACTION).await?;
        let layout = self.layout(&mut connection, ACTION).await?;
        let rows = sqlx::query(layout.list()).bind(&self.name).fetch_all(&mut connection).await.map_err(failed)?;
        let mut tables = Vec::with_capacity(rows.len());
        for row in rows {
            let namespace: String = row.try_get(0).map_err(failed)?;
            tables.push(ListedTable {
                name: TableName {
                    catalog: self.name.clone(),
                    namespace: namespace.split('.').map(str::to_owned).collect(),
                    name: row.try_get(1).map_err(failed)?,
                },
                metadata_location: row.try_get(2).map_err(failed)?,
            });
        }
        if tables.is_empty() {
            self.check_name(&mut connection).await?;
        }
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tables)
    }

    /// Whether we may change rows: asked by an UPDATE that matches none.
    pub async fn committing(&self) -> Committing {
        const ACTION: &str = "write to";
        const NO_ROW: &str = "UPDATE iceberg_tables SET metadata_location = metadata_location WHERE 1 = 0";
        let tried = async {
            let mut connection = self.connect(ACTION).await?;
            let updated = sqlx::query(NO_ROW).execute(&mut connection).await;
            updated.map_err(|error| unavailable(&self.name, ACTION, error.to_string()))
        };
        match tried.await {
            Ok(_) => Committing::Offered("its rows may be changed"),
            Err(error) => Committing::Refused(error.to_string()),
        }
    }

    /// The table that its row points at now.
    pub async fn load(&self, table: &TableName) -> Result<LoadedTable, CatalogError> {
        let mut location = self.pointer(table).await?;
        let mut attempts = LOAD_ATTEMPTS;
        loop {
            attempts -= 1;
            let source = match metadata::read(&self.storage, &location).await {
                Ok((metadata, state)) => {
                    let (name, state) = (table.clone(), Arc::new(state));
                    let storage = self.storage.clone();
                    return Ok(LoadedTable { name, metadata_location: location, metadata, state, storage });
                }
                Err(source) => source,
            };
            // A commit may have moved the pointer on and removed the file, as it fell off the log.
            let is_gone = matches!(&source, MetadataError::Storage(e) if e.kind == StorageErrorKind::NotFound);
            let now = if is_gone && attempts > 0 { self.pointer(table).await? } else { location.clone() };
            if now == location {
                return Err(CatalogError::Metadata { table: table.clone(), source });
            }
            location = now;
        }
    }

    /// Commits by compare-and-swap of the pointer. An error of which it is certain that the swap was not made is a
    /// rejection; any other one is unknown.
    pub async fn commit(
        &self,
        base: &LoadedTable,
        requirements: &[TableRequirement],
        updates: &[TableUpdate],
        now: Timestamp,
    ) -> CommitOutcome {
        match edit::check(&base.state, requirements) {
            Ok(()) => {}
            Err(RequirementError::NotMet(reason)) => return CommitOutcome::Conflict { reason, left_behind: None },
            Err(error) => return rejected(&error, None),
        }
        let edited = match edit::apply(&base.metadata, &base.metadata_location, updates, now) {
            Ok(edited) => edited,
            Err(error) => return rejected(&error, None),
        };
        let compress =
            edited.state.property("write.metadata.compression-codec").is_some_and(|c| c.eq_ignore_ascii_case("gzip"));
        let location = next_location(&edited.state, &base.metadata_location, compress);
        let bytes = if compress { gzip(&edited.metadata) } else { Ok(edited.metadata) };
        let bytes = match bytes {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => return rejected(&error, None),
        };
        // Before the file is written: a catalog that cannot be reached leaves nothing behind.
        let mut connection = match self.connect("commit to").await {
            Ok(connection) => connection,
            Err(error) => return rejected(&error, None),
        };
        let layout = match self.layout(&mut connection, "commit to").await {
            Ok(layout) => layout,
            Err(error) => return rejected(&error, None),
        };
        if let Err(outcome) = self.write(&location, bytes).await {
            return outcome;
        }
        let swapped = sqlx::query(layout.swap())
            .bind(&location)
            .bind(&base.metadata_location)
            .bind(&self.name)
            .bind(base.name.namespace.join("."))
            .bind(&base.name.name)
            .bind(&base.metadata_location)
            .execute(&mut connection);
        let Ok(swapped) = tokio::time::timeout(SWAP_TIMEOUT, swapped).await else {
            let seconds = SWAP_TIMEOUT.as_secs();
            return CommitOutcome::Unknown { reason: format!("the catalog did not answer within {seconds} s") };
        };
        match swapped.map(|done| done.rows_affected()) {
            Ok(0) => CommitOutcome::Conflict { reason: self.why_lost(base).await, left_behind: Some(location) },
            Ok(_) => CommitOutcome::Committed,
            // Somebody else was faster, says a server that serialises transactions.
            Err(error) if matches!(postgres::sqlstate(&error), Some("40001" | "40P01")) => {
                CommitOutcome::Conflict { reason: told(&error), left_behind: Some(location) }
            }
            Err(error) if was_not_applied(&error) => rejected(&told(&error), Some(location)),
            Err(error) => CommitOutcome::Unknown { reason: format!("the catalog's answer was lost: {error}") },
        }
    }

    async fn write(&self, location: &str, bytes: Bytes) -> Result<(), CommitOutcome> {
        let Err(error) = self.storage.write_new(location, bytes.clone()).await else { return Ok(()) };
        match error.kind {
            // The name holds a new UUID, so it is our own write, repeated by the store's client.
            StorageErrorKind::AlreadyExists if self.storage.read(location).await.is_ok_and(|there| there == bytes) => {
                Ok(())
            }
            StorageErrorKind::Denied | StorageErrorKind::Unrepresentable | StorageErrorKind::NotFound => {
                Err(rejected(&error, None))
            }
            // It may have been written all the same.
            StorageErrorKind::AlreadyExists | StorageErrorKind::Unavailable => {
                Err(rejected(&error, Some(location.to_owned())))
            }
        }
    }

    async fn why_lost(&self, base: &LoadedTable) -> String {
        match self.pointer(&base.name).await {
            Ok(now) => format!("the table has moved on from {} to {now}", base.metadata_location),
            Err(error) => format!("the table is not at {} any more ({error})", base.metadata_location),
        }
    }

    async fn pointer(&self, table: &TableName) -> Result<String, CatalogError> {
        const ACTION: &str = "load a table of";
        let failed = |error: sqlx::Error| unavailable(&self.name, ACTION, error.to_string());
        let mut connection = self.connect(ACTION).await?;
        let layout = self.layout(&mut connection, ACTION).await?;
        let row = sqlx::query(layout.load())
            .bind(&self.name)
            .bind(table.namespace.join("."))
            .bind(&table.name)
            .fetch_optional(&mut connection)
            .await
            .map_err(failed)?
            .ok_or_else(|| CatalogError::NoSuchTable { table: table.clone() })?;
        row.try_get::<Option<String>, _>(0).map_err(failed)?.ok_or_else(|| CatalogError::BadAnswer {
            table: table.clone(),
            reason: "its row has no metadata_location; register it again or drop it".to_owned(),
        })
    }

    async fn connect(&self, action: &'static str) -> Result<AnyConnection, CatalogError> {
        self.place.connect().await.map_err(|reason| unavailable(&self.name, action, reason))
    }

    /// Asked each time: another client may migrate the catalog while we run.
    async fn layout(&self, connection: &mut AnyConnection, action: &'static str) -> Result<Layout, CatalogError> {
        let probe = sqlx::query("SELECT iceberg_type FROM iceberg_tables WHERE 1 = 0").execute(&mut *connection).await;
        let Err(error) = probe else { return Ok(Layout::V1) };
        let shown = self.place.shown();
        // Told by the code, or by the column's name, so that a lock or a broken disk is not taken for the old layout.
        let (no_column, no_table) = match (postgres::sqlstate(&error), &error) {
            (Some(state), _) => (state == "42703", state == "42P01"),
            (None, sqlx::Error::Database(said)) => {
                let names = |name| said.message().contains(name);
                (names("iceberg_type"), !names("iceberg_type") && names("iceberg_tables"))
            }
            (None, _) => (false, false),
        };
        if no_column {
            return Ok(Layout::V0);
        }
        let reason = if no_table {
            format!("{shown} is a database without Iceberg's tables ({})", told(&error))
        } else {
            format!("{shown}: {}", told(&error))
        };
        Err(unavailable(&self.name, action, reason))
    }

    /// A catalog without tables is fine; one whose name nobody used is a mistake in the configuration.
    async fn check_name(&self, connection: &mut AnyConnection) -> Result<(), CatalogError> {
        let mut names = Vec::new();
        for query in [
            "SELECT DISTINCT catalog_name FROM iceberg_tables",
            "SELECT DISTINCT catalog_name FROM iceberg_namespace_properties",
        ] {
            // The namespaces' table may be missing; tables are what counts.
            for row in sqlx::query(query).fetch_all(&mut *connection).await.unwrap_or_default() {
                names.extend(row.try_get::<String, _>(0));
            }
        }
        names.sort();
        names.dedup();
        if names.is_empty() || names.contains(&self.name) {
            return Ok(());
        }
        let reason = format!(
            "{} holds catalogs [{}], none is called {}; the `name` of a [[catalog]] must be the name that its writers use",
            self.place.shown(),
            names.join(", "),
            self.name
        );
        Err(unavailable(&self.name, "list tables of", reason))
    }
}

fn unavailable(catalog: &str, action: &'static str, reason: String) -> CatalogError {
    CatalogError::Unavailable { catalog: catalog.to_owned(), action, reason }
}

fn rejected(error: &dyn std::fmt::Display, left_behind: Option<String>) -> CommitOutcome {
    CommitOutcome::Rejected { reason: error.to_string(), left_behind }
}

/// Whether the database is sure to have rolled the statement back. What is not listed of SQLite's errors (IO errors, a
/// corrupt file) may show itself only after the commit record was written.
fn was_not_applied(error: &sqlx::Error) -> bool {
    // Primary result codes: ERROR, PERM, BUSY, LOCKED, READONLY, FULL, CANTOPEN, CONSTRAINT, AUTH.
    const ROLLED_BACK: [i32; 9] = [1, 3, 5, 6, 8, 13, 14, 19, 23];
    if postgres::sqlstate(error).is_some() {
        return postgres::was_rolled_back(error);
    }
    let sqlx::Error::Database(said) = error else { return false };
    let code = said.code().and_then(|code| code.parse::<i32>().ok());
    code.is_some_and(|extended| ROLLED_BACK.contains(&(extended & 0xff)))
}

/// Where the file that follows `base` goes, named as Java names it.
fn next_location(state: &TableState, base: &str, compress: bool) -> String {
    let folder = match state.property("write.metadata.path") {
        Some(path) => path.trim_end_matches('/').to_owned(),
        None => format!("{}/metadata", state.location.trim_end_matches('/')),
    };
    let version = version_of(base).map_or(0, |version| version.saturating_add(1));
    let extension = if compress { ".gz.metadata.json" } else { ".metadata.json" };
    format!("{folder}/{version:05}-{}{extension}", Uuid::new_v4())
}

/// The version in a metadata file's name: `00012-<uuid>.metadata.json`, or `v12.metadata.json` of Hadoop tables.
fn version_of(location: &str) -> Option<u32> {
    let name = location.rsplit('/').next()?;
    let number = match name.split_once('-') {
        Some((number, _)) => number,
        None => name.strip_prefix('v')?.split('.').next()?,
    };
    number.parse().ok()
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
