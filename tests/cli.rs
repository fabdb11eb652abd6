//! The built binary as an operator runs it, on the demo lake: what `check` tells, completions, manual pages, and the
//! JSON Schema of what `--json` prints. Needs Rust only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of tests panic, measure time and look at the disk"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{ConnectOptions as _, Connection as _};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_icewarden");

/// What the binary said.
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Answer {
    fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// The objects of `--json`, one a line.
    fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}\n{self}"))).collect()
    }

    /// The one thing that `check --json` says of this.
    #[track_caller]
    fn item(&self, about: &str, name: &str) -> Value {
        let of = |item: &Value| item["about"] == about && item["name"].as_str().unwrap().ends_with(name);
        let mut found = self.lines().into_iter().filter(of);
        let item = found.next().unwrap_or_else(|| panic!("nothing about {about} {name}\n{self}"));
        assert!(found.next().is_none(), "more than one about {about} {name}\n{self}");
        item
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

fn icewarden(config: &Path, arguments: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("--config").arg(config).args(arguments.split(' '));
    command
}

/// A demo lake, and a folder beside it for other configurations and their state.
struct Lake {
    folder: TempDir,
}

impl Lake {
    fn new() -> Self {
        Self::within(tempfile::tempdir().unwrap())
    }

    fn within(folder: TempDir) -> Self {
        let lake = Self { folder };
        Answer::of(Command::new(BINARY).arg("demo").arg("--folder").arg(lake.demo())).exits(0);
        lake
    }

    /// One for all tests that change nothing in it.
    fn shared() -> &'static Self {
        static SHARED: OnceLock<Lake> = OnceLock::new();
        // What is never dropped lies in the target folder, and is made anew each time.
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
        SHARED.get_or_init(|| {
            let _none_before = fs::remove_dir_all(&place);
            fs::create_dir_all(&place).unwrap();
            Self::within(tempfile::tempdir_in(&place).unwrap())
        })
    }

    fn demo(&self) -> PathBuf {
        self.folder.path().join("demo")
    }

    /// A configuration with a state of its own, so that tests on one lake do not meet.
    fn config(&self, name: &str, more: &str) -> PathBuf {
        let (demo, state) = (self.demo(), self.folder.path().join(name));
        fs::create_dir_all(&state).unwrap();
        let text = format!(
            r#"
[[catalog]]
name = "lake"
type = "sql"
uri = "sqlite://{demo}/catalog.db"
warehouse = "file://{demo}/warehouse"
[state]
database = "sqlite://{state}/state.db"
plans = "file://{state}/plans"
{more}
"#,
            demo = demo.display(),
            state = state.display()
        );
        let path = state.join("icewarden.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// Every file of the lake with its length.
    fn files(&self) -> BTreeMap<PathBuf, u64> {
        files_of(&self.demo())
    }

    /// Runs a statement on the catalog.
    fn sql(&self, statement: &'static str) {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.demo().join("catalog.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = options.connect().await.unwrap();
            sqlx::query(statement).execute(&mut connection).await.unwrap();
            connection.close().await.unwrap();
        });
    }
}

fn files_of(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(entry.path(), metadata.len());
            }
        }
    }
    found
}

#[test]
fn check_tells_what_works_and_changes_nothing() {
    let lake = Lake::shared();
    let config = lake.config("fine", "");
    let files = lake.files();
    for arguments in ["check --json", "check --write --json"] {
        let answer = Answer::of(&mut icewarden(&config, arguments)).exits(0);
        assert_eq!(answer.item("catalog", "lake")["counts"]["tables"], 7, "{answer}");
        assert_eq!(answer.item("commit", "lake")["text"], "not tried; its rows may be changed");
        let store = answer.item("store", "/demo/warehouse/");
        let written = if arguments.contains("write") { "scratch object written, read, deleted" } else { "not tried" };
        for item in [&store, &answer.item("plans", "")] {
            assert!(item["text"].as_str().unwrap().contains(written), "{answer}");
        }
        let frozen = answer.item("table", "lake.ops.frozen");
        assert_eq!((&frozen["status"], &frozen["text"]), (&"warn".into(), &"skipped: gc.enabled is not true".into()));
        assert_eq!(answer.item("tables", "")["text"], "6 of 7 tables can be worked on");
        assert_eq!(lake.files(), files, "no scratch object is left");
    }
    let state: BTreeSet<String> = files_of(config.parent().unwrap())
        .into_keys()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        // The locks of opening begin with `_`; that of a lease is named by its table.
        .filter(|name| !name.starts_with("state.db") && !name.starts_with('_'))
        .collect();
    assert_eq!(state, ["icewarden.toml".to_owned()].into(), "no plan was made, no lease taken");
    assert_eq!(Answer::of(&mut icewarden(&config, "runs --json")).exits(0).stdout, "", "no run was noted");

    let text = Answer::of(&mut icewarden(&config, "check")).exits(0).stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    assert!(text.contains("\nwarn  table lake.ops.frozen"), "{text}");
    assert!(text.ends_with("\nall of it works, 1 warning\n"), "{text}");
}

