//! Every noun on real databases: SQLite files, and under the feature `real-parts` PostgreSQL. What is about files or
//! a server alone is always tested on these.

use std::collections::BTreeSet;
use std::path::Path;

use tempfile::TempDir;

use super::*;
#[cfg(feature = "real-parts")]
mod on_server;
use crate::model::location::Root;
use crate::model::{Age, FileKind, LocationRules, ObjectFacts, PlanId, RefName, RunId, SnapshotId, TableRoots};
use crate::storage::Storage;

const T0: Timestamp = Timestamp(1_700_000_000_000);
const UUID: Uuid = Uuid::from_u128(7);

fn at(hours: i64) -> Timestamp {
    T0.plus(Age::hours(hours))
}

fn file(folder: &Path) -> Secret {
    Secret::new(format!("sqlite://{}/state.db", folder.display()))
}

async fn open_file(folder: &TempDir) -> State {
    State::open(&file(folder.path())).await.unwrap()
}

/// A database that goes with this folder.
#[cfg(not(feature = "real-parts"))]
async fn database(folder: &TempDir) -> Secret {
    std::future::ready(file(folder.path())).await
}

#[cfg(feature = "real-parts")]
use on_server::database;

async fn open(folder: &TempDir) -> State {
    State::open(&database(folder).await).await.unwrap()
}

fn orders() -> TableName {
    // A level with a dot in it must not be mixed up with two levels.
    TableName { catalog: "lake".into(), namespace: vec!["a.b".into(), "c".into()], name: "orders".into() }
}

fn list(location: &str) -> ListFile {
    ListFile { location: location.into(), sha256: "ab".repeat(32), objects: 3, bytes: 1 << 40 }
}

fn intent(id: &str) -> Intent {
    Intent {
        id: id.into(),
        table: orders(),
        uuid: UUID,
        run: RunId("r1".into()),
        base_metadata_location: "s3://wh/t/metadata/v1.json".into(),
        base_last_updated: at(-1),
        removed_refs: vec![RefName::from("pr_1"), RefName::from("a \"quoted\" name")],
        removed_snapshots: vec![SnapshotId(i64::MAX), SnapshotId(-1)],
        inputs: "{\"a\":1}".into(),
        candidates: list("file:///p/i.zst"),
        created_at: T0,
    }
}

fn marks(id: &str, due_at: Timestamp) -> MarkList {
    MarkList {
        id: id.into(),
        table: orders(),
        uuid: UUID,
        run: RunId("r1".into()),
        plan: PlanId::from_hash(&[9; 32]),
        job: "expire".into(),
        created_at: T0,
        due_at,
        metadata_location: "s3://wh/t/metadata/v2.json".into(),
        last_sequence_number: 12,
        last_updated: T0,
        list: list("file:///p/m.zst"),
        status: MarkStatus::Open,
        note: None,
        closed_at: None,
    }
}

