use super::*;
use crate::model::table::tests::empty_table;
use crate::model::{ManifestSource, Snapshot};

/// 1 ← 2 ← 3 and 1 ← 4; 7's parents were expired.
const ALL: &[(i64, Option<i64>)] = &[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(1)), (7, Some(6))];

fn retention(min: Option<i64>, age: Option<i64>) -> Retention {
    Retention { min_snapshots_to_keep: min, max_snapshot_age_ms: None, max_ref_age_ms: age }
}

fn branch(snapshot: i64, retention: Retention) -> Ref {
    Ref { snapshot: SnapshotId(snapshot), kind: RefKind::Branch, retention }
}

fn table(main: Option<i64>, pr: Option<Ref>) -> TableState {
    let snapshots = ALL.iter().map(|(id, parent)| Snapshot {
        id: SnapshotId(*id),
        parent: parent.map(SnapshotId),
        at: Timestamp(0),
        sequence_number: 0,
        manifests: ManifestSource::Inline(Vec::new()),
        summary: BTreeMap::new(),
    });
    let main = main.map(|id| (RefName::from(RefName::MAIN), branch(id, Retention::default())));
    let refs = main.into_iter().chain(pr.map(|pr| (RefName::from("pr"), pr))).collect();
    TableState { snapshots: snapshots.collect(), refs, ..empty_table() }
}

fn at(id: i64) -> Ref {
    branch(id, Retention::default())
}

fn see_refs(state: &TableState, known: &BTreeMap<RefName, Sighting>, now: Timestamp) -> Seen {
    see(state, known, &BTreeMap::new(), now)
}

fn seen(state: &TableState, before: &TableState) -> (Seen, Sighting) {
    let first = see_refs(before, &BTreeMap::new(), Timestamp(10));
    assert_eq!(first.gone, []);
    let seen = see_refs(state, &first.refs, Timestamp(20));
    (seen, first.refs[&RefName::from("pr")])
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
        (5, 7, false, false, "nobody can tell, and there is nothing left to free"),
        (3, 99, false, true, "dangling"),
    ] {
        let (seen, _) = seen(&table(None, Some(at(after))), &table(None, Some(at(before))));
        let sighting = seen.refs[&RefName::from("pr")];
        assert_eq!(sighting.first_seen, Timestamp(if is_same { 10 } else { 20 }), "{what}");
        assert_eq!((sighting.head, sighting.last_seen), (SnapshotId(after), Timestamp(20)), "{what}");
        assert_eq!(
            seen.gone.iter().map(|gone| gone.r.snapshot.0).collect::<Vec<_>>(),
            vec![before; usize::from(is_gone)],
            "{what}"
        );
    }
    let tag = Ref { kind: RefKind::Tag, ..branch(2, Retention::default()) };
    let (seen, _) = seen(&table(None, Some(tag)), &table(None, Some(at(2))));
    assert_eq!((seen.refs[&RefName::from("pr")].first_seen, seen.gone.len()), (Timestamp(20), 1), "a tag is no branch");
}

#[test]
fn a_ref_that_is_gone_is_told_once_with_all_that_it_takes_to_set_it_again() {
    let there = table(Some(1), Some(branch(3, retention(Some(2), Some(7)))));
    let known = see_refs(&there, &BTreeMap::new(), Timestamp(10)).refs;
    let (gone, main_too) = (table(Some(1), None), table(None, None));
    let expected = DroppedRef {
        name: "pr".into(),
        r: branch(3, retention(Some(2), Some(7))),
        fork_point: Some(SnapshotId(1)),
        at: Timestamp(20),
        by: None,
    };
    for state in [&gone, &main_too] {
        let after = see_refs(state, &known, Timestamp(20));
        assert_eq!(after.gone, std::slice::from_ref(&expected), "main is never among them");
        assert_eq!(see_refs(state, &after.refs, Timestamp(30)).gone, []);
    }
    let back = see_refs(&there, &see_refs(&gone, &known, Timestamp(20)).refs, Timestamp(30));
    assert_eq!(back.refs[&RefName::from("pr")].first_seen, Timestamp(30));
    // A clock that was set back makes nothing younger.
    assert_eq!(see_refs(&there, &known, Timestamp(5)).refs[&RefName::from("pr")].first_seen, Timestamp(5));
}

#[test]
fn retention_is_lost_only_while_the_head_moves() {
    let full = retention(Some(2), Some(7));
    for (before, after, in_force, what) in [
        ((1, full), (2, Retention::default()), full, "a writer left it out"),
        ((1, full), (1, Retention::default()), Retention::default(), "somebody took it away"),
        ((1, full), (2, retention(None, Some(9))), retention(Some(2), Some(9)), "what is there counts"),
        ((1, Retention::default()), (2, full), full, "set later"),
        ((1, full), (4, full), full, "kept"),
        ((2, full), (4, Retention::default()), Retention::default(), "another branch of that name"),
    ] {
        let (seen, first) =
            seen(&table(None, Some(branch(after.0, after.1))), &table(None, Some(branch(before.0, before.1))));
        assert_eq!((first.own, first.in_force), (before.1, before.1), "{what}");
        let sighting = seen.refs[&RefName::from("pr")];
        assert_eq!((sighting.own, sighting.in_force), (after.1, in_force), "{what}");
        // At the same head it stays lost; given again, it is the ref's own.
        let state = table(None, Some(branch(after.0, after.1)));
        let again = see_refs(&state, &seen.refs, Timestamp(30)).refs[&RefName::from("pr")];
        assert_eq!(again.in_force, in_force, "{what}");
    }
}

#[test]
fn the_fork_point_is_where_a_branch_left_main_when_it_was_first_seen() {
    for (main, head, fork_point) in [(Some(3), 4, Some(1)), (Some(3), 2, Some(2)), (Some(3), 7, None), (None, 3, None)]
    {
        let seen = see_refs(&table(main, Some(at(head))), &BTreeMap::new(), Timestamp(10)).refs;
        assert_eq!(seen[&RefName::from("pr")].fork_point, fork_point.map(SnapshotId), "{main:?} {head}");
        if main.is_some() {
            assert_eq!(seen[&RefName::from("main")].fork_point, None);
        }
    }
    // Main was moved onto the branch: the branch's base stays the one that it was cut from.
    let (seen, _) = seen(&table(Some(3), Some(at(3))), &table(Some(1), Some(at(2))));
    assert_eq!(seen.refs[&RefName::from("pr")].fork_point, Some(SnapshotId(1)));
}

#[test]
fn a_fork_point_that_is_told_counts_for_a_branch_that_is_not_known_and_while_the_table_has_it() {
    let pr = RefName::from("pr");
    let of = |main: i64, id: i64, known: bool| {
        let table = table(Some(main), Some(at(4)));
        let known = if known { see_refs(&table, &BTreeMap::new(), Timestamp(1)).refs } else { BTreeMap::new() };
        see(&table, &known, &[(pr.clone(), SnapshotId(id))].into(), Timestamp(2)).refs[&pr].fork_point
    };
    assert_eq!(of(4, 1, false), Some(SnapshotId(1)), "main was moved onto it meanwhile");
    assert_eq!(of(4, 99, false), Some(SnapshotId(4)), "which is gone");
    assert_eq!(of(4, 1, true), Some(SnapshotId(4)));
}