#[test]
fn a_dead_and_a_silent_catalog_hide_nothing_of_the_others() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // It takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let rest =
        |name: &str, address| format!("[[catalog]]\nname = {name:?}\ntype = \"rest\"\nuri = \"http://{address}\"\n");
    let more = rest("dead", closed) + &rest("silent", silent.local_addr().unwrap());
    let config = Lake::shared().config("dead", &more);
    let began = Instant::now();
    let answer = Answer::of(&mut icewarden(&config, "check --json")).exits(1);
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    assert_eq!(answer.item("catalog", "lake")["status"], "ok", "{answer}");
    assert_eq!(answer.item("store", "/demo/warehouse/")["status"], "ok", "{answer}");
    for (name, says) in [("dead", closed.to_string()), ("silent", "no answer in 20 s".to_owned())] {
        let item = answer.item("catalog", name);
        assert_eq!(item["status"], "fail", "{answer}");
        assert!(item["text"].as_str().unwrap().contains(&says), "{answer}");
        assert!(item["advice"].as_str().unwrap().contains(name), "{answer}");
    }
    // Their tables may share folders with ours, so that a run would do nothing either.
    let tables = answer.item("tables", "");
    assert_eq!(tables["status"], "fail", "{answer}");
    assert!(tables["text"].as_str().unwrap().contains("nothing is deleted anywhere"), "{answer}");
    let run =
        Answer::of(&mut icewarden(&Lake::shared().config("run-dead", &rest("dead", closed)), "plan expire")).exits(1);
    assert!(run.stderr.contains("nothing is deleted anywhere"), "{run}");
}

