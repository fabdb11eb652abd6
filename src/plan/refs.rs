//! Which refs go, and with which retention the others stay.
//!
//! - `main` stays, and no rule of a policy speaks of it.
//! - Any other ref stays while the age of its head is at most its maximal age: its own, else that of its policy's
//!   rule, else the table's. With `ref_age = "created"` it also stays while its creation is not longer ago.
//! - It goes, whatever its head, when its creation is longer ago than the `max_lifetime` of its rule.
//! - A ref to a snapshot that is not there goes. A rule's `protected` keeps any ref.
//! - Retention that a ref lost while its head moved counts as its own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{ExpireValues, Source, Sourced, pick};
use crate::config::RefRule;
use crate::config::policy::Sourced as FromPolicy;
use crate::model::lineage::Lineage;
use crate::model::{Age, Creation, DroppedRef, Ref, RefKind, RefName, Retention, Snapshot, SnapshotId, TableState};

/// What is known of a table's refs beside its metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefFacts {
    /// Ages of refs count from their creation, where that is later than their head's commit.
    pub by_creation: bool,
    /// When each of the refs to [look up](look_up) was created. One that is missing, or that has another head now,
    /// counts as created now.
    pub created: BTreeMap<RefName, Creation>,
    /// The refs that lost some of their retention, as they would be with it.
    pub in_force: BTreeMap<RefName, Ref>,
    /// Where each branch left `main`.
    pub fork_points: BTreeMap<RefName, SnapshotId>,
    /// Refs that are gone, and whose snapshots are on no other.
    pub dropped: Vec<DroppedRef>,
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
    /// What it was decided with.
    pub values: RefValues,
    /// Keep or drop, and why.
    pub verdict: RefVerdict,
}

/// The retention of a ref, each value with its source; the floor is not in it yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct RefValues {
    /// It goes when its head is older; `None` is never.
    pub max_age: Option<Sourced<Age>>,
    /// It goes when it was created longer ago; `None` is never.
    pub max_lifetime: Option<Sourced<Age>>,
    /// A branch keeps this many of its newest snapshots.
    pub retain_last: Option<Sourced<i64>>,
    /// A branch keeps what is not older.
    pub older_than: Option<Sourced<Age>>,
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
    /// Nothing gives it an age, and its lifetime is not over.
    KeepAlive {
        /// Since it was created, as far as anybody knows.
        created: Age,
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
    /// Its lifetime is over.
    DropOutlived {
        /// Since it was created, at least.
        created: Age,
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
        matches!(self, Self::DropAged { .. } | Self::DropOutlived { .. } | Self::DropDangling)
    }

    /// Whether the ref stays although the age of its head, or what it points at, would let it go.
    pub fn is_spared(&self) -> bool {
        matches!(self, Self::KeepProtected { .. } | Self::KeepNew { .. })
    }
}

impl RefDecision {
    /// Whether the ref goes by our own word, not by the table's: then its snapshots stay for a while, and it can be
    /// set again (safety rule 15).
    pub fn drops_the_ref_alone(&self) -> bool {
        match &self.verdict {
            RefVerdict::DropOutlived { .. } => true,
            RefVerdict::DropAged { .. } => {
                let source = self.values.max_age.as_ref().map(|limit| &limit.source);
                matches!(source, Some(Source::Lost | Source::Rule { .. }))
            }
            _ => false,
        }
    }
}

/// Decides for a ref; `head` is its snapshot, where the table has it.
pub fn decide(
    name: &RefName,
    r: &Ref,
    head: Option<&Snapshot>,
    values: &ExpireValues,
    facts: &RefFacts,
) -> RefDecision {
    let of_ref = ref_values(name, r, values, facts);
    let verdict = verdict(name, r, head, &of_ref, values, facts);
    RefDecision { name: name.clone(), kind: r.kind, snapshot: r.snapshot, values: of_ref, verdict }
}

