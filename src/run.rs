//! One run of a job: the only place where the stages are joined. The CLI, and later the HTTP API and the
//! scheduler, all call [`run`].
//!
//! To look is to stop after the plan; to act is to go on with that same plan. There is no other difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use serde::Serialize;
use uuid::Uuid;

use crate::apply::{Hands, Work, lease};
use crate::catalog::rest::RestCatalog;
use crate::catalog::sql::SqlCatalog;
use crate::catalog::{Catalog, LoadedTable};
use crate::clock::Clock;
use crate::config::{CatalogConfig, CatalogKind, Config, EffectivePolicy, Mode, Pattern, default::MINIMUM_ORPHAN_AGE};
use crate::error::Error;
use crate::inventory::world::{Surveyor, World};
use crate::model::{Age, PlanId, RunId, SnapshotId, TableName, Timestamp};
use crate::plan::ExpireValues;
use crate::plan::values::{self, BadProperty};
use crate::report::{Job, Outcome, RunReport, TableReport};
use crate::state::{Closed, LeaseGuard, MarkFilter, MarkList, Plans, State};
use crate::storage::Storage;
use crate::sweep;

pub mod branch;
pub mod branches;
mod expire;
mod orphans;
mod place;
mod stored;

/// Tables worked on at once. Each reads many files at once itself.
const TABLES_IN_FLIGHT: usize = 4;

/// A lake: its catalogs, its storage, and what is remembered of it.
#[derive(Debug)]
pub struct Lake {
    /// The catalogs of the configuration, in its order.
    pub catalogs: Vec<Catalog>,
    /// What acting on it needs.
    pub hands: Hands,
    surveyor: Surveyor,
}

impl Lake {
    /// Opens the lake of this configuration.
    pub async fn open(config: Config, clock: Clock) -> Result<Self, Error> {
        let storage = Storage::new(config.locations.clone(), config.storage.clone(), config.limits.concurrency);
        Self::open_with(config, clock, storage).await
    }

    /// The same on storage that the caller brings.
    pub async fn open_with(config: Config, clock: Clock, storage: Storage) -> Result<Self, Error> {
        let state = State::open(&config.state.database).await?;
        let plans = Plans::open(storage.clone(), &config.state.plans)?;
        plans.restore(&state).await?;
        let catalogs = join_all(config.catalogs.iter().map(|catalog| open_catalog(catalog, &storage).boxed())).await;
        let hands = Hands {
            config: Arc::new(config),
            storage,
            state,
            plans,
            clock,
            progress: Arc::default(),
            listed: Arc::default(),
        };
        Ok(Self { catalogs, hands, surveyor: Surveyor::default() })
    }

    /// The catalog of this name.
    pub fn catalog(&self, name: &str) -> Option<&Catalog> {
        self.catalogs.iter().find(|catalog| catalog.name() == name)
    }

    /// One run's work on the table with this uuid, under its lease, with what the table's files are read with.
    fn work<'a>(
        &'a self,
        catalog: &'a Catalog,
        run: &'a RunId,
        actor: &'a str,
        now: Timestamp,
        (uuid, lease): (Uuid, Option<LeaseGuard>),
        storage: Storage,
    ) -> Work<'a> {
        let (hands, catalogs, surveyor) = (&self.hands, &self.catalogs, &self.surveyor);
        Work { hands, catalogs, surveyor, uuid, catalog, storage, run, actor, now, lease }
    }

    /// A fresh listing of all catalogs, with the tables' folders.
    pub async fn survey(&self) -> Result<Arc<World>, Error> {
        let Hands { state, storage, clock, .. } = &self.hands;
        Ok(self.surveyor.fresh(&self.catalogs, state, storage.rules(), clock.now()).await?)
    }
}

