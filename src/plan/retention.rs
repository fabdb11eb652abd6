//! Which refs and snapshots go: equal to Java's `RemoveSnapshots`, with the floor of safety rule 5 and the care for
//! branches on top. Refs are decided on in [`refs`](super::refs).
//!
//! - The head of every retained ref stays.
//! - A retained branch keeps ancestors from its head on, while fewer than its minimum are kept or the snapshot
//!   is not older than its age; the walk ends at the first that fails both. The cutoff is inclusive.
//! - A tag keeps its own snapshot, never an ancestor.
//! - The base of an open branch stays, where it left `main`.
//! - What a ref kept that we drop stays for the drop grace (safety rule 15), unless the table's own retention drops
//!   it. So long after a branch is gone, whoever dropped it, the snapshots that were only on it go, whatever their age.
//! - A snapshot on no retained ref (staged, rolled back, of a dropped branch) stays until the default age.
//! - Snapshots named by the operator go, unless they are the head of a retained ref: that is an error.
//! - No snapshot younger than the floor goes, whatever any setting says.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::refs::{RefDecision, RefFacts, RefValues, decide, ref_values, to_set};
use super::values::ExpireValues;
use crate::model::lineage::Lineage;
use crate::model::{Age, DroppedRef, Ref, RefKind, RefName, SnapshotId, TableState, Timestamp};

/// One decision for every ref and every snapshot of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionPlan {
    /// What it was decided with.
    pub values: ExpireValues,
    /// And on these facts.
    pub facts: RefFacts,
    /// Sorted by name.
    pub refs: Vec<RefDecision>,
    /// Refs that get retention written to them, as they should be; sorted by name.
    pub to_set: Vec<(RefName, Ref)>,
    /// Sorted by time, then id.
    pub snapshots: Vec<SnapshotDecision>,
    /// Named by the operator, but not in the table.
    pub unknown: Vec<SnapshotId>,
}

/// What becomes of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotDecision {
    /// Its id.
    pub id: SnapshotId,
    /// When it was committed.
    pub at: Timestamp,
    /// Keep or expire, and why.
    pub verdict: SnapshotVerdict,
}

/// Keep or expire a snapshot, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "because")]
pub enum SnapshotVerdict {
    /// A retained branch or tag points at it.
    KeepHead(RefName),
    /// It is on this branch and young enough.
    KeepWithinAge(RefName),
    /// It is among the newest that this branch keeps.
    KeepAmongNewest(RefName),
    /// This branch left `main` there.
    KeepForkPoint(RefName),
    /// A ref that is dropped, or was not long ago, keeps it.
    KeepDropped {
        /// Which.
        name: RefName,
        /// From then on it no longer does.
        until: Timestamp,
    },
    /// It is on no ref, and young.
    KeepYoungUnreferenced,
    /// It is history only of refs that stay [for now](super::refs::RefVerdict::is_spared), and young: without those refs it would
    /// be on none, and stay. Keeping a ref must not take what dropping it would leave.
    KeepYoungSpared,
    /// It is younger than the floor.
    KeepFloor,
    /// It goes.
    Expire(ExpiredBecause),
}

/// Why a snapshot goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpiredBecause {
    /// It is history of a retained branch, beyond its age and number.
    OlderThanAge,
    /// No ref but this one, which is dropped, leads to it.
    OnlyOnDropped(RefName),
    /// It was only on this branch, which has been gone for longer than the drop grace.
    OnlyOnGone(RefName),
    /// No ref leads to it, and it is old.
    Unreferenced,
    /// The operator named it.
    Named,
}

/// The operator named a snapshot that cannot go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("snapshot {snapshot} cannot be expired: it is the head of {}; drop or move that first", refs.join(", "))]
pub struct NamedHead {
    /// Which.
    pub snapshot: SnapshotId,
    /// The refs that point at it.
    pub refs: Vec<String>,
}

impl RetentionPlan {
    /// The refs that go, by name.
    pub fn dropped_refs(&self) -> impl Iterator<Item = &RefDecision> {
        self.refs.iter().filter(|decision| decision.verdict.drops())
    }

    /// The snapshots that go, oldest first.
    pub fn expired(&self) -> impl Iterator<Item = &SnapshotDecision> {
        self.snapshots.iter().filter(|decision| matches!(decision.verdict, SnapshotVerdict::Expire(_)))
    }

