//! The demo lake, read by others' readers.

use std::time::UNIX_EPOCH;

use iceberg::spec::TableMetadata;

use super::lake::{self, MadeLake};
use super::read_back::{ReadBack, ReadBackError, read_back};
use super::*;
use crate::catalog::LoadedTable;
use crate::catalog::sql::SqlCatalog;
use crate::config::{CatalogKind, Config};
use crate::model::{Age, LocationRules, TableName, Timestamp};
use crate::storage::Storage;

const NOW: Timestamp = Timestamp(1_796_079_600_000);

struct Lake {
    made: MadeLake,
    catalog: SqlCatalog,
    storage: Storage,
    _folder: tempfile::TempDir,
}

impl Lake {
    async fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = lake::make(&folder.path().join("a lake #1 %20é"), NOW).await.unwrap();
        let (config, _) = Config::load(&made.config).unwrap();
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 8);
        let CatalogKind::Sql { uri } = &config.catalogs[0].kind else { panic!("{:?}", config.catalogs) };
        let catalog = SqlCatalog::open("lake", uri, None, storage.clone()).await.unwrap();
        Self { made, catalog, storage, _folder: folder }
    }

    async fn load(&self, table: &TableName) -> LoadedTable {
        self.catalog.load(table).await.unwrap()
    }

    async fn read_back(&self, table: &TableName) -> Result<ReadBack, ReadBackError> {
        read_back(&self.storage, &self.load(table).await.state).await
    }

    fn table(&self, name: &str) -> &TableName {
        self.made.tables.iter().find(|table| table.name == name).unwrap()
    }

    fn files(&self, table: &TableName) -> Vec<PathBuf> {
        let mut folders = vec![self.made.folder.join("warehouse").join(&table.namespace[0]).join(&table.name)];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in entries(&folder).unwrap() {
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }
}

fn is_named(path: &Path, end: &str) -> bool {
    path.to_str().unwrap().ends_with(end)
}

#[tokio::test]
async fn every_file_of_the_lake_is_needed_by_a_snapshot_logged_or_an_orphan() {
    let lake = Lake::make().await;
    let usage = summary(&lake.made.folder).unwrap();
    assert_eq!(lake.catalog.list_tables().await.unwrap().len(), usage.len());
    let (mut orphans, mut files) = (0, 0);
    for table in &lake.made.tables {
        let read = lake.read_back(table).await.unwrap();
        let logged = lake.load(table).await.state.metadata_log.len() as u64 + 1;
        assert!(read.snapshots >= 4 && read.rows > 0, "{table} {read:?}");
        orphans += usage[&table.to_string()].files - read.files - logged;
        files += usage[&table.to_string()].files;
        assert_eq!(lake.files(table).len() as u64, usage[&table.to_string()].files);
    }
    assert_eq!(orphans, 7);
    assert!(files < 400, "{files}");
}

#[tokio::test]
async fn every_metadata_file_is_valid_and_of_its_time_and_logs_the_one_before() {
    let lake = Lake::make().await;
    let mut seen = std::collections::BTreeSet::new();
    for table in &lake.made.tables {
        let loaded = lake.load(table).await;
        let mut log: Vec<_> = loaded.state.metadata_log.iter().map(|entry| entry.location.clone()).collect();
        log.push(loaded.metadata_location.clone());
        let mut last = Timestamp(0);
        for (version, location) in log.iter().enumerate() {
            let path = location.strip_prefix("file://").unwrap();
            let bytes = fs::read(path).unwrap();
            let metadata: TableMetadata = serde_json::from_slice(&bytes).unwrap();
            let modified = fs::metadata(path).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(modified.as_millis(), u128::from(metadata.last_updated_ms().unsigned_abs()), "{location}");
            let before: Vec<_> = metadata.metadata_log().iter().map(|entry| entry.metadata_file.clone()).collect();
            assert_eq!(before, log[..version]);
            assert!(last.0 < metadata.last_updated_ms() && metadata.last_updated_ms() < NOW.0);
            last = Timestamp(metadata.last_updated_ms());
        }
        assert!(seen.insert(loaded.state.uuid.unwrap()), "{table} is another's twin");
        assert!(loaded.state.snapshots.iter().any(|snapshot| NOW.since(snapshot.at) > Age::days(5)));
    }
}

#[tokio::test]
async fn no_snapshot_comes_of_age_within_half_a_day() {
    let lake = Lake::make().await;
    for table in &lake.made.tables {
        for snapshot in &lake.load(table).await.state.snapshots {
            let hours = NOW.since(snapshot.at).0.rem_euclid(Age::days(1).0) / Age::hours(1).0;
            assert!((6..=10).contains(&hours), "{table} {}", snapshot.at);
        }
    }
}

