#![allow(clippy::needless_pass_by_value)] // refs are built as values

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::config::{Pattern, RefRule, RefRules};
use crate::model::table::tests::empty_table;
use crate::model::{ManifestSource, Retention};

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
    RefFacts { created: Some(created.collect()) }
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
    assert_eq!(aged(&state, &values), wanted, "only these must be looked up");
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
    let created = proptest::option::weighted(0.8, proptest::collection::vec(one, state.refs.len()));
    created.prop_map(move |all| {
        let created = all.map(|all| {
            let of = |((name, r), (is_known, days)): ((&RefName, &Ref), (bool, i64))| {
                let head = SnapshotId(if is_known { r.snapshot.0 } else { r.snapshot.0 + 1 });
                (name.clone(), Creation { head, at: Timestamp(NOW.0 - days * DAY) })
            };
            state.refs.iter().zip(all).map(of).collect()
        });
        (state.clone(), RefFacts { created })
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
            let Some(all) = &facts.created else { continue };
            let from = head.at.max(all[&drop.name].at);
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
