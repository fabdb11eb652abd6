//! Which refs and snapshots go: equal to Java's `RemoveSnapshots`, with the floor of safety rule 5 on top.
//!
//! - `main` stays. Any other ref stays while the age of its head is at most its `max-ref-age` (its own, else
//!   the table's). With `ref_age = "created"` it also stays while its creation is not longer ago. A ref to a snapshot that is not there goes. A policy's `protected` keeps either.
//! - The head of every retained ref stays.
//! - A retained branch keeps ancestors from its head on, while fewer than its minimum are kept or the snapshot
//!   is not older than its age; the walk ends at the first that fails both. The cutoff is inclusive.
//! - A tag keeps its own snapshot, never an ancestor.
//! - A snapshot on no retained ref (staged, rolled back, of a dropped branch) stays until the default age.
//! - Snapshots named by the operator go, unless they are the head of a retained ref: that is an error.
//! - No snapshot younger than the floor goes, whatever any setting says.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{ExpireValues, Source, Sourced};
use crate::model::lineage::Lineage;
use crate::model::{Age, Creation, Ref, RefKind, RefName, Snapshot, SnapshotId, TableState, Timestamp};

/// One decision for every ref and every snapshot of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionPlan {
    /// What it was decided with.
    pub values: ExpireValues,
    /// And on these facts.
    pub facts: RefFacts,
    /// Sorted by name.
    pub refs: Vec<RefDecision>,
    /// Sorted by time, then id.
    pub snapshots: Vec<SnapshotDecision>,
    /// Named by the operator, but not in the table.
    pub unknown: Vec<SnapshotId>,
}

/// What is known of a table's refs beside its metadata. All of it only ever keeps more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefFacts {
    /// When each of the refs that are too [`aged`] was created. One that is missing, or that has another head now,
    /// counts as created now. `None`: ages count from the head alone, as in the specification.
    pub created: Option<BTreeMap<RefName, Creation>>,
}

/// What becomes of a ref.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct RefDecision {
    /// Its name.
    pub name: RefName,
    /// Branch or tag.
    pub kind: RefKind,
    /// What it points at.
    pub snapshot: SnapshotId,
    /// Keep or drop, and why.
    pub verdict: RefVerdict,
}

/// Keep or drop a ref, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "because")]
pub enum RefVerdict {
    /// `main` never goes.
    KeepMain,
    /// Nothing gives it an age.
    KeepNoAge,
    /// Its head is young enough.
    KeepYoung {
        /// Of its head.
        age: Age,
        /// Allowed.
        limit: Sourced<Age>,
    },
    /// Its head is too old.
    DropAged {
        /// Of its head.
        age: Age,
        /// Allowed.
        limit: Sourced<Age>,
    },
    /// It points at a snapshot that the table does not have.
    DropDangling,
    /// Its head is too old, but the ref itself was created later, and is young enough.
    KeepNew {
        /// Of its head.
        age: Age,
        /// Since it was created.
        created: Age,
        /// Allowed.
        limit: Sourced<Age>,
    },
    /// It would go, but a policy protects it.
    KeepProtected {
        /// The pattern of the policy's `tables`.
        policy: String,
        /// The pattern of the rule's `name`.
        rule: String,
        /// Of its head, where the table has it.
        age: Option<Age>,
    },
}

impl RefVerdict {
    /// Whether the ref goes.
    pub fn drops(&self) -> bool {
        matches!(self, Self::DropAged { .. } | Self::DropDangling)
    }

    /// Whether the ref stays although the age of its head, or what it points at, would let it go.
    pub fn is_spared(&self) -> bool {
        matches!(self, Self::KeepProtected { .. } | Self::KeepNew { .. })
    }
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
    /// It is on no ref, and young.
    KeepYoungUnreferenced,
    /// It is history only of refs that stay [for now](RefVerdict::is_spared), and young: without those refs it would
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

    /// Whether nothing goes.
    pub fn is_empty(&self) -> bool {
        self.dropped_refs().next().is_none() && self.expired().next().is_none()
    }
}

/// Decides for every ref and snapshot of this table.
pub fn plan(state: &TableState, values: &ExpireValues, facts: &RefFacts) -> Result<RetentionPlan, NamedHead> {
    let lineage = Lineage::new(&state.snapshots);
    let refs: Vec<RefDecision> = state
        .refs
        .iter()
        .map(|(name, r)| RefDecision {
            name: name.clone(),
            kind: r.kind,
            snapshot: r.snapshot,
            verdict: ref_verdict(name, r, lineage.get(r.snapshot), values, facts),
        })
        .collect();
    let kept_refs: Vec<(&RefName, &Ref)> = refs
        .iter()
        .filter(|decision| !decision.verdict.drops())
        .filter_map(|decision| state.refs.get_key_value(&decision.name))
        .collect();
    named_heads(&kept_refs, values)?;

    let retained = retained(&lineage, &kept_refs, values);
    let led_to = referenced(&lineage, &kept_refs);
    let is_spared = |name: &RefName| refs.iter().any(|decision| decision.name == *name && decision.verdict.is_spared());
    let by_age: Vec<(&RefName, &Ref)> = kept_refs.iter().filter(|(name, _)| !is_spared(name)).copied().collect();
    let referenced = referenced(&lineage, &by_age);
    let dropped: Vec<&RefDecision> = refs.iter().filter(|decision| decision.verdict.drops()).collect();
    let on_dropped = only_on_dropped(&lineage, &dropped, &led_to);
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
            } else if under_floor {
                SnapshotVerdict::KeepFloor
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
    Ok(RetentionPlan { values: values.clone(), facts: facts.clone(), refs, snapshots, unknown })
}

