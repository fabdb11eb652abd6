//! What a run did, as data. CLI output, JSON and the state's rows are drawn from it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

mod orphans;

pub use orphans::{DroppedReport, KeptReport, OrphansReport};

use crate::model::{Age, PlanId, Ref, RefName, RunId, SnapshotId, TableName, Timestamp};
use crate::plan::change::RefChange;
use crate::plan::{ExpirePlan, ExpiredBecause, KeptFile, KeptObject, RefDecision, SnapshotVerdict, Sourced};
use crate::storage::StorageErrorKind;

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Expire snapshots and refs.
    Expire,
    /// Find files that nothing refers to.
    Orphans,
    /// Delete marked files whose grace period is over.
    Sweep,
    /// Drop, restore or retain a branch.
    Branch,
}

impl Job {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expire => "expire",
            Self::Orphans => "orphans",
            Self::Sweep => "sweep",
            Self::Branch => "branch",
        }
    }
}

/// How it ended for a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All was done, or there was nothing to do.
    Done,
    /// The table is not ours to touch (safety rules 4 and 6).
    Skipped,
    /// Something is left for a later run.
    Partial,
    /// A guard said no.
    Refused,
    /// It could not be done.
    Failed,
}

impl Outcome {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Partial => "partial",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// A whole run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RunReport {
    /// Its id.
    pub run: RunId,
    /// What it did.
    pub job: Job,
    /// Whether it acted, or only looked.
    pub applied: bool,
    /// The time that it was made for.
    pub now: Timestamp,
    /// One per table, sorted by name.
    pub tables: Vec<TableReport>,
    /// Catalogs that could not be listed: their tables were not come to.
    pub unlisted: Vec<String>,
    /// What concerns no single table.
    pub notes: Vec<String>,
    /// Folders with Iceberg metadata that no catalogued table owns.
    pub dropped: Vec<DroppedReport>,
}

impl RunReport {
    /// The exit code of the command that asked for it.
    pub fn exit_code(&self) -> u8 {
        let of = |outcome| self.tables.iter().filter(|table| table.outcome == outcome).count();
        let (refused, partial) = (of(Outcome::Refused), of(Outcome::Partial));
        let failed = of(Outcome::Failed) + self.unlisted.len();
        match (failed, refused, partial) {
            (0, 0, 0) => 0,
            (0, 0, _) => 4,
            (0, _, _) => 3,
            _ if failed == self.tables.len() + self.unlisted.len() => 1,
            _ => 4,
        }
    }

    /// The gravest outcome of any table, a catalog that could not be listed counting as one that failed; skipped
    /// only where every table was.
    pub fn outcome(&self) -> Outcome {
        if !self.unlisted.is_empty() {
            return Outcome::Failed;
        }
        let all = || self.tables.iter().map(|table| table.outcome);
        if !self.tables.is_empty() && all().all(|outcome| outcome == Outcome::Skipped) {
            return Outcome::Skipped;
        }
        all().filter(|outcome| *outcome != Outcome::Skipped).max().unwrap_or(Outcome::Done)
    }
}

/// What became of one table.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TableReport {
    /// Which.
    pub table: TableName,
    /// Its uuid, where it was found out.
    pub uuid: Option<Uuid>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, where it did not end as done.
    pub reason: Option<String>,
    /// What to do about it.
    pub advice: Option<String>,
    /// What else is to be known.
    pub notes: Vec<String>,
    /// The expiry's plan.
    pub plan: Option<PlanReport>,
    /// The orphan job's plan.
    pub orphans: Option<OrphansReport>,
    /// What changes about refs alone.
    pub change: Option<RefChange>,
    /// What was committed.
    pub commits: Vec<CommitReport>,
    /// What was marked.
    pub marks: Vec<MarksReport>,
    /// What was swept, or would be.
    pub sweeps: Vec<SweepReport>,
    /// No commit was tried and nothing deleted.
    #[serde(skip)]
    pub is_untouched: bool,
    /// All of it in numbers, from outcomes, never from intentions (safety rule 12).
    pub counts: Counts,
}