#[tokio::test]
async fn what_was_written_is_there_after_the_database_is_opened_again() {
    let folder = TempDir::new().unwrap();
    let state = open_file(&folder).await;
    assert_eq!(state.database(), folder.path().join("state.db").display().to_string());
    state.start_run(&RunId("r1".into()), "expire", "me", T0, "{}").await.unwrap();
    state.close().await;
    let state = open_file(&folder).await;
    assert_eq!(state.runs(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_intent_is_on_the_disk_before_the_call_returns() {
    let folder = TempDir::new().unwrap();
    let state = open_file(&folder).await;
    for (pragma, expected) in [("journal_mode", "wal"), ("synchronous", "2"), ("foreign_keys", "1")] {
        let statement = sqlx::AssertSqlSafe(format!("SELECT CAST({pragma} AS TEXT) AS v FROM pragma_{pragma}"));
        let row = sqlx::query(statement).fetch_one(&state.pool).await.unwrap();
        assert_eq!(row.try_get::<String, _>("v").unwrap(), expected, "{pragma}");
    }
    let row = sqlx::query("SELECT timeout AS v FROM pragma_busy_timeout").fetch_one(&state.pool).await.unwrap();
    assert_eq!(row.try_get::<i64, _>("v").unwrap(), 10_000);
}

#[tokio::test]
async fn many_that_open_a_new_database_at_once_lay_it_out_once() {
    let folder = TempDir::new().unwrap();
    let database = database(&folder).await;
    let opened = futures::future::join_all((0..4).map(|_| State::open(&database))).await;
    for (i, state) in opened.into_iter().enumerate() {
        let id = RunId(format!("r{i}"));
        state.unwrap().start_run(&id, "expire", "me", T0, "{}").await.unwrap();
    }
    assert_eq!(open(&folder).await.runs(10).await.unwrap().len(), 4);
}

#[tokio::test]
async fn writers_wait_for_each_other() {
    let folder = TempDir::new().unwrap();
    let states = [open(&folder).await, open(&folder).await];
    let raise = |i: usize| {
        let (state, mut seen) = (states[i % 2].clone(), observation(FindingKind::NoUuid, None));
        seen.table.name = format!("t{i}");
        async move { state.raise(&seen, T0).await }
    };
    for outcome in futures::future::join_all((0..40).map(raise)).await {
        outcome.unwrap();
    }
    assert_eq!(states[0].open_findings().await.unwrap().len(), 40);
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_told_in_words_that_help() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().display().to_string();
    open_file(&folder).await.close().await;
    std::fs::write(folder.path().join("garbage.db"), "this is no database at all\n".repeat(100)).unwrap();
    std::fs::create_dir(folder.path().join("folder.db")).unwrap();
    std::fs::create_dir(folder.path().join("x")).unwrap();
    std::fs::write(folder.path().join("x/locks"), "").unwrap();
    for (database, words) in [
        (format!("sqlite://{path}/none/state.db"), vec![format!("{path}/none, does not exist; create it")]),
        (
            format!("sqlite://{path}/garbage.db"),
            vec![format!("{path}/garbage.db is not a state database"), "move it away".into()],
        ),
        (format!("sqlite://{path}/folder.db"), vec![format!("{path}/folder.db cannot be written")]),
        (format!("sqlite://{path}/x/state.db"), vec![format!("cannot create folder {path}/x/locks")]),
        (
            format!("sqlite://{path}/state.db?mode=ro"),
            vec![format!("{path}/state.db cannot be written"), "make the file and its folder writable".into()],
        ),
        ("sqlite::memory:".into(), vec!["names no file".into(), "sqlite:///path".into()]),
        ("postgres://u:hunter2@h".into(), vec!["names no database".into()]),
        ("mysql://u:hunter2@h/d".into(), vec!["kind \"mysql\"".into()]),
        ("state.db".into(), vec!["has no scheme".into()]),
        (format!("sqlite://{path}/state.db?cache=shared"), vec!["only mode=rwc".into()]),
    ] {
        let error = State::open(&Secret::new(&database)).await.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(&word), "{database}: {error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_full_disk_is_called_one_and_nothing_is_half_written() {
    let folder = TempDir::new().unwrap();
    let state = open_file(&folder).await;
    // SQLite's own limit stands in for the disk's: the error is the same. It is one connection's, so all are held.
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = state.pool.acquire().await.unwrap();
        connection.execute("PRAGMA max_page_count = 1").await.unwrap();
        all.push(connection);
    }
    drop(all);
    let request = "x".repeat(1 << 20);
    let error = state.start_run(&RunId("r1".into()), "expire", "me", T0, &request).await.unwrap_err();
    assert!(matches!(error, StateError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("free some space"), "{error}");
    assert_eq!(open_file(&folder).await.runs(10).await.unwrap(), []);
}

#[tokio::test]
async fn a_database_of_a_later_version_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (99, 'later', TRUE, $1, 0)",
    )
    .bind(vec![0_u8])
    .execute(&state.pool)
    .await
    .unwrap();
    state.close().await;
    let error = State::open(&database(&folder).await).await.unwrap_err().to_string();
    assert!(error.contains("another version of icewarden (step 99)"), "{error}");
}

#[tokio::test]
async fn paths_with_odd_characters_name_the_file_they_say() {
    let folder = TempDir::new().unwrap();
    let odd = folder.path().join("a b%20#é");
    std::fs::create_dir(&odd).unwrap();
    let text = odd.display().to_string().replace('%', "%25").replace('#', "%23");
    let state = State::open(&Secret::new(format!("sqlite://{text}/s?mode=rwc"))).await.unwrap();
    assert!(odd.join("s").is_file());
    assert_eq!(state.database(), odd.join("s").display().to_string());
}

#[tokio::test]
async fn a_run_has_an_end_once_it_is_finished() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let (first, second) = (RunId("r1".into()), RunId("r2".into()));
    state.start_run(&first, "expire", "me", T0, "{\"q\":1}").await.unwrap();
    state.start_run(&second, "sweep", "cron", at(1), "{}").await.unwrap();
    state.finish_run(&first, at(2), "done", "{\"n\":2}").await.unwrap();
    let runs = state.runs(1).await.unwrap();
    assert_eq!((runs[0].id.clone(), runs[0].finished_at, runs.len()), (second, None, 1));
    let run = state.run(&first).await.unwrap().unwrap();
    let expected = Run {
        id: first,
        job: "expire".into(),
        actor: "me".into(),
        started_at: T0,
        request: "{\"q\":1}".into(),
        finished_at: Some(at(2)),
        outcome: Some("done".into()),
        report: Some("{\"n\":2}".into()),
    };
    assert_eq!(run, expected);
    assert_eq!(state.run(&RunId("r3".into())).await.unwrap(), None);
}

#[tokio::test]
async fn a_plan_is_found_by_its_id_and_the_newest_of_that_id_counts() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let id = PlanId::from_hash(&[5; 32]);
    let plan = |run: &str, created_at, refused_by: Option<&str>| PlanRecord {
        id,
        run: RunId(run.into()),
        table: orders(),
        uuid: UUID,
        job: "expire".into(),
        created_at,
        refused_by: refused_by.map(str::to_owned),
        header: "{}".into(),
        location: None,
    };
    assert_eq!(state.plan(id).await.unwrap(), None);
    for saved in [plan("r2", at(1), Some("too_many_refs")), plan("r1", T0, None)] {
        state.save_plan(&saved).await.unwrap();
    }
    assert_eq!(state.plan(id).await.unwrap(), Some(plan("r2", at(1), Some("too_many_refs"))));
    let again = PlanRecord { location: Some("file:///p/x".into()), ..plan("r2", at(1), None) };
    state.save_plan(&again).await.unwrap();
    assert_eq!(state.plan(id).await.unwrap(), Some(again));
}

