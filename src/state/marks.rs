//! Mark lists: files that wait for the sweep, with the identity of their proof (safety rule 16).
//!
//! The files themselves are in a list file of the plans store; here is what must be known to find it and to
//! judge it. Closed lists stay, so that `why` can answer.

use std::str::FromStr;

use sqlx::any::AnyRow;
use sqlx::{Any, Row, Transaction};
use uuid::Uuid;

use super::{ListFile, State, StateError, UnknownWord, namespace, number, parsed, table, time, time_or_none};
use crate::model::{PlanId, RunId, TableName, Timestamp};

/// Files of one table that wait for the sweep, or waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkList {
    /// Short text, `m-1f0a7c22`.
    pub id: String,
    /// The table when the list was made.
    pub table: TableName,
    /// The table's uuid, by which the sweep finds it.
    pub uuid: Uuid,
    /// The run that made it.
    pub run: RunId,
    /// The plan that it carries out.
    pub plan: PlanId,
    /// The job that marked.
    pub job: String,
    /// When the files were marked.
    pub created_at: Timestamp,
    /// When the grace period is over.
    pub due_at: Timestamp,
    /// The metadata file of the first proof.
    pub metadata_location: String,
    /// Its last sequence number.
    pub last_sequence_number: i64,
    /// Its `last-updated-ms`.
    pub last_updated: Timestamp,
    /// The files; after a partial sweep, those that are left.
    pub list: ListFile,
    /// Whether it waits still.
    pub status: MarkStatus,
    /// Why it was closed.
    pub note: Option<String>,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
}

/// What became of a mark list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkStatus {
    /// It waits for the sweep, or for what is left of it.
    Open,
    /// Each of its files has an outcome.
    Swept,
    /// Its proof holds no more; nothing was deleted for it.
    Void,
}

impl MarkStatus {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Swept => "swept",
            Self::Void => "void",
        }
    }
}

impl FromStr for MarkStatus {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        [Self::Open, Self::Swept, Self::Void]
            .into_iter()
            .find(|status| status.as_str() == word)
            .ok_or_else(|| UnknownWord(word.to_owned(), "status of a mark list"))
    }
}

/// Which mark lists to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkFilter {
    /// Those that wait.
    Open,
    /// Closed ones, too.
    All,
}

impl State {
    /// An id that no mark list has.
    pub async fn new_mark_id(&self) -> Result<String, StateError> {
        loop {
            let id = format!("m-{:08x}", Uuid::new_v4().as_fields().0);
            if self.mark(&id).await?.is_none() {
                return Ok(id);
            }
        }
    }

    /// Writes a mark list that no intent stands behind.
    pub async fn create_marks(&self, list: &MarkList) -> Result<(), StateError> {
        let doing = "write a mark list";
        let mut transaction = self.write(doing).await?;
        list.insert(&mut transaction).await.map_err(self.failed(doing))?;
        transaction.commit().await.map_err(self.failed(doing))
    }

    /// Mark lists, oldest first; of one table, by its name when they were made, or of all.
    pub async fn marks(&self, filter: MarkFilter, of: Option<&TableName>) -> Result<Vec<MarkList>, StateError> {
        let rows = sqlx::query(
            "SELECT * FROM mark_lists
             WHERE ($1 = 'all' OR status = 'open')
                 AND ($2 = '' OR (catalog = $2 AND namespace = $3 AND table_name = $4))
             ORDER BY created_at, id",
        )
        .bind(if filter == MarkFilter::All { "all" } else { "open" })
        .bind(of.map_or("", |table| table.catalog.as_str()))
        .bind(of.map_or_else(String::new, namespace))
        .bind(of.map_or("", |table| table.name.as_str()))
        .fetch_all(&self.pool)
        .await
        .and_then(|rows| rows.iter().map(MarkList::from_row).collect());
        rows.map_err(self.failed("read the mark lists"))
    }

