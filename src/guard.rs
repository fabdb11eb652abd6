//! The guard: the only way from a plan to an approved plan. Pure, as the plans are.
//!
//! It checks the rules whose breach would destroy something, also those that the plan keeps by itself: a plan
//! that breaks one of them is a fault of ours, and is refused as such.

use serde::Serialize;

mod orphans;

pub use orphans::{ApprovedOrphans, OrphanGuardFacts, approve_orphans, lost_too_many};

use crate::config::{GuardConfig, OutsideLocation};
use crate::model::{Age, LocationRules, Ref, RefName, TableState};
use crate::plan::change::{ChangedRef, RefChange, Wanted};
use crate::plan::cleanup::kept;
use crate::plan::roots::Place;
use crate::plan::{ExpirePlan, SnapshotVerdict};
use crate::state::{Bound, Hold};

/// Clocks that differ by more than this refuse every destructive run (safety rule 3).
pub const MAX_CLOCK_SKEW: Age = Age(60_000);

/// The rule of [`Refusal::LostTables`], by its word.
pub const LOST_TABLES: &str = "lost_tables";

/// What the guard looks at beside the plan.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The table that the plan was made for.
    pub state: &'a TableState,
    /// Its folders.
    pub place: &'a Place,
    /// `[guard]`.
    pub limits: &'a GuardConfig,
    /// `[expire] outside_location`.
    pub outside: OutsideLocation,
    /// `[locations]`.
    pub rules: &'a LocationRules,
    /// A hold that covers the table.
    pub hold: Option<&'a Hold>,
    /// An open `unplanned_removal` of the table, by its id.
    pub unplanned_removal: Option<&'a str>,
    /// Which clock differs from ours, and by how much.
    pub clock_skew: Option<(String, Age)>,
    /// Bounds that an operator confirmed in the last 24 hours.
    pub confirmed: &'a [Bound],
}

/// A plan that may be carried out. Nothing else makes one.
#[derive(Debug, Clone)]
pub struct ApprovedPlan(ExpirePlan);

impl ApprovedPlan {
    /// The plan.
    pub fn plan(&self) -> &ExpirePlan {
        &self.0
    }

    /// The part of it that writes retention to refs; `state` is what it was made on.
    pub fn retention(&self, state: &TableState) -> Option<ApprovedChange> {
        let ExpirePlan { table, uuid, retention, .. } = &self.0;
        let changed = |(name, after): &(RefName, Ref)| {
            let (before, after) = (state.refs.get(name).cloned(), Some(after.clone()));
            ChangedRef { name: name.clone(), before, after }
        };
        let refs: Vec<ChangedRef> = retention.to_set.iter().map(changed).collect();
        let change = RefChange { table: table.clone(), uuid: *uuid, wanted: Wanted::SetRetention, refs };
        (!change.refs.is_empty()).then_some(ApprovedChange(change))
    }
}

/// A change of refs that may be made. Nothing else makes one.
#[derive(Debug, Clone)]
pub struct ApprovedChange(RefChange);

impl ApprovedChange {
    /// The change.
    pub fn change(&self) -> &RefChange {
        &self.0
    }
}

