//! A lake on an S3 server, and what an expiry may remove from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::binary::Answer;
use crate::parity;
use crate::parts::{S3Server, variable};

/// Its folder and its partitions have names that have to be quoted.
const ODD: (&str, usize, usize) = ("ops.odd", 1, 11);
const BUCKET: &str = "s3://lake/";

/// A table as pyiceberg reads it.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Table {
    pub(crate) refs: BTreeMap<String, i64>,
    /// Each snapshot's rows: count and digest.
    pub(crate) snapshots: BTreeMap<String, String>,
    /// Each snapshot's manifest list, manifests and live files.
    pub(crate) files: BTreeMap<String, BTreeSet<String>>,
    /// The metadata files that the table knows.
    pub(crate) metadata: BTreeSet<String>,
}

pub(crate) type Tables = BTreeMap<String, Table>;

/// The pyiceberg lake in a bucket of its own, made once in a run of the tests.
pub(crate) struct S3Lake {
    pub(crate) folder: PathBuf,
    pub(crate) server: S3Server,
    pub(crate) before: Tables,
}

impl S3Lake {
    /// On moto's server.
    pub(crate) fn new(test: &str) -> Self {
        Self::on(test, |archive| S3Server::serve(Some(archive)))
    }

    /// On SeaweedFS.
    pub(crate) fn on_seaweedfs(test: &str) -> Self {
        Self::on(test, |archive| S3Server::seaweedfs(Some(archive)))
    }

