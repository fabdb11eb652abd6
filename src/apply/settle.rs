//! What became of an intent: found out from the table itself, never from an answer (safety rules 9 and 10).
//!
//! The same code settles a commit that was just made, one whose answer was lost, and one that a crash left
//! behind. The line of the metadata log decides: the first file after the intent's base that lacks all that
//! the intent removes is our commit, and the file before it is what the commit really replaced.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::commit::committed;
use super::{Work, mark};
use crate::catalog::metadata;
use crate::catalog::{Catalog, LoadedTable};
use crate::error::Error;
use crate::model::{LocationRules, PlanId, RefName, TableState};
use crate::plan::{RefFacts, retention, values};
use crate::report::{Outcome, TableReport};
use crate::state::{Closed, FindingKind, Intent, Observation, Severity};
use crate::storage::Storage;

/// What an intent keeps so that its plan can be made again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inputs {
    /// The plan's id.
    pub plan: PlanId,
    /// What its values were resolved from.
    pub values: values::Inputs,
    /// What was known of the refs.
    pub facts: RefFacts,
}

/// What became of an intent.
#[derive(Debug)]
pub enum Settled {
    /// What it removes is still there.
    NotApplied,
    /// The name is another table's now. The intent stays open until its own table is found.
    OtherTable,
    /// It is this metadata file.
    Applied {
        /// Our commit.
        location: String,
        /// As it is.
        after: Box<TableState>,
        /// What it replaced.
        before: Box<TableState>,
        /// The file that it replaced.
        before_location: String,
    },
    /// The removals are in the table, but not what they replaced.
    NoPredecessor {
        /// Which file is missing, or why the log does not tell.
        reason: String,
    },
}

/// Finds out what became of an intent. `base` is the file that it was made on, where we still have it.
pub async fn settle(storage: &Storage, intent: &Intent, base: Option<&LoadedTable>, current: &LoadedTable) -> Settled {
    let rules = storage.rules();
    if current.state.uuid != Some(intent.uuid) {
        return Settled::OtherTable;
    }
    if same(rules, &current.metadata_location, &intent.base_metadata_location) || !lacks(&current.state, intent) {
        return Settled::NotApplied;
    }
    let mut line: Vec<&str> = current.state.metadata_log.iter().map(|entry| entry.location.as_str()).collect();
    line.push(&current.metadata_location);
    let Some(at) = line.iter().position(|file| same(rules, file, &intent.base_metadata_location)) else {
        return Settled::NoPredecessor {
            reason: format!("the metadata log does not reach back to {}", intent.base_metadata_location),
        };
    };
    let mut before: Option<(&str, TableState)> = None;
    for file in &line[at..] {
        let read = if same(rules, file, &current.metadata_location) {
            Ok((*current.state).clone())
        } else if let Some(base) = base.filter(|base| same(rules, file, &base.metadata_location)) {
            Ok((*base.state).clone())
        } else {
            metadata::read(storage, file).await.map(|(_, state)| state)
        };
        let state = match read {
            Ok(state) => state,
            Err(error) => return Settled::NoPredecessor { reason: error.to_string() },
        };
        if lacks(&state, intent) {
            return match before {
                Some((before_location, before)) => Settled::Applied {
                    location: (*file).to_owned(),
                    after: Box::new(state),
                    before: Box::new(before),
                    before_location: before_location.to_owned(),
                },
                // The base itself lacks them: somebody removed them before us.
                None => Settled::NotApplied,
            };
        }
        before = Some((file, state));
    }
    Settled::NotApplied
}

/// Whether nothing that the intent removes is there. Refs count only where no snapshot goes: a dropped name
/// may be used again.
fn lacks(state: &TableState, intent: &Intent) -> bool {
    if intent.removed_snapshots.is_empty() {
        return intent.removed_refs.iter().all(|name| !state.refs.contains_key(name));
    }
    let there = state.snapshot_ids();
    intent.removed_snapshots.iter().all(|id| !there.contains(id))
}

pub(super) fn same(rules: &LocationRules, left: &str, right: &str) -> bool {
    left == right || matches!((rules.parse(left), rules.parse(right)), (Ok(left), Ok(right)) if left == right)
}

