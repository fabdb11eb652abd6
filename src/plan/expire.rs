//! The plan of an expiry as a whole: refs and snapshots that go, the commits they go in, and the files that
//! nothing uses afterwards.

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::cleanup::{CleanupPlan, KeptFile};
use super::refs::{RefDecision, RefFacts};
use super::retention::{RetentionPlan, SnapshotDecision};
use crate::model::{Candidate, PlanId, Ref, RefName, SnapshotId, TableName};
use crate::state::{Bound, Retained};

/// Everything that an expiry of one table would do.
#[derive(Debug, Clone)]
pub struct ExpirePlan {
    /// Which table.
    pub table: TableName,
    /// Its uuid.
    pub uuid: Uuid,
    /// The metadata file that it was decided on.
    pub metadata_location: String,
    /// Refs and snapshots.
    pub retention: RetentionPlan,
    /// Files.
    pub cleanup: CleanupPlan,
    /// Manifests that snapshots which stay use, as read at this proof.
    pub retained: Vec<Retained>,
    /// Files of expired snapshots that cannot be read, with the reason: what only they name is left for the
    /// orphan job.
    pub left: Vec<String>,
    /// Files whose key a retained snapshot names under another authority, with that name.
    pub conflicts: Vec<(String, String)>,
    /// Each snapshot that goes, with the commit that removes it.
    pub steps: BTreeMap<SnapshotId, u32>,
}

/// The header that is hashed with the decisions.
#[derive(Debug, Serialize)]
struct Header<'a> {
    job: &'static str,
    table: &'a TableName,
    uuid: Uuid,
    metadata_location: &'a str,
    values: &'a super::values::ExpireValues,
    facts: &'a RefFacts,
    refs_dropped: usize,
    snapshots_expired: usize,
    files_marked: usize,
    files_kept: BTreeMap<&'static str, usize>,
    files_unreadable: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Decision<'a> {
    Ref(&'a RefDecision),
    SetRetention { name: &'a RefName, to: &'a Ref },
    Snapshot(&'a SnapshotDecision),
    Mark(&'a Candidate),
    Keep { file: &'a Candidate, because: KeptFile },
}

/// A plan as it is stored and named.
#[derive(Debug, Clone)]
pub struct Written {
    /// The first 32 bits of the hash of header and decisions.
    pub id: PlanId,
    /// JSON.
    pub header: String,
    /// A line of JSON for each decision.
    pub decisions: Vec<u8>,
}

/// In which commit each expired snapshot goes: at most `per_commit` in each, the oldest first.
pub fn steps(retention: &RetentionPlan, per_commit: u32) -> BTreeMap<SnapshotId, u32> {
    let per_commit = per_commit.max(1) as usize;
    retention
        .expired()
        .enumerate()
        .map(|(index, decision)| (decision.id, u32::try_from(index / per_commit).unwrap_or(u32::MAX)))
        .collect()
}

impl ExpirePlan {
    /// The number of commits; 1 where only refs go.
    pub fn commits(&self) -> u32 {
        self.steps.values().max().map_or(u32::from(!self.retention.is_empty()), |last| last + 1)
    }

    /// The refs that the commit with this number drops: all go with the first.
    pub fn refs_of(&self, step: u32) -> Vec<RefName> {
        if step > 0 {
            return Vec::new();
        }
        self.retention.dropped_refs().map(|decision| decision.name.clone()).collect()
    }

    /// The snapshots that the commit with this number removes.
    pub fn snapshots_of(&self, step: u32) -> Vec<SnapshotId> {
        self.steps.iter().filter(|(_, of)| **of == step).map(|(id, _)| *id).collect()
    }

    /// The files that nothing uses after the commit with this number, in the order of deletion.
    pub fn files_of(&self, step: u32) -> impl Iterator<Item = &Candidate> {
        self.cleanup.mark.iter().filter(move |candidate| candidate.step == step)
    }

    /// What a confirmation of this plan allows.
    pub fn bound(&self) -> Bound {
        Bound {
            refs: self.retention.dropped_refs().map(|decision| decision.name.clone()).collect(),
            snapshots: self.steps.len() as u64,
            objects: self.cleanup.mark.len() as u64,
            bytes: self.cleanup.mark.iter().filter_map(|candidate| candidate.recorded_size).sum(),
        }
    }

    /// The plan as bytes: the same plan gives the same bytes, and so the same id.
    pub fn write(&self) -> Result<Written, serde_json::Error> {
        let mut files_kept = BTreeMap::new();
        for (_, because) in &self.cleanup.keep {
            *files_kept.entry(because.as_str()).or_insert(0) += 1;
        }
        let header = serde_json::to_string(&Header {
            job: "expire",
            table: &self.table,
            uuid: self.uuid,
            metadata_location: &self.metadata_location,
            values: &self.retention.values,
            facts: &self.retention.facts,
            refs_dropped: self.retention.dropped_refs().count(),
            snapshots_expired: self.steps.len(),
            files_marked: self.cleanup.mark.len(),
            files_kept,
            files_unreadable: &self.left,
        })?;
        let mut decisions = Vec::new();
        let refs = self.retention.refs.iter().map(Decision::Ref);
        let to_set = self.retention.to_set.iter().map(|(name, to)| Decision::SetRetention { name, to });
        let snapshots = self.retention.snapshots.iter().map(Decision::Snapshot);
        let marks = self.cleanup.mark.iter().map(Decision::Mark);
        let keeps = self.cleanup.keep.iter().map(|(file, because)| Decision::Keep { file, because: *because });
        for decision in refs.chain(to_set).chain(snapshots).chain(marks).chain(keeps) {
            serde_json::to_writer(&mut decisions, &decision)?;
            decisions.push(b'\n');
        }
        let mut hash = Sha256::new();
        hash.update(header.as_bytes());
        hash.update(b"\n");
        hash.update(&decisions);
        Ok(Written { id: PlanId::from_hash(&hash.finalize().into()), header, decisions })
    }
}
