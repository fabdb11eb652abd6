//! Names that have to be quoted, encoded or escaped somewhere on the way.

use std::collections::BTreeSet;
use std::path::Path;

use crate::binary::{Answer, icewarden};
use crate::lake::Lake;
use crate::parts::RestCatalog;

const TABLES: usize = 11;
const EXPIRE: &str = "run expire --older-than 0s --retain-last 1 --apply --json";

/// Expires all, one of them alone and by its name, and looks at what is left.
fn expires_all(lake: &Lake, config: &Path) {
    let (was, rows, files) = (lake.tables(), lake.rows(), lake.files());
    assert_eq!(was.len(), TABLES);
    let mut one = icewarden(config, EXPIRE);
    let answer = Answer::of(one.args(["--table", "a/b.%2F"])).exits(0);
    assert_eq!(answer.json()["tables"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(answer.table("a/b.%2F")["counts"]["expired_snapshots"], 3, "{answer}");
    let answer = Answer::of(&mut icewarden(config, EXPIRE)).exits(0);
    let is = lake.tables();
    for (name, table) in &was {
        let counts = &answer.table(name)["counts"];
        assert_eq!(answer.table(name)["outcome"], "done", "{name}\n{answer}");
        assert_eq!(counts["expired_snapshots"], if name == "a/b.%2F" { 0 } else { 3 }, "{name}\n{answer}");
        let mut refs = table.refs();
        refs.retain(|branch, _| !branch.starts_with("drop "));
        assert_eq!(is[name].refs(), refs, "{name}");
        assert_eq!((table.refs().len(), refs.len(), is[name].snapshots().len()), (3, 2, 2), "{name}");
    }
    // Of each the lists of three snapshots, and the manifest and the file of the dropped branch.
    assert_eq!(files.len() - lake.files().len(), 5 * TABLES, "{answer}");
    for (name, snapshots) in lake.rows() {
        assert_eq!(snapshots.len(), 2, "{name}");
        assert!(snapshots.iter().all(|(snapshot, read)| rows[&name][snapshot] == *read), "rows of {name}");
    }
    let listed = Answer::of(&mut icewarden(config, "tables --json")).exits(0).stdout;
    let names: BTreeSet<&str> = was.keys().map(|name| name.rsplit('.').next().unwrap()).collect();
    assert!(names.iter().all(|name| listed.contains(&serde_json::to_string(name).unwrap())), "{listed}");
}

#[test]
fn odd_names_are_expired_in_a_sql_catalog() {
    let lake = Lake::of_odd_names();
    expires_all(&lake, &lake.config_with(&sql(&lake), "floor = \"0s\""));
}

#[test]
fn odd_names_are_expired_in_icebergs_rest_catalog() {
    let lake = Lake::of_odd_names();
    let rest = RestCatalog::serve(&lake.root());
    let catalog = format!("type = \"rest\"\nuri = \"{}\"", rest.uri);
    expires_all(&lake, &lake.config_with(&catalog, "floor = \"0s\""));
}

fn sql(lake: &Lake) -> String {
    format!("type = \"sql\"\nuri = \"sqlite://{}/catalog.db\"", lake.root().display())
}