/// The refs whose creation must be found out, each with the age from which it does not matter how much older it is.
pub fn look_up(state: &TableState, values: &ExpireValues, facts: &RefFacts) -> BTreeMap<RefName, Age> {
    let lineage = Lineage::new(&state.snapshots);
    let by_heads = RefFacts { by_creation: false, created: BTreeMap::new(), ..facts.clone() };
    let wanted = |(name, r): (&RefName, &Ref)| {
        let decision = decide(name, r, lineage.get(r.snapshot), values, &by_heads);
        let aged = match decision.verdict {
            RefVerdict::DropAged { limit, .. } if facts.by_creation => Some(limit.value),
            _ => None,
        };
        let lifetime = decision.values.max_lifetime.filter(|_| {
            lineage.get(r.snapshot).is_some() && values.rules.protecting(r.kind, name).is_none() && !name.is_main()
        });
        let limit = aged.max(lifetime.map(|limit| limit.value.max(values.floor)))?;
        Some((name.clone(), limit))
    };
    state.refs.iter().filter_map(wanted).collect()
}

/// What the refs that lost some of their retention would have written to them again, and what a rule with
/// `set_retention` writes to those that have none: the ref as it should be.
pub fn to_set(state: &TableState, decisions: &[RefDecision], values: &ExpireValues) -> Vec<(RefName, Ref)> {
    let wanted = |decision: &RefDecision| {
        let (name, r) = state.refs.get_key_value(&decision.name)?;
        let rule = rule_for(name, r.kind, values)?;
        // One that is protected here would go by another tool's expiry.
        let is_protected = values.rules.protecting(r.kind, name).is_some();
        if rule.value.set_retention != Some(true) || is_protected || decision.verdict.drops() {
            return None;
        }
        let ours = |source: &Source| matches!(source, Source::Lost | Source::Rule { .. });
        let RefValues { max_age, retain_last, older_than, .. } = &decision.values;
        let age = |value: &Option<Sourced<Age>>| {
            let ours = value.as_ref().filter(|value| ours(&value.source));
            ours.map(|value| value.value.max(values.floor).0).filter(|ms| *ms > 0)
        };
        // One that lives by its creation alone would go by its head at another tool's expiry.
        let max_age = if decision.verdict.is_spared() { &None } else { max_age };
        let is_branch = r.kind == RefKind::Branch;
        // What Iceberg's metadata has room for.
        let most = i64::from(i32::MAX);
        let count = retain_last
            .as_ref()
            .filter(|value| ours(&value.source))
            .map(|value| value.value.min(most))
            .filter(|count| *count > 0);
        let retention = Retention {
            max_ref_age_ms: r.retention.max_ref_age_ms.or_else(|| age(max_age)),
            min_snapshots_to_keep: r.retention.min_snapshots_to_keep.or(count.filter(|_| is_branch)),
            max_snapshot_age_ms: r.retention.max_snapshot_age_ms.or_else(|| age(older_than).filter(|_| is_branch)),
        };
        (retention != r.retention).then(|| (name.clone(), Ref { retention, ..r.clone() }))
    };
    decisions.iter().filter_map(wanted).collect()
}

/// The first rule of the policies for this ref. None speaks of `main`.
fn rule_for(name: &RefName, kind: RefKind, values: &ExpireValues) -> Option<FromPolicy<RefRule>> {
    if name.is_main() { None } else { values.rules.rule_for(kind, name) }
}

