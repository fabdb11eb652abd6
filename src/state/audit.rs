//! The audit log: who did what, when, and with what outcome (safety rule 18). Rows are only ever added.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{State, StateError, namespace, parsed, table, time};
use crate::model::{PlanId, RunId, TableName, Timestamp};

/// One action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What: `commit`, `mark`, `sweep`, `keep`, `hold`, ….
    pub action: String,
    /// In which catalog; with a table, the table's.
    pub catalog: Option<String>,
    /// On which table.
    pub table: Option<TableName>,
    /// For which plan.
    pub plan: Option<PlanId>,
    /// In which run.
    pub run: Option<RunId>,
    /// One word.
    pub outcome: String,
    /// What else there is to say, JSON.
    pub detail: String,
}

impl State {
    /// Adds a row.
    pub async fn append_audit(&self, row: &AuditRow) -> Result<(), StateError> {
        let doing = "write to the audit log";
        let of = row.table.as_ref();
        let mut transaction = self.write(doing).await?;
        sqlx::query(
            "INSERT INTO audit (seq, at, actor, action, catalog, namespace, table_name, plan, run, outcome, detail)
             SELECT COALESCE(MAX(seq), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 FROM audit",
        )
        .bind(row.at.0)
        .bind(row.actor.as_str())
        .bind(row.action.as_str())
        .bind(of.map(|table| table.catalog.as_str()).or(row.catalog.as_deref()))
        .bind(of.map(namespace))
        .bind(of.map(|table| table.name.as_str()))
        .bind(row.plan.map(|plan| plan.to_string()))
        .bind(row.run.as_ref().map(|run| run.0.as_str()))
        .bind(row.outcome.as_str())
        .bind(row.detail.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(self.failed(doing))?;
        transaction.commit().await.map_err(self.failed(doing))
    }

    /// The latest rows, newest first.
    pub async fn audit_tail(&self, limit: u32) -> Result<Vec<AuditRow>, StateError> {
        let rows = sqlx::query("SELECT * FROM audit ORDER BY seq DESC LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(AuditRow::from_row).collect());
        rows.map_err(self.failed("read the audit log"))
    }

    /// The rows of one run, oldest first.
    pub async fn audit_of_run(&self, run: &RunId) -> Result<Vec<AuditRow>, StateError> {
        let rows = sqlx::query("SELECT * FROM audit WHERE run = $1 ORDER BY seq")
            .bind(run.0.as_str())
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(AuditRow::from_row).collect());
        rows.map_err(self.failed("read the audit log"))
    }
}

impl AuditRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let has_table = row.try_get::<Option<String>, _>("table_name")?.is_some();
        let has_plan = row.try_get::<Option<String>, _>("plan")?.is_some();
        Ok(Self {
            at: time(row, "at")?,
            actor: row.try_get("actor")?,
            action: row.try_get("action")?,
            catalog: row.try_get("catalog")?,
            table: has_table.then(|| table(row)).transpose()?,
            plan: has_plan.then(|| parsed(row, "plan")).transpose()?,
            run: row.try_get::<Option<String>, _>("run")?.map(RunId),
            outcome: row.try_get("outcome")?,
            detail: row.try_get("detail")?,
        })
    }
}
