//! Commits to the catalog and marks files. Deletes nothing: that is the sweep's alone.
//!
//! The order is: intent (durable) → commit → settle → marks. A crash between any two loses nothing: before a
//! table is planned or swept again, its open intents are settled by the same code ([`settle`]).

pub mod change;
pub mod commit;
pub mod mark;
pub mod settle;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::catalog::{Catalog, LoadedTable};
use crate::clock::Clock;
use crate::config::Config;
use crate::error::Error;
use crate::failpoint;
use crate::inventory::borders;
use crate::inventory::reach::Progress;
use crate::inventory::world::{Surveyor, World};
use crate::model::{Age, LocationRules, RefMemory, RefName, RunId, TableName, Timestamp};
use crate::state::{Acquired, AuditRow, Holder, LeaseGuard, Plans, State};
use crate::storage::{ListProgress, Storage};

/// How long a lease lasts without being renewed. It is renewed before each commit and each batch of deletes;
/// the longest request between two of those must fit in.
const LEASE: Age = Age(15 * 60_000);

/// The parts of a lake that acting on a table needs.
#[derive(Debug, Clone)]
pub struct Hands {
    /// The configuration.
    pub config: Arc<Config>,
    /// Table storage.
    pub storage: Storage,
    /// The state database.
    pub state: State,
    /// The plans store.
    pub plans: Plans,
    /// Where `now` comes from.
    pub clock: Clock,
    /// What was read so far.
    pub progress: Arc<Progress>,
    /// What was listed so far.
    pub listed: Arc<ListProgress>,
}

/// What the list file of an intent or of marks starts with, beside its format.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListHeader {
    /// The id of the intent or of the marks.
    pub id: String,
    /// The table, with its catalog.
    pub table: String,
    /// The table's uuid.
    pub uuid: Uuid,
    /// The metadata file of the first proof.
    pub metadata_location: String,
    /// How locations were compared at the first proof: `[locations]` may change before the second.
    pub locations: LocationRules,
}

/// One run's work on one table, under its lease.
#[derive(Debug)]
pub struct Work<'a> {
    /// What it works with.
    pub hands: &'a Hands,
    /// All catalogs.
    pub catalogs: &'a [Catalog],
    /// Lists them anew.
    pub surveyor: &'a Surveyor,
    /// The table's uuid, which the lease is on.
    pub uuid: Uuid,
    /// The table's catalog.
    pub catalog: &'a Catalog,
    /// What the table's files are read and deleted with, from when it is loaded; see [`LoadedTable::storage`].
    pub storage: Storage,
    /// Which run.
    pub run: &'a RunId,
    /// Who asked for it.
    pub actor: &'a str,
    /// Read once for the run.
    pub now: Timestamp,
    /// The table's lease; none in a run that only looks, which may neither commit nor delete.
    pub lease: Option<LeaseGuard>,
}

/// Takes the lease on a table by its uuid (safety rule 14).
pub async fn lease(state: &State, uuid: Uuid, what: String) -> Result<Option<LeaseGuard>, Error> {
    // A lease is about processes that run now, so it lives on the system's clock, not on the run's `now`.
    let ttl = failpoint::lease().unwrap_or(LEASE);
    match state.acquire(&uuid.to_string(), &Holder::this(what).with_host(), Clock::system(), ttl).await? {
        Acquired::Guard(guard) => Ok(Some(guard)),
        Acquired::HeldBy(holder) => Err(Error::Busy {
            holder: holder.map_or_else(|| "another process on this machine".to_owned(), |lease| lease.to_string()),
        }),
    }
}