#[tokio::test]
async fn a_confirmation_counts_for_its_table_and_job_until_it_ends() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let confirmation = Confirmation {
        plan: PlanId::from_hash(&[5; 32]),
        table: orders(),
        uuid: UUID,
        job: "expire".into(),
        bound: Bound { refs: vec!["pr_1".into()], snapshots: 2, objects: 3, bytes: 1 << 50 },
        by: "me".into(),
        at: T0,
        until: at(24),
    };
    state.confirm(&confirmation).await.unwrap();
    for (catalog, uuid, job, now, counts) in [
        ("lake", UUID, "expire", T0, true),
        ("lake", UUID, "expire", Timestamp(at(24).0 - 1), true),
        ("lake", UUID, "expire", at(24), false),
        ("lake", UUID, "expire", at(-1), false),
        ("lake", UUID, "orphans", T0, false),
        ("other", UUID, "expire", T0, false),
        ("lake", Uuid::from_u128(8), "expire", T0, false),
    ] {
        let found = state.confirmations(catalog, uuid, job, now).await.unwrap();
        let expected = if counts { vec![confirmation.clone()] } else { vec![] };
        assert_eq!(found, expected, "{catalog} {uuid} {job} {now}");
    }
    let longer = Confirmation { until: at(48), ..confirmation };
    state.confirm(&longer).await.unwrap();
    assert_eq!(state.confirmations("lake", UUID, "expire", at(30)).await.unwrap(), [longer]);
}

#[tokio::test]
async fn an_intent_becomes_marks_once() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    state.open_intent(&intent("i1")).await.unwrap();
    assert_eq!(state.open_intents("lake", UUID).await.unwrap(), [intent("i1")]);
    assert_eq!(state.open_intents("other", UUID).await.unwrap(), []);
    assert_eq!(state.open_intents("lake", Uuid::from_u128(8)).await.unwrap(), []);
    state.mark_intent("i1", &[marks("m-1", at(24))], at(1)).await.unwrap();
    assert_eq!(state.open_intents("lake", UUID).await.unwrap(), []);
    // A second process that resolves the same intent must not mark again.
    let error = state.mark_intent("i1", &[marks("m-2", at(24))], at(1)).await.unwrap_err();
    assert!(matches!(error, StateError::NotOpen { .. }), "{error}");
    assert!(matches!(state.close_intent("i1", Closed::Void, at(1)).await, Err(StateError::NotOpen { .. })));
    assert_eq!(state.marks(MarkFilter::All, None).await.unwrap(), [marks("m-1", at(24))]);
}

