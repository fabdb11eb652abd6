#![allow(clippy::needless_pass_by_value)] // refs are built as values

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::config::{Pattern, RefRule, RefRules};
use crate::model::table::tests::empty_table;
use crate::model::{Creation, ManifestSource, Retention, Snapshot};
use crate::plan::refs::{RefVerdict, look_up};
use crate::plan::values::{Source, Sourced};

const NOW: Timestamp = Timestamp(1_000 * 86_400_000);
const DAY: i64 = 86_400_000;

fn snapshot(id: i64, parent: Option<i64>, days_old: f64) -> Snapshot {
    #[allow(clippy::cast_possible_truncation)]
    let at = Timestamp(NOW.0 - (days_old * 86_400_000.0) as i64);
    Snapshot {
        id: SnapshotId(id),
        parent: parent.map(SnapshotId),
        at,
        sequence_number: id,
        manifests: ManifestSource::Inline(Vec::new()),
        summary: BTreeMap::new(),
    }
}

fn table(snapshots: Vec<Snapshot>, refs: Vec<(&str, Ref)>) -> TableState {
    let refs: BTreeMap<_, _> = refs.into_iter().map(|(name, r)| (RefName::new(name), r)).collect();
    let current_snapshot = refs.get(&RefName::from("main")).map(|r| r.snapshot);
    TableState { current_snapshot, snapshots, refs, ..empty_table() }
}

fn branch(snapshot: i64) -> Ref {
    Ref { snapshot: SnapshotId(snapshot), kind: RefKind::Branch, retention: Retention::default() }
}

fn tag(snapshot: i64) -> Ref {
    Ref { kind: RefKind::Tag, ..branch(snapshot) }
}

fn lives(r: Ref, days: i64) -> Ref {
    Ref { retention: Retention { max_ref_age_ms: Some(days * DAY), ..r.retention }, ..r }
}

fn keeps(r: Ref, count: i64, days: i64) -> Ref {
    let retention =
        Retention { min_snapshots_to_keep: Some(count), max_snapshot_age_ms: Some(days * DAY), ..r.retention };
    Ref { retention, ..r }
}

fn values(older_than_days: i64, retain_last: i64) -> ExpireValues {
    ExpireValues {
        now: NOW,
        older_than: Sourced::new(Age::days(older_than_days), Source::Config),
        retain_last: Sourced::new(retain_last, Source::Config),
        max_ref_age: Sourced::new(None, Source::Iceberg),
        floor: Age::hours(1),
        drop_grace: Age::days(1),
        keep_fork_points: false,
        override_table: false,
        min_snapshots_property: None,
        snapshots: BTreeSet::new(),
        rules: RefRules::default(),
    }
}

/// The plan where nothing is known of the refs, and ages count from heads.
fn plan(state: &TableState, values: &ExpireValues) -> Result<RetentionPlan, NamedHead> {
    super::plan(state, values, &RefFacts::default())
}

fn created(of: &[(&str, i64, f64)]) -> RefFacts {
    let created = of.iter().map(|(name, head, days)| {
        let at = snapshot(0, None, *days).at;
        (RefName::from(*name), Creation { head: SnapshotId(*head), at })
    });
    RefFacts { by_creation: true, created: created.collect(), ..RefFacts::default() }
}

fn expired(state: &TableState, values: &ExpireValues) -> Vec<i64> {
    let mut ids: Vec<i64> = plan(state, values).unwrap().expired().map(|d| d.id.0).collect();
    ids.sort_unstable();
    ids
}

fn dropped(state: &TableState, values: &ExpireValues) -> Vec<String> {
    plan(state, values).unwrap().dropped_refs().map(|d| d.name.to_string()).collect()
}

/// 1 ← 2 ← 3 on main, 10, 9 and 1 days old.
fn three() -> Vec<Snapshot> {
    vec![snapshot(1, None, 10.0), snapshot(2, Some(1), 9.0), snapshot(3, Some(2), 1.0)]
}

#[test]
fn a_snapshot_exactly_at_the_cutoff_is_kept() {
    let state = table(
        vec![snapshot(1, None, 5.000_001), snapshot(2, Some(1), 5.0), snapshot(3, Some(2), 1.0)],
        vec![("main", branch(3))],
    );
    assert_eq!(expired(&state, &values(5, 1)), [1]);
}

#[test]
fn a_branch_keeps_its_newest_whatever_their_age_and_never_less_than_its_head() {
    let state = table(three(), vec![("main", branch(3))]);
    for (retain_last, gone) in
        [(-1, vec![1, 2]), (0, vec![1, 2]), (1, vec![1, 2]), (2, vec![1]), (3, vec![]), (9, vec![])]
    {
        assert_eq!(expired(&state, &values(5, retain_last)), gone, "{retain_last}");
    }
}

#[test]
fn a_tag_keeps_its_own_snapshot_and_none_of_its_ancestors() {
    let state = table(three(), vec![("main", branch(3)), ("q1", tag(2))]);
    let plan = plan(&state, &values(5, 1)).unwrap();
    assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), [1]);
    assert_eq!(plan.snapshots[1].verdict, SnapshotVerdict::KeepHead("q1".into()));
}

