//! What Iceberg's own builder does with a commit's requirements and updates, on raw JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Why a commit is not applied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// 409
    Conflict(String),
    /// 400
    Bad(String),
}

fn text<'v>(value: &'v Value, name: &str) -> Result<&'v str, Refused> {
    value[name].as_str().ok_or_else(|| Refused::Bad(format!("{name} is missing in {value}")))
}

/// Checks one requirement against the current metadata.
pub(crate) fn check(metadata: &Value, requirement: &Value) -> Result<(), Refused> {
    let (what, is, expected) = match text(requirement, "type")? {
        "assert-table-uuid" => ("table uuid", &metadata["table-uuid"], &requirement["uuid"]),
        "assert-ref-snapshot-id" => {
            let name = text(requirement, "ref")?;
            ("ref", &metadata["refs"][name]["snapshot-id"], &requirement["snapshot-id"])
        }
        "assert-current-schema-id" => ("schema id", &metadata["current-schema-id"], &requirement["current-schema-id"]),
        "assert-default-spec-id" => ("spec id", &metadata["default-spec-id"], &requirement["default-spec-id"]),
        other => return Err(Refused::Bad(format!("unknown requirement {other}"))),
    };
    match is == expected {
        true => Ok(()),
        false => Err(Refused::Conflict(format!("Requirement failed: {what} is {is}, expected {requirement}"))),
    }
}

/// Applies one update. Whether anything changed shows in the metadata.
pub(crate) fn apply(metadata: &mut Value, update: &Value) -> Result<(), Refused> {
    match text(update, "action")? {
        "remove-snapshots" => {
            let ids = update["snapshot-ids"].as_array().ok_or_else(|| Refused::Bad("no snapshot-ids".to_owned()))?;
            remove_snapshots(metadata, ids);
        }
        "remove-snapshot-ref" => remove_ref(metadata, text(update, "ref-name")?),
        "set-snapshot-ref" => {
            let name = text(update, "ref-name")?.to_owned();
            let mut reference = update.clone();
            let fields = reference.as_object_mut().ok_or_else(|| Refused::Bad("no object".to_owned()))?;
            fields.shift_remove("action");
            fields.shift_remove("ref-name");
            fields.retain(|_, value| !value.is_null());
            set_ref(metadata, &name, reference)?;
        }
        "set-properties" => {
            for (name, value) in update["updates"].as_object().into_iter().flatten() {
                metadata["properties"][name] = value.clone();
            }
        }
        "remove-properties" => {
            for name in update["removals"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                metadata["properties"].as_object_mut().and_then(|all| all.shift_remove(name));
            }
        }
        "remove-statistics" => drop_of_snapshot(metadata, "statistics", &update["snapshot-id"]),
        "remove-partition-statistics" => drop_of_snapshot(metadata, "partition-statistics", &update["snapshot-id"]),
        "add-snapshot" => add_snapshot(metadata, &update["snapshot"])?,
        other => return Err(Refused::Bad(format!("unknown update {other}"))),
    }
    Ok(())
}

fn list<'v>(metadata: &'v mut Value, name: &str) -> Option<&'v mut Vec<Value>> {
    metadata.get_mut(name).and_then(Value::as_array_mut)
}

fn has_snapshot(metadata: &Value, id: &Value) -> bool {
    metadata["snapshots"].as_array().is_some_and(|all| all.iter().any(|one| one["snapshot-id"] == *id))
}

fn drop_of_snapshot(metadata: &mut Value, name: &str, snapshot: &Value) {
    if let Some(files) = list(metadata, name) {
        files.retain(|file| file["snapshot-id"] != *snapshot);
    }
}

fn remove_snapshots(metadata: &mut Value, ids: &[Value]) {
    let gone: BTreeSet<i64> = ids.iter().filter_map(Value::as_i64).collect();
    let id = |one: &Value| one["snapshot-id"].as_i64();
    for name in ["snapshots", "statistics", "partition-statistics"] {
        if let Some(all) = list(metadata, name) {
            all.retain(|one| id(one).is_none_or(|id| !gone.contains(&id)));
        }
    }
    let present: BTreeSet<i64> = metadata["snapshots"].as_array().into_iter().flatten().filter_map(id).collect();
    let is_there = |one: &Value| id(one).is_some_and(|id| present.contains(&id));
    // A ref that pointed nowhere before goes as well.
    let refs = metadata["refs"].as_object().into_iter().flatten();
    let dangling: Vec<String> =
        refs.filter(|(_, reference)| !is_there(reference)).map(|(name, _)| name.clone()).collect();
    for name in &dangling {
        remove_ref(metadata, name);
    }
    // History is cut after the newest entry that is gone.
    if let Some(log) = list(metadata, "snapshot-log") {
        let cut = log.iter().rposition(|entry| !is_there(entry)).map_or(0, |last| last + 1);
        log.drain(..cut);
    }
}

fn remove_ref(metadata: &mut Value, name: &str) {
    let refs = metadata.get_mut("refs").and_then(Value::as_object_mut);
    let removed = refs.and_then(|refs| refs.shift_remove(name));
    if removed.is_some() && name == "main" {
        metadata["current-snapshot-id"] = json!(-1);
    }
}