/// Why a plan may not be carried out. Names the rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum Refusal {
    /// Safety rule 18.
    #[error("held by {by}: {reason} (release it with `icewarden hold release`)")]
    Held {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// Safety rule 10.
    #[error("finding {finding} is open: a commit removed what it should not have; see `icewarden findings`")]
    UnplannedRemoval {
        /// Its id.
        finding: String,
    },
    /// Safety rule 3.
    #[error("the clock of {of} and ours differ by {}; at most {} are allowed", skew.show(), MAX_CLOCK_SKEW.show())]
    ClockSkew {
        /// Whose.
        of: String,
        /// By how much.
        skew: Age,
    },
    /// Safety rule 4.
    #[error("gc.enabled is not true")]
    GcDisabled,
    /// Safety rule 8.
    #[error("{refs} refs would be dropped, the limit is {limit} (guard max_refs)")]
    TooManyRefs {
        /// How many.
        refs: usize,
        /// Allowed.
        limit: u32,
    },
    /// Safety rule 11.
    #[error(
        "{count} files are named under two authorities, such as {expired} and, retained, {retained}; if they are the \
         same place, say so in [locations] authorities"
    )]
    PrefixConflict {
        /// How many.
        count: usize,
        /// Of an expired snapshot.
        expired: String,
        /// Of a retained one.
        retained: String,
    },
    /// Safety rule 6.
    #[error("{file} is of another table format, which has files of its own here; nothing in this folder is deleted")]
    OtherFormat {
        /// Of Delta Lake or Hudi.
        file: String,
    },
    /// Section "orphans" of the safety rules.
    #[error(
        "{count} metadata files, such as {file}, come after a state that the table's log does not have: it was restored to \
         an earlier one, or two catalogs write it"
    )]
    ForkedLineage {
        /// How many.
        count: usize,
        /// One of them.
        file: String,
    },
    /// Safety rule 11.
    #[error(
        "{count} listed objects, such as {listed}, have the key of a file that is referred to as {referenced}; if they are \
         the same place, say so in [locations] authorities"
    )]
    KeyConflict {
        /// How many.
        count: usize,
        /// As listed.
        listed: String,
        /// As referred to.
        referenced: String,
    },
    /// Safety rule 7.
    #[error(
        "the listing lacks {count} files that are there and that a snapshot needs, such as {file}; it cannot be believed"
    )]
    ListingLies {
        /// How many.
        count: usize,
        /// One of them.
        file: String,
    },
    /// Safety rule 7.
    #[error("{count} files that a snapshot needs are not there, such as {file}; see `icewarden findings`")]
    MissingFile {
        /// How many.
        count: usize,
        /// One of them.
        file: String,
    },
    /// Safety rule 7.
    #[error("of all that is listed nothing is referred to, so the table's folders cannot be right")]
    NothingReferenced,
    /// Safety rule 6.
    #[error("{table} cannot be read, and may have files in this table's folders (finding {finding})")]
    UnknownReader {
        /// Which.
        table: String,
        /// What to acknowledge to go on without it.
        finding: String,
    },
    /// Safety rule 6.
    #[error("catalog {catalog} cannot be listed, and its tables may have files in this table's folders")]
    UnlistedCatalog {
        /// Which.
        catalog: String,
    },
    /// Safety rule 8.
    #[error(
        "{percent} % of {listed} listed objects, or of their bytes, would be deleted, the limit is {limit} % (guard max_ratio)"
    )]
    TooMany {
        /// Of objects or bytes, whichever is more.
        percent: f64,
        /// Objects.
        listed: u64,
        /// Allowed.
        limit: f64,
    },
    /// Safety rule 8.
    #[error(
        "the catalog lost {lost} of its {had} tables since its last orphan run, so their files may look like orphans"
    )]
    LostTables {
        /// How many.
        lost: usize,
        /// How many it had.
        had: usize,
    },
    /// The plan breaks a rule that it should keep by itself.
    #[error("the plan breaks a safety rule, which is a fault of icewarden; please report it: {what}")]
    Unsound {
        /// Which.
        what: String,
    },
}

impl Refusal {
    /// Whether an operator can allow it with `--confirm`.
    pub fn can_be_confirmed(&self) -> bool {
        matches!(self, Self::TooManyRefs { .. } | Self::TooMany { .. } | Self::LostTables { .. })
    }
}

/// Approves a change of refs. What brings snapshots nearer to their end needs more than what keeps them.
pub fn approve_change(
    change: RefChange,
    hold: Option<&Hold>,
    unplanned_removal: Option<&str>,
    clock_skew: Option<(String, Age)>,
) -> Result<ApprovedChange, Box<(RefChange, Refusal)>> {
    let keeps_more = matches!(change.wanted, Wanted::Restore(_));
    let refusal = if let Some(main) = change.dropped().find(|name| name.is_main()) {
        Some(Refusal::Unsound { what: format!("it drops {main}") })
    } else if keeps_more {
        stopped(hold, None, None)
    } else {
        stopped(hold, unplanned_removal, clock_skew)
    };
    match refusal {
        None => Ok(ApprovedChange(change)),
        Some(refusal) => Err(Box::new((change, refusal))),
    }
}

/// Approves the plan, or gives it back with the rule that forbids it.
pub fn approve(plan: ExpirePlan, facts: &Facts<'_>) -> Result<ApprovedPlan, Box<(ExpirePlan, Refusal)>> {
    match refusal(&plan, facts) {
        None => Ok(ApprovedPlan(plan)),
        Some(refusal) => Err(Box::new((plan, refusal))),
    }
}

fn refusal(plan: &ExpirePlan, facts: &Facts<'_>) -> Option<Refusal> {
    if let Some(unsound) = unsound(plan, facts) {
        return Some(Refusal::Unsound { what: unsound });
    }
    if !facts.state.gc_enabled() {
        return Some(Refusal::GcDisabled);
    }
    if let Some(stopped) = stopped(facts.hold, facts.unplanned_removal, facts.clock_skew.clone()) {
        return Some(stopped);
    }
    if let Some((expired, retained)) = plan.conflicts.first().cloned() {
        return Some(Refusal::PrefixConflict { count: plan.conflicts.len(), expired, retained });
    }
    let refs = plan.retention.dropped_refs().count();
    if refs > facts.limits.max_refs as usize && !facts.confirmed.iter().any(|bound| covers(bound, &plan.bound())) {
        return Some(Refusal::TooManyRefs { refs, limit: facts.limits.max_refs });
    }
    None
}