#[test]
fn a_tag_on_a_branch_does_not_hide_the_branch_beyond_it() {
    // 4 is on main behind the tag's target: history of main, not unreferenced.
    let state = table(
        vec![snapshot(4, None, 2.0), snapshot(1, Some(4), 10.0), snapshot(2, Some(1), 9.0), snapshot(3, Some(2), 1.0)],
        vec![("a_tag", tag(2)), ("main", branch(3))],
    );
    assert_eq!(expired(&state, &values(5, 1)), [1, 4]);
}

#[test]
fn the_walk_stops_at_the_first_ancestor_that_is_too_old_even_if_a_younger_one_follows() {
    let state = table(
        vec![snapshot(3, Some(2), 0.5), snapshot(1, None, 1.0), snapshot(2, Some(1), 10.0)],
        vec![("main", branch(3))],
    );
    assert_eq!(expired(&state, &values(5, 1)), [1, 2]);
}

#[test]
fn refs_go_by_the_age_of_their_head_and_main_never_does() {
    let snapshots = vec![
        snapshot(3, None, 400.0),
        snapshot(5, None, 9.5),
        snapshot(6, None, 7.0),
        snapshot(7, None, 31.0),
        snapshot(8, None, 31.0),
    ];
    let state = table(
        snapshots,
        vec![
            ("main", branch(3)),
            ("stale", lives(branch(5), 7)),
            ("t7", lives(tag(6), 7)),
            ("nolimit", branch(7)),
            ("own", lives(tag(8), 60)),
            ("ghost", branch(99)),
        ],
    );
    let values = ExpireValues { max_ref_age: Sourced::new(Some(Age::days(30)), Source::Config), ..values(5, 1) };
    assert_eq!(dropped(&state, &values), ["ghost", "nolimit", "stale"]);
    assert_eq!(expired(&state, &values), [5, 7]);
}

#[test]
fn an_older_than_for_snapshots_is_no_age_for_refs() {
    let mut snapshots = three();
    snapshots.push(snapshot(4, Some(3), 20.0));
    let state = table(snapshots, vec![("main", branch(3)), ("dev", branch(4)), ("rel", tag(1))]);
    assert_eq!(dropped(&state, &values(2, 1)), Vec::<String>::new());
    assert_eq!(expired(&state, &values(2, 1)), [2]);
}

#[test]
fn a_branch_with_its_own_retention_keeps_what_main_would_not() {
    let state = table(three(), vec![("main", branch(3)), ("audit", keeps(branch(2), 100, 90))]);
    assert_eq!(expired(&state, &values(5, 1)), Vec::<i64>::new());
    let state = table(three(), vec![("main", keeps(branch(3), 1, 1))]);
    assert_eq!(expired(&state, &values(50, 50)), [1, 2]);
}

#[test]
fn young_snapshots_on_no_ref_stay_until_the_default_age() {
    let mut snapshots = three();
    snapshots.extend([snapshot(4, Some(3), 4.9), snapshot(5, Some(3), 5.1)]);
    let state = table(snapshots, vec![("main", branch(3))]);
    let plan = plan(&state, &values(5, 1)).unwrap();
    let verdict = |id| plan.snapshots.iter().find(|d| d.id.0 == id).unwrap().verdict.clone();
    assert_eq!(verdict(4), SnapshotVerdict::KeepYoungUnreferenced);
    assert_eq!(verdict(5), SnapshotVerdict::Expire(ExpiredBecause::Unreferenced));
}

#[test]
fn named_snapshots_go_unless_a_ref_points_at_them() {
    let state = table(three(), vec![("main", branch(3)), ("q1", tag(2))]);
    let named =
        |ids: &[i64]| ExpireValues { snapshots: ids.iter().copied().map(SnapshotId).collect(), ..values(90, 9) };
    assert_eq!(expired(&state, &named(&[1, 77])), [1]);
    assert_eq!(plan(&state, &named(&[1, 77])).unwrap().unknown, [SnapshotId(77)]);
    let error = plan(&state, &named(&[2])).unwrap_err();
    assert_eq!(error.to_string(), "snapshot 2 cannot be expired: it is the head of tag q1; drop or move that first");
}

#[test]
fn nothing_younger_than_the_floor_goes_whatever_is_asked_for() {
    let snapshots = vec![
        snapshot(1, None, 0.9),
        snapshot(2, Some(1), 0.8),
        snapshot(3, Some(2), 0.1),
        snapshot(4, None, 0.5),
        snapshot(5, None, 1.1),
    ];
    let state = table(
        snapshots,
        vec![("main", keeps(branch(3), 1, 0)), ("pr", lives(branch(4), 0)), ("young", lives(tag(4), 0))],
    );
    let values = ExpireValues { floor: Age::days(1), snapshots: [SnapshotId(2)].into(), ..values(0, 1) };
    assert_eq!(dropped(&state, &values), Vec::<String>::new());
    assert_eq!(expired(&state, &values), [5]);
    let named = ExpireValues {
        snapshots: [SnapshotId(2)].into(),
        older_than: Sourced::new(Age::days(9), Source::Config),
        ..values
    };
    let at_floor = table(vec![snapshot(2, None, 1.0), snapshot(3, Some(2), 0.1)], vec![("main", branch(3))]);
    assert_eq!(expired(&at_floor, &named), [2], "exactly as old as the floor");
}

