use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::*;
use crate::config::{Config, RefRules};
use crate::model::table::tests::empty_table;
use crate::model::{
    Candidate, FileKind, ManifestSource, Ref, RefKind, RefName, Retention, Snapshot, SnapshotId, TableName, Timestamp,
};
use crate::plan::cleanup::CleanupPlan;
use crate::plan::expire::steps;
use crate::plan::values::{ExpireValues, Source, Sourced};
use crate::plan::{RefFacts, retention};
use crate::state::HoldScope;

const DAY: i64 = 86_400_000;

/// A table whose two tags and two old snapshots go, and the plan that says so.
fn world() -> (TableState, Place, ExpirePlan) {
    let snapshot = |id: i64, parent: Option<i64>, days: i64| Snapshot {
        id: SnapshotId(id),
        parent: parent.map(SnapshotId),
        at: Timestamp((100 - days) * DAY),
        sequence_number: id,
        manifests: ManifestSource::Inline(Vec::new()),
        summary: BTreeMap::new(),
    };
    let a_ref = |id: i64, kind: RefKind, days: Option<i64>| Ref {
        snapshot: SnapshotId(id),
        kind,
        retention: Retention { max_ref_age_ms: days.map(|d| d * DAY), ..Retention::default() },
    };
    let mut state = empty_table();
    state.snapshots = vec![snapshot(1, None, 10), snapshot(2, Some(1), 9), snapshot(3, Some(2), 1)];
    state.refs = [
        ("main", a_ref(3, RefKind::Branch, None)),
        ("t1", a_ref(1, RefKind::Tag, Some(3))),
        ("t2", a_ref(2, RefKind::Tag, Some(3))),
    ]
    .map(|(name, r)| (RefName::new(name), r))
    .into();
    let values = ExpireValues {
        now: Timestamp(100 * DAY),
        older_than: Sourced::new(Age::days(5), Source::Config),
        retain_last: Sourced::new(1, Source::Config),
        max_ref_age: Sourced::new(None, Source::Iceberg),
        floor: Age::hours(1),
        drop_grace: Age::days(1),
        keep_fork_points: true,
        override_table: false,
        min_snapshots_property: None,
        snapshots: BTreeSet::new(),
        rules: RefRules::default(),
    };
    let retention = retention::plan(&state, &values, &RefFacts::default()).unwrap();
    let steps = steps(&retention, 10);
    let mark = |name: &str| Candidate {
        kind: FileKind::Data,
        location: format!("s3://wh/db/t/data/{name}"),
        recorded_size: Some(100),
        step: 0,
    };
    let plan = ExpirePlan {
        table: TableName { catalog: "lake".into(), namespace: vec!["db".into()], name: "t".into() },
        uuid: Uuid::nil(),
        metadata_location: "s3://wh/db/t/metadata/3.metadata.json".into(),
        retention,
        cleanup: CleanupPlan { mark: vec![mark("a"), mark("b")], keep: Vec::new() },
        retained: Vec::new(),
        left: Vec::new(),
        conflicts: Vec::new(),
        steps,
    };
    let place = Place { roots: [LocationRules::default().root("s3://wh/db/t").unwrap()].into(), ..Place::default() };
    (state, place, plan)
}

