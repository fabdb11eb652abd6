//! Leases: one run per table at a time, across threads, processes and replicas (safety rule 14).
//!
//! A lease is a row with a token. Each holder gets a higher token than every one before, and renews by its token: a
//! holder whose row was given to another finds out, and stops. Holders renew before each commit and each batch of
//! deletes, and go on only if that succeeded (`Work::may_go_on`).
//!
//! **SQLite**, for processes on one machine: beside the row there is a lock of the operating system, which the kernel
//! frees when its process dies. A row whose holder had *this* lock file in *this* boot is dead once we hold the lock,
//! and is taken over at once. Any other row must run out first: its holder may be alive where we cannot see it. Nothing
//! renews in the background; while the lock is held nobody takes the row.
//!
//! **PostgreSQL**, for replicas anywhere: there is no lock to share, so the row alone counts, until it ends by the
//! *server's* clock; nobody's own clock is asked. A task renews it in the background, at five times the pace that is
//! needed, so that a long plan does not lose it. That no two holders act at once rests on this:
//!
//! 1. Let a holder ask for the lease, or renew it, at `t` on its boot-time clock, before the request is sent. The server
//!    reads its clock later, at `s`, and stores the end `s + ttl`. So on the holder's clock the lease lasts until
//!    `t + ttl` at least, as long as both clocks run at the same pace (not: show the same time), whatever time the
//!    request and its answer take. Boot time goes on while a process is stopped or a machine sleeps, and nobody sets it.
//! 2. Another one gets the row only when the server's clock has passed the stored end, or the holder released it. It
//!    does so by comparing and swapping the row that it has judged: a renewal in between makes it lose. So whoever
//!    renewed at `t`, and was told yes, is alone until `t + ttl`.
//! 3. The holder acts only within a third of `ttl`, and one minute at most, of the `t` of a renewal that succeeded
//!    ([`LeaseGuard::acts_within_ms`]), and no act takes longer than the rest. A holder that cannot renew acts no more.
//!
//! What is left: a process that is stopped between its last look at the clock and the request it then sends, and goes on
//! after the end. Its commit is refused, if the new holder has committed (compare-and-swap, ref requirements); its batch
//! of deletes was proven unreferenced and stays so, unless a user brought back the files meanwhile; and the store's
//! client gives each batch one minute only. And a server that loses committed rows (a standby that was behind, and was
//! promoted) or sets its clock forward by minutes: see the runbook.

use std::fmt;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tokio::sync::oneshot;

use super::lock::LockFile;
use super::place::Place;
use super::{State, StateError, count, number, time};
use crate::model::{Age, Timestamp};
use crate::postgres;

/// After a renewal a holder acts for this long at most, in milliseconds of boot time.
const ACTS_WITHIN_MS: u64 = 60_000;

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Names one start of one kernel.
    pub boot: String,
    /// Process id, for people.
    pub pid: u32,
    /// What it does, for people: `run 0197… expire`.
    pub what: String,
}

impl Holder {
    /// This process.
    pub fn this(what: impl Into<String>) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .ok()
            .filter(|id| !id.is_empty())
            // Without it a dead holder's row waits for its end; a host's name is the same in every boot, but the
            // lock file's identity still tells that its lock is free.
            .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Self { boot, pid: std::process::id(), what: what.into() }
    }

    /// The same, with the name of this machine for those who must find the process from another one.
    #[must_use]
    pub fn with_host(mut self) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.what = format!("{} on {host}", self.what);
        self
    }
}

/// A lease's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What it is for: a table's uuid.
    pub key: String,
    /// Higher than that of every holder before.
    pub token: u64,
    /// Who holds it.
    pub holder: Holder,
    /// Since when.
    pub acquired_at: Timestamp,
    /// Until when, unless it is renewed.
    pub expires_at: Timestamp,
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { boot, pid, what } = &self.holder;
        let (since, until) = (self.acquired_at.show(), self.expires_at.show());
        write!(f, "{what} (process {pid}, boot {boot}) since {since}, until {until} unless renewed")
    }
}

/// What became of asking for a lease.
#[derive(Debug)]
pub enum Acquired {
    /// We hold it.
    Guard(LeaseGuard),
    /// Somebody else does. `None`: a process on this machine that has just begun or is just about to end.
    HeldBy(Option<Lease>),
}

/// A lease that we hold. Dropped without [`LeaseGuard::release`], it is free at once for processes on this machine where
/// the database is a file, and for others when it runs out.
#[derive(Debug)]
pub struct LeaseGuard {
    state: State,
    lease: Lease,
    ttl: Age,
    _lock: Option<LockFile>,
    _heartbeat: Option<Heartbeat>,
}