/// A policy whose first rules name these patterns, and whether each protects.
fn rules(of: &[(&str, bool)]) -> Vec<crate::config::policy::Sourced<Vec<RefRule>>> {
    let rules = of.iter().map(|(name, protected)| RefRule {
        name: Pattern::new(*name),
        max_age: None,
        max_lifetime: None,
        on_pr_closed: None,
        protected: Some(*protected),
        retain_last: None,
        set_retention: None,
    });
    vec![crate::config::policy::Sourced { value: rules.collect(), pattern: Pattern::new("db.*") }]
}

#[test]
fn a_protected_ref_is_never_dropped_and_its_head_stays() {
    let mut snapshots = three();
    snapshots.extend([4, 5, 6, 7].map(|id| snapshot(id, None, 20.0)));
    let state = table(
        snapshots,
        vec![
            ("main", branch(3)),
            ("audit", lives(branch(4), 7)),
            ("audit_tmp", lives(branch(5), 7)),
            ("eom_1", lives(tag(6), 7)),
            ("audit_tag", lives(tag(7), 7)),
            ("ghost", branch(99)),
            ("young", lives(branch(3), 7)),
        ],
    );
    let rules = RefRules {
        refs: rules(&[("audit_tmp", false), ("audit*", true), ("ghost", true), ("young", true)]),
        tags: rules(&[("eom_*", true)]),
    };
    let values = ExpireValues { rules, ..values(5, 1) };
    assert_eq!(
        dropped(&state, &values),
        ["audit_tag", "audit_tmp"],
        "the first match counts, tags have their own list"
    );
    assert_eq!(expired(&state, &values), [1, 2, 5, 7]);
    let plan = plan(&state, &values).unwrap();
    let verdict = |name: &str| plan.refs.iter().find(|d| d.name.as_str() == name).unwrap().verdict.clone();
    let protected = |rule: &str, days: Option<i64>| RefVerdict::KeepProtected {
        policy: "db.*".into(),
        rule: rule.into(),
        age: days.map(Age::days),
    };
    assert_eq!(verdict("audit"), protected("audit*", Some(20)));
    assert_eq!(verdict("eom_1"), protected("eom_*", Some(20)));
    assert_eq!(verdict("ghost"), protected("ghost", None));
    assert!(matches!(verdict("young"), RefVerdict::KeepYoung { .. }), "what needs no protection says why it stays");
}

#[test]
fn a_refs_age_counts_from_its_creation_where_that_is_later_than_its_head() {
    let state = table(
        vec![snapshot(1, None, 20.0), snapshot(2, Some(1), 9.0), snapshot(3, Some(2), 1.0)],
        vec![
            ("main", branch(3)),
            ("today", lives(branch(2), 7)),
            ("at_limit", lives(tag(2), 7)),
            ("old", lives(branch(2), 7)),
            ("moved", lives(branch(2), 7)),
            ("unknown", lives(tag(1), 7)),
            ("young", lives(branch(3), 7)),
        ],
    );
    let facts =
        created(&[("today", 2, 0.25), ("at_limit", 2, 7.0), ("old", 2, 7.1), ("moved", 1, 19.0), ("young", 3, 50.0)]);
    let values = values(5, 1);
    let plan = super::plan(&state, &values, &facts).unwrap();
    let verdict = |name: &str| plan.refs.iter().find(|d| d.name.as_str() == name).unwrap().verdict.clone();
    let limit = || Sourced::new(Age::days(7), Source::Ref);
    let new = |age: i64, created: Age| RefVerdict::KeepNew { age: Age::days(age), created, limit: limit() };
    assert_eq!(verdict("today"), new(9, Age::hours(6)));
    assert_eq!(verdict("at_limit"), new(9, Age::days(7)));
    assert_eq!(verdict("old"), RefVerdict::DropAged { age: Age::days(9), limit: limit() });
    assert_eq!(verdict("moved"), new(9, Age::ZERO), "found out for another head");
    assert_eq!(verdict("unknown"), new(20, Age::ZERO));
    assert_eq!(verdict("young"), RefVerdict::KeepYoung { age: Age::days(1), limit: limit() });
    assert_eq!(plan.expired().count(), 0);
    let wanted: BTreeMap<RefName, Age> =
        ["today", "at_limit", "old", "moved", "unknown"].map(|name| (RefName::from(name), Age::days(7))).into();
    assert_eq!(
        look_up(&state, &values, &RefFacts { by_creation: true, ..RefFacts::default() }),
        wanted,
        "only these must be looked up"
    );
    assert_eq!(dropped(&state, &values), ["at_limit", "moved", "old", "today", "unknown"], "as in the specification");
}

#[test]
fn missing_parents_and_cycles_end_the_walk() {
    let state = table(vec![snapshot(2, Some(1), 9.0), snapshot(3, Some(2), 1.0)], vec![("main", branch(3))]);
    assert_eq!(expired(&state, &values(5, 1)), [2]);
    let state = table(vec![snapshot(1, Some(2), 9.0), snapshot(2, Some(1), 9.0)], vec![("main", branch(2))]);
    assert_eq!(expired(&state, &values(5, 9)), Vec::<i64>::new());
}

#[test]
fn the_reason_says_which_dropped_ref_alone_led_to_a_snapshot() {
    let mut snapshots = three();
    snapshots.extend([snapshot(4, Some(1), 20.0), snapshot(5, Some(4), 20.0)]);
    let state = table(snapshots, vec![("main", branch(3)), ("pr", lives(branch(5), 3))]);
    let plan = plan(&state, &values(5, 1)).unwrap();
    let because = |id: i64| plan.expired().find(|d| d.id.0 == id).unwrap().verdict.clone();
    assert_eq!(because(5), SnapshotVerdict::Expire(ExpiredBecause::OnlyOnDropped("pr".into())));
    assert_eq!(because(4), SnapshotVerdict::Expire(ExpiredBecause::OnlyOnDropped("pr".into())));
    assert_eq!(because(1), SnapshotVerdict::Expire(ExpiredBecause::OlderThanAge));
}

