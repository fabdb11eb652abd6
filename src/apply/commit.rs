//! Commits of an approved expiry, one step after another.

use std::time::Duration;

use iceberg::{TableRequirement, TableUpdate};
use serde_json::json;
use uuid::Uuid;

use super::settle::{self, Inputs, Settled};
use super::{ListHeader, Work, mark};
use crate::catalog::{CommitOutcome, LoadedTable};
use crate::error::Error;
use crate::failpoint;
use crate::guard::ApprovedPlan;
use crate::model::{PlanId, RefName, SnapshotId, TableState};
use crate::plan::values;
use crate::report::{CommitReport, Outcome, TableReport};
use crate::state::{Entry, Intent, ListWriter};

/// After an unclear answer the table is loaded again this often, with pauses that double.
pub(super) const RELOADS: u32 = 4;

/// How the commit of a plan ended.
#[derive(Debug)]
pub enum Ended {
    /// There is nothing more to commit, or the run ended early with the outcome in the report.
    Finished,
    /// The plan has more commits: it must be made again on what this one left.
    More,
    /// Somebody else committed first: the plan must be made again from fresh metadata.
    PlanAgain,
}

/// Makes the plan's first commit, and marks what it frees. The others are planned again on what it left: without
/// its snapshots the walk up a branch may end elsewhere.
pub async fn expire(
    work: &mut Work<'_>,
    base: &LoadedTable,
    approved: &ApprovedPlan,
    id: PlanId,
    inputs: &values::Inputs,
    report: &mut TableReport,
) -> Result<Ended, Error> {
    let plan = approved.plan();
    let (refs, snapshots) = (plan.refs_of(0), plan.snapshots_of(0));
    let entries: Vec<Entry> = plan
        .files_of(0)
        .map(|candidate| Entry {
            kind: candidate.kind,
            location: candidate.location.clone(),
            facts: None,
            recorded_size: candidate.recorded_size,
        })
        .collect();
    let intent_id = Uuid::now_v7().to_string();
    let location = work.hands.plans.location(&format!("intents/{intent_id}.zst"))?;
    let header = ListHeader {
        id: intent_id.clone(),
        table: plan.table.full(),
        uuid: plan.uuid,
        metadata_location: base.metadata_location.clone(),
        locations: work.hands.storage.rules().clone(),
    };
    let (bytes, candidates) = ListWriter::write_all(&header, entries, &plan.retained, &location)?;
    work.hands.plans.write(&format!("intents/{intent_id}.zst"), bytes).await?;
    let intent = Intent {
        id: intent_id,
        table: plan.table.clone(),
        uuid: plan.uuid,
        run: work.run.clone(),
        base_metadata_location: base.metadata_location.clone(),
        base_last_updated: base.state.last_updated,
        removed_refs: refs.clone(),
        removed_snapshots: snapshots.clone(),
        inputs: serde_json::to_string(&Inputs {
            plan: id,
            values: inputs.clone(),
            facts: plan.retention.facts.clone(),
        })?,
        candidates,
        created_at: work.now,
    };
    work.record_drops(base, plan.uuid, &plan.retention.dropped_alone()).await?;
    work.hands.state.open_intent(&intent).await?;
    report.is_untouched = false;
    failpoint::pass("after-intent").await;
    work.may_go_on(&[&plan.table], "commit").await?;

    let outcome = work
        .catalog
        .commit(base, &requirements(&base.state, plan.uuid, &[]), &updates(&base.state, &refs, &snapshots), work.now)
        .await;
    failpoint::pass("after-commit").await;
    match conclude(work, base, &intent, outcome, report).await? {
        Concluded::Settled(settled) => {
            if !finish(work, &intent, *settled, report).await? {
                return Ok(Ended::Finished);
            }
        }
        Concluded::PlanAgain => return Ok(Ended::PlanAgain),
        Concluded::Ended => return Ok(Ended::Finished),
    }
    failpoint::pass("after-mark").await;
    Ok(if plan.commits() > 1 { Ended::More } else { Ended::Finished })
}

/// Turns a settled commit into lines of the report; whether the next step may follow.
async fn finish(
    work: &mut Work<'_>,
    intent: &Intent,
    settled: Settled,
    report: &mut TableReport,
) -> Result<bool, Error> {
    let is_clean = matches!(settled, Settled::Applied { .. });
    settle::conclude(work, intent, settled, report).await?;
    Ok(is_clean && report.outcome <= Outcome::Partial)
}

enum Concluded {
    Settled(Box<Settled>),
    PlanAgain,
    Ended,
}

