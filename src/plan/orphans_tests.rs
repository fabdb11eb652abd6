use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_000 * 86_400_000);

fn rules() -> LocationRules {
    LocationRules::default()
}

fn root(text: &str) -> Root {
    rules().root(text).unwrap()
}

fn days_ago(days: i64) -> Timestamp {
    NOW.minus(Age::days(days))
}

fn facts() -> OrphanFacts {
    let place = Place {
        roots: ["s3://wh/db/t", "s3://data/t", "s3://unused/t"].map(root).into(),
        others: [root("s3://wh/db/t/inner")].into(),
        ..Place::default()
    };
    OrphanFacts {
        now: NOW,
        older_than: Age::days(3),
        metadata_older_than: Age::days(30),
        listed: place.roots.clone(),
        place,
        within: None,
        protected: [root("s3://wh/db/t/data/safe")].into(),
        by_hand: ["s3://wh/db/t/data/hand".to_owned()].into(),
        flink_jobs: ["0a1b2c".to_owned()].into(),
        hidden_fields: ["_day".to_owned()].into(),
        unused_roots: [root("s3://unused/t")].into(),
        foreign_folders: [root("s3://wh/db/t/backup")].into(),
        unknown_metadata: ["s3://wh/db/t/metadata/odd.metadata.json".to_owned()].into(),
    }
}

fn decided(location: &str, modified: Option<Timestamp>) -> Verdict {
    let object = ObjectFacts { size: 1, modified, etag: None };
    let seen = Unreferenced { location, facts: &object, is_representable: true, is_marked: false };
    decide(&seen, &facts(), &rules())
}

#[test]
fn each_object_has_one_decision_with_its_reason() {
    use FileKind as F;
    use KeptObject as K;
    let old = Some(days_ago(100));
    for (location, modified, verdict) in [
        ("s3://wh/db/t/data/a.parquet", old, Verdict::Orphan(F::Data)),
        ("s3://data/t/a.parquet", old, Verdict::Orphan(F::Data)),
        ("s3://wh/db/t/a.parquet", old, Verdict::Orphan(F::Data)),
        ("s3://wh/db/t/data/p=a%2Fb/New York+é#1?.orc", old, Verdict::Orphan(F::Data)),
        ("s3://wh/db/t/metadata/snap-1.avro", old, Verdict::Orphan(F::ManifestList)),
        ("s3://wh/db/t/metadata/x-m0.avro", old, Verdict::Orphan(F::Manifest)),
        ("s3://wh/db/t/data/x.avro", old, Verdict::Orphan(F::Data)),
        ("s3://wh/db/t/metadata/1.stats", old, Verdict::Orphan(F::Statistics)),
        ("s3://wh/db/t/data/dv.puffin", old, Verdict::Orphan(F::Delete)),
        ("s3://wh/db/t/data/x", old, Verdict::Orphan(F::Other)),
        // Ages: strictly older.
        ("s3://wh/db/t/data/a", Some(days_ago(3)), Verdict::Keep(K::TooYoung)),
        ("s3://wh/db/t/data/a", Some(NOW.minus(Age(3 * 86_400_000 + 1))), Verdict::Orphan(F::Other)),
        ("s3://wh/db/t/data/a", Some(days_ago(-1)), Verdict::Keep(K::TooYoung)),
        ("s3://wh/db/t/data/a", None, Verdict::Keep(K::UnknownAge)),
        ("s3://wh/db/t/data/a", Some(Timestamp(0)), Verdict::Keep(K::UnknownAge)),
        ("s3://wh/db/t/metadata/9.metadata.json", Some(days_ago(30)), Verdict::Keep(K::YoungMetadata)),
        ("s3://wh/db/t/metadata/9.metadata.json", Some(days_ago(31)), Verdict::Orphan(F::Metadata)),
        ("s3://wh/db/t/metadata/9.gz.metadata.json", Some(days_ago(31)), Verdict::Orphan(F::Metadata)),
        ("s3://wh/db/t/metadata/odd.metadata.json", old, Verdict::Keep(K::UnknownMetadata)),
        // Places.
        ("s3://wh/db/t2/data/a", old, Verdict::Keep(K::NotAsked)),
        ("s3://wh/db/t/inner/data/a", old, Verdict::Keep(K::InOtherTable)),
        ("s3://wh/db/t/data/safe/a", old, Verdict::Keep(K::ProtectedPrefix)),
        ("s3://wh/db/t/data/hand", old, Verdict::Keep(K::ByHand)),
        ("s3://unused/t/a", old, Verdict::Keep(K::UnusedRoot)),
        ("s3://wh/db/t/backup/a", old, Verdict::Keep(K::ForeignFolder)),
        // Names.
        ("s3://wh/db/t/_temporary/a", old, Verdict::Keep(K::Hidden)),
        ("s3://wh/db/t/data/.a", old, Verdict::Keep(K::Hidden)),
        ("s3://wh/db/t/data/_day=1/a.orc", old, Verdict::Orphan(F::Data)),
        ("s3://wh/db/t/data/_other=1/a", old, Verdict::Keep(K::Hidden)),
        ("s3://wh/db/t/data/_day", old, Verdict::Keep(K::Hidden)),
        ("s3://wh/db/t/metadata/0a1b2c-00000-1.avro", old, Verdict::Keep(K::FlinkJob)),
        // Keys.
        ("s3://wh/db/t//data/a", old, Verdict::Keep(K::Unrepresentable)),
        ("s3://wh/db/t/data/", old, Verdict::Keep(K::Unrepresentable)),
        ("s3://wh/db/t/../u/a", old, Verdict::Keep(K::Unrepresentable)),
    ] {
        assert_eq!(decided(location, modified), verdict, "{location} {modified:?}");
    }
}