    fn on(test: &str, serve: impl FnOnce(&Path) -> S3Server) -> Self {
        static MADE: Mutex<()> = Mutex::new(());
        let scratch = PathBuf::from(variable("ICEWARDEN_SCRATCH")).join("s3");
        let original = scratch.join("original");
        {
            let _alone = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            if !original.exists() {
                let made = scratch.join("made");
                remove(&made);
                fs::create_dir_all(&made).unwrap();
                let server = S3Server::serve(None);
                server.python("make_lake.py", made.join("lake"), &["--odd", "--warehouse", "s3://lake/wh"]);
                server.save(&made.join("objects.zip"));
                fs::write(made.join("read.json"), server.python("read_rows.py", made.join("lake"), &["--files"]))
                    .unwrap();
                fs::rename(made, &original).unwrap();
            }
        }
        let folder = scratch.join(test);
        remove(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(original.join("lake/catalog.db"), folder.join("catalog.db")).unwrap();
        let before = serde_json::from_slice(&fs::read(original.join("read.json")).unwrap()).unwrap();
        Self { folder, server: serve(&original.join("objects.zip")), before }
    }

    /// Writes a configuration for this lake by its SQLite catalog, with its plans in the bucket too.
    pub(crate) fn config(&self) -> PathBuf {
        self.config_at(&self.server.endpoint)
    }

    /// The same with the bucket elsewhere.
    pub(crate) fn config_at(&self, endpoint: &str) -> PathBuf {
        let catalog = format!("type = \"sql\"\nuri = \"sqlite://{}/catalog.db\"", self.folder.display());
        let storage = format!(
            r#"
[storage."s3://lake"]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "test"
secret_access_key = "testtest"
allow_http = "true"
"#
        );
        self.config_with(&catalog, &storage, "s3://lake/icewarden/plans")
    }

    /// The same with other words for the catalog and the bucket: Iceberg's own rules, no grace.
    pub(crate) fn config_with(&self, catalog: &str, storage: &str, plans: &str) -> PathBuf {
        let text = format!(
            r#"
[[catalog]]
name = "lake"
{catalog}
warehouse = "s3://lake/wh"
{storage}
[state]
database = "sqlite://{}/icewarden.db"
plans = "{plans}"
[expire]
grace = "0s"
ref_age = "spec"
keep_fork_points = false
"#,
            self.folder.display()
        );
        let path = self.folder.join("icewarden.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// All objects but our own plans and marks: key and digest.
    pub(crate) fn objects(&self) -> BTreeMap<String, String> {
        let mut objects = self.server.objects();
        objects.retain(|key, _| !key.starts_with("icewarden/"));
        objects
    }

    pub(crate) fn tables(&self) -> Tables {
        serde_json::from_str(&self.server.python("read_rows.py", &self.folder, &["--files"])).unwrap()
    }

    /// Fails unless this expiry removed from the lake what Iceberg Java removes, by key, byte for byte, and every
    /// retained row is what it was. `before` are the objects that were there. What fell off a metadata log is removed
    /// by us, or by the server where there is one.
    #[track_caller]
    pub(crate) fn assert_expired_as_java_does(&self, before: &BTreeMap<String, String>, expire: &Answer, fallen: &str) {
        let (tables, after) = (self.tables(), self.objects());
        let gone: BTreeSet<&String> = before.keys().filter(|key| !after.contains_key(*key)).collect();

        let mut expected = BTreeSet::new();
        for (name, snapshots, files) in parity::TABLES.into_iter().chain([ODD]) {
            let (was, is) = (&self.before[name], &tables[name]);
            let retained = is.files.values().flatten().collect::<BTreeSet<_>>();
            let mut doomed: BTreeSet<&String> =
                was.files.values().flatten().filter(|&file| !retained.contains(file)).collect();
            doomed.extend(was.metadata.difference(&is.metadata));
            assert_eq!(of_table(gone.iter().copied(), was), keys(doomed.iter().copied()), "objects of {name}");
            assert_eq!((was.snapshots.len() - is.snapshots.len(), doomed.len()), (snapshots, files), "{name}");
            expected.extend(keys(doomed));

            let counts = expire.table(name)["counts"].clone();
            let count = |what: &str| counts[what].as_u64().unwrap();
            assert_eq!(count("expired_snapshots"), snapshots as u64, "{name}");
            let by_others = usize::from(name == "sales.orders" && fallen == "by the server");
            assert_eq!(count("deleted_objects"), (files - by_others) as u64, "{name}");
            assert_eq!((count("failed_deletes"), count("unrepresentable"), count("already_gone")), (0, 0, 0), "{name}");

            let mut rows = was.snapshots.clone();
            rows.retain(|snapshot, _| is.snapshots.contains_key(snapshot));
            assert_eq!(is.snapshots, rows, "rows of {name}");
            let dropped: Vec<_> = was.refs.keys().filter(|&name| !is.refs.contains_key(name)).collect();
            let expected: &[&str] = if name == "sales.orders" { &["eom_old", "pr_4812"] } else { &[] };
            assert_eq!(dropped, expected, "dropped refs of {name}");
        }
        assert_eq!(gone.into_iter().cloned().collect::<BTreeSet<_>>(), expected);

        let known: BTreeSet<String> = tables.values().flat_map(|table| keys(&table.metadata)).collect();
        for (key, digest) in &after {
            match before.get(key) {
                Some(before) => assert_eq!(digest, before, "{key} is as it was"),
                None => assert!(known.contains(key), "only metadata files are new, not {key}"),
            }
        }
    }
}

fn remove(folder: &Path) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
}

pub(crate) fn key(location: &str) -> &str {
    location.strip_prefix(BUCKET).unwrap_or_else(|| panic!("{location} is not in the bucket"))
}

fn keys<'a>(locations: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
    locations.into_iter().map(|location| key(location).to_owned()).collect()
}

/// The keys of these objects that lie in the folder of the table.
pub(crate) fn of_table<'a>(keys: impl IntoIterator<Item = &'a String>, table: &Table) -> BTreeSet<String> {
    let metadata = key(table.metadata.first().unwrap());
    let folder = &metadata[..=metadata.rfind("/metadata/").unwrap()];
    keys.into_iter().filter(|key| key.starts_with(folder)).cloned().collect()
}
