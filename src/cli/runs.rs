//! `runs`: what was run, and what became of it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::text::{left, table};
use super::{failed, print};
use crate::model::{RunId, Timestamp};
use crate::run::{Lake, RunError};
use crate::state::Run;

/// A run, as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line<'a> {
    id: &'a RunId,
    job: &'a str,
    /// Who asked for it.
    actor: &'a str,
    started_at: Timestamp,
    /// None while it runs, and for ever if its process died.
    finished_at: Option<Timestamp>,
    outcome: Option<&'a str>,
    /// What was asked for, by the version that ran it.
    request: Value,
    /// As the schema `run` has it, by the version that ran it; or `error`, where it could not begin.
    report: Option<Value>,
}

/// Lists the newest runs, or shows one with its audit rows.
pub(super) async fn command(lake: &Lake, id: Option<String>, limit: u32, json: bool) -> Result<u8, RunError> {
    let state = &lake.hands.state;
    let Some(id) = id else {
        let runs = state.runs(limit).await.map_err(failed)?;
        if json {
            runs.iter().map(value).for_each(|run| print::json(&run));
            return Ok(0);
        }
        let columns =
            [left("RUN", 0), left("JOB", 0), left("STARTED", 0), left("TOOK", 2), left("BY", 3), left("OUTCOME", 1)];
        let rows: Vec<Vec<String>> = runs
            .iter()
            .map(|run| {
                vec![
                    run.id.to_string(),
                    run.job.clone(),
                    run.started_at.show(),
                    run.finished_at.map_or_else(String::new, |end| end.since(run.started_at).show()),
                    run.actor.clone(),
                    run.outcome.clone().unwrap_or_else(|| "not finished".to_owned()),
                ]
            })
            .collect();
        table(&columns, &rows).iter().for_each(print::line);
        return Ok(0);
    };
    let id = RunId(id);
    let Some(run) = state.run(&id).await.map_err(failed)? else {
        return Err(RunError::Rejected(format!("no run {id} (hint: icewarden runs)")));
    };
    if json {
        print::json(&value(&run));
        return Ok(0);
    }
    let outcome = run.outcome.as_deref().unwrap_or("not finished");
    print::line(format!("{} of {} by {}, started {}: {outcome}", run.job, run.id, run.actor, run.started_at.show()));
    for row in state.audit_of_run(&id).await.map_err(failed)? {
        let table = row.table.map_or_else(String::new, |table| table.to_string());
        print::line(format!("{}  {:<8} {table:<24} {:<10} {}", row.at.show(), row.action, row.outcome, row.detail));
    }
    Ok(0)
}

fn value(run: &Run) -> Line<'_> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    Line {
        id: &run.id,
        job: &run.job,
        actor: &run.actor,
        started_at: run.started_at,
        finished_at: run.finished_at,
        outcome: run.outcome.as_deref(),
        request: parsed(&run.request),
        report: run.report.as_deref().map(parsed),
    }
}
