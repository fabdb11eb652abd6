//! What others do between our load and our commit, on Iceberg's own REST catalog and on SQLite.

use crate::binary::{Answer, Paused, icewarden};
use crate::lake::Lake;
use crate::parts::RestCatalog;

const TABLE: &str = "sales.customers";
const EXPIRE: &str = "run expire --table sales.customers --older-than 5d --apply --json";
const SWEEP: &str = "run sweep --table sales.customers --apply --json";

/// A snapshot that an expiry removes: all but the head of main are older than the cutoff.
fn doomed(lake: &Lake) -> i64 {
    let retained = lake.table(TABLE).refs()["main"];
    lake.table(TABLE).snapshots().into_iter().find(|&snapshot| snapshot != retained).unwrap()
}

#[test]
fn a_branch_created_on_a_retained_snapshot_before_our_commit_survives() {
    let lake = Lake::by_pyiceberg();
    let files = lake.files();
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config_of_rest(&rest);
    let head = lake.table(TABLE).refs()["main"];

    let paused = Paused::at("after-intent", icewarden(&config, EXPIRE));
    rest.create_branch("sales", "customers", "late", head);
    let answer = paused.go_on().exits(0);
    assert_eq!(answer.table(TABLE)["outcome"], "done", "{answer}");
    assert_eq!(lake.table(TABLE).refs()["late"], head, "{answer}");
    assert_eq!(lake.table(TABLE).snapshots().len(), 1, "{answer}");
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    assert_eq!(files.len() - lake.files().len(), 26, "all that Iceberg Java removes here, too");
    assert_eq!(lake.rows()[TABLE].len(), 1);
}

#[test]
fn a_branch_that_the_server_removed_with_our_snapshots_is_reported_and_nothing_is_marked() {
    let lake = Lake::by_pyiceberg();
    let files = lake.files();
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config_of_rest(&rest);

    let paused = Paused::at("after-intent", icewarden(&config, EXPIRE));
    rest.create_branch("sales", "customers", "late", doomed(&lake));
    let answer = paused.go_on().exits(1);
    assert!(!lake.table(TABLE).refs().contains_key("late"), "the server removes it in silence\n{answer}");
    assert_eq!(answer.table(TABLE)["outcome"], "failed", "{answer}");
    assert_eq!(answer.table(TABLE)["counts"]["marked_objects"], 0, "{answer}");
    answer.says("late");
    Answer::of(&mut icewarden(&config, "findings --json")).exits(0).says("unplanned_removal").says(TABLE);

    // While the finding is open no job touches the table.
    Answer::of(&mut icewarden(&config, SWEEP));
    Answer::of(&mut icewarden(&config, EXPIRE));
    assert_eq!(lake.files(), files);
}

#[test]
fn a_commit_before_ours_in_a_sql_catalog_makes_us_plan_again() {
    let lake = Lake::by_pyiceberg();
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config();
    let doomed = doomed(&lake);

    let paused = Paused::at("after-intent", icewarden(&config, EXPIRE));
    rest.create_branch("sales", "customers", "late", doomed);
    let answer = paused.go_on().exits(0);
    let table = lake.table(TABLE);
    assert_eq!(answer.table(TABLE)["outcome"], "done", "{answer}");
    assert_eq!(table.refs()["late"], doomed, "{answer}");
    assert!(table.snapshots().contains(&doomed), "{answer}");
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    assert_eq!(lake.rows()[TABLE].len(), table.snapshots().len(), "pyiceberg reads what is retained");
}

#[test]
fn a_commit_that_was_applied_although_the_server_failed_is_found_and_marked() {
    let lake = Lake::by_pyiceberg();
    let files = lake.files();
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config_of_rest(&rest);
    rest.fail_next_commit("after", 504);
    let answer = Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    assert_eq!(answer.table(TABLE)["counts"]["expired_snapshots"], 9, "{answer}");
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    assert_eq!(files.len() - lake.files().len(), 26);
}

#[test]
fn a_commit_that_the_server_refused_deletes_nothing() {
    let lake = Lake::by_pyiceberg();
    let files = lake.files();
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config_of_rest(&rest);
    rest.fail_next_commit("before", 500);
    let answer = Answer::of(&mut icewarden(&config, EXPIRE)).exits(1);
    assert_eq!(answer.table(TABLE)["outcome"], "failed", "{answer}");
    Answer::of(&mut icewarden(&config, SWEEP));
    assert_eq!(lake.files(), files);

    Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    assert_eq!(files.len() - lake.files().len(), 26, "the next run does it");
}