/// Acts on what was found out: marks, or a finding. The intent is closed, but for one that was not applied.
pub async fn conclude(
    work: &mut Work<'_>,
    intent: &Intent,
    settled: Settled,
    report: &mut TableReport,
) -> Result<(), Error> {
    let inputs: Inputs = match serde_json::from_str(&intent.inputs) {
        Ok(inputs) => inputs,
        Err(error) => return mark::unusable(work, intent, &error.to_string(), report).await,
    };
    match settled {
        Settled::NotApplied => close_void(work, intent).await,
        Settled::OtherTable => {
            report.ended(Outcome::Failed, "the table's name was given to another table meanwhile; nothing was marked");
            Ok(())
        }
        Settled::NoPredecessor { reason } => {
            committed(intent, "(not known)", report);
            raise(
                work,
                intent,
                FindingKind::NoPredecessor,
                Severity::Warning,
                format!("what the expiry of {} replaced cannot be read: {reason}", intent.table),
                "nothing was marked; the orphan job finds the files",
                json!({}),
            )
            .await?;
            work.hands.state.close_intent(&intent.id, Closed::NoPredecessor, work.now).await?;
            work.audit("commit", &intent.table, Some(inputs.plan), "no_predecessor", &json!({ "reason": reason }))
                .await?;
            report.ended(Outcome::Partial, format!("the commit was applied, but nothing was marked: {reason}"));
            Ok(())
        }
        Settled::Applied { location, after, before, before_location } => {
            committed(intent, &location, report);
            if let Some(difference) = difference(intent, &inputs, &before, &after) {
                let message = format!(
                    "the expiry of {} removed other things than it planned: {difference}; the state before is {before_location}",
                    intent.table
                );
                raise(
                    work,
                    intent,
                    FindingKind::UnplannedRemoval,
                    Severity::Critical,
                    message.clone(),
                    "no file was marked; register the table from that metadata file, or acknowledge the finding",
                    json!({ "before": before_location }),
                )
                .await?;
                work.hands.state.close_intent(&intent.id, Closed::Unplanned, work.now).await?;
                let detail = json!({ "difference": difference, "before": before_location, "after": location });
                work.audit("commit", &intent.table, Some(inputs.plan), "unplanned_removal", &detail).await?;
                report.ended(Outcome::Failed, message);
                return Ok(());
            }
            let detail = json!({
                "metadata_location": location,
                "snapshots": intent.removed_snapshots,
                "refs": intent.removed_refs,
            });
            work.audit("commit", &intent.table, Some(inputs.plan), "done", &detail).await?;
            // Later nobody can tell whether a ref went by our commit, or by somebody's since: a look finds out.
            if intent.run == *work.run {
                let refs: Vec<&RefName> = intent.removed_refs.iter().collect();
                work.confirm_drops(&intent.table, intent.uuid, &refs).await?;
            }
            // Before the intent is closed: after a crash in between they are found again.
            let table = mark::Table { name: &intent.table, location: &location, state: &after };
            mark_fallen_off(work, (&before, &before_location), table, report).await?;
            mark::intent(work, intent, inputs.plan, &location, &after, report).await
        }
    }
}

/// Marks the metadata files that our commit pushed off the log.
pub(super) async fn mark_fallen_off(
    work: &Work<'_>,
    (before, before_location): (&TableState, &str),
    table: mark::Table<'_>,
    report: &mut TableReport,
) -> Result<(), Error> {
    let fell_off = match work.catalog {
        Catalog::Sql(_) => fell_off_log(before, before_location, table.state),
        Catalog::Rest(_) | Catalog::Broken { .. } => Vec::new(),
    };
    mark::loose_files(work, &table, &fell_off, "fell off the metadata log", report).await
}

/// The metadata files that our commit pushed off the log and that are the client's to remove. Told from the
/// files themselves, so that a crash or a lost answer after the commit loses none.
fn fell_off_log(before: &TableState, before_location: &str, after: &TableState) -> Vec<String> {
    let removes = after.property("write.metadata.delete-after-commit.enabled");
    if !removes.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Vec::new();
    }
    let kept: BTreeSet<&str> = after.metadata_log.iter().map(|entry| entry.location.as_str()).collect();
    let logged = before.metadata_log.iter().map(|entry| entry.location.as_str()).chain([before_location]);
    logged.filter(|file| !kept.contains(file)).map(str::to_owned).collect()
}