impl TableReport {
    /// A report to fill in.
    pub fn new(table: TableName) -> Self {
        Self {
            table,
            uuid: None,
            outcome: Outcome::Done,
            reason: None,
            advice: None,
            notes: Vec::new(),
            plan: None,
            orphans: None,
            change: None,
            commits: Vec::new(),
            marks: Vec::new(),
            sweeps: Vec::new(),
            is_untouched: true,
            counts: Counts::default(),
        }
    }

    /// Notes a graver outcome; a lighter one than is noted changes nothing.
    pub fn ended(&mut self, outcome: Outcome, reason: impl Into<String>) {
        if outcome > self.outcome {
            self.outcome = outcome;
            self.reason = Some(reason.into());
        }
    }
}

/// Numbers of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[allow(missing_docs)] // each is named for what it counts
pub struct Counts {
    pub expired_snapshots: u64,
    pub dropped_refs: u64,
    pub commits: u64,
    pub marked_objects: u64,
    pub marked_bytes: u64,
    pub deleted_objects: u64,
    pub deleted_bytes: u64,
    pub failed_deletes: u64,
    pub already_gone: u64,
    /// Changed, or newer than the mark.
    pub changed: u64,
    pub referenced_again: u64,
    pub kept_by_hand: u64,
    /// Marked as orphans, and not taken for orphans any more.
    pub no_orphans: u64,
    pub skipped_outside_location: u64,
    /// Their key cannot be asked for exactly.
    pub unrepresentable: u64,
    /// The store keeps no time for them.
    pub unknown_age: u64,
    /// The same key is named under another authority.
    pub prefix_conflicts: u64,
    /// Files of expired snapshots that could not be read.
    pub incomplete: u64,
}

/// A plan in short.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PlanReport {
    /// For `--confirm`.
    pub id: PlanId,
    /// The metadata file that it was decided on.
    pub metadata_location: String,
    /// Snapshots older than this may go.
    pub older_than: Sourced<Age>,
    /// A branch keeps this many.
    pub retain_last: Sourced<i64>,
    /// Every ref with its decision.
    pub refs: Vec<RefDecision>,
    /// Refs that get retention written to them, as they should be.
    pub to_set: Vec<(RefName, Ref)>,
    /// Until when dropped refs can be restored, at least.
    pub restorable_until: Timestamp,
    /// The snapshots that go.
    pub expired: Vec<SnapshotId>,
    /// How many go, by reason.
    pub expired_by: Vec<(ExpiredBecause, u64)>,
    /// How many stay, by reason.
    pub kept_by: Vec<(SnapshotVerdict, u64)>,
    /// Named by the operator, but not in the table.
    pub unknown: Vec<SnapshotId>,
    /// Files to be marked, by kind: how many, and their bytes as far as manifests tell.
    pub files: BTreeMap<&'static str, (u64, u64)>,
    /// Files that are left, by reason.
    pub left: Vec<(KeptFile, u64)>,
    /// Some of them.
    pub left_examples: Vec<(KeptFile, String)>,
    /// Files of expired snapshots that cannot be read.
    pub unreadable: Vec<String>,
    /// Commits that it takes.
    pub commits: u32,
}

/// Left files that a report shows by name.
const EXAMPLES: usize = 5;

impl PlanReport {
    /// Whether it says only why things stay.
    pub fn is_empty(&self) -> bool {
        self.commits == 0 && self.to_set.is_empty()
    }