/// Opens a catalog; one that cannot be opened says why, and the others can be worked on without it.
pub async fn open_catalog(catalog: &CatalogConfig, storage: &Storage) -> Catalog {
    let (name, warehouse) = (catalog.name.as_str(), catalog.warehouse.as_deref());
    let opened = match &catalog.kind {
        CatalogKind::Sql { uri } => SqlCatalog::open(name, uri, warehouse, storage.clone()).await.map(Catalog::Sql),
        CatalogKind::Rest(rest) => RestCatalog::open(name, rest, warehouse, storage.clone()).await.map(Catalog::Rest),
    };
    opened.unwrap_or_else(|error| Catalog::Broken { name: name.to_owned(), reason: error.to_string() })
}

/// The values that an expiry without further wishes resolves for this table, if they can be.
pub fn values_of(config: &Config, table: &LoadedTable, now: Timestamp) -> Result<ExpireValues, BadProperty> {
    let request = RunRequest::look(Job::Expire, "");
    values::resolve(&table.state, &expire::inputs(config, &request, &table.name, now))
}

/// What is asked for.
#[derive(Debug, Clone, Serialize)]
pub struct RunRequest {
    /// The job.
    pub job: Job,
    /// Which tables; none given is all.
    pub tables: Vec<Pattern>,
    /// `--older-than 5d`.
    pub older_than: Option<Age>,
    /// `--older-than 2026-11-30T00:00:00Z`.
    pub older_than_time: Option<Timestamp>,
    /// `--retain-last`.
    pub retain_last: Option<u32>,
    /// `--snapshot`.
    pub snapshots: Vec<SnapshotId>,
    /// `--root`: only what lies in this folder.
    pub root: Option<String>,
    /// `--reasons`: tell of every object why it stays.
    pub reasons: bool,
    /// Act, or stop after the plan.
    pub apply: bool,
    /// What set it off.
    pub trigger: Trigger,
    /// Goes on with this plan although it was refused for its size.
    pub confirm: Option<PlanId>,
    /// Who asks.
    pub actor: String,
}

impl RunRequest {
    /// A request that only looks, at all tables.
    pub fn look(job: Job, actor: impl Into<String>) -> Self {
        Self {
            job,
            tables: Vec::new(),
            older_than: None,
            older_than_time: None,
            retain_last: None,
            snapshots: Vec::new(),
            root: None,
            reasons: false,
            apply: false,
            trigger: Trigger::Operator,
            confirm: None,
            actor: actor.into(),
        }
    }
}

/// What set off a run. A policy's `mode` limits all but what an operator starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// A person, by CLI or HTTP.
    Operator,
    /// A `[[schedule]]`.
    Schedule,
    /// A pull request that was closed.
    Webhook,
    /// The reconcile job.
    Reconcile,
}

impl Trigger {
    /// How far a run may go on a table with this policy.
    fn limit(self, policy: &EffectivePolicy) -> Mode {
        if self == Self::Operator { Mode::Sweep } else { policy.mode() }
    }
}

/// A request that is rejected, or a run that could not begin. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request itself is wrong: exit code 2, before any IO (safety rule 5).
    #[error("{0}")]
    Rejected(String),
    /// The state or the catalogs cannot be used: exit code 1.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Runs a job.
pub async fn run(lake: &Lake, request: &RunRequest) -> Result<RunReport, RunError> {
    let now = lake.hands.clock.now();
    check(&lake.hands.config, request, now)?;
    // A point in time counts from the run's own `now`, not from when it was typed.
    let older_than = request.older_than.or_else(|| request.older_than_time.map(|time| now.since(time)));
    let request = &RunRequest { older_than, ..request.clone() };
    lake.surveyor.forget().await;
    let state = &lake.hands.state;
    if let Some(plan) = request.confirm
        && state.plan(plan).await.map_err(Error::from)?.is_none()
    {
        return Err(RunError::Rejected(format!(
            "no plan {plan} is known (hint: icewarden plan {})",
            request.job.as_str()
        )));
    }
    let mut report = begin(lake, request.job, request.apply, (&request.actor, request), now).await?;
    let done = match request.job {
        Job::Expire => expire_all(lake, request, &mut report).await,
        Job::Orphans => orphans::all(lake, request, &mut report).await,
        Job::Sweep => sweep_all(lake, request, &mut report).await,
        Job::Branch => Err(RunError::Rejected("a branch is changed by a request of its own".to_owned())),
    };
    end(lake, report, done).await
}

