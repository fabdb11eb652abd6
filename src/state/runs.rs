//! Runs: what was asked for, when, by whom, and what came of it.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{State, StateError, time, time_or_none};
use crate::model::{RunId, Timestamp};

/// A run in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// `expire`, `sweep`, ….
    pub job: String,
    /// Who asked for it.
    pub actor: String,
    /// When it began.
    pub started_at: Timestamp,
    /// The request, JSON.
    pub request: String,
    /// When it ended; `None` while it runs, and for ever if its process died.
    pub finished_at: Option<Timestamp>,
    /// One word.
    pub outcome: Option<String>,
    /// The report, JSON.
    pub report: Option<String>,
}

impl State {
    /// Notes that a run begins.
    pub async fn start_run(
        &self,
        id: &RunId,
        job: &str,
        actor: &str,
        now: Timestamp,
        request_json: &str,
    ) -> Result<(), StateError> {
        sqlx::query("INSERT INTO runs (id, job, actor, started_at, request) VALUES ($1, $2, $3, $4, $5)")
            .bind(id.0.as_str())
            .bind(job)
            .bind(actor)
            .bind(now.0)
            .bind(request_json)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("note the start of a run"))
    }

    /// Notes how a run ended.
    pub async fn finish_run(
        &self,
        id: &RunId,
        now: Timestamp,
        outcome: &str,
        report_json: &str,
    ) -> Result<(), StateError> {
        sqlx::query("UPDATE runs SET finished_at = $2, outcome = $3, report = $4 WHERE id = $1")
            .bind(id.0.as_str())
            .bind(now.0)
            .bind(outcome)
            .bind(report_json)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("note the end of a run"))
    }

    /// The latest runs, newest first.
    pub async fn runs(&self, limit: u32) -> Result<Vec<Run>, StateError> {
        let rows = sqlx::query("SELECT * FROM runs ORDER BY started_at DESC, id DESC LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(Run::from_row).collect());
        rows.map_err(self.failed("read the runs"))
    }

    /// One run.
    pub async fn run(&self, id: &RunId) -> Result<Option<Run>, StateError> {
        let row = sqlx::query("SELECT * FROM runs WHERE id = $1")
            .bind(id.0.as_str())
            .fetch_optional(&self.pool)
            .await
            .and_then(|row| row.as_ref().map(Run::from_row).transpose());
        row.map_err(self.failed("read a run"))
    }
}

impl Run {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: RunId(row.try_get("id")?),
            job: row.try_get("job")?,
            actor: row.try_get("actor")?,
            started_at: time(row, "started_at")?,
            request: row.try_get("request")?,
            finished_at: time_or_none(row, "finished_at")?,
            outcome: row.try_get("outcome")?,
            report: row.try_get("report")?,
        })
    }
}
