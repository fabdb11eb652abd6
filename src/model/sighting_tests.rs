use super::*;
use crate::model::table::tests::empty_table;
use crate::model::{ManifestSource, MetadataLogEntry, Snapshot};

/// 1 ← 2 ← 3 and 1 ← 4 ← 5; 7's parents were expired.
const ALL: &[(i64, Option<i64>)] = &[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(1)), (5, Some(4)), (7, Some(6))];
const GRACE: Age = Age(24);

fn retention(min: Option<i64>, age: Option<i64>) -> Retention {
    Retention { min_snapshots_to_keep: min, max_snapshot_age_ms: None, max_ref_age_ms: age }
}

fn branch(snapshot: i64, retention: Retention) -> Ref {
    Ref { snapshot: SnapshotId(snapshot), kind: RefKind::Branch, retention }
}

fn at(id: i64) -> Ref {
    branch(id, Retention::default())
}

fn pr() -> RefName {
    "pr".into()
}

/// A table of this time.
fn table(updated: i64, main: Option<i64>, pr_at: Option<Ref>) -> TableState {
    let snapshots = ALL.iter().map(|(id, parent)| Snapshot {
        id: SnapshotId(*id),
        parent: parent.map(SnapshotId),
        at: Timestamp(0),
        sequence_number: 0,
        manifests: ManifestSource::Inline(Vec::new()),
        summary: BTreeMap::new(),
    });
    let main = main.map(|id| (RefName::from(RefName::MAIN), at(id)));
    let refs = main.into_iter().chain(pr_at.map(|r| (pr(), r))).collect();
    TableState { snapshots: snapshots.collect(), refs, last_updated: Timestamp(updated), ..empty_table() }
}

/// Looks at each table at its time, one after another.
fn looked(tables: &[TableState]) -> RefMemory {
    let mut memory = RefMemory::default();
    for table in tables {
        memory.look(&table.last_updated.show(), table, table.last_updated, GRACE);
    }
    memory
}

fn gone(memory: &RefMemory) -> Vec<(i64, i64, Option<DropEnd>)> {
    let of = |gone: &DroppedRef| (gone.r.snapshot.0, gone.at.0, gone.ended.map(|(how, _)| how));
    memory.dropped.iter().map(of).collect()
}

#[test]
fn a_ref_is_the_same_while_its_head_comes_from_the_head_that_was_seen() {
    for (before, after, is_same, is_gone, what) in [
        (2, 2, true, false, "not moved"),
        (2, 3, true, false, "moved on"),
        (1, 3, true, false, "moved on by two"),
        (6, 7, true, false, "the old head was expired, but its child names it"),
        (3, 2, false, false, "rolled back"),
        (4, 3, false, true, "another line"),
        (8, 7, false, false, "nobody can tell, and there is nothing left to free"),
        (3, 99, false, false, "dangling"),
    ] {
        let memory = looked(&[table(10, None, Some(at(before))), table(20, None, Some(at(after)))]);
        let sighting = memory.refs[&pr()];
        assert_eq!((sighting.first_seen.0, sighting.head.0), (if is_same { 10 } else { 20 }, after), "{what}");
        assert_eq!(gone(&memory), vec![(before, 20, None); usize::from(is_gone)], "{what}");
    }
    let tag = Ref { kind: RefKind::Tag, ..at(2) };
    let memory = looked(&[table(10, None, Some(at(2))), table(20, None, Some(tag))]);
    assert_eq!(memory.refs[&pr()].first_seen.0, 20, "a tag is no branch");
    assert_eq!(gone(&memory), [(2, 20, Some(DropEnd::Held))], "which the tag holds");
    // Cut anew every day from where main is: the log of a busy table is too short to tell.
    let memory = looked(&[table(10, Some(2), Some(at(1))), table(20, Some(3), Some(at(2)))]);
    assert_eq!((memory.refs[&pr()].first_seen.0, memory.dropped.len()), (20, 0));
}