#[test]
fn a_table_without_snapshots_has_an_empty_plan() {
    assert!(plan(&table(vec![], vec![]), &values(5, 1)).unwrap().is_empty());
}

/// The specification's five steps ("Snapshot Retention Policy"), word by word and slowly, with Java's
/// addition that young unreferenced snapshots stay. It shares nothing with the plan but the input types.
mod oracle {
    use super::*;

    pub(super) fn kept(state: &TableState, values: &ExpireValues) -> (BTreeSet<String>, BTreeSet<i64>) {
        let find = |id: SnapshotId| state.snapshots.iter().find(|s| s.id == id);
        // "Remove any refs (other than main) where the referenced snapshot is older than max-ref-age-ms"
        let mut refs = BTreeSet::new();
        for (name, r) in &state.refs {
            let age = find(r.snapshot).map(|s| values.now.0 - s.at.0);
            let limit = r.retention.max_ref_age_ms.or(values.max_ref_age.value.map(|a| a.0)).unwrap_or(i64::MAX);
            if name.as_str() == "main" || age.is_some_and(|age| age <= limit) {
                refs.insert(name.to_string());
            }
        }
        let mut retained = BTreeSet::new();
        let mut led_to = BTreeSet::new();
        for (name, r) in state.refs.iter().filter(|(name, _)| refs.contains(name.as_str())) {
            // "For each branch and tag, add the referenced snapshot to the retained set"
            retained.insert(r.snapshot.0);
            led_to.insert(r.snapshot.0);
            if r.kind == RefKind::Tag {
                continue;
            }
            // "For each branch, add its ancestors to the retained set until the snapshot is older than
            // max-snapshot-age-ms, AND the snapshot is not one of the first min-snapshots-to-keep in the branch"
            let mut chain = Vec::new();
            let mut at = Some(r.snapshot);
            while let Some(s) = at.and_then(find) {
                if chain.iter().any(|c: &&Snapshot| c.id == s.id) {
                    break;
                }
                chain.push(s);
                at = s.parent;
            }
            led_to.extend(chain.iter().map(|s| s.id.0));
            let minimum = r.retention.min_snapshots_to_keep.unwrap_or(values.retain_last.value);
            let max_age = r.retention.max_snapshot_age_ms.unwrap_or(values.older_than.value.0);
            for k in 0..chain.len() {
                let all_before = chain[..=k]
                    .iter()
                    .enumerate()
                    .all(|(i, s)| values.now.0 - s.at.0 <= max_age || i64::try_from(i).unwrap() < minimum);
                if all_before {
                    retained.insert(chain[k].id.0);
                }
            }
            let _ = name;
        }
        // "Expire any snapshot not in the set of snapshots to retain", but for Java's young unreferenced ones.
        for s in &state.snapshots {
            if !led_to.contains(&s.id.0) && values.now.0 - s.at.0 <= values.older_than.value.0 {
                retained.insert(s.id.0);
            }
        }
        retained.retain(|id| find(SnapshotId(*id)).is_some());
        (refs, retained)
    }
}

prop_compose! {
    fn any_ref(snapshots: i64)(
        snapshot in 0..snapshots + 1, is_tag in any::<bool>(), life in proptest::option::of(0_i64..12),
        count in proptest::option::of(1_i64..6), age in proptest::option::of(0_i64..12),
    ) -> Ref {
        let days = |d: i64| d * DAY;
        let retention = Retention {
            min_snapshots_to_keep: count.filter(|_| !is_tag),
            max_snapshot_age_ms: age.filter(|_| !is_tag).map(days),
            max_ref_age_ms: life.map(days),
        };
        Ref { snapshot: SnapshotId(snapshot), kind: if is_tag { RefKind::Tag } else { RefKind::Branch }, retention }
    }
}

prop_compose! {
    fn any_table()(count in 1_i64..14)(
        ages in proptest::collection::vec(0_i64..12, usize::try_from(count).unwrap()),
        parents in proptest::collection::vec(proptest::option::weighted(0.9, 0..count + 1), usize::try_from(count).unwrap()),
        main in 0..count,
        refs in proptest::collection::btree_map("[a-d]", any_ref(count), 0..5),
    ) -> TableState {
        let snapshots = (0..).zip(ages.into_iter().zip(parents))
            .map(|(id, (age, parent))| Snapshot { at: Timestamp(NOW.0 - age * DAY), ..snapshot(id, parent, 0.0) })
            .collect();
        let mut state = table(snapshots, vec![("main", branch(main))]);
        state.refs.extend(refs.into_iter().map(|(name, r)| (RefName::new(name), r)));
        state
    }
}

