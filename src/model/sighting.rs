//! What one run tells the next about the refs of a table: since when it has seen them, what they said of their own
//! retention, where they left `main`; and which have gone.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::lineage::Lineage;
use super::{Ref, RefKind, RefName, Retention, SnapshotId, TableState, Timestamp};

/// A ref as runs have seen it, without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Branch or tag.
    pub kind: RefKind,
    /// What it pointed at when it was last seen.
    pub head: SnapshotId,
    /// By our clock.
    pub first_seen: Timestamp,
    /// By our clock.
    pub last_seen: Timestamp,
    /// What it said of its own retention when it was last seen.
    pub own: Retention,
    /// That, and what vanished from it while its head moved: writers that know no retention leave it out.
    pub in_force: Retention,
    /// Of a branch: the newest snapshot that it had in common with `main` when it was first seen.
    pub fork_point: Option<SnapshotId>,
}

/// When a ref was created, as far as anybody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Creation {
    /// The head that it was found out for. With another head the ref may be another one of the same name.
    pub head: SnapshotId,
    /// Not later than this.
    pub at: Timestamp,
}

/// A ref that is gone: what it takes to keep its snapshots for a while, to set it again, and to free them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedRef {
    /// Its name.
    pub name: RefName,
    /// What it was when it was last seen, with the retention in force.
    pub r: Ref,
    /// Where it left `main`.
    pub fork_point: Option<SnapshotId>,
    /// When we dropped it, or first saw that it was gone.
    pub at: Timestamp,
    /// Who dropped it; `None`: somebody else than we.
    pub by: Option<String>,
}

/// What a look at a table tells about its refs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Every ref that is there.
    pub refs: BTreeMap<RefName, Sighting>,
    /// Refs that are gone, and were there at the last look.
    pub gone: Vec<DroppedRef>,
}

/// What is known of the refs once the table was seen like this. One whose head does not come from the head that was
/// known is a new ref of the same name, and so is one of which nobody can tell, because what lies between was
/// expired: that only makes it younger.
///
/// The old ref of that name is gone. Not so one that was set back to an ancestor of its head: whether that was a
/// rollback or a new branch at the old one's base nobody can tell, and a rollback may be taken back.
///
/// `fork_points` are those of refs that are not known: what is left of a lost memory, where the table still has them.
pub fn see(
    state: &TableState,
    known: &BTreeMap<RefName, Sighting>,
    fork_points: &BTreeMap<RefName, SnapshotId>,
    now: Timestamp,
) -> Seen {
    let lineage = Lineage::new(&state.snapshots);
    let main = state.refs.get(&RefName::from(RefName::MAIN));
    let on_main = lineage.led_to(main);
    let is_same = |r: &Ref, before: &Sighting| r.kind == before.kind && lineage.descends(r.snapshot, before.head);
    let sighting = |(name, r): (&RefName, &Ref)| {
        let before = known.get(name).filter(|before| is_same(r, before));
        let first_seen = before.map_or(now, |before| before.first_seen.min(now));
        let fork_point = match before {
            Some(before) => before.fork_point,
            None if known.contains_key(name) => fork_point(&lineage, &on_main, name, r),
            None => told(&lineage, fork_points, name, r).or_else(|| fork_point(&lineage, &on_main, name, r)),
        };
        let in_force = before.map_or(r.retention, |before| in_force(r, before));
        let (kind, head, own) = (r.kind, r.snapshot, r.retention);
        (name.clone(), Sighting { kind, head, first_seen, last_seen: now, own, in_force, fork_point })
    };
    let gone = |(name, before): (&RefName, &Sighting)| {
        let is_gone = !name.is_main()
            && lineage.get(before.head).is_some()
            && state.refs.get(name).is_none_or(|r| {
                let is_set_back = r.kind == before.kind && lineage.descends(before.head, r.snapshot);
                !is_same(r, before) && !is_set_back
            });
        is_gone.then(|| DroppedRef {
            name: name.clone(),
            r: Ref { snapshot: before.head, kind: before.kind, retention: before.in_force },
            fork_point: before.fork_point,
            at: now,
            by: None,
        })
    };
    Seen { refs: state.refs.iter().map(sighting).collect(), gone: known.iter().filter_map(gone).collect() }
}

fn told(
    lineage: &Lineage<'_>,
    fork_points: &BTreeMap<RefName, SnapshotId>,
    name: &RefName,
    r: &Ref,
) -> Option<SnapshotId> {
    let is_branch = r.kind == RefKind::Branch && !name.is_main();
    fork_points.get(name).copied().filter(|id| is_branch && lineage.get(*id).is_some())
}

fn fork_point(lineage: &Lineage<'_>, on_main: &HashSet<SnapshotId>, name: &RefName, r: &Ref) -> Option<SnapshotId> {
    if name.is_main() || r.kind == RefKind::Tag {
        return None;
    }
    lineage.ancestors(r.snapshot).map(|snapshot| snapshot.id).find(|id| on_main.contains(id))
}

/// A setting that is gone was lost if the head moved in the same go; with the head where it was, somebody took it
/// away.
fn in_force(r: &Ref, before: &Sighting) -> Retention {
    let has_moved = r.snapshot != before.head;
    let of = |setting: fn(&Retention) -> Option<i64>| {
        let is_lost = has_moved || setting(&before.own).is_none();
        setting(&r.retention).or_else(|| setting(&before.in_force).filter(|_| is_lost))
    };
    Retention {
        min_snapshots_to_keep: of(|retention| retention.min_snapshots_to_keep),
        max_snapshot_age_ms: of(|retention| retention.max_snapshot_age_ms),
        max_ref_age_ms: of(|retention| retention.max_ref_age_ms),
    }
}

#[cfg(test)]
#[path = "sighting_tests.rs"]
mod tests;