#[test]
fn tables_that_a_run_passes_over_are_told_in_the_words_of_the_run() {
    let lake = Lake::new();
    let columns = "catalog_name, table_namespace, table_name, metadata_location, iceberg_type";
    let twin = format!(
        "INSERT INTO iceberg_tables ({columns}) SELECT catalog_name, table_namespace, 'twin', metadata_location, \
         iceberg_type FROM iceberg_tables WHERE table_name = 'orders'"
    );
    lake.sql(twin.leak());
    let broken = format!(
        "INSERT INTO iceberg_tables ({columns}) SELECT catalog_name, table_namespace, 'broken', \
         replace(metadata_location, '/metadata/', '/nowhere/metadata/'), iceberg_type FROM iceberg_tables \
         WHERE table_name = 'events'"
    );
    lake.sql(broken.leak());
    let more = "[http]\nlisten = \"127.0.0.1:1\"\n[[policy]]\ntables = [\"sals.*\"]\n";
    let config = lake.config("passed", more);
    let answer = Answer::of(&mut icewarden(&config, "check --json")).exits(1);
    let plan = Answer::of(&mut icewarden(&config, "plan expire --json"));
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let mut differ = 0;
    for table in plan["tables"].as_array().unwrap() {
        let name = table["table"]["name"].as_str().unwrap();
        let reason = table["reason"].as_str().unwrap_or_default();
        let told = match table["outcome"].as_str().unwrap() {
            "done" => continue,
            "skipped" => ("warn", format!("skipped: {reason}")),
            _ => ("fail", reason.to_owned()),
        };
        let item = answer.item("table", &format!(".{name}"));
        assert_eq!((item["status"].as_str().unwrap(), item["text"].as_str().unwrap()), (told.0, told.1.as_str()));
        differ += 1;
    }
    assert_eq!(differ, 4, "frozen, the twins and the broken one\n{answer}");
    assert_eq!(answer.item("tables", "")["text"], "5 of 9 tables can be worked on");
    let config_says = |text: &str| {
        answer
            .lines()
            .iter()
            .any(|i| i["about"] == "config" && i["status"] == "warn" && i["text"].as_str().unwrap().contains(text))
    };
    assert!(config_says("[\"sals.*\"] matches no table of any catalog"), "{answer}");
    assert!(config_says("no effect in this version: [http]"), "{answer}");

    Answer::of(icewarden(&config, "hold set --all --reason").arg("moving house")).exits(0);
    let held = Answer::of(&mut icewarden(&config, "check")).exits(1).stdout;
    let lines: Vec<&str> = held.lines().filter(|line| line.contains("moving house")).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("warn"), "one line for a hold on all\n{held}");
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_a_run_meets_it() {
    let lake = Lake::new();
    let config = lake.config("nobody", "");
    let state = config.parent().unwrap();
    // Root may do anything, so that a refused permission can be had by another user only.
    let is_root = rustix::process::geteuid().is_root();
    let binary = lake.folder.path().join("icewarden");
    fs::set_permissions(lake.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(BINARY, &binary).unwrap();
    if is_root {
        chown(state, Some(65534), Some(65534)).unwrap();
    }
    let warehouse = lake.demo().join("warehouse");
    fs::set_permissions(&warehouse, fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(lake.demo().join("catalog.db"), fs::Permissions::from_mode(0o444)).unwrap();
    let check = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { Path::new("setpriv") } else { &binary });
        if is_root {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
        }
        Answer::of(command.arg("--config").arg(&config).args(arguments))
    };
    let files = lake.files();
    let answer = check(&["check", "--write", "--json"]).exits(1);
    let commit = answer.item("commit", "lake");
    assert_eq!(commit["status"], "fail", "{answer}");
    assert!(commit["text"].as_str().unwrap().contains("readonly"), "{answer}");
    let store = answer.item("store", "/demo/warehouse/");
    assert_eq!(store["status"], "fail", "{answer}");
    assert!(store["text"].as_str().unwrap().contains("ermission denied"), "{answer}");
    assert!(store["text"].as_str().unwrap().starts_with("cannot write "), "{answer}");
    assert_eq!(answer.item("plans", "")["status"], "ok", "{answer}");
    assert_eq!(lake.files(), files);

    // Without --write nothing is tried, and said to be.
    let store = check(&["check", "--json"]).exits(1).item("store", "/demo/warehouse/");
    assert!(store["status"] == "ok" && store["text"].as_str().unwrap().contains("not tried"), "{store}");

    fs::set_permissions(&warehouse, fs::Permissions::from_mode(0o000)).unwrap();
    let answer = check(&["check", "--json"]).exits(1);
    assert_eq!(answer.item("catalog", "lake")["status"], "fail", "none can be loaded\n{answer}");
    assert_eq!(answer.item("tables", "")["text"], "0 of 7 tables can be worked on", "{answer}");
    fs::set_permissions(&warehouse, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn offline_the_configuration_alone_counts() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("c.toml");
    let good = "[[catalog]]\nname = \"lake\"\ntype = \"sql\"\nuri = \"sqlite:///nowhere/catalog.db\"\n[state]\ndatabase = \"sqlite:///nowhere/s.db\"\nplans = \"file:///nowhere/plans\"\n";
    fs::write(&config, good).unwrap();
    let answer = Answer::of(&mut icewarden(&config, "check --offline")).exits(0);
    assert!(answer.stdout.starts_with("ok    config  ") && answer.stderr.is_empty(), "{answer}");
    let answer = Answer::of(&mut icewarden(&config, "check --json")).exits(1);
    assert_eq!(answer.item("state", "")["status"], "fail", "{answer}");
    assert_eq!(answer.item("plans", "")["text"], "not tried", "{answer}");
    assert_eq!(answer.item("catalog", "lake")["status"], "fail", "{answer}");
    assert!(!Path::new("/nowhere").exists());

    fs::write(&config, good.replace("type", "tipe")).unwrap();
    for arguments in ["check", "check --offline"] {
        let answer = Answer::of(&mut icewarden(&config, arguments)).exits(2);
        assert!(answer.stderr.contains("did you mean `type`?"), "{answer}");
    }
    Answer::of(&mut icewarden(&config, "check --offline --write")).exits(2);
}

#[test]
fn bash_reads_its_completions() {
    let script = Answer::of(Command::new(BINARY).args(["completions", "bash"])).exits(0).stdout;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &script).unwrap();
    Answer::of(Command::new("bash").arg("-n").arg(file.path())).exits(0);
    // It completes, too.
    let ask = format!(
        "source {}; COMP_WORDS=(icewarden run ex); COMP_CWORD=2; _icewarden icewarden ex run; echo \"${{COMPREPLY[@]}}\"",
        file.path().display()
    );
    assert_eq!(Answer::of(Command::new("bash").arg("-c").arg(ask)).exits(0).stdout, "expire\n");
    Answer::of(Command::new(BINARY).args(["completions", "tcsh"])).exits(2);
}