/// Facts about any of its refs, also such as were found out for another head.
fn with_facts(state: TableState) -> impl Strategy<Value = (TableState, RefFacts)> {
    let one = (any::<bool>(), -1_i64..13);
    let created = proptest::collection::vec(one, state.refs.len());
    let fork_points = proptest::collection::vec(proptest::option::of(0_i64..14), state.refs.len());
    (proptest::bool::weighted(0.8), created, fork_points).prop_map(move |(by_creation, created, fork_points)| {
        let of = |((name, r), (is_known, days)): ((&RefName, &Ref), (bool, i64))| {
            let head = SnapshotId(if is_known { r.snapshot.0 } else { r.snapshot.0 + 1 });
            (name.clone(), Creation { head, at: Timestamp(NOW.0 - days * DAY) })
        };
        let created = state.refs.iter().zip(created).map(of).collect();
        let bases = state.refs.keys().zip(fork_points);
        let fork_points = bases.filter_map(|(name, base)| Some((name.clone(), SnapshotId(base?)))).collect();
        (state.clone(), RefFacts { by_creation, created, fork_points, ..RefFacts::default() })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_plan_equals_the_specification(
        state in any_table(), age in 0_i64..12, retain in 1_i64..6, ref_age in proptest::option::of(0_i64..12),
    ) {
        let values = ExpireValues {
            floor: Age::ZERO,
            max_ref_age: Sourced::new(ref_age.map(Age::days), Source::Config),
            ..values(age, retain)
        };
        let plan = plan(&state, &values).unwrap();
        let refs: BTreeSet<String> =
            plan.refs.iter().filter(|d| !d.verdict.drops()).map(|d| d.name.to_string()).collect();
        let gone: BTreeSet<i64> = plan.expired().map(|d| d.id.0).collect();
        let kept: BTreeSet<i64> = state.snapshots.iter().map(|s| s.id.0).filter(|id| !gone.contains(id)).collect();
        prop_assert_eq!((refs, kept), oracle::kept(&state, &values));
        prop_assert_eq!(plan.snapshots.len(), state.snapshots.len());
        prop_assert_eq!(plan.refs.len(), state.refs.len());
    }

    #[test]
    fn what_is_known_beside_the_metadata_only_keeps_more(
        (state, facts) in any_table().prop_flat_map(with_facts), age in 0_i64..12, retain in 1_i64..6,
        ref_age in proptest::option::of(0_i64..12), protects in any::<bool>(),
    ) {
        let lists = rules(&[("a", protects), ("*", false)]);
        let values = ExpireValues {
            floor: Age::ZERO,
            max_ref_age: Sourced::new(ref_age.map(Age::days), Source::Config),
            rules: RefRules { refs: lists.clone(), tags: lists },
            ..values(age, retain)
        };
        let (refs, snapshots) = oracle::kept(&state, &values);
        let plan = super::plan(&state, &values, &facts).unwrap();
        let gone: BTreeSet<i64> = plan.expired().map(|d| d.id.0).collect();
        prop_assert!(gone.is_disjoint(&snapshots));
        for drop in plan.dropped_refs() {
            prop_assert!(!refs.contains(drop.name.as_str()));
            prop_assert!(!protects || drop.name.as_str() != "a");
            // By the words: the age counts from the later of the head's commit and the creation.
            let Some(head) = state.snapshots.iter().find(|s| s.id == drop.snapshot) else { continue };
            if !facts.by_creation {
                continue;
            }
            let from = head.at.max(facts.created[&drop.name].at);
            let limit = state.refs[&drop.name].retention.max_ref_age_ms.or(ref_age.map(|d| d * DAY)).unwrap();
            prop_assert!(values.now.since(from).0 > limit);
        }
    }

    #[test]
    fn a_plan_applied_leaves_nothing_to_do(
        (state, facts) in any_table().prop_flat_map(with_facts), age in 0_i64..12, retain in 1_i64..6,
    ) {
        let plan = |state: &TableState, values: &ExpireValues| super::plan(state, values, &facts);
        let values = values(age, retain);
        let first = plan(&state, &values).unwrap();
        let gone: BTreeSet<_> = first.expired().map(|d| d.id).collect();
        let dropped: BTreeSet<_> = first.dropped_refs().map(|d| d.name.clone()).collect();
        let mut after = state.clone();
        after.snapshots.retain(|s| !gone.contains(&s.id));
        after.refs.retain(|name, _| !dropped.contains(name));
        let second = plan(&after, &values).unwrap();
        prop_assert!(second.is_empty(), "{:?}", second);
        prop_assert_eq!(removed(&state, &after), (dropped, gone));
    }

    #[test]
    fn nothing_under_the_floor_and_no_head_ever_goes(
        state in any_table(), named in proptest::collection::btree_set(0_i64..14, 0..4), floor in 0_i64..12,
    ) {
        let values = ExpireValues {
            floor: Age::days(floor),
            snapshots: named.into_iter().map(SnapshotId).collect(),
            ..values(0, 1)
        };
        if let Ok(plan) = plan(&state, &values) {
            let kept: Vec<_> = plan.refs.iter().filter(|d| !d.verdict.drops()).map(|d| d.snapshot).collect();
            for gone in plan.expired() {
                prop_assert!(values.now.since(gone.at) >= values.floor);
                prop_assert!(!kept.contains(&gone.id));
            }
        }
    }
}

/// Rules that say all that a rule can say.
fn rule(name: &str, max_age: Option<i64>, max_lifetime: Option<i64>, retain_last: Option<u32>) -> RefRule {
    RefRule {
        name: Pattern::new(name),
        max_age: max_age.map(Age::days),
        max_lifetime: max_lifetime.map(Age::days),
        on_pr_closed: None,
        protected: None,
        retain_last,
        set_retention: None,
    }
}

fn ruled(rules: Vec<RefRule>) -> RefRules {
    let list = crate::config::policy::Sourced { value: rules, pattern: Pattern::new("db.*") };
    RefRules { refs: vec![list], tags: Vec::new() }
}

fn by_rule<T>(value: T, rule: &str) -> Sourced<T> {
    Sourced::new(value, Source::Rule { policy: "db.*".into(), rule: rule.into() })
}

/// 1 ← 2 ← 3 on main; 4 ← 5 on a branch off 1. 10, 9, 1 and 8, 6 days old.
fn branched(refs: Vec<(&str, Ref)>) -> TableState {
    let mut snapshots = three();
    snapshots.extend([snapshot(4, Some(1), 8.0), snapshot(5, Some(4), 6.0)]);
    table(snapshots, std::iter::once(("main", branch(3))).chain(refs).collect())
}

fn verdict_of(plan: &RetentionPlan, name: &str) -> RefVerdict {
    plan.refs.iter().find(|d| d.name.as_str() == name).unwrap().verdict.clone()
}

fn snapshot_verdict(plan: &RetentionPlan, id: i64) -> SnapshotVerdict {
    plan.snapshots.iter().find(|d| d.id.0 == id).unwrap().verdict.clone()
}

#[test]
fn a_rule_gives_an_age_to_refs_that_have_none_and_its_drop_takes_the_ref_alone() {
    let refs = || vec![("pr_1", branch(5)), ("pr_own", lives(branch(5), 30)), ("x", branch(5)), ("pr_t", tag(5))];
    let values = ExpireValues { rules: ruled(vec![rule("pr_*", Some(3), None, None)]), ..values(2, 1) };
    let plan = super::plan(&branched(refs()), &values, &RefFacts::default()).unwrap();
    assert_eq!(
        verdict_of(&plan, "pr_1"),
        RefVerdict::DropAged { age: Age::days(6), limit: by_rule(Age::days(3), "pr_*") }
    );
    let own = Sourced::new(Age::days(30), Source::Ref);
    assert_eq!(verdict_of(&plan, "pr_own"), RefVerdict::KeepYoung { age: Age::days(6), limit: own });
    assert_eq!(verdict_of(&plan, "x"), RefVerdict::KeepNoAge);
    assert_eq!(verdict_of(&plan, "pr_t"), RefVerdict::KeepNoAge, "tags have their own list");

    // Alone on its snapshots, they stay as long as it can be restored; what it did not keep goes.
    let plan = super::plan(&branched(vec![("pr_1", branch(5))]), &values, &RefFacts::default()).unwrap();
    let until = NOW.plus(Age::days(1));
    assert_eq!(snapshot_verdict(&plan, 5), SnapshotVerdict::KeepDropped { name: "pr_1".into(), until });
    assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(plan.dropped_alone(), [&RefName::from("pr_1")]);

    // Its own age is the table's word, and takes the snapshots too, as in Java.
    let plan = super::plan(&branched(vec![("pr_1", lives(branch(5), 3))]), &values, &RefFacts::default()).unwrap();
    assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!(plan.dropped_alone(), Vec::<&RefName>::new());
}

#[test]
fn the_tables_own_age_of_refs_wins_where_it_keeps_more_unless_the_policy_overrides_it() {
    let property = |days| Sourced::new(Some(Age::days(days)), Source::Property("max-ref-age".into()));
    let of = |rule_days: i64, property_days: i64, override_table: bool| {
        let values = ExpireValues {
            rules: ruled(vec![rule("pr_*", Some(rule_days), None, None)]),
            max_ref_age: property(property_days),
            override_table,
            ..values(5, 1)
        };
        let plan = super::plan(&branched(vec![("pr_1", branch(5))]), &values, &RefFacts::default()).unwrap();
        let limit = plan.refs[1].values.max_age.clone().unwrap();
        (limit.value, matches!(limit.source, Source::Rule { .. }))
    };
    for (rule_days, property_days, override_table, wins, is_rule) in
        [(3, 9, false, 9, false), (3, 9, true, 3, true), (9, 3, false, 9, true), (3, 3, false, 3, true)]
    {
        assert_eq!(of(rule_days, property_days, override_table), (Age::days(wins), is_rule));
    }
}

#[test]
fn a_branch_goes_when_its_lifetime_is_over_however_young_its_head_is() {
    let refs = || vec![("at", branch(3)), ("new", branch(3)), ("old", lives(branch(3), 90)), ("unknown", branch(3))];
    let rules = ruled(vec![rule("*", None, Some(20), None)]);
    let values = ExpireValues { rules, ..values(5, 1) };
    let mut facts = created(&[("at", 3, 20.0), ("new", 3, 2.0), ("old", 3, 20.1), ("main", 3, 90.0)]);
    for by_creation in [true, false] {
        facts.by_creation = by_creation;
        let plan = super::plan(&branched(refs()), &values, &facts).unwrap();
        let dropped: Vec<_> = plan.dropped_refs().map(|d| (d.name.as_str(), d.drops_the_ref_alone())).collect();
        assert_eq!(dropped, [("old", true)]);
        let limit = || by_rule(Age::days(20), "*");
        assert_eq!(verdict_of(&plan, "new"), RefVerdict::KeepAlive { created: Age::days(2), limit: limit() });
        assert_eq!(verdict_of(&plan, "unknown"), RefVerdict::KeepAlive { created: Age::ZERO, limit: limit() });
        let wanted = look_up(&branched(refs()), &values, &RefFacts { by_creation, ..RefFacts::default() });
        assert_eq!(wanted.keys().map(RefName::as_str).collect::<Vec<_>>(), ["at", "new", "old", "unknown"]);
    }
}

#[test]
fn a_branch_keeps_the_number_that_its_rule_says_unless_it_or_the_request_says_otherwise() {
    let of = |r: Ref, asked: bool, min: Option<i64>| {
        let source = if asked { Source::Request } else { Source::Config };
        let values = ExpireValues {
            rules: ruled(vec![rule("*", None, None, Some(2))]),
            retain_last: Sourced::new(1, source),
            min_snapshots_property: min,
            ..values(1, 1)
        };
        let plan = super::plan(&branched(vec![("dev", r)]), &values, &RefFacts::default()).unwrap();
        let counts = ["dev", "main"].map(|name| {
            let decision = plan.refs.iter().find(|d| d.name.as_str() == name).unwrap();
            decision.values.retain_last.as_ref().unwrap().value
        });
        (counts, plan.expired().map(|d| d.id.0).collect::<Vec<_>>())
    };
    assert_eq!(of(branch(5), false, None), ([2, 1], vec![1, 2]), "no rule speaks of main");
    assert_eq!(of(keeps(branch(5), 1, 1), false, None), ([1, 1], vec![1, 2, 4]));
    assert_eq!(of(branch(5), true, None), ([1, 1], vec![1, 2, 4]));
    assert_eq!(of(branch(5), false, Some(3)), ([3, 1], vec![2]));
}

#[test]
fn retention_that_a_ref_lost_stays_in_force_for_the_head_that_it_was_seen_at() {
    let facts = |name: &str, r: Ref| RefFacts { in_force: [(name.into(), r)].into(), ..RefFacts::default() };
    let lost = |days: i64| lives(keeps(branch(5), 2, 1), days);
    let values = ExpireValues { rules: ruled(vec![rule("dev*", Some(3), None, None)]), ..values(2, 1) };
    let state = branched(vec![("dev", branch(5))]);
    // Not dropped early by the policy, and not kept for ever without one.
    let plan = super::plan(&state, &values, &facts("dev", lost(30))).unwrap();
    let limit = Sourced::new(Age::days(30), Source::Lost);
    assert_eq!(verdict_of(&plan, "dev"), RefVerdict::KeepYoung { age: Age::days(6), limit });
    assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2], "and it keeps two");
    let no_rules = ExpireValues { rules: RefRules::default(), ..values.clone() };
    let plan = super::plan(&state, &no_rules, &facts("dev", lost(4))).unwrap();
    assert!(plan.dropped_refs().all(RefDecision::drops_the_ref_alone));
    assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2]);
    // Another head may be another branch.
    let plan = super::plan(&state, &no_rules, &facts("dev", lives(branch(4), 4))).unwrap();
    assert_eq!(verdict_of(&plan, "dev"), RefVerdict::KeepNoAge);
}

