//! The format of a scenario file, as `tests/scenarios/README.md` tells it. Unknown keys are errors.

use std::collections::{BTreeMap, BTreeSet};

use icewarden::model::{Age, Timestamp};
use serde::Deserialize;

use super::change::Change;

/// One file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) case: String,
    pub(crate) title: String,
    pub(crate) now: String,
    #[serde(default)]
    pub(crate) config: String,
    #[serde(default, rename = "table")]
    pub(crate) tables: Vec<TableSpec>,
    #[serde(default, rename = "object")]
    pub(crate) objects: Vec<ObjectSpec>,
    #[serde(rename = "step")]
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableSpec {
    pub(crate) name: String,
    pub(crate) location: Option<String>,
    #[serde(default = "two")]
    pub(crate) format_version: u8,
    /// By default one made of the table's name.
    pub(crate) uuid: Option<String>,
    #[serde(default)]
    pub(crate) properties: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) partition_fields: Vec<String>,
    #[serde(default = "metadata_id")]
    pub(crate) metadata: String,
    #[serde(default)]
    pub(crate) metadata_log: Vec<String>,
    /// Left out of the store.
    #[serde(default)]
    pub(crate) absent: Vec<String>,
    #[serde(default = "yes")]
    pub(crate) catalogued: bool,
    #[serde(default, rename = "snapshot")]
    pub(crate) snapshots: Vec<SnapshotSpec>,
    #[serde(default, rename = "manifest")]
    pub(crate) manifests: Vec<ManifestSpec>,
    #[serde(default, rename = "ref")]
    pub(crate) refs: Vec<RefSpec>,
    #[serde(default)]
    pub(crate) statistics: Vec<StatisticsSpec>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotSpec {
    pub(crate) id: String,
    pub(crate) at: String,
    /// Empty: none. A name that no snapshot has: a parent that was expired before.
    #[serde(default)]
    pub(crate) parent: String,
    /// Empty: format 1's manifests in the metadata itself.
    #[serde(default)]
    pub(crate) list: String,
    #[serde(default)]
    pub(crate) manifests: Vec<String>,
    #[serde(default)]
    pub(crate) summary: BTreeMap<String, String>,
    /// Kept for a fault to commit.
    #[serde(default)]
    pub(crate) later: bool,
    /// So many of its manifests are missing at the end of its list, as if that was cut between two blocks.
    #[serde(default)]
    pub(crate) cut: usize,
    /// The list's location, if not by its id.
    pub(crate) key: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManifestSpec {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) content: ManifestContent,
    #[serde(default)]
    pub(crate) entries: Vec<EntrySpec>,
    pub(crate) key: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ManifestContent {
    #[default]
    Data,
    Deletes,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntrySpec {
    pub(crate) file: String,
    #[serde(default)]
    pub(crate) status: EntryStatus,
    pub(crate) size: Option<u64>,
    /// By default what the manifest holds: data, or position deletes.
    pub(crate) content: Option<EntryContent>,
    pub(crate) offset: Option<i64>,
    pub(crate) length: Option<i64>,
    /// The data file of a deletion vector.
    pub(crate) references: Option<String>,
    pub(crate) key: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EntryStatus {
    Existing,
    #[default]
    Added,
    Deleted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EntryContent {
    Data,
    Position,
    Equality,
    Dv,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefSpec {
    pub(crate) name: String,
    #[serde(default, rename = "type")]
    pub(crate) kind: RefType,
    pub(crate) snapshot: String,
    pub(crate) max_ref_age: Option<Age>,
    pub(crate) max_snapshot_age: Option<Age>,
    pub(crate) min_snapshots_to_keep: Option<i64>,
    /// Seeds a sighting.
    pub(crate) created: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RefType {
    #[default]
    Branch,
    Tag,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatisticsSpec {
    pub(crate) snapshot: String,
    pub(crate) file: String,
    #[serde(default)]
    pub(crate) kind: StatisticsKind,
    pub(crate) key: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StatisticsKind {
    #[default]
    Table,
    Partition,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ObjectSpec {
    pub(crate) key: String,
    pub(crate) at: Option<String>,
    pub(crate) size: Option<u64>,
    pub(crate) id: Option<String>,
    /// Of a metadata file: another table's uuid.
    pub(crate) uuid: Option<String>,
    /// Raw text.
    pub(crate) content: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) job: JobWord,
    #[serde(default = "zero")]
    pub(crate) at: String,
    /// Merged over the scenario's, for this step.
    #[serde(default)]
    pub(crate) config: String,
    /// What happens before it.
    #[serde(default)]
    pub(crate) before: Vec<Change>,
    #[serde(default)]
    pub(crate) tables: Vec<String>,
    pub(crate) older_than: Option<String>,
    /// `--root` of an orphan job.
    pub(crate) root: Option<String>,
    pub(crate) retain_last: Option<u32>,
    #[serde(default)]
    pub(crate) snapshot_ids: Vec<String>,
    #[serde(default)]
    pub(crate) confirm: bool,
    /// What of which branch, in a step whose job is `branch`.
    pub(crate) branch: Option<BranchSpec>,
    /// What set it off.
    #[serde(default)]
    pub(crate) trigger: TriggerWord,
    #[serde(default)]
    pub(crate) lose_state: bool,
    #[serde(default)]
    pub(crate) faults: Vec<FaultSpec>,
    #[serde(default)]
    pub(crate) expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobWord {
    Expire,
    Orphans,
    Sweep,
    Inventory,
    Branch,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TriggerWord {
    #[default]
    Operator,
    Schedule,
}

/// What an operator does with a branch.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum BranchSpec {
    Drop { name: String },
    Restore { name: String, r#as: Option<String> },
    Retain { name: String, max_ref_age: Age },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultSpec {
    pub(crate) on: On,
    pub(crate) nth: Option<u64>,
    pub(crate) from: Option<u64>,
    #[serde(rename = "do")]
    pub(crate) action: String,
    pub(crate) key: Option<String>,
    pub(crate) table: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum On {
    Commit,
    Load,
    Get,
    Delete,
    List,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) outcome: Option<OutcomeSpec>,
    #[serde(default)]
    pub(crate) refs: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) snapshots: BTreeMap<String, Vec<String>>,
    /// Exactly these.
    pub(crate) deleted: Option<Vec<String>>,
    /// These at most.
    pub(crate) deleted_within: Option<Vec<String>>,
    /// The kinds of the open findings, of each table by the name that the finding has.
    #[serde(default)]
    pub(crate) findings: BTreeMap<String, BTreeSet<String>>,
    /// The exit code.
    pub(crate) exit: Option<u8>,
    #[serde(default)]
    pub(crate) counts: Counts,
    /// How many listed objects the orphan job has decided on for this reason, summed over the tables.
    #[serde(default)]
    pub(crate) decisions: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum OutcomeSpec {
    All(OutcomeWord),
    PerTable(BTreeMap<String, OutcomeWord>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutcomeWord {
    Done,
    Skipped,
    Refused,
    Failed,
    Partial,
}

impl OutcomeWord {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Partial => "partial",
        }
    }
}

/// Summed over the tables of the step's report.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    expired_snapshots: Option<u64>,
    dropped_refs: Option<u64>,
    commits: Option<u64>,
    deleted_objects: Option<u64>,
    deleted_bytes: Option<u64>,
    failed_deletes: Option<u64>,
    already_gone: Option<u64>,
    skipped_outside_location: Option<u64>,
    unknown_age: Option<u64>,
    prefix_conflicts: Option<u64>,
    incomplete: Option<u64>,
    marked_objects: Option<u64>,
    referenced_again: Option<u64>,
    changed: Option<u64>,
    kept_by_hand: Option<u64>,
    unrepresentable: Option<u64>,
}

impl Counts {
    /// Those that the case names.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("expired_snapshots", self.expired_snapshots),
            ("dropped_refs", self.dropped_refs),
            ("commits", self.commits),
            ("deleted_objects", self.deleted_objects),
            ("deleted_bytes", self.deleted_bytes),
            ("failed_deletes", self.failed_deletes),
            ("already_gone", self.already_gone),
            ("skipped_outside_location", self.skipped_outside_location),
            ("unknown_age", self.unknown_age),
            ("prefix_conflicts", self.prefix_conflicts),
            ("incomplete", self.incomplete),
            ("marked_objects", self.marked_objects),
            ("referenced_again", self.referenced_again),
            ("changed", self.changed),
            ("kept_by_hand", self.kept_by_hand),
            ("unrepresentable", self.unrepresentable),
        ]
        .into_iter()
        .filter_map(|(name, count)| Some((name, count?)))
    }
}

fn two() -> u8 {
    2
}

fn yes() -> bool {
    true
}

fn metadata_id() -> String {
    "J".to_owned()
}

fn zero() -> String {
    "0d".to_owned()
}

impl Scenario {
    /// Reads a file's text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if scenario.steps.is_empty() {
            return Err("it has no [[step]]".to_owned());
        }
        Ok(scenario)
    }

    /// The fixed clock.
    pub(crate) fn now(&self) -> Result<Timestamp, String> {
        self.now.parse().map_err(|error| format!("now: {error}"))
    }
}

/// `-10d`, `+2h`, `0d` relative to `now`, or RFC 3339.
pub(crate) fn time(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    match rest.parse::<Age>() {
        Ok(age) => Ok(Timestamp(now.0 + sign * age.0)),
        Err(_) => text.parse().map_err(|_| format!("{text:?} is neither a time relative to now nor RFC 3339")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_to_now_or_absolute() {
        let now: Timestamp = "2026-01-31T00:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("-10d", "2026-01-21T00:00:00.000Z"),
            ("-36h", "2026-01-29T12:00:00.000Z"),
            ("+2h", "2026-01-31T02:00:00.000Z"),
            ("0d", "2026-01-31T00:00:00.000Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(text, now).unwrap().to_string(), expected);
        }
        assert!(time("yesterday", now).is_err());
    }

    #[test]
    fn an_unknown_key_is_an_error_at_every_level() {
        let good = "case = 'x'\ntitle = ''\nnow = '2026-01-31T00:00:00Z'\n[[step]]\njob = 'expire'\n";
        Scenario::parse(good).unwrap();
        for bad in [
            format!("colour = 1\n{good}"),
            format!("{good}colour = 1\n"),
            format!("{good}[step.expect]\ncolour = 1\n"),
            format!("{good}[step.expect]\ncounts = {{ colour = 1 }}\n"),
            format!("{good}[[table]]\nname = 'db.t'\ncolour = 1\n"),
        ] {
            let error = Scenario::parse(&bad).unwrap_err();
            assert!(error.contains("colour"), "{error}");
        }
    }
}
