//! What becomes of each listed object: it is an orphan, or it stays for one reason.
//!
//! An object that anything refers to never comes here as unreferenced: that is found out before, and again by the
//! sweep. What is decided here is which of the unreferenced ones may be taken for rubbish (DESIGN of the orphan job in
//! `docs/safety.md`; safety rules 3, 5, 6 and 11).

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::roots::{Exclusive, Place};
use crate::model::file::is_metadata_file;
use crate::model::{Age, FileKind, LocationRules, ObjectFacts, PlanId, Root, TableName, TableState, Tally, Timestamp};
use crate::state::{Bound, Entry};

/// Orphans that a report shows by name.
const LARGEST: usize = 10;

/// Why a listed object stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptObject {
    /// Something refers to it.
    Referenced,
    /// No store can be asked for its key byte for byte.
    Unrepresentable,
    /// It lies outside the folder that was asked for.
    NotAsked,
    /// It lies in another table's folder.
    InOtherTable,
    /// It is marked already, and waits for the sweep.
    PendingMark,
    /// An operator keeps it.
    ByHand,
    /// It lies under one of `[orphans] protected_prefixes`.
    ProtectedPrefix,
    /// The table refers to nothing in this folder of its own.
    UnusedRoot,
    /// It lies in a folder that is no data or metadata folder, and that the table refers to nothing in.
    ForeignFolder,
    /// A part of its name begins with `_` or `.`.
    Hidden,
    /// It is named after a Flink job of the table, which may still commit it.
    FlinkJob,
    /// The store keeps no time for it.
    UnknownAge,
    /// It is younger than `older_than`, or its time lies in the future.
    TooYoung,
    /// A metadata file that cannot be understood, or is not a table's.
    UnknownMetadata,
    /// A metadata file off the log that is younger than `metadata_older_than`.
    YoungMetadata,
}

impl KeptObject {
    /// All reasons.
    pub const ALL: [Self; 15] = [
        Self::Referenced,
        Self::Unrepresentable,
        Self::NotAsked,
        Self::InOtherTable,
        Self::PendingMark,
        Self::ByHand,
        Self::ProtectedPrefix,
        Self::UnusedRoot,
        Self::ForeignFolder,
        Self::Hidden,
        Self::FlinkJob,
        Self::UnknownAge,
        Self::TooYoung,
        Self::UnknownMetadata,
        Self::YoungMetadata,
    ];

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Referenced => "referenced",
            Self::Unrepresentable => "its key cannot be asked for exactly",
            Self::NotAsked => "outside the folder that was asked for",
            Self::InOtherTable => "in another table's folder",
            Self::PendingMark => "marked already",
            Self::ByHand => "kept by hand",
            Self::ProtectedPrefix => "under a protected prefix",
            Self::UnusedRoot => "in a folder that the table refers to nothing in",
            Self::ForeignFolder => "in a foreign folder",
            Self::Hidden => "hidden",
            Self::FlinkJob => "named after a Flink job",
            Self::UnknownAge => "of unknown age",
            Self::TooYoung => "too young",
            Self::UnknownMetadata => "a metadata file that is not understood",
            Self::YoungMetadata => "a young metadata file off the log",
        }
    }
}

/// The decision on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It stays.
    Keep(KeptObject),
    /// Nothing needs it.
    Orphan(FileKind),
}

/// What decisions depend on beside the object.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OrphanFacts {
    /// The run's time.
    pub now: Timestamp,
    /// Younger objects stay.
    pub older_than: Age,
    /// Younger metadata files stay.
    pub metadata_older_than: Age,
    /// The folders that are listed, none in another.
    pub listed: BTreeSet<Root>,
    /// The table's folders, and those of others.
    #[serde(skip)]
    pub place: Place,
    /// Only what lies here was asked for.
    pub within: Option<Root>,
    /// Of the configuration.
    pub protected: BTreeSet<Root>,
    /// Canonical locations that operators keep.
    pub by_hand: BTreeSet<String>,
    /// Ids that summaries of retained snapshots name.
    pub flink_jobs: BTreeSet<String>,
    /// Partition fields whose own names begin with `_` or `.`.
    pub hidden_fields: BTreeSet<String>,
    /// Listed folders in which nothing is referenced.
    pub unused_roots: BTreeSet<Root>,
    /// Top-level folders that are none of the table's.
    pub foreign_folders: BTreeSet<Root>,
    /// Metadata files that are not understood, or that are no table's.
    pub unknown_metadata: BTreeSet<String>,
}

