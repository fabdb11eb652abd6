//! The demo as a new user runs it, read by another engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::parts;

/// Runs the demo in this folder; what it printed.
fn demo(folder: &Path) -> String {
    parts::output(Command::new(env!("CARGO_BIN_EXE_icewarden")).arg("demo").arg("--folder").arg(folder))
}

#[test]
fn pyiceberg_reads_every_row_of_the_demo_lake_and_a_second_demo_changes_nothing() {
    let scratch = tempfile::tempdir_in(parts::variable("ICEWARDEN_SCRATCH")).unwrap();
    let folder = scratch.path().join("demo");
    let first = demo(&folder);
    assert!(first.contains("nothing that they need is missing or broken"), "{first}");
    let rows = || -> BTreeMap<String, Value> { serde_json::from_str(&parts::python("read_rows.py", &folder)).unwrap() };
    let tables = rows();
    assert_eq!(tables.len(), 7, "{tables:?}");
    for (name, table) in &tables {
        let snapshots = table["snapshots"].as_object().unwrap();
        let is_read = |digest: &Value| !digest.as_str().unwrap().starts_with("0 ");
        assert!(!snapshots.is_empty() && snapshots.values().all(is_read), "{name}: {table}");
    }

    let second = demo(&folder);
    assert!(!second.contains("committed"), "{second}");
    assert_eq!(rows(), tables);
}