/// Writes down that a run begins.
async fn begin(
    lake: &Lake,
    job: Job,
    applied: bool,
    (actor, request): (&str, &impl Serialize),
    now: Timestamp,
) -> Result<RunReport, Error> {
    let run = RunId(Uuid::now_v7().to_string());
    lake.hands.state.start_run(&run, job.as_str(), actor, now, &serde_json::to_string(request)?).await?;
    let unlisted = lake.catalogs.iter().filter_map(Catalog::broken).collect();
    Ok(RunReport { run, job, applied, now, tables: Vec::new(), unlisted, notes: Vec::new() })
}

/// Writes down how it ended.
async fn end(lake: &Lake, mut report: RunReport, done: Result<(), RunError>) -> Result<RunReport, RunError> {
    report.tables.sort_by(|left, right| left.table.cmp(&right.table));
    let (outcome, text) = match &done {
        Ok(()) => (report.outcome().as_str(), serde_json::to_string(&report).map_err(Error::from)?),
        Err(error) => ("failed", serde_json::json!({ "error": error.to_string() }).to_string()),
    };
    let Hands { state, clock, .. } = &lake.hands;
    state.finish_run(&report.run, clock.now(), outcome, &text).await.map_err(Error::from)?;
    done.map(|()| report)
}

/// Safety rule 5: what lies under a floor, or in the future, is rejected before any IO.
pub fn check(config: &Config, request: &RunRequest, now: Timestamp) -> Result<(), RunError> {
    let reject = |text: String| Err(RunError::Rejected(text));
    let older_than = request.older_than.or_else(|| request.older_than_time.map(|time| now.since(time)));
    if request.job == Job::Sweep
        && (older_than.is_some() || request.retain_last.is_some() || !request.snapshots.is_empty())
    {
        return reject("a sweep takes no --older-than, --retain-last or --snapshot".to_owned());
    }
    if let Some(age) = older_than {
        if age < Age::ZERO {
            return reject(format!("--older-than lies in the future ({})", age.show()));
        }
        let (floor, named) = match request.job {
            Job::Orphans => (MINIMUM_ORPHAN_AGE, "what is younger may be a commit on its way"),
            _ => (config.expire.floor, "[expire] floor"),
        };
        if age < floor {
            return reject(format!("--older-than {age} is below the floor of {floor} ({named})"));
        }
    }
    if request.job == Job::Orphans && (request.retain_last.is_some() || !request.snapshots.is_empty()) {
        return reject("an orphan run takes no --retain-last or --snapshot".to_owned());
    }
    if request.job != Job::Orphans && request.root.is_some() {
        return reject("--root is for an orphan run".to_owned());
    }
    if let Some(Err(error)) = request.root.as_deref().map(|root| config.locations.root(root)) {
        return reject(format!("--root: {error}"));
    }
    if request.retain_last == Some(0) {
        return reject("--retain-last must be at least 1".to_owned());
    }
    if !request.snapshots.is_empty() && request.tables.len() != 1 {
        return reject("--snapshot needs exactly one --table".to_owned());
    }
    Ok(())
}

/// The listed tables that the request asks for. A pattern that matches none is an error, since it is most
/// likely a slip.
fn selected(world: &World, patterns: &[Pattern]) -> Result<Vec<TableName>, RunError> {
    let names = || world.tables.iter().map(|table| &table.name);
    for pattern in patterns {
        if !names().any(|name| pattern.matches_table(name)) && world.unlisted.is_empty() {
            return Err(RunError::Rejected(format!(
                "no table matches {:?} (hint: icewarden tables)",
                pattern.as_str()
            )));
        }
    }
    let is_selected = |name: &&TableName| patterns.is_empty() || patterns.iter().any(|p| p.matches_table(name));
    Ok(names().filter(is_selected).cloned().collect())
}