impl OrphanFacts {
    /// What a table and its folders say; nothing else is known yet.
    pub fn of(state: &TableState, place: &Place, alone: &Exclusive, protected: BTreeSet<Root>) -> Self {
        let jobs = state.snapshots.iter().filter_map(|snapshot| snapshot.summary.get("flink.job-id"));
        let odd = |field: &&String| field.starts_with(['_', '.']);
        Self {
            listed: alone.roots.iter().filter(|root| place.roots.contains(*root)).cloned().collect(),
            place: narrowed(place, alone),
            protected,
            flink_jobs: jobs.filter(|job| !job.is_empty()).cloned().collect(),
            hidden_fields: state.partition_fields.iter().filter(odd).cloned().collect(),
            ..Self::default()
        }
    }
}

/// The table's folders without those that may hold other things, wherever those lie.
fn narrowed(place: &Place, alone: &Exclusive) -> Place {
    let mut place = place.clone();
    let within = |left_out: &&Root| alone.roots.iter().any(|root| root.covers(left_out));
    place.others.extend(alone.left_out.keys().filter(within).cloned());
    place.roots.retain(|root| !alone.left_out.contains_key(root));
    place
}

/// An unreferenced object.
#[derive(Debug, Clone, Copy)]
pub struct Unreferenced<'a> {
    /// Canonical.
    pub location: &'a str,
    /// As listed.
    pub facts: &'a ObjectFacts,
    /// Whether its key can be asked for byte for byte.
    pub is_representable: bool,
    /// Whether an open mark list names it.
    pub is_marked: bool,
}

/// Decides on one object that nothing refers to.
pub fn decide(object: &Unreferenced<'_>, facts: &OrphanFacts, rules: &LocationRules) -> Verdict {
    use KeptObject as K;
    let Ok(location) = rules.parse(object.location) else { return Verdict::Keep(K::Unrepresentable) };
    if !object.is_representable || location.object_path().is_err() {
        return Verdict::Keep(K::Unrepresentable);
    }
    if facts.within.as_ref().is_some_and(|within| !within.contains(&location)) {
        return Verdict::Keep(K::NotAsked);
    }
    if Root::any_contains(&facts.place.others, &location) {
        return Verdict::Keep(K::InOtherTable);
    }
    if object.is_marked {
        return Verdict::Keep(K::PendingMark);
    }
    if facts.by_hand.contains(object.location) {
        return Verdict::Keep(K::ByHand);
    }
    if Root::any_contains(&facts.protected, &location) {
        return Verdict::Keep(K::ProtectedPrefix);
    }
    let Some(root) = facts.listed.iter().find(|root| object.location.starts_with(root.as_str())) else {
        return Verdict::Keep(K::NotAsked);
    };
    if facts.unused_roots.contains(root) {
        return Verdict::Keep(K::UnusedRoot);
    }
    if Root::any_contains(&facts.foreign_folders, &location) {
        return Verdict::Keep(K::ForeignFolder);
    }
    let below = &object.location[root.as_str().len()..];
    if is_hidden(below, &facts.hidden_fields) {
        return Verdict::Keep(K::Hidden);
    }
    let name = location.file_name();
    if facts.flink_jobs.iter().any(|job| name.starts_with(job.as_str())) {
        return Verdict::Keep(K::FlinkJob);
    }
    let Some(modified) = object.facts.modified.filter(|time| time.0 > 0) else {
        return Verdict::Keep(K::UnknownAge);
    };
    let age = facts.now.since(modified);
    // Strictly older, as Spark's action has it; a time in the future is an age below zero.
    if age <= facts.older_than || age < Age::ZERO {
        return Verdict::Keep(K::TooYoung);
    }
    if is_metadata_file(name) {
        if facts.unknown_metadata.contains(object.location) {
            return Verdict::Keep(K::UnknownMetadata);
        }
        if age <= facts.metadata_older_than {
            return Verdict::Keep(K::YoungMetadata);
        }
    }
    Verdict::Orphan(kind_of(below))
}

