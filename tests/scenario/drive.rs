//! The one place that calls the library: opens a lake on the step's configuration and runs the step's job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use icewarden::model::Timestamp;

use super::faults::Faults;
use super::format::Step;
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
}

#[derive(Debug)]
pub(crate) struct TableReport {
    pub(crate) table: String,
    pub(crate) outcome: String,
    pub(crate) reason: Option<String>,
    pub(crate) plan: Option<String>,
    pub(crate) counts: BTreeMap<String, u64>,
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

    /// A count, summed over the tables; a rejected request has counted nothing.
    pub(crate) fn count(&self, name: &str) -> Option<u64> {
        match self {
            Self::Report(report) => report.tables.iter().map(|one| one.counts.get(name).copied()).sum(),
            Self::Rejected(_) => Some(0),
            Self::Crashed => None,
        }
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
                }
                Ok(())
            }
        }
    }
}

impl Stage {
    /// Runs a step's job on a newly opened lake; an error says what of the scenario cannot be driven.
    #[expect(clippy::too_many_arguments, reason = "the step as the runner has resolved it")]
    #[expect(clippy::unused_async, reason = "stub")]
    pub(crate) async fn drive(
        &self,
        _config: &str,
        _step: &Step,
        _snapshots: Vec<i64>,
        _confirm: Option<String>,
        _buckets: &BTreeMap<String, Bucket>,
        _catalog: &Catalog,
        _sightings: Vec<(String, String, Timestamp)>,
    ) -> Result<Ended, String> {
        Err("run.rs is not there yet".to_owned())
    }
}
