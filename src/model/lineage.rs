//! The one walk up a chain of parents.

use std::collections::{HashMap, HashSet};

use super::{Ref, RefKind, Snapshot, SnapshotId};

/// Snapshots by id, and their parents.
#[derive(Debug, Clone)]
pub struct Lineage<'a> {
    by_id: HashMap<SnapshotId, &'a Snapshot>,
}

impl<'a> Lineage<'a> {
    /// The lineage of these snapshots; of two with one id the last counts, as in Java.
    pub fn new(snapshots: &'a [Snapshot]) -> Self {
        Self { by_id: snapshots.iter().map(|snapshot| (snapshot.id, snapshot)).collect() }
    }

    /// The snapshot with this id, if the metadata still has it.
    pub fn get(&self, id: SnapshotId) -> Option<&'a Snapshot> {
        self.by_id.get(&id).copied()
    }

    /// Whether `head` is `ancestor`, or comes from it. `false` also where nobody can tell, because what lies
    /// between was expired.
    pub fn descends(&self, head: SnapshotId, ancestor: SnapshotId) -> bool {
        // The last one that is there still names its parent.
        head == ancestor || self.ancestors(head).any(|s| s.id == ancestor || s.parent == Some(ancestor))
    }

    /// Every ancestor of these branches, and the target of every tag among them.
    pub fn led_to<'r>(&self, refs: impl IntoIterator<Item = &'r Ref>) -> HashSet<SnapshotId> {
        let mut all: HashSet<SnapshotId> = HashSet::new();
        let mut walked: HashSet<SnapshotId> = HashSet::new();
        for r in refs {
            if r.kind == RefKind::Branch {
                // Where another branch was walked already, so was the rest.
                let new = self.ancestors(r.snapshot).map(|s| s.id).take_while(|id| !walked.contains(id));
                walked.extend(new.collect::<Vec<_>>());
            } else {
                all.insert(r.snapshot);
            }
        }
        all.extend(walked);
        all
    }

    /// `head` and its ancestors, newest first. Ends where a parent is not in the metadata any more, and
    /// at a snapshot already met: damaged metadata may hold a cycle.
    pub fn ancestors(&self, head: SnapshotId) -> Ancestors<'_, 'a> {
        Ancestors { lineage: self, next: Some(head), met: HashSet::new() }
    }
}

/// See [`Lineage::ancestors`].
#[derive(Debug)]
pub struct Ancestors<'l, 'a> {
    lineage: &'l Lineage<'a>,
    next: Option<SnapshotId>,
    met: HashSet<SnapshotId>,
}

impl<'a> Iterator for Ancestors<'_, 'a> {
    type Item = &'a Snapshot;

    fn next(&mut self) -> Option<&'a Snapshot> {
        let id = self.next.take()?;
        if !self.met.insert(id) {
            return None;
        }
        let snapshot = self.lineage.get(id)?;
        self.next = snapshot.parent;
        Some(snapshot)
    }
}