#[test]
fn manual_pages_are_printed_and_written() {
    let first = Answer::of(Command::new(BINARY).arg("man")).exits(0).stdout;
    assert!(first.contains(".TH icewarden 1") && first.contains("icewarden\\-check(1)"), "{first}");
    let folder = tempfile::tempdir().unwrap();
    Answer::of(Command::new(BINARY).arg("man").arg(folder.path())).exits(0);
    let check = fs::read_to_string(folder.path().join("icewarden-check.1")).unwrap();
    assert!(check.contains("\\-\\-offline") && check.contains("\\-\\-write"), "{check}");
}

/// The schema of this name, told not to allow what it does not know.
fn strict_schema(name: &str) -> jsonschema::Validator {
    fn close(schema: &mut Value) {
        match schema {
            Value::Object(object) => {
                object.values_mut().for_each(close);
                if object.contains_key("properties") {
                    object.entry("additionalProperties").or_insert(Value::Bool(false));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => {}
        }
    }
    let text = Answer::of(Command::new(BINARY).args(["schema", name])).exits(0).stdout;
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    close(&mut schema);
    jsonschema::validator_for(&schema).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn what_json_prints_is_what_its_schema_says() {
    let lake = Lake::new();
    let config = lake.config("schema", "");
    let ask = |arguments: &str| Answer::of(&mut icewarden(&config, arguments));
    let expired = ask("run expire --older-than 1h --retain-last 1 --apply --json").exits(0);
    let changed = ask("branch retain sales.orders dev_alice --keep 3 --apply --json").exits(0);
    let dropped = ask("branch drop sales.orders pr_4812 --apply --json").exits(0);
    Answer::of(icewarden(&config, "hold set --table lake.sales.orders --reason").arg("audit")).exits(0);
    // A catalogued twin is a finding.
    lake.sql(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) SELECT \
         catalog_name, table_namespace, 'twin', metadata_location, iceberg_type FROM iceberg_tables WHERE table_name = 'events'",
    );
    let planned = ask("plan expire --json");
    let lists = ask("marks list --json").exits(0);
    let list = lists.lines()[0]["id"].as_str().unwrap().to_owned();
    let marks = ask(&format!("marks show {list} --json")).exits(0);
    let marked = marks.lines()[0]["location"].as_str().unwrap().to_owned();
    Answer::of(icewarden(&config, "marks keep --reason why").arg(&marked)).exits(0);
    let orphans = ask("plan orphans --reasons --json");
    let orphans_applied = ask("run orphans --apply --json");
    let swept = ask("run sweep --json");
    let answers = [
        ("run", vec![expired, planned, orphans, orphans_applied, swept, changed, dropped]),
        ("branches", vec![ask("branch list --json"), ask("branch inspect sales.orders dev_alice --json")]),
        ("mark-lists", vec![lists]),
        ("marks", vec![marks]),
        ("storage", vec![ask("storage --json")]),
        ("tables", vec![ask("tables --json")]),
        ("refs", vec![ask("refs --json")]),
        ("check", vec![ask("check --write --json"), ask("check --offline --json")]),
        ("findings", vec![ask("findings --json")]),
        ("holds", vec![ask("hold list --json")]),
        ("runs", vec![ask("runs --json"), ask("runs --limit 1 --json")]),
        ("why", vec![ask(&format!("why {marked} --json")), ask("why /nowhere/x --json")]),
    ];
    let listed = Answer::of(Command::new(BINARY).arg("schema")).exits(0).stdout;
    let known: BTreeSet<&str> = listed.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(answers.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), known, "every schema is tried");
    let run_schema = strict_schema("run");
    for (name, answers) in &answers {
        let schema = strict_schema(name);
        for answer in answers {
            let lines = answer.lines();
            assert!(!lines.is_empty(), "{name}: nothing to try\n{answer}");
            for line in lines {
                let errors: Vec<String> =
                    schema.iter_errors(&line).map(|error| format!("{} at {}", error, error.instance_path())).collect();
                assert!(errors.is_empty(), "{name}: {errors:?}\n{line}");
                if *name == "runs" && line["outcome"] != "failed" {
                    assert!(run_schema.is_valid(&line["report"]), "{line}");
                }
            }
        }
        // It is no schema that allows everything.
        assert!(!schema.is_valid(&serde_json::json!({ "nonsense": 1 })), "{name}");
    }
    Answer::of(Command::new(BINARY).args(["schema", "nonsense"])).exits(2);
}

#[test]
fn storage_tells_what_the_folders_hold_and_names_what_cannot_be_represented() {
    let lake = Lake::new();
    let config = lake.config("storage", "");
    let ask = || Answer::of(&mut icewarden(&config, "storage --json"));
    let line_of = |answer: &Answer, table: &str| {
        let found = answer.lines().into_iter().find(|line| line["table"]["name"] == table);
        found.unwrap_or_else(|| panic!("no {table}\n{answer}"))
    };
    let folder_of = |line: &Value| {
        let location = line["folders"][0]["location"].as_str().unwrap_or_else(|| panic!("{line}"));
        PathBuf::from(location.strip_prefix("file://").unwrap())
    };
    let answer = ask().exits(0);
    assert_eq!(answer.lines().len(), 7);
    for line in answer.lines() {
        let files = files_of(&folder_of(&line));
        assert_eq!(line["folders"].as_array().unwrap().len(), 1, "{line}");
        assert_eq!(line["objects"], files.len(), "{line}");
        assert_eq!(line["bytes"], files.values().sum::<u64>(), "{line}");
        assert!(line["oldest"].as_i64().unwrap() <= line["newest"].as_i64().unwrap(), "{line}");
        assert_eq!(line["unrepresentable"], 0, "{line}");
    }

    // A table in the folder of another, by an edited copy of the metadata; names that cannot be asked for; a link out.
    let orders = folder_of(&line_of(&answer, "orders"));
    let files = files_of(&orders);
    let inner = orders.join("inner/metadata");
    fs::create_dir_all(&inner).unwrap();
    let read = |file: &PathBuf| {
        let file = Some(file).filter(|file| file.to_str().unwrap().ends_with(".metadata.json"))?;
        // Some are gzip.
        serde_json::from_slice::<Value>(&fs::read(file).unwrap()).ok()
    };
    let mut metadata = files.keys().rev().find_map(read).unwrap();
    metadata["location"] = format!("file://{}/inner", orders.display()).into();
    metadata["table-uuid"] = "00000000-0000-4000-8000-000000000001".into();
    metadata["metadata-log"] = serde_json::json!([]);
    fs::write(inner.join("0.metadata.json"), metadata.to_string()).unwrap();
    lake.sql(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) SELECT \
         catalog_name, table_namespace, 'inner', replace(metadata_location, substr(metadata_location, \
         instr(metadata_location, '/metadata/')), '/inner/metadata/0.metadata.json'), \
         iceberg_type FROM iceberg_tables WHERE table_name = 'orders'",
    );
    fs::write(orders.join("data/new\nline"), "123").unwrap();
    fs::write(orders.join("data/part#7"), "4567").unwrap();
    std::os::unix::fs::symlink(lake.demo(), orders.join("data/out")).unwrap();
    let answer = ask().exits(0);
    let line = line_of(&answer, "orders");
    assert_eq!(line["objects"], files.len() + 3, "{answer}");
    assert_eq!((&line["unrepresentable"], &line["of_other_tables"]), (&3.into(), &1.into()), "{answer}");
    let examples = line["folders"][0]["unrepresentable_examples"].as_array().unwrap();
    let names: Vec<&str> =
        examples.iter().map(|example| example["location"].as_str().unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["new\nline", "out", "part#7"]);
    assert_eq!(line_of(&answer, "inner")["objects"], 1, "{answer}");
    let text = Answer::of(&mut icewarden(&config, "storage")).exits(0).stdout;
    assert!(text.contains("all 8 tables") && text.contains("data/new\\nline\": its key has characters"), "{text}");
    let one = Answer::of(&mut icewarden(&config, "storage --table sales.orders --json")).exits(0);
    assert_eq!(one.lines(), [line]);

    // A folder that cannot be read: the table says which, the others are told. Root may read all.
    let is_root = rustix::process::geteuid().is_root();
    let binary = lake.folder.path().join("icewarden");
    fs::set_permissions(lake.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(BINARY, &binary).unwrap();
    let config = lake.config("nobody", "");
    if is_root {
        chown(config.parent().unwrap(), Some(65534), Some(65534)).unwrap();
    }
    let closed = orders.join("data");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = Command::new(if is_root { Path::new("setpriv") } else { &binary });
    if is_root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    }
    let answer = Answer::of(command.arg("--config").arg(&config).args(["storage", "--json"])).exits(4);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    let line = line_of(&answer, "orders");
    let error = line["errors"][0].as_str().unwrap();
    assert!(error.starts_with(&format!("file://{}: cannot be listed: Permission denied", closed.display())), "{error}");
    assert_eq!((&line["folders"], &line["objects"]), (&serde_json::json!([]), &0.into()), "no half figures\n{answer}");
    let others: Vec<Value> = answer.lines().into_iter().filter(|line| line["table"]["name"] != "orders").collect();
    assert!(others.len() == 7 && others.iter().all(|line| line["errors"] == serde_json::json!([])), "{answer}");
}
