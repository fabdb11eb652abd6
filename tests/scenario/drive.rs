//! The one place that calls the library: opens a lake on the step's configuration and runs the step's job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use futures::FutureExt;
use icewarden::clock::Clock;
use icewarden::config::{Config, Pattern, Sources};
use icewarden::model::{Age, RefName, Retention, SnapshotId, TableState, Timestamp};
use icewarden::plan::change::Wanted;
use icewarden::report::{Job, RunReport};
use icewarden::run::branch::BranchRequest;
use icewarden::run::{self, Lake, RunError, RunRequest, Trigger};
use icewarden::state::Finding;
use icewarden::storage::Storage;

use super::change;
use super::faults::Faults;
use super::format::{BranchSpec, JobWord, Step, TriggerWord};
use super::lake::World;
use super::rest_server::Catalog;
use super::store::Bucket;

/// Where the scenario plays.
pub(crate) struct Stage {
    pub(crate) uri: String,
    pub(crate) clock: Arc<AtomicI64>,
    pub(crate) faults: Arc<Faults>,
    /// State and plans; gone with the scenario.
    pub(crate) folder: tempfile::TempDir,
}

/// How a step ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With a report.
    Report(Report),
    /// Rejected before any IO.
    Rejected(String),
    /// The process died.
    Crashed,
}

/// What of a run's report the scenarios speak of.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) tables: Vec<TableReport>,
    pub(crate) exit_code: u8,
    /// The kinds of all open findings, by table.
    pub(crate) findings: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug)]
pub(crate) struct TableReport {
    pub(crate) table: String,
    pub(crate) outcome: String,
    pub(crate) reason: Option<String>,
    pub(crate) plan: Option<String>,
    pub(crate) counts: BTreeMap<String, u64>,
    /// Of an orphan job: listed objects and their bytes, and the same by the reason of their decision.
    pub(crate) listed: Option<(u64, u64)>,
    pub(crate) decisions: BTreeMap<String, (u64, u64)>,
}