/// Keeps the task going that renews a lease in the background; it ends when this is dropped, between two renewals.
#[derive(Debug)]
struct Heartbeat {
    _end: oneshot::Sender<()>,
}

impl State {
    /// Asks for the lease on `key`, for `ttl` from `now`, or from the server's time where there is a server. Does not
    /// wait.
    pub async fn acquire(&self, key: &str, holder: &Holder, now: Timestamp, ttl: Age) -> Result<Acquired, StateError> {
        let doing = "acquire a lease";
        // The lock comes before the row: the other way round, two processes could both judge the row dead.
        let lock = match &*self.place {
            Place::Server(_) => None,
            Place::File(file) => {
                let path = file.lock_file(key);
                let Some(lock) = LockFile::try_take(&path)? else {
                    return Ok(Acquired::HeldBy(self.lease(key).await?));
                };
                let identity = lock.identity().map_err(|error| StateError::Lock {
                    path,
                    doing: "look at lock file",
                    reason: error.to_string(),
                })?;
                Some((lock, identity))
            }
        };
        let mut transaction = self.write(doing).await?;
        let now = self.lease_time(&mut transaction, now).await.map_err(self.failed(doing))?;
        let row = sqlx::query("SELECT * FROM leases WHERE name = $1")
            .bind(key)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(self.failed(doing))?;
        let last = row.as_ref().map(LeaseRow::from_row).transpose().map_err(self.failed(doing))?;
        if let Some(last) = &last {
            let is_ours = |(_, identity): &(LockFile, String)| last.lock_file == *identity;
            let is_dead = last.lease.holder.boot == holder.boot && lock.as_ref().is_some_and(is_ours);
            if !last.is_released && !is_dead && now < last.lease.expires_at {
                return Ok(Acquired::HeldBy(Some(last.lease.clone())));
            }
        }
        let lease = Lease {
            key: key.to_owned(),
            token: last.as_ref().map_or(0, |last| last.lease.token) + 1,
            holder: holder.clone(),
            acquired_at: now,
            expires_at: now.plus(ttl),
        };
        let (lock, lock_file) = lock.unzip();
        // The row must still be the one that was judged: its holder renews it by a single statement.
        let done = sqlx::query(
            "INSERT INTO leases (name, token, boot, lock_file, pid, what, acquired_at, expires_at, released)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
             ON CONFLICT (name) DO UPDATE
             SET token = excluded.token, boot = excluded.boot, lock_file = excluded.lock_file, pid = excluded.pid,
                 what = excluded.what, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,
                 released = 0
             WHERE leases.token = $9 AND leases.expires_at = $10",
        )
        .bind(key)
        .bind(number(lease.token))
        .bind(holder.boot.as_str())
        .bind(lock_file.unwrap_or_default())
        .bind(i64::from(holder.pid))
        .bind(holder.what.as_str())
        .bind(now.0)
        .bind(lease.expires_at.0)
        .bind(number(lease.token - 1))
        .bind(last.map_or(0, |last| last.lease.expires_at.0))
        .execute(&mut *transaction)
        .await
        .map_err(self.failed(doing))?;
        transaction.commit().await.map_err(self.failed(doing))?;
        if done.rows_affected() != 1 {
            return Ok(Acquired::HeldBy(self.lease(key).await?));
        }
        let heartbeat = matches!(*self.place, Place::Server(_)).then(|| self.heartbeat(&lease, ttl));
        Ok(Acquired::Guard(LeaseGuard { state: self.clone(), lease, ttl, _lock: lock, _heartbeat: heartbeat }))
    }