#[test]
fn what_is_marked_already_or_was_not_asked_for_or_cannot_be_asked_for_stays() {
    let object = ObjectFacts { size: 1, modified: Some(days_ago(100)), etag: None };
    let location = "s3://wh/db/t/data/a";
    let seen = Unreferenced { location, facts: &object, is_representable: true, is_marked: false };
    let within = |folder: &str| OrphanFacts { within: Some(root(folder)), ..facts() };
    let kept = Verdict::Keep;
    for (seen, facts, verdict) in [
        (Unreferenced { is_marked: true, ..seen }, facts(), kept(KeptObject::PendingMark)),
        (Unreferenced { is_representable: false, ..seen }, facts(), kept(KeptObject::Unrepresentable)),
        (seen, within("s3://wh/db/t/data"), Verdict::Orphan(FileKind::Other)),
        (seen, within("s3://wh/db/t/dat"), kept(KeptObject::NotAsked)),
    ] {
        assert_eq!(decide(&seen, &facts, &rules()), verdict);
    }
}

#[test]
fn a_data_path_that_others_may_use_is_left_out_wherever_it_lies() {
    let shared = root("s3://wh/db/t/shared");
    let place = Place { roots: [root("s3://wh/db/t"), shared.clone()].into(), ..Place::default() };
    let alone = Exclusive {
        roots: [root("s3://wh/db/t")].into(),
        left_out: [(shared, super::super::roots::NotExclusive::HoldsAnother)].into(),
    };
    let state = crate::model::table::tests::empty_table();
    let facts = OrphanFacts { now: NOW, ..OrphanFacts::of(&state, &place, &alone, BTreeSet::new()) };
    let object = ObjectFacts { size: 1, modified: Some(days_ago(100)), etag: None };
    let decided = |location: &str| {
        decide(&Unreferenced { location, facts: &object, is_representable: true, is_marked: false }, &facts, &rules())
    };
    assert_eq!(decided("s3://wh/db/t/shared/a"), Verdict::Keep(KeptObject::InOtherTable));
    assert_eq!(decided("s3://wh/db/t/data/a"), Verdict::Orphan(FileKind::Other));
}

proptest! {
    #[test]
    fn decisions_add_up_and_no_order_of_the_listing_matters(
        objects in proptest::collection::vec((0_usize..12, 0_u64..1000, -2_i64..400), 0..60),
    ) {
        let names = ["data/a.parquet", "data/b", "data/_h", "backup/x", "inner/x", "metadata/snap-1.avro", "metadata/1-m0.avro",
            "metadata/9.metadata.json", "metadata/odd.metadata.json", "data/safe/x", "data/hand", "//x"];
        let count = |objects: &mut dyn Iterator<Item = &(usize, u64, i64)>| {
            let mut counts = OrphanCounts::default();
            for (at, size, age) in objects {
                let location = format!("s3://wh/db/t/{}", names[*at]);
                let object = ObjectFacts { size: *size, modified: Some(days_ago(*age)), etag: None };
                let verdict = decided(&location, object.modified);
                counts.add(verdict, &location, &object, NOW);
            }
            counts
        };
        let counts = count(&mut objects.iter());
        prop_assert!(counts.adds_up());
        prop_assert_eq!(counts.listed.objects, objects.len() as u64);
        let backwards = count(&mut objects.iter().rev());
        prop_assert_eq!(serde_json::to_string(&counts).unwrap(), serde_json::to_string(&backwards).unwrap());
        prop_assert!(counts.own().objects <= counts.listed.objects);
    }
}