/// What an answer to a commit means, as far as can be found out.
async fn conclude(
    work: &mut Work<'_>,
    base: &LoadedTable,
    intent: &Intent,
    outcome: CommitOutcome,
    report: &mut TableReport,
) -> Result<Concluded, Error> {
    match outcome {
        CommitOutcome::Committed => {
            let current = work.load(&intent.table).await?;
            let settled = settle::settle(&work.storage, intent, Some(base), &current).await;
            if matches!(settled, Settled::NotApplied | Settled::OtherTable) {
                // The catalog said yes, and the table says no. Nothing is marked; the intent stays open.
                report.ended(
                    Outcome::Failed,
                    "the catalog accepted the commit, but the table still has what it removed; nothing was marked",
                );
                return Ok(Concluded::Ended);
            }
            Ok(Concluded::Settled(Box::new(settled)))
        }
        CommitOutcome::Conflict { reason, left_behind } => {
            // A proxy may have sent our request twice, and told us of the second.
            let current = work.load(&intent.table).await?;
            match settle::settle(&work.storage, intent, Some(base), &current).await {
                Settled::NotApplied => {
                    settle::close_void(work, intent).await?;
                    mark::loose_files(
                        work,
                        &(&current).into(),
                        left_behind.as_slice(),
                        "lost compare-and-swap",
                        report,
                    )
                    .await?;
                    work.audit("commit", &intent.table, None, "conflict", &json!({ "reason": reason })).await?;
                    Ok(Concluded::PlanAgain)
                }
                settled => Ok(Concluded::Settled(Box::new(settled))),
            }
        }
        CommitOutcome::Unknown { reason } => {
            let mut pause = Duration::from_millis(200);
            for attempt in 0..RELOADS {
                if attempt > 0 {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                let Ok(current) = work.load(&intent.table).await else { continue };
                match settle::settle(&work.storage, intent, Some(base), &current).await {
                    Settled::NotApplied => {
                        // It may still arrive: the intent stays open, and the next run settles it.
                        report.ended(
                            Outcome::Failed,
                            format!(
                                "the commit was not applied ({reason}); nothing was marked, the next run tries again"
                            ),
                        );
                        return Ok(Concluded::Ended);
                    }
                    settled => return Ok(Concluded::Settled(Box::new(settled))),
                }
            }
            work.audit("commit", &intent.table, None, "unknown", &json!({ "reason": reason })).await?;
            report.ended(
                Outcome::Failed,
                format!(
                    "nobody knows whether the commit was applied ({reason}), and the table cannot be loaded; \
                     nothing was marked, the next run finds out"
                ),
            );
            Ok(Concluded::Ended)
        }
        CommitOutcome::Rejected { reason, left_behind } => {
            work.audit("commit", &intent.table, None, "rejected", &json!({ "reason": reason })).await?;
            settle::close_void(work, intent).await?;
            mark::loose_files(work, &base.into(), left_behind.as_slice(), "rejected commit", report).await?;
            report.ended(Outcome::Failed, format!("the catalog rejected the commit: {reason}"));
            Ok(Concluded::Ended)
        }
    }
}

/// The table is this one, and every ref points where it pointed when the plan was made (safety rule 9); these are
/// not there.
pub(super) fn requirements(state: &TableState, uuid: Uuid, absent: &[&RefName]) -> Vec<TableRequirement> {
    let mut all = vec![TableRequirement::UuidMatch { uuid }];
    let of = |name: &RefName, snapshot: Option<SnapshotId>| TableRequirement::RefSnapshotIdMatch {
        r#ref: name.to_string(),
        snapshot_id: snapshot.map(|id| id.0),
    };
    let main = RefName::from(RefName::MAIN);
    if !state.refs.contains_key(&main) {
        all.push(of(&main, None));
    }
    all.extend(
        absent.iter().filter(|name| !state.refs.contains_key(**name) && !name.is_main()).map(|name| of(name, None)),
    );
    all.extend(state.refs.iter().map(|(name, r)| of(name, Some(r.snapshot))));
    all
}

/// Refs first, then snapshots, then their statistics: as Java sends them.
fn updates(state: &TableState, refs: &[RefName], snapshots: &[SnapshotId]) -> Vec<TableUpdate> {
    let mut all: Vec<TableUpdate> =
        refs.iter().map(|name| TableUpdate::RemoveSnapshotRef { ref_name: name.to_string() }).collect();
    if !snapshots.is_empty() {
        all.push(TableUpdate::RemoveSnapshots { snapshot_ids: snapshots.iter().map(|id| id.0).collect() });
    }
    let with = |files: &[crate::model::StatisticsFile]| {
        let mut ids: Vec<SnapshotId> = files.iter().map(|file| file.snapshot).collect();
        ids.retain(|id| snapshots.contains(id));
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    all.extend(with(&state.statistics).into_iter().map(|id| TableUpdate::RemoveStatistics { snapshot_id: id.0 }));
    all.extend(
        with(&state.partition_statistics)
            .into_iter()
            .map(|id| TableUpdate::RemovePartitionStatistics { snapshot_id: id.0 }),
    );
    all
}

/// What a commit removed, for the report.
pub(super) fn committed(intent: &Intent, metadata_location: &str, report: &mut TableReport) {
    report.counts.commits += 1;
    report.counts.expired_snapshots += intent.removed_snapshots.len() as u64;
    report.counts.dropped_refs += intent.removed_refs.len() as u64;
    report.commits.push(CommitReport {
        metadata_location: metadata_location.to_owned(),
        snapshots: intent.removed_snapshots.len() as u64,
        refs: intent.removed_refs.clone(),
        set: Vec::new(),
    });
}
