//! What is about PostgreSQL alone. The server is the one that `tests/run` starts; each test has a database of its own.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use super::*;
use crate::clock::Clock;

/// The server's address; its user may do everything.
#[allow(clippy::disallowed_methods)]
fn server() -> String {
    std::env::var("ICEWARDEN_POSTGRES").expect("ICEWARDEN_POSTGRES is not set: run these tests by tests/run")
}

/// The authority of its certificate.
#[allow(clippy::disallowed_methods)]
fn authority() -> String {
    std::env::var("ICEWARDEN_POSTGRES_CA").expect("ICEWARDEN_POSTGRES_CA is not set: run these tests by tests/run")
}

/// The address with another database.
fn named(name: &str) -> String {
    let server = server();
    format!("{}/{name}", server.rsplit_once('/').unwrap().0)
}

async fn admin(statement: String) -> Result<(), sqlx::Error> {
    let mut connection = postgres::Server::of(&Secret::new(server())).unwrap().connect().await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.map(drop)
}

fn name(folder: &TempDir) -> String {
    let path = folder.path().display().to_string();
    path.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

/// The database that goes with this folder; made when it is asked for first.
pub(super) async fn database(folder: &TempDir) -> Secret {
    let name = name(folder);
    match admin(format!("CREATE DATABASE {name}")).await {
        Err(error) if postgres::sqlstate(&error) != Some("42P04") => panic!("{error}"),
        _ => Secret::new(named(&name)),
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_told_in_words_that_help() {
    let folder = TempDir::new().unwrap();
    let good = database(&folder).await.reveal().to_owned();
    let (host, name) = (good.rsplit_once('@').unwrap().1, name(&folder));
    let port = host.split_once(':').unwrap().1.split_once('/').unwrap().0;
    admin(format!("CREATE ROLE reads_{name} LOGIN PASSWORD 'x'")).await.unwrap();
    let foreign = TempDir::new().unwrap();
    let theirs = database(&foreign).await;
    let mut connection = postgres::Server::of(&theirs).unwrap().connect().await.unwrap();
    connection.execute("CREATE TABLE runs (id INT); CREATE TABLE iceberg_tables (id INT)").await.unwrap();
    for (address, words) in [
        (
            format!("postgres://icewarden:hunter2@{host}"),
            vec!["refuses us: password authentication failed", "check user"],
        ),
        (named("hunter2_none"), vec!["refuses us", "does not exist"]),
        ("postgres://u:hunter2@127.0.0.1:1/d".into(), vec!["cannot be reached", "postgres://u@127.0.0.1:1/d"]),
        (format!("{good}?sslmode=verify-full"), vec!["cannot open it", "invalid peer certificate"]),
        (
            format!("postgres://u:hunter2@localhost:{port}/d?sslmode=verify-full&sslrootcert={}", authority()),
            vec!["cannot open it", "invalid peer certificate"],
        ),
        (format!("{good}?sslmod=require"), vec!["parameter \"sslmod\""]),
        (format!("postgres://reads_{name}:x@{host}"), vec!["cannot lay out its tables: permission denied", "CREATE"]),
        (theirs.reveal().to_owned(), vec!["has tables of something else (iceberg_tables, runs)", "search_path"]),
    ] {
        let error = State::open(&Secret::new(&address)).await.unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains(":hunter2") && !error.contains("p%40ss"), "{error}");
    }
    let row = sqlx::query("SELECT COUNT(*) AS n FROM information_schema.tables WHERE table_schema = 'public'");
    let row = row.fetch_one(&mut connection).await.unwrap();
    assert_eq!(row.try_get::<i64, _>("n").unwrap(), 2, "nothing was added to somebody's database");
    // A schema of our own in it is fine.
    connection.execute("CREATE SCHEMA icewarden").await.unwrap();
    let ours = format!("{}?options=-csearch_path%3Dicewarden", theirs.reveal());
    State::open(&Secret::new(ours)).await.unwrap().append_audit(&audit()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_of_a_known_authority_that_names_the_host_is_believed() {
    let folder = TempDir::new().unwrap();
    let address = database(&folder).await;
    let address = format!("{}?sslmode=verify-full&sslrootcert={}", address.reveal(), authority());
    let state = State::open(&Secret::new(address)).await.unwrap();
    let row = sqlx::query("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()");
    let row = row.fetch_one(&state.pool).await.unwrap();
    assert_eq!(row.try_get::<String, _>("version").unwrap(), "TLSv1.3");
}

#[tokio::test]
async fn what_is_committed_is_durable_whatever_the_role_says() {
    let folder = TempDir::new().unwrap();
    let address = database(&folder).await;
    let name = name(&folder);
    for setting in ["synchronous_commit = off", "default_transaction_isolation = 'serializable'", "lock_timeout = 0"] {
        admin(format!("ALTER DATABASE {name} SET {setting}")).await.unwrap();
    }
    let state = State::open(&address).await.unwrap();
    for (setting, expected) in
        [("synchronous_commit", "on"), ("transaction_isolation", "read committed"), ("lock_timeout", "10s")]
    {
        let statement = AssertSqlSafe(format!("SELECT current_setting('{setting}') AS v"));
        let row = sqlx::query(statement).fetch_one(&state.pool).await.unwrap();
        assert_eq!(row.try_get::<String, _>("v").unwrap(), expected, "{setting}");
    }
}

fn audit() -> AuditRow {
    AuditRow {
        at: T0,
        actor: "me".into(),
        action: "hold".into(),
        catalog: None,
        table: None,
        plan: None,
        run: None,
        outcome: "done".into(),
        detail: "{}".into(),
    }
}

#[tokio::test]
async fn replicas_that_write_at_once_lose_nothing() {
    let folder = TempDir::new().unwrap();
    let replicas = [open(&folder).await, open(&folder).await, open(&folder).await];
    let append = |i: usize| {
        let state = replicas[i % 3].clone();
        async move { state.append_audit(&audit()).await }
    };
    for outcome in futures::future::join_all((0..60).map(append)).await {
        outcome.unwrap();
    }
    let row =
        sqlx::query("SELECT COUNT(*) AS n, MAX(seq) AS last FROM audit").fetch_one(&replicas[0].pool).await.unwrap();
    assert_eq!((row.try_get::<i64, _>("n").unwrap(), row.try_get::<i64, _>("last").unwrap()), (60, 60));
}

#[tokio::test]
async fn the_clock_of_the_server_is_compared_with_ours() {
    let folder = TempDir::new().unwrap();
    let (whose, skew) = open(&folder).await.clock_skew().await.unwrap().unwrap();
    assert!(skew.0.abs() < 5_000, "{skew:?}");
    assert!(whose.starts_with("postgres://icewarden@127.0.0.1:") && !whose.contains("p%40ss"), "{whose}");
    assert_eq!(open_file(&folder).await.clock_skew().await.unwrap(), None);
}

const KEY: &str = "0197a1c2-0000-7000-8000-000000000001";
const HOUR: Age = Age::hours(1);

async fn take(state: &State, what: &str, ttl: Age) -> Result<LeaseGuard, Option<Lease>> {
    // The time that is passed is not the one that counts.
    match state.acquire(KEY, &Holder::this(what), Timestamp(i64::MAX / 2), ttl).await.unwrap() {
        Acquired::Guard(guard) => Ok(guard),
        Acquired::HeldBy(lease) => Err(lease),
    }
}

/// Waits for something that must come true soon.
async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let began = Clock::boot_ms();
    while !is_so().await {
        assert!(Clock::boot_ms() - began < 30_000, "waited 30 s until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What happens to a holder that is stopped: its lease ends.
async fn end(state: &State) {
    sqlx::query("UPDATE leases SET expires_at = 1").execute(&state.pool).await.unwrap();
}

#[tokio::test]
async fn of_replicas_that_ask_at_once_one_gets_the_lease_and_the_others_learn_who() {
    let folder = TempDir::new().unwrap();
    let replicas = [open(&folder).await, open(&folder).await, open(&folder).await];
    for round in 1..=5_u64 {
        let asked = (0..12).map(|i| take(&replicas[i % 3], "expiry of t", HOUR));
        let (mut held, mut told) = (Vec::new(), 0);
        for outcome in futures::future::join_all(asked).await {
            match outcome {
                Ok(guard) => held.push(guard),
                Err(lease) => {
                    told += 1;
                    assert_eq!(lease.unwrap().token, round);
                }
            }
        }
        assert_eq!((held.len(), told), (1, 11));
        held.remove(0).release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_ends_by_the_servers_clock_and_its_old_holder_stops() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (open(&folder).await, open(&folder).await);
    let mut old = take(&one, "old", HOUR).await.unwrap();
    let by_server = old.lease().acquired_at.since(Clock::system());
    assert!(by_server.0.abs() < 5_000, "{by_server:?}");
    assert_eq!(take(&two, "new", HOUR).await.unwrap_err().unwrap(), *old.lease());
    end(&two).await;
    // Nobody was faster: it goes on with the same token.
    assert!(old.renew(T0).await.unwrap());
    assert!(take(&two, "new", HOUR).await.is_err());
    // A renewal that was held up does not undo a later one.
    let later = old.lease().expires_at.plus(HOUR);
    sqlx::query("UPDATE leases SET expires_at = $1").bind(later.0).execute(&two.pool).await.unwrap();
    assert!(old.renew(T0).await.unwrap());
    assert_eq!(two.lease(KEY).await.unwrap().unwrap().expires_at, later);
    end(&two).await;
    let mut new = take(&two, "new", HOUR).await.unwrap();
    assert_eq!(new.token(), old.token() + 1);
    assert!(!old.renew(T0).await.unwrap() && !old.still_held().await.unwrap());
    old.release().await.unwrap();
    assert!(new.renew(T0).await.unwrap() && new.still_held().await.unwrap());
    new.release().await.unwrap();
    assert_eq!(one.lease(KEY).await.unwrap(), None);
    let next = take(&one, "next", HOUR).await.unwrap();
    assert_eq!(next.token(), 3);
}

#[tokio::test]
async fn a_lease_is_renewed_in_the_background_until_it_is_dropped() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (open(&folder).await, open(&folder).await);
    let ttl = Age(2_000);
    let held = take(&one, "long plan", ttl).await.unwrap();
    assert_eq!(held.acts_within_ms(), 666);
    let first = held.lease().expires_at;
    until("the lease was renewed past its first end", || async {
        two.lease(KEY).await.unwrap().unwrap().expires_at > first.plus(ttl)
    })
    .await;
    assert!(take(&two, "other", ttl).await.is_err());
    drop(held);
    until("the dropped lease ended", || async { take(&two, "other", ttl).await.is_ok() }).await;
    assert_eq!(two.lease(KEY).await.unwrap().unwrap().token, 2);
}

#[tokio::test]
async fn a_renewal_that_comes_between_judging_and_taking_a_lease_wins() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (open(&folder).await, open(&folder).await);
    let mut held = take(&one, "old", HOUR).await.unwrap();
    for _ in 0..30 {
        end(&two).await;
        // Either may be first, but never both.
        let (renewed, taken) = tokio::join!(held.renew(T0), take(&two, "new", HOUR));
        assert_ne!(renewed.unwrap(), taken.is_ok());
        if let Ok(new) = taken {
            held = new;
        }
    }
}

#[tokio::test]
async fn a_holder_that_cannot_reach_the_server_is_told_so_and_may_not_act() {
    let folder = TempDir::new().unwrap();
    let state = open(&folder).await;
    let mut held = take(&state, "old", HOUR).await.unwrap();
    let name = name(&folder);
    admin(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await.unwrap();
    admin(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")).await.unwrap();
    let error = held.renew(T0).await.unwrap_err().to_string();
    assert!(error.contains("cannot renew a lease") || error.contains("cannot be reached"), "{error}");
    admin(format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true")).await.unwrap();
    assert!(held.renew(T0).await.unwrap(), "the next one gets through");
}

#[tokio::test]
async fn a_lock_that_others_keep_is_told_as_busy() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (open(&folder).await, open(&folder).await);
    let writing = one.write("test").await.unwrap();
    let error = two.append_audit(&audit()).await.unwrap_err();
    assert!(matches!(error, StateError::Busy { .. }), "{error}");
    drop(writing);
    two.append_audit(&audit()).await.unwrap();
}
