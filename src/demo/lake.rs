//! Makes the demo lake: a SQLite catalog in the JDBC layout, a warehouse folder, and a configuration.

use std::fs;
use std::path::{Path, PathBuf};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use xxhash_rust::xxh3::xxh3_64;

use crate::model::{TableName, Timestamp};

use super::DemoError;
use super::folder::{TableFolder, location_of, make_dir};
use super::stories::{self, TABLES, When};

/// The name of the catalog.
pub const CATALOG: &str = "lake";
/// The configuration's file name; it is written last, so a folder that has it has a whole lake.
const CONFIG: &str = "icewarden.toml";
/// Says that the folder is ours; written first.
const NOTICE: &str = "README.txt";
const NOTICE_TEXT: &str = "This folder was made by `icewarden demo`, and `icewarden demo --fresh` makes it anew.\n\
    Nothing in it is needed by anything else: it can be deleted.\n";
/// All that a demo folder holds.
const PARTS: [&str; 10] = [
    CONFIG,
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "warehouse",
    "state.db",
    "state.db-wal",
    "state.db-shm",
    "plans",
    "locks",
];

/// A lake that was made.
#[derive(Debug, Clone)]
pub struct MadeLake {
    /// Its folder, absolute.
    pub folder: PathBuf,
    /// The configuration file in it.
    pub config: PathBuf,
    /// The tables.
    pub tables: Vec<TableName>,
}

/// Whether `folder` holds a whole demo lake already.
pub fn find(folder: &Path) -> Result<Option<MadeLake>, DemoError> {
    let config = folder.join(CONFIG);
    let is_ours = holds(&folder.join(NOTICE))? && holds(&config)?;
    if !is_ours {
        return Ok(None);
    }
    Ok(Some(made(absolute(folder)?)))
}

/// Makes the lake in `folder`, as it would be at `now` had it grown for 60 days. A demo lake that is there
/// goes first; a folder that holds anything else is refused.
pub async fn make(folder: &Path, now: Timestamp) -> Result<MadeLake, DemoError> {
    clear(folder)?;
    make_dir(folder)?;
    let folder = absolute(folder)?;
    write(&folder.join(NOTICE), NOTICE_TEXT)?;
    let warehouse = folder.join("warehouse");
    let when = When { now };
    let lake_seed = xxh3_64(format!("{}@{now}", folder.display()).as_bytes());
    let mut pointers = Vec::new();
    for (seed, (namespace, name)) in (lake_seed..).zip(TABLES) {
        let table_folder = TableFolder::make(warehouse.join(namespace).join(name))?;
        let table = stories::tell(name, table_folder, when, seed).await?;
        stories::leave_orphans(name, &table, when)?;
        let (current, previous) = table.pointer();
        pointers.push((namespace, name, current.map(str::to_owned), previous.map(str::to_owned)));
    }
    let catalog = folder.join("catalog.db");
    write_catalog(&catalog, &pointers).await.map_err(|source| DemoError::Catalog { path: catalog.clone(), source })?;
    write(&folder.join(CONFIG), &config_text(&folder, now)?)?;
    Ok(made(folder))
}

fn made(folder: PathBuf) -> MadeLake {
    let name = |(namespace, name): (&str, &str)| TableName {
        catalog: CATALOG.to_owned(),
        namespace: vec![namespace.to_owned()],
        name: name.to_owned(),
    };
    MadeLake { config: folder.join(CONFIG), folder, tables: TABLES.into_iter().map(name).collect() }
}

/// Removes a demo lake, part by part; never anything that the demo did not make.
fn clear(folder: &Path) -> Result<(), DemoError> {
    let failed = |source| DemoError::io("look into", folder, source);
    let is_empty = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(failed(error)),
    };
    if is_empty {
        return Ok(());
    }
    if !holds(&folder.join(NOTICE))? {
        return Err(DemoError::NotADemo { folder: folder.to_owned() });
    }
    // The configuration goes first: without it the rest does not count as a whole lake.
    for part in PARTS {
        let path = folder.join(part);
        let removed = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
            Ok(_) => fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(|source| DemoError::io("remove", &path, source))?,
        }
    }
    Ok(())
}

