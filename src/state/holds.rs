//! Holds: somebody stopped commits and deletes for a table, a catalog or everything (safety rule 18).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{State, StateError, from_json, json, time};
use crate::model::{TableName, Timestamp};

/// How far a hold goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldScope {
    /// Everything.
    All,
    /// One catalog.
    Catalog(String),
    /// One table.
    Table(TableName),
}

impl HoldScope {
    /// Whether it stops this table.
    pub fn covers(&self, table: &TableName) -> bool {
        match self {
            Self::All => true,
            Self::Catalog(catalog) => *catalog == table.catalog,
            Self::Table(held) => held == table,
        }
    }

    /// Wider scopes first.
    fn breadth(&self) -> u8 {
        match self {
            Self::All => 0,
            Self::Catalog(_) => 1,
            Self::Table(_) => 2,
        }
    }
}

impl fmt::Display for HoldScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("everything"),
            Self::Catalog(catalog) => write!(f, "catalog {catalog}"),
            Self::Table(table) => write!(f, "table {}", table.full()),
        }
    }
}

/// Nothing is committed or deleted in this scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Hold {
    /// How far it goes.
    pub scope: HoldScope,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub at: Timestamp,
}

impl State {
    /// Stores a hold in the database alone; `Plans::hold` stores it in both places. One that is there stays.
    pub(super) async fn insert_hold(&self, hold: &Hold) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO holds (scope, actor, reason, held_at) VALUES ($1, $2, $3, $4)
             ON CONFLICT (scope) DO NOTHING",
        )
        .bind(json(&hold.scope))
        .bind(hold.by.as_str())
        .bind(hold.reason.as_str())
        .bind(hold.at.0)
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("store a hold"))
    }

    /// Takes a hold out of the database alone. Tells whether it was there.
    pub(super) async fn delete_hold(&self, scope: &HoldScope) -> Result<bool, StateError> {
        sqlx::query("DELETE FROM holds WHERE scope = $1")
            .bind(json(scope))
            .execute(&self.pool)
            .await
            .map(|done| done.rows_affected() == 1)
            .map_err(self.failed("release a hold"))
    }

    /// All holds, the widest first.
    pub async fn holds(&self) -> Result<Vec<Hold>, StateError> {
        let rows: Result<Vec<Hold>, _> = sqlx::query("SELECT * FROM holds ORDER BY held_at, scope")
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(Hold::from_row).collect());
        let mut holds = rows.map_err(self.failed("read the holds"))?;
        holds.sort_by_key(|hold| hold.scope.breadth());
        Ok(holds)
    }

    /// The widest hold that stops this table. Asked before every commit and every batch of deletes.
    pub async fn held(&self, table: &TableName) -> Result<Option<Hold>, StateError> {
        Ok(self.holds().await?.into_iter().find(|hold| hold.scope.covers(table)))
    }
}

impl Hold {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            scope: from_json(row, "scope")?,
            by: row.try_get("actor")?,
            reason: row.try_get("reason")?,
            at: time(row, "held_at")?,
        })
    }
}