async fn expire_all(lake: &Lake, request: &RunRequest, report: &mut RunReport) -> Result<(), RunError> {
    let world = lake.survey().await?;
    unlisted(&world, report);
    let tables = selected(&world, &request.tables)?;
    let (run, now, world) = (&report.run, report.now, &*world);
    let done: Vec<TableReport> = stream::iter(tables)
        .map(|table| expire_table(lake, request, run, now, world, table).boxed())
        .buffer_unordered(TABLES_IN_FLIGHT)
        .collect()
        .await;
    report.tables.extend(done);
    Ok(())
}

/// Notes the catalogs that could not be listed, each once.
fn unlisted(world: &World, report: &mut RunReport) {
    for error in world.unlisted.values().map(ToString::to_string) {
        if !report.unlisted.contains(&error) {
            report.unlisted.push(error);
        }
    }
}

async fn expire_table(
    lake: &Lake,
    request: &RunRequest,
    run: &RunId,
    now: Timestamp,
    world: &World,
    table: TableName,
) -> TableReport {
    let mut report = TableReport::new(table.clone());
    if let Err(error) = expire::table(lake, request, run, now, world, &table, &mut report).await {
        failed(&mut report, &error);
    }
    report
}

fn failed(report: &mut TableReport, error: &Error) {
    let is_guard =
        matches!(error, Error::Held { .. } | Error::Busy { .. } | Error::LeaseLost { .. } | Error::Stalled { .. });
    let outcome = if is_guard { Outcome::Refused } else { Outcome::Failed };
    report.ended(outcome, error.to_string());
}

async fn sweep_all(lake: &Lake, request: &RunRequest, report: &mut RunReport) -> Result<(), RunError> {
    let state = &lake.hands.state;
    let open = state.marks(MarkFilter::Open, None).await.map_err(Error::from)?;
    let intents = state.tables_with_open_intents().await.map_err(Error::from)?;
    if open.is_empty() && intents.is_empty() {
        return Ok(());
    }
    // The second proof evaluates safety rule 6 on a fresh listing; it also tells what tables are called now.
    let world = lake.survey().await?;
    unlisted(&world, report);
    let is_wanted = |uuid: Uuid, known_as: &TableName| {
        let name = sweep::find(uuid, known_as, &world).map_or(known_as, |roots| &roots.table);
        request.tables.is_empty() || request.tables.iter().any(|pattern| pattern.matches_table(name))
    };
    let (due, waiting): (Vec<&MarkList>, Vec<&MarkList>) =
        open.iter().filter(|list| is_wanted(list.uuid, &list.table)).partition(|list| list.due_at <= report.now);
    for list in waiting {
        let until = list.due_at.show();
        report
            .notes
            .push(format!("{}: marks {} wait until {until} (files: {})", list.table, list.id, list.list.objects));
    }
    // By uuid, since a table may have been renamed; an intent that a crash left open becomes marks first.
    let mut wanted: BTreeMap<Uuid, (TableName, Vec<MarkList>)> = BTreeMap::new();
    for list in due {
        wanted.entry(list.uuid).or_insert_with(|| (list.table.clone(), Vec::new())).1.push(list.clone());
    }
    for (table, uuid) in intents.into_iter().filter(|(table, uuid)| is_wanted(*uuid, table)) {
        if request.apply {
            wanted.entry(uuid).or_insert((table, Vec::new()));
        } else {
            report.notes.push(format!("{table}: an earlier commit is not settled yet; a run with --apply settles it"));
        }
    }
    let (run, now, world) = (&report.run, report.now, &*world);
    let done: Vec<TableReport> = stream::iter(wanted)
        .map(|(uuid, (table, lists))| sweep_table(lake, request, run, now, world, (uuid, table), lists).boxed())
        .buffer_unordered(TABLES_IN_FLIGHT)
        .collect()
        .await;
    report.tables.extend(done);
    Ok(())
}