/// What stops every job that takes something away (safety rules 3, 10 and 18).
fn stopped(hold: Option<&Hold>, unplanned_removal: Option<&str>, clock_skew: Option<(String, Age)>) -> Option<Refusal> {
    if let Some(hold) = hold {
        return Some(Refusal::Held { by: hold.by.clone(), reason: hold.reason.clone() });
    }
    if let Some(finding) = unplanned_removal {
        return Some(Refusal::UnplannedRemoval { finding: finding.to_owned() });
    }
    clock_skew.and_then(skewed)
}

/// Safety rule 3.
fn skewed((of, skew): (String, Age)) -> Option<Refusal> {
    let skew = Age(skew.0.abs());
    (skew > MAX_CLOCK_SKEW).then_some(Refusal::ClockSkew { of, skew })
}

/// Whether a confirmed bound covers what a plan would do.
fn covers(confirmed: &Bound, wanted: &Bound) -> bool {
    wanted.refs.iter().all(|name| confirmed.refs.contains(name))
        && wanted.snapshots <= confirmed.snapshots
        && wanted.objects <= confirmed.objects
        && wanted.bytes <= confirmed.bytes
}

/// The rules that a plan keeps by its construction, looked at again from the outside.
fn unsound(plan: &ExpirePlan, facts: &Facts<'_>) -> Option<String> {
    let retention = &plan.retention;
    let kept_heads = || retention.refs.iter().filter(|decision| !decision.verdict.drops());
    if let Some(main) = retention.dropped_refs().find(|decision| decision.name.is_main()) {
        return Some(format!("it drops {}", main.name));
    }
    for decision in retention.expired() {
        if let Some(head) = kept_heads().find(|head| head.snapshot == decision.id) {
            return Some(format!("it expires snapshot {}, the head of {}", decision.id, head.name));
        }
        if retention.values.now.since(decision.at) < retention.values.floor {
            return Some(format!("it expires snapshot {}, which is younger than the floor", decision.id));
        }
    }
    if retention.snapshots.len() != facts.state.snapshots.len() || retention.refs.len() != facts.state.refs.len() {
        return Some("it does not decide on every snapshot and ref".to_owned());
    }
    let goes = retention.snapshots.iter().filter(|d| matches!(d.verdict, SnapshotVerdict::Expire(_))).count();
    if plan.steps.len() != goes {
        return Some("its commits do not remove what it decided".to_owned());
    }
    for drop in retention.refs.iter().filter(|decision| decision.drops_the_ref_alone()) {
        let goes = |id| retention.expired().any(|decision| decision.id == id);
        if retention.values.drop_grace > Age::ZERO && goes(drop.snapshot) {
            return Some(format!("it expires the head of {}, which can be restored for a while", drop.name));
        }
    }
    let (now, grace) = (retention.values.now, retention.values.drop_grace);
    for gone in retention.facts.dropped.iter().filter(|gone| gone.by.is_some() && now < gone.at.plus(grace)) {
        if retention.expired().any(|decision| decision.id == gone.r.snapshot) {
            return Some(format!("it expires what {} pointed at, which can be restored for a while", gone.name));
        }
    }
    for (name, to) in &retention.to_set {
        let adds = |found: Option<i64>, to: Option<i64>| found.is_none_or(|found| Some(found) == to);
        let is_same = |found: &Ref| {
            found.snapshot == to.snapshot
                && found.kind == to.kind
                && adds(found.retention.max_ref_age_ms, to.retention.max_ref_age_ms)
                && adds(found.retention.max_snapshot_age_ms, to.retention.max_snapshot_age_ms)
                && adds(found.retention.min_snapshots_to_keep, to.retention.min_snapshots_to_keep)
        };
        if !facts.state.refs.get(name).is_some_and(is_same) {
            return Some(format!("it changes more of {name} than the retention that it lacks"));
        }
    }
    let none_by_hand = std::collections::BTreeSet::new();
    plan.cleanup.mark.iter().find_map(|candidate| {
        let because = match facts.rules.parse(&candidate.location) {
            Ok(location) => kept(&location, facts.place, &none_by_hand, facts.outside)?.as_str(),
            Err(_) => "no location",
        };
        Some(format!("it marks {}, which is {because}", candidate.location))
    })
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
