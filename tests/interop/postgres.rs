//! Catalogs and the state in PostgreSQL: lakes that pyiceberg wrote there, several processes that share them, and
//! connections that break. The server is the one that `tests/run` starts; each test has databases of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use iceberg::TableUpdate;
use icewarden::catalog::sql::SqlCatalog;
use icewarden::catalog::{CommitOutcome, LoadedTable};
use icewarden::config::Secret;
use icewarden::model::{LocationRules, TableName, Timestamp};
use icewarden::storage::Storage;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::binary::{Answer, Paused, icewarden};
use crate::lake::{Lake, Table};
use crate::parts;

const EXPIRE: &str = "run expire --older-than 5d --apply --json";
const ONE_TABLE: &str = "run expire --table sales.orders --older-than 5d --apply --json";
const SWEEP: &str = "run sweep --apply --json";
/// No test can wait for the end of a real lease.
const LEASE_MS: &str = "3000";

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A database of its own on the server.
struct Database {
    name: String,
}

impl Database {
    fn new(what: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{what}_{}_{number}", std::process::id());
        Self { name: "postgres".to_owned() }.execute(&format!("CREATE DATABASE {name}"));
        Self { name }
    }

    /// As Icewarden and sqlx write it.
    fn uri(&self) -> String {
        let server = parts::variable("ICEWARDEN_POSTGRES");
        format!("{}/{}", server.rsplit_once('/').unwrap().0, self.name)
    }

    /// As pyiceberg writes it.
    fn sqlalchemy(&self) -> String {
        self.uri().replacen("postgres://", "postgresql+psycopg2://", 1)
    }

    fn execute(&self, statements: &str) {
        wait_for(async {
            let mut connection = PgConnection::connect(&self.uri()).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        });
    }

    fn texts(&self, query: &'static str) -> Vec<String> {
        wait_for(async {
            let mut connection = PgConnection::connect(&self.uri()).await.unwrap();
            let rows: Vec<(String,)> = sqlx::query_as(query).fetch_all(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            rows.into_iter().map(|row| row.0).collect()
        })
    }

    /// Every table of the catalog that is here.
    fn tables(&self) -> BTreeMap<String, Table> {
        let rows =
            self.texts("SELECT table_namespace || '.' || table_name || ' ' || metadata_location FROM iceberg_tables");
        let parted = rows.iter().map(|row| row.rsplit_once(' ').unwrap());
        parted.map(|(name, location)| (name.to_owned(), Table::read(location))).collect()
    }

    fn table(&self, name: &str) -> Table {
        self.tables().remove(name).unwrap()
    }
}

/// All rows of every snapshot of the lake at `root`, read by pyiceberg by way of its catalog here.
fn rows(root: &Path, catalog: &Database) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut command = parts::script_of_ours("read_rows.py");
    command.arg(root).arg("--prop").arg(format!("uri={}", catalog.sqlalchemy()));
    let read: BTreeMap<String, serde_json::Value> = serde_json::from_str(&parts::output(&mut command)).unwrap();
    let snapshots = |table: &serde_json::Value| serde_json::from_value(table["snapshots"].clone()).unwrap();
    read.iter().map(|(name, table)| (name.clone(), snapshots(table))).collect()
}

/// A lake with its catalog and its state in PostgreSQL.
struct OnServer {
    lake: Lake,
    catalog: Database,
    config: PathBuf,
}

impl OnServer {
    /// The lake's tables, registered by pyiceberg in a catalog on the server.
    fn with(lake: Lake) -> Self {
        let (catalog, state) = (Database::new("catalog"), Database::new("state"));
        parts::output(parts::script_of_ours("postgres.py").arg(lake.root()).arg(catalog.sqlalchemy()));
        let config = config(&lake, &catalog.uri(), &state.uri());
        Self { lake, catalog, config }
    }

    fn new() -> Self {
        Self::with(Lake::by_pyiceberg())
    }

