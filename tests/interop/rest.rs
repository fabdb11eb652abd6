//! Iceberg's own REST catalog when it fails in the middle of a run.

use std::collections::{BTreeMap, BTreeSet};

use crate::binary::{Answer, icewarden};
use crate::lake::Lake;
use crate::parity;
use crate::parts::RestCatalog;

const EXPIRE: &str = "run expire --older-than 5d --retain-last 1 --apply --json";

/// The files of a table that are gone since `before`, with the rows that are retained looked at.
fn removed(lake: &Lake, before: &BTreeSet<String>, table: &str) -> usize {
    let folder = format!("{}/", table.replace('.', "/"));
    (before - &lake.all_files()).iter().filter(|file| file.starts_with(&folder)).count()
}

/// Fails unless every retained snapshot has the rows that it had.
fn assert_rows_kept(lake: &Lake, before: &BTreeMap<String, BTreeMap<String, String>>) {
    for (table, snapshots) in lake.rows() {
        for (snapshot, rows) in &snapshots {
            assert_eq!(&before[&table][snapshot], rows, "{table} {snapshot}");
        }
        assert_eq!(snapshots.len(), lake.table(&table).snapshots().len(), "{table}");
    }
}

#[test]
fn each_fault_of_a_commit_ends_as_if_there_were_none() {
    let lake = Lake::by_pyiceberg();
    let (rows, files) = (lake.rows(), lake.all_files());
    let rest = RestCatalog::serve(&lake.root());
    let config = lake.config_of_rest(&rest);
    // What fails, whether it was applied, on which table; how many files Java removes there.
    for (fault, is_applied, table) in [
        ("when=after&status=503", true, "sales.customers"),
        ("when=hang&ms=300", true, "ops.events"),
        ("when=before&status=503", false, "ops.wap"),
        ("when=before&status=429", false, "ops.v1table"),
        ("when=before&status=401", false, "sales.orders"),
    ] {
        let (_, snapshots, count) = parity::TABLES.into_iter().find(|(name, ..)| *name == table).unwrap();
        rest.fault(&format!("{fault}&path=.*/tables/.*"), "");
        let expire = EXPIRE.replace("expire", &format!("expire --table {table}"));
        let answer = Answer::of(&mut icewarden(&config, &expire)).exits(i32::from(!is_applied));
        let found = answer.table(table);
        assert_eq!(found["outcome"], if is_applied { "done" } else { "failed" }, "{fault}\n{answer}");
        assert_eq!(found["counts"]["expired_snapshots"], if is_applied { snapshots } else { 0 }, "{fault}\n{answer}");
        let commits = rest.log().iter().filter(|line| line.starts_with("POST ") && line.contains("/tables/")).count();
        if !is_applied {
            assert_eq!(removed(&lake, &files, table), 0, "{fault}\n{answer}");
            Answer::of(&mut icewarden(&config, &expire)).exits(0);
        }
        let after = rest.log().iter().filter(|line| line.starts_with("POST ") && line.contains("/tables/")).count();
        assert_eq!(after - commits, usize::from(!is_applied), "one commit a run");
        assert_eq!(removed(&lake, &files, table), count, "{fault}");
    }
    assert_rows_kept(&lake, &rows);
    let again = Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    let report = again.json();
    assert!(report["tables"].as_array().unwrap().iter().all(|table| table["counts"]["commits"] == 0), "{again}");
}