#[test]
fn a_ref_that_is_gone_is_told_once_with_all_that_it_takes_to_set_it_again() {
    let there = |time| table(time, Some(1), Some(branch(3, retention(Some(2), Some(7)))));
    let expected = DroppedRef {
        name: pr(),
        r: branch(3, retention(Some(2), Some(7))),
        fork_point: Some(SnapshotId(1)),
        at: Timestamp(20),
        by: None,
        is_seen: true,
        ended: None,
    };
    for main in [Some(1), None] {
        let memory = looked(&[there(10), table(20, main, None), table(30, main, None)]);
        assert_eq!(memory.dropped, std::slice::from_ref(&expected), "main is never among them");
    }
    let memory = looked(&[there(10), table(20, Some(1), None), there(30)]);
    assert_eq!(memory.refs[&pr()].first_seen.0, 30);
    assert_eq!(gone(&memory), [(3, 20, Some(DropEnd::Held))]);
    // Its snapshot is expired.
    let mut expired = table(30, Some(1), None);
    expired.snapshots.retain(|snapshot| snapshot.id.0 != 3);
    let memory = looked(&[there(10), table(20, Some(1), None), expired]);
    assert_eq!(gone(&memory), [(3, 20, Some(DropEnd::Expired))]);
}

#[test]
fn a_look_at_older_metadata_changes_nothing_and_a_clock_that_is_behind_makes_nothing_older() {
    let mut memory = looked(&[table(10, Some(1), Some(at(3))), table(20, Some(1), Some(at(3)))]);
    let before = memory.clone();
    memory.look("15", &table(15, Some(1), None), Timestamp(40), GRACE);
    assert_eq!(memory, before);
    // Its writer's clock was behind; the log tells that it comes later.
    let mut late = table(15, Some(1), None);
    late.metadata_log.push(MetadataLogEntry { at: Timestamp(20), location: memory.metadata_location.clone() });
    memory.look("late", &late, Timestamp(41), GRACE);
    assert_eq!(gone(&memory), [(3, 41, None)]);
    let mut memory = RefMemory::default();
    memory.look("100", &table(100, Some(1), Some(at(3))), Timestamp(5), GRACE);
    assert_eq!(memory.refs[&pr()].first_seen.0, 100);
    memory.look("101", &table(101, Some(1), None), Timestamp(6), GRACE);
    assert_eq!(gone(&memory), [(3, 101, None)]);
}

#[test]
fn what_we_drop_counts_from_when_it_is_gone_and_lasts_its_grace_whoever_else_holds_its_snapshots() {
    let there = |time| table(time, Some(1), Some(branch(3, retention(None, Some(7)))));
    let mut memory = looked(&[there(10)]);
    let drops = memory.about_to_drop(&there(10), &[&pr()], "me", Timestamp(12));
    assert_eq!((drops[0].r.clone(), drops[0].is_seen), (branch(3, retention(None, Some(7))), false));
    memory.dropped.extend(drops);
    // Its commit is late: until then it is there.
    memory.look("20", &there(20), Timestamp(20), GRACE);
    assert_eq!(gone(&memory), [(3, 12, None)]);
    memory.look("30", &table(30, Some(1), None), Timestamp(30), GRACE);
    assert_eq!((gone(&memory), memory.dropped[0].by.as_deref()), (vec![(3, 30, None)], Some("me")));
    // Somebody tags it, to be safe: what it kept beside its head stays all the same.
    let mut tagged = table(40, Some(1), None);
    tagged.refs.insert("t".into(), Ref { kind: RefKind::Tag, ..at(3) });
    memory.look("40", &tagged, Timestamp(40), GRACE);
    assert_eq!(gone(&memory), [(3, 30, None)]);
    memory.look("54", &TableState { last_updated: Timestamp(54), ..tagged }, Timestamp(54), GRACE);
    assert_eq!(gone(&memory), [(3, 30, Some(DropEnd::Held))]);
    // Restored, and dropped by somebody else: that counts anew.
    let mut memory = looked(&[there(10)]);
    memory.dropped.extend(memory.about_to_drop(&there(10), &[&pr()], "me", Timestamp(12)));
    for (time, table) in [(13, table(13, Some(1), None)), (20, there(20)), (25, table(25, Some(1), None))] {
        memory.look(&time.to_string(), &table, Timestamp(time), GRACE);
    }
    assert_eq!(gone(&memory), [(3, 13, Some(DropEnd::Held)), (3, 25, None)]);
    // One that failed, and is there when its grace is over, is of no more use.
    let mut memory = looked(&[there(10)]);
    let drops = memory.about_to_drop(&there(10), &[&pr()], "me", Timestamp(12));
    memory.dropped.extend(drops);
    memory.look("36", &there(36), Timestamp(36), GRACE);
    assert_eq!(gone(&memory), [(3, 12, Some(DropEnd::Held))]);
    memory.look("50", &table(50, Some(1), None), Timestamp(50), GRACE);
    assert_eq!(gone(&memory), [(3, 12, Some(DropEnd::Held)), (3, 50, None)]);
}