/// A part of the path below the root that begins with `_` or `.` hides the file, but not where a partition field's
/// own name begins so.
fn is_hidden(below: &str, fields: &BTreeSet<String>) -> bool {
    below.split('/').any(|part| {
        part.starts_with(['_', '.']) && !part.split_once('=').is_some_and(|(field, _)| fields.contains(field))
    })
}

/// What an unreferenced object was, as its name tells. Decides nothing but the order of deletion.
fn kind_of(below: &str) -> FileKind {
    let (folder, name) = below.rsplit_once('/').unwrap_or(("", below));
    let is_in_metadata = folder.split('/').any(|part| part == "metadata");
    let has = |ending: &str| name.ends_with(ending);
    if is_metadata_file(name) {
        FileKind::Metadata
    } else if has(".avro") && name.starts_with("snap-") {
        FileKind::ManifestList
    } else if has(".avro") && is_in_metadata {
        FileKind::Manifest
    } else if has(".stats") || (has(".puffin") && is_in_metadata) {
        FileKind::Statistics
    } else if has(".puffin") || name.contains("-deletes.") {
        FileKind::Delete
    } else if has(".parquet") || has(".orc") || has(".avro") {
        FileKind::Data
    } else {
        FileKind::Other
    }
}

/// How old orphans are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgeBand {
    /// Up to a week.
    Week,
    /// Up to 30 days.
    Month,
    /// Up to 90 days.
    Quarter,
    /// Up to a year.
    Year,
    /// Older.
    Older,
}

impl AgeBand {
    /// The band of this age.
    pub fn of(age: Age) -> Self {
        match age {
            age if age <= Age::days(7) => Self::Week,
            age if age <= Age::days(30) => Self::Month,
            age if age <= Age::days(90) => Self::Quarter,
            age if age <= Age::days(365) => Self::Year,
            _ => Self::Older,
        }
    }

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Week => "up to 7d old",
            Self::Month => "up to 30d old",
            Self::Quarter => "up to 90d old",
            Self::Year => "up to 1y old",
            Self::Older => "older than 1y",
        }
    }
}

/// All decisions in numbers. They add up to what was listed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OrphanCounts {
    /// Everything.
    pub listed: Tally,
    /// What stays, by reason.
    pub kept: BTreeMap<KeptObject, Tally>,
    /// What goes.
    pub orphans: Tally,
    /// The same by kind.
    pub kinds: BTreeMap<FileKind, Tally>,
    /// The same by age.
    pub ages: BTreeMap<AgeBand, Tally>,
    /// The largest of them, with their sizes.
    pub largest: Vec<(u64, String)>,
}

impl OrphanCounts {
    /// Counts a decision.
    pub fn add(&mut self, verdict: Verdict, location: &str, facts: &ObjectFacts, now: Timestamp) {
        self.listed.add(facts.size);
        match verdict {
            Verdict::Keep(because) => self.kept.entry(because).or_default().add(facts.size),
            Verdict::Orphan(kind) => {
                self.orphans.add(facts.size);
                self.kinds.entry(kind).or_default().add(facts.size);
                let age = facts.modified.map_or(Age::ZERO, |modified| now.since(modified));
                self.ages.entry(AgeBand::of(age)).or_default().add(facts.size);
                self.note_large(facts.size, location);
            }
        }
    }

