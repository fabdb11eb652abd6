//! Lakes: each kind is made once, kept aside, and restored to the same path for each test, since its metadata holds
//! absolute locations. A test has its lake alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::parts::{self, RestCatalog};

/// Who wrote the lake.
#[derive(Clone, Copy)]
enum Kind {
    Pyiceberg,
    Names,
    Java,
}

static PYICEBERG: Mutex<()> = Mutex::new(());
static NAMES: Mutex<()> = Mutex::new(());
static JAVA: Mutex<()> = Mutex::new(());

/// A lake that this test has alone, with a folder beside it for the state and the configuration.
pub(crate) struct Lake {
    folder: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Lake {
    /// Seven tables of formats 1 and 2, snapshots up to 30 days old: see `make_lake.py`.
    pub(crate) fn by_pyiceberg() -> Self {
        Self::new(Kind::Pyiceberg)
    }

    /// Namespaces, tables and branches with odd names: see `make_names.py`.
    pub(crate) fn of_odd_names() -> Self {
        Self::new(Kind::Names)
    }

    /// One table of format 3, `ops.v3`, all of it new: see `CoreWriter.java`.
    pub(crate) fn by_java() -> Self {
        Self::new(Kind::Java)
    }

    fn new(kind: Kind) -> Self {
        let (name, mutex) = match kind {
            Kind::Pyiceberg => ("pyiceberg", &PYICEBERG),
            Kind::Names => ("names", &NAMES),
            Kind::Java => ("java", &JAVA),
        };
        // A test that failed leaves nothing that the next one does not restore.
        let alone = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let lake = Self { folder: PathBuf::from(parts::variable("ICEWARDEN_SCRATCH")).join(name), _alone: alone };
        if !lake.original().exists() {
            lake.clear();
            fs::create_dir_all(&lake.folder).unwrap();
            match kind {
                Kind::Pyiceberg => drop(parts::python("make_lake.py", &lake.root())),
                Kind::Names => drop(parts::python("make_names.py", &lake.root())),
                Kind::Java => {
                    fs::create_dir_all(lake.root()).unwrap();
                    RestCatalog::serve(&lake.root()).write_format_3("ops.v3");
                }
            }
            fs::rename(lake.root(), lake.original()).unwrap();
        }
        lake.restore();
        lake
    }

    /// Puts the lake back as it was made, and forgets the state.
    pub(crate) fn restore(&self) {
        self.clear();
        parts::output(Command::new("cp").arg("-a").arg(self.original()).arg(self.root()));
        fs::create_dir_all(self.state()).unwrap();
    }

    fn clear(&self) {
        for folder in [self.root(), self.state()] {
            if folder.exists() {
                fs::remove_dir_all(folder).unwrap();
            }
        }
    }

    fn original(&self) -> PathBuf {
        self.folder.join("original")
    }

    /// Holds `catalog.db` and `warehouse`.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("lake")
    }

    /// Holds the state database and the plans.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Writes a configuration for this lake by its SQLite catalog: Iceberg's own rules, no grace.
    pub(crate) fn config(&self) -> PathBuf {
        let uri = format!("sqlite://{}/catalog.db", self.root().display());
        self.config_with(&format!("type = \"sql\"\nuri = \"{uri}\""), "")
    }

    /// The same by a REST catalog.
    pub(crate) fn config_of_rest(&self, rest: &RestCatalog) -> PathBuf {
        self.config_with(&format!("type = \"rest\"\nuri = \"{}\"", rest.uri), "")
    }

    /// The same with other words for the catalog and more for `[expire]`.
    pub(crate) fn config_with(&self, catalog: &str, expire: &str) -> PathBuf {
        let (root, state) = (self.root(), self.state());
        let text = format!(
            r#"
[[catalog]]
name = "lake"
{catalog}
warehouse = "file://{}/warehouse"
[state]
database = "sqlite://{}/icewarden.db"
plans = "file://{}/plans"
[expire]
grace = "0s"
ref_age = "spec"
keep_fork_points = false
{expire}
[guard]
allow_floor_below_minimum = true
"#,
            root.display(),
            state.display(),
            state.display(),
        );
        let path = self.folder.join("icewarden.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// Every file of the warehouse but metadata files, relative to it.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        self.all_files().into_iter().filter(|file| !file.ends_with(".metadata.json")).collect()
    }

    /// Every file of the warehouse, relative to it.
    pub(crate) fn all_files(&self) -> BTreeSet<String> {
        let (mut files, warehouse) = (BTreeSet::new(), self.root().join("warehouse"));
        let mut folders = vec![warehouse.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.insert(path.strip_prefix(&warehouse).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        files
    }

    /// A table as the catalog has it now.
    pub(crate) fn table(&self, name: &str) -> Table {
        self.tables().remove(name).unwrap_or_else(|| panic!("no table {name}"))
    }

    /// Every table as the catalog has it now.
    pub(crate) fn tables(&self) -> BTreeMap<String, Table> {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.root().join("catalog.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let rows: Vec<(String, String, String)> = runtime.block_on(async {
            let mut connection = options.connect().await.unwrap();
            let all = "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables";
            let rows = sqlx::query_as(all).fetch_all(&mut connection).await.unwrap();
            // Closed here and now: a connection that closes after the lake was restored takes the new log with it.
            connection.close().await.unwrap();
            rows
        });
        rows.into_iter().map(|(space, name, location)| (format!("{space}.{name}"), Table::read(&location))).collect()
    }

    /// All rows of every snapshot, read by pyiceberg: table → snapshot → count and digest.
    pub(crate) fn rows(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let read: Value = serde_json::from_str(&parts::python("read_rows.py", &self.root())).unwrap();
        let tables = read.as_object().unwrap().iter();
        tables
            .map(|(name, table)| (name.clone(), serde_json::from_value(table["snapshots"].clone()).unwrap()))
            .collect()
    }
}

/// A table's metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    pub(crate) metadata_file: PathBuf,
    metadata: Value,
}

impl Table {
    pub(crate) fn read(location: &str) -> Self {
        let metadata_file = local(location);
        // A test may have broken the file on purpose.
        let metadata = fs::read(&metadata_file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self { metadata_file, metadata: metadata.unwrap_or_default() }
    }

    pub(crate) fn snapshots(&self) -> BTreeSet<i64> {
        self.each_snapshot().map(|snapshot| snapshot["snapshot-id"].as_i64().unwrap()).collect()
    }

    pub(crate) fn refs(&self) -> BTreeMap<String, i64> {
        let refs = self.metadata["refs"].as_object().into_iter().flatten();
        refs.map(|(name, target)| (name.clone(), target["snapshot-id"].as_i64().unwrap())).collect()
    }

    /// The manifest list of `main`'s head.
    pub(crate) fn current_manifest_list(&self) -> PathBuf {
        let head = self.refs()["main"];
        let snapshot = self.each_snapshot().find(|snapshot| snapshot["snapshot-id"] == head).unwrap();
        local(snapshot["manifest-list"].as_str().unwrap())
    }

    /// How many commits the table has had: metadata files are numbered.
    pub(crate) fn version(&self) -> u32 {
        let name = self.metadata_file.file_name().unwrap().to_str().unwrap();
        name.split('-').next().unwrap().parse().unwrap()
    }

    fn each_snapshot(&self) -> impl Iterator<Item = &Value> {
        self.metadata["snapshots"].as_array().into_iter().flatten()
    }
}

/// The path of a `file:` location.
fn local(location: &str) -> PathBuf {
    let path = location.strip_prefix("file:").unwrap_or(location);
    Path::new("/").join(path.trim_start_matches('/'))
}
