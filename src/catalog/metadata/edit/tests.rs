use iceberg::spec::{SnapshotReference, SnapshotRetention};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

const AT: &str = "file:/lake/t/metadata/00002-b.metadata.json";

/// Snapshots 1 ← 2 ← 3 on main, 4 on `audit` (from 2), tag `old` on 1, and `history` as what main was in turn.
fn base(history: &[i64]) -> Value {
    let snapshot = |id: i64, parent: Value| {
        json!({ "snapshot-id": id, "parent-snapshot-id": parent, "timestamp-ms": 1000 * id, "sequence-number": id,
                "manifest-list": format!("ml{id}"), "x-unknown": [id] })
    };
    json!({
        "x-first": { "kept": 0.1 },
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:/lake/t",
        "last-sequence-number": 4,
        "last-updated-ms": 5000,
        "properties": { "a": "1", "b": "2" },
        "current-snapshot-id": 3,
        "refs": { "main": { "snapshot-id": 3, "type": "branch" }, "old": { "snapshot-id": 1, "type": "tag", "x-note": "n" },
                  "audit": { "snapshot-id": 4, "type": "branch", "max-ref-age-ms": 9 } },
        "snapshots": [snapshot(1, json!(null)), snapshot(2, json!(1)), snapshot(3, json!(2)), snapshot(4, json!(2))],
        "snapshot-log": history.iter().map(|id| json!({ "timestamp-ms": 1000 * id, "snapshot-id": id })).collect::<Vec<_>>(),
        "metadata-log": [{ "timestamp-ms": 1000, "metadata-file": "m0" }, { "timestamp-ms": 2000, "metadata-file": "m1" }],
        "statistics": [{ "snapshot-id": 1, "statistics-path": "s1" }, { "snapshot-id": 3, "statistics-path": "s3" },
                       { "snapshot-id": 1, "statistics-path": "s1b" }],
        "partition-statistics": [{ "snapshot-id": 1, "statistics-path": "p1" }],
        "x-last": null,
    })
}

fn remove(ids: &[i64]) -> TableUpdate {
    TableUpdate::RemoveSnapshots { snapshot_ids: ids.to_vec() }
}

fn remove_ref(name: &str) -> TableUpdate {
    TableUpdate::RemoveSnapshotRef { ref_name: name.to_owned() }
}

fn set_ref(name: &str, snapshot_id: i64, retention: SnapshotRetention) -> TableUpdate {
    TableUpdate::SetSnapshotRef { ref_name: name.to_owned(), reference: SnapshotReference { snapshot_id, retention } }
}

fn branch() -> SnapshotRetention {
    SnapshotRetention::branch(None, None, None)
}

fn edit(base: &Value, updates: &[TableUpdate]) -> Result<Edited, EditError> {
    apply(base.to_string().as_bytes(), AT, updates, Timestamp(9000))
}

fn edited(base: &Value, updates: &[TableUpdate]) -> Value {
    serde_json::from_slice(&edit(base, updates).unwrap().metadata).unwrap()
}

fn ids(metadata: &Value, list: &str) -> Vec<i64> {
    metadata[list].as_array().unwrap().iter().map(|item| item["snapshot-id"].as_i64().unwrap()).collect()
}