    fn run(&self, arguments: &str) -> Answer {
        Answer::of(&mut icewarden(&self.config, arguments))
    }

    /// The same with leases of three seconds.
    fn hurried(&self, arguments: &str) -> Command {
        let mut command = icewarden(&self.config, arguments);
        command.env("ICEWARDEN_LEASE_MS", LEASE_MS);
        command
    }

    /// Expires and sweeps what is left to do; then every retained row is read back.
    #[track_caller]
    fn ends_well(&self, rows_before: &BTreeMap<String, BTreeMap<String, String>>) {
        self.run(EXPIRE).exits(0);
        self.run(SWEEP).exits(0);
        let rows = rows(&self.lake.root(), &self.catalog);
        for (name, table) in self.catalog.tables() {
            let ids: BTreeSet<String> = table.snapshots().iter().map(ToString::to_string).collect();
            assert_eq!(rows[&name].keys().cloned().collect::<BTreeSet<_>>(), ids, "{name}");
            for (snapshot, read) in &rows[&name] {
                assert_eq!(*read, rows_before[&name][snapshot], "{name} {snapshot}");
            }
        }
        assert_eq!(self.catalog.table("sales.customers").snapshots().len(), 1);
    }
}

/// The lake's configuration with both databases on the server.
fn config(lake: &Lake, catalog: &str, state: &str) -> PathBuf {
    let path = lake.config_with(&format!("type = \"sql\"\nuri = \"{catalog}\""), "");
    let text = fs::read_to_string(&path).unwrap();
    let file = format!("sqlite://{}/icewarden.db", lake.state().display());
    assert!(text.contains(&file));
    fs::write(&path, text.replace(&file, state)).unwrap();
    path
}

/// Asks until it is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_mins(1), "waited a minute until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_lake_that_pyiceberg_wrote_in_postgres_is_cleaned_and_every_retained_row_is_read_back() {
    let (scratch, catalog, state) = (
        tempfile::tempdir_in(parts::variable("ICEWARDEN_SCRATCH")).unwrap(),
        Database::new("lake"),
        Database::new("state"),
    );
    let root = scratch.path().join("lake");
    let uri = format!("uri={}", catalog.sqlalchemy());
    parts::output(parts::script_of_ours("make_lake.py").arg(&root).arg("--prop").arg(&uri));
    assert!(!root.join("catalog.db").exists());
    let text = format!(
        "[[catalog]]\nname = \"lake\"\ntype = \"sql\"\nuri = \"{}\"\n[state]\ndatabase = \"{}\"\n\
         plans = \"file:./plans\"\n[expire]\ngrace = \"0s\"\nref_age = \"spec\"\nkeep_fork_points = false\n\
         [guard]\nallow_floor_below_minimum = true\n",
        catalog.uri(),
        state.uri(),
    );
    let config = scratch.path().join("icewarden.toml");
    fs::write(&config, text).unwrap();
    let before = rows(&root, &catalog);
    let was = catalog.tables();
    let run = |arguments: &str| Answer::of(&mut icewarden(&config, arguments));
    let checked = run("check");
    assert!(checked.stdout.contains("state database") && checked.stdout.contains("differ by"), "{checked}");

    // The same lake in a SQLite catalog is what it must come to.
    let twin = Lake::by_pyiceberg();
    let expected = Answer::of(&mut icewarden(&twin.config(), EXPIRE)).exits(0);
    let answer = run(EXPIRE).exits(0);
    for name in was.keys() {
        // Their sizes differ a little: they hold times and paths.
        for count in ["expired_snapshots", "dropped_refs", "commits", "marked_objects", "deleted_objects"] {
            let (here, there) = (&answer.table(name)["counts"][count], &expected.table(name)["counts"][count]);
            assert_eq!(here, there, "{count} of {name}\n{answer}");
        }
    }
    assert!(answer.table("sales.orders")["counts"]["deleted_objects"].as_u64().unwrap() > 0, "{answer}");
    run(SWEEP).exits(0);
    let after = rows(&root, &catalog);
    let is = catalog.tables();
    assert!(was.iter().any(|(name, table)| is[name].snapshots().len() < table.snapshots().len()));
    for (name, table) in &is {
        assert_eq!(after[name].len(), table.snapshots().len(), "{name}");
        assert!(after[name].iter().all(|(snapshot, read)| before[name][snapshot] == *read), "{name}");
    }
    // Nothing was added to the catalog's database.
    let tables = catalog
        .texts("SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1");
    assert_eq!(tables, ["iceberg_namespace_properties", "iceberg_tables"]);
    // What is printed of the addresses has no password.
    for said in [checked, run("check --json"), answer] {
        assert!(!said.stdout.contains("p%40ss") && !said.stderr.contains("p%40ss"), "{said}");
    }
}