impl Work<'_> {
    /// Asks, right before a commit or a batch of deletes, whether it may still be done: the lease is ours, and
    /// nobody put a hold on the table (safety rules 14 and 18). A yes is good for a moment only: a process that was
    /// stopped meanwhile, past the end of its lease perhaps, must not act on it.
    pub async fn may_go_on(&mut self, tables: &[&TableName], before: &'static str) -> Result<(), Error> {
        let asked_at = Clock::boot_ms();
        let Some(lease) = &mut self.lease else { return Err(Error::LeaseLost { before }) };
        if !lease.renew(Clock::system()).await? {
            return Err(Error::LeaseLost { before });
        }
        let within = lease.acts_within_ms();
        for table in tables {
            if let Some(hold) = self.hands.state.held(table).await? {
                return Err(Error::Held { by: hold.by, reason: hold.reason, before });
            }
        }
        failpoint::pass(if before == "commit" { "before-commit" } else { "before-delete" }).await;
        let took = Clock::boot_ms().saturating_sub(asked_at);
        if took > within {
            return Err(Error::Stalled { seconds: took / 1000, before });
        }
        Ok(())
    }

    /// The largest difference between our system clock and those of the table's store, the state database and the
    /// catalog, and whose clock that is; `None` where no one has a clock of its own (safety rule 3).
    pub async fn clock_skew(&self, location: &str) -> Result<Option<(String, Age)>, Error> {
        let clocks = [
            self.storage.clock_skew(location).await,
            self.hands.state.clock_skew().await?,
            self.catalog.clock_skew().await?,
        ];
        Ok(clocks.into_iter().flatten().max_by_key(|(_, skew)| skew.0.saturating_abs()))
    }

    /// Gives the lease back.
    pub async fn end(self) -> Result<(), Error> {
        match self.lease {
            Some(lease) => Ok(lease.release().await?),
            None => Ok(()),
        }
    }

    /// A fresh listing of all catalogs, with the tables' folders.
    pub async fn world(&self) -> Result<Arc<World>, Error> {
        let Hands { state, storage, .. } = self.hands;
        Ok(self.surveyor.fresh(self.catalogs, state, storage.rules(), self.now).await?)
    }

    /// Where all tables refer to, as of that listing.
    pub async fn borders(&self) -> Result<Arc<borders::Survey>, Error> {
        let Hands { state, plans, storage, progress, .. } = self.hands;
        let world = self.world().await?;
        Ok(self.surveyor.borders(self.catalogs, &world, (state, plans), storage, progress).await?)
    }

    /// The same as the last orphan run found it.
    pub async fn known_borders(&self) -> Result<borders::Survey, Error> {
        let mut survey = borders::Survey::default();
        for catalog in self.catalogs {
            survey
                .tables
                .extend(borders::known(&self.hands.state, catalog.name(), self.hands.storage.rules()).boxed().await?);
        }
        Ok(survey)
    }

    /// Goes on from what is remembered of a table's refs to what is there now.
    pub async fn look_at_refs(&self, loaded: &LoadedTable, uuid: Uuid) -> Result<RefMemory, Error> {
        let Hands { state, plans, config, clock, .. } = self.hands;
        // Not the time at which the run began: until the last of many tables is come to, refs come and go.
        let (key, grace) = ((loaded.name.catalog.as_str(), uuid), config.expire.drop_grace);
        Ok(plans.look_at_refs(state, key, (&loaded.metadata_location, &loaded.state), clock.now(), grace).await?)
    }

    /// Writes down what it takes to set refs again, before they are dropped (safety rule 15).
    pub async fn record_drops(&self, loaded: &LoadedTable, uuid: Uuid, names: &[&RefName]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let Hands { state, plans, clock, .. } = self.hands;
        let memory = self.look_at_refs(loaded, uuid).await?;
        let drops = memory.about_to_drop(&loaded.state, names, self.actor, clock.now());
        Ok(plans.record_drops(state, (loaded.name.catalog.as_str(), uuid), &drops).await?)
    }

    /// Notes that refs which were written down have gone.
    pub async fn confirm_drops(&self, table: &TableName, uuid: Uuid, names: &[&RefName]) -> Result<(), Error> {
        let Hands { state, plans, .. } = self.hands;
        Ok(plans.confirm_drops(state, (table.catalog.as_str(), uuid), names).await?)
    }

    /// The locations that operators keep, canonical under today's `[locations]`.
    pub async fn kept_by_hand(&self) -> Result<BTreeSet<String>, Error> {
        let rules = self.hands.storage.rules();
        let kept = self.hands.state.kept().await?;
        Ok(kept.iter().map(|keep| rules.canonical(keep).map_or_else(|_| keep.clone(), Cow::into_owned)).collect())
    }

    /// Loads the table as it is now.
    pub async fn load(&self, table: &TableName) -> Result<LoadedTable, Error> {
        Ok(self.catalog.load(table).await?)
    }

    /// Loads any table of any catalog: one whose references count beside this table's.
    pub async fn load_any(&self, table: &TableName) -> Result<LoadedTable, Error> {
        let catalog = self.catalogs.iter().find(|catalog| catalog.name() == table.catalog).unwrap_or(self.catalog);
        Ok(catalog.load(table).await?)
    }

    /// Writes a row of the audit log (safety rule 18).
    pub async fn audit(
        &self,
        action: &str,
        table: &TableName,
        plan: Option<crate::model::PlanId>,
        outcome: &str,
        detail: &serde_json::Value,
    ) -> Result<(), Error> {
        let row = AuditRow {
            at: self.now,
            actor: self.actor.to_owned(),
            action: action.to_owned(),
            catalog: Some(table.catalog.clone()),
            table: Some(table.clone()),
            plan,
            run: Some(self.run.clone()),
            outcome: outcome.to_owned(),
            detail: detail.to_string(),
        };
        Ok(self.hands.state.append_audit(&row).await?)
    }
}