    /// Renews a lease until it is lost, or the task is ended. What the answer is only matters to the holder, who asks
    /// for himself before he acts.
    fn heartbeat(&self, lease: &Lease, ttl: Age) -> Heartbeat {
        let (state, key, token) = (self.clone(), lease.key.clone(), lease.token);
        let ttl_ms = u64::try_from(ttl.0).unwrap_or_default();
        let (end, mut ended) = oneshot::channel();
        tokio::spawn(async move {
            let mut pause = Duration::from_millis(ttl_ms / 5);
            // An answer means that the other end is gone.
            while tokio::time::timeout(pause, &mut ended).await.is_err() {
                pause = match state.renew(&key, token, Timestamp(0), ttl).await {
                    Ok(Some(_)) => Duration::from_millis(ttl_ms / 5),
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(%error, "the lease of a table is not renewed");
                        Duration::from_millis(ttl_ms / 20)
                    }
                };
            }
        });
        Heartbeat { _end: end }
    }

    /// Puts a lease's end off, to `ttl` after now, and returns it; `None` if the lease is not this token's any more.
    async fn renew(&self, key: &str, token: u64, now: Timestamp, ttl: Age) -> Result<Option<Timestamp>, StateError> {
        let (state, key) = (self.clone(), key.to_owned());
        // In a task of its own, which goes on when nobody waits any more: a connection that is left in the middle of a
        // statement is not one to go back to the others.
        let renewing = tokio::spawn(async move {
            let mut connection = state.pool.acquire().await?;
            let until = state.lease_time(&mut connection, now).await?.plus(ttl);
            // Never back: one that was held up must not undo a later one, whose holder relies on it.
            let done = sqlx::query(
                "UPDATE leases SET expires_at = CASE WHEN expires_at < $3 THEN $3 ELSE expires_at END
                 WHERE name = $1 AND token = $2 AND released = 0",
            )
            .bind(key)
            .bind(number(token))
            .bind(until.0)
            .execute(&mut *connection)
            .await?;
            Ok((done.rows_affected() == 1).then_some(until))
        });
        // A server that hangs must not hold up the next try for ever, and a later yes would be of no use.
        let within = Duration::from_millis(acts_within_ms(ttl));
        let renewed = tokio::time::timeout(within, renewing).await;
        let answer = match renewed {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(sqlx::Error::WorkerCrashed),
            Err(_) => Err(sqlx::Error::PoolTimedOut),
        };
        answer.map_err(self.failed("renew a lease"))
    }

    /// The time that leases are about: the server's, where there is one.
    async fn lease_time(&self, connection: &mut AnyConnection, now: Timestamp) -> Result<Timestamp, sqlx::Error> {
        match &*self.place {
            Place::File(_) => Ok(now),
            Place::Server(_) => postgres::now(connection).await,
        }
    }

    /// The lease on `key` as its row has it; `None` if there is none, or it was released.
    pub async fn lease(&self, key: &str) -> Result<Option<Lease>, StateError> {
        let row = sqlx::query("SELECT * FROM leases WHERE name = $1 AND released = 0")
            .bind(key)
            .fetch_optional(&self.pool)
            .await
            .and_then(|row| row.as_ref().map(LeaseRow::from_row).transpose());
        Ok(row.map_err(self.failed("read a lease"))?.map(|row| row.lease))
    }
}

impl LeaseGuard {
    /// The lease as it was last written.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The fencing token.
    pub fn token(&self) -> u64 {
        self.lease.token
    }

    /// How long after the begin of a renewal that succeeded its holder may act, in milliseconds of boot time.
    pub fn acts_within_ms(&self) -> u64 {
        acts_within_ms(self.ttl)
    }

    /// Puts the lease's end off, to its `ttl` after `now` (the server's time, where there is one). Tells whether it is
    /// still ours: if not, nothing more may be committed or deleted. To be called before each commit and each batch of
    /// deletes.
    pub async fn renew(&mut self, now: Timestamp) -> Result<bool, StateError> {
        let until = self.state.renew(&self.lease.key, self.lease.token, now, self.ttl).await?;
        self.lease.expires_at = until.unwrap_or(self.lease.expires_at);
        Ok(until.is_some())
    }

    /// Whether the lease is still ours, without putting its end off.
    pub async fn still_held(&self) -> Result<bool, StateError> {
        let lease = self.state.lease(&self.lease.key).await?;
        Ok(lease.is_some_and(|lease| lease.token == self.lease.token))
    }

    /// Gives the lease back. One that was lost is left to whoever has it.
    pub async fn release(self) -> Result<(), StateError> {
        sqlx::query("UPDATE leases SET released = 1 WHERE name = $1 AND token = $2")
            .bind(self.lease.key.as_str())
            .bind(number(self.lease.token))
            .execute(&self.state.pool)
            .await
            .map(drop)
            .map_err(self.state.failed("release a lease"))
    }
}

fn acts_within_ms(ttl: Age) -> u64 {
    ACTS_WITHIN_MS.min(u64::try_from(ttl.0).unwrap_or_default() / 3)
}

/// All that a row says.
struct LeaseRow {
    lease: Lease,
    lock_file: String,
    is_released: bool,
}

impl LeaseRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            lease: Lease {
                key: row.try_get("name")?,
                token: count(row, "token")?,
                holder: Holder {
                    boot: row.try_get("boot")?,
                    pid: u32::try_from(count(row, "pid")?).unwrap_or_default(),
                    what: row.try_get("what")?,
                },
                acquired_at: time(row, "acquired_at")?,
                expires_at: time(row, "expires_at")?,
            },
            lock_file: row.try_get("lock_file")?,
            is_released: row.try_get::<i64, _>("released")? != 0,
        })
    }
}
