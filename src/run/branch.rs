//! A branch is dropped, restored, or given other retention: in one table, or in all that match.

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::{Lake, RunError, begin, end, failed, no_catalog, selected, unlisted};
use crate::apply::change::{self, Changed};
use crate::apply::{Work, lease, settle};
use crate::catalog::LoadedTable;
use crate::clock::Clock;
use crate::config::Pattern;
use crate::error::Error;
use crate::guard;
use crate::model::lineage::Lineage;
use crate::model::{RefName, RunId, TableName, Timestamp};
use crate::plan::change::{ChangedRef, RefChange, Refused, Wanted, drop, restore, retain};
use crate::plan::roots::Shared;
use crate::report::{Job, Outcome, RunReport, TableReport};
use crate::sweep;

/// Conflicts are answered with new tries for this long.
const TRY_AGAIN_FOR_MS: u64 = 60_000;

/// What is asked for.
#[derive(Debug, Clone, Serialize)]
pub struct BranchRequest {
    /// In which tables; at least one pattern.
    pub tables: Vec<Pattern>,
    /// Which branch.
    pub name: RefName,
    /// What of it.
    pub wanted: Wanted,
    /// Act, or only tell what would change.
    pub apply: bool,
    /// Who asks.
    pub actor: String,
}

/// Changes a branch in every table that matches and has it (for a restore: had it). It is an error where none has.
pub async fn run(lake: &Lake, request: &BranchRequest) -> Result<RunReport, RunError> {
    let now = lake.hands.clock.now();
    lake.surveyor.forget().await;
    let mut report = begin(lake, Job::Branch, request.apply, (&request.actor, request), now).await?;
    let done = all(lake, request, &mut report).await;
    end(lake, report, done).await
}

async fn all(lake: &Lake, request: &BranchRequest, report: &mut RunReport) -> Result<(), RunError> {
    let world = lake.survey().await?;
    unlisted(&world, report);
    let tables = selected(&world, &request.tables)?;
    let mut without = None;
    for table in &tables {
        let mut of_table = TableReport::new(table.clone());
        match one(lake, request, &report.run, report.now, table, &mut of_table).await {
            Ok(Some(refused @ (Refused::Unknown(_) | Refused::NeverDropped(_)))) => {
                without = Some(format!("{table}: {refused} (hint: icewarden branch list)"));
                continue;
            }
            Ok(Some(refused @ Refused::AsWanted(_))) => report.notes.push(format!("{table}: {refused}")),
            Ok(Some(refused)) => of_table.ended(Outcome::Refused, refused.to_string()),
            Ok(None) => {}
            Err(error) => failed(&mut of_table, &error),
        }
        report.tables.push(of_table);
    }
    // Of many tables those count that have it; that none has is most likely a slip.
    match without {
        Some(text) if report.tables.is_empty() && report.unlisted.is_empty() => Err(RunError::Rejected(text)),
        _ => Ok(()),
    }
}

async fn one(
    lake: &Lake,
    request: &BranchRequest,
    run: &RunId,
    now: Timestamp,
    name: &TableName,
    report: &mut TableReport,
) -> Result<Option<Refused>, Error> {
    let catalog = lake.catalog(&name.catalog).ok_or_else(|| no_catalog(name))?;
    let loaded = catalog.load(name).await?;
    report.uuid = loaded.state.uuid;
    let Some(uuid) = loaded.state.uuid else {
        report.ended(Outcome::Skipped, Shared::NoUuid.to_string());
        return Ok(None);
    };
    let what = format!("{} of branch {} of {name}", request.wanted.as_str(), request.name);
    let lease = if request.apply { lease(&lake.hands.state, uuid, what).await? } else { None };
    let mut work = lake.work(catalog, run, &request.actor, now, (uuid, lease), loaded.storage);
    let done = under_lease(&mut work, request, name, uuid, report).await;
    work.end().await?;
    done
}

async fn under_lease(
    work: &mut Work<'_>,
    request: &BranchRequest,
    name: &TableName,
    uuid: Uuid,
    report: &mut TableReport,
) -> Result<Option<Refused>, Error> {
    let began = Clock::boot_ms();
    let mut pause = Duration::from_millis(100);
    let mut shown = None;
    loop {
        let loaded = work.load(name).await?;
        if loaded.state.uuid != Some(uuid) {
            report.ended(Outcome::Failed, "the table was replaced by another while the run began; run it again");
            return Ok(None);
        }
        if request.apply {
            // An expiry whose answer was lost may have taken what is to be restored.
            settle::open_intents(work, &loaded, report).await?;
            if report.outcome == Outcome::Failed {
                return Ok(None);
            }
        }
        let changed = match planned(work, request, &loaded, uuid).await? {
            Ok(changed) => changed,
            Err(refused) => return Ok(Some(refused)),
        };
        // What is shown, and asked for, is one branch; after a conflict there may be another of its name.
        if let (Some(shown), Some(found)) = (shown, changed.before.as_ref().map(|r| r.snapshot))
            && !Lineage::new(&loaded.state.snapshots).descends(found, shown)
        {
            return Ok(Some(Refused::Replaced(changed.name)));
        }
        shown = changed.before.as_ref().map(|r| r.snapshot);
        let refs = vec![changed];
        let planned = RefChange { table: name.clone(), uuid, wanted: request.wanted.clone(), refs };
        report.change = Some(planned.clone());
        let hold = if request.apply { work.hands.state.held(name).await? } else { None };
        let finding = sweep::unplanned_removal(&work.hands.state, uuid, work.now).await?;
        let skew = work.clock_skew(&loaded.state.location).await?;
        let approved = match guard::approve_change(planned, hold.as_ref(), finding.as_deref(), skew) {
            Ok(approved) => approved,
            Err(refused) => {
                report.ended(Outcome::Refused, refused.1.to_string());
                return Ok(None);
            }
        };
        if !request.apply {
            return Ok(None);
        }
        let dropped: Vec<&RefName> = approved.change().dropped().collect();
        work.record_drops(&loaded, uuid, &dropped).await?;
        match change::refs(work, &loaded, &approved, None, report).await? {
            Changed::Done => return Ok(None),
            Changed::Not(why) => {
                report.ended(Outcome::Failed, why);
                return Ok(None);
            }
            Changed::Again if Clock::boot_ms().saturating_sub(began) > TRY_AGAIN_FOR_MS => {
                report.ended(Outcome::Failed, "others kept committing to the table for a minute; run it again later");
                return Ok(None);
            }
            Changed::Again => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

async fn planned(
    work: &Work<'_>,
    request: &BranchRequest,
    loaded: &LoadedTable,
    uuid: Uuid,
) -> Result<Result<ChangedRef, Refused>, Error> {
    let (state, name) = (&loaded.state, &request.name);
    Ok(match &request.wanted {
        Wanted::Drop => drop(state, name, &work.hands.config.policy_for(&loaded.name).rules),
        Wanted::Retain(settings) => retain(state, name, *settings, work.now),
        Wanted::Restore(new_name) => {
            // First what is gone since the last look.
            let memory = work.look_at_refs(loaded, uuid).await?;
            restore(state, name, new_name.as_ref(), &memory.dropped)
        }
        Wanted::SetRetention => Err(Refused::AsWanted(name.clone())),
    })
}
