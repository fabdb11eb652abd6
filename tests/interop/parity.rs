//! Expiry and sweep do to every table what Iceberg Java's own expiry does to it.

use std::collections::{BTreeMap, BTreeSet};

use crate::binary::{Answer, icewarden};
use crate::lake::{Lake, Table};
use crate::parts::{JavaExpiry, java_expire};

/// The tables of the pyiceberg lake with what Java expires when older than 5 days, keep 1: snapshots and files.
/// One of sales.orders is a metadata file that falls off the log.
pub(crate) const TABLES: [(&str, usize, usize); 7] = [
    ("ops.empty", 0, 0),
    ("ops.events", 6, 6),
    ("ops.frozen", 0, 0),
    ("ops.v1table", 2, 2),
    ("ops.wap", 3, 5),
    ("sales.customers", 9, 26),
    ("sales.orders", 10, 13),
];
const DAY_MS: i64 = 86_400_000;

/// What an expiry did to a lake.
struct Change {
    before: BTreeMap<String, Table>,
    after: BTreeMap<String, Table>,
    removed: BTreeSet<String>,
}

impl Change {
    /// Runs `act` on the lake as it was made.
    fn of(lake: &Lake, act: impl FnOnce()) -> Self {
        lake.restore();
        let (before, files) = (lake.tables(), lake.all_files());
        act();
        let left = lake.all_files();
        for new in &left - &files {
            assert!(new.ends_with(".metadata.json"), "a commit writes no other file: {new}");
        }
        Self { before, after: lake.tables(), removed: &files - &left }
    }

    fn expired(&self, table: &str) -> BTreeSet<i64> {
        &self.before[table].snapshots() - &self.after[table].snapshots()
    }

    fn dropped(&self, table: &str) -> Vec<String> {
        let mut refs = self.before[table].refs();
        refs.retain(|name, _| !self.after[table].refs().contains_key(name));
        refs.into_keys().collect()
    }

    fn removed(&self, table: &str) -> BTreeSet<&String> {
        let folder = format!("{}/", table.replace('.', "/"));
        self.removed.iter().filter(|file| file.starts_with(&folder)).collect()
    }
}

/// Fails unless our change is Java's, and each table's retained rows are what they were.
fn assert_equal(lake: &Lake, java: &Change, says: &BTreeMap<String, JavaExpiry>, ours: &Change) {
    for table in java.before.keys() {
        assert_eq!(ours.expired(table), java.expired(table), "expired snapshots of {table}");
        assert_eq!(ours.dropped(table), java.dropped(table), "dropped refs of {table}");
        assert_eq!(ours.removed(table), java.removed(table), "removed files of {table}");
        // Java's own words agree with what we see in the metadata, so we look in the right place.
        assert_eq!(says[table].expired, Vec::from_iter(java.expired(table)), "{table}");
        assert_eq!(says[table].dropped, java.dropped(table), "{table}");
    }
    assert_eq!(ours.removed, java.removed, "removed files of the whole lake");
    let left = &ours.after;
    for (name, table) in left {
        assert!(lake.all_files().iter().any(|file| table.metadata_file.ends_with(file)), "metadata file of {name}");
    }
}

/// Fails unless pyiceberg reads from every retained snapshot the rows that it read before.
fn assert_rows_unchanged(
    lake: &Lake,
    before: &BTreeMap<String, BTreeMap<String, String>>,
    after: &BTreeMap<String, Table>,
) {
    let now = lake.rows();
    for (name, table) in after {
        let retained: BTreeSet<String> = table.snapshots().iter().map(i64::to_string).collect();
        let mut expected = before[name].clone();
        expected.retain(|snapshot, _| retained.contains(snapshot));
        assert_eq!(now[name], expected, "rows of {name}");
        assert_eq!(now[name].len(), retained.len(), "snapshots of {name}");
    }
}