    /// One mark list, open or closed.
    pub async fn mark(&self, id: &str) -> Result<Option<MarkList>, StateError> {
        let row = sqlx::query("SELECT * FROM mark_lists WHERE id = $1")
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .and_then(|row| row.as_ref().map(MarkList::from_row).transpose());
        row.map_err(self.failed("read a mark list"))
    }

    /// Open mark lists whose grace period is over, the longest due first.
    pub async fn due_marks(&self, now: Timestamp) -> Result<Vec<MarkList>, StateError> {
        let rows = sqlx::query("SELECT * FROM mark_lists WHERE status = 'open' AND due_at <= $1 ORDER BY due_at, id")
            .bind(now.0)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(MarkList::from_row).collect());
        rows.map_err(self.failed("read the due mark lists"))
    }

    /// Puts the list of what is left in the place of an open mark list's list. Tells whether it was open.
    pub async fn update_mark_list(&self, id: &str, list: &ListFile) -> Result<bool, StateError> {
        sqlx::query(
            "UPDATE mark_lists SET list_location = $2, list_sha256 = $3, list_objects = $4, list_bytes = $5
             WHERE id = $1 AND status = 'open'",
        )
        .bind(id)
        .bind(list.location.as_str())
        .bind(list.sha256.as_str())
        .bind(number(list.objects))
        .bind(number(list.bytes))
        .execute(&self.pool)
        .await
        .map(|done| done.rows_affected() == 1)
        .map_err(self.failed("update a mark list"))
    }

    /// Closes an open mark list as swept or void. Tells whether it was open.
    pub async fn close_marks(
        &self,
        id: &str,
        status: MarkStatus,
        note: &str,
        now: Timestamp,
    ) -> Result<bool, StateError> {
        sqlx::query("UPDATE mark_lists SET status = $2, note = $3, closed_at = $4 WHERE id = $1 AND status = 'open'")
            .bind(id)
            .bind(status.as_str())
            .bind(note)
            .bind(now.0)
            .execute(&self.pool)
            .await
            .map(|done| done.rows_affected() == 1)
            .map_err(self.failed("close a mark list"))
    }
}

impl MarkList {
    pub(super) async fn insert(&self, transaction: &mut Transaction<'static, Any>) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO mark_lists
                 (id, catalog, namespace, table_name, uuid, run, plan, job, created_at, due_at, metadata_location,
                  last_sequence_number, last_updated, list_location, list_sha256, list_objects, list_bytes, status,
                  note, closed_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)",
        )
        .bind(self.id.as_str())
        .bind(self.table.catalog.as_str())
        .bind(namespace(&self.table))
        .bind(self.table.name.as_str())
        .bind(self.uuid.to_string())
        .bind(self.run.0.as_str())
        .bind(self.plan.to_string())
        .bind(self.job.as_str())
        .bind(self.created_at.0)
        .bind(self.due_at.0)
        .bind(self.metadata_location.as_str())
        .bind(self.last_sequence_number)
        .bind(self.last_updated.0)
        .bind(self.list.location.as_str())
        .bind(self.list.sha256.as_str())
        .bind(number(self.list.objects))
        .bind(number(self.list.bytes))
        .bind(self.status.as_str())
        .bind(self.note.as_deref())
        .bind(self.closed_at.map(|time| time.0))
        .execute(&mut **transaction)
        .await
        .map(drop)
    }

    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            table: table(row)?,
            uuid: parsed(row, "uuid")?,
            run: RunId(row.try_get("run")?),
            plan: parsed(row, "plan")?,
            job: row.try_get("job")?,
            created_at: time(row, "created_at")?,
            due_at: time(row, "due_at")?,
            metadata_location: row.try_get("metadata_location")?,
            last_sequence_number: row.try_get("last_sequence_number")?,
            last_updated: time(row, "last_updated")?,
            list: ListFile::from_row(row)?,
            status: parsed(row, "status")?,
            note: row.try_get("note")?,
            closed_at: time_or_none(row, "closed_at")?,
        })
    }
}