impl Ended {
    /// The outcome of each table.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, String> {
        match self {
            Self::Report(report) => report.tables.iter().map(|one| (one.table.clone(), one.outcome.clone())).collect(),
            Self::Rejected(_) => BTreeMap::from([("(the request)".to_owned(), "refused".to_owned())]),
            Self::Crashed => BTreeMap::from([("(the process)".to_owned(), "crashed".to_owned())]),
        }
    }

    /// The exit code of the command.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::Report(report) => Some(report.exit_code),
            Self::Rejected(_) => Some(2),
            Self::Crashed => None,
        }
    }

    /// A count, summed over the tables; a rejected request has counted nothing.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        match self {
            Self::Report(report) => report.tables.iter().map(|one| one.counts.get(name).copied()).sum(),
            Self::Rejected(_) => Some(0),
            Self::Crashed => None,
        }
    }

    /// Listed objects that were decided on for this reason, summed over the tables.
    pub(crate) fn decided(&self, reason: &str) -> u64 {
        let Self::Report(report) = self else { return 0 };
        report.tables.iter().filter_map(|one| one.decisions.get(reason)).map(|(objects, _)| objects).sum()
    }

    /// Tables whose decisions do not add up to what was listed.
    pub(crate) fn not_adding_up(&self) -> Vec<String> {
        let Self::Report(report) = self else { return Vec::new() };
        let add = |one: &TableReport| {
            one.decisions.values().fold((0, 0), |sum, (objects, bytes)| (sum.0 + objects, sum.1 + bytes))
        };
        let wrong = report.tables.iter().filter(|one| one.listed.is_some_and(|listed| listed != add(one)));
        wrong.map(|one| format!("{}: listed {:?}, decided on {:?}", one.table, one.listed, one.decisions)).collect()
    }

    /// The plan that a confirmation would name.
    pub(crate) fn refused_plan(&self) -> Option<String> {
        let Self::Report(report) = self else { return None };
        report.tables.iter().find(|one| one.outcome == "refused").and_then(|one| one.plan.clone())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(why) => write!(f, "request rejected: {why}"),
            Self::Crashed => f.write_str("nothing, the process died"),
            Self::Report(report) if report.tables.is_empty() => f.write_str("no tables"),
            Self::Report(report) => {
                for one in &report.tables {
                    let counts: Vec<_> =
                        one.counts.iter().filter(|(_, n)| **n > 0).map(|(k, n)| format!("{k} {n}")).collect();
                    let reason = one.reason.as_deref().unwrap_or("no reason given");
                    write!(f, "\n      {}: {}, {reason}; {}", one.table, one.outcome, counts.join(", "))?;
                    for (reason, (objects, _)) in &one.decisions {
                        write!(f, "; {objects} {reason}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl Stage {
    /// Runs a step's job on a newly opened lake, as a new process would; an error says what of the scenario
    /// cannot be driven.
    #[expect(clippy::too_many_arguments, reason = "the step as the runner has resolved it")]
    pub(crate) async fn drive(
        &self,
        config: &str,
        step: &Step,
        snapshots: Vec<i64>,
        confirm: Option<String>,
        buckets: &BTreeMap<String, Bucket>,
        catalog: &Catalog,
        world: &World,
        sightings: Vec<(String, Timestamp, TableState)>,
    ) -> Result<Ended, String> {
        let sources =
            Sources { folder: Path::new("/"), env: &|_| None, read: &|_| Err(std::io::ErrorKind::NotFound.into()) };
        let (config, _) = Config::parse(config, "config", &sources).map_err(|error| error.to_string())?;
        let mut storage = Storage::new(config.locations.clone(), config.storage.clone(), config.limits.concurrency);
        for (name, bucket) in buckets {
            storage = storage.with_store(name, Arc::new(bucket.clone()));
        }
        // Snapshots are those of one table; where there is one only, a step need not name it.
        let tables = match (step.snapshot_ids.is_empty(), step.tables.is_empty()) {
            (false, true) => catalog.tables().await,
            _ => step.tables.clone(),
        };
        let request = RunRequest {
            job: match step.job {
                JobWord::Expire => Job::Expire,
                JobWord::Orphans => Job::Orphans,
                JobWord::Sweep => Job::Sweep,
                JobWord::Branch => Job::Branch,
                other @ JobWord::Inventory => return Err(format!("the job {other:?} is not built yet")),
            },
            tables: tables.iter().map(Pattern::new).collect(),
            older_than_time: None,
            older_than: step.older_than.as_deref().map(age).transpose()?,
            retain_last: step.retain_last,
            root: step.root.clone(),
            reasons: false,
            snapshots: snapshots.into_iter().map(SnapshotId).collect(),
            apply: true,
            trigger: match step.trigger {
                TriggerWord::Operator => Trigger::Operator,
                TriggerWord::Schedule => Trigger::Schedule,
            },
            confirm: confirm.map(|plan| plan.parse().map_err(|error| format!("{error}"))).transpose()?,
            actor: "scenario".to_owned(),
        };
        let clock = Clock::Fixed(Arc::clone(&self.clock));
        let lake = Lake::open_with(config, clock, storage).await.map_err(|error| format!("open: {error}"))?;
        for change in &step.before {
            change.inside(&lake, world).await?;
        }
        let hands = lake.hands.clone();
        self.faults.on_hold(Box::new(move |table| {
            let hands = hands.clone();
            async move { change::hold(&hands, &table).await.unwrap() }.boxed()
        }));
        for (table, at, state) in &sightings {
            let Some(uuid) = state.uuid else { return Err(format!("{table} has no uuid")) };
            let seen =
                lake.hands.plans.look_at_refs(&lake.hands.state, ("lake", uuid), ("", state), *at, Age::days(1)).await;
            seen.map_err(|error| format!("see {table}: {error}"))?;
        }
        // The process dies: whatever it was doing is dropped, and the lake with it.
        let run = async {
            match &step.branch {
                None => run::run(&lake, &request).await,
                Some(branch) => run::branch::run(&lake, &branch_request(branch, request.tables.clone())).await,
            }
        };
        let ended = tokio::select! {
            ended = run => ended,
            () = catalog.crash.notified() => return Ok(Ended::Crashed),
        };
        match ended {
            Ok(report) => {
                let findings = lake.hands.state.open_findings().await.map_err(|error| error.to_string())?;
                Ok(Ended::Report(Report::of(&report, findings)))
            }
            Err(RunError::Rejected(why)) => Ok(Ended::Rejected(why)),
            Err(RunError::Failed(error)) => Err(format!("the run could not begin: {error}")),
        }
    }
}

fn branch_request(branch: &BranchSpec, tables: Vec<Pattern>) -> BranchRequest {
    let (name, wanted) = match branch {
        BranchSpec::Drop { name } => (name, Wanted::Drop),
        BranchSpec::Restore { name, r#as } => (name, Wanted::Restore(r#as.clone().map(RefName::new))),
        BranchSpec::Retain { name, max_ref_age } => {
            let retention = Retention { max_ref_age_ms: Some(max_ref_age.0), ..Retention::default() };
            (name, Wanted::Retain(retention))
        }
    };
    BranchRequest { tables, name: RefName::from(name.as_str()), wanted, apply: true, actor: "scenario".to_owned() }
}

/// An age, also one that lies in the future.
fn age(text: &str) -> Result<Age, String> {
    let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    rest.parse::<Age>().map(|age| Age(sign * age.0)).map_err(|error| error.to_string())
}

impl Report {
    fn of(report: &RunReport, open: Vec<Finding>) -> Self {
        let mut findings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for one in open {
            findings.entry(one.seen.table.to_string()).or_default().insert(one.seen.kind.to_string());
        }
        let tables = report.tables.iter().map(|one| {
            let json = serde_json::to_value(one).unwrap();
            let counts = json["counts"].as_object().into_iter().flatten();
            let orphans = &json["orphans"];
            let decisions = orphans["decisions"].as_object().into_iter().flatten();
            TableReport {
                table: one.table.to_string(),
                outcome: json["outcome"].as_str().unwrap_or_default().to_owned(),
                reason: one.reason.clone(),
                plan: [&json["plan"], &json["plan"]["id"], &orphans["id"]]
                    .into_iter()
                    .find_map(|id| id.as_str().map(ToOwned::to_owned)),
                counts: counts.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect(),
                listed: objects_and_bytes(&orphans["listed"]),
                decisions: decisions
                    .filter_map(|(reason, of)| Some((reason.clone(), objects_and_bytes(of)?)))
                    .collect(),
            }
        });
        Self { tables: tables.collect(), exit_code: report.exit_code(), findings }
    }
}

fn objects_and_bytes(json: &serde_json::Value) -> Option<(u64, u64)> {
    Some((json["objects"].as_u64()?, json["bytes"].as_u64()?))
}
