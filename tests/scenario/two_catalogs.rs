//! What holds where one of several catalogs is broken, and what a request names that is not there. Two SQLite
//! catalogs over one world; the format of a scenario knows one catalog only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use icewarden::catalog::sql::SqlCatalog;
use icewarden::clock::Clock;
use icewarden::config::{Config, Pattern, Secret, Sources};
use icewarden::model::{LocationRules, TableName};
use icewarden::report::{Job, Outcome, RunReport};
use icewarden::run::{self, Lake, RunError, RunRequest};
use icewarden::storage::Storage;

use super::faults::Faults;
use super::format::Scenario;
use super::lake::World;
use super::store::Bucket;

const HOUR_MS: i64 = 3_600_000;

/// Two tables, each with one snapshot that goes: its list is all that is freed.
fn text(location_of_u: &str) -> String {
    let table = |name: &str, location: &str, p: &str| {
        format!(
            r#"
[[table]]
name = "db.{name}"
location = "{location}"
metadata = "{p}J2"
metadata_log = ["{p}J1"]
[[table.snapshot]]
id = "{p}S1"
at = "-10d"
list = "{p}L1"
manifests = ["{p}M1"]
[[table.snapshot]]
id = "{p}S2"
at = "-1d"
parent = "{p}S1"
list = "{p}L2"
manifests = ["{p}M1"]
[[table.manifest]]
id = "{p}M1"
entries = [{{ file = "{p}D1" }}]
"#
        )
    };
    format!(
        "case = 'x'\ntitle = ''\nnow = '2026-01-31T00:00:00Z'\n{}{}[[step]]\njob = 'expire'\n",
        table("t", "s3://wh/db/t", "t"),
        table("u", location_of_u, "u")
    )
}

/// `db.t` in catalog `one`, `db.u` in catalog `two`.
struct Stage {
    folder: tempfile::TempDir,
    clock: Arc<AtomicI64>,
    bucket: Bucket,
    tables: BTreeMap<String, String>,
}

fn name(catalog: &str, table: &str) -> TableName {
    TableName { catalog: catalog.to_owned(), namespace: vec!["db".to_owned()], name: table.to_owned() }
}

fn secret(file: &Path) -> Secret {
    Secret::new(format!("sqlite://{}", file.display()))
}

impl Stage {
    async fn new(location_of_u: &str) -> Self {
        let scenario = Scenario::parse(&text(location_of_u)).unwrap();
        let world = World::build(&scenario).unwrap();
        let clock = Arc::new(AtomicI64::new(scenario.now().unwrap().0));
        let bucket = Bucket::new("s3://wh", Arc::clone(&clock), Arc::new(Faults::default()));
        for (location, (bytes, at)) in &world.objects {
            bucket.seed(location, bytes.clone(), *at).await;
        }
        let tables = world.tables.iter().map(|table| (table.name.clone(), table.metadata_location.clone()));
        let stage = Self { folder: tempfile::tempdir().unwrap(), clock, bucket, tables: tables.collect() };
        for (catalog, table) in [("one", "t"), ("two", "u")] {
            let made = SqlCatalog::create(catalog, &secret(&stage.file(catalog)), stage.storage()).await.unwrap();
            made.register(&name(catalog, table), &stage.tables[&format!("db.{table}")]).await.unwrap();
        }
        stage
    }

    fn file(&self, catalog: &str) -> PathBuf {
        self.folder.path().join(format!("{catalog}.db"))
    }

    fn storage(&self) -> Storage {
        Storage::new(LocationRules::default(), BTreeMap::new(), 4).with_store("s3://wh", Arc::new(self.bucket.clone()))
    }