#[tokio::test]
async fn marks_that_cannot_all_be_written_leave_the_intent_open() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    state.open_intent(&intent("i1")).await.unwrap();
    state.create_marks(&marks("m-2", at(24))).await.unwrap();
    state.mark_intent("i1", &[marks("m-1", at(24)), marks("m-2", at(24))], at(1)).await.unwrap_err();
    assert_eq!(state.open_intents("lake", UUID).await.unwrap().len(), 1);
    assert_eq!(state.mark("m-1").await.unwrap(), None);
}

#[tokio::test]
async fn a_crash_between_closing_the_intent_and_the_last_mark_leaves_neither() {
    let folder = TempDir::new().unwrap();
    let state = open_file(&folder).await;
    state.open_intent(&intent("i1")).await.unwrap();
    let mut transaction = state.write("test").await.unwrap();
    sqlx::query("UPDATE intents SET closed = 'marked' WHERE id = 'i1'").execute(&mut *transaction).await.unwrap();
    marks("m-1", at(24)).insert(&mut transaction).await.unwrap();
    // What a killed process leaves on the disk at this point is what is there while the transaction is open.
    let copy = TempDir::new().unwrap();
    for file in ["state.db", "state.db-wal"] {
        std::fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
    }
    drop(transaction);
    for state in [open_file(&copy).await, state] {
        assert_eq!(state.open_intents("lake", UUID).await.unwrap(), [intent("i1")]);
        assert_eq!(state.marks(MarkFilter::All, None).await.unwrap(), []);
        state.mark_intent("i1", &[marks("m-1", at(24))], at(1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_anywhere_leaves_all_or_nothing() {
    use std::future::Future;
    use std::task::Poll;
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    for polls in 1..200 {
        let id = format!("i{polls}");
        state.open_intent(&intent(&id)).await.unwrap();
        let list = [marks(&format!("m-{polls}"), T0), marks(&format!("n-{polls}"), T0)];
        let mut call = Box::pin(state.mark_intent(&id, &list, T0));
        let mut left = polls;
        let finished = futures::future::poll_fn(|context| {
            left -= 1;
            match call.as_mut().poll(context) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        drop(call);
        // A commit that was sent before the cancellation may be under way; the next writer comes after it.
        state.write("test").await.unwrap().rollback().await.unwrap();
        let is_open = !state.open_intents("lake", UUID).await.unwrap().is_empty();
        let marked = [state.mark(&list[0].id).await.unwrap(), state.mark(&list[1].id).await.unwrap()];
        assert_eq!(marked.map(|mark| mark.is_some()), [!is_open; 2], "cancelled at poll {polls}");
        if let Some(outcome) = finished {
            outcome.unwrap();
            assert!(!is_open);
            // A database may answer so fast that there is next to nothing to be cancelled.
            if polls > 2 {
                return;
            }
        }
        if is_open {
            state.close_intent(&id, Closed::Void, T0).await.unwrap();
        }
    }
    panic!("the call never ended");
}

#[tokio::test]
async fn marks_are_due_when_their_grace_is_over_and_until_they_are_closed() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let mut other = marks("m-2", at(2));
    other.table = TableName {
        catalog: "lake".into(),
        namespace: vec!["a".into(), "b".into(), "c".into()],
        name: "orders".into(),
    };
    for list in [&marks("m-1", at(1)), &other] {
        state.create_marks(list).await.unwrap();
    }
    let ids = |lists: Vec<MarkList>| lists.into_iter().map(|list| list.id).collect::<Vec<_>>();
    assert_eq!(ids(state.due_marks(Timestamp(at(1).0 - 1)).await.unwrap()), Vec::<String>::new());
    assert_eq!(ids(state.due_marks(at(1)).await.unwrap()), ["m-1"]);
    assert_eq!(ids(state.due_marks(at(2)).await.unwrap()), ["m-1", "m-2"]);
    assert_eq!(ids(state.marks(MarkFilter::Open, Some(&orders())).await.unwrap()), ["m-1"]);
    assert_eq!(ids(state.marks(MarkFilter::Open, Some(&other.table)).await.unwrap()), ["m-2"]);

    let rest = ListFile { objects: 1, bytes: 5, ..list("file:///p/m-rest.zst") };
    assert!(state.update_mark_list("m-1", &rest).await.unwrap());
    assert_eq!(state.mark("m-1").await.unwrap().unwrap().list, rest);
    assert!(state.close_marks("m-1", MarkStatus::Swept, "all gone", at(3)).await.unwrap());
    assert!(!state.close_marks("m-1", MarkStatus::Void, "again", at(4)).await.unwrap());
    assert!(!state.update_mark_list("m-1", &list("file:///p/late.zst")).await.unwrap());
    let closed = state.mark("m-1").await.unwrap().unwrap();
    assert_eq!(
        (closed.status, closed.note.as_deref(), closed.closed_at, closed.list),
        (MarkStatus::Swept, Some("all gone"), Some(at(3)), rest)
    );
    assert_eq!(ids(state.due_marks(at(9)).await.unwrap()), ["m-2"]);
    assert_eq!(ids(state.marks(MarkFilter::Open, None).await.unwrap()), ["m-2"]);
    assert_eq!(ids(state.marks(MarkFilter::All, None).await.unwrap()), ["m-1", "m-2"]);
    let id = state.new_mark_id().await.unwrap();
    assert!(id.len() == 10 && id.starts_with("m-"), "{id}");
}

fn observation(kind: FindingKind, uuid: Option<Uuid>) -> Observation {
    Observation {
        kind,
        table: orders(),
        uuid,
        ref_name: None,
        severity: Severity::Critical,
        numbers: serde_json::json!({ "snapshots": 2 }),
        message: "two more snapshots went".into(),
        advice: "look at v3.json".into(),
    }
}

#[tokio::test]
async fn a_finding_keeps_its_id_first_time_and_acknowledgement_while_it_is_open() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let first = observation(FindingKind::UnplannedRemoval, Some(UUID));
    let id = state.raise(&first, T0).await.unwrap();
    assert!(id.len() == 8 && id.starts_with("f-"), "{id}");
    assert!(state.acknowledge(&id, at(48), "me").await.unwrap());
    // Renamed in between; the uuid tells that it is the same table.
    let mut second = Observation { message: "three more".into(), ..first.clone() };
    second.table.name = "orders_2".into();
    assert_eq!(state.raise(&second, at(1)).await.unwrap(), id);
    let found = state.open_findings().await.unwrap();
    let expected = Finding {
        id: id.clone(),
        seen: second,
        first_seen: T0,
        last_seen: at(1),
        acknowledged_until: Some(at(48)),
        acknowledged_by: Some("me".into()),
        closed_at: None,
    };
    assert_eq!(found, [expected]);
    assert!(found[0].is_acknowledged(at(47)) && !found[0].is_acknowledged(at(48)));
    assert_eq!(state.open_findings_of(UUID).await.unwrap(), found);
    assert_eq!(state.open_findings_of(Uuid::from_u128(8)).await.unwrap(), []);

    assert!(state.resolve(&id, at(2)).await.unwrap());
    assert!(!state.resolve(&id, at(3)).await.unwrap());
    assert!(!state.acknowledge(&id, at(50), "me").await.unwrap());
    assert_eq!(state.open_findings().await.unwrap(), []);
    // It came back: that is news.
    assert_eq!(state.raise(&first, at(4)).await.unwrap(), id);
    let again = state.open_findings().await.unwrap().remove(0);
    assert_eq!((again.first_seen, again.acknowledged_until, again.acknowledged_by), (at(4), None, None));
}

#[tokio::test]
async fn findings_are_told_apart_by_kind_table_and_ref() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let base = observation(FindingKind::NoPredecessor, Some(UUID));
    let mut twin = observation(FindingKind::SharedLocation, Some(UUID));
    twin.table.name = "twin".into();
    let all = [
        base.clone(),
        Observation { ref_name: Some("pr_1".into()), ..base.clone() },
        Observation { uuid: None, ..base.clone() },
        Observation { uuid: Some(Uuid::from_u128(8)), ..base.clone() },
        observation(FindingKind::SharedLocation, Some(UUID)),
        twin,
    ];
    let mut ids = BTreeSet::new();
    for seen in &all {
        ids.insert(state.raise(seen, T0).await.unwrap());
    }
    assert_eq!(ids.len(), all.len());
    let resolved = state.resolve_kind(FindingKind::NoPredecessor, &orders(), Some(UUID), at(1)).await.unwrap();
    assert_eq!(resolved, 3, "with and without a ref, by uuid and by name");
    assert_eq!(state.open_findings().await.unwrap().len(), 3);
    assert_eq!(state.resolve_kind(FindingKind::SharedLocation, &orders(), None, at(1)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_finding_whose_short_id_is_taken_gets_a_longer_one() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let wanted = observation(FindingKind::NoUuid, None);
    let other = state.raise(&observation(FindingKind::GcDisabled, None), T0).await.unwrap();
    sqlx::query("UPDATE findings SET id = $1 WHERE id = $2")
        .bind(wanted.id(6))
        .bind(other)
        .execute(&state.pool)
        .await
        .unwrap();
    assert_eq!(state.raise(&wanted, T0).await.unwrap(), wanted.id(8));
    assert_eq!(state.raise(&wanted, at(1)).await.unwrap(), wanted.id(8));
}

#[test]
fn every_word_of_the_database_is_read_back() {
    for kind in FindingKind::ALL {
        assert_eq!(kind.as_str().parse::<FindingKind>().unwrap(), kind);
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    for severity in [Severity::Info, Severity::Warning, Severity::Critical] {
        assert_eq!(severity.as_str().parse::<Severity>().unwrap(), severity);
    }
    assert_eq!("gone".parse::<MarkStatus>().unwrap_err().to_string(), "\"gone\" is no known status of a mark list");
}

#[tokio::test]
async fn the_audit_log_tells_who_did_what_newest_first() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let row = AuditRow {
        at: T0,
        actor: "me".into(),
        action: "commit".into(),
        catalog: Some("lake".into()),
        table: Some(orders()),
        plan: Some(PlanId::from_hash(&[1; 32])),
        run: Some(RunId("r1".into())),
        outcome: "committed".into(),
        detail: "{}".into(),
    };
    let hold = AuditRow { action: "hold".into(), table: None, plan: None, run: None, ..row.clone() };
    for appended in [&row, &hold] {
        state.append_audit(appended).await.unwrap();
    }
    assert_eq!(state.audit_tail(10).await.unwrap(), [hold.clone(), row.clone()]);
    assert_eq!(state.audit_tail(1).await.unwrap(), [hold]);
    assert_eq!(state.audit_of_run(&RunId("r1".into())).await.unwrap(), [row]);
}

#[tokio::test]
async fn folders_are_replaced_when_a_table_changed_and_forgotten_when_it_is_gone() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let root = |raw: &str| -> Root { LocationRules::default().root(raw).unwrap() };
    let mut seen = TableRoots {
        table: orders(),
        metadata_location: "s3://wh/t/metadata/v1.json".into(),
        uuid: None,
        roots: BTreeSet::from([root("s3://wh/t")]),
    };
    state.put_roots(&seen).await.unwrap();
    seen.uuid = Some(UUID);
    seen.roots.insert(root("s3a://other/t/"));
    state.put_roots(&seen).await.unwrap();
    let mut gone = seen.clone();
    gone.table.name = "gone".into();
    state.put_roots(&gone).await.unwrap();
    assert_eq!(state.roots("lake").await.unwrap(), [gone, seen.clone()]);
    assert_eq!(state.forget_roots("other", &BTreeSet::new()).await.unwrap(), 0);
    assert_eq!(state.forget_roots("lake", &BTreeSet::from([orders()])).await.unwrap(), 1);
    assert_eq!(state.roots("lake").await.unwrap(), [seen]);
}

fn plans(folder: &TempDir) -> Plans {
    let storage = Storage::new(LocationRules::default(), std::collections::BTreeMap::new(), 4);
    Plans::open(storage, &format!("file://{}/deep/plans", folder.path().display())).unwrap()
}

#[tokio::test]
async fn keeps_and_holds_outlive_the_database() {
    let folder = TempDir::new().unwrap();
    let (state, plans) = (open(&folder).await, plans(&folder));
    let keep = |location: &str, reason: &str| Keep {
        location: location.into(),
        by: "me".into(),
        reason: reason.into(),
        at: T0,
    };
    let hold = |scope| Hold { scope, by: "me".into(), reason: "audit".into(), at: T0 };
    plans.keep(&state, &keep("s3://b/x", "first")).await.unwrap();
    plans.keep(&state, &keep("s3://b/y", "")).await.unwrap();
    plans.keep(&state, &keep("s3://b/x", "second")).await.unwrap();
    plans.hold(&state, &hold(HoldScope::Table(orders()))).await.unwrap();
    plans.hold(&state, &hold(HoldScope::Catalog("lake".into()))).await.unwrap();
    plans.hold(&state, &hold(HoldScope::All)).await.unwrap();
    let kept = [keep("s3://b/x", "first"), keep("s3://b/y", "")];
    assert_eq!(state.keeps().await.unwrap(), kept);

    let lost = TempDir::new().unwrap();
    let state = open(&lost).await;
    assert!(!state.is_kept("s3://b/x").await.unwrap());
    assert_eq!(plans.restore(&state).await.unwrap(), 5);
    assert_eq!(plans.restore(&state).await.unwrap(), 0);
    assert_eq!(state.keeps().await.unwrap(), kept);
    assert_eq!(state.kept().await.unwrap(), BTreeSet::from(["s3://b/x".to_owned(), "s3://b/y".to_owned()]));

    let other = TableName { catalog: "sea".into(), ..orders() };
    assert_eq!(state.held(&other).await.unwrap(), Some(hold(HoldScope::All)));
    assert!(plans.release_hold(&state, &HoldScope::All).await.unwrap());
    assert!(!plans.release_hold(&state, &HoldScope::All).await.unwrap());
    assert_eq!(state.held(&other).await.unwrap(), None);
    assert_eq!(state.held(&orders()).await.unwrap(), Some(hold(HoldScope::Catalog("lake".into()))));
    assert!(plans.release_hold(&state, &HoldScope::Catalog("lake".into())).await.unwrap());
    assert_eq!(state.held(&orders()).await.unwrap(), Some(hold(HoldScope::Table(orders()))));

    assert!(plans.release_keep(&state, "s3://b/x").await.unwrap());
    assert!(!plans.release_keep(&state, "s3://b/x").await.unwrap());
    assert!(state.is_kept("s3://b/y").await.unwrap() && !state.is_kept("s3://b/x").await.unwrap());
    let lost = TempDir::new().unwrap();
    assert_eq!(plans.restore(&open(&lost).await).await.unwrap(), 2, "one keep and one hold are left");
}

#[tokio::test]
async fn keeps_made_at_once_are_all_in_the_file() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (states, plans) = ([open(&folder).await, open(&folder).await], plans(&folder));
    let keep = |i: usize| {
        let (state, plans) = (states[i % 2].clone(), plans.clone());
        let keep = Keep { location: format!("s3://b/{i}"), by: "me".into(), reason: String::new(), at: T0 };
        async move { plans.keep(&state, &keep).await }
    };
    for outcome in futures::future::join_all((0..10).map(keep)).await {
        outcome.unwrap();
    }
    assert_eq!(plans.restore(&open(&other).await).await.unwrap(), 10);
}

#[tokio::test]
async fn a_damaged_file_of_keeps_is_an_error_not_an_empty_list() {
    let folder = TempDir::new().unwrap();
    let (state, plans) = (open(&folder).await, plans(&folder));
    plans.write("keeps.json", "[{\"location\":".into()).await.unwrap();
    let error = plans.restore(&state).await.unwrap_err();
    assert!(matches!(error, PlansError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("keeps.json"), "{error}");
}

#[tokio::test]
async fn files_in_the_plans_store_stay_inside_and_are_read_back() {
    let folder = TempDir::new().unwrap();
    let plans = plans(&folder);
    let location = plans.write("marks/m-1.zst", "abc".into()).await.unwrap();
    assert_eq!(location, format!("file://{}/deep/plans/marks/m-1.zst", folder.path().display()));
    assert_eq!(plans.read(&location).await.unwrap(), "abc");
    plans.write("marks/m-1.zst", "defg".into()).await.unwrap();
    assert_eq!(plans.read(&location).await.unwrap(), "defg");
    for name in ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a b", "ä", "a\n"] {
        assert!(matches!(plans.write(name, "x".into()).await, Err(PlansError::BadName { .. })), "{name:?}");
    }
    let error = plans.read(&format!("{location}x")).await.unwrap_err().to_string();
    assert!(error.contains("m-1.zstx"), "{error}");
}

#[test]
fn a_plans_store_that_cannot_be_used_is_told_in_words_that_help() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let in_the_way = format!("file://{}/file/plans", folder.path().display());
    for (plans, words) in [
        (in_the_way.as_str(), "cannot create the plans store's folder"),
        ("file:///", "root of the file system"),
        ("plans", "no location"),
    ] {
        let storage = Storage::new(LocationRules::default(), std::collections::BTreeMap::new(), 4);
        let error = Plans::open(storage, plans).unwrap_err().to_string();
        assert!(error.contains(words), "{plans}: {error}");
    }
}

#[tokio::test]
async fn a_list_in_the_plans_store_is_checked_when_it_is_read() {
    let folder = TempDir::new().unwrap();
    let plans = plans(&folder);
    let entry = Entry {
        kind: FileKind::Data,
        location: "s3://b/x".into(),
        facts: Some(ObjectFacts { size: 5, modified: Some(T0), etag: None }),
        recorded_size: None,
    };
    let location = plans.location("marks/m-1.zst").unwrap();
    let (bytes, list) = ListWriter::write_all(&serde_json::json!({}), vec![entry.clone()], &[], &location).unwrap();
    plans.write("marks/m-1.zst", bytes.clone()).await.unwrap();
    assert_eq!(plans.read_list(&list).await.unwrap().read_all().unwrap(), (vec![entry], vec![]));
    plans.write("marks/m-1.zst", bytes.slice(..bytes.len() - 1)).await.unwrap();
    let error = plans.read_list(&list).await.unwrap_err();
    assert!(matches!(error, PlansError::List(ListError::WrongChecksum { .. })), "{error}");
}

#[tokio::test]
async fn what_is_remembered_of_refs_outlives_the_database_or_the_file_and_the_later_one_counts() {
    use crate::model::table::tests::empty_table;
    use crate::model::{Age, DroppedRef, Ref, RefKind, RefMemory, Retention};
    let folder = TempDir::new().unwrap();
    let (state, plans) = (open(&folder).await, plans(&folder));
    let (uuid, grace) = (Uuid::from_u128(1), Age::hours(24));
    let r = |id: i64| Ref { snapshot: SnapshotId(id), kind: RefKind::Tag, retention: Retention::default() };
    let table = |updated: i64, refs: &[(&str, i64)]| {
        let mut table = empty_table();
        table.last_updated = at(updated);
        table.refs.extend(refs.iter().map(|(name, id)| (RefName::from(*name), r(*id))));
        table
    };
    let first = |memory: &RefMemory, name: &str| memory.refs.get(&RefName::from(name)).map(|seen| seen.first_seen);
    let key = ("lake", uuid);
    let look = async |state: &State, table: &crate::model::TableState, hours: i64| {
        plans.look_at_refs(state, key, table, at(hours), grace).await.unwrap()
    };
    look(&state, &table(0, &[("a", 1)]), 1).await;
    let memory = look(&state, &table(2, &[("a", 1), ("b", 2)]), 5).await;
    assert_eq!((first(&memory, "a"), first(&memory, "b")), (Some(at(1)), Some(at(5))));
    // Of another catalog and of another table.
    for other in [("other", uuid), ("lake", Uuid::from_u128(2))] {
        let memory = plans.look_at_refs(&state, other, &table(2, &[("a", 1)]), at(6), grace).await.unwrap();
        assert_eq!(first(&memory, "a"), Some(at(6)));
    }
    // A look at older metadata changes nothing.
    assert_eq!(look(&state, &table(1, &[]), 7).await, memory);
    let drop = DroppedRef {
        name: "b".into(),
        r: r(2),
        fork_point: None,
        at: at(8),
        by: Some("me".to_owned()),
        is_seen: false,
        ended: None,
    };
    plans.record_drops(&state, key, std::slice::from_ref(&drop)).await.unwrap();
    plans.record_drops(&state, key, &[DroppedRef { at: at(9), ..drop.clone() }]).await.unwrap();
    let memory = plans.ref_memory(&state, key).await.unwrap();
    assert_eq!(memory.dropped, [DroppedRef { at: at(9), ..drop }], "of two tries the later one");

    // A new database: the file knows.
    let empty = TempDir::new().unwrap();
    let lost = open(&empty).await;
    assert_eq!(plans.ref_memory(&lost, key).await.unwrap(), memory);
    let later = look(&lost, &table(3, &[("a", 1)]), 10).await;
    assert_eq!(first(&later, "a"), Some(at(1)));
    // The old database, as of a backup: the file is later.
    assert_eq!(plans.ref_memory(&state, key).await.unwrap(), later);
    // No file, or a damaged one: the database knows.
    let files: Vec<_> =
        std::fs::read_dir(folder.path().join("deep/plans/refs")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 3);
    for file in &files {
        std::fs::write(file, "{").unwrap();
    }
    assert_eq!(plans.ref_memory(&lost, key).await.unwrap(), later);
    assert_eq!(look(&lost, &table(3, &[("a", 1)]), 11).await.refs, later.refs);
    assert!(files.iter().any(|file| std::fs::read_to_string(file).unwrap().len() > 1), "written anew");
}
