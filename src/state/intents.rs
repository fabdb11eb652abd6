//! Intents: what a commit is about to remove, durable before the commit is sent, so that a crash between the
//! commit and its marks loses nothing. An intent becomes marks in one transaction, once.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::{ListFile, MarkList, State, StateError, from_json, json, namespace, number, parsed, table, time};
use crate::model::{RefName, RunId, SnapshotId, TableName, Timestamp};

/// What a commit is about to remove, and the files that only the removed snapshots use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Its id.
    pub id: String,
    /// The table when the intent was made.
    pub table: TableName,
    /// The table's uuid, by which it is found again.
    pub uuid: Uuid,
    /// The run that made it.
    pub run: RunId,
    /// The metadata file that the commit is based on.
    pub base_metadata_location: String,
    /// That file's `last-updated-ms`.
    pub base_last_updated: Timestamp,
    /// The refs that the commit removes.
    pub removed_refs: Vec<RefName>,
    /// The snapshots that the commit removes.
    pub removed_snapshots: Vec<SnapshotId>,
    /// All that is needed to run the plan again on the predecessor (safety rule 10); JSON, opaque here.
    pub inputs: String,
    /// The files to mark.
    pub candidates: ListFile,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How an intent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The commit is in the table's log, and its files were marked.
    Marked,
    /// The commit never happened.
    Void,
    /// The commit removed more than its plan, or other things; nothing was marked.
    Unplanned,
    /// The log does not tell what the commit was based on; nothing was marked.
    NoPredecessor,
}

impl Closed {
    /// One word, as the database and the audit log have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Marked => "marked",
            Self::Void => "void",
            Self::Unplanned => "unplanned",
            Self::NoPredecessor => "no_predecessor",
        }
    }
}

impl State {
    /// Writes an intent. It is on the disk when this returns; only then may the commit be sent.
    pub async fn open_intent(&self, intent: &Intent) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO intents
                 (id, catalog, namespace, table_name, uuid, run, base_metadata_location, base_last_updated,
                  removed_refs, removed_snapshots, inputs, list_location, list_sha256, list_objects, list_bytes,
                  created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
        )
        .bind(intent.id.as_str())
        .bind(intent.table.catalog.as_str())
        .bind(namespace(&intent.table))
        .bind(intent.table.name.as_str())
        .bind(intent.uuid.to_string())
        .bind(intent.run.0.as_str())
        .bind(intent.base_metadata_location.as_str())
        .bind(intent.base_last_updated.0)
        .bind(json(&intent.removed_refs))
        .bind(json(&intent.removed_snapshots))
        .bind(intent.inputs.as_str())
        .bind(intent.candidates.location.as_str())
        .bind(intent.candidates.sha256.as_str())
        .bind(number(intent.candidates.objects))
        .bind(number(intent.candidates.bytes))
        .bind(intent.created_at.0)
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("write an intent"))
    }

    /// The table's intents that nobody has resolved, oldest first.
    pub async fn open_intents(&self, catalog: &str, uuid: Uuid) -> Result<Vec<Intent>, StateError> {
        let rows = sqlx::query(
            "SELECT * FROM intents WHERE uuid = $1 AND catalog = $2 AND closed IS NULL ORDER BY created_at, id",
        )
        .bind(uuid.to_string())
        .bind(catalog)
        .fetch_all(&self.pool)
        .await
        .and_then(|rows| rows.iter().map(Intent::from_row).collect());
        rows.map_err(self.failed("read the open intents"))
    }

    /// The tables that have intents which nobody has resolved, by the name and uuid of the intent.
    pub async fn tables_with_open_intents(&self) -> Result<BTreeSet<(TableName, Uuid)>, StateError> {
        let rows = sqlx::query("SELECT * FROM intents WHERE closed IS NULL")
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(|row| Intent::from_row(row).map(|of| (of.table, of.uuid))).collect());
        rows.map_err(self.failed("read the open intents"))
    }

    /// Closes an intent that becomes no marks. [`StateError::NotOpen`] if somebody else did.
    pub async fn close_intent(&self, id: &str, closed: Closed, now: Timestamp) -> Result<(), StateError> {
        self.close_intent_with_marks(id, closed, &[], now).await
    }

    /// Makes an intent's files marks, in one transaction: either the intent is open and there are no marks, or
    /// it is closed and all are there. [`StateError::NotOpen`] if somebody else was first; nothing is written.
    pub async fn mark_intent(&self, id: &str, marks: &[MarkList], now: Timestamp) -> Result<(), StateError> {
        self.close_intent_with_marks(id, Closed::Marked, marks, now).await
    }

    async fn close_intent_with_marks(
        &self,
        id: &str,
        closed: Closed,
        marks: &[MarkList],
        now: Timestamp,
    ) -> Result<(), StateError> {
        let doing = "close an intent";
        let mut transaction = self.write(doing).await?;
        let done = sqlx::query("UPDATE intents SET closed = $2, closed_at = $3 WHERE id = $1 AND closed IS NULL")
            .bind(id)
            .bind(closed.as_str())
            .bind(now.0)
            .execute(&mut *transaction)
            .await
            .map_err(self.failed(doing))?;
        if done.rows_affected() != 1 {
            return Err(StateError::NotOpen { id: id.to_owned() });
        }
        for list in marks {
            list.insert(&mut transaction).await.map_err(self.failed("write the marks of an intent"))?;
        }
        transaction.commit().await.map_err(self.failed(doing))
    }
}

impl Intent {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            table: table(row)?,
            uuid: parsed(row, "uuid")?,
            run: RunId(row.try_get("run")?),
            base_metadata_location: row.try_get("base_metadata_location")?,
            base_last_updated: time(row, "base_last_updated")?,
            removed_refs: from_json(row, "removed_refs")?,
            removed_snapshots: from_json(row, "removed_snapshots")?,
            inputs: row.try_get("inputs")?,
            candidates: ListFile::from_row(row)?,
            created_at: time(row, "created_at")?,
        })
    }
}
