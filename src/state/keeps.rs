//! Keeps: files that a person said to keep. Every job leaves them alone until they are released.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{State, StateError, time};
use crate::model::Timestamp;

/// A file that is not to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Keep {
    /// Its canonical location.
    pub location: String,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub at: Timestamp,
}

impl State {
    /// Stores a keep in the database alone; `Plans::keep` stores it in both places. One that is there stays.
    pub(super) async fn insert_keep(&self, keep: &Keep) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO keeps (location, actor, reason, kept_at) VALUES ($1, $2, $3, $4)
             ON CONFLICT (location) DO NOTHING",
        )
        .bind(keep.location.as_str())
        .bind(keep.by.as_str())
        .bind(keep.reason.as_str())
        .bind(keep.at.0)
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("store a keep"))
    }

    /// Takes a keep out of the database alone. Tells whether it was there.
    pub(super) async fn delete_keep(&self, location: &str) -> Result<bool, StateError> {
        sqlx::query("DELETE FROM keeps WHERE location = $1")
            .bind(location)
            .execute(&self.pool)
            .await
            .map(|done| done.rows_affected() == 1)
            .map_err(self.failed("release a keep"))
    }

    /// All keeps, by location.
    pub async fn keeps(&self) -> Result<Vec<Keep>, StateError> {
        let rows: Result<Vec<Keep>, _> = sqlx::query("SELECT * FROM keeps")
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(Keep::from_row).collect());
        let mut keeps = rows.map_err(self.failed("read the keeps"))?;
        // Not by the database, whose order may be that of a language.
        keeps.sort_by(|left, right| left.location.cmp(&right.location));
        Ok(keeps)
    }

    /// The canonical locations that are kept.
    pub async fn kept(&self) -> Result<BTreeSet<String>, StateError> {
        Ok(self.keeps().await?.into_iter().map(|keep| keep.location).collect())
    }

    /// Whether this canonical location is kept.
    pub async fn is_kept(&self, location: &str) -> Result<bool, StateError> {
        sqlx::query("SELECT location FROM keeps WHERE location = $1")
            .bind(location)
            .fetch_optional(&self.pool)
            .await
            .map(|row| row.is_some())
            .map_err(self.failed("read the keeps"))
    }
}

impl Keep {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            location: row.try_get("location")?,
            by: row.try_get("actor")?,
            reason: row.try_get("reason")?,
            at: time(row, "kept_at")?,
        })
    }
}
