//! `kill -9` at each stage, and two processes at once: the end is that of one run.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use crate::binary::{Answer, Paused, icewarden};
use crate::lake::{Lake, Table};

const EXPIRE: &str = "run expire --older-than 5d --apply --json";
/// The table with branches, tags, and metadata files that fall off the log.
const ONE_TABLE: &str = "run expire --table sales.orders --older-than 5d --apply --json";
const SWEEP: &str = "run sweep --apply --json";

/// A table's number of commits, snapshots and refs.
type Facts = (u32, BTreeSet<i64>, BTreeMap<String, i64>);

/// Where a lake ended. Metadata files are told by their numbers: the rest of a name differs from run to run.
#[derive(PartialEq)]
struct End {
    tables: BTreeMap<String, Facts>,
    files: BTreeSet<String>,
}

impl End {
    fn of(lake: &Lake) -> Self {
        let facts = |table: Table| (table.version(), table.snapshots(), table.refs());
        let tables = lake.tables().into_iter().map(|(name, table)| (name, facts(table))).collect();
        let told = |file: String| match file.strip_suffix(".metadata.json") {
            Some(path) => path[..path.rfind('/').unwrap() + "/00000".len()].to_owned(),
            None => file,
        };
        Self { tables, files: lake.all_files().into_iter().map(told).collect() }
    }

    #[track_caller]
    fn assert_is(&self, expected: &Self, case: &str) {
        let (more, less) = (&self.files - &expected.files, &expected.files - &self.files);
        assert!(more.is_empty() && less.is_empty(), "{case}: not deleted {more:?}, deleted too much {less:?}");
        for (name, facts) in &expected.tables {
            assert_eq!(self.tables[name], *facts, "{case}: {name}");
        }
    }
}

/// The end of an undisturbed run, and the lake restored.
fn undisturbed(lake: &Lake) -> End {
    let config = lake.config();
    Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    let end = End::of(lake);
    lake.restore();
    assert!(End::of(lake) != end, "there is something to do");
    end
}

#[test]
fn a_run_killed_at_any_stage_and_run_again_ends_as_if_undisturbed() {
    let lake = Lake::by_pyiceberg();
    let end = undisturbed(&lake);
    for place in
        ["after-intent", "before-commit", "after-commit", "after-mark", "before-delete", "mid-sweep", "after-sweep"]
    {
        lake.restore();
        let config = lake.config();
        let files = lake.files();
        let paused = Paused::at(place, icewarden(&config, ONE_TABLE));
        if !place.ends_with("-sweep") {
            assert_eq!(lake.files(), files, "nothing is deleted before {place}");
        }
        paused.kill();
        Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
        Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
        End::of(&lake).assert_is(&end, &format!("killed at {place}"));
    }
}

#[test]
fn a_run_that_is_held_up_keeps_others_off_its_table() {
    let lake = Lake::by_pyiceberg();
    let end = undisturbed(&lake);
    let config = lake.config();
    let first = Paused::at("after-intent", icewarden(&config, ONE_TABLE));
    let version = lake.table("sales.orders").version();
    let second = Answer::of(&mut icewarden(&config, ONE_TABLE));
    assert_eq!(lake.table("sales.orders").version(), version, "the second commits nothing\n{second}");
    assert_ne!(second.table("sales.orders")["outcome"], "done", "{second}");
    let second = second.says("being worked on by");
    let first = first.go_on().exits(0);
    assert_eq!(first.table("sales.orders")["counts"]["commits"], 1, "{first}\n{second}");

    Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    End::of(&lake).assert_is(&end, "the first went on");
}

#[test]
fn two_runs_at_once_end_as_one() {
    let lake = Lake::by_pyiceberg();
    let end = undisturbed(&lake);
    let config = lake.config();
    let start = || icewarden(&config, EXPIRE).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let answers = [start(), start()].map(|process| Answer::from(process.wait_with_output().unwrap()));
    for table in ["sales.customers", "sales.orders", "ops.events", "ops.wap", "ops.v1table"] {
        let commits = answers.iter().map(|answer| answer.table(table)["counts"]["commits"].as_u64().unwrap());
        assert_eq!(commits.sum::<u64>(), 1, "{table}\n{}\n{}", answers[0], answers[1]);
    }
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    End::of(&lake).assert_is(&end, "both ended");
}