/// What the guard says after `change` was done to the facts and the plan.
fn said(change: impl FnOnce(&mut ExpirePlan, &mut TableState, &mut Facts<'_>)) -> Option<Refusal> {
    let (mut state, place, mut plan) = world();
    let (limits, rules) = (Config::built_in_defaults().guard, LocationRules::default());
    let unchanged = state.clone();
    let mut facts = Facts {
        state: &unchanged,
        place: &place,
        limits: &limits,
        outside: OutsideLocation::Keep,
        rules: &rules,
        hold: None,
        unplanned_removal: None,
        clock_skew: None,
        confirmed: &[],
    };
    change(&mut plan, &mut state, &mut facts);
    let facts = Facts { state: &state, ..facts };
    approve(plan, &facts).err().map(|refused| refused.1)
}

#[test]
fn a_sound_plan_of_a_free_table_is_approved() {
    assert_eq!(said(|_, _, _| ()), None);
}

#[test]
fn a_hold_an_open_finding_a_wrong_clock_and_gc_off_refuse() {
    let hold = Hold { scope: HoldScope::All, by: "ann".into(), reason: "restore".into(), at: Timestamp(0) };
    assert_eq!(
        said(|_, _, facts| facts.hold = Some(Box::leak(Box::new(hold)))),
        Some(Refusal::Held { by: "ann".into(), reason: "restore".into() })
    );
    assert_eq!(
        said(|_, _, facts| facts.unplanned_removal = Some("f-1")),
        Some(Refusal::UnplannedRemoval { finding: "f-1".into() })
    );
    for (skew, refused) in [(60_000, false), (60_001, true), (-60_000, false), (-60_001, true)] {
        let said = said(|_, _, facts| facts.clock_skew = Some(("s3://wh".into(), Age(skew))));
        assert_eq!(matches!(said, Some(Refusal::ClockSkew { .. })), refused, "{skew}");
    }
    let off = |_: &mut ExpirePlan, state: &mut TableState, _: &mut Facts<'_>| {
        state.properties.insert("gc.enabled".into(), "False".into());
    };
    assert_eq!(said(off), Some(Refusal::GcDisabled));
}

#[test]
fn one_key_under_two_authorities_refuses() {
    let conflict = ("s3://ap/db/t/data/x".to_owned(), "s3://wh/db/t/data/x".to_owned());
    assert!(matches!(said(|plan, _, _| plan.conflicts.push(conflict)), Some(Refusal::PrefixConflict { count: 1, .. })));
}

#[test]
fn too_many_refs_refuse_until_a_bound_that_covers_them_is_confirmed() {
    let limits: &'static GuardConfig =
        Box::leak(Box::new(GuardConfig { max_refs: 1, ..Config::built_in_defaults().guard }));
    let bound = |refs: &[&str], snapshots, objects, bytes| Bound {
        refs: refs.iter().map(|name| RefName::new(*name)).collect(),
        snapshots,
        objects,
        bytes,
    };
    for (confirmed, approved) in [
        (vec![], false),
        (vec![bound(&["t1", "t2"], 2, 2, 200)], true),
        (vec![bound(&["t1", "t2", "t3"], 9, 9, 999)], true),
        (vec![bound(&["t1"], 2, 2, 200)], false),
        (vec![bound(&["t1", "t2"], 1, 2, 200)], false),
        (vec![bound(&["t1", "t2"], 2, 1, 200)], false),
        (vec![bound(&["t1", "t2"], 2, 2, 199)], false),
    ] {
        let confirmed: &'static [Bound] = confirmed.leak();
        let said = said(|_, _, facts| (facts.limits, facts.confirmed) = (limits, confirmed));
        assert_eq!(said.is_none(), approved, "{confirmed:?}");
        assert!(said.is_none_or(|refusal| refusal.can_be_confirmed()));
    }
}

#[test]
fn a_plan_that_breaks_a_rule_by_itself_is_refused_as_unsound() {
    type Change = fn(&mut ExpirePlan, &mut TableState, &mut Facts<'_>);
    let changes: [(&str, Change); 7] = [
        ("drops main", |plan, _, _| {
            let drops = plan.retention.refs[1].verdict.clone();
            plan.retention.refs[0].verdict = drops;
        }),
        ("the head of main", |plan, _, _| {
            let goes = plan.retention.snapshots[0].verdict.clone();
            plan.retention.snapshots[2].verdict = goes;
        }),
        ("younger than the floor", |plan, _, _| plan.retention.values.floor = Age::days(30)),
        ("every snapshot and ref", |_, state, _| _ = state.snapshots.pop()),
        ("do not remove what it decided", |plan, _, _| plan.steps.clear()),
        ("outside the table's location", |plan, _, _| {
            plan.cleanup.mark[0].location = "s3://wh/db/t2/data/a".into();
        }),
        ("cannot be asked for exactly", |plan, _, _| plan.cleanup.mark[1].location = "s3://wh/db/t/data//b".into()),
    ];
    for (what, change) in changes {
        match said(change) {
            Some(Refusal::Unsound { what: said }) => assert!(said.contains(what), "{said}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}