#[test]
fn a_catalog_without_the_column_of_views_is_cleaned_too() {
    let here = OnServer::new();
    let before = rows(&here.lake.root(), &here.catalog);
    here.catalog.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type");
    here.run(ONE_TABLE).exits(0);
    let moved =
        here.catalog.texts("SELECT table_name FROM iceberg_tables WHERE previous_metadata_location IS NOT NULL");
    assert_eq!(moved, ["orders"]);
    // pyiceberg wants its column.
    here.catalog.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)");
    here.ends_well(&before);
}

#[test]
fn odd_names_are_expired_in_postgres() {
    let here = OnServer::with(Lake::of_odd_names());
    let config = fs::read_to_string(&here.config).unwrap().replace("[expire]", "[expire]\nfloor = \"0s\"");
    fs::write(&here.config, config).unwrap();
    let before = rows(&here.lake.root(), &here.catalog);
    let answer = here.run("run expire --older-than 0s --retain-last 1 --apply --json").exits(0);
    let tables = here.catalog.tables();
    assert_eq!(tables.len(), 11);
    for (name, table) in &tables {
        assert_eq!(answer.table(name)["outcome"], "done", "{name}\n{answer}");
        assert_eq!(table.snapshots().len(), 2, "{name}");
    }
    for (name, snapshots) in rows(&here.lake.root(), &here.catalog) {
        assert_eq!(snapshots.len(), 2, "{name}");
        assert!(snapshots.iter().all(|(snapshot, read)| before[&name][snapshot] == *read), "{name}");
    }
}

#[test]
fn a_commit_of_pyiceberg_before_ours_makes_us_plan_again() {
    let here = OnServer::new();
    let before = rows(&here.lake.root(), &here.catalog);
    let table = here.catalog.table("sales.customers");
    let doomed = *table.snapshots().iter().find(|&&snapshot| snapshot != table.refs()["main"]).unwrap();
    let command = icewarden(&here.config, "run expire --table sales.customers --older-than 5d --apply --json");
    let paused = Paused::at("before-commit", command);
    let mut tag = parts::script_of_ours("postgres.py");
    tag.arg(here.lake.root()).arg(here.catalog.sqlalchemy()).args(["sales.customers", "late", &doomed.to_string()]);
    parts::output(&mut tag);
    let answer = paused.go_on();
    let table = here.catalog.table("sales.customers");
    assert_eq!(table.refs().get("late"), Some(&doomed), "{answer}");
    assert!(table.snapshots().contains(&doomed), "{answer}");
    let rows = rows(&here.lake.root(), &here.catalog);
    assert_eq!(rows["sales.customers"].len(), table.snapshots().len());
    assert_eq!(rows["sales.customers"][&doomed.to_string()], before["sales.customers"][&doomed.to_string()]);
}

