//! Which value of each retention setting a table gets, and where it comes from.
//!
//! A ref's own value, else request > policy > table property > `[expire]`. Where a policy would keep less
//! than the table's own property says, the property wins, unless the policy says `override_table = true`.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::RefRules;
use crate::model::{Age, SnapshotId, TableState, Timestamp};

/// The table property for the age from which snapshots may go (spec, "Table properties").
pub const MAX_SNAPSHOT_AGE: &str = "history.expire.max-snapshot-age-ms";
/// The table property for the number of snapshots that each branch keeps.
pub const MIN_SNAPSHOTS: &str = "history.expire.min-snapshots-to-keep";
/// The table property for the age from which refs are dropped.
pub const MAX_REF_AGE: &str = "history.expire.max-ref-age-ms";

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The ref itself.
    Ref,
    /// The ref itself, until a writer that knows no retention moved it.
    Lost,
    /// The operator's request.
    Request,
    /// The policy with this table pattern.
    Policy(String),
    /// A policy's rule for refs.
    Rule {
        /// The pattern of the policy's `tables`.
        policy: String,
        /// The pattern of the rule's `name`.
        rule: String,
    },
    /// This table property.
    Property(String),
    /// The configuration's `[expire]`.
    Config,
    /// Iceberg's own default.
    Iceberg,
    /// The floor under which no setting goes.
    Floor,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ref => f.write_str("its own"),
            Self::Lost => f.write_str("its own, lost when it moved"),
            Self::Request => f.write_str("as asked for"),
            Self::Policy(pattern) => write!(f, "policy {pattern}"),
            Self::Rule { rule, .. } => write!(f, "policy {rule}"),
            Self::Property(_) => f.write_str("table property"),
            Self::Config => f.write_str("[expire]"),
            Self::Iceberg => f.write_str("Iceberg's default"),
            Self::Floor => f.write_str("the floor"),
        }
    }
}

/// A value and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub source: Source,
}

impl<T> Sourced<T> {
    /// A value with its source.
    pub fn new(value: T, source: Source) -> Self {
        Self { value, source }
    }
}

/// All that the retention plan needs beside the table, resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireValues {
    /// Read once.
    pub now: Timestamp,
    /// For branches without their own age, and for snapshots on no ref.
    pub older_than: Sourced<Age>,
    /// For branches without their own minimum.
    pub retain_last: Sourced<i64>,
    /// For refs without their own; `None` is never.
    pub max_ref_age: Sourced<Option<Age>>,
    /// No setting goes below it, and no snapshot younger than it is removed.
    pub floor: Age,
    /// How long the snapshots of a dropped ref stay (safety rule 15).
    pub drop_grace: Age,
    /// The base of every open branch stays.
    pub keep_fork_points: bool,
    /// What policies say about single refs wins even where it keeps less than the table's own properties say.
    pub override_table: bool,
    /// The table's own minimum of snapshots for each branch.
    pub min_snapshots_property: Option<i64>,
    /// Named by the operator.
    pub snapshots: BTreeSet<SnapshotId>,
    /// What the policies say about single refs.
    pub rules: RefRules,
}

/// What an operator asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Request {
    /// `--older-than`.
    pub older_than: Option<Age>,
    /// `--retain-last`.
    pub retain_last: Option<u32>,
    /// `--snapshot`.
    pub snapshots: BTreeSet<SnapshotId>,
}

/// What the configuration says about a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Configured {
    /// From a policy, with the pattern that it comes from.
    pub policy_older_than: Option<Sourced<Age>>,
    /// From a policy.
    pub policy_retain_last: Option<Sourced<u32>>,
    /// The policy wins even where it keeps less than the table's own properties say.
    pub override_table: bool,
    /// `[expire] older_than`.
    pub older_than: Age,
    /// `[expire] retain_last`.
    pub retain_last: u32,
    /// `[expire] floor`.
    pub floor: Age,
    /// `[expire] drop_grace`.
    pub drop_grace: Age,
    /// `[expire] keep_fork_points`.
    pub keep_fork_points: bool,
    /// From policies: about single refs.
    pub rules: RefRules,
}

/// What the values of a table are resolved from: kept with the intent of a commit, so that the plan can be made
/// again on the metadata that the commit really replaced (safety rule 10).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inputs {
    /// What an operator asked for.
    pub request: Request,
    /// What the configuration says.
    pub configured: Configured,
    /// Read once.
    pub now: Timestamp,
}

/// A table property that should be a number is none. Java refuses the operation too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table property {name} = {value:?} is not a whole number; set or remove it")]
pub struct BadProperty {
    /// Which.
    pub name: &'static str,
    /// As it stands.
    pub value: String,
}

/// Resolves every value for this table.
pub fn resolve(state: &TableState, inputs: &Inputs) -> Result<ExpireValues, BadProperty> {
    let Inputs { request, configured, now } = inputs;
    let number = |name: &'static str| -> Result<Option<Sourced<i64>>, BadProperty> {
        let Some(value) = state.property(name) else { return Ok(None) };
        let parsed = value.parse().map_err(|_| BadProperty { name, value: value.to_owned() })?;
        Ok(Some(Sourced::new(parsed, Source::Property(name.to_owned()))))
    };
    let property_age = number(MAX_SNAPSHOT_AGE)?.map(|p| Sourced::new(Age(p.value), p.source));
    let older_than = match request.older_than {
        Some(age) => Sourced::new(age, Source::Request),
        None => pick(configured.policy_older_than.clone(), property_age, configured.override_table)
            .unwrap_or_else(|| Sourced::new(configured.older_than, Source::Config)),
    };
    let min_snapshots = number(MIN_SNAPSHOTS)?;
    let policy_count = configured.policy_retain_last.clone().map(|p| Sourced::new(i64::from(p.value), p.source));
    let retain_last = match request.retain_last {
        Some(count) => Sourced::new(i64::from(count), Source::Request),
        None => pick(policy_count, min_snapshots.clone(), configured.override_table)
            .unwrap_or_else(|| Sourced::new(i64::from(configured.retain_last), Source::Config)),
    };
    let max_ref_age = number(MAX_REF_AGE)?
        .map_or(Sourced::new(None, Source::Iceberg), |p| Sourced::new(Some(Age(p.value)), p.source));
    let older_than =
        if older_than.value < configured.floor { Sourced::new(configured.floor, Source::Floor) } else { older_than };
    Ok(ExpireValues {
        now: *now,
        older_than,
        retain_last,
        max_ref_age,
        floor: configured.floor,
        drop_grace: configured.drop_grace,
        keep_fork_points: configured.keep_fork_points,
        override_table: configured.override_table,
        min_snapshots_property: min_snapshots.map(|min| min.value),
        snapshots: request.snapshots.clone(),
        rules: configured.rules.clone(),
    })
}

/// The policy's value, or the table's own where that keeps more and the policy does not override it.
pub(super) fn pick<T: Ord>(
    policy: Option<Sourced<T>>,
    property: Option<Sourced<T>>,
    override_table: bool,
) -> Option<Sourced<T>> {
    match (policy, property) {
        (Some(policy), Some(property)) if property.value > policy.value && !override_table => Some(property),
        (Some(policy), _) => Some(policy),
        (None, property) => property,
    }
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