    /// The short form of a plan.
    pub fn of(plan: &ExpirePlan, id: PlanId) -> Self {
        let mut expired_by: BTreeMap<ExpiredBecause, u64> = BTreeMap::new();
        let mut kept_by: BTreeMap<SnapshotVerdict, u64> = BTreeMap::new();
        for decision in &plan.retention.snapshots {
            match &decision.verdict {
                SnapshotVerdict::Expire(because) => *expired_by.entry(because.clone()).or_default() += 1,
                kept => *kept_by.entry(kept.clone()).or_default() += 1,
            }
        }
        let mut files: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
        for candidate in &plan.cleanup.mark {
            let (count, bytes) = files.entry(candidate.kind.as_str()).or_default();
            *count += 1;
            *bytes += candidate.recorded_size.unwrap_or(0);
        }
        let mut left: BTreeMap<KeptFile, u64> = BTreeMap::new();
        for (_, because) in &plan.cleanup.keep {
            *left.entry(*because).or_default() += 1;
        }
        let examples = plan.cleanup.keep.iter().take(EXAMPLES);
        Self {
            id,
            metadata_location: plan.metadata_location.clone(),
            older_than: plan.retention.values.older_than.clone(),
            retain_last: plan.retention.values.retain_last.clone(),
            refs: plan.retention.refs.clone(),
            to_set: plan.retention.to_set.clone(),
            restorable_until: plan.retention.values.now.plus(plan.retention.values.drop_grace),
            expired: plan.retention.expired().map(|decision| decision.id).collect(),
            expired_by: expired_by.into_iter().collect(),
            kept_by: kept_by.into_iter().collect(),
            unknown: plan.retention.unknown.clone(),
            files,
            left: left.into_iter().collect(),
            left_examples: examples.map(|(file, because)| (*because, file.location.clone())).collect(),
            unreadable: plan.left.clone(),
            commits: plan.commits(),
        }
    }
}

/// A text as one word of a shell command.
pub fn quoted(text: &str) -> String {
    let is_plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A commit that was made.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CommitReport {
    /// The metadata file that it made.
    pub metadata_location: String,
    /// Snapshots removed.
    pub snapshots: u64,
    /// Refs dropped.
    pub refs: Vec<RefName>,
    /// Refs set: restored, or with other retention.
    pub set: Vec<RefName>,
}

/// A mark list that was written.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct MarksReport {
    /// For `icewarden marks`.
    pub id: String,
    /// Files.
    pub objects: u64,
    /// Their bytes as the store says.
    pub bytes: u64,
    /// Not deleted before.
    pub due_at: Timestamp,
    /// From the mark to that.
    pub grace: Age,
}

/// What became of a mark list, or would become of it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SweepReport {
    /// For `icewarden marks`.
    pub id: String,
    /// Files in it when the sweep began.
    pub marked: u64,
    /// Left as void, with the reason; nothing of it is deleted.
    pub void: Option<String>,
    /// Files deleted.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// In a sweep that only looks: files that would be deleted.
    pub would_delete: u64,
    /// Their bytes.
    pub would_delete_bytes: u64,
    /// Files that were not deleted, each with its reason; some of them.
    pub not_deleted: Vec<NotDeleted>,
}

/// A marked file that was not deleted.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct NotDeleted {
    /// Which.
    pub location: String,
    /// Why.
    pub because: Because,
}