async fn sweep_table(
    lake: &Lake,
    request: &RunRequest,
    run: &RunId,
    now: Timestamp,
    world: &World,
    (uuid, known_as): (Uuid, TableName),
    lists: Vec<MarkList>,
) -> TableReport {
    let name = sweep::find(uuid, &known_as, world).map(|roots| roots.table.clone());
    let mut report = TableReport::new(name.clone().unwrap_or(known_as));
    let limit = request.trigger.limit(&lake.hands.config.policy_for(&report.table));
    let mode = if request.apply && limit == Mode::Sweep { sweep::Mode::Apply } else { sweep::Mode::Look };
    if request.apply && mode == sweep::Mode::Look {
        report.ended(Outcome::Skipped, "its policy's mode leaves deleting to an operator");
        return report;
    }
    let done = async {
        let Some(name) = name else {
            return gone(lake, world, uuid, &lists, now, mode, &mut report).await;
        };
        let catalog = lake.catalog(&name.catalog).ok_or_else(|| no_catalog(&name))?;
        let lease = match mode {
            sweep::Mode::Apply => lease(&lake.hands.state, uuid, format!("sweep of {name}")).await?,
            sweep::Mode::Look => None,
        };
        // The sweep loads the table, and takes what is lent for it, itself.
        let mut work = lake.work(catalog, run, &request.actor, now, (uuid, lease), lake.hands.storage.clone());
        let done = sweep::table(&mut work, &name, mode, &mut report).await;
        work.end().await?;
        done
    };
    if let Err(error) = done.await {
        failed(&mut report, &error);
    }
    report
}

/// The table of these marks is in no catalog. If every catalog could be listed it is gone, and the marks are
/// void (safety rule 16); else they wait.
async fn gone(
    lake: &Lake,
    world: &World,
    uuid: Uuid,
    lists: &[MarkList],
    now: Timestamp,
    mode: sweep::Mode,
    report: &mut TableReport,
) -> Result<(), Error> {
    if mode == sweep::Mode::Apply {
        let catalog = report.table.catalog.clone();
        let is_known_gone =
            !world.unlisted.contains_key(&catalog) && !world.tables.iter().any(|table| table.name == report.table);
        for intent in lake.hands.state.open_intents(&catalog, uuid).await? {
            if is_known_gone {
                lake.hands.state.close_intent(&intent.id, Closed::Void, now).await?;
            }
            report.ended(Outcome::Partial, "an earlier commit cannot be settled: no catalog has its table any more");
        }
    }
    let listed: BTreeSet<&TableName> = world.tables.iter().map(|table| &table.name).collect();
    for list in lists {
        if let Some(error) = world.unlisted.get(&list.table.catalog) {
            report.ended(Outcome::Failed, error.to_string());
        } else if listed.contains(&list.table)
            && !world.roots.iter().any(|roots| roots.table == list.table && roots.uuid.is_some())
        {
            report.ended(Outcome::Failed, format!("{} cannot be loaded, so its marks wait", list.table));
        } else if mode == sweep::Mode::Apply {
            sweep::void(&lake.hands.state, list, "no catalog has its table any more", now, report).await?;
        } else {
            report.ended(Outcome::Partial, format!("marks {} are void: no catalog has their table any more", list.id));
        }
    }
    Ok(())
}

fn no_catalog(table: &TableName) -> Error {
    Error::Commit(format!("no configured catalog is called {}", table.catalog))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon spawns runs.
    #[test]
    fn a_run_can_be_spawned() {
        fn takes_send<T: Send>(_: impl Fn(&'static Lake, &'static RunRequest) -> T) {}
        takes_send(run);
    }
}
