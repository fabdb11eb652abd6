//! What people do to branches, and what becomes of them: by the real binary on lakes that pyiceberg writes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::binary::{Answer, icewarden};
use crate::lake::Lake;
use crate::parts;

const DAY_MS: i64 = 86_400_000;
const TABLE: &str = "sales.orders";

/// A configuration with the defaults for branches, and these policies.
fn config(lake: &Lake, more: &str, policies: &str) -> PathBuf {
    let path = lake.config();
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("ref_age = \"spec\"\nkeep_fork_points = false\n", more) + policies;
    fs::write(&path, text).unwrap();
    path
}

/// Does this to a branch with pyiceberg; the ref as it is afterwards.
fn change(lake: &Lake, words: &[&str]) -> Value {
    let printed = parts::python_with("change_branch.py", &lake.root(), words);
    serde_json::from_str(&printed).unwrap()
}

fn run(config: &Path, arguments: &str) -> Answer {
    Answer::of(&mut icewarden(config, arguments)).exits(0)
}

/// Every retained snapshot has the rows that it had.
#[track_caller]
fn assert_rows(lake: &Lake, before: &std::collections::BTreeMap<String, std::collections::BTreeMap<String, String>>) {
    for (table, snapshots) in lake.rows() {
        for (id, rows) in snapshots {
            assert_eq!(before[&table].get(&id), Some(&rows), "rows of snapshot {id} of {table}");
        }
    }
}

#[test]
fn a_branch_whose_retention_pyiceberg_strips_is_not_dropped_early() {
    let lake = Lake::by_pyiceberg();
    let policy = "[[policy]]\ntables = [\"sales.*\"]\nrefs = [{ name = \"dev_*\", max_age = \"1d\" }]\n";
    let config_file = config(&lake, "", policy);
    // A look is enough to know it.
    run(&config_file, "plan expire --json");
    let own = change(&lake, &["show", TABLE, "dev_alice"]);
    assert_eq!(own["max-ref-age-ms"], 30 * DAY_MS);
    let stripped = change(&lake, &["append", TABLE, "dev_alice", "2"]);
    assert_eq!(stripped["max-ref-age-ms"], Value::Null, "pyiceberg keeps retention by now: {stripped}");
    let rows = lake.rows();

    let answer = run(&config_file, "run expire --apply --json");
    let refs = &answer.table(TABLE)["plan"]["refs"];
    let decision = refs.as_array().unwrap().iter().find(|decision| decision["name"] == "dev_alice").unwrap();
    assert_eq!(decision["verdict"]["verdict"], "keep_young", "{answer}");
    assert_eq!(decision["values"]["max_age"], json!({ "value": "30d", "source": "lost" }), "{answer}");
    let findings = run(&config_file, "findings --json");
    assert!(findings.stdout.contains("\"retention_lost\""), "{findings}");
    assert!(lake.table(TABLE).refs().contains_key("dev_alice"));
    assert_rows(&lake, &rows);

    // A policy may write it again; then nothing is lost.
    let policy = policy.replace("max_age = \"1d\"", "max_age = \"1d\", set_retention = true");
    let config_file = config(&lake, "", &policy);
    run(&config_file, "run expire --apply --json");
    let written = change(&lake, &["show", TABLE, "dev_alice"]);
    for key in ["max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep"] {
        assert_eq!(written[key], own[key], "{written}");
    }
    let version = lake.table(TABLE).version();
    run(&config_file, "run expire --apply --json");
    assert_eq!(lake.table(TABLE).version(), version, "nothing to do commits nothing");
    let findings = run(&config_file, "findings --json");
    assert!(!findings.stdout.contains("\"retention_lost\""), "{findings}");
    assert_rows(&lake, &rows);
}

#[test]
fn a_branch_cut_today_from_an_old_snapshot_lives_and_one_created_again_is_new() {
    let lake = Lake::by_pyiceberg();
    let config_file = config(&lake, "", "");
    run(&config_file, "plan expire --json");
    let old = lake.table(TABLE).refs()["eom_old"].to_string();
    change(&lake, &["drop", TABLE, "pr_4812"]);
    change(&lake, &["create", TABLE, "pr_4812", &old, "3"]);
    change(&lake, &["create", TABLE, "pr_9999", &old, "3"]);
    let rows = lake.rows();

    let answer = run(&config_file, "run expire --apply --json");
    let refs = lake.table(TABLE).refs();
    assert_eq!((refs["pr_4812"].to_string(), refs["pr_9999"].to_string()), (old.clone(), old), "{answer}");
    run(&config_file, "run sweep --apply --json");
    assert_rows(&lake, &rows);
    let listed = run(&config_file, &format!("branch list --table {TABLE} --json"));
    let lines: Vec<Value> = listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(of("pr_9999")["verdict"]["verdict"], "keep_new", "{listed}");
}

#[test]
fn a_dropped_branch_is_restored_within_a_day_whole_and_freed_after_it() {
    let lake = Lake::by_pyiceberg();
    let config_file = config(&lake, "", "");
    let rows = lake.rows();
    run(&config_file, "run expire --apply --json");
    run(&config_file, "run sweep --apply --json");
    let before = change(&lake, &["show", TABLE, "pr_4813"]);
    let kept = lake.rows();

    let looked = run(&config_file, &format!("branch drop {TABLE} pr_4813"));
    assert!(looked.stdout.contains("nothing was changed; to go on: icewarden branch drop"), "{looked}");
    assert!(lake.table(TABLE).refs().contains_key("pr_4813"));
    run(&config_file, &format!("branch drop {TABLE} pr_4813 --apply"));
    assert!(!lake.table(TABLE).refs().contains_key("pr_4813"));
    // The nightly jobs in between.
    run(&config_file, "run expire --older-than 2h --retain-last 1 --table sales.orders --apply --json");
    run(&config_file, "run sweep --apply --json");
    let listed = run(&config_file, "branch list");
    assert!(listed.stdout.contains("pr_4813   dropped"), "{listed}");
    run(&config_file, &format!("branch restore {TABLE} pr_4813 --apply"));
    let after = change(&lake, &["show", TABLE, "pr_4813"]);
    assert_eq!(after, before, "head and retention");
    let head = after["snapshot-id"].to_string();
    assert_eq!(lake.rows()[TABLE][&head], kept[TABLE][&head], "whole");

    // Without a grace it is freed at once; what others need stays.
    let config_file = config(&lake, "drop_grace = \"0s\"\n", "");
    run(&config_file, &format!("branch drop {TABLE} pr_4813 --apply"));
    run(&config_file, "run expire --apply --json");
    run(&config_file, "run sweep --apply --json");
    assert!(!lake.table(TABLE).snapshots().contains(&head.parse().unwrap()));
    Answer::of(&mut icewarden(&config_file, &format!("branch restore {TABLE} pr_4813 --apply")))
        .exits(3)
        .says("which the table no longer has");
    assert_rows(&lake, &rows);
}