/// The refs that are dropped if their age counts from their head alone, with the age allowed: those whose creation
/// must be found out.
pub fn aged(state: &TableState, values: &ExpireValues) -> BTreeMap<RefName, Age> {
    let lineage = Lineage::new(&state.snapshots);
    let facts = RefFacts::default();
    let limits =
        state.refs.iter().filter_map(|(name, r)| match ref_verdict(name, r, lineage.get(r.snapshot), values, &facts) {
            RefVerdict::DropAged { limit, .. } => Some((name.clone(), limit.value)),
            _ => None,
        });
    limits.collect()
}

fn ref_verdict(
    name: &RefName,
    r: &Ref,
    head: Option<&Snapshot>,
    values: &ExpireValues,
    facts: &RefFacts,
) -> RefVerdict {
    if name.is_main() {
        return RefVerdict::KeepMain;
    }
    let protected = |age| {
        let by = values.rules.protecting(r.kind, name)?;
        Some(RefVerdict::KeepProtected { policy: by.pattern.to_string(), rule: by.value.to_string(), age })
    };
    let Some(head) = head else { return protected(None).unwrap_or(RefVerdict::DropDangling) };
    let own = r.retention.max_ref_age_ms.map(|ms| Sourced::new(Age(ms), Source::Ref));
    let table = values.max_ref_age.value.map(|age| Sourced::new(age, values.max_ref_age.source.clone()));
    let Some(limit) = own.or(table) else { return RefVerdict::KeepNoAge };
    let limit = if limit.value < values.floor { Sourced::new(values.floor, Source::Floor) } else { limit };
    let age = values.now.since(head.at);
    if age <= limit.value {
        return RefVerdict::KeepYoung { age, limit };
    }
    if let Some(protected) = protected(Some(age)) {
        return protected;
    }
    if let Some(all) = &facts.created {
        let known = all.get(name).filter(|creation| creation.head == r.snapshot);
        let created = known.map_or(Age::ZERO, |creation| values.now.since(creation.at));
        if created <= limit.value {
            return RefVerdict::KeepNew { age, created, limit };
        }
    }
    RefVerdict::DropAged { age, limit }
}

fn named_heads(kept_refs: &[(&RefName, &Ref)], values: &ExpireValues) -> Result<(), NamedHead> {
    for snapshot in &values.snapshots {
        let refs: Vec<String> = kept_refs
            .iter()
            .filter(|(_, r)| r.snapshot == *snapshot)
            .map(|(name, r)| format!("{} {name}", r.kind.as_str()))
            .collect();
        if !refs.is_empty() {
            return Err(NamedHead { snapshot: *snapshot, refs });
        }
    }
    Ok(())
}

/// What retained refs keep, each with the first reason in the order: head, age, number; `main` before others.
fn retained(
    lineage: &Lineage<'_>,
    kept_refs: &[(&RefName, &Ref)],
    values: &ExpireValues,
) -> BTreeMap<SnapshotId, SnapshotVerdict> {
    let mut kept: BTreeMap<SnapshotId, SnapshotVerdict> = BTreeMap::new();
    let mut keep = |id: SnapshotId, verdict: SnapshotVerdict| {
        let better = kept.get(&id).is_none_or(|old| rank(&verdict) < rank(old));
        if better {
            kept.insert(id, verdict);
        }
    };
    for (name, r) in kept_refs {
        keep(r.snapshot, SnapshotVerdict::KeepHead((*name).clone()));
        if r.kind == RefKind::Tag {
            continue;
        }
        let minimum = r.retention.min_snapshots_to_keep.unwrap_or(values.retain_last.value);
        let age = r.retention.max_snapshot_age_ms.map_or(values.older_than.value, Age).max(values.floor);
        let cutoff = values.now.minus(age);
        for (count, snapshot) in (0_i64..).zip(lineage.ancestors(r.snapshot)) {
            if snapshot.at >= cutoff {
                keep(snapshot.id, SnapshotVerdict::KeepWithinAge((*name).clone()));
            } else if count < minimum {
                keep(snapshot.id, SnapshotVerdict::KeepAmongNewest((*name).clone()));
            } else {
                break;
            }
        }
    }
    kept
}

fn rank(verdict: &SnapshotVerdict) -> (u8, bool) {
    let (kind, name) = match verdict {
        SnapshotVerdict::KeepHead(name) => (0, Some(name)),
        SnapshotVerdict::KeepWithinAge(name) => (1, Some(name)),
        SnapshotVerdict::KeepAmongNewest(name) => (2, Some(name)),
        _ => (3, None),
    };
    (kind, !name.is_some_and(RefName::is_main))
}

/// Every ancestor of a retained branch, and the target of every retained tag.
fn referenced(lineage: &Lineage<'_>, kept_refs: &[(&RefName, &Ref)]) -> HashSet<SnapshotId> {
    let mut all: HashSet<SnapshotId> = HashSet::new();
    let mut walked: HashSet<SnapshotId> = HashSet::new();
    for (_, r) in kept_refs {
        if r.kind == RefKind::Branch {
            // Where another branch was walked already, so was the rest.
            walked.extend(
                lineage.ancestors(r.snapshot).map(|s| s.id).take_while(|id| !walked.contains(id)).collect::<Vec<_>>(),
            );
        } else {
            all.insert(r.snapshot);
        }
    }
    all.extend(walked);
    all
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