    /// Breaks catalog `two`, and returns what mends it.
    async fn break_two(&self, how: Broken) -> impl FnOnce() {
        let (file, aside) = (self.file("two"), self.folder.path().join("aside.db"));
        std::fs::rename(&file, &aside).unwrap();
        match how {
            Broken::Missing => {}
            Broken::NoDatabase => std::fs::write(&file, "no database").unwrap(),
            // It opens, and cannot be listed: a catalog of another name.
            Broken::OtherName => {
                let other = SqlCatalog::create("other", &secret(&file), self.storage()).await.unwrap();
                other.register(&name("other", "x"), "s3://wh/x/metadata/x.metadata.json").await.unwrap();
            }
        }
        move || std::fs::rename(&aside, &file).unwrap()
    }

    /// A run with both catalogs.
    async fn run(&self, job: Job, tables: &[&str], grace: &str) -> Result<RunReport, RunError> {
        let tables = tables.iter().copied().map(Pattern::new).collect();
        self.run_on(&["one", "two"], grace, RunRequest { tables, ..RunRequest::look(job, "test") }).await
    }

    async fn run_on(&self, catalogs: &[&str], grace: &str, request: RunRequest) -> Result<RunReport, RunError> {
        let folder = self.folder.path().display();
        let mut text = format!(
            "[state]\ndatabase = \"sqlite://{folder}/state.db\"\nplans = \"file://{folder}/plans\"\n\
             [expire]\nolder_than = \"5d\"\ngrace = \"{grace}\"\n"
        );
        for name in catalogs {
            let uri = format!("sqlite://{folder}/{name}.db");
            writeln!(text, "[[catalog]]\nname = \"{name}\"\ntype = \"sql\"\nuri = \"{uri}\"").unwrap();
        }
        let sources =
            Sources { folder: Path::new("/"), env: &|_| None, read: &|_| Err(std::io::ErrorKind::NotFound.into()) };
        let (config, _) = Config::parse(&text, "config", &sources).unwrap();
        let lake = Lake::open_with(config, Clock::Fixed(Arc::clone(&self.clock)), self.storage()).await.unwrap();
        run::run(&lake, &RunRequest { apply: true, ..request }).await
    }

    /// What was removed since the last call, by file name.
    fn removed(&self) -> BTreeSet<String> {
        let removed = self.bucket.take_removed();
        removed.iter().map(|location| location.rsplit_once('/').unwrap().1.to_owned()).collect()
    }
}

#[derive(Debug, Clone, Copy)]
enum Broken {
    Missing,
    NoDatabase,
    OtherName,
}

const BROKEN: [Broken; 3] = [Broken::Missing, Broken::NoDatabase, Broken::OtherName];

fn outcomes(report: &RunReport) -> Vec<(String, Outcome)> {
    report.tables.iter().map(|table| (table.table.full(), table.outcome)).collect()
}