#[test]
fn what_passes_by_itself_is_asked_again_and_a_token_that_ends_is_renewed() {
    let lake = Lake::by_pyiceberg();
    let (rows, files) = (lake.rows(), lake.all_files());
    let rest = RestCatalog::serve(&lake.root());
    let catalog = format!("type = \"rest\"\nuri = \"{}\"\ncredential = \"icewarden:secret\"", rest.uri);
    let config = lake.config_with(&catalog, "");
    let count = |what: &str| rest.log().iter().filter(|line| line.contains(what)).count();
    let odd = r#"{"defaults": {"clients": "five", "namespace-separator": ""},
        "overrides": {"x": "\u0000"}, "endpoints": ["POST v1/oauth/tokens"], "idempotency-key-lifetime": null}"#;
    for (words, body, table) in [
        ("status=200&path=/v1/config&times=9", odd, "ops.v1table"),
        ("status=503&path=/v1/config&times=2", "", "ops.wap"),
        ("status=429&path=.*/namespaces/ops/tables&times=2", "", "ops.events"),
        // The second load of the table, in the middle of the run.
        ("status=401&path=.*/tables/customers&skip=1", "", "sales.customers"),
        ("status=503&path=.*/tables/orders&skip=1&times=2", "", "sales.orders"),
    ] {
        let tokens = count("POST /v1/oauth/tokens 200");
        rest.fault(&format!("when=before&method=GET&{words}"), body);
        let expire = EXPIRE.replace("expire", &format!("expire --table {table}"));
        let answer = Answer::of(&mut icewarden(&config, &expire)).exits(0);
        assert_eq!(answer.table(table)["outcome"], "done", "{words}\n{answer}");
        let (_, _, gone) = parity::TABLES.into_iter().find(|(name, ..)| *name == table).unwrap();
        assert_eq!(removed(&lake, &files, table), gone, "{words}\n{answer}");
        let renewed = usize::from(words.contains("401"));
        assert_eq!(count("POST /v1/oauth/tokens 200") - tokens, 1 + renewed, "{words}\n{:#?}", rest.log());
    }
    for (code, path, times) in
        [(503, "/v1/config", 2), (429, "/tables", 2), (401, "/customers", 1), (503, "/orders", 2)]
    {
        let log = rest.log();
        let is_it = |line: &&String| line.contains(path) && line.ends_with(&code.to_string());
        assert_eq!(log.iter().filter(is_it).count(), times, "{path}: {log:#?}");
    }
    assert_rows_kept(&lake, &rows);
}

#[test]
fn a_catalog_that_stays_wrong_is_told_by_name_and_nothing_is_changed() {
    let lake = Lake::by_pyiceberg();
    let (files, tables) = (lake.all_files(), lake.tables());
    let database = lake.root().join("catalog.db");
    let warehouse = format!("file://{}/warehouse", lake.root().display());
    let rest = RestCatalog::serve_with(&database, &warehouse, &["token=let-me-in"]);
    let catalog = format!("type = \"rest\"\nuri = \"{}\"\ntoken = \"let-me-in\"", rest.uri);
    let config = lake.config_with(&catalog, "");
    for (words, body, says) in [
        // In the middle of the run the token is no good any more; there is no other.
        ("status=401&path=.*/tables/customers&skip=1", "", "check `token`"),
        ("status=200&path=/v1/config", "<html>moved</html>", "is no catalog configuration"),
        // `iceberg-catalog-rest`, which lists, takes nothing but text.
        (
            "status=200&path=/v1/config&times=9",
            r#"{"defaults": {"prefix": null}, "overrides": {}}"#,
            "expected a string",
        ),
        ("status=200&path=.*/tables/customers&times=9", r#"{"metadata": {"format-version": 99}}"#, "sales.customers"),
        ("status=403&path=.*/tables/customers&times=9", "", "vended_credentials = false"),
        ("status=500&path=.*/tables/customers&times=9", "", "injected"),
    ] {
        rest.fault(&format!("when=before&method=GET&{words}"), body);
        let expire = EXPIRE.replace("expire", "expire --table sales.customers");
        let answer = Answer::of(&mut icewarden(&config, &expire)).exits(1).says(says);
        assert!(!answer.to_string().contains("let-me-in"), "{answer}");
        assert_eq!((lake.all_files(), lake.tables()), (files.clone(), tables.clone()), "{answer}");
    }
}
