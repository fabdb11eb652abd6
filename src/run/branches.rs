//! What is known of the branches of a table: how old they are, by which policy they live, where they left `main`, and
//! what the next expiry does with them. Looks only.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::{Lake, RunError, RunRequest, expire, no_catalog, selected};
use crate::config::Pattern;
use crate::error::Error;
use crate::inventory::created;
use crate::model::lineage::Lineage;
use crate::model::{
    Age, DropEnd, DroppedRef, RefKind, RefName, Retention, RunId, SnapshotId, TableName, TableState, Timestamp,
};
use crate::plan::{RefValues, RefVerdict, retention, values};
use crate::report::Job;

/// The branches of a table.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TableBranches {
    /// Which table.
    pub table: TableName,
    /// When it was looked at.
    pub now: Timestamp,
    /// All but `main`, by name.
    pub branches: Vec<Branch>,
    /// Those that are gone and can be restored, the latest first.
    pub dropped: Vec<Gone>,
}

/// A branch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Branch {
    /// Its name.
    pub name: RefName,
    /// Its newest snapshot.
    pub head: SnapshotId,
    /// When that was committed; `None` where the table does not have it.
    pub head_at: Option<Timestamp>,
    /// It was created no later than this.
    pub created: Timestamp,
    /// What it says of its own retention.
    pub own: Retention,
    /// By which values it lives, each with its source.
    pub values: RefValues,
    /// What the next expiry does, and why.
    pub verdict: RefVerdict,
    /// Snapshots on it alone.
    pub snapshots: u64,
    /// Where it left `main`.
    pub fork_point: Option<SnapshotId>,
    /// When that was committed, where the table still has it.
    pub forked_at: Option<Timestamp>,
    /// Commits of `main` since then, as far as the table still has them.
    pub behind_main: Option<u64>,
}

/// A branch that is gone.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Gone {
    /// Its name.
    pub name: RefName,
    /// Branch or tag.
    pub kind: RefKind,
    /// What it pointed at when it was last seen.
    pub head: SnapshotId,
    /// When it was dropped, or first seen to be gone.
    pub dropped_at: Timestamp,
    /// Who dropped it, where that was done by Icewarden.
    pub by: Option<String>,
    /// Its snapshots stay until then at least; `None` where others dropped it: they go by age, as in Java.
    pub kept_until: Option<Timestamp>,
}

/// The branches of every table that matches, and the tables that could not be looked at.
pub async fn branches(
    lake: &Lake,
    patterns: &[Pattern],
    actor: &str,
) -> Result<(Vec<TableBranches>, Vec<Error>), RunError> {
    let now = lake.hands.clock.now();
    lake.surveyor.forget().await;
    let world = lake.survey().await?;
    let mut failed = Vec::new();
    let mut all = Vec::new();
    for name in selected(&world, patterns)? {
        match of_table(lake, &name, actor, now).await {
            Ok(found) => all.extend(found),
            Err(error) => failed.push(error),
        }
    }
    Ok((all, failed))
}

async fn of_table(lake: &Lake, name: &TableName, actor: &str, now: Timestamp) -> Result<Option<TableBranches>, Error> {
    let catalog = lake.catalog(&name.catalog).ok_or_else(|| no_catalog(name))?;
    let loaded = catalog.load(name).await?;
    let state = &*loaded.state;
    let Some(uuid) = state.uuid else { return Ok(None) };
    let run = RunId(Uuid::now_v7().to_string());
    let work = lake.work(catalog, &run, actor, now, (uuid, None), loaded.storage.clone());
    let values =
        values::resolve(state, &expire::inputs(&lake.hands.config, &RunRequest::look(Job::Expire, actor), name, now))?;
    let (facts, memory) = expire::facts(&work, &loaded, uuid, &values).await?;
    let Ok(plan) = retention::plan(state, &values, &facts) else { return Ok(None) };
    // Also of those that nothing gives an age.
    let is_branch = |name: &&RefName| !name.is_main() && state.refs[*name].kind == RefKind::Branch;
    let wanted: BTreeMap<RefName, Age> =
        state.refs.keys().filter(is_branch).map(|name| (name.clone(), Age(i64::MAX))).collect();
    let created = created::created(&loaded.storage, &loaded, &wanted, &memory.refs, now).await;
    let lineage = Lineage::new(&state.snapshots);
    let at = |id: SnapshotId| lineage.get(id).map(|snapshot| snapshot.at);
    let of = |decision: &crate::plan::RefDecision| {
        let fork_point = facts.fork_points.get(&decision.name).copied();
        Branch {
            name: decision.name.clone(),
            head: decision.snapshot,
            head_at: at(decision.snapshot),
            created: created.get(&decision.name).map_or(now, |creation| creation.at),
            own: state.refs[&decision.name].retention,
            values: decision.values.clone(),
            verdict: decision.verdict.clone(),
            snapshots: alone(state, &lineage, &decision.name),
            fork_point,
            forked_at: fork_point.and_then(at),
            behind_main: fork_point.and_then(|base| behind(state, &lineage, base)),
        }
    };
    let branches = plan.refs.iter().filter(|decision| wanted.contains_key(&decision.name)).map(of).collect();
    let there = |gone: &&DroppedRef| {
        let is_expired = matches!(gone.ended, Some((DropEnd::Expired, _)));
        !is_expired && lineage.get(gone.r.snapshot).is_some() && !state.refs.contains_key(&gone.name)
    };
    let gone = memory.dropped.iter().rev().filter(there).map(|gone| Gone {
        name: gone.name.clone(),
        kind: gone.r.kind,
        head: gone.r.snapshot,
        dropped_at: gone.at,
        by: gone.by.clone(),
        kept_until: gone.by.as_ref().map(|_| gone.at.plus(values.drop_grace)),
    });
    let mut dropped: Vec<Gone> = gone.collect();
    // Of one name the latest.
    let mut met = std::collections::BTreeSet::new();
    dropped.retain(|gone| met.insert(gone.name.clone()));
    Ok(Some(TableBranches { table: name.clone(), now, branches, dropped }))
}

/// The snapshots that this branch alone leads to.
fn alone(state: &TableState, lineage: &Lineage<'_>, name: &RefName) -> u64 {
    let others = lineage.led_to(state.refs.iter().filter(|(other, _)| *other != name).map(|(_, r)| r));
    lineage.ancestors(state.refs[name].snapshot).filter(|snapshot| !others.contains(&snapshot.id)).count() as u64
}

fn behind(state: &TableState, lineage: &Lineage<'_>, base: SnapshotId) -> Option<u64> {
    let main = state.refs.get(&RefName::from(RefName::MAIN))?;
    let ahead = lineage.ancestors(main.snapshot).position(|snapshot| snapshot.id == base)?;
    Some(ahead as u64)
}
