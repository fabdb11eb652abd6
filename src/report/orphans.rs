//! The orphan job's plan in short.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::{Age, FileKind, PlanId, Tally, Timestamp};
use crate::plan::orphans::AgeBand;
use crate::plan::{KeptObject, OrphansPlan};

/// What was listed, and what was decided.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct OrphansReport {
    /// For `--confirm`.
    pub id: PlanId,
    /// The metadata file that was loaded after the listing had ended.
    pub metadata_location: String,
    /// Unreferenced objects older than this are orphans.
    pub older_than: Age,
    /// Metadata files off the log older than this are.
    pub metadata_older_than: Age,
    /// The folders that were listed.
    pub roots: Vec<String>,
    /// Folders of the table that may hold other things, each with the reason; they were left out.
    pub left_out: Vec<(String, String)>,
    /// Everything that was listed.
    pub listed: Tally,
    /// The same by decision: `orphan`, or why objects stay. They add up.
    pub decisions: BTreeMap<String, Tally>,
    /// Orphans by what they were.
    pub kinds: BTreeMap<FileKind, Tally>,
    /// Orphans by age.
    pub ages: BTreeMap<AgeBand, Tally>,
    /// The largest orphans: size in bytes and location.
    pub largest: Vec<(u64, String)>,
    /// Folders in the table's own that hold nothing of it.
    pub foreign_folders: Vec<String>,
    /// Metadata files that are not understood, each with the reason.
    pub unknown_metadata: Vec<(String, String)>,
    /// Where reasons were asked for: every object that stays although nothing refers to it.
    pub kept: Vec<KeptReport>,
}

/// An object that stays although nothing refers to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct KeptReport {
    /// Which.
    pub location: String,
    /// Bytes.
    pub size: u64,
    /// Why.
    pub because: KeptObject,
}

/// A folder with Iceberg metadata that no catalogued table owns; only reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DroppedReport {
    /// The catalog whose warehouse it lies in.
    pub catalog: String,
    /// Which.
    pub folder: String,
    /// Everything in it.
    pub held: Tally,
    /// Its metadata files.
    pub metadata_files: u64,
    /// When the newest object was written.
    pub last_write: Option<Timestamp>,
}

impl OrphansReport {
    /// The short form of a plan.
    pub fn of(plan: &OrphansPlan) -> Self {
        let counts = &plan.counts;
        let word = |because: &KeptObject| {
            let word = serde_json::to_value(because).ok();
            word.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let mut decisions: BTreeMap<String, Tally> =
            counts.kept.iter().map(|(because, tally)| (word(because), *tally)).collect();
        decisions.insert("orphan".to_owned(), counts.orphans);
        Self {
            id: plan.id,
            metadata_location: plan.metadata_location.clone(),
            older_than: plan.facts.older_than,
            metadata_older_than: plan.facts.metadata_older_than,
            roots: plan.facts.listed.iter().map(ToString::to_string).collect(),
            left_out: Vec::new(),
            listed: counts.listed,
            decisions,
            kinds: counts.kinds.clone(),
            ages: counts.ages.clone(),
            largest: counts.largest.clone(),
            foreign_folders: plan.facts.foreign_folders.iter().map(ToString::to_string).collect(),
            unknown_metadata: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// How many objects were decided on so.
    pub fn of_kind(&self, decision: &str) -> Tally {
        self.decisions.get(decision).copied().unwrap_or_default()
    }

    /// What goes.
    pub fn orphans(&self) -> Tally {
        self.of_kind("orphan")
    }
}
