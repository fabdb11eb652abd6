//! Expiry of one table: plan → guard → apply, again after each conflict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use uuid::Uuid;

use super::place::place_or_skip;
use super::{Lake, RunRequest, no_catalog, stored};
use crate::apply::change::{self, Changed};
use crate::apply::commit::{self, Ended};
use crate::apply::{Work, lease, settle};
use crate::catalog::LoadedTable;
use crate::clock::Clock;
use crate::config::{Config, Mode, RefAge};
use crate::error::Error;
use crate::guard::{self, ApprovedPlan};
use crate::inventory::created;
use crate::inventory::reach::{self, Freed, Reader};
use crate::inventory::world::World;
use crate::model::{Age, Ref, RefKind, RefMemory, RefName, Retention, RunId, Sighting, TableName, Timestamp};
use crate::plan::roots::Place;
use crate::plan::values::{Configured, Inputs, Request, Source, Sourced};
use crate::plan::{ExpirePlan, ExpireValues, RefFacts, cleanup, expire, refs, retention, values};
use crate::report::{Job, Outcome, PlanReport, TableReport, quoted};
use crate::state::{Finding, FindingKind, Observation, Severity};
use crate::sweep::{self, Borders};

/// Conflicts are answered with new plans for this long (safety rule 9).
const PLAN_AGAIN_FOR_MS: u64 = 10 * 60_000;

/// Expires one table. An error leaves the table as it is, or its intent open for the next run.
pub(super) async fn table(
    lake: &Lake,
    request: &RunRequest,
    run: &RunId,
    now: Timestamp,
    world: &World,
    name: &TableName,
    report: &mut TableReport,
) -> Result<(), Error> {
    let catalog = lake.catalog(&name.catalog).ok_or_else(|| no_catalog(name))?;
    let loaded = catalog.load(name).await?;
    report.uuid = loaded.state.uuid;
    // Before the lease, which twins share.
    if place_or_skip(&lake.hands, &loaded, world, now, report).await?.is_none() {
        report.advice = catalog.keeps_house().map(str::to_owned);
        return Ok(());
    }
    let Some(uuid) = loaded.state.uuid else { return Ok(()) };
    let limit = request.trigger.limit(&lake.hands.config.policy_for(name));
    let request = &RunRequest { apply: request.apply && limit > Mode::Observe, ..request.clone() };
    let lease = if request.apply { lease(&lake.hands.state, uuid, format!("expiry of {name}")).await? } else { None };
    let mut work = lake.work(catalog, run, &request.actor, now, (uuid, lease), loaded.storage);
    let done = under_lease(&mut work, request, world, (name, uuid, limit), report).await;
    work.end().await?;
    done
}

