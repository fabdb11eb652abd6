//! How long planning takes for a table of 20,000 snapshots with 400 refs: `cargo bench --bench plan`.
//! Asserts what the plans decide, never how fast.
//!
//! One thread, measured in its CPU time, the median of seven rounds.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark's world is known")]
#![allow(clippy::cast_possible_wrap, reason = "numbers of a benchmark are small")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::Duration;

use icewarden::catalog::metadata;
use icewarden::config::RefRules;
use icewarden::model::{Age, Creation, RefMemory, TableName, TableState, Timestamp};
use icewarden::plan::values::{Configured, Inputs, Request};
use icewarden::plan::{CleanupPlan, ExpirePlan, RefFacts, RetentionPlan, expire, retention, values};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use uuid::Uuid;

const ROUNDS: usize = 7;
const NOW: i64 = 1_790_000_000_000;
const MINUTE: i64 = 60_000;
/// Snapshots of `main`, then 300 branches of 25 each, cut all along `main`; 99 tags; and `main` itself.
const MAIN: usize = 12_500;
const BRANCHES: usize = 300;
const OF_A_BRANCH: usize = 25;
const TAGS: usize = 99;
const LOCATION: &str = "s3://warehouse/sales.db/orders";

/// The metadata file, with `branch` as the retention of every branch.
fn metadata(branch: &Value) -> Vec<u8> {
    let mut snapshots = Vec::new();
    let mut add = |parent: Option<usize>, minutes_ago: usize| {
        let id = snapshots.len() + 1;
        snapshots.push(json!({
            "snapshot-id": id, "parent-snapshot-id": parent, "sequence-number": id, "schema-id": 0,
            "timestamp-ms": NOW - minutes_ago as i64 * MINUTE,
            "manifest-list": format!("{LOCATION}/metadata/snap-{id}-1-{id:032x}.avro"),
            "summary": {
                "operation": "append", "added-data-files": "10", "added-records": "100000",
                "added-files-size": "1234567", "total-data-files": (10 * id).to_string(),
                "total-records": (100_000 * id).to_string(), "total-delete-files": "0",
            },
        }));
        id
    };
    for index in 0..MAIN {
        add((index > 0).then_some(index), 2 * (MAIN - index));
    }
    let mut refs = Map::from_iter([("main".to_owned(), json!({"type": "branch", "snapshot-id": MAIN}))]);
    for index in 0..BRANCHES {
        let mut head = (index + 1) * MAIN / BRANCHES;
        let cut = 2 * (MAIN - head);
        for step in 0..OF_A_BRANCH {
            head = add(Some(head), cut.saturating_sub(step));
        }
        let mut branch = branch.clone();
        branch["type"] = json!("branch");
        branch["snapshot-id"] = json!(head);
        refs.insert(format!("dev_{index}"), branch);
    }
    for index in 0..TAGS {
        refs.insert(format!("v{index}"), json!({"type": "tag", "snapshot-id": 1 + index * MAIN / TAGS}));
    }
    let metadata = json!({
        "format-version": 2, "table-uuid": Uuid::from_u128(4), "location": LOCATION,
        "last-sequence-number": snapshots.len(), "last-updated-ms": NOW, "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": true, "type": "long"}]}],
        "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}], "last-partition-id": 999,
        "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {}, "current-snapshot-id": MAIN, "refs": refs, "snapshots": snapshots,
        "snapshot-log": [], "metadata-log": [],
    });
    serde_json::to_vec(&metadata).unwrap()
}

fn inputs() -> Inputs {
    Inputs {
        request: Request::default(),
        configured: Configured {
            policy_older_than: None,
            policy_retain_last: None,
            override_table: false,
            older_than: Age::days(5),
            retain_last: 1,
            floor: Age::hours(1),
            drop_grace: Age::hours(24),
            keep_fork_points: true,
            rules: RefRules::default(),
        },
        now: Timestamp(NOW),
    }
}

/// The plan without its files, as a run makes it.
fn plan(state: &TableState, inputs: &Inputs, facts: &RefFacts) -> (RetentionPlan, usize) {
    let values = values::resolve(state, inputs).unwrap();
    let retention = retention::plan(state, &values, facts).unwrap();
    let steps = expire::steps(&retention, 10_000).len();
    (retention, steps)
}

/// What is known of the refs by the default configuration, after they were seen before: ages count from creation, and
/// fork points are kept.
fn facts(seen: &RefMemory) -> RefFacts {
    let refs = || seen.refs.iter();
    let created = refs().map(|(name, seen)| (name.clone(), Creation { head: seen.head, at: seen.first_seen }));
    RefFacts {
        by_creation: true,
        created: created.collect(),
        fork_points: refs().filter_map(|(name, seen)| Some((name.clone(), seen.fork_point?))).collect(),
        ..RefFacts::default()
    }
}

/// The first look at the refs.
fn looked(state: &TableState) -> RefMemory {
    let mut memory = RefMemory::default();
    memory.look(state, Timestamp(NOW - MINUTE), Age::days(1));
    memory
}

fn timed<T>(work: impl Fn() -> T) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = now();
            black_box(work());
            now().saturating_sub(began)
        })
        .collect();
    rounds.sort();
    rounds[ROUNDS / 2]
}

fn main() {
    println!(
        "| branches | snapshots | refs | expired | metadata MB | reading metadata | seeing the refs | planning | writing the plan |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    // The last makes every branch walk all the way along `main`.
    for (name, branch) in [
        ("defaults (5 days)", json!({})),
        ("each keeps 50 snapshots", json!({"min-snapshots-to-keep": 50})),
        ("each keeps all its ancestors", json!({"max-snapshot-age-ms": 365 * 24 * 60 * MINUTE})),
    ] {
        let bytes = metadata(&branch);
        let inputs = inputs();
        let state = metadata::parse(&bytes, "memory://v1.metadata.json").unwrap();
        let seen = looked(&state);
        assert_eq!(seen.refs.values().filter(|seen| seen.fork_point.is_some()).count(), BRANCHES);
        let facts = facts(&seen);
        let (retention, expired) = plan(&state, &inputs, &facts);
        assert_eq!((retention.snapshots.len(), retention.refs.len()), (20_000, 400));
        let gone: BTreeSet<_> = retention.expired().map(|decision| decision.id).collect();
        assert_eq!(gone.len(), expired);
        assert!(state.refs.values().all(|one| !gone.contains(&one.snapshot)), "every head stays");
        let steps = expire::steps(&retention, 10_000);
        let whole = ExpirePlan {
            table: TableName {
                catalog: "lake".to_owned(),
                namespace: vec!["sales".to_owned()],
                name: "orders".to_owned(),
            },
            uuid: Uuid::from_u128(4),
            metadata_location: "memory://v1.metadata.json".to_owned(),
            retention,
            cleanup: CleanupPlan::default(),
            retained: Vec::new(),
            left: Vec::new(),
            conflicts: Vec::new(),
            steps: BTreeMap::from_iter(steps),
        };
        let show = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        println!(
            "| {name} | {} | {} | {expired} | {:.1} | {} | {} | {} | {} |",
            state.snapshots.len(),
            state.refs.len(),
            bytes.len() as f64 / 1e6,
            show(timed(|| metadata::parse(&bytes, "memory://v1.metadata.json").unwrap())),
            // The first sight, which has all fork points to find.
            show(timed(|| looked(&state))),
            show(timed(|| plan(&state, &inputs, &facts))),
            show(timed(|| whole.write().unwrap())),
        );
    }
}
