//! Leases between processes: this test binary runs itself again as the other process, and kills it.

// The lints leave test functions out, but not what they call.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use icewarden::config::Secret;
use icewarden::model::{Age, Timestamp};
use icewarden::state::{Acquired, Holder, LeaseGuard, State};
use tempfile::TempDir;

const KEY: &str = "0197a1c2-0000-7000-8000-000000000001";
const FOLDER: &str = "ICEWARDEN_TEST_LEASES_FOLDER";
const T0: Timestamp = Timestamp(1_700_000_000_000);
const TTL: Age = Age::hours(1);

async fn open(folder: &Path) -> State {
    State::open(&Secret::new(format!("sqlite://{}/state.db", folder.display()))).await.unwrap()
}

fn guard(acquired: Acquired) -> LeaseGuard {
    match acquired {
        Acquired::Guard(guard) => guard,
        Acquired::HeldBy(holder) => panic!("held by {holder:?}"),
    }
}

/// A process of its own that holds the lease until it is killed.
struct Other(Child);

impl Other {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The harness prints the test's name without a newline first.
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("the lease is mine")), "the child gave up");
        Self(child)
    }

    /// SIGKILL: nothing of it runs any more, no destructor, no release.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test of its own: what [`Other`] runs.
#[tokio::test]
#[ignore = "started by the tests beside it"]
async fn the_other_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let state = open(Path::new(&folder)).await;
    let _lease = guard(state.acquire(KEY, &Holder::this("the other process"), T0, TTL).await.unwrap());
    println!("the lease is mine");
    // Ends when the parent dies without killing it.
    std::io::stdin().lines().for_each(drop);
}

#[tokio::test]
async fn two_processes_never_hold_one_lease_and_a_killed_one_is_replaced_at_once() {
    let folder = TempDir::new().unwrap();
    let state = open(folder.path()).await;
    let before = guard(state.acquire(KEY, &Holder::this("before"), T0, TTL).await.unwrap());
    let first = before.token();
    before.release().await.unwrap();

    let other = Other::start(folder.path());
    let me = Holder::this("me");
    // Even long after the other's lease has run out: its process is alive, and may be in a long delete.
    for now in [T0, T0.plus(Age::days(2))] {
        match state.acquire(KEY, &me, now, TTL).await.unwrap() {
            Acquired::HeldBy(Some(lease)) => {
                assert_eq!((lease.holder.what.as_str(), lease.holder.pid), ("the other process", other.0.id()));
                assert_eq!((lease.token, lease.expires_at), (first + 1, T0.plus(TTL)));
                assert!(lease.to_string().contains("the other process (process "), "{lease}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Another table is free meanwhile.
    guard(state.acquire("another", &me, T0, TTL).await.unwrap()).release().await.unwrap();

    other.kill();
    let mut lease = guard(state.acquire(KEY, &me, T0, TTL).await.unwrap());
    assert_eq!(lease.token(), first + 2);
    assert!(lease.renew(T0.plus(Age::hours(5))).await.unwrap());
    assert!(lease.still_held().await.unwrap());
    assert_eq!(lease.lease().expires_at, T0.plus(Age::hours(6)));
}

#[tokio::test]
async fn a_holder_in_another_boot_is_waited_for_until_its_lease_ends() {
    let folder = TempDir::new().unwrap();
    let state = open(folder.path()).await;
    let elsewhere = Holder { boot: "another boot".into(), pid: 1, what: "a replica".into() };
    let mut theirs = guard(state.acquire(KEY, &elsewhere, T0, TTL).await.unwrap());
    let token = theirs.token();
    // What another machine sees: the row, but not the lock.
    std::fs::rename(folder.path().join("locks"), folder.path().join("locks of another machine")).unwrap();
    std::fs::create_dir(folder.path().join("locks")).unwrap();

    let me = Holder::this("me");
    let almost = Timestamp(T0.plus(TTL).0 - 1);
    for now in [T0, almost] {
        assert!(matches!(state.acquire(KEY, &me, now, TTL).await.unwrap(), Acquired::HeldBy(Some(_))), "{now}");
    }
    let mine = guard(state.acquire(KEY, &me, T0.plus(TTL), TTL).await.unwrap());
    assert_eq!(mine.token(), token + 1);
    // The old holder comes to itself: it must not go on, and must not take the lease from us.
    assert!(!theirs.still_held().await.unwrap());
    assert!(!theirs.renew(T0.plus(TTL)).await.unwrap());
    theirs.release().await.unwrap();
    assert!(mine.still_held().await.unwrap());
}

#[tokio::test]
async fn the_same_boot_with_another_lock_file_is_not_taken_for_dead() {
    let folder = TempDir::new().unwrap();
    let state = open(folder.path()).await;
    let theirs = guard(state.acquire(KEY, &Holder::this("a neighbour"), T0, TTL).await.unwrap());
    // Two containers on one machine share the boot, but may not share the folder of locks.
    std::fs::rename(folder.path().join("locks"), folder.path().join("locks of the neighbour")).unwrap();
    std::fs::create_dir(folder.path().join("locks")).unwrap();
    let me = Holder::this("me");
    assert!(matches!(state.acquire(KEY, &me, T0, TTL).await.unwrap(), Acquired::HeldBy(Some(_))));
    assert!(theirs.still_held().await.unwrap());
}

#[tokio::test]
async fn one_process_excludes_itself_and_a_dropped_guard_is_free_at_once() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (open(folder.path()).await, open(folder.path()).await);
    let me = Holder::this("me");
    let all = (0..8).map(|i| {
        let (state, me) = (if i % 2 == 0 { &one } else { &two }, &me);
        async move { state.acquire(KEY, me, T0, TTL).await.unwrap() }
    });
    let acquired = futures::future::join_all(all).await;
    let mut guards: Vec<_> = acquired
        .into_iter()
        .filter_map(|acquired| match acquired {
            Acquired::Guard(guard) => Some(guard),
            Acquired::HeldBy(_) => None,
        })
        .collect();
    assert_eq!(guards.len(), 1);
    let dropped = guards.remove(0);
    let token = dropped.token();
    drop(dropped);
    let next = guard(two.acquire(KEY, &me, T0, TTL).await.unwrap());
    assert_eq!(next.token(), token + 1);
    next.release().await.unwrap();
    assert_eq!(one.lease(KEY).await.unwrap(), None);
    // A key is a name, not a path.
    guard(one.acquire("../../x y/é", &me, T0, TTL).await.unwrap());
    assert!(folder.path().join("locks/..%2F..%2Fx%20y%2F%C3%A9.lock").is_file());
}