/// The retention of a ref: its own, what it lost, the request's, its rule's, the table's, name by name.
pub(super) fn ref_values(name: &RefName, r: &Ref, values: &ExpireValues, facts: &RefFacts) -> RefValues {
    let lost = facts.in_force.get(name).filter(|lost| lost.snapshot == r.snapshot && lost.kind == r.kind);
    let own = |setting: fn(&Retention) -> Option<i64>| {
        let lost = || Some(Sourced::new(setting(&lost?.retention)?, Source::Lost));
        setting(&r.retention).map(|value| Sourced::new(value, Source::Ref)).or_else(lost)
    };
    let age = |value: Sourced<i64>| Sourced::new(Age(value.value), value.source);
    let rule = rule_for(name, r.kind, values);
    let by_rule = || {
        let rule = rule.as_ref()?;
        Some(Source::Rule { policy: rule.pattern.to_string(), rule: rule.value.name.to_string() })
    };
    let rule_age = |setting: fn(&RefRule) -> Option<Age>| {
        let value = setting(&rule.as_ref()?.value)?;
        Some(Sourced::new(value, by_rule()?))
    };
    let property_age = values.max_ref_age.value.map(|age| Sourced::new(age, values.max_ref_age.source.clone()));
    // What the rule itself wrote to the ref is the rule's word still.
    let is_written = |own: &Sourced<i64>| {
        let rule = rule.as_ref().map(|rule| &rule.value).filter(|rule| rule.set_retention == Some(true));
        own.source == Source::Ref
            && rule.and_then(|rule| rule.max_age).is_some_and(|age| age.max(values.floor).0 == own.value)
    };
    let max_age = own(|own| own.max_ref_age_ms);
    let max_age = max_age.map(|own| match by_rule().filter(|_| is_written(&own)) {
        Some(source) => Sourced::new(Age(own.value), source),
        None => age(own),
    });
    let max_age = max_age.or_else(|| pick(rule_age(|rule| rule.max_age), property_age, values.override_table));
    let max_lifetime = rule_age(|rule| rule.max_lifetime);
    let (mut retain_last, mut older_than) = (None, None);
    if r.kind == RefKind::Branch {
        let by_rule = rule.as_ref().and_then(|rule| rule.value.retain_last).zip(by_rule());
        let by_rule = by_rule.map(|(count, source)| Sourced::new(i64::from(count), source));
        let property = values
            .min_snapshots_property
            .map(|min| Sourced::new(min, Source::Property(super::values::MIN_SNAPSHOTS.to_owned())));
        let is_asked_for = values.retain_last.source == Source::Request;
        let ruled =
            by_rule.filter(|_| !is_asked_for).and_then(|rule| pick(Some(rule), property, values.override_table));
        let of_table = || values.retain_last.clone();
        retain_last = Some(own(|own| own.min_snapshots_to_keep).or(ruled).unwrap_or_else(of_table));
        older_than = Some(own(|own| own.max_snapshot_age_ms).map_or_else(|| values.older_than.clone(), age));
    }
    RefValues { max_age, max_lifetime, retain_last, older_than }
}

fn verdict(
    name: &RefName,
    r: &Ref,
    head: Option<&Snapshot>,
    of_ref: &RefValues,
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
    let clamped = |limit: &Option<Sourced<Age>>| {
        let limit = limit.clone()?;
        Some(if limit.value < values.floor { Sourced::new(values.floor, Source::Floor) } else { limit })
    };
    let age = values.now.since(head.at);
    let known = facts.created.get(name).filter(|creation| creation.head == r.snapshot);
    let created = known.map_or(Age::ZERO, |creation| values.now.since(creation.at));
    let max_age = clamped(&of_ref.max_age);
    let lifetime = clamped(&of_ref.max_lifetime);
    let outlived = lifetime.clone().filter(|limit| created > limit.value);
    let drop = match (&max_age, outlived) {
        (Some(limit), _) if age > limit.value && !(facts.by_creation && created <= limit.value) => {
            Some(RefVerdict::DropAged { age, limit: limit.clone() })
        }
        (_, Some(limit)) => Some(RefVerdict::DropOutlived { created, limit }),
        _ => None,
    };
    let is_old = max_age.as_ref().is_some_and(|limit| age > limit.value);
    if (drop.is_some() || is_old)
        && let Some(protected) = protected(Some(age))
    {
        return protected;
    }
    if let Some(drop) = drop {
        return drop;
    }
    match (max_age, lifetime) {
        (Some(limit), _) if is_old => RefVerdict::KeepNew { age, created, limit },
        (Some(limit), _) => RefVerdict::KeepYoung { age, limit },
        (None, Some(limit)) => RefVerdict::KeepAlive { created, limit },
        (None, None) => RefVerdict::KeepNoAge,
    }
}