#[test]
fn of_two_processes_one_works_and_the_other_says_who_does() {
    let here = OnServer::new();
    let before = rows(&here.lake.root(), &here.catalog);
    let first = Paused::at("after-intent", icewarden(&here.config, ONE_TABLE));
    let version = here.catalog.table("sales.orders").version();
    let second = here.run(ONE_TABLE);
    assert_ne!(second.table("sales.orders")["outcome"], "done", "{second}");
    assert_eq!(here.catalog.table("sales.orders").version(), version, "{second}");
    second.says("being worked on by expiry of ");
    let first = first.go_on().exits(0);
    assert_eq!(first.table("sales.orders")["counts"]["commits"], 1, "{first}");

    let start = || icewarden(&here.config, EXPIRE).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let answers = [start(), start()].map(|process| Answer::from(process.wait_with_output().unwrap()));
    for table in ["sales.customers", "ops.events", "ops.wap", "ops.v1table"] {
        let commits = answers.iter().map(|answer| answer.table(table)["counts"]["commits"].as_u64().unwrap());
        assert_eq!(commits.sum::<u64>(), 1, "{table}\n{}\n{}", answers[0], answers[1]);
    }
    here.ends_well(&before);
}

/// Stops a process at this place until its lease has ended; what it says when it goes on.
fn stopped(here: &OnServer, state: &Database, place: &str, meanwhile: impl FnOnce()) -> Answer {
    let first = Paused::at(place, here.hurried(ONE_TABLE));
    first.signal("STOP");
    until("the lease of the stopped process ended", || {
        let ended = "SELECT name FROM leases WHERE released = 0
                     AND expires_at < EXTRACT(EPOCH FROM clock_timestamp()) * 1000";
        !state.texts(ended).is_empty()
    });
    meanwhile();
    first.signal("CONT");
    first.go_on()
}

#[test]
fn a_holder_that_was_stopped_past_the_end_of_its_lease_neither_commits_nor_deletes() {
    let here = OnServer::new();
    let state = Database { name: state_of(&here) };
    let before = rows(&here.lake.root(), &here.catalog);
    let version = || here.catalog.table("sales.orders").version();
    let was = (version(), here.lake.files());

    // Right before its commit, when it has looked at its lease already; nobody else came.
    let answer = stopped(&here, &state, "before-commit", || {}).exits(3).says("held up");
    assert_eq!((version(), here.lake.files()), was, "{answer}");
    // Right before it looks, and another one was at work meanwhile.
    let mut after = was.clone();
    let answer = stopped(&here, &state, "after-intent", || {
        let other = Answer::of(&mut here.hurried("run expire --table sales.orders --older-than 20d --apply --json"));
        assert_eq!(other.table("sales.orders")["outcome"], "done", "{other}");
        after = (version(), here.lake.files());
    });
    let answer = answer.exits(3).says("the lease on the table was lost");
    assert_ne!(after, was);
    assert_eq!((version(), here.lake.files()), after, "{answer}");
    // Right before a delete.
    let answer = stopped(&here, &state, "before-delete", || after = (version(), here.lake.files()));
    let answer = answer.says("held up");
    assert_ne!(answer.code, Some(0), "{answer}");
    assert_eq!((version(), here.lake.files()), after, "{answer}");
    here.ends_well(&before);
}

/// The name of the state's database.
fn state_of(here: &OnServer) -> String {
    let text = fs::read_to_string(&here.config).unwrap();
    let line = text.lines().find(|line| line.starts_with("database")).unwrap();
    line.trim_end_matches('"').rsplit_once('/').unwrap().1.to_owned()
}

#[test]
fn what_was_left_by_a_killed_process_is_finished_when_its_lease_has_ended() {
    let here = OnServer::new();
    let before = rows(&here.lake.root(), &here.catalog);
    Paused::at("after-commit", here.hurried(ONE_TABLE)).kill();
    until("another one got the lease of the killed process", || {
        let answer = Answer::of(&mut here.hurried(ONE_TABLE));
        let outcome = answer.table("sales.orders")["outcome"].clone();
        assert!(outcome == "done" || answer.stdout.contains("being worked on by"), "{answer}");
        outcome == "done"
    });
    here.ends_well(&before);
}