#[test]
fn expiry_equals_iceberg_java_on_each_table_with_an_explicit_cutoff() {
    let lake = Lake::by_pyiceberg();
    let rows = lake.rows();
    let names = TABLES.map(|(name, ..)| name);
    let mut says = BTreeMap::new();
    let java = Change::of(&lake, || {
        let cutoff = chrono::Utc::now().timestamp_millis() - 5 * DAY_MS;
        says = java_expire(&lake.root(), &cutoff.to_string(), "1", &names);
    });
    for (table, snapshots, files) in TABLES {
        assert_eq!((java.expired(table).len(), java.removed(table).len()), (snapshots, files), "Java on {table}");
    }
    assert!(says["ops.frozen"].refused.is_some(), "Java refuses where gc.enabled is false");

    let config = lake.config();
    let ours = Change::of(&lake, || {
        for (table, snapshots, files) in TABLES {
            let arguments = format!("run expire --table {table} --older-than 5d --retain-last 1 --apply --json");
            let answer = Answer::of(&mut icewarden(&config, &arguments)).exits(0);
            let report = answer.table(table);
            let outcome = if table == "ops.frozen" { "skipped" } else { "done" };
            assert_eq!(report["outcome"], outcome, "{answer}");
            assert_eq!(report["counts"]["expired_snapshots"], snapshots, "{answer}");
            assert_eq!(report["counts"]["marked_objects"], files, "{answer}");
        }
        Answer::of(&mut icewarden(&config, "run sweep --apply --json")).exits(0);
    });
    assert_equal(&lake, &java, &says, &ours);
    assert_rows_unchanged(&lake, &rows, &ours.after);

    let again =
        Answer::of(&mut icewarden(&config, "run expire --older-than 5d --retain-last 1 --apply --json")).exits(0);
    for (table, ..) in TABLES {
        assert_eq!(again.table(table)["counts"]["commits"], 0, "nothing to do commits nothing\n{again}");
    }
    assert_eq!(lake.tables(), ours.after);
}

#[test]
fn expiry_equals_iceberg_java_by_the_properties_of_tables_and_refs() {
    let lake = Lake::by_pyiceberg();
    let rows = lake.rows();
    let mut says = BTreeMap::new();
    let java = Change::of(&lake, || says = java_expire(&lake.root(), "-", "-", &TABLES.map(|(name, ..)| name)));
    // 7 days and 3 snapshots by the table's own properties, not the 5 days and 1 of everybody.
    assert_eq!(java.dropped("sales.orders"), ["eom_old", "pr_4812"]);

    let config = lake.config();
    let ours = Change::of(&lake, || {
        Answer::of(&mut icewarden(&config, "run expire --apply --json")).exits(0);
        Answer::of(&mut icewarden(&config, "run sweep --apply --json")).exits(0);
    });
    assert_equal(&lake, &java, &says, &ours);
    assert_rows_unchanged(&lake, &rows, &ours.after);
}

#[test]
fn expiry_equals_iceberg_java_on_a_format_3_table() {
    let lake = Lake::by_java();
    let mut says = BTreeMap::new();
    let java = Change::of(&lake, || {
        let now = chrono::Utc::now().timestamp_millis().to_string();
        says = java_expire(&lake.root(), &now, "1", &["ops.v3"]);
    });
    let removed = java.removed("ops.v3");
    for kind in ["vectors", "stats-", "partition-stats-", "data/data", "-m0.avro", "snap-"] {
        assert!(removed.iter().any(|file| file.contains(kind)), "Java removes a {kind}: {removed:?}");
    }
    let kept = lake.files();
    for kind in ["vectors", "stats-", "equality"] {
        assert!(kept.iter().any(|file| file.contains(kind)), "Java keeps a {kind}");
    }

    let uri = format!("sqlite://{}/catalog.db", lake.root().display());
    let config = lake.config_with(&format!("type = \"sql\"\nuri = \"{uri}\""), "floor = \"0s\"");
    let ours = Change::of(&lake, || {
        Answer::of(&mut icewarden(&config, "run expire --older-than 0s --retain-last 1 --apply --json")).exits(0);
        Answer::of(&mut icewarden(&config, "run sweep --apply --json")).exits(0);
    });
    assert_equal(&lake, &java, &says, &ours);
}
