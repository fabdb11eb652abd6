//! The guard of the orphan job (safety rules 6, 7, 8 and 11).

use super::{Refusal, covers, stopped};
use crate::config::GuardConfig;
use crate::model::{Age, Tally};
use crate::plan::{KeptObject, OrphansPlan};
use crate::state::{Bound, Hold};

/// What the guard looks at beside the plan.
#[derive(Debug)]
pub struct OrphanGuardFacts<'a> {
    /// `[guard]`.
    pub limits: &'a GuardConfig,
    /// A hold that covers the table.
    pub hold: Option<&'a Hold>,
    /// An open `unplanned_removal` of the table, by its id.
    pub unplanned_removal: Option<&'a str>,
    /// Which clock differs from ours, and by how much.
    pub clock_skew: Option<(String, Age)>,
    /// Bounds that an operator confirmed in the last 24 hours.
    pub confirmed: &'a [Bound],
    /// A file of another table format.
    pub other_format: Option<&'a str>,
    /// Metadata files of another line of the table.
    pub forked: &'a [String],
    /// Listed objects, each with a reference that has its key under another authority.
    pub conflicts: &'a [(String, String)],
    /// Files that a snapshot needs, that are there, and that the listing did not have.
    pub unlisted: &'a [String],
    /// Files that a snapshot needs and that are not there, unless their finding is acknowledged.
    pub missing: &'a [String],
    /// How many tables the catalog lost since its last orphan run, and had, unless somebody goes on with a plan that was
    /// refused for it.
    pub lost_tables: Option<(usize, usize)>,
}

/// A plan that may be carried out. Nothing else makes one.
#[derive(Debug, Clone)]
pub struct ApprovedOrphans(OrphansPlan);

impl ApprovedOrphans {
    /// The plan.
    pub fn plan(&self) -> &OrphansPlan {
        &self.0
    }
}

/// Approves a plan, or gives it back with the rule that forbids it.
pub fn approve_orphans(
    plan: OrphansPlan,
    facts: &OrphanGuardFacts<'_>,
) -> Result<ApprovedOrphans, Box<(OrphansPlan, Refusal)>> {
    match refusal(&plan, facts) {
        None => Ok(ApprovedOrphans(plan)),
        Some(refusal) => Err(Box::new((plan, refusal))),
    }
}

fn refusal(plan: &OrphansPlan, facts: &OrphanGuardFacts<'_>) -> Option<Refusal> {
    if let Some(stopped) = stopped(facts.hold, facts.unplanned_removal, facts.clock_skew.clone()) {
        return Some(stopped);
    }
    if let Some(file) = facts.other_format {
        return Some(Refusal::OtherFormat { file: file.to_owned() });
    }
    if let Some(file) = facts.forked.first() {
        return Some(Refusal::ForkedLineage { count: facts.forked.len(), file: file.clone() });
    }
    if let Some((listed, referenced)) = facts.conflicts.first().cloned() {
        return Some(Refusal::KeyConflict { count: facts.conflicts.len(), listed, referenced });
    }
    if let Some(file) = facts.unlisted.first() {
        return Some(Refusal::ListingLies { count: facts.unlisted.len(), file: file.clone() });
    }
    if let Some(file) = facts.missing.first() {
        return Some(Refusal::MissingFile { count: facts.missing.len(), file: file.clone() });
    }
    if plan.counts.kept_for(KeptObject::Referenced).objects == 0 {
        return Some(Refusal::NothingReferenced);
    }
    if let Some(what) = unsound(plan) {
        return Some(Refusal::Unsound { what });
    }
    if let Some((lost, had)) = facts.lost_tables {
        return Some(Refusal::LostTables { lost, had });
    }
    // Where nothing would go, no size is too large.
    let orphans = plan.counts.orphans;
    if orphans.objects == 0 || facts.confirmed.iter().any(|bound| covers(bound, &plan.bound())) {
        return None;
    }
    let own = plan.counts.own();
    let share = share(orphans, own);
    if own.objects >= facts.limits.min_objects && share > facts.limits.max_ratio {
        return Some(Refusal::TooMany {
            percent: percent(share),
            listed: own.objects,
            limit: percent(facts.limits.max_ratio),
        });
    }
    None
}

/// The larger of the shares of objects and of bytes.
fn share(orphans: Tally, own: Tally) -> f64 {
    let of = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    of(orphans.objects, own.objects).max(of(orphans.bytes, own.bytes))
}

/// In hundredths of a percent, so that a share just above the limit does not read like the limit.
fn percent(share: f64) -> f64 {
    (share * 10_000.0).round() / 100.0
}

/// Whether a catalog lost more tables than people drop between two runs: more than a tenth of them, and at least five.
pub fn lost_too_many(lost: usize, had: usize) -> bool {
    lost >= 5 && lost * 10 > had
}

fn unsound(plan: &OrphansPlan) -> Option<String> {
    if !plan.counts.adds_up() {
        return Some("its decisions do not add up to what was listed".to_owned());
    }
    plan.facts
        .listed
        .iter()
        .find(|root| !plan.facts.place.roots.contains(*root))
        .map(|root| format!("it looks for orphans in {root}, which is not the table's"))
}

#[cfg(test)]
#[path = "orphans_tests.rs"]
mod tests;