#[test]
fn nothing_is_changed_while_the_state_cannot_be_reached() {
    let here = OnServer::new();
    let before = rows(&here.lake.root(), &here.catalog);
    let (files, tables) = (here.lake.all_files(), here.catalog.tables());
    let state = state_of(&here);
    let all = Database { name: "postgres".to_owned() };
    let paused = Paused::at("after-intent", icewarden(&here.config, ONE_TABLE));
    all.execute(&format!("ALTER DATABASE {state} ALLOW_CONNECTIONS false"));
    all.execute(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{state}'"));
    let answer = paused.go_on();
    assert_ne!(answer.code, Some(0), "{answer}");
    let answer = answer.says(&format!("/{state}"));
    assert!(!answer.stderr.contains("p%40ss"), "{answer}");
    assert_eq!((here.lake.all_files(), here.catalog.tables()), (files, tables), "{answer}");
    here.run(EXPIRE).exits(1).says("/state_");
    all.execute(&format!("ALTER DATABASE {state} ALLOW_CONNECTIONS true"));
    // The lease of the process that could not give it back.
    Database { name: state }.execute("UPDATE leases SET expires_at = 0");
    here.ends_well(&before);
}

fn storage() -> Storage {
    Storage::new(LocationRules::default(), BTreeMap::new(), 4)
}

fn orders() -> TableName {
    TableName { catalog: "lake".into(), namespace: vec!["sales".into()], name: "orders".into() }
}

async fn open(uri: &str) -> SqlCatalog {
    SqlCatalog::open("lake", &Secret::new(uri), None, storage()).await.unwrap()
}

/// Drops a ref.
async fn commit(catalog: &SqlCatalog, base: &LoadedTable, name: &str) -> CommitOutcome {
    let gone = [TableUpdate::RemoveSnapshotRef { ref_name: name.to_owned() }];
    catalog.commit(base, &[], &gone, Timestamp(base.state.last_updated.0 + 1)).await
}

#[test]
fn of_commits_on_one_base_exactly_one_wins() {
    let here = OnServer::new();
    let outcomes = wait_for(async {
        let catalog = open(&here.catalog.uri()).await;
        let base = catalog.load(&orders()).await.unwrap();
        let names = ["v1.0", "eom_old", "pr_4812", "pr_4813", "audit", "dev_alice"];
        futures::future::join_all(names.map(|name| commit(&catalog, &base, name))).await
    });
    let won = outcomes.iter().filter(|outcome| **outcome == CommitOutcome::Committed).count();
    let lost =
        outcomes.iter().filter(|outcome| matches!(outcome, CommitOutcome::Conflict { left_behind: Some(_), .. }));
    assert_eq!((won, lost.count()), (1, 5), "{outcomes:?}");
    assert_eq!(here.catalog.table("sales.orders").refs().len(), 6);
}

#[test]
fn a_commit_that_the_server_refuses_is_rejected_and_a_busy_row_too() {
    let here = OnServer::new();
    let user = format!("reads_{}", here.catalog.name);
    here.catalog.execute(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"
    ));
    let address = here.catalog.uri().replace("icewarden:p%40ss%20word", &format!("{user}:x"));
    wait_for(async {
        let catalog = open(&address).await;
        let base = catalog.load(&orders()).await.unwrap();
        let outcome = commit(&catalog, &base, "audit").await;
        let CommitOutcome::Rejected { reason, left_behind: Some(_) } = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains("permission denied"), "{reason}");
        // Somebody keeps the row locked.
        let catalog = open(&here.catalog.uri()).await;
        let mut other = PgConnection::connect(&here.catalog.uri()).await.unwrap();
        let mut writing = other.begin().await.unwrap();
        sqlx::raw_sql("SELECT 1 FROM iceberg_tables FOR UPDATE").execute(&mut *writing).await.unwrap();
        let outcome = commit(&catalog, &base, "audit").await;
        let CommitOutcome::Rejected { reason, .. } = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains("lock timeout"), "{reason}");
        writing.rollback().await.unwrap();
        assert_eq!(commit(&catalog, &base, "audit").await, CommitOutcome::Committed);
    });
}