#[test]
fn the_base_of_an_open_branch_stays() {
    let state = branched(vec![("dev", branch(5))]);
    let facts = RefFacts {
        fork_points: [("dev".into(), SnapshotId(1)), ("gone".into(), SnapshotId(2))].into(),
        ..RefFacts::default()
    };
    for (keep_fork_points, gone) in [(true, vec![2, 4]), (false, vec![1, 2, 4])] {
        let values = ExpireValues { keep_fork_points, ..values(2, 1) };
        let plan = super::plan(&state, &values, &facts).unwrap();
        assert_eq!(plan.expired().map(|d| d.id.0).collect::<Vec<_>>(), gone);
    }
    let values = ExpireValues { keep_fork_points: true, ..values(2, 1) };
    let plan = super::plan(&state, &values, &facts).unwrap();
    assert_eq!(snapshot_verdict(&plan, 1), SnapshotVerdict::KeepForkPoint("dev".into()));
}

#[test]
fn what_was_only_on_a_branch_that_is_gone_stays_for_the_grace_and_then_goes_whatever_its_age() {
    let gone = |name: &str, r: Ref, hours: i64, fork_point: Option<i64>| DroppedRef {
        name: name.into(),
        r,
        fork_point: fork_point.map(SnapshotId),
        at: NOW.minus(Age::hours(hours)),
        by: Some("me".to_owned()),
        is_seen: true,
        ended: None,
    };
    let run = |state: &TableState, dropped: Vec<DroppedRef>| {
        let facts = RefFacts { dropped, ..RefFacts::default() };
        super::plan(state, &ExpireValues { keep_fork_points: true, ..values(7, 1) }, &facts).unwrap()
    };
    let ids = |plan: &RetentionPlan| plan.expired().map(|d| d.id.0).collect::<Vec<_>>();
    // 5 is on no ref, and 6 days old; 4 too, and 8.
    let state = branched(vec![]);
    assert_eq!(ids(&run(&state, vec![])), [1, 2, 4]);
    let pr = |hours| gone("pr", keeps(branch(5), 9, 9), hours, Some(1));
    let plan = run(&state, vec![pr(23)]);
    assert_eq!(ids(&plan), [2], "the base stays with the branch");
    let until = NOW.plus(Age::hours(1));
    assert_eq!(snapshot_verdict(&plan, 4), SnapshotVerdict::KeepDropped { name: "pr".into(), until });
    let plan = run(&state, vec![pr(24)]);
    assert_eq!(ids(&plan), [1, 2, 4, 5]);
    assert_eq!(snapshot_verdict(&plan, 5), SnapshotVerdict::Expire(ExpiredBecause::OnlyOnGone("pr".into())));
    // What others drop keeps nothing, as in Java, and is freed as soon.
    let theirs = |hours| DroppedRef { by: None, ..pr(hours) };
    assert_eq!(ids(&run(&state, vec![theirs(23)])), [1, 2, 4]);
    assert_eq!(ids(&run(&state, vec![theirs(24)])), [1, 2, 4, 5]);
    // Of two that are gone, the later one still keeps what they share.
    assert_eq!(ids(&run(&state, vec![pr(99), gone("b", branch(4), 1, Some(1))])), [2, 5], "and its base");
    // What another led to that goes in this plan, or went an hour ago, is freed by the other's own drop.
    let stacked = |dropped| run(&state, dropped);
    assert_eq!(ids(&stacked(vec![pr(99), DroppedRef { by: None, ..gone("a", branch(4), 1, Some(1)) }])), [1, 2, 4, 5]);
    let mut young = branched(vec![("a", lives(branch(4), 3))]);
    young.snapshots[3].at = NOW.minus(Age::days(6));
    let plan = run(&young, vec![pr(99)]);
    assert_eq!((plan.dropped_refs().count(), ids(&plan)), (1, vec![1, 2, 5]));
    // A tag that is gone frees nothing by itself, and a ref that is there keeps all it leads to.
    assert_eq!(ids(&run(&state, vec![gone("t", tag(5), 99, None)])), [1, 2, 4]);
    assert_eq!(ids(&run(&branched(vec![("x", branch(5))]), vec![pr(99)])), [1, 2, 4], "4 is past the age of x");
    // What main pointed at once is not the branch's own, though no ref leads to it any more.
    let mut rolled_back = branched(vec![]);
    rolled_back.snapshot_log = [1, 4, 1, 2, 3].map(SnapshotId).into();
    rolled_back.snapshots[3].at = NOW.minus(Age::days(6));
    assert_eq!(ids(&run(&rolled_back, vec![pr(99)])), [1, 2, 5]);
    // Where nobody knows where it left main, nothing is freed before its time.
    assert_eq!(ids(&run(&state, vec![gone("pr", branch(5), 99, None)])), [1, 2, 4]);
    // Nothing under the floor.
    let mut young = branched(vec![]);
    young.snapshots[4].at = NOW;
    assert_eq!(snapshot_verdict(&run(&young, vec![pr(99)]), 5), SnapshotVerdict::KeepFloor);
}

