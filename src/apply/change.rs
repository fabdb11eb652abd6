//! Commits that change refs alone. No snapshot goes with them, so nothing is marked, and no intent is needed: a run
//! that is killed in between finds the refs as they are.

use std::time::Duration;

use iceberg::TableUpdate;
use iceberg::spec::{SnapshotReference, SnapshotRetention};
use serde_json::json;

use super::commit::{RELOADS, requirements};
use super::{Work, mark, settle};
use crate::catalog::{CommitOutcome, LoadedTable, metadata};
use crate::error::Error;
use crate::guard::ApprovedChange;
use crate::model::{PlanId, Ref, RefKind, RefName, TableState};
use crate::plan::change::RefChange;
use crate::report::{CommitReport, TableReport};
use crate::state::{FindingKind, Observation, Severity};

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    /// The commit was made.
    Done,
    /// Somebody else committed first: it must be planned again from fresh metadata.
    Again,
    /// It was not made, or not as it should have been, and is not to be tried again in this run.
    Not(String),
}

/// Makes the commit.
pub async fn refs(
    work: &mut Work<'_>,
    base: &LoadedTable,
    approved: &ApprovedChange,
    plan: Option<PlanId>,
    report: &mut TableReport,
) -> Result<Changed, Error> {
    let change = approved.change();
    report.is_untouched = false;
    work.may_go_on(&[&change.table], "commit").await?;
    let absent: Vec<&RefName> =
        change.refs.iter().filter(|changed| changed.before.is_none()).map(|changed| &changed.name).collect();
    let updates: Vec<TableUpdate> =
        change.refs.iter().map(|changed| update(&changed.name, changed.after.as_ref())).collect();
    let outcome = work.catalog.commit(base, &requirements(&base.state, change.uuid, &absent), &updates, work.now).await;
    let action = change.wanted.as_str();
    match outcome {
        CommitOutcome::Committed => {
            let current = work.load(&change.table).await?;
            if change.is_done(&current.state) {
                return committed(work, base, change, &current, plan, report).await;
            }
            // Not tried again: a server that leaves out a setting would be sent it for ever.
            let detail = json!({ "metadata_location": current.metadata_location, "refs": change.refs });
            work.audit(action, &change.table, plan, "not_seen", &detail).await?;
            let text = "the catalog accepted the commit, but the table does not show what it changed";
            Ok(Changed::Not(text.to_owned()))
        }
        CommitOutcome::Conflict { reason, left_behind } => {
            let current = work.load(&change.table).await?;
            // A proxy may have sent our request twice, and told us of the second.
            if change.is_done(&current.state) {
                return committed(work, base, change, &current, plan, report).await;
            }
            mark::loose_files(work, &(&current).into(), left_behind.as_slice(), "lost compare-and-swap", report)
                .await?;
            work.audit(action, &change.table, plan, "conflict", &json!({ "reason": reason })).await?;
            Ok(Changed::Again)
        }
        CommitOutcome::Unknown { reason } => {
            let mut pause = Duration::from_millis(200);
            for attempt in 0..RELOADS {
                if attempt > 0 {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                let Ok(current) = work.load(&change.table).await else { continue };
                if change.is_done(&current.state) {
                    return committed(work, base, change, &current, plan, report).await;
                }
            }
            work.audit(action, &change.table, plan, "unknown", &json!({ "reason": reason })).await?;
            Ok(Changed::Not(format!("nobody knows whether the commit will be applied ({reason})")))
        }
        CommitOutcome::Rejected { reason, left_behind } => {
            work.audit(action, &change.table, plan, "rejected", &json!({ "reason": reason })).await?;
            mark::loose_files(work, &base.into(), left_behind.as_slice(), "rejected commit", report).await?;
            Ok(Changed::Not(format!("the catalog rejected the commit: {reason}")))
        }
    }
}

async fn committed(
    work: &mut Work<'_>,
    base: &LoadedTable,
    change: &RefChange,
    current: &LoadedTable,
    plan: Option<PlanId>,
    report: &mut TableReport,
) -> Result<Changed, Error> {
    let refs: Vec<RefName> = change.dropped().cloned().collect();
    report.counts.commits += 1;
    report.counts.dropped_refs += refs.len() as u64;
    work.confirm_drops(&change.table, change.uuid, &refs.iter().collect::<Vec<_>>()).await?;
    let metadata_location = current.metadata_location.clone();
    let set = change.set().cloned().collect();
    report.commits.push(CommitReport { metadata_location, snapshots: 0, refs, set });
    let replaced = replaced(work, base, change, current).await;
    let (outcome, text) = match &replaced {
        Ok(()) => ("done", None),
        Err(Replaced::Unread(what)) => {
            let seen = Observation {
                kind: FindingKind::NoPredecessor,
                table: change.table.clone(),
                uuid: Some(change.uuid),
                ref_name: None,
                severity: Severity::Warning,
                numbers: json!({ "refs": change.refs }),
                message: format!("what a change of refs of {} replaced cannot be read: {what}", change.table),
                advice: "see that its refs are as they should be: icewarden branch list".to_owned(),
            };
            work.hands.state.raise(&seen, work.now).await?;
            ("no_predecessor", None)
        }
        Err(Replaced::Other { before, what }) => {
            let text =
                format!("the change of refs of {} replaced other things than it was made for: {what}", change.table);
            let seen = Observation {
                kind: FindingKind::UnplannedRemoval,
                table: change.table.clone(),
                uuid: Some(change.uuid),
                ref_name: None,
                severity: Severity::Critical,
                numbers: json!({ "before": before, "refs": change.refs }),
                message: format!("{text}; the state before is {before}"),
                advice: "set the ref as that metadata file has it, then acknowledge the finding".to_owned(),
            };
            work.hands.state.raise(&seen, work.now).await?;
            ("unplanned_removal", Some(text))
        }
    };
    let detail = json!({ "metadata_location": current.metadata_location, "refs": change.refs });
    work.audit(change.wanted.as_str(), &change.table, plan, outcome, &detail).await?;
    settle::mark_fallen_off(work, (&base.state, &base.metadata_location), current.into(), report).await?;
    Ok(text.map_or(Changed::Done, Changed::Not))
}

/// What our commit replaced is not known to be what it was made for.
enum Replaced {
    /// It cannot be read.
    Unread(String),
    /// It is something else.
    Other { before: String, what: String },
}

/// Safety rule 10: what the commit really replaced must be what it was made for. A server that checks no requirement
/// lets a ref be set back, and none checks a ref's retention.
async fn replaced(
    work: &Work<'_>,
    base: &LoadedTable,
    change: &RefChange,
    current: &LoadedTable,
) -> Result<(), Replaced> {
    let mut line: Vec<&str> = current.state.metadata_log.iter().map(|entry| entry.location.as_str()).collect();
    line.push(&current.metadata_location);
    let rules = work.storage.rules();
    let Some(at) = line.iter().position(|file| settle::same(rules, file, &base.metadata_location)) else {
        let what = format!("the metadata log does not reach back to {}", base.metadata_location);
        return Err(Replaced::Unread(what));
    };
    let mut before: (&str, TableState) = (line[at], (*base.state).clone());
    for file in &line[at + 1..] {
        let state = if settle::same(rules, file, &current.metadata_location) {
            (*current.state).clone()
        } else {
            match metadata::read(&work.storage, file).await {
                Ok((_, state)) => state,
                Err(error) => return Err(Replaced::Unread(error.to_string())),
            }
        };
        if change.is_done(&state) {
            return difference(change, &before.1, &state)
                .map_or(Ok(()), |what| Err(Replaced::Other { before: before.0.to_owned(), what }));
        }
        before = (file, state);
    }
    Ok(())
}

fn difference(change: &RefChange, before: &TableState, after: &TableState) -> Option<String> {
    let changed = change.refs.iter().find(|changed| before.refs.get(&changed.name) != changed.before.as_ref());
    if let Some(changed) = changed {
        let show =
            |r: Option<&Ref>| r.map_or_else(|| "absent".to_owned(), |r| format!("at {}, {}", r.snapshot, r.retention));
        let (was, expected) = (show(before.refs.get(&changed.name)), show(changed.before.as_ref()));
        return Some(format!("{} was {was}; expected {expected}", changed.name));
    }
    let is_ours = |name: &RefName| change.refs.iter().any(|changed| changed.name == *name);
    let lost = before.refs.iter().find(|(name, r)| !is_ours(name) && after.refs.get(*name) != Some(r));
    lost.map(|(name, _)| format!("{name} changed too"))
}

fn update(name: &RefName, after: Option<&Ref>) -> TableUpdate {
    let ref_name = name.to_string();
    let Some(r) = after else { return TableUpdate::RemoveSnapshotRef { ref_name } };
    let retention = match r.kind {
        RefKind::Branch => SnapshotRetention::Branch {
            // What does not fit is no number that anybody set.
            min_snapshots_to_keep: r.retention.min_snapshots_to_keep.and_then(|count| i32::try_from(count).ok()),
            max_snapshot_age_ms: r.retention.max_snapshot_age_ms,
            max_ref_age_ms: r.retention.max_ref_age_ms,
        },
        RefKind::Tag => SnapshotRetention::Tag { max_ref_age_ms: r.retention.max_ref_age_ms },
    };
    TableUpdate::SetSnapshotRef { ref_name, reference: SnapshotReference { snapshot_id: r.snapshot.0, retention } }
}
