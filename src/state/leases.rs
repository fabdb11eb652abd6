//! Leases: one run per table at a time, across threads, processes and replicas (safety rule 14).
//!
//! A lease is a lock of the operating system, for processes on one machine, and a row, for all that share the
//! database. The kernel frees the lock when its process dies, so a row whose holder had *this* lock file in
//! *this* boot is dead once we hold the lock, and is taken over at once. Any other row must run out first:
//! its holder may be alive where we cannot see it. Each holder gets a higher token than every one before.
//!
//! Nothing renews a lease in the background: its holder renews it before each commit and each batch of
//! deletes, and stops if that fails.

use std::fmt;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::lock::LockFile;
use super::{State, StateError, count, number, time};
use crate::model::{Age, Timestamp};

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

/// A lease that we hold. Dropped without [`LeaseGuard::release`], it is free at once for processes on this
/// machine, and for others when it runs out.
#[derive(Debug)]
pub struct LeaseGuard {
    state: State,
    lease: Lease,
    ttl: Age,
    _lock: LockFile,
}

impl State {
    /// Asks for the lease on `key`, for `ttl` from `now`. Does not wait.
    pub async fn acquire(&self, key: &str, holder: &Holder, now: Timestamp, ttl: Age) -> Result<Acquired, StateError> {
        let doing = "acquire a lease";
        let path = self.place.lock_file(key);
        // The lock comes before the row: the other way round, two processes could both judge the row dead.
        let Some(lock) = LockFile::try_take(&path)? else {
            return Ok(Acquired::HeldBy(self.lease(key).await?));
        };
        let lock_file = lock.identity().map_err(|error| StateError::Lock {
            path,
            doing: "look at lock file",
            reason: error.to_string(),
        })?;
        let mut transaction = self.write(doing).await?;
        let row = sqlx::query("SELECT * FROM leases WHERE name = $1")
            .bind(key)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(self.failed(doing))?;
        let last = row.as_ref().map(LeaseRow::from_row).transpose().map_err(self.failed(doing))?;
        if let Some(last) = &last {
            let is_dead = last.lease.holder.boot == holder.boot && last.lock_file == lock_file;
            if !last.is_released && !is_dead && now < last.lease.expires_at {
                return Ok(Acquired::HeldBy(Some(last.lease.clone())));
            }
        }
        let lease = Lease {
            key: key.to_owned(),
            token: last.map_or(0, |last| last.lease.token) + 1,
            holder: holder.clone(),
            acquired_at: now,
            expires_at: now.plus(ttl),
        };
        sqlx::query(
            "INSERT INTO leases (name, token, boot, lock_file, pid, what, acquired_at, expires_at, released)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
             ON CONFLICT (name) DO UPDATE
             SET token = excluded.token, boot = excluded.boot, lock_file = excluded.lock_file, pid = excluded.pid,
                 what = excluded.what, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,
                 released = 0",
        )
        .bind(key)
        .bind(number(lease.token))
        .bind(holder.boot.as_str())
        .bind(lock_file)
        .bind(i64::from(holder.pid))
        .bind(holder.what.as_str())
        .bind(now.0)
        .bind(lease.expires_at.0)
        .execute(&mut *transaction)
        .await
        .map_err(self.failed(doing))?;
        transaction.commit().await.map_err(self.failed(doing))?;
        Ok(Acquired::Guard(LeaseGuard { state: self.clone(), lease, ttl, _lock: lock }))
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

    /// Puts the lease's end off, to its `ttl` after `now`. Tells whether it is still ours: if not, nothing more
    /// may be committed or deleted. To be called before each commit and each batch of deletes.
    pub async fn renew(&mut self, now: Timestamp) -> Result<bool, StateError> {
        let until = now.plus(self.ttl);
        let done = sqlx::query("UPDATE leases SET expires_at = $3 WHERE name = $1 AND token = $2 AND released = 0")
            .bind(self.lease.key.as_str())
            .bind(number(self.lease.token))
            .bind(until.0)
            .execute(&self.state.pool)
            .await
            .map_err(self.state.failed("renew a lease"))?;
        if done.rows_affected() == 1 {
            self.lease.expires_at = until;
        }
        Ok(done.rows_affected() == 1)
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
