//! Commits that change refs alone. No snapshot goes with them, so nothing is marked, and no intent is needed: a run
//! that is killed in between finds the refs as they are.

use std::time::Duration;

use iceberg::TableUpdate;
use iceberg::spec::{SnapshotReference, SnapshotRetention};
use serde_json::json;

use super::commit::{Ended, RELOADS, requirements};
use super::{Work, mark, settle};
use crate::catalog::{CommitOutcome, LoadedTable};
use crate::error::Error;
use crate::guard::ApprovedChange;
use crate::model::{PlanId, Ref, RefKind, RefName};
use crate::plan::change::RefChange;
use crate::report::{CommitReport, Outcome, TableReport};

/// Makes the commit. [`Ended::More`] where it was made.
pub async fn refs(
    work: &mut Work<'_>,
    base: &LoadedTable,
    approved: &ApprovedChange,
    plan: Option<PlanId>,
    report: &mut TableReport,
) -> Result<Ended, Error> {
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
            committed(work, base, change, &current, plan, report).await
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
            Ok(Ended::PlanAgain)
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
            report.ended(Outcome::Failed, format!("nobody knows whether the commit will be applied ({reason})"));
            Ok(Ended::Finished)
        }
        CommitOutcome::Rejected { reason, left_behind } => {
            work.audit(action, &change.table, plan, "rejected", &json!({ "reason": reason })).await?;
            mark::loose_files(work, &base.into(), left_behind.as_slice(), "rejected commit", report).await?;
            report.ended(Outcome::Failed, format!("the catalog rejected the commit: {reason}"));
            Ok(Ended::Finished)
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
) -> Result<Ended, Error> {
    if !change.is_done(&current.state) {
        // Not tried again: a server that leaves out a setting would be sent it for ever.
        let detail = json!({ "metadata_location": current.metadata_location, "refs": change.refs });
        work.audit(change.wanted.as_str(), &change.table, plan, "not_seen", &detail).await?;
        report.ended(Outcome::Failed, "the catalog accepted the commit, but the table does not show what it changed");
        return Ok(Ended::Finished);
    }
    let refs: Vec<RefName> = change.dropped().cloned().collect();
    report.counts.commits += 1;
    report.counts.dropped_refs += refs.len() as u64;
    let metadata_location = current.metadata_location.clone();
    let set = change.set().cloned().collect();
    report.commits.push(CommitReport { metadata_location, snapshots: 0, refs, set });
    let detail = json!({ "metadata_location": current.metadata_location, "refs": change.refs });
    work.audit(change.wanted.as_str(), &change.table, plan, "done", &detail).await?;
    settle::mark_fallen_off(work, (&base.state, &base.metadata_location), current.into(), report).await?;
    Ok(Ended::More)
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