fn files(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_catalog_that_was_listed_before_and_is_broken_now_leaves_the_others_tables() {
    for how in BROKEN {
        let stage = Stage::new("s3://wh/db/u").await;
        // Both are listed, and nothing is old enough.
        stage.clock.fetch_sub(9 * 24 * HOUR_MS, Ordering::SeqCst);
        let report = stage.run(Job::Expire, &[], "24h").await.unwrap();
        assert_eq!((report.exit_code(), stage.removed()), (0, files(&[])), "{how:?}");
        stage.clock.fetch_add(9 * 24 * HOUR_MS, Ordering::SeqCst);

        let mend = stage.break_two(how).await;
        let report = stage.run(Job::Expire, &[], "0s").await.unwrap();
        assert_eq!(outcomes(&report), [("one.db.t".to_owned(), Outcome::Done)], "{how:?}");
        assert_eq!((report.exit_code(), report.unlisted.len()), (4, 1), "{how:?}: {:?}", report.unlisted);
        assert_eq!(stage.removed(), files(&["tL1.avro"]), "{how:?}");
        // Only tables of the broken catalog are asked for: nothing was done at all.
        let report = stage.run(Job::Expire, &["two.*"], "0s").await.unwrap();
        assert_eq!((report.exit_code(), outcomes(&report)), (1, Vec::new()), "{how:?}");

        mend();
        let report = stage.run(Job::Expire, &[], "0s").await.unwrap();
        assert_eq!((report.exit_code(), stage.removed()), (0, files(&["uL1.avro"])), "{how:?}");
    }
}

#[tokio::test]
async fn marks_of_a_broken_catalog_wait_while_those_of_another_are_swept() {
    for how in BROKEN {
        let stage = Stage::new("s3://wh/db/u").await;
        let report = stage.run(Job::Expire, &[], "24h").await.unwrap();
        assert_eq!((report.exit_code(), stage.removed()), (0, files(&[])), "{how:?}");
        stage.clock.fetch_add(25 * HOUR_MS, Ordering::SeqCst);

        let mend = stage.break_two(how).await;
        let report = stage.run(Job::Sweep, &[], "24h").await.unwrap();
        let (t, u) = (("one.db.t".to_owned(), Outcome::Done), ("two.db.u".to_owned(), Outcome::Failed));
        assert_eq!((report.exit_code(), outcomes(&report)), (4, vec![t, u]), "{how:?}");
        assert_eq!(stage.removed(), files(&["tL1.avro"]), "{how:?}");

        mend();
        let report = stage.run(Job::Sweep, &[], "24h").await.unwrap();
        assert_eq!((report.exit_code(), stage.removed()), (0, files(&["uL1.avro"])), "{how:?}: {report:?}");
    }
}

#[tokio::test]
async fn while_a_catalog_was_never_listed_nothing_is_deleted_anywhere() {
    for how in BROKEN {
        let stage = Stage::new("s3://wh/db/u").await;
        let mend = stage.break_two(how).await;
        // Marked before the second catalog came into the configuration.
        stage.run_on(&["one"], "24h", RunRequest::look(Job::Expire, "test")).await.unwrap();
        stage.clock.fetch_add(25 * HOUR_MS, Ordering::SeqCst);
        for job in [Job::Expire, Job::Sweep] {
            let error = stage.run(job, &[], "0s").await.unwrap_err();
            assert!(matches!(error, RunError::Failed(_)), "{how:?}: {error}");
            assert!(error.to_string().contains("nothing is deleted anywhere"), "{how:?}: {error}");
        }
        assert_eq!(stage.removed(), files(&[]), "{how:?}");
        mend();
        let report = stage.run(Job::Expire, &[], "0s").await.unwrap();
        assert_eq!((report.exit_code(), stage.removed()), (0, files(&["tL1.avro", "uL1.avro"])), "{how:?}");
    }
}

#[tokio::test]
async fn a_table_of_a_broken_catalog_still_shares_the_folder_it_was_last_known_in() {
    for how in BROKEN {
        let stage = Stage::new("s3://wh/db/t").await;
        let report = stage.run(Job::Expire, &[], "0s").await.unwrap();
        assert!(report.tables.iter().all(|table| table.outcome == Outcome::Skipped), "{how:?}: {report:?}");
        let mend = stage.break_two(how).await;
        let report = stage.run(Job::Expire, &[], "0s").await.unwrap();
        assert_eq!(outcomes(&report), [("one.db.t".to_owned(), Outcome::Skipped)], "{how:?}");
        assert_eq!(stage.removed(), files(&[]), "{how:?}");
        mend();
    }
}

#[tokio::test]
async fn a_confirmation_of_an_unknown_plan_is_rejected() {
    let stage = Stage::new("s3://wh/db/u").await;
    let confirm = Some(icewarden::model::PlanId::from_hash(&[7; 32]));
    let request = RunRequest { confirm, ..RunRequest::look(Job::Expire, "test") };
    let error = stage.run_on(&["one"], "0s", request.clone()).await.unwrap_err();
    assert!(matches!(&error, RunError::Rejected(why) if why.contains("no plan")), "{error}");
    assert_eq!(stage.removed(), files(&[]));
    // Without it, there was something to do.
    let report = stage.run_on(&["one"], "0s", RunRequest { confirm: None, ..request }).await.unwrap();
    assert_eq!((report.exit_code(), stage.removed()), (0, files(&["tL1.avro"])));
}