async fn under_lease(
    work: &mut Work<'_>,
    request: &RunRequest,
    world: &World,
    (name, uuid, limit): (&TableName, Uuid, Mode),
    report: &mut TableReport,
) -> Result<(), Error> {
    let reader =
        Reader::new(work.storage.clone(), work.hands.config.limits.memory / 4, Arc::clone(&work.hands.progress));
    let inputs = inputs(&work.hands.config, request, name, work.now);
    let began = Clock::boot_ms();
    let mut pause = Duration::from_millis(100);
    let mut may_set = true;
    loop {
        let loaded = work.load(name).await?;
        if loaded.state.uuid != Some(uuid) {
            report.ended(Outcome::Failed, "the table was replaced by another while the run began; run it again");
            return Ok(());
        }
        if request.apply {
            settle::open_intents(work, &loaded, report).await?;
            if report.outcome == Outcome::Failed {
                return Ok(());
            }
        }
        let Some(planned) = planned(work, &reader, &loaded, uuid, world, &inputs, report).await? else {
            return Ok(());
        };
        if planned.plan.retention.is_empty() && (!may_set || planned.plan.retention.to_set.is_empty()) {
            // There is nothing to write down, approve or confirm; but somebody may ask why a ref is still there.
            if planned.plan.retention.spares() && report.plan.is_none() {
                report.plan = Some(PlanReport::of(&planned.plan, planned.plan.write()?.id));
            }
            break;
        }
        let Some((approved, id)) = approved(work, request, &loaded, planned, report).await? else { return Ok(()) };
        if !request.apply {
            return Ok(());
        }
        let ended = match approved.retention(&loaded.state).filter(|_| may_set) {
            None => commit::expire(work, &loaded, &approved, id, &inputs, report).await?,
            // By itself and first: nothing of it has to be found out, and marked, after a crash.
            Some(retention) => match change::refs(work, &loaded, &retention, Some(id), report).await? {
                // Once in a run, whatever a server makes of it.
                Changed::Done => {
                    may_set = false;
                    Ended::More
                }
                Changed::Again => Ended::PlanAgain,
                Changed::Not(why) => {
                    report.ended(Outcome::Partial, format!("retention was not written to refs: {why}"));
                    // What a server does not take must not keep the table from being cleaned.
                    may_set = false;
                    Ended::More
                }
            },
        };
        match ended {
            Ended::Finished => break,
            Ended::More => {}
            Ended::PlanAgain if Clock::boot_ms().saturating_sub(began) > PLAN_AGAIN_FOR_MS => {
                report.ended(Outcome::Failed, "others kept committing to the table for 10 minutes; run it again later");
                return Ok(());
            }
            Ended::PlanAgain => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
    let may_sweep = request.apply && limit == Mode::Sweep;
    if may_sweep && work.hands.config.expire.grace == Age::ZERO && report.outcome <= Outcome::Partial {
        sweep_now(work, name, uuid, report).await?;
    }
    Ok(())
}

/// With a grace of zero a job goes on to its sweep.
async fn sweep_now(work: &mut Work<'_>, name: &TableName, uuid: Uuid, report: &mut TableReport) -> Result<(), Error> {
    let due = work.hands.state.due_marks(work.hands.clock.now()).await?;
    if due.iter().any(|list| list.uuid == uuid) {
        sweep::table(work, name, sweep::Mode::Apply, report).await?;
    }
    Ok(())
}

/// What the values of this table are resolved from.
pub(super) fn inputs(config: &Config, request: &RunRequest, name: &TableName, now: Timestamp) -> Inputs {
    let effective = config.policy_for(name);
    let policy = effective.expire;
    let sourced = |pattern: &crate::config::Pattern| Source::Policy(pattern.as_str().to_owned());
    Inputs {
        request: Request {
            older_than: request.older_than,
            retain_last: request.retain_last,
            snapshots: request.snapshots.iter().copied().collect(),
        },
        configured: Configured {
            policy_older_than: policy.older_than.map(|p| Sourced::new(p.value, sourced(&p.pattern))),
            policy_retain_last: policy.retain_last.map(|p| Sourced::new(p.value, sourced(&p.pattern))),
            override_table: policy.override_table.is_some_and(|p| p.value),
            older_than: config.expire.older_than,
            retain_last: config.expire.retain_last,
            floor: config.expire.floor,
            drop_grace: config.expire.drop_grace,
            keep_fork_points: config.expire.keep_fork_points,
            rules: effective.rules,
        },
        now,
    }
}

/// What is known of the table's refs beside its metadata. Every run records what it sees, also where ages count
/// from heads alone: that may change.
pub(super) async fn facts(
    work: &Work<'_>,
    loaded: &LoadedTable,
    uuid: Uuid,
    values: &ExpireValues,
) -> Result<(RefFacts, RefMemory), Error> {
    let memory = work.look_at_refs(loaded, uuid).await?;
    let refs = || memory.refs.iter();
    let in_force = |(name, seen): (&RefName, &Sighting)| {
        let r = Ref { snapshot: seen.head, kind: seen.kind, retention: seen.in_force };
        (seen.own != seen.in_force).then(|| (name.clone(), r))
    };
    let mut dropped: Vec<_> = memory.dropped.iter().filter(|dropped| dropped.ended.is_none()).cloned().collect();
    dropped.sort_by_cached_key(|dropped| (dropped.name.clone(), dropped.r.snapshot, dropped.at));
    let mut facts = RefFacts {
        by_creation: work.hands.config.expire.ref_age == RefAge::Created,
        created: BTreeMap::new(),
        in_force: refs().filter_map(in_force).collect(),
        fork_points: refs().filter_map(|(name, seen)| Some((name.clone(), seen.fork_point?))).collect(),
        dropped,
    };
    let wanted = refs::look_up(&loaded.state, values, &facts);
    facts.created = created::created(&loaded.storage, loaded, &wanted, &memory.refs, work.now).await;
    Ok((facts, memory))
}

/// A finding for each ref that lost retention, for as long as it lacks it.
async fn lost_retention(work: &Work<'_>, loaded: &LoadedTable, uuid: Uuid, facts: &RefFacts) -> Result<(), Error> {
    let (state, table) = (&work.hands.state, &loaded.name);
    let open = state.open_findings_of(uuid).await?;
    let is_over = |finding: &&Finding| {
        let seen = &finding.seen;
        let lacks = |name: &RefName| facts.in_force.contains_key(name);
        seen.kind == FindingKind::RetentionLost && !seen.ref_name.as_ref().is_some_and(lacks)
    };
    for finding in open.iter().filter(is_over) {
        state.resolve(&finding.id, work.now).await?;
    }
    for (name, r) in &facts.in_force {
        let kind = r.kind.as_str();
        let seen = Observation {
            kind: FindingKind::RetentionLost,
            table: table.clone(),
            uuid: Some(uuid),
            ref_name: Some(name.clone()),
            severity: Severity::Warning,
            numbers: json!({ "in_force": r.retention }),
            message: format!(
                "{kind} {name} of {table} lost its retention when it moved; {} stays in force",
                r.retention
            ),
            advice: match r.kind {
                RefKind::Branch => format!(
                    "write it again: icewarden branch retain {} {}{} --apply, or set_retention = true in the policy's rule",
                    quoted(&table.full()),
                    quoted(name.as_str()),
                    flags(&r.retention)
                ),
                RefKind::Tag => "set_retention = true in the policy's rule for tags writes it again".to_owned(),
            },
        };
        state.raise(&seen, work.now).boxed().await?;
    }
    Ok(())
}

/// Retention as `branch retain` takes it.
fn flags(retention: &Retention) -> String {
    let age = |flag: &str, ms: Option<i64>| ms.map(|ms| format!(" --{flag} {}", Age(ms)));
    let keep = retention.min_snapshots_to_keep.map(|count| format!(" --keep {count}"));
    let all = [age("max-age", retention.max_ref_age_ms), keep, age("snapshots-for", retention.max_snapshot_age_ms)];
    all.into_iter().flatten().collect()
}

/// A plan with what the guard needs to judge it.
struct Planned {
    plan: ExpirePlan,
    place: Place,
}

async fn planned(
    work: &Work<'_>,
    reader: &Reader,
    loaded: &LoadedTable,
    uuid: Uuid,
    world: &World,
    inputs: &Inputs,
    report: &mut TableReport,
) -> Result<Option<Planned>, Error> {
    let name = &loaded.name;
    let Some(place) = place_or_skip(work.hands, loaded, world, work.now, report).await? else {
        return Ok(None);
    };
    let values = values::resolve(&loaded.state, inputs)?;
    let (facts, _) = facts(work, loaded, uuid, &values).boxed().await?;
    lost_retention(work, loaded, uuid, &facts).boxed().await?;
    let retention = match retention::plan(&loaded.state, &values, &facts) {
        Ok(retention) => retention,
        Err(named) => {
            report.ended(Outcome::Refused, named.to_string());
            return Ok(None);
        }
    };
    let steps = expire::steps(&retention, work.hands.config.guard.max_snapshots_per_commit);
    let freed = if steps.is_empty() {
        Freed::default()
    } else {
        let neighbours = sweep::neighbours(work, name, &place, Borders::Known).await?;
        reach::freed(reader, &loaded.state, &steps, &neighbours).await?
    };
    let by_hand = work.kept_by_hand().await?;
    let outside = work.hands.config.expire.outside_location;
    let plan = ExpirePlan {
        table: name.clone(),
        uuid,
        metadata_location: loaded.metadata_location.clone(),
        retention,
        cleanup: cleanup::plan(freed.candidates, &place, &by_hand, outside, work.hands.storage.rules()),
        retained: freed.retained,
        conflicts: freed.conflicts,
        left: freed.left.iter().map(ToString::to_string).collect(),
        steps,
    };
    Ok(Some(Planned { plan, place }))
}

/// Writes the plan down, shows it in the report, and asks the guard.
async fn approved(
    work: &Work<'_>,
    request: &RunRequest,
    loaded: &LoadedTable,
    planned: Planned,
    report: &mut TableReport,
) -> Result<Option<(ApprovedPlan, crate::model::PlanId)>, Error> {
    let Planned { plan, place } = planned;
    let written = plan.write()?;
    let state = &work.hands.state;
    counted(&plan, report);
    // Where a plan takes several commits, the first tells all of it.
    report.plan.get_or_insert_with(|| PlanReport::of(&plan, written.id));
    let location = stored::decisions(work, written.id, &written.decisions).await?;
    let confirmed = stored::confirmed(work, request.confirm, Job::Expire, (&plan.table, plan.uuid)).await?;
    let hold = if request.apply { state.held(&plan.table).await? } else { None };
    let finding = sweep::unplanned_removal(state, work.uuid, work.now).await?;
    let facts = guard::Facts {
        state: &loaded.state,
        place: &place,
        limits: &work.hands.config.guard,
        outside: work.hands.config.expire.outside_location,
        rules: work.hands.storage.rules(),
        hold: hold.as_ref(),
        unplanned_removal: finding.as_deref(),
        clock_skew: work.clock_skew(&loaded.state.location).boxed().await?,
        confirmed: &confirmed,
    };
    let (table, uuid, bound) = (plan.table.clone(), plan.uuid, plan.bound());
    let guarded = guard::approve(plan, &facts);
    let refusal = guarded.as_ref().err().map(|refused| refused.1.clone());
    let shown = stored::Shown { id: written.id, header: &written.header, location, bound };
    stored::save(work, Job::Expire, (&table, uuid), shown, refusal.as_ref()).await?;
    match (guarded, refusal) {
        (Ok(approved), _) => Ok(Some((approved, written.id))),
        (Err(_), Some(refusal)) => {
            stored::refused(work, Job::Expire, &table, &refusal, written.id, report).await?;
            Ok(None)
        }
        (Err(_), None) => Ok(None),
    }
}

/// What the plan leaves, in numbers. Made again after a conflict, the newest plan counts.
fn counted(plan: &ExpirePlan, report: &mut TableReport) {
    use cleanup::KeptFile as K;
    let of = |wanted: &[K]| plan.cleanup.keep.iter().filter(|(_, because)| wanted.contains(because)).count() as u64;
    report.counts.skipped_outside_location = of(&[K::Outside, K::InOtherTable]);
    report.counts.unrepresentable = of(&[K::Unrepresentable]);
    report.counts.kept_by_hand = of(&[K::ByHand]);
    report.counts.prefix_conflicts = plan.conflicts.len() as u64;
    report.counts.incomplete = plan.left.len() as u64;
    if let Some(first) = plan.left.first() {
        let count = plan.left.len();
        report.ended(
            Outcome::Partial,
            format!("{count} files of expired snapshots cannot be read, and what only they name is left for the orphan job; the first: {first}"),
        );
    }
}
