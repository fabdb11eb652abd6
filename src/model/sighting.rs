//! What one run tells the next about the refs of a table: since when it has seen them, what they said of their own
//! retention, where they left `main`; and which have gone.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::lineage::Lineage;
use super::{Age, Ref, RefKind, RefName, Retention, SnapshotId, TableState, Timestamp};

/// Records of refs that went longer ago than this are forgotten, once nothing hangs on them.
const REMEMBERED: Age = Age::days(400);

/// All that is remembered of the refs of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefMemory {
    /// When it was last looked at, by our clock. Of two memories of one table the later one counts.
    pub looked_at: Option<Timestamp>,
    /// When the newest metadata that was looked at was made, by its writer's clock.
    pub metadata_at: Option<Timestamp>,
    /// The file of that metadata.
    pub metadata_location: String,
    /// The refs that were there.
    pub refs: BTreeMap<RefName, Sighting>,
    /// Those that are gone, in the order in which that was seen.
    pub dropped: Vec<DroppedRef>,
}

/// A ref as runs have seen it, without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// Branch or tag.
    pub kind: RefKind,
    /// What it pointed at when it was last seen.
    pub head: SnapshotId,
    /// By our clock, but not before the metadata in which it was first seen.
    pub first_seen: Timestamp,
    /// What it said of its own retention when it was last seen.
    pub own: Retention,
    /// That, and what vanished from it while its head moved: writers that know no retention leave it out.
    pub in_force: Retention,
    /// Of a branch: the newest snapshot that it had in common with what `main` was, when it was first seen.
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
    /// Whether it was seen to be gone. What we drop is written down before it goes.
    pub is_seen: bool,
    /// When and how it came to be of no more use.
    pub ended: Option<(DropEnd, Timestamp)>,
}

/// How a record of a dropped ref ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropEnd {
    /// Another ref leads to its snapshot, or itself is there again.
    Held,
    /// Its snapshot was expired.
    Expired,
}

/// How the ref of a name that is there now relates to the one that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// It is the same: its head comes from the one that was known.
    Same,
    /// It was set back to an ancestor, by a rollback or by a new branch at the old one's base: nobody can tell.
    SetBack,
    /// One of the two heads is not in the table any more.
    Unknown,
    /// Another one of that name.
    Other,
}

impl RefMemory {
    /// Goes on from what is remembered to what is there now. `grace` is how long the snapshots of a ref that we
    /// dropped stay.
    ///
    /// A ref that is gone is told in `dropped`. One whose head does not come from the head that was known counts as
    /// new, and so does one of which nobody can tell: that only makes it younger. The old ref of that name is gone
    /// only where it is certain that it is another.
    pub fn look(&mut self, location: &str, state: &TableState, now: Timestamp, grace: Age) {
        // A look that took long tells nothing that a later one does not know better. Clocks of writers differ, so
        // the log is asked first.
        let follows = location == self.metadata_location
            || state.metadata_log.iter().any(|entry| entry.location == self.metadata_location);
        if !follows && self.metadata_at.is_some_and(|at| state.last_updated < at) {
            return;
        }
        // A clock that is behind must make nothing older.
        let at = now.max(state.last_updated);
        let lineage = Lineage::new(&state.snapshots);
        let mut was_main = lineage.led_to(state.refs.get(&RefName::from(RefName::MAIN)));
        let on_main = was_main.clone();
        was_main.extend(&state.snapshot_log);

        let known = std::mem::take(&mut self.refs);
        let relation = |name: &RefName, before: &Sighting| state.refs.get(name).map(|r| relation(&lineage, r, before));
        for (name, r) in &state.refs {
            let before = known.get(name).map(|before| (before, relation(name, before).unwrap_or(Relation::Other)));
            // One that is restored has the base that it had: what lies between that and main may be expired.
            let is_it = |gone: &&DroppedRef| gone.r.kind == r.kind && gone.r.snapshot == r.snapshot;
            let had = self.dropped.iter().rev().find(is_it).and_then(|gone| gone.fork_point);
            let base = || fork_point(&lineage, &was_main, name, r).or(had);
            let same = before.filter(|(_, relation)| *relation == Relation::Same).map(|(before, _)| before);
            // From one snapshot of main to another: cut anew, or moved after it, and in either case nothing of its own.
            let is_cut_anew = |before: &Sighting| {
                before.head != r.snapshot && on_main.contains(&before.head) && on_main.contains(&r.snapshot)
            };
            let sighting = Sighting {
                kind: r.kind,
                head: r.snapshot,
                first_seen: same.filter(|before| !is_cut_anew(before)).map_or(at, |before| before.first_seen),
                own: r.retention,
                in_force: match before {
                    Some((before, relation)) if relation != Relation::Other || name.is_main() => in_force(r, before),
                    _ => r.retention,
                },
                fork_point: same.map_or_else(base, |before| before.fork_point),
            };
            self.refs.insert(name.clone(), sighting);
        }
        let gone = known.iter().filter(|(name, before)| {
            !name.is_main() && relation(name, before).is_none_or(|relation| relation == Relation::Other)
        });
        for (name, before) in gone {
            self.gone(name, before, at);
        }
        let led_to = lineage.led_to(state.refs.values());
        for dropped in self.dropped.iter_mut().filter(|dropped| dropped.ended.is_none()) {
            let ours_until = dropped.by.as_ref().map(|_| dropped.at.plus(grace));
            // Restored: should it go again, that counts anew.
            let is_back = dropped.is_seen
                && state
                    .refs
                    .get(&dropped.name)
                    .is_some_and(|r| r.kind == dropped.r.kind && lineage.descends(r.snapshot, dropped.r.snapshot));
            if lineage.get(dropped.r.snapshot).is_none() {
                dropped.ended = Some((DropEnd::Expired, at));
            } else if is_back || led_to.contains(&dropped.r.snapshot) && ours_until.is_none_or(|until| at >= until) {
                dropped.ended = Some((DropEnd::Held, at));
            }
        }
        self.dropped.retain(|dropped| dropped.ended.is_none() || at < dropped.at.plus(REMEMBERED));
        (self.looked_at, self.metadata_at) = (Some(now), Some(state.last_updated));
        location.clone_into(&mut self.metadata_location);
    }