/// What the commit did beyond, or short of, the plan made on what it really replaced (safety rule 10).
fn difference(intent: &Intent, inputs: &Inputs, before: &TableState, after: &TableState) -> Option<String> {
    let (refs, snapshots) = retention::removed(before, after);
    let list = |what: &str, names: Vec<String>| (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")));
    let (wanted_refs, wanted): (BTreeSet<_>, BTreeSet<_>) =
        (intent.removed_refs.iter().collect(), intent.removed_snapshots.iter().collect());
    let extra = [
        list("ref", refs.iter().filter(|name| !wanted_refs.contains(name)).map(ToString::to_string).collect()),
        list("snapshot", snapshots.iter().filter(|id| !wanted.contains(id)).map(ToString::to_string).collect()),
    ];
    let extra: Vec<String> = extra.into_iter().flatten().collect();
    if !extra.is_empty() {
        return Some(format!("{} went too", extra.join(" and ")));
    }
    if refs.len() != wanted_refs.len() || snapshots.len() != wanted.len() {
        return Some("some of it was gone before".to_owned());
    }
    if !before.gc_enabled() {
        return Some("gc.enabled was switched off before the commit landed".to_owned());
    }
    let again = values::resolve(before, &inputs.values)
        .map_err(|error| error.to_string())
        .and_then(|values| retention::plan(before, &values, &inputs.facts).map_err(|error| error.to_string()));
    let again = match again {
        Ok(plan) => plan,
        Err(reason) => return Some(format!("the plan cannot be made on what it replaced: {reason}")),
    };
    let drops: BTreeSet<_> = again.dropped_refs().map(|decision| &decision.name).collect();
    let goes: BTreeSet<_> = again.expired().map(|decision| decision.id).collect();
    let kept = [
        list("ref", refs.iter().filter(|name| !drops.contains(name)).map(ToString::to_string).collect()),
        list("snapshot", snapshots.iter().filter(|id| !goes.contains(id)).map(ToString::to_string).collect()),
    ];
    let kept: Vec<String> = kept.into_iter().flatten().collect();
    (!kept.is_empty()).then(|| format!("{} would be kept by a plan made on what it replaced", kept.join(" and ")))
}

/// Closes an intent that was not applied.
pub(super) async fn close_void(work: &Work<'_>, intent: &Intent) -> Result<(), Error> {
    work.audit("intent", &intent.table, None, "void", &json!({ "intent": intent.id })).await?;
    Ok(work.hands.state.close_intent(&intent.id, Closed::Void, work.now).await?)
}

/// Settles every open intent of a table, before it is planned or swept.
pub async fn open_intents(work: &mut Work<'_>, current: &LoadedTable, report: &mut TableReport) -> Result<(), Error> {
    let Some(uuid) = current.state.uuid else { return Ok(()) };
    for intent in work.hands.state.open_intents(&current.name.catalog, uuid).await? {
        let settled = settle(&work.storage, &intent, None, current).await;
        conclude(work, &intent, settled, report).await?;
    }
    Ok(())
}

async fn raise(
    work: &Work<'_>,
    intent: &Intent,
    kind: FindingKind,
    severity: Severity,
    message: String,
    advice: &str,
    numbers: serde_json::Value,
) -> Result<(), Error> {
    let seen = Observation {
        kind,
        table: intent.table.clone(),
        uuid: Some(intent.uuid),
        ref_name: None,
        severity,
        numbers,
        message,
        advice: advice.to_owned(),
    };
    work.hands.state.raise(&seen, work.now).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::model::table::tests::empty_table;
    use crate::model::{
        ManifestSource, MetadataLogEntry, Ref, RefKind, RefName, Retention, RunId, Snapshot, SnapshotId, TableName,
        Timestamp,
    };
    use crate::state::ListFile;

    const BASE: &str = "s3://wh/db/t/metadata/3.metadata.json";
    const OURS: &str = "s3a://wh/db/t/metadata/4.metadata.json";

    fn name() -> TableName {
        TableName { catalog: "c".into(), namespace: vec!["db".into()], name: "t".into() }
    }

    /// A table at this file, with these snapshots and branches, and this log.
    fn table(uuid: u128, file: &str, snapshots: &[i64], refs: &[&str], log: &[&str]) -> LoadedTable {
        let mut state = empty_table();
        state.uuid = Some(Uuid::from_u128(uuid));
        let snapshot = |id: &i64| Snapshot {
            id: SnapshotId(*id),
            parent: None,
            at: Timestamp(*id),
            sequence_number: *id,
            manifests: ManifestSource::Inline(Vec::new()),
            summary: BTreeMap::new(),
        };
        state.snapshots = snapshots.iter().map(snapshot).collect();
        let branch = || Ref { snapshot: SnapshotId(3), kind: RefKind::Branch, retention: Retention::default() };
        state.refs = refs.iter().map(|name| (RefName::new(*name), branch())).collect();
        state.metadata_log =
            log.iter().map(|file| MetadataLogEntry { at: Timestamp(0), location: (*file).into() }).collect();
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 1);
        let (metadata_location, state) = (file.to_owned(), Arc::new(state));
        LoadedTable { name: name(), metadata_location, metadata: Bytes::new(), state, storage }
    }

    fn intent(snapshots: &[i64], refs: &[&str]) -> Intent {
        Intent {
            id: "i".to_owned(),
            table: name(),
            uuid: Uuid::from_u128(1),
            run: RunId("r".into()),
            base_metadata_location: BASE.to_owned(),
            base_last_updated: Timestamp(0),
            removed_refs: refs.iter().map(|name| RefName::new(*name)).collect(),
            removed_snapshots: snapshots.iter().copied().map(SnapshotId).collect(),
            inputs: String::new(),
            candidates: ListFile { location: String::new(), sha256: String::new(), objects: 0, bytes: 0 },
            created_at: Timestamp(0),
        }
    }

    /// In a word.
    fn word(settled: &Settled) -> &'static str {
        match settled {
            Settled::NotApplied => "not applied",
            Settled::OtherTable => "other table",
            Settled::Applied { location, before_location, .. } if location == OURS && before_location == BASE => "ours",
            Settled::Applied { .. } => "applied",
            Settled::NoPredecessor { .. } => "no predecessor",
        }
    }

    #[tokio::test]
    async fn what_became_of_a_commit_is_told_by_the_tables_own_line() {
        let empty = Arc::new(object_store::memory::InMemory::new());
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 1).with_store("s3://wh", empty);
        let base = table(1, BASE, &[1, 2, 3], &["feat", "main"], &[]);
        let now = |snapshots: &[i64], refs: &[&str], log: &[&str]| table(1, OURS, snapshots, refs, log);
        let (main, both) = (&["main"][..], &["feat", "main"][..]);
        for (why, intent, current, expected) in [
            ("still at the base", intent(&[1], &[]), base.clone(), "not applied"),
            ("all is there", intent(&[1], &[]), now(&[1, 2, 3], both, &[BASE]), "not applied"),
            ("half of it is there", intent(&[1, 2], &[]), now(&[2, 3], both, &[BASE]), "not applied"),
            ("it is gone, right after the base", intent(&[1, 2], &[]), now(&[3], both, &[BASE]), "ours"),
            ("a dropped name may be used again", intent(&[1], &["feat"]), now(&[2, 3], both, &[BASE]), "ours"),
            ("only refs go, and are gone", intent(&[], &["feat"]), now(&[1, 2, 3], main, &[BASE]), "ours"),
            ("only refs go, and are there", intent(&[], &["feat"]), now(&[1, 2, 3], both, &[BASE]), "not applied"),
            ("the log is too short", intent(&[1], &[]), now(&[2, 3], both, &[]), "no predecessor"),
            (
                "a file between is not to be had",
                intent(&[1], &[]),
                now(&[3], both, &[BASE, "s3://wh/db/t/metadata/none.metadata.json"]),
                "no predecessor",
            ),
            ("the base lacked it already", intent(&[9], &[]), now(&[3], both, &[BASE]), "not applied"),
            ("another table that lacks it", intent(&[1], &[]), table(2, OURS, &[3], both, &[BASE]), "other table"),
            ("another table at the base", intent(&[1], &[]), table(2, BASE, &[3], both, &[]), "other table"),
            ("another table that has it", intent(&[1], &[]), table(2, OURS, &[1], both, &[]), "other table"),
        ] {
            let settled = settle(&storage, &intent, Some(&base), &current).await;
            assert_eq!(word(&settled), expected, "{why}: {settled:?}");
        }
    }
}
