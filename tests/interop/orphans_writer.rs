//! A writer commits all through listing, planning, marking and sweeping, and dies in the middle: nothing that is referenced
//! goes, and what it left at its death does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use icewarden::clock::Clock;
use icewarden::config::Config;
use icewarden::report::{Job, RunReport};
use icewarden::run::{self, RunRequest};
use serde_json::Value;

use crate::binary::{Answer, icewarden};
use crate::lake::Lake;
use crate::orphans::{ORPHANS, with_orphans};
use crate::parts::script_of_ours;

const SWEEP: &str = "run sweep --apply --json";
const TABLE: &str = "live.t";

/// `keep_writing.py`, with what it says in a file; ends when it is stopped.
struct Writer {
    process: Child,
    said: PathBuf,
}

impl Writer {
    fn start(lake: &Lake, number: u32, arguments: &[&str]) -> Self {
        let said = lake.root().join(format!("said-{number}"));
        let mut command = script_of_ours("keep_writing.py");
        command.arg(lake.root()).args(arguments).stdin(Stdio::piped()).stdout(File::create(&said).unwrap());
        Self { process: command.spawn().unwrap(), said }
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.said).unwrap().lines().map(str::to_owned).collect()
    }

    /// What it has committed: rows by snapshot; and the longest time in ms that a commit took.
    fn committed(&self) -> (BTreeMap<String, u64>, u64) {
        let (mut rows, mut longest) = (BTreeMap::new(), 0);
        for line in self.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["committed", snapshot, count, took] = words[..] {
                rows.insert(snapshot.to_owned(), count.parse().unwrap());
                longest = longest.max(took.parse().unwrap());
            }
        }
        (rows, longest)
    }

    fn wait_for_commits(&self, count: usize) {
        let end = Instant::now() + Duration::from_mins(1);
        while self.committed().0.len() < count {
            assert!(Instant::now() < end, "the writer has only said {:?}", self.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_dead(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// The files that it left when it died.
    fn left_at_its_crash(&mut self) -> Vec<PathBuf> {
        assert_eq!(self.process.wait().unwrap().code(), Some(9), "{:?}", self.lines().last());
        let left: Vec<PathBuf> =
            self.lines().iter().filter_map(|line| line.strip_prefix("crashed ").map(PathBuf::from)).collect();
        assert!(left.len() >= 3, "data, a manifest and a list: {left:?}");
        left
    }

    fn stop(&mut self) {
        drop(self.process.stdin.take());
        let ended = self.process.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _killed = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// What rounds did to the table.
#[derive(Debug, Default)]
struct Told {
    outcomes: BTreeMap<String, u32>,
    reasons: BTreeSet<String>,
    marked: u64,
    deleted: u64,
    referenced_again: u64,
}

impl Told {
    fn add(&mut self, table: &Value) {
        if table.is_null() {
            return;
        }
        *self.outcomes.entry(table["outcome"].as_str().unwrap().to_owned()).or_default() += 1;
        self.reasons.extend(table["reason"].as_str().map(str::to_owned));
        let count = |name: &str| table["counts"][name].as_u64().unwrap_or_default();
        self.marked += count("marked_objects");
        self.deleted += count("deleted_objects");
        self.referenced_again += count("referenced_again");
        assert_eq!(count("failed_deletes"), 0, "{table}");
    }

    fn add_report(&mut self, report: &RunReport) {
        let report = serde_json::to_value(report).unwrap();
        let tables = report["tables"].as_array().unwrap();
        self.add(tables.iter().find(|table| table["table"]["name"] == "t").unwrap_or(&Value::Null));
    }
}

/// Rounds in this process, each an orphan job and a sweep.
async fn rounds(config: &Path, count: usize, told: &mut Told) {
    let (config, _) = Config::load(config).unwrap();
    let lake = run::Lake::open(config, Clock::System).await.unwrap();
    for _ in 0..count {
        for job in [Job::Orphans, Job::Sweep] {
            let mut request = RunRequest::look(job, "a test");
            request.apply = true;
            if job == Job::Orphans {
                request.tables = vec![icewarden::config::Pattern::new(TABLE)];
            }
            told.add_report(&run::run(&lake, &request).await.unwrap());
        }
    }
}

/// Rounds by the binary.
fn rounds_by_process(config: &Path, count: usize, told: &mut Told) {
    for _ in 0..count {
        for arguments in [format!("{ORPHANS} --table {TABLE}"), SWEEP.to_owned()] {
            let answer = Answer::of(&mut icewarden(config, &arguments));
            let report = answer.json();
            let tables = report["tables"].as_array().unwrap();
            told.add(tables.iter().find(|table| table["table"]["name"] == "t").unwrap_or(&Value::Null));
        }
    }
}

/// A hundred rounds beside a writer that dies in the middle of them, ten of them by the binary.
fn beside_a_writer(orphans: &str, writer: &[&str], most_ms: u64) -> Told {
    let lake = Lake::by_pyiceberg();
    let config = with_orphans(&lake, orphans);
    let text = fs::read_to_string(&config).unwrap().replace("[guard]", "[guard]\nmax_ratio = 1.0");
    fs::write(&config, text).unwrap();
    let rows = lake.rows();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    let mut first = Writer::start(&lake, 1, &[writer, &["--crash-after", "60"]].concat());
    first.wait_for_commits(3);
    let mut told = Told::default();
    let mut done = 0;
    while done < 40 || !first.is_dead() {
        runtime.block_on(rounds(&config, 5, &mut told));
        done += 5;
        assert!(done < 2000, "the writer lives on: {:?}", first.lines().last());
    }
    let left = first.left_at_its_crash();
    let mut second = Writer::start(&lake, 2, writer);
    second.wait_for_commits(3);
    rounds_by_process(&config, 10, &mut told);
    runtime.block_on(rounds(&config, 50, &mut told));
    second.stop();

    // All is there that any snapshot needs, and holds the rows that its writer committed.
    let mut committed = first.committed().0;
    let longest = first.committed().1.max(second.committed().1);
    assert!(longest < most_ms, "this machine is too slow for this test: a commit took {longest} ms");
    committed.extend(second.committed().0);
    let mut after = lake.rows();
    let live = after.remove(TABLE).unwrap();
    assert!(!live.is_empty());
    for (snapshot, read) in live {
        let count: u64 = read.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(committed.get(&snapshot), Some(&count), "snapshot {snapshot}: {told:?}");
    }
    assert_eq!(after, rows, "the other tables");

    // Nobody writes any more, so that all that is left is an orphan, and goes: that of the crash, too.
    let at_once = with_orphans(&lake, "older_than = \"1ms\"\nmetadata_older_than = \"1ms\"\ngrace = \"0s\"");
    let text = fs::read_to_string(&at_once).unwrap().replace("[guard]", "[guard]\nmax_ratio = 1.0");
    fs::write(&at_once, text).unwrap();
    let end = Instant::now() + Duration::from_mins(1);
    while left.iter().any(|file| file.exists()) {
        assert!(Instant::now() < end, "still there: {left:?}, {told:?}");
        runtime.block_on(rounds(&at_once, 1, &mut told));
    }
    let mut at_the_end = lake.rows();
    at_the_end.remove(TABLE);
    assert_eq!(at_the_end, rows);
    assert!(told.outcomes.get("failed").is_none(), "{told:?}");
    told
}

#[test]
fn beside_a_writer_nothing_referenced_goes_as_long_as_its_commits_are_quicker_than_older_than() {
    let orphans = "older_than = \"15s\"\nmetadata_older_than = \"15s\"\ngrace = \"0s\"";
    let told = beside_a_writer(orphans, &[], 14_000);
    assert!(told.deleted > 20, "{told:?}");
}

#[test]
fn beside_a_writer_of_old_files_the_second_proof_keeps_what_was_committed_in_the_grace_period() {
    let orphans = "older_than = \"1s\"\nmetadata_older_than = \"1s\"\ngrace = \"5s\"";
    let told = beside_a_writer(orphans, &["--old"], 4_000);
    assert!(told.deleted > 20 && told.marked > told.deleted, "{told:?}");
    assert!(told.referenced_again > 0, "no commit came between the two proofs: {told:?}");
}
