//! Makes the demo lake: a SQLite catalog in the JDBC layout, a warehouse folder, and a configuration.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::sql::SqlCatalog;
use crate::config::Secret;
use crate::model::{LocationRules, TableName, Timestamp};
use crate::storage::Storage;

use super::DemoError;
use super::folder::{TableFolder, location_of, make_dir};
use super::stories::{self, TABLES, When};

/// The name of the catalog.
pub const CATALOG: &str = "lake";
/// The configuration's file name; it is written last, so a folder that has it has a whole lake.
pub const CONFIG: &str = "icewarden.toml";
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
    let made = made(folder);
    let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 1);
    let catalog = SqlCatalog::create(CATALOG, &Secret::new(database(&made.folder, "catalog.db")?), storage).await?;
    for (seed, table) in (lake_seed..).zip(&made.tables) {
        let table_folder = TableFolder::make(warehouse.join(&table.namespace[0]).join(&table.name))?;
        let history = stories::tell(&table.name, table_folder, when, seed).await?;
        stories::leave_orphans(&table.name, &history, when)?;
        catalog.register(table, history.metadata_location()).await?;
    }
    write(&made.config, &config_text(&made.folder, now)?)?;
    Ok(made)
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

/// The configuration of the lake. Its paths are absolute, so that it can be used from anywhere.
fn config_text(folder: &Path, now: Timestamp) -> Result<String, DemoError> {
    let location = location_of(folder)?;
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
        catalog = text(database(folder, "catalog.db")?),
        warehouse = text(format!("{location}/warehouse")),
        state = text(database(folder, "state.db")?),
        plans = text(format!("{location}/plans")),
    ))
}

/// What a database URI must not have raw; locations, in contrast, are never encoded.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The URI of a SQLite database in `folder`.
fn database(folder: &Path, name: &str) -> Result<String, DemoError> {
    let location = location_of(&folder.join(name))?;
    let path = location.strip_prefix("file://").unwrap_or(&location);
    Ok(format!("sqlite://{}", utf8_percent_encode(path, ENCODED)))
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