#[test]
fn what_is_no_catalog_is_told_and_never_made_one() {
    let empty = Database::new("empty");
    for (uri, reason) in [
        (empty.uri(), "is a database without Iceberg's tables"),
        (empty.uri().replace("word@", "wort@"), "password authentication failed"),
        (format!("{}_none", empty.uri()), "does not exist"),
        ("postgres://u:hunter2@127.0.0.1:1/d".to_owned(), "postgres://u@127.0.0.1:1/d"),
    ] {
        let error = wait_for(SqlCatalog::open("lake", &Secret::new(uri), None, storage())).unwrap_err().to_string();
        assert!(error.contains(reason) && !error.contains("p%40ss") && !error.contains("hunter2"), "{error}");
    }
    let error = wait_for(SqlCatalog::create("lake", &Secret::new(empty.uri()), storage())).unwrap_err().to_string();
    assert!(error.contains("create") && !error.contains("p%40ss"), "{error}");
    assert!(
        empty.texts("SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'").is_empty()
    );
}

/// Where the connection is cut around the statement that swaps the pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    /// The server never sees it.
    Before,
    /// The server has done it, but its answer is lost.
    After,
}

/// Passes bytes on between a client and the server until the client executes the swap. Parse, which has its text, and
/// Execute come in messages of their own, each waited for.
async fn cut_at_swap(client: TcpStream, server: TcpStream, cut: Cut) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (mut is_parsed, mut up, mut down) = (false, vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = from_client.read(&mut up) => {
                let Ok(length @ 1..) = read else { return };
                if is_parsed {
                    if cut == Cut::After {
                        to_server.write_all(&up[..length]).await.unwrap();
                        // Until the server says that it is done.
                        let mut answer = Vec::new();
                        while !answer.windows(6).any(|six| six == b"UPDATE") {
                            let length = from_server.read(&mut down).await.unwrap();
                            assert!(length > 0, "the server ended");
                            answer.extend_from_slice(&down[..length]);
                        }
                    }
                    return;
                }
                is_parsed = up[..length].windows(21).any(|text| text == b"UPDATE iceberg_tables");
                to_server.write_all(&up[..length]).await.unwrap();
            }
            read = from_server.read(&mut down) => {
                let Ok(length @ 1..) = read else { return };
                to_client.write_all(&down[..length]).await.unwrap();
            }
        }
    }
}

#[test]
fn a_commit_whose_answer_is_lost_is_unknown_whether_it_was_applied_or_not() {
    let here = OnServer::new();
    let location = || here.catalog.table("sales.orders").metadata_file;
    for cut in [Cut::Before, Cut::After] {
        let was = location();
        let outcome = wait_for(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            // What is encrypted cannot be cut in the right place.
            let uri = format!("{}?sslmode=disable", here.catalog.uri());
            let server: Arc<str> = uri.rsplit_once('@').unwrap().1.split('/').next().unwrap().into();
            let proxied = uri.replace(&*server, &listener.local_addr().unwrap().to_string());
            tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(cut_at_swap(client, TcpStream::connect(&*server).await.unwrap(), cut));
                }
            });
            let catalog = open(&proxied).await;
            let base = catalog.load(&orders()).await.unwrap();
            commit(&catalog, &base, "audit").await
        });
        assert!(matches!(outcome, CommitOutcome::Unknown { .. }), "{cut:?}: {outcome:?}");
        assert_eq!(location() != was, cut == Cut::After, "{cut:?}: {outcome:?}");
    }
}