    /// Whether anything stays that would go but for a policy or an operator's word about it.
    pub fn spares(&self) -> bool {
        self.refs.iter().any(|decision| decision.verdict.is_spared())
    }

    /// The names of the refs that go by our own word (safety rule 15).
    pub fn dropped_alone(&self) -> Vec<&RefName> {
        let alone = self.dropped_refs().filter(|decision| decision.drops_the_ref_alone());
        alone.map(|decision| &decision.name).collect()
    }

    /// Whether nothing goes.
    pub fn is_empty(&self) -> bool {
        self.dropped_refs().next().is_none() && self.expired().next().is_none()
    }
}

/// Decides for every ref and snapshot of this table.
pub fn plan(state: &TableState, values: &ExpireValues, facts: &RefFacts) -> Result<RetentionPlan, NamedHead> {
    let lineage = Lineage::new(&state.snapshots);
    let refs: Vec<RefDecision> =
        state.refs.iter().map(|(name, r)| decide(name, r, lineage.get(r.snapshot), values, facts)).collect();
    let kept = || refs.iter().filter(|decision| !decision.verdict.drops());
    let kept_refs: Vec<Keeper<'_>> = kept().map(|decision| Keeper::of(decision, facts)).collect();
    // What goes by our own word keeps what it kept for a while, and so does what went by it.
    let just_gone = |dropped: &&DroppedRef| values.now < dropped.at.plus(values.drop_grace);
    let gone: Vec<(&DroppedRef, RefValues)> =
        facts.dropped.iter().map(|dropped| (dropped, ref_values(&dropped.name, &dropped.r, values, facts))).collect();
    let mut dropped_keepers: Vec<(Keeper<'_>, Timestamp)> = Vec::new();
    if values.drop_grace > Age::ZERO {
        let until = values.now.plus(values.drop_grace);
        let going = refs.iter().filter(|decision| decision.drops_the_ref_alone());
        dropped_keepers.extend(going.map(|decision| (Keeper::of(decision, facts), until)));
    }
    for (dropped, of_ref) in gone.iter().filter(|(dropped, _)| dropped.by.is_some() && just_gone(dropped)) {
        dropped_keepers.push((Keeper::gone(dropped, of_ref), dropped.at.plus(values.drop_grace)));
    }
    named_heads(&kept_refs, &dropped_keepers, values)?;

    let retained = retained(&lineage, &kept_refs, values);
    let by_dropped = retained_by_dropped(&lineage, &dropped_keepers, values);
    let led_to = lineage.led_to(kept().filter_map(|decision| state.refs.get(&decision.name)));
    let by_age = kept().filter(|decision| !decision.verdict.is_spared());
    let referenced = lineage.led_to(by_age.filter_map(|decision| state.refs.get(&decision.name)));
    let dropped: Vec<&RefDecision> = refs.iter().filter(|decision| decision.verdict.drops()).collect();
    let on_dropped = only_on_dropped(&lineage, &dropped, &led_to);
    let long_gone = facts.dropped.iter().filter(|dropped| !just_gone(dropped));
    // Also what a ref led to that goes in this plan, or went not long ago: that is freed by its own drop.
    let young_gone = facts.dropped.iter().filter(just_gone).map(|dropped| &dropped.r);
    let held = lineage.led_to(state.refs.values().chain(young_gone));
    let on_gone = only_on_gone(state, &lineage, long_gone, &held);
    let floor_cutoff = values.now.minus(values.floor);
    let default_cutoff = values.now.minus(values.older_than.value.max(values.floor));

    let mut snapshots: Vec<SnapshotDecision> = state
        .snapshots
        .iter()
        .map(|snapshot| {
            // Inclusive as the cutoffs are: a snapshot exactly as old as the floor may go.
            let under_floor = snapshot.at > floor_cutoff;
            let verdict = if values.snapshots.contains(&snapshot.id) && !under_floor {
                SnapshotVerdict::Expire(ExpiredBecause::Named)
            } else if let Some(kept) = retained.get(&snapshot.id) {
                kept.clone()
            } else if let Some(kept) = by_dropped.get(&snapshot.id) {
                kept.clone()
            } else if under_floor {
                SnapshotVerdict::KeepFloor
            } else if let Some(name) = on_gone.get(&snapshot.id) {
                SnapshotVerdict::Expire(ExpiredBecause::OnlyOnGone((*name).clone()))
            } else if referenced.contains(&snapshot.id) {
                SnapshotVerdict::Expire(ExpiredBecause::OlderThanAge)
            } else if snapshot.at >= default_cutoff {
                if led_to.contains(&snapshot.id) {
                    SnapshotVerdict::KeepYoungSpared
                } else {
                    SnapshotVerdict::KeepYoungUnreferenced
                }
            } else if led_to.contains(&snapshot.id) {
                SnapshotVerdict::Expire(ExpiredBecause::OlderThanAge)
            } else {
                SnapshotVerdict::Expire(match on_dropped.get(&snapshot.id) {
                    Some(name) => ExpiredBecause::OnlyOnDropped((*name).clone()),
                    None => ExpiredBecause::Unreferenced,
                })
            };
            SnapshotDecision { id: snapshot.id, at: snapshot.at, verdict }
        })
        .collect();
    snapshots.sort_by_key(|decision| (decision.at, decision.id));
    let unknown = values.snapshots.iter().copied().filter(|id| lineage.get(*id).is_none()).collect();
    let to_set = to_set(state, &refs, values);
    Ok(RetentionPlan { values: values.clone(), facts: facts.clone(), refs, to_set, snapshots, unknown })
}

/// A ref, and what it keeps by which values.
struct Keeper<'a> {
    name: &'a RefName,
    kind: RefKind,
    head: SnapshotId,
    values: &'a RefValues,
    fork_point: Option<SnapshotId>,
}

