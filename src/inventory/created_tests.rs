use std::sync::Arc;

use object_store::memory::InMemory;
use serde_json::{Value, json};

use super::*;
use crate::model::{LocationRules, RefKind, Retention, SnapshotId, TableName};

const NOW: Timestamp = Timestamp(100);
/// From this age on it does not matter how much older.
const LIMIT: Age = Age(50);

/// A metadata file of this time, in which `pr` points at this snapshot: 1 ← 2 ← 3 and 1 ← 4.
fn file(at: i64, pr: Option<i64>) -> Value {
    let snapshot = |(id, parent): (i64, Value)| json!({ "snapshot-id": id, "parent-snapshot-id": parent, "timestamp-ms": 1, "manifest-list": "l" });
    let snapshots: Vec<Value> =
        [(1, Value::Null), (2, json!(1)), (3, json!(2)), (4, json!(1))].into_iter().map(snapshot).collect();
    let mut refs = json!({ "main": { "snapshot-id": 1, "type": "branch" } });
    if let Some(id) = pr {
        refs["pr"] = json!({ "snapshot-id": id, "type": "branch" });
    }
    json!({
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "s3://wh/t",
        "last-updated-ms": at, "current-snapshot-id": 1, "snapshots": snapshots, "refs": refs,
    })
}

/// The table whose last metadata file this is, after those in the log, the oldest first.
async fn table(storage: &Storage, log: &[Option<Value>], last: Value) -> LoadedTable {
    let mut entries = Vec::new();
    for (version, file) in log.iter().enumerate() {
        let location = format!("s3://wh/t/metadata/{version}.metadata.json");
        entries.push(json!({
            "timestamp-ms": file.as_ref().map_or(0, |file| file["last-updated-ms"].as_i64().unwrap()),
            "metadata-file": location,
        }));
        if let Some(file) = file {
            storage.write(&location, file.to_string().into()).await.unwrap();
        }
    }
    let mut metadata = last;
    metadata["metadata-log"] = json!(entries);
    let at = "s3://wh/t/metadata/last.metadata.json".to_owned();
    let bytes = metadata.to_string();
    LoadedTable {
        name: TableName { catalog: "lake".into(), namespace: vec!["db".into()], name: "t".into() },
        state: Arc::new(metadata::parse(bytes.as_bytes(), &at).unwrap()),
        metadata_location: at,
        metadata: bytes.into(),
        storage: storage.clone(),
    }
}

/// What; the log, the oldest first; the first sighting; when it was created.
type Row = (&'static str, Vec<Option<Value>>, Option<i64>, Option<i64>);

#[tokio::test]
async fn a_ref_is_as_old_as_the_unbroken_line_of_logged_files_or_its_first_sighting() {
    let there = |at: i64| Some(file(at, Some(2)));
    let gone = |at: i64| Some(file(at, None));
    let other_uuid = |at: i64| {
        let mut file = file(at, Some(2));
        file["table-uuid"] = json!("00000000-0000-4000-8000-000000000001");
        Some(file)
    };
    let a_tag = |at: i64| {
        let mut file = file(at, Some(2));
        file["refs"]["pr"]["type"] = json!("tag");
        Some(file)
    };
    let rows: Vec<Row> = vec![
        ("no log, never seen", vec![], None, None),
        ("no log, seen", vec![], Some(70), Some(70)),
        ("the newest file is missing", vec![there(60), None], Some(80), Some(80)),
        ("there in all of the log", vec![there(70), there(80)], None, Some(70)),
        ("there in all of the log, seen before", vec![there(70), there(80)], Some(60), Some(60)),
        ("there in all of the log, seen after", vec![there(70), there(80)], Some(75), Some(70)),
        ("a gap: as far as the files reach", vec![there(60), None, there(80)], None, Some(80)),
        ("another table's file: a gap", vec![other_uuid(70), there(80)], None, Some(80)),
        ("created with the current file", vec![gone(80)], Some(95), Some(90)),
        ("created with a logged file", vec![gone(60), there(70), there(80)], None, Some(70)),
        ("dropped and created again, seen before", vec![there(60), gone(70), there(80)], Some(30), Some(80)),
        ("moved on", vec![Some(file(70, Some(1))), there(80)], None, Some(70)),
        ("rolled back", vec![Some(file(70, Some(3))), there(80)], Some(60), Some(80)),
        ("another line", vec![Some(file(70, Some(4))), there(80)], Some(60), Some(80)),
        ("a tag before", vec![a_tag(70), there(80)], Some(60), Some(80)),
        ("older than its limit: read no further", vec![there(20), there(40), there(80)], None, Some(40)),
    ];
    for (what, log, first_seen, expected) in rows {
        let storage =
            Storage::new(LocationRules::default(), BTreeMap::new(), 4).with_store("s3://wh", Arc::new(InMemory::new()));
        let loaded = table(&storage, &log, file(90, Some(2))).await;
        let pr = RefName::from("pr");
        let head = SnapshotId(2);
        let seen = first_seen
            .map(|at| {
                let (own, in_force) = (Retention::default(), Retention::default());
                let first_seen = Timestamp(at);
                let kind = RefKind::Branch;
                let seen = Sighting { kind, head, first_seen, own, in_force, fork_point: None };
                (pr.clone(), seen)
            })
            .into_iter()
            .collect();
        let limits = BTreeMap::from([(pr.clone(), LIMIT)]);
        let created = created(&storage, &loaded, &limits, &seen, NOW).await;
        let expected = expected.map(|at| (pr, Creation { head, at: Timestamp(at) })).into_iter().collect();
        assert_eq!(created, expected, "{what}");
    }
}
