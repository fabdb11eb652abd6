//! Which policy applies to which table and ref: key by key the most literal pattern wins; between equally
//! literal ones the safer value does, the one that keeps more.

use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::problem::Position;
use crate::model::{Age, RefKind, RefName, TableName};

/// A name pattern; `*` matches any text, dots included.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches `namespace.table` or `catalog.namespace.table`.
    pub fn matches_table(&self, table: &TableName) -> bool {
        self.matches(&table.to_string()) || self.matches(&table.full())
    }

    /// Whether it matches this text, whole.
    pub fn matches(&self, text: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return self.0 == text };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = text.strip_prefix(start).and_then(|text| text.strip_suffix(end));
        // The earliest place of each part leaves the most room for the next.
        inner.is_some_and(|inner| {
            middle.split('*').try_fold(inner, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..])).is_some()
        })
    }

    /// How many of its characters stand for themselves.
    pub fn literal_count(&self) -> usize {
        self.0.chars().filter(|c| *c != '*').count()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One `[[policy]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// For which tables.
    pub tables: Vec<Pattern>,
    /// Where the file says `tables`.
    pub at: Position,
    /// What it says about branches, if it says anything; the first rule that matches a name counts.
    pub refs: Option<Vec<RefRule>>,
    /// What it says about expiry.
    pub expire: PolicyExpire,
    /// What it says about tags; the first rule that matches a name counts.
    pub tags: Option<Vec<RefRule>>,
    /// How far jobs go that no operator started.
    pub mode: Option<Mode>,
    /// Overrides the finding that another table shares the roots.
    pub exclusive: Option<Exclusive>,
}

/// A policy's `expire = { … }`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyExpire {
    /// Snapshots older than this may go.
    pub older_than: Option<Age>,
    /// A branch keeps this many.
    pub retain_last: Option<u32>,
    /// The policy wins even where it keeps less than the table's own properties say.
    pub override_table: Option<bool>,
}

/// A rule for the branches, or the tags, of one name pattern. A key that is not there says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefRule {
    /// For which refs.
    pub name: Pattern,
    /// A ref older than this is dropped.
    pub max_age: Option<Age>,
    /// A ref that was created longer ago than this is dropped.
    pub max_lifetime: Option<Age>,
    /// Branches only: what the close of its pull request means.
    pub on_pr_closed: Option<OnPrClosed>,
    /// Never dropped by a policy.
    pub protected: Option<bool>,
    /// Branches only: snapshots to keep.
    pub retain_last: Option<u32>,
    /// Writes the retention to a ref that has none.
    pub set_retention: Option<bool>,
}

/// What the close of a pull request means for its branch; from safest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPrClosed {
    /// Nothing.
    Keep,
    /// A finding.
    Report,
    /// The branch is dropped.
    Drop,
}

/// How far scheduled, webhook and reconcile jobs go; from safest on. A run that an operator starts with
/// `--apply` is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They only plan.
    Observe,
    /// They commit and mark.
    Mark,
    /// They delete too.
    Sweep,
}

/// A promise that the table's folders are its own, though they look shared (safety rule 6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exclusive {
    /// The tables that are really this one, or gone.
    pub uuids: Vec<Uuid>,
    /// For the audit log.
    pub reason: String,
}

/// A value and the pattern that it came by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Of the policy's `tables`, the one that matched.
    pub pattern: Pattern,
}

/// What the policies say about one table; `None` where none says anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EffectivePolicy {
    /// About expiry.
    pub expire: EffectiveExpire,
    /// How far jobs go that no operator started; [`EffectivePolicy::mode`] adds the default.
    pub mode: Option<Sourced<Mode>>,
    /// That the table's folders are its own.
    pub exclusive: Option<Sourced<Exclusive>>,
    /// The lists of rules for branches: one, or several of equally literal patterns.
    pub refs: Vec<Sourced<Vec<RefRule>>>,
    /// The lists of rules for tags, likewise.
    pub tags: Vec<Sourced<Vec<RefRule>>>,
}

/// What the policies say about one table's expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EffectiveExpire {
    /// Snapshots older than this may go.
    pub older_than: Option<Sourced<Age>>,
    /// A branch keeps this many.
    pub retain_last: Option<Sourced<u32>>,
    /// The policy wins even where it keeps less than the table's own properties say.
    pub override_table: Option<Sourced<bool>>,
}

impl EffectivePolicy {
    pub(super) fn of(policies: &[Policy], table: &TableName) -> Self {
        let matching: Vec<(&Policy, &Pattern)> = policies
            .iter()
            .filter_map(|policy| {
                let patterns = policy.tables.iter().filter(|pattern| pattern.matches_table(table));
                Some((policy, patterns.max_by_key(|pattern| pattern.literal_count())?))
            })
            .collect();
        Self {
            expire: EffectiveExpire {
                older_than: winner(&matching, |policy| policy.expire.older_than, Ord::max),
                retain_last: winner(&matching, |policy| policy.expire.retain_last, Ord::max),
                override_table: winner(&matching, |policy| policy.expire.override_table, Ord::min),
            },
            mode: winner(&matching, |policy| policy.mode, Ord::min),
            exclusive: winner(&matching, |policy| policy.exclusive.clone(), Exclusive::in_both),
            refs: most_literal(&matching, |policy| policy.refs.clone()),
            tags: most_literal(&matching, |policy| policy.tags.clone()),
        }
    }

    /// How far jobs go that no operator started: the policies' word, else all the way.
    pub fn mode(&self) -> Mode {
        self.mode.as_ref().map_or(Mode::Sweep, |mode| mode.value)
    }

    /// The rule for a ref of this name. In each list the first match counts; of several lists of equally
    /// literal patterns the safer value counts, key by key.
    pub fn rule_for(&self, kind: RefKind, name: &RefName) -> Option<Sourced<RefRule>> {
        let lists = match kind {
            RefKind::Branch => &self.refs,
            RefKind::Tag => &self.tags,
        };
        let firsts = lists.iter().filter_map(|list| {
            let first = list.value.iter().find(|rule| rule.name.matches(name.as_str()))?;
            Some(Sourced { value: first.clone(), pattern: list.pattern.clone() })
        });
        firsts.reduce(|left, right| Sourced { value: left.value.safer(right.value), pattern: left.pattern })
    }
}

/// The values of the most literal patterns among the policies that have one.
fn most_literal<T>(matching: &[(&Policy, &Pattern)], value: impl Fn(&Policy) -> Option<T>) -> Vec<Sourced<T>> {
    let mut best = Vec::new();
    let mut literals = 0;
    for (policy, pattern) in matching {
        let (Some(value), count) = (value(policy), pattern.literal_count()) else { continue };
        if count > literals {
            best.clear();
            literals = count;
        }
        if count == literals {
            best.push(Sourced { value, pattern: (*pattern).clone() });
        }
    }
    best
}

/// The value of the most literal pattern; the safer one of several.
fn winner<T: Clone + PartialEq>(
    matching: &[(&Policy, &Pattern)],
    value: impl Fn(&Policy) -> Option<T>,
    safer: impl Fn(T, T) -> T,
) -> Option<Sourced<T>> {
    most_literal(matching, value).into_iter().reduce(|left, right| {
        let value = safer(left.value.clone(), right.value.clone());
        let pattern = if value == left.value { left.pattern } else { right.pattern };
        Sourced { value, pattern }
    })
}

/// The safer of two values, the one there is if there is one.
fn both<T>(left: Option<T>, right: Option<T>, safer: impl Fn(T, T) -> T) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(safer(left, right)),
        (left, right) => left.or(right),
    }
}

impl RefRule {
    /// Of two rules for one ref, what keeps more, key by key.
    fn safer(self, other: Self) -> Self {
        Self {
            name: self.name,
            max_age: both(self.max_age, other.max_age, Ord::max),
            max_lifetime: both(self.max_lifetime, other.max_lifetime, Ord::max),
            on_pr_closed: both(self.on_pr_closed, other.on_pr_closed, Ord::min),
            protected: both(self.protected, other.protected, Ord::max),
            retain_last: both(self.retain_last, other.retain_last, Ord::max),
            set_retention: both(self.set_retention, other.set_retention, Ord::min),
        }
    }
}

impl Exclusive {
    /// Only what two promises have in common.
    fn in_both(self, other: Self) -> Self {
        let uuids = self.uuids.into_iter().filter(|uuid| other.uuids.contains(uuid)).collect();
        Self { uuids, reason: self.reason }
    }
}