fn names(metadata: &Value) -> Vec<&str> {
    metadata["refs"].as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_removed_snapshot_takes_its_statistics_and_the_refs_that_point_at_it() {
    let after = edited(&base(&[1, 2, 3]), &[remove_ref("audit"), remove(&[4]), remove(&[1]), remove(&[77])]);
    assert_eq!(ids(&after, "snapshots"), [2, 3]);
    assert_eq!(names(&after), ["main"]);
    assert_eq!(ids(&after, "statistics"), [3]);
    assert_eq!(after["partition-statistics"], json!([]));
    assert_eq!((after["current-snapshot-id"].as_i64(), after["last-updated-ms"].as_i64()), (Some(3), Some(9000)));
}

#[test]
fn the_history_starts_after_the_newest_removed_snapshot_that_was_current() {
    for (history, removed, left) in [
        (&[1, 2, 3][..], &[1][..], &[2, 3][..]),
        (&[1, 2, 3], &[2], &[3]),
        (&[1, 2, 3], &[4], &[1, 2, 3]),
        (&[1, 2, 1, 3], &[2], &[1, 3]),
        (&[2, 1, 3], &[1, 2], &[3]),
        (&[3, 2, 3], &[2], &[3]),
        // It names a snapshot that was removed long ago.
        (&[1, 9, 3], &[4], &[3]),
    ] {
        let after = edited(&base(history), &[remove(removed)]);
        assert_eq!(ids(&after, "snapshot-log"), left, "{history:?} less {removed:?}");
    }
}

#[test]
fn snapshots_are_not_removed_where_the_history_does_not_end_at_the_current_one() {
    for history in [&[][..], &[1, 2], &[1, 3, 2]] {
        let error = edit(&base(history), &[remove(&[1])]).unwrap_err().to_string();
        assert!(error.contains("does not end at the current snapshot 3"), "{history:?}: {error}");
        // Refs and properties may change all the same.
        assert_eq!(ids(&edited(&base(history), &[remove_ref("old")]), "snapshot-log"), history);
    }
}

#[test]
fn without_main_there_is_no_current_snapshot() {
    for (version, none) in [(1, json!(-1)), (2, json!(-1)), (3, json!(null))] {
        for update in [remove(&[3]), remove_ref("main")] {
            let mut table = base(&[1, 2, 3]);
            table["format-version"] = json!(version);
            let after = edited(&table, std::slice::from_ref(&update));
            assert_eq!(after["current-snapshot-id"], none, "{update:?}");
            assert_eq!(names(&after), ["old", "audit"]);
        }
    }
    assert_eq!(edited(&base(&[1, 2, 3]), &[remove(&[3])])["snapshot-log"], json!([]));
}

#[test]
fn main_of_metadata_from_before_refs_is_written_down() {
    let mut table = base(&[1, 2, 3]);
    table.as_object_mut().unwrap().shift_remove("refs");
    let after = edited(&table, &[remove(&[1])]);
    assert_eq!(after["refs"], json!({ "main": { "snapshot-id": 3, "type": "branch" } }));
    let emptied = edited(&table, &[remove(&[3])]);
    assert_eq!((emptied["refs"].clone(), emptied["current-snapshot-id"].clone()), (json!({}), json!(-1)));
}

#[test]
fn a_ref_that_was_dangling_before_stays_as_it_is() {
    let mut table = base(&[1, 2, 3]);
    table["refs"]["lost"] = json!({ "snapshot-id": 12, "type": "tag" });
    assert_eq!(names(&edited(&table, &[remove(&[1])])), ["main", "audit", "lost"]);
}

#[test]
fn a_ref_is_set_with_its_retention_and_main_writes_history() {
    let after = edited(
        &base(&[1, 2, 3]),
        &[
            set_ref("dev", 2, SnapshotRetention::branch(Some(3), Some(4), None)),
            set_ref("old", 1, SnapshotRetention::Tag { max_ref_age_ms: Some(7) }),
            set_ref("main", 2, branch()),
        ],
    );
    assert_eq!(
        after["refs"],
        json!({
            "main": { "snapshot-id": 2, "type": "branch" },
            "old": { "snapshot-id": 1, "type": "tag", "max-ref-age-ms": 7 },
            "audit": { "snapshot-id": 4, "type": "branch", "max-ref-age-ms": 9 },
            "dev": { "snapshot-id": 2, "type": "branch", "min-snapshots-to-keep": 3, "max-snapshot-age-ms": 4 },
        })
    );
    assert_eq!(after["current-snapshot-id"], 2);
    assert_eq!(after["snapshot-log"][3], json!({ "timestamp-ms": 9000, "snapshot-id": 2 }));
}

#[test]
fn what_java_refuses_is_refused() {
    let unused = TableUpdate::SetLocation { location: "file:/x".into() };
    for (updates, reason) in [
        (vec![set_ref("dev", 12, branch())], "cannot set ref dev: there is no snapshot 12"),
        (vec![remove(&[4]), set_ref("dev", 4, branch())], "there is no snapshot 4"),
        (vec![set_ref("dev", 2, SnapshotRetention::branch(Some(0), None, None))], "greater than zero"),
        (vec![set_ref("t", 2, SnapshotRetention::Tag { max_ref_age_ms: Some(-1) })], "greater than zero"),
        (vec![set_ref("main", 2, SnapshotRetention::Tag { max_ref_age_ms: None })], "must be a branch"),
        (vec![remove(&[1]), unused], "update set-location is not supported"),
    ] {
        let error = edit(&base(&[1, 2, 3]), &updates).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn updates_that_leave_everything_as_it_is_make_no_file() {
    let mut table = base(&[1, 2, 3]);
    table["refs"]["audit"]["type"] = json!("BRANCH");
    for updates in [
        vec![],
        vec![remove(&[])],
        vec![remove(&[12])],
        vec![remove_ref("gone")],
        vec![set_ref("audit", 4, SnapshotRetention::branch(None, None, Some(9)))],
        vec![TableUpdate::RemoveStatistics { snapshot_id: 2 }],
        vec![TableUpdate::RemovePartitionStatistics { snapshot_id: 2 }],
        vec![TableUpdate::SetProperties { updates: HashMap::from([("a".into(), "1".into())]) }],
        vec![TableUpdate::RemoveProperties { removals: vec!["z".into()] }],
    ] {
        let outcome = edit(&table, &updates);
        assert!(matches!(outcome, Err(EditError::NothingToChange)), "{updates:?}: {outcome:?}");
    }
}

#[test]
fn statistics_and_properties_are_removed_and_set_alone() {
    let after = edited(
        &base(&[1, 2, 3]),
        &[
            TableUpdate::RemoveStatistics { snapshot_id: 1 },
            TableUpdate::RemovePartitionStatistics { snapshot_id: 1 },
            TableUpdate::SetProperties {
                updates: HashMap::from([("b".into(), "3\"".into()), ("c".into(), "4".into())]),
            },
            TableUpdate::RemoveProperties { removals: vec!["a".into()] },
        ],
    );
    assert_eq!(ids(&after, "statistics"), [3]);
    assert_eq!(after["partition-statistics"], json!([]));
    assert_eq!(after["properties"], json!({ "b": "3\"", "c": "4" }));
    assert_eq!(ids(&after, "snapshots"), [1, 2, 3, 4]);
}

#[test]
fn what_nobody_touched_is_the_same_bytes_in_the_same_order() {
    let text = r#"{ "x-first": {"d": 0.1000, "big": 123456789012345678901234567890, "e":1E5},
        "format-version" : 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "file:\/lake/t",
        "last-updated-ms": 5000, "last-sequence-number": 9223372036854775807,
        "schemas": [ {"type":"struct", "fields":[{"initial-default": 3.10, "doc":"\u00e9"}]} ],
        "current-snapshot-id": 9223372036854775807, "snapshots": [
          {"snapshot-id": 9223372036854775807, "timestamp-ms": 1,  "manifest-list": "l", "added-rows": 18446744073709551615 },
          {"snapshot-id": 5, "timestamp-ms": 1, "manifest-list": "l5"}],
        "snapshot-log": [ {"snapshot-id": 9223372036854775807, "timestamp-ms": 1, "x": 1.0} ],
        "refs": {"main": {"snapshot-id":  9223372036854775807, "type": "branch", "x": 2.50}}, "x-last": [ ] }"#;
    let out = String::from_utf8(apply(text.as_bytes(), AT, &[remove(&[5])], Timestamp(9)).unwrap().metadata).unwrap();
    for same in [
        r#""x-first":{"d": 0.1000, "big": 123456789012345678901234567890, "e":1E5},"format-version":2,"#,
        r#""location":"file:\/lake/t","#,
        r#""schemas":[ {"type":"struct", "fields":[{"initial-default": 3.10, "doc":"\u00e9"}]} ],"#,
        r#""snapshots":[{"snapshot-id": 9223372036854775807, "timestamp-ms": 1,  "manifest-list": "l", "added-rows": 18446744073709551615 }],"#,
        r#""snapshot-log":[{"snapshot-id": 9223372036854775807, "timestamp-ms": 1, "x": 1.0}],"#,
        r#""refs":{"main":{"snapshot-id":  9223372036854775807, "type": "branch", "x": 2.50}},"x-last":[ ],"#,
    ] {
        assert!(out.contains(same), "{same}\nin {out}");
    }
    let keys: Vec<String> =
        serde_json::from_str::<serde_json::Map<String, Value>>(&out).unwrap().keys().cloned().collect();
    assert_eq!(
        keys,
        [
            "x-first",
            "format-version",
            "table-uuid",
            "location",
            "last-updated-ms",
            "last-sequence-number",
            "schemas",
            "current-snapshot-id",
            "snapshots",
            "snapshot-log",
            "refs",
            "x-last",
            "properties",
            "metadata-log"
        ]
    );
}

#[test]
fn the_base_joins_the_log_which_is_cut_to_its_length() {
    for (max, files) in [
        (json!(null), &["m0", "m1", AT][..]),
        (json!("3"), &["m0", "m1", AT]),
        (json!(" 2 "), &["m1", AT]),
        (json!(2), &["m1", AT]),
        (json!("1"), &[AT]),
        (json!("0"), &[AT]),
        (json!("-5"), &[AT]),
        (json!("many"), &["m0", "m1", AT]),
    ] {
        let mut table = base(&[1, 2, 3]);
        table["properties"]["write.metadata.previous-versions-max"] = max.clone();
        let edited = edit(&table, &[remove_ref("old")]).unwrap();
        let after: Value = serde_json::from_slice(&edited.metadata).unwrap();
        let log = after["metadata-log"].as_array().unwrap();
        let logged: Vec<&str> = log.iter().map(|entry| entry["metadata-file"].as_str().unwrap()).collect();
        assert_eq!(logged, files, "{max}");
        assert_eq!(log.last().unwrap()["timestamp-ms"], 5000);
    }
}

#[test]
fn time_never_runs_backwards() {
    for (log_time, history_time, now, expected) in
        [(2000, 3000, 9000, 9000), (2000, 3000, 10, 5000), (7000, 3000, 10, 7000), (2000, 8000, 10, 8000)]
    {
        let mut table = base(&[1, 2, 3]);
        table["metadata-log"][1]["timestamp-ms"] = json!(log_time);
        table["snapshot-log"][2]["timestamp-ms"] = json!(history_time);
        let bytes = table.to_string();
        let edited = apply(bytes.as_bytes(), AT, &[set_ref("main", 2, branch())], Timestamp(now)).unwrap();
        let after: Value = serde_json::from_slice(&edited.metadata).unwrap();
        assert_eq!(
            (&after["last-updated-ms"], &after["snapshot-log"][3]["timestamp-ms"]),
            (&json!(expected), &json!(expected))
        );
    }
}

#[test]
fn requirements_hold_or_say_what_is_otherwise() {
    let state = parse(base(&[1, 2, 3]).to_string().as_bytes(), AT).unwrap();
    let uuid = |text: &str| TableRequirement::UuidMatch { uuid: Uuid::parse_str(text).unwrap() };
    let at = |name: &str, snapshot_id| TableRequirement::RefSnapshotIdMatch { r#ref: name.into(), snapshot_id };
    let own = uuid("9c12d441-03fe-4693-9a96-a0705ddf69c1");
    assert_eq!(check(&state, &[own, at("main", Some(3)), at("old", Some(1)), at("new", None)]), Ok(()));
    for (requirement, reason) in [
        (uuid("00000000-0000-0000-0000-000000000000"), "the table's uuid is 9c12d441"),
        (at("main", Some(2)), "ref main is at snapshot 3, expected at snapshot 2"),
        (at("main", None), "ref main is at snapshot 3, expected absent"),
        (at("new", Some(1)), "ref new is absent, expected at snapshot 1"),
    ] {
        match check(&state, &[requirement]) {
            Err(RequirementError::NotMet(text)) => assert!(text.contains(reason), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let other = check(&state, &[TableRequirement::DefaultSpecIdMatch { default_spec_id: 0 }]);
    assert_eq!(other, Err(RequirementError::Unsupported("assert-default-spec-id".into())));
}
