//! What is remembered of the refs of each table: a row of the database, and a small file in the plans store, so that a
//! lost database costs neither the base of an open branch nor the day in which a dropped one can be restored.

use sha2::{Digest, Sha256};
use sqlx::{Any, Transaction};
use uuid::Uuid;

use super::{Plans, PlansError, State, from_json, hex, json};
use crate::model::{Age, DroppedRef, RefMemory, RefName, TableState, Timestamp};
use crate::storage::StorageErrorKind;

/// A table: its catalog and its uuid.
type Key<'a> = (&'a str, Uuid);

impl Plans {
    /// Goes on from what is remembered of a table's refs to what is there now ([`RefMemory::look`]), and remembers it.
    pub async fn look_at_refs(
        &self,
        state: &State,
        key: Key<'_>,
        table: &TableState,
        now: Timestamp,
        grace: Age,
    ) -> Result<RefMemory, PlansError> {
        self.remember(state, key, |memory| memory.look(table, now, grace)).await
    }

    /// Writes down refs that are about to be dropped: before the commit, so that no crash after it loses what it takes
    /// to set them again (safety rule 15). Where the commit fails they are there still, which a later look finds.
    pub async fn record_drops(&self, state: &State, key: Key<'_>, drops: &[DroppedRef]) -> Result<(), PlansError> {
        let record = |memory: &mut RefMemory| {
            for dropped in drops {
                // An earlier try that failed, perhaps at another head: the ref is there still.
                let is_try = |known: &DroppedRef| known.ended.is_none() && !known.is_seen && known.name == dropped.name;
                memory.dropped.retain(|known| !is_try(known));
                memory.dropped.push(dropped.clone());
            }
        };
        if drops.is_empty() {
            return Ok(());
        }
        self.remember(state, key, record).await.map(drop)
    }

    /// Notes that refs which were written down have gone: their commit was made.
    pub async fn confirm_drops(&self, state: &State, key: Key<'_>, names: &[&RefName]) -> Result<(), PlansError> {
        let confirm = |memory: &mut RefMemory| {
            let ours = memory.dropped.iter_mut().filter(|dropped| dropped.ended.is_none() && !dropped.is_seen);
            ours.filter(|dropped| names.contains(&&dropped.name)).for_each(|dropped| dropped.is_seen = true);
        };
        if names.is_empty() {
            return Ok(());
        }
        self.remember(state, key, confirm).await.map(drop)
    }

    /// What is remembered of a table's refs.
    pub async fn ref_memory(&self, state: &State, key: Key<'_>) -> Result<RefMemory, PlansError> {
        let mut transaction = state.write("read what is known of refs").await?;
        let row = row(&mut transaction, key).await.map_err(state.failed("read what is known of refs"))?;
        let file = self.ref_file(key).await?;
        Ok(later(row, file))
    }

    /// Changes what is remembered, in one transaction: of two runs at once, the later one goes on from what the other
    /// has remembered. The file is written before this returns.
    async fn remember(
        &self,
        state: &State,
        key: Key<'_>,
        change: impl FnOnce(&mut RefMemory),
    ) -> Result<RefMemory, PlansError> {
        let doing = "remember the refs of a table";
        let file = self.ref_file(key).await?;
        let mut transaction = state.write(doing).await?;
        let row = row(&mut transaction, key).await.map_err(state.failed(doing))?;
        let was = row.clone();
        let mut memory = later(row, file.clone());
        change(&mut memory);
        if was.as_ref() != Some(&memory) {
            sqlx::query(
                "INSERT INTO ref_memory (catalog, uuid, memory) VALUES ($1, $2, $3)
                 ON CONFLICT (catalog, uuid) DO UPDATE SET memory = excluded.memory",
            )
            .bind(key.0)
            .bind(key.1.to_string())
            .bind(json(&memory))
            .execute(&mut *transaction)
            .await
            .map_err(state.failed(doing))?;
        }
        transaction.commit().await.map_err(state.failed(doing))?;
        if file.as_ref() != Some(&memory) {
            self.write(&name(key), json(&memory).into()).await?;
        }
        Ok(memory)
    }

    async fn ref_file(&self, key: Key<'_>) -> Result<Option<RefMemory>, PlansError> {
        let location = self.location(&name(key))?;
        match self.read(&location).await {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(memory) => Ok(Some(memory)),
                Err(error) => {
                    // The database knows it; without one, refs count as new.
                    tracing::warn!(%location, %error, "what is remembered of refs cannot be understood; it is written anew");
                    Ok(None)
                }
            },
            Err(PlansError::Storage { source, .. }) if source.kind == StorageErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn row(
    transaction: &mut Transaction<'static, Any>,
    (catalog, uuid): Key<'_>,
) -> Result<Option<RefMemory>, sqlx::Error> {
    sqlx::query("SELECT memory FROM ref_memory WHERE catalog = $1 AND uuid = $2")
        .bind(catalog)
        .bind(uuid.to_string())
        .fetch_optional(&mut **transaction)
        .await?
        .map(|row| from_json(&row, "memory"))
        .transpose()
}

/// A database may be new, or restored from a backup, while the file went on; and the other way round.
fn later(row: Option<RefMemory>, file: Option<RefMemory>) -> RefMemory {
    match (row, file) {
        (Some(row), Some(file)) => {
            if file.is_later_than(&row) {
                file
            } else {
                row
            }
        }
        (row, file) => row.or(file).unwrap_or_default(),
    }
}

fn name((catalog, uuid): Key<'_>) -> String {
    format!("refs/{uuid}-{}.json", hex(&Sha256::digest(catalog)[..4]))
}