#[tokio::test]
async fn reading_back_names_the_first_broken_file() {
    type Damage = fn(&Path);
    let cut: Damage = |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    };
    let gone: Damage = |path| fs::remove_file(path).unwrap();
    // In the first deletion vector, behind the length and the magic.
    let flip: Damage = |path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[30] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let in_rows: Damage = |path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[4..60].fill(0xFF);
        fs::write(path, bytes).unwrap();
    };
    let lake = Lake::make().await;
    for (table, file, damage, reason) in [
        ("orders", "rows.parquet", gone, "not found"),
        ("orders", "rows.parquet", cut, "bytes, its manifest says"),
        ("v1", "rows.parquet", in_rows, ""),
        ("events", "deletes.parquet", gone, "not found"),
        ("vectors", "deletes.puffin", flip, "checksum"),
        ("vectors", "deletes.puffin", cut, "bytes, its manifest says"),
        ("wap", "-m0.avro", gone, "not found"),
        ("wap", "-m0.avro", cut, "bytes, its manifest says"),
        ("customers", ".avro", gone, "not found"),
    ] {
        let table = lake.table(table);
        let mut files = lake.files(table).into_iter();
        let path = files.find(|path| is_named(path, file) && !path.to_str().unwrap().contains("crashed")).unwrap();
        let whole = fs::read(&path).unwrap();
        damage(&path);
        let error = lake.read_back(table).await.unwrap_err();
        assert!(error.location.ends_with(path.to_str().unwrap()), "{error}");
        assert!(error.reason.contains(reason), "{file}: {error}");
        fs::write(path, whole).unwrap();
    }
}

#[tokio::test]
async fn only_what_the_demo_made_is_made_anew() {
    let lake = Lake::make().await;
    let folder = &lake.made.folder;
    assert_eq!(lake::find(folder).unwrap().unwrap().tables, lake.made.tables);
    fs::write(folder.join("mine.txt"), "mine").unwrap();
    let uuid = lake.load(lake.table("orders")).await.state.uuid;
    lake::make(folder, NOW.plus(Age(1))).await.unwrap();
    assert!(folder.join("mine.txt").is_file());
    assert_ne!(lake.load(lake.table("orders")).await.state.uuid, uuid);
    lake.read_back(lake.table("orders")).await.unwrap();

    // A lake that was not finished is none, and is made anew.
    fs::remove_file(&lake.made.config).unwrap();
    assert!(lake::find(folder).unwrap().is_none());
    lake::make(folder, NOW).await.unwrap();

    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join("warehouse")).unwrap();
    let refused = lake::make(other.path(), NOW).await.unwrap_err();
    assert!(matches!(refused, DemoError::NotADemo { .. }), "{refused}");
    assert!(lake::find(other.path()).unwrap().is_none() && other.path().join("warehouse").is_dir());
}

#[tokio::test]
async fn a_demo_cleans_the_lake_and_a_second_one_commits_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |now: Timestamp| Clock::Fixed(std::sync::Arc::new(now.0.into()));
    let args = DemoArgs { folder: temporary.path().join("demo"), fresh: false };
    let mut steps = Vec::new();
    let first =
        run(&args, at(NOW), |step| steps.push(format!("{step:?}").split(['(', ' ']).next().unwrap().to_owned()))
            .await
            .unwrap();
    assert_eq!(steps, ["Made", "Planned", "Applied", "Swept", "Stored", "ReadBack"]);
    assert_eq!(first.exit_code(), 0);
    // Snapshots expired, refs dropped, files deleted, rows of what is kept.
    let expected = [
        ("ops.events", 10, 0, 18, 3_600),
        ("ops.frozen", 0, 0, 0, 800),
        ("ops.v1", 5, 0, 10, 1_000),
        ("ops.vectors", 5, 0, 9, 800),
        ("ops.wap", 4, 0, 7, 800),
        ("sales.customers", 5, 0, 19, 18_000),
        ("sales.orders", 21, 2, 48, 33_000),
    ];
    for (report, (name, snapshots, refs, files, rows)) in first.applied.tables.iter().zip(expected) {
        let counts = report.counts;
        assert_eq!(report.table.to_string(), name);
        assert_eq!((counts.expired_snapshots, counts.dropped_refs, counts.deleted_objects), (snapshots, refs, files));
        assert_eq!(first.read[name].rows, rows, "{name}");
        let (before, after) = (first.before[name], first.after[name]);
        // A commit adds one metadata file.
        assert_eq!(before.files - files + counts.commits, after.files, "{name}");
        assert!(counts.commits == 0 || after.bytes < before.bytes, "{name}");
    }

    // The day's work of the demo is done for half a day.
    let second = run(&args, at(NOW.plus(Age::hours(12))), |_| ()).await.unwrap();
    let idle = |report: &RunReport| report.tables.iter().all(|table| table.counts == crate::report::Counts::default());
    assert!(idle(&second.applied) && idle(&second.swept));
    assert_eq!((second.exit_code(), &second.before, &second.after), (0, &first.after, &first.after));
    assert_eq!(second.read, first.read);

    let fresh = run(&DemoArgs { fresh: true, ..args }, at(NOW), |_| ()).await.unwrap();
    assert_eq!(fresh.applied.tables.last().unwrap().counts.expired_snapshots, 21);
}