fn set_ref(metadata: &mut Value, name: &str, reference: Value) -> Result<(), Refused> {
    let id = reference["snapshot-id"].clone();
    let snapshot = metadata["snapshots"].as_array().into_iter().flatten().find(|one| one["snapshot-id"] == id);
    let Some(snapshot) = snapshot else {
        return Err(Refused::Bad(format!("Cannot set {name} to unknown snapshot {id}")));
    };
    let at = snapshot["timestamp-ms"].clone();
    if name == "main" && metadata["current-snapshot-id"] != id {
        metadata["current-snapshot-id"] = id.clone();
        if let Some(log) = list(metadata, "snapshot-log") {
            log.push(json!({"snapshot-id": id, "timestamp-ms": at}));
        }
    }
    metadata["refs"][name] = reference;
    Ok(())
}

fn add_snapshot(metadata: &mut Value, snapshot: &Value) -> Result<(), Refused> {
    if has_snapshot(metadata, &snapshot["snapshot-id"]) {
        return Err(Refused::Bad(format!("snapshot {} is there already", snapshot["snapshot-id"])));
    }
    if metadata["format-version"].as_i64() > Some(1) {
        let (number, last) = (snapshot["sequence-number"].as_i64(), metadata["last-sequence-number"].as_i64());
        if snapshot.get("parent-snapshot-id").is_some() && number <= last {
            return Err(Refused::Conflict(format!("sequence number {number:?} is not above {last:?}")));
        }
        metadata["last-sequence-number"] = json!(number.max(last));
    }
    if let Some(snapshots) = list(metadata, "snapshots") {
        snapshots.push(snapshot.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        json!({
            "format-version": 2, "table-uuid": "u", "last-sequence-number": 3, "current-snapshot-id": 3, "later-field": {"kept": 1},
            "refs": {"main": {"snapshot-id": 3, "type": "branch"}, "feat": {"snapshot-id": 1, "type": "branch"}},
            "snapshots": [{"snapshot-id": 1, "timestamp-ms": 1}, {"snapshot-id": 2, "timestamp-ms": 2}, {"snapshot-id": 3, "timestamp-ms": 3}],
            "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 1}, {"snapshot-id": 2, "timestamp-ms": 2}, {"snapshot-id": 3, "timestamp-ms": 3}],
            "statistics": [{"snapshot-id": 2}, {"snapshot-id": 3}], "partition-statistics": [{"snapshot-id": 2}],
        })
    }

    #[test]
    fn removing_a_snapshot_takes_its_refs_statistics_and_history_along() {
        let mut metadata = metadata();
        apply(&mut metadata, &json!({"action": "remove-snapshots", "snapshot-ids": [1]})).unwrap();
        assert_eq!(metadata["refs"], json!({"main": {"snapshot-id": 3, "type": "branch"}}));
        assert_eq!(metadata["snapshot-log"].as_array().unwrap().len(), 2);
        apply(&mut metadata, &json!({"action": "remove-snapshots", "snapshot-ids": [2, 77]})).unwrap();
        assert_eq!(metadata["snapshot-log"], json!([{"snapshot-id": 3, "timestamp-ms": 3}]));
        assert_eq!(metadata["statistics"], json!([{"snapshot-id": 3}]));
        assert_eq!(metadata["partition-statistics"], json!([]));
        assert_eq!(metadata["later-field"], json!({"kept": 1}));
    }

    #[test]
    fn removing_the_current_snapshot_empties_the_table() {
        let mut metadata = metadata();
        apply(&mut metadata, &json!({"action": "remove-snapshots", "snapshot-ids": [3]})).unwrap();
        assert_eq!((&metadata["current-snapshot-id"], &metadata["refs"]["main"]), (&json!(-1), &Value::Null));
    }

    #[test]
    fn a_ref_is_set_to_known_snapshots_only() {
        let mut metadata = metadata();
        let set = |id: i64| json!({"action": "set-snapshot-ref", "ref-name": "q", "type": "tag", "snapshot-id": id});
        assert!(matches!(apply(&mut metadata, &set(9)), Err(Refused::Bad(_))));
        apply(&mut metadata, &set(2)).unwrap();
        assert_eq!(metadata["refs"]["q"], json!({"type": "tag", "snapshot-id": 2}));
    }

    #[test]
    fn a_stale_writer_cannot_add_a_snapshot_from_format_2_on() {
        let mut metadata = metadata();
        let add = |number: i64| {
            json!({"action": "add-snapshot", "snapshot":
                {"snapshot-id": number + 10, "parent-snapshot-id": 3, "sequence-number": number, "timestamp-ms": 4}})
        };
        assert!(matches!(apply(&mut metadata, &add(3)), Err(Refused::Conflict(_))));
        apply(&mut metadata, &add(4)).unwrap();
        assert_eq!(metadata["last-sequence-number"], json!(4));
    }

    #[test]
    fn requirements_are_checked_and_unknown_ones_refused() {
        let metadata = metadata();
        let check = |requirement: Value| check(&metadata, &requirement);
        let of = |name: &str, id: Value| json!({"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": id});
        check(of("main", json!(3))).unwrap();
        check(of("none", Value::Null)).unwrap();
        for wrong in [of("main", json!(2)), of("main", Value::Null), of("none", json!(1))] {
            assert!(matches!(check(wrong), Err(Refused::Conflict(_))));
        }
        assert!(matches!(check(json!({"type": "assert-moon-phase"})), Err(Refused::Bad(_))));
    }
}