/// Why a marked file was not deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// It was not there.
    AlreadyGone,
    /// It is not the object that was marked: another size, time or tag, or newer than the mark.
    Changed,
    /// The table refers to it again.
    ReferencedAgain,
    /// It must be left.
    Kept(KeptFile),
    /// It is no orphan any more: what the decision depended on has changed.
    NoOrphan(KeptObject),
    /// The store did not delete it; the mark stays for the next sweep.
    Failed {
        /// What kind of failure.
        #[serde(skip)]
        kind: StorageErrorKind,
        /// In the store's words.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::Outcome::{Done, Failed, Partial, Refused, Skipped};
    use super::*;

    fn run(outcomes: &[Outcome], unlisted: usize) -> RunReport {
        let table = |(at, outcome): (usize, &Outcome)| {
            let name = TableName { catalog: "c".into(), namespace: vec!["db".into()], name: format!("t{at}") };
            let mut report = TableReport::new(name);
            report.ended(*outcome, "why");
            report
        };
        RunReport {
            run: RunId("r".into()),
            job: Job::Expire,
            applied: true,
            now: Timestamp(0),
            tables: outcomes.iter().enumerate().map(table).collect(),
            unlisted: vec!["cannot list".to_owned(); unlisted],
            notes: Vec::new(),
            dropped: Vec::new(),
        }
    }

    #[test]
    fn an_exit_code_tells_whether_all_some_or_none_of_it_was_done() {
        for (outcomes, unlisted, code, outcome) in [
            (&[][..], 0, 0, Done),
            (&[Done], 0, 0, Done),
            (&[Skipped, Skipped], 0, 0, Skipped),
            (&[Skipped, Done], 0, 0, Done),
            (&[Partial], 0, 4, Partial),
            (&[Done, Skipped, Partial], 0, 4, Partial),
            (&[Refused], 0, 3, Refused),
            (&[Done, Skipped, Refused], 0, 3, Refused),
            (&[Partial, Refused], 0, 3, Refused),
            (&[Failed], 0, 1, Failed),
            (&[Failed, Failed], 0, 1, Failed),
            (&[Failed, Skipped], 0, 4, Failed),
            (&[Failed, Done], 0, 4, Failed),
            (&[Failed, Partial], 0, 4, Failed),
            (&[Failed, Refused], 0, 4, Failed),
            (&[Done, Skipped, Partial, Refused, Failed], 0, 4, Failed),
            (&[], 1, 1, Failed),
            (&[Failed], 1, 1, Failed),
            (&[Done], 1, 4, Failed),
            (&[Skipped], 1, 4, Failed),
            (&[Partial], 1, 4, Failed),
            (&[Refused], 1, 4, Failed),
        ] {
            let report = run(outcomes, unlisted);
            assert_eq!((report.exit_code(), report.outcome()), (code, outcome), "{outcomes:?}, {unlisted} unlisted");
        }
    }

    #[test]
    fn every_mix_of_outcomes_has_the_exit_code_that_its_parts_call_for() {
        const ALL: [Outcome; 5] = [Done, Skipped, Partial, Refused, Failed];
        for mix in 0..1_u32 << ALL.len() {
            for unlisted in 0..2 {
                let outcomes: Vec<Outcome> =
                    ALL.into_iter().enumerate().filter(|(at, _)| mix & 1 << at != 0).map(|(_, one)| one).collect();
                let has = |outcome: Outcome| outcomes.contains(&outcome);
                let is_failed = has(Failed) || unlisted > 0;
                let is_all_failed = is_failed && outcomes.iter().all(|outcome| *outcome == Failed);
                let code = match (is_all_failed, is_failed, has(Refused), has(Partial)) {
                    (true, ..) => 1,
                    (_, true, ..) => 4,
                    (_, _, true, _) => 3,
                    (_, _, _, true) => 4,
                    _ => 0,
                };
                let report = run(&outcomes, unlisted);
                assert_eq!(report.exit_code(), code, "{outcomes:?}, {unlisted} unlisted");
                // What is told as a success has exit code 0, and nothing else has.
                let is_success = matches!(report.outcome(), Done | Skipped);
                assert_eq!(is_success, code == 0, "{outcomes:?}, {unlisted} unlisted");
            }
        }
    }

    #[test]
    fn a_lighter_outcome_never_hides_a_graver_one() {
        let all = [Done, Skipped, Partial, Refused, Failed];
        for (at, first) in all.into_iter().enumerate() {
            for (then, second) in all.into_iter().enumerate() {
                let report = run(&[first], 0);
                let mut table = report.tables[0].clone();
                table.ended(second, "second");
                assert_eq!(table.outcome, all[at.max(then)], "{first:?}, then {second:?}");
                if second > first {
                    assert_eq!(table.reason.as_deref(), Some("second"), "{first:?}, then {second:?}");
                }
            }
        }
    }
}