#[test]
fn retention_is_lost_only_while_the_head_moves_and_not_by_another_branch_of_that_name() {
    let full = retention(Some(2), Some(7));
    let none = Retention::default();
    for (before, after, in_force, what) in [
        ((1, full), (2, none), full, "a writer left it out"),
        ((1, full), (1, none), none, "somebody took it away"),
        ((1, full), (2, retention(None, Some(9))), retention(Some(2), Some(9)), "what is there counts"),
        ((1, none), (2, full), full, "set later"),
        ((1, full), (4, full), full, "kept"),
        ((2, full), (4, none), none, "another branch of that name"),
        ((3, full), (2, none), full, "rolled back"),
        ((8, full), (7, none), full, "nobody can tell"),
    ] {
        let (before, after) = (branch(before.0, before.1), branch(after.0, after.1));
        let memory = looked(&[table(10, None, Some(before.clone())), table(20, None, Some(after.clone()))]);
        let sighting = memory.refs[&pr()];
        assert_eq!((sighting.own, sighting.in_force), (after.retention, in_force), "{what}");
        // At the same head it stays lost.
        let memory = looked(&[
            table(10, None, Some(before)),
            table(20, None, Some(after.clone())),
            table(30, None, Some(after)),
        ]);
        assert_eq!(memory.refs[&pr()].in_force, in_force, "{what}");
    }
    // Main is never another.
    let with_main = |time, r: Ref| {
        let mut table = table(time, None, None);
        table.refs.insert(RefName::MAIN.into(), r);
        table
    };
    let memory = looked(&[with_main(10, branch(3, full)), with_main(20, branch(5, none))]);
    assert_eq!(memory.refs[&RefName::from(RefName::MAIN)].in_force, full);
}

#[test]
fn the_fork_point_is_where_a_branch_left_main_when_it_was_first_seen() {
    for (main, head, fork_point) in [(Some(3), 4, Some(1)), (Some(3), 2, Some(2)), (Some(3), 7, None), (None, 3, None)]
    {
        let memory = looked(&[table(10, main, Some(at(head)))]);
        assert_eq!(memory.refs[&pr()].fork_point, fork_point.map(SnapshotId), "{main:?} {head}");
        if main.is_some() {
            assert_eq!(memory.refs[&RefName::from(RefName::MAIN)].fork_point, None);
        }
    }
    // Cut from what a rollback of main left behind.
    let mut rolled_back = table(10, Some(3), Some(at(5)));
    rolled_back.snapshot_log = [1, 4, 1, 2, 3].map(SnapshotId).into();
    assert_eq!(looked(&[rolled_back]).refs[&pr()].fork_point, Some(SnapshotId(4)));
    // Restored, it has the base that it had, though nobody could tell that any more.
    let there = table(10, Some(3), Some(at(5)));
    let mut gone = table(20, Some(3), None);
    gone.snapshots.retain(|snapshot| snapshot.id.0 != 2);
    let restored =
        TableState { refs: table(30, Some(3), Some(at(5))).refs, last_updated: Timestamp(30), ..gone.clone() };
    assert_eq!(looked(std::slice::from_ref(&restored)).refs[&pr()].fork_point, None);
    assert_eq!(looked(&[there, gone, restored]).refs[&pr()].fork_point, Some(SnapshotId(1)));
    // Main was moved onto the branch: the branch's base stays the one that it was cut from.
    let memory = looked(&[table(10, Some(1), Some(at(2))), table(20, Some(3), Some(at(3)))]);
    assert_eq!(memory.refs[&pr()].fork_point, Some(SnapshotId(1)));
}

#[test]
fn of_two_memories_the_later_one_counts() {
    let early = looked(&[table(10, None, None)]);
    let mut later = early.clone();
    later.look("11", &table(11, None, None), Timestamp(11), GRACE);
    assert!(later.is_later_than(&early) && !early.is_later_than(&later) && !early.is_later_than(&early));
    assert!(early.is_later_than(&RefMemory::default()));
}
