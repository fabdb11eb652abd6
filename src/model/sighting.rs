//! What one run tells the next about the refs of a table: since when it has seen them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lineage::Lineage;
use super::{RefName, SnapshotId, TableState, Timestamp};

/// A ref as runs have seen it, without a break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// What it pointed at when it was last seen.
    pub head: SnapshotId,
    /// By our clock.
    pub first_seen: Timestamp,
    /// By our clock.
    pub last_seen: Timestamp,
}

/// When a ref was created, as far as anybody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Creation {
    /// The head that it was found out for. With another head the ref may be another one of the same name.
    pub head: SnapshotId,
    /// Not later than this.
    pub at: Timestamp,
}

/// What is known of the refs once the table was seen like this. A ref that is not there is forgotten. One whose
/// head does not come from the head that was known is a new ref of the same name, and so is one of which nobody
/// can tell, because what lies between was expired: that only makes it younger.
pub fn see(state: &TableState, known: &BTreeMap<RefName, Sighting>, now: Timestamp) -> BTreeMap<RefName, Sighting> {
    let lineage = Lineage::new(&state.snapshots);
    let refs = state.refs.iter().map(|(name, r)| {
        let before = known.get(name).filter(|before| lineage.descends(r.snapshot, before.head));
        let first_seen = before.map_or(now, |before| before.first_seen.min(now));
        (name.clone(), Sighting { head: r.snapshot, first_seen, last_seen: now })
    });
    refs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::table::tests::empty_table;
    use crate::model::{ManifestSource, Ref, RefKind, Retention, Snapshot};

    fn table(snapshots: &[(i64, Option<i64>)], pr: Option<i64>) -> TableState {
        let snapshots = snapshots.iter().map(|(id, parent)| Snapshot {
            id: SnapshotId(*id),
            parent: parent.map(SnapshotId),
            at: Timestamp(0),
            sequence_number: 0,
            manifests: ManifestSource::Inline(Vec::new()),
            summary: BTreeMap::new(),
        });
        let r = |id| Ref { snapshot: SnapshotId(id), kind: RefKind::Branch, retention: Retention::default() };
        let refs = pr.map(|id| (RefName::from("pr"), r(id)));
        TableState { snapshots: snapshots.collect(), refs: refs.into_iter().collect(), ..empty_table() }
    }

    #[test]
    fn a_ref_is_the_same_while_its_head_comes_from_the_head_that_was_seen() {
        // 1 ← 2 ← 3 and 1 ← 4; 7's parents were expired.
        let all: &[(i64, Option<i64>)] = &[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(1)), (7, Some(6))];
        for (before, after, is_same, what) in [
            (2, 2, true, "not moved"),
            (2, 3, true, "moved on"),
            (1, 3, true, "moved on by two"),
            (6, 7, true, "the old head was expired, but its child names it"),
            (3, 2, false, "rolled back"),
            (4, 3, false, "another line"),
            (5, 7, false, "nobody can tell"),
            (3, 99, false, "dangling"),
        ] {
            let known = see(&table(all, Some(before)), &BTreeMap::new(), Timestamp(10));
            let seen = see(&table(all, Some(after)), &known, Timestamp(20));
            let first_seen = Timestamp(if is_same { 10 } else { 20 });
            let expected = Sighting { head: SnapshotId(after), first_seen, last_seen: Timestamp(20) };
            assert_eq!(seen[&RefName::from("pr")], expected, "{what}");
        }
    }

    #[test]
    fn a_ref_that_was_gone_in_between_is_new() {
        let there = table(&[(1, None)], Some(1));
        let known = see(&there, &BTreeMap::new(), Timestamp(10));
        let gone = see(&table(&[(1, None)], None), &known, Timestamp(20));
        assert_eq!(gone, BTreeMap::new());
        assert_eq!(see(&there, &gone, Timestamp(30))[&RefName::from("pr")].first_seen, Timestamp(30));
        // A clock that was set back makes nothing younger.
        assert_eq!(see(&there, &known, Timestamp(5))[&RefName::from("pr")].first_seen, Timestamp(5));
    }
}
