//! Plans by id, and what people confirmed (safety rule 8).

use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::{State, StateError, from_json, json, namespace, parsed, table, time};
use crate::model::{PlanId, RefName, RunId, TableName, Timestamp};

/// A plan that was made, and what the guard said to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRecord {
    /// Its id.
    pub id: PlanId,
    /// The run that made it.
    pub run: RunId,
    /// For which table.
    pub table: TableName,
    /// The table's uuid.
    pub uuid: Uuid,
    /// For which job.
    pub job: String,
    /// When.
    pub created_at: Timestamp,
    /// The rule that refused it; `None` if it was approved.
    pub refused_by: Option<String>,
    /// The plan's header, JSON.
    pub header: String,
    /// Its decisions file in the plans store, if one was written.
    pub location: Option<String>,
}

/// What a confirmation covers: any replan within it, not only the plan that was shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// No other refs than these.
    pub refs: Vec<RefName>,
    /// At most this many snapshots.
    pub snapshots: u64,
    /// At most this many objects.
    pub objects: u64,
    /// At most this many bytes.
    pub bytes: u64,
}

/// Somebody said yes to a plan that the guard refused for its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The plan that was shown.
    pub plan: PlanId,
    /// Its table.
    pub table: TableName,
    /// The table's uuid.
    pub uuid: Uuid,
    /// Its job.
    pub job: String,
    /// How far the yes goes.
    pub bound: Bound,
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// From this time on it counts no more.
    pub until: Timestamp,
}

impl State {
    /// Saves a plan. The same plan of the same run is saved over.
    pub async fn save_plan(&self, plan: &PlanRecord) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO plans
                 (id, run, catalog, namespace, table_name, uuid, job, created_at, refused_by, header, location)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             ON CONFLICT (id, run, uuid) DO UPDATE
             SET refused_by = excluded.refused_by, header = excluded.header, location = excluded.location",
        )
        .bind(plan.id.to_string())
        .bind(plan.run.0.as_str())
        .bind(plan.table.catalog.as_str())
        .bind(namespace(&plan.table))
        .bind(plan.table.name.as_str())
        .bind(plan.uuid.to_string())
        .bind(plan.job.as_str())
        .bind(plan.created_at.0)
        .bind(plan.refused_by.as_deref())
        .bind(plan.header.as_str())
        .bind(plan.location.as_deref())
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("save a plan"))
    }

    /// The newest plan with this id.
    pub async fn plan(&self, id: PlanId) -> Result<Option<PlanRecord>, StateError> {
        let row = sqlx::query("SELECT * FROM plans WHERE id = $1 ORDER BY created_at DESC, run DESC LIMIT 1")
            .bind(id.to_string())
            .fetch_optional(&self.pool)
            .await
            .and_then(|row| row.as_ref().map(PlanRecord::from_row).transpose());
        row.map_err(self.failed("read a plan"))
    }

    /// Stores a confirmation. A later one of the same plan takes its place.
    pub async fn confirm(&self, confirmation: &Confirmation) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO confirmations
                 (plan, catalog, namespace, table_name, uuid, job, bound, actor, confirmed_at, until)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             ON CONFLICT (uuid, job, plan) DO UPDATE
             SET bound = excluded.bound, actor = excluded.actor, confirmed_at = excluded.confirmed_at,
                 until = excluded.until",
        )
        .bind(confirmation.plan.to_string())
        .bind(confirmation.table.catalog.as_str())
        .bind(namespace(&confirmation.table))
        .bind(confirmation.table.name.as_str())
        .bind(confirmation.uuid.to_string())
        .bind(confirmation.job.as_str())
        .bind(json(&confirmation.bound))
        .bind(confirmation.by.as_str())
        .bind(confirmation.at.0)
        .bind(confirmation.until.0)
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("store a confirmation"))
    }

    /// The confirmations for this table (in this catalog: twins share a uuid) and job that count now, newest
    /// first. One from the future, by a clock that was set back, does not.
    pub async fn confirmations(
        &self,
        catalog: &str,
        uuid: Uuid,
        job: &str,
        now: Timestamp,
    ) -> Result<Vec<Confirmation>, StateError> {
        let rows = sqlx::query(
            "SELECT * FROM confirmations
             WHERE catalog = $1 AND uuid = $2 AND job = $3 AND confirmed_at <= $4 AND until > $4
             ORDER BY confirmed_at DESC, plan",
        )
        .bind(catalog)
        .bind(uuid.to_string())
        .bind(job)
        .bind(now.0)
        .fetch_all(&self.pool)
        .await
        .and_then(|rows| rows.iter().map(Confirmation::from_row).collect());
        rows.map_err(self.failed("read the confirmations"))
    }
}

impl PlanRecord {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: parsed(row, "id")?,
            run: RunId(row.try_get("run")?),
            table: table(row)?,
            uuid: parsed(row, "uuid")?,
            job: row.try_get("job")?,
            created_at: time(row, "created_at")?,
            refused_by: row.try_get("refused_by")?,
            header: row.try_get("header")?,
            location: row.try_get("location")?,
        })
    }
}

impl Confirmation {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            plan: parsed(row, "plan")?,
            table: table(row)?,
            uuid: parsed(row, "uuid")?,
            job: row.try_get("job")?,
            bound: from_json(row, "bound")?,
            by: row.try_get("actor")?,
            at: time(row, "confirmed_at")?,
            until: time(row, "until")?,
        })
    }
}
