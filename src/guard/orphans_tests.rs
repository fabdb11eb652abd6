use super::*;
use crate::model::{Age, LocationRules, ObjectFacts, Root, TableName, Timestamp};
use crate::plan::orphans::{OrphanCounts, OrphanFacts, PlanHash, Verdict};
use crate::plan::roots::Place;

fn root() -> Root {
    LocationRules::default().root("s3://wh/db/t").unwrap()
}

/// A plan with so many orphans of 10 bytes each and so many referenced objects of `size` bytes.
fn plan(orphans: u64, referenced: u64, size: u64) -> OrphansPlan {
    let mut counts = OrphanCounts::default();
    let object = |size| ObjectFacts { size, modified: Some(Timestamp(1)), etag: None };
    for n in 0..orphans {
        counts.add(
            Verdict::Orphan(crate::model::FileKind::Data),
            &format!("s3://wh/db/t/{n}"),
            &object(10),
            Timestamp(9),
        );
    }
    for _ in 0..referenced {
        counts.add(Verdict::Keep(KeptObject::Referenced), "s3://wh/db/t/r", &object(size), Timestamp(9));
    }
    let place = Place { roots: [root()].into(), ..Place::default() };
    let facts = OrphanFacts { listed: [root()].into(), place, ..OrphanFacts::default() };
    let table = TableName { catalog: "c".into(), namespace: vec!["db".into()], name: "t".into() };
    PlanHash::default().finish(&table, uuid::Uuid::from_u128(1), "s3://wh/db/t/metadata/1.json", facts, counts).unwrap()
}

fn limits() -> GuardConfig {
    GuardConfig {
        max_ratio: 0.5,
        min_objects: 100,
        max_refs: 50,
        max_snapshots_per_commit: 1,
        allow_floor_below_minimum: false,
    }
}

fn facts<'a>(limits: &'a GuardConfig, confirmed: &'a [Bound]) -> OrphanGuardFacts<'a> {
    OrphanGuardFacts {
        limits,
        hold: None,
        unplanned_removal: None,
        clock_skew: None,
        confirmed,
        other_format: None,
        forked: &[],
        conflicts: &[],
        unlisted: &[],
        missing: &[],
        lost_tables: None,
    }
}

fn rule(plan: OrphansPlan, facts: &OrphanGuardFacts<'_>) -> String {
    match approve_orphans(plan, facts) {
        Ok(_) => "approved".to_owned(),
        Err(refused) => serde_json::to_value(&refused.1).unwrap()["rule"].as_str().unwrap().to_owned(),
    }
}

#[test]
fn a_plan_that_would_delete_too_much_is_refused_and_can_be_confirmed_within_its_bound() {
    let limits = limits();
    let bound = |objects, bytes| Bound { objects, bytes, ..Bound::default() };
    for (orphans, referenced, size, confirmed, expected) in [
        (50, 50, 10, vec![], "approved"),
        (51, 49, 10, vec![], "too_many"),
        // Of the bytes.
        (10, 90, 1, vec![], "too_many"),
        // A small table.
        (98, 1, 10, vec![], "approved"),
        (96, 4, 10, vec![bound(96, 960)], "approved"),
        (96, 4, 10, vec![bound(95, 960)], "too_many"),
        (96, 4, 10, vec![bound(96, 959)], "too_many"),
        (1, 0, 10, vec![bound(96, 960)], "nothing_referenced"),
        (0, 0, 10, vec![], "nothing_referenced"),
        (0, 1, 10, vec![], "approved"),
    ] {
        let found = rule(plan(orphans, referenced, size), &facts(&limits, &confirmed));
        assert_eq!(found, expected, "{orphans} of {referenced} with {size} bytes, {confirmed:?}");
    }
}

#[test]
fn what_makes_the_facts_doubtful_cannot_be_confirmed() {
    let limits = limits();
    let confirmed = [Bound { objects: 1000, bytes: 100_000, ..Bound::default() }];
    let base = || facts(&limits, &confirmed);
    let hold = Hold { scope: crate::state::HoldScope::All, by: "a".into(), reason: "b".into(), at: Timestamp(0) };
    let files = ["s3://wh/db/t/x".to_owned()];
    let keys = [("s3://wh/db/t/x".to_owned(), "s3://old/db/t/x".to_owned())];
    for (facts, expected) in [
        (base(), "approved"),
        (OrphanGuardFacts { hold: Some(&hold), ..base() }, "held"),
        (OrphanGuardFacts { unplanned_removal: Some("f-1"), ..base() }, "unplanned_removal"),
        (OrphanGuardFacts { clock_skew: Some(("x".into(), Age(61_000))), ..base() }, "clock_skew"),
        (OrphanGuardFacts { clock_skew: Some(("x".into(), Age(-60_000))), ..base() }, "approved"),
        (OrphanGuardFacts { other_format: Some("s3://wh/db/t/_delta_log/0.json"), ..base() }, "other_format"),
        (OrphanGuardFacts { forked: &files, ..base() }, "forked_lineage"),
        (OrphanGuardFacts { conflicts: &keys, ..base() }, "key_conflict"),
        (OrphanGuardFacts { unlisted: &files, ..base() }, "listing_lies"),
        (OrphanGuardFacts { missing: &files, ..base() }, "missing_file"),
        (OrphanGuardFacts { lost_tables: Some((5, 40)), ..base() }, "lost_tables"),
    ] {
        assert_eq!(rule(plan(1, 9, 10), &facts), expected);
    }
}

#[test]
fn a_plan_that_breaks_a_rule_of_its_own_is_refused() {
    let limits = limits();
    let mut elsewhere = plan(1, 9, 10);
    elsewhere.facts.place.roots.clear();
    let mut wrong = plan(1, 9, 10);
    wrong.counts.listed.objects += 1;
    for plan in [elsewhere, wrong] {
        assert_eq!(rule(plan, &facts(&limits, &[])), "unsound");
    }
}

#[test]
fn a_catalog_lost_too_many_tables_above_a_tenth_and_from_five_on() {
    for (lost, had, too_many) in
        [(0, 0, false), (4, 4, false), (5, 5, true), (5, 49, true), (5, 50, false), (6, 50, true)]
    {
        assert_eq!(lost_too_many(lost, had), too_many, "{lost} of {had}");
    }
}
