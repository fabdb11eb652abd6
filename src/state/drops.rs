//! Refs that are gone: for how long their snapshots stay, and what it takes to set them again (safety rule 15).

use sqlx::any::AnyRow;
use sqlx::{Any, Row, Transaction};
use uuid::Uuid;

use super::sightings::kind;
use super::{State, StateError, from_json, json, time, time_or_none};
use crate::model::lineage::Lineage;
use crate::model::{DroppedRef, Ref, RefName, SnapshotId, TableState, Timestamp};

/// A ref that is gone, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropRecord {
    /// Its id.
    pub id: String,
    /// What it was.
    pub dropped: DroppedRef,
    /// When its snapshots came to be held by another ref, or went themselves.
    pub ended_at: Option<Timestamp>,
}

impl State {
    /// Records refs that are about to be dropped: before the commit, so that no crash after it loses what it takes
    /// to set them again. Where the commit fails they are there still, and the next look ends the record.
    pub async fn record_drops(&self, catalog: &str, uuid: Uuid, drops: &[DroppedRef]) -> Result<(), StateError> {
        let doing = "record dropped refs";
        let mut transaction = self.write(doing).await?;
        for dropped in drops {
            insert(&mut transaction, catalog, uuid, dropped).await.map_err(self.failed(doing))?;
        }
        transaction.commit().await.map_err(self.failed(doing))
    }

    /// All refs of a table that were ever found gone, the latest first.
    pub async fn drops(&self, catalog: &str, uuid: Uuid) -> Result<Vec<DropRecord>, StateError> {
        let rows =
            sqlx::query("SELECT * FROM drops WHERE uuid = $1 AND catalog = $2 ORDER BY dropped_at DESC, id DESC")
                .bind(uuid.to_string())
                .bind(catalog)
                .fetch_all(&self.pool)
                .await
                .and_then(|rows| rows.iter().map(DropRecord::from_row).collect());
        rows.map_err(self.failed("read the dropped refs"))
    }

    /// Adds what is found gone to the open records, ends those that are of no more use, and returns the others.
    pub(super) async fn see_gone(
        &self,
        transaction: &mut Transaction<'static, Any>,
        catalog: &str,
        uuid: Uuid,
        state: &TableState,
        gone: Vec<DroppedRef>,
        now: Timestamp,
    ) -> Result<Vec<DroppedRef>, StateError> {
        let doing = "record the refs of a table";
        let mut open = open(transaction, catalog, uuid).await.map_err(self.failed(doing))?;
        for dropped in gone {
            // What we drop is recorded by its drop.
            if !open.iter().any(|(_, known)| known.name == dropped.name && known.r.snapshot == dropped.r.snapshot) {
                let id = insert(transaction, catalog, uuid, &dropped).await.map_err(self.failed(doing))?;
                open.push((id, dropped));
            }
        }
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let lineage = Lineage::new(&state.snapshots);
        let led_to = lineage.led_to(state.refs.values());
        let mut left = Vec::new();
        for (id, dropped) in open {
            let ended = if lineage.get(dropped.r.snapshot).is_none() {
                "gone"
            } else if led_to.contains(&dropped.r.snapshot) {
                "held"
            } else {
                left.push(dropped);
                continue;
            };
            sqlx::query("UPDATE drops SET ended = $2, ended_at = $3 WHERE id = $1")
                .bind(id)
                .bind(ended)
                .bind(now.0)
                .execute(&mut **transaction)
                .await
                .map_err(self.failed(doing))?;
        }
        Ok(left)
    }
}

async fn insert(
    transaction: &mut Transaction<'static, Any>,
    catalog: &str,
    uuid: Uuid,
    dropped: &DroppedRef,
) -> Result<String, sqlx::Error> {
    let id = Uuid::now_v7().to_string();
    sqlx::query(
        "INSERT INTO drops (id, catalog, uuid, ref_name, kind, head, retention, fork_point, dropped_at, actor)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(id.as_str())
    .bind(catalog)
    .bind(uuid.to_string())
    .bind(dropped.name.as_str())
    .bind(dropped.r.kind.as_str())
    .bind(dropped.r.snapshot.0)
    .bind(json(&dropped.r.retention))
    .bind(dropped.fork_point.map(|id| id.0))
    .bind(dropped.at.0)
    .bind(dropped.by.as_deref())
    .execute(&mut **transaction)
    .await?;
    Ok(id)
}

async fn open(
    transaction: &mut Transaction<'static, Any>,
    catalog: &str,
    uuid: Uuid,
) -> Result<Vec<(String, DroppedRef)>, sqlx::Error> {
    sqlx::query("SELECT * FROM drops WHERE uuid = $1 AND catalog = $2 AND ended IS NULL ORDER BY dropped_at, id")
        .bind(uuid.to_string())
        .bind(catalog)
        .fetch_all(&mut **transaction)
        .await
        .and_then(|rows| rows.iter().map(|row| DropRecord::from_row(row).map(|drop| (drop.id, drop.dropped))).collect())
}

impl DropRecord {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let r = Ref {
            snapshot: SnapshotId(row.try_get("head")?),
            kind: kind(row)?,
            retention: from_json(row, "retention")?,
        };
        Ok(Self {
            id: row.try_get("id")?,
            dropped: DroppedRef {
                name: RefName::new(row.try_get::<String, _>("ref_name")?),
                r,
                fork_point: row.try_get::<Option<i64>, _>("fork_point")?.map(SnapshotId),
                at: time(row, "dropped_at")?,
                by: row.try_get("actor")?,
            },
            ended_at: time_or_none(row, "ended_at")?,
        })
    }
}