impl<'a> Keeper<'a> {
    fn of(decision: &'a RefDecision, facts: &RefFacts) -> Self {
        let RefDecision { name, kind, snapshot, values, .. } = decision;
        let fork_point = facts.fork_points.get(name).copied();
        Self { name, kind: *kind, head: *snapshot, values, fork_point }
    }

    fn gone(dropped: &'a DroppedRef, values: &'a RefValues) -> Self {
        let Ref { snapshot: head, kind, .. } = dropped.r;
        Self { name: &dropped.name, kind, head, values, fork_point: dropped.fork_point }
    }
}

fn named_heads(
    kept_refs: &[Keeper<'_>],
    dropped: &[(Keeper<'_>, Timestamp)],
    values: &ExpireValues,
) -> Result<(), NamedHead> {
    for snapshot in &values.snapshots {
        let kept = kept_refs.iter().filter(|keeper| keeper.head == *snapshot);
        let kept = kept.map(|keeper| format!("{} {}", keeper.kind.as_str(), keeper.name));
        let dropped = dropped.iter().filter(|(keeper, _)| keeper.head == *snapshot).map(|(keeper, until)| {
            format!("{} {}, dropped, which can be restored until {}", keeper.kind.as_str(), keeper.name, until.show())
        });
        let refs: Vec<String> = kept.chain(dropped).collect();
        if !refs.is_empty() {
            return Err(NamedHead { snapshot: *snapshot, refs });
        }
    }
    Ok(())
}

/// What refs keep, each with the first reason in the order: head, age, number, base; `main` before others.
fn retained(
    lineage: &Lineage<'_>,
    keepers: &[Keeper<'_>],
    values: &ExpireValues,
) -> BTreeMap<SnapshotId, SnapshotVerdict> {
    let mut kept: BTreeMap<SnapshotId, SnapshotVerdict> = BTreeMap::new();
    let mut keep = |id: SnapshotId, verdict: SnapshotVerdict| {
        let better = kept.get(&id).is_none_or(|old| rank(&verdict) < rank(old));
        if better {
            kept.insert(id, verdict);
        }
    };
    // What a walk still keeps from a snapshot on: what is not older, and so many. Hundreds of branches lead to one long
    // main, which is walked once.
    let mut walked: HashMap<SnapshotId, (Timestamp, i64)> = HashMap::new();
    for keeper in keepers {
        let name = keeper.name;
        keep(keeper.head, SnapshotVerdict::KeepHead(name.clone()));
        let RefValues { retain_last: Some(minimum), older_than: Some(age), .. } = keeper.values else { continue };
        if let Some(base) = keeper.fork_point.filter(|_| values.keep_fork_points) {
            keep(base, SnapshotVerdict::KeepForkPoint(name.clone()));
        }
        let cutoff = values.now.minus(age.value.max(values.floor));
        for (count, snapshot) in (0_i64..).zip(lineage.ancestors(keeper.head)) {
            let left = (minimum.value - count).max(0);
            let covers = |(other_cutoff, other_left): &(Timestamp, i64)| *other_cutoff <= cutoff && *other_left >= left;
            // Reasons name main first, so its own walk is made to the end.
            if !name.is_main() && walked.get(&snapshot.id).is_some_and(covers) {
                break;
            }
            walked.insert(snapshot.id, (cutoff, left));
            if snapshot.at >= cutoff {
                keep(snapshot.id, SnapshotVerdict::KeepWithinAge(name.clone()));
            } else if count < minimum.value {
                keep(snapshot.id, SnapshotVerdict::KeepAmongNewest(name.clone()));
            } else {
                break;
            }
        }
    }
    kept
}

/// What refs keep that are dropped, or were not long ago; of several the one that keeps it longest.
fn retained_by_dropped(
    lineage: &Lineage<'_>,
    dropped: &[(Keeper<'_>, Timestamp)],
    values: &ExpireValues,
) -> BTreeMap<SnapshotId, SnapshotVerdict> {
    let mut kept: BTreeMap<SnapshotId, (Timestamp, RefName)> = BTreeMap::new();
    for (keeper, until) in dropped {
        for id in retained(lineage, std::slice::from_ref(keeper), values).into_keys() {
            let longest = kept.entry(id).or_insert_with(|| (*until, keeper.name.clone()));
            if *until > longest.0 {
                *longest = (*until, keeper.name.clone());
            }
        }
    }
    kept.into_iter().map(|(id, (until, name))| (id, SnapshotVerdict::KeepDropped { name, until })).collect()
}

fn rank(verdict: &SnapshotVerdict) -> (u8, bool) {
    let (kind, name) = match verdict {
        SnapshotVerdict::KeepHead(name) => (0, Some(name)),
        SnapshotVerdict::KeepWithinAge(name) => (1, Some(name)),
        SnapshotVerdict::KeepAmongNewest(name) => (2, Some(name)),
        SnapshotVerdict::KeepForkPoint(name) => (3, Some(name)),
        _ => (4, None),
    };
    (kind, !name.is_some_and(RefName::is_main))
}

fn only_on_dropped<'d>(
    lineage: &Lineage<'_>,
    dropped: &[&'d RefDecision],
    referenced: &HashSet<SnapshotId>,
) -> BTreeMap<SnapshotId, &'d RefName> {
    let mut on = BTreeMap::new();
    for decision in dropped {
        for (depth, snapshot) in lineage.ancestors(decision.snapshot).enumerate() {
            if referenced.contains(&snapshot.id) || (depth > 0 && decision.kind == RefKind::Tag) {
                break;
            }
            on.entry(snapshot.id).or_insert(&decision.name);
        }
    }
    on
}

/// The snapshots that were only on branches that are gone. A walk ends where the branch left `main`, at what any ref
/// leads to, and at what `main` ever pointed at: that a rollback left behind is no branch's own.
fn only_on_gone<'d>(
    state: &TableState,
    lineage: &Lineage<'_>,
    gone: impl Iterator<Item = &'d DroppedRef>,
    held: &HashSet<SnapshotId>,
) -> BTreeMap<SnapshotId, &'d RefName> {
    let was_main: HashSet<SnapshotId> = state.snapshot_log.iter().copied().collect();
    let mut on = BTreeMap::new();
    // Where nobody knows where it left main, nobody knows what was its own.
    let known = |dropped: &&DroppedRef| dropped.r.kind == RefKind::Branch && dropped.fork_point.is_some();
    for dropped in gone.filter(known) {
        let own = lineage
            .ancestors(dropped.r.snapshot)
            .map(|snapshot| snapshot.id)
            .take_while(|id| dropped.fork_point != Some(*id) && !held.contains(id) && !was_main.contains(id));
        own.for_each(|id| {
            on.entry(id).or_insert(&dropped.name);
        });
    }
    on
}

/// The snapshots and refs that went from `before` to `after`: what a commit really removed.
pub fn removed(before: &TableState, after: &TableState) -> (BTreeSet<RefName>, BTreeSet<SnapshotId>) {
    let left = after.snapshot_ids();
    let refs = before.refs.keys().filter(|name| !after.refs.contains_key(*name)).cloned().collect();
    let snapshots = before.snapshots.iter().map(|snapshot| snapshot.id).filter(|id| !left.contains(id)).collect();
    (refs, snapshots)
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