#[test]
fn a_dropped_branch_that_can_be_restored_protects_its_head_from_being_named() {
    let state = branched(vec![]);
    let by = Some("me".to_owned());
    let dropped =
        DroppedRef { name: "pr".into(), r: branch(5), fork_point: None, at: NOW, by, is_seen: true, ended: None };
    let facts = RefFacts { dropped: vec![dropped], ..RefFacts::default() };
    let values = ExpireValues { snapshots: [SnapshotId(5)].into(), ..values(5, 1) };
    let error = super::plan(&state, &values, &facts).unwrap_err();
    assert!(error.to_string().contains("branch pr, dropped, which can be restored until"), "{error}");
}

#[test]
fn retention_is_written_where_a_rule_says_so_and_the_ref_has_none() {
    let writes = |name: &str, days: i64| RefRule { set_retention: Some(true), ..rule(name, Some(days), None, Some(2)) };
    let protects = RefRule { protected: Some(true), ..writes("audit*", 9) };
    let refs = vec![
        ("audit", branch(5)),
        ("dev_1", branch(3)),
        ("dev_2", lives(branch(3), 30)),
        ("dev_3", keeps(lives(branch(3), 30), 9, 9)),
        ("dev_4", branch(3)),
        ("new", branch(5)),
        ("old", branch(5)),
        ("x", branch(3)),
    ];
    let values = ExpireValues {
        rules: ruled(vec![
            protects,
            writes("dev*", 9),
            writes("old", 3),
            writes("new", 3),
            rule("x", Some(9), None, None),
        ]),
        ..values(5, 1)
    };
    let facts = RefFacts {
        in_force: [("dev_4".into(), keeps(branch(3), 3, 2))].into(),
        ..created(&[("new", 5, 1.0), ("old", 5, 6.0)])
    };
    let state = branched(refs);
    let plan = super::plan(&state, &values, &facts).unwrap();
    let two = |r: Ref| Ref { retention: Retention { min_snapshots_to_keep: Some(2), ..r.retention }, ..r };
    let expected: Vec<(RefName, Ref)> = vec![
        ("dev_1".into(), two(lives(branch(3), 9))),
        ("dev_2".into(), two(lives(branch(3), 30))),
        ("dev_4".into(), lives(keeps(branch(3), 3, 2), 9)),
        ("new".into(), two(branch(5))),
    ];
    assert_eq!(
        plan.to_set, expected,
        "no protected ref, none that goes, none that has it, none of a silent rule, no age for one that lives as new"
    );
    // Once written there is nothing left to write.
    let mut after = state;
    after.refs.extend(plan.to_set);
    assert_eq!(super::plan(&after, &values, &facts).unwrap().to_set, []);
}