    fn note_large(&mut self, size: u64, location: &str) {
        let before = |(other, text): &(u64, String)| (*other, location) > (size, text.as_str());
        let at = self.largest.partition_point(before);
        if at < LARGEST {
            self.largest.insert(at, (size, location.to_owned()));
            self.largest.truncate(LARGEST);
        }
    }

    /// What stays for this reason.
    pub fn kept_for(&self, because: KeptObject) -> Tally {
        self.kept.get(&because).copied().unwrap_or_default()
    }

    /// What the share of orphans is of: what lies in other tables' folders is none of this table's.
    pub fn own(&self) -> Tally {
        let theirs = self.kept_for(KeptObject::InOtherTable);
        Tally {
            objects: self.listed.objects.saturating_sub(theirs.objects),
            bytes: self.listed.bytes.saturating_sub(theirs.bytes),
        }
    }

    /// Whether every listed object has exactly one decision.
    pub fn adds_up(&self) -> bool {
        let sum = |all: &mut dyn Iterator<Item = &Tally>| {
            all.fold((0, 0), |(objects, bytes), one| (objects + one.objects, bytes + one.bytes))
        };
        let kept = sum(&mut self.kept.values());
        let orphans = (self.orphans.objects, self.orphans.bytes);
        (kept.0 + orphans.0, kept.1 + orphans.1) == (self.listed.objects, self.listed.bytes)
            && sum(&mut self.kinds.values()) == orphans
            && sum(&mut self.ages.values()) == orphans
    }
}

/// Everything that an orphan run on one table would do, but for the list of orphans itself, which may be long.
#[derive(Debug, Clone)]
pub struct OrphansPlan {
    /// Which table.
    pub table: TableName,
    /// Its uuid.
    pub uuid: Uuid,
    /// The metadata file that was loaded after the listing had ended.
    pub metadata_location: String,
    /// What the decisions depended on.
    pub facts: OrphanFacts,
    /// The decisions in numbers.
    pub counts: OrphanCounts,
    /// Hash of the header and of each decision.
    pub id: PlanId,
    /// The header, JSON.
    pub header: String,
}

#[derive(Serialize)]
struct Header<'a> {
    job: &'static str,
    table: &'a TableName,
    uuid: Uuid,
    metadata_location: &'a str,
    facts: &'a OrphanFacts,
    counts: &'a OrphanCounts,
}

/// A line of a plan's decisions.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionLine<'a> {
    /// An orphan.
    Orphan(&'a Entry),
    /// An object that stays, where reasons were asked for.
    Keep {
        /// Which.
        location: &'a str,
        /// Bytes.
        size: u64,
        /// Why.
        because: KeptObject,
    },
}

/// Makes a plan's id while its decisions go by, in their order.
#[derive(Debug, Default)]
pub struct PlanHash(Sha256);

impl PlanHash {
    /// One decision, as it is written.
    pub fn add(&mut self, line: &[u8]) {
        self.0.update(line);
    }

    /// The plan with its id.
    pub fn finish(
        self,
        table: &TableName,
        uuid: Uuid,
        metadata_location: &str,
        facts: OrphanFacts,
        counts: OrphanCounts,
    ) -> Result<OrphansPlan, serde_json::Error> {
        let header = serde_json::to_string(&Header {
            job: "orphans",
            table,
            uuid,
            metadata_location,
            facts: &facts,
            counts: &counts,
        })?;
        let mut hash = Sha256::new();
        hash.update(header.as_bytes());
        hash.update(b"\n");
        hash.update(self.0.finalize());
        Ok(OrphansPlan {
            table: table.clone(),
            uuid,
            metadata_location: metadata_location.to_owned(),
            facts,
            counts,
            id: PlanId::from_hash(&hash.finalize().into()),
            header,
        })
    }
}

impl OrphansPlan {
    /// What a confirmation of this plan allows.
    pub fn bound(&self) -> Bound {
        let Tally { objects, bytes } = self.counts.orphans;
        Bound { objects, bytes, ..Bound::default() }
    }
}

#[cfg(test)]
#[path = "orphans_tests.rs"]
mod tests;