type Pointer<'a> = (&'a str, &'a str, Option<String>, Option<String>);

/// The two tables of the JDBC layout, V1, as pyiceberg and Java make them.
async fn write_catalog(path: &Path, pointers: &[Pointer<'_>]) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut catalog: SqliteConnection = options.connect().await?;
    let mut transaction = catalog.begin().await?;
    for statement in [
        "CREATE TABLE iceberg_tables (
            catalog_name VARCHAR(255) NOT NULL,
            table_namespace VARCHAR(255) NOT NULL,
            table_name VARCHAR(255) NOT NULL,
            metadata_location VARCHAR(1000),
            previous_metadata_location VARCHAR(1000),
            iceberg_type VARCHAR(5),
            PRIMARY KEY (catalog_name, table_namespace, table_name))",
        "CREATE TABLE iceberg_namespace_properties (
            catalog_name VARCHAR(255) NOT NULL,
            namespace VARCHAR(255) NOT NULL,
            property_key VARCHAR(255) NOT NULL,
            property_value VARCHAR(1000) NOT NULL,
            PRIMARY KEY (catalog_name, namespace, property_key))",
    ] {
        sqlx::query(statement).execute(&mut *transaction).await?;
    }
    for (namespace, name, current, previous) in pointers {
        sqlx::query("INSERT OR IGNORE INTO iceberg_namespace_properties VALUES ($1, $2, 'exists', 'true')")
            .bind(CATALOG)
            .bind(namespace)
            .execute(&mut *transaction)
            .await?;
        sqlx::query("INSERT INTO iceberg_tables VALUES ($1, $2, $3, $4, $5, 'TABLE')")
            .bind(CATALOG)
            .bind(namespace)
            .bind(name)
            .bind(current)
            .bind(previous)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    catalog.close().await
}

/// The configuration of the lake. Its paths are absolute, so that it can be used from anywhere.
fn config_text(folder: &Path, now: Timestamp) -> Result<String, DemoError> {
    let location = location_of(folder)?;
    let path = location.trim_start_matches("file://");
    let text = |value: String| toml::Value::String(value).to_string();
    Ok(format!(
        "# The lake that `icewarden demo` made here at {now}.\n\
         # Every command works on it, for example: icewarden --config {CONFIG} refs\n\
         \n\
         [[catalog]]\n\
         name = \"{CATALOG}\"                # pyiceberg: SqlCatalog(\"{CATALOG}\", uri=\"sqlite:///…/catalog.db\")\n\
         type = \"sql\"\n\
         uri = {catalog}\n\
         warehouse = {warehouse}\n\
         \n\
         [state]\n\
         database = {state}\n\
         plans = {plans}\n\
         \n\
         # From mark to sweep. The demo deletes at once, to show all in one go; a real lake should leave the\n\
         # default of 24h, in which a mark can still be kept by hand.\n\
         [expire]\n\
         grace = \"0s\"\n",
        now = now.show(),
        catalog = text(format!("sqlite://{path}/catalog.db")),
        warehouse = text(format!("{location}/warehouse")),
        state = text(format!("sqlite://{path}/state.db")),
        plans = text(format!("{location}/plans")),
    ))
}

fn write(path: &Path, text: &str) -> Result<(), DemoError> {
    fs::write(path, text).map_err(|source| DemoError::io("write", path, source))
}

fn holds(path: &Path) -> Result<bool, DemoError> {
    path.try_exists().map_err(|source| DemoError::io("look for", path, source))
}

fn absolute(folder: &Path) -> Result<PathBuf, DemoError> {
    fs::canonicalize(folder).map_err(|source| DemoError::io("find", folder, source))
}