    fn gone(&mut self, name: &RefName, before: &Sighting, at: Timestamp) {
        let is_it = |dropped: &&mut DroppedRef| {
            dropped.ended.is_none() && dropped.name == *name && dropped.r.snapshot == before.head
        };
        if let Some(dropped) = self.dropped.iter_mut().find(is_it) {
            // Written down before it went: only now is it certain that it did.
            if !dropped.is_seen {
                (dropped.at, dropped.is_seen) = (at.max(dropped.at), true);
            }
            return;
        }
        self.dropped.push(DroppedRef {
            name: name.clone(),
            r: Ref { snapshot: before.head, kind: before.kind, retention: before.in_force },
            fork_point: before.fork_point,
            at,
            by: None,
            is_seen: true,
            ended: None,
        });
    }

    /// What is known of these refs, which are about to be dropped.
    pub fn about_to_drop(&self, state: &TableState, names: &[&RefName], by: &str, at: Timestamp) -> Vec<DroppedRef> {
        let of = |name: &&RefName| {
            let r = state.refs.get(*name)?;
            let seen = self.refs.get(*name).filter(|seen| seen.head == r.snapshot && seen.kind == r.kind);
            let retention = seen.map_or(r.retention, |seen| seen.in_force);
            Some(DroppedRef {
                name: (*name).clone(),
                r: Ref { retention, ..r.clone() },
                fork_point: seen.and_then(|seen| seen.fork_point),
                at: at.max(state.last_updated),
                by: Some(by.to_owned()),
                is_seen: false,
                ended: None,
            })
        };
        names.iter().filter_map(of).collect()
    }

    /// Whether this memory was made later than the other.
    pub fn is_later_than(&self, other: &Self) -> bool {
        (self.looked_at, self.metadata_at) > (other.looked_at, other.metadata_at)
    }
}

fn relation(lineage: &Lineage<'_>, r: &Ref, before: &Sighting) -> Relation {
    if r.kind != before.kind {
        return Relation::Other;
    }
    if lineage.descends(r.snapshot, before.head) {
        return Relation::Same;
    }
    if lineage.descends(before.head, r.snapshot) {
        return Relation::SetBack;
    }
    let are_there = lineage.get(before.head).is_some() && lineage.get(r.snapshot).is_some();
    if are_there { Relation::Other } else { Relation::Unknown }
}

fn fork_point(lineage: &Lineage<'_>, was_main: &HashSet<SnapshotId>, name: &RefName, r: &Ref) -> Option<SnapshotId> {
    if name.is_main() || r.kind == RefKind::Tag {
        return None;
    }
    lineage.ancestors(r.snapshot).map(|snapshot| snapshot.id).find(|id| was_main.contains(id))
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
