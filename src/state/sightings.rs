//! Since when the refs of each table were seen: what tells the age of a ref where the metadata log does not.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::{State, StateError, time};
use crate::model::sighting::see;
use crate::model::{RefName, Sighting, SnapshotId, TableState, Timestamp};

impl State {
    /// Records the refs of a table as they are seen now, and tells since when each has been seen without a break.
    /// In one transaction: of two runs at once, the later one goes on from what the other has recorded.
    pub async fn see_refs(
        &self,
        catalog: &str,
        uuid: Uuid,
        state: &TableState,
        now: Timestamp,
    ) -> Result<BTreeMap<RefName, Sighting>, StateError> {
        let doing = "record the refs of a table";
        let mut transaction = self.write(doing).await?;
        let known: Result<BTreeMap<_, _>, _> = sqlx::query("SELECT * FROM sightings WHERE uuid = $1 AND catalog = $2")
            .bind(uuid.to_string())
            .bind(catalog)
            .fetch_all(&mut *transaction)
            .await
            .and_then(|rows| rows.iter().map(from_row).collect());
        let known = known.map_err(self.failed(doing))?;
        let seen = see(state, &known, now);
        for name in known.keys().filter(|name| !seen.contains_key(*name)) {
            sqlx::query("DELETE FROM sightings WHERE uuid = $1 AND catalog = $2 AND ref_name = $3")
                .bind(uuid.to_string())
                .bind(catalog)
                .bind(name.as_str())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed(doing))?;
        }
        for (name, sighting) in seen.iter().filter(|(name, sighting)| known.get(*name) != Some(*sighting)) {
            sqlx::query(
                "INSERT INTO sightings (catalog, uuid, ref_name, head, first_seen, last_seen)
                 VALUES ($1, $2, $3, $4, $5, $6)
                 ON CONFLICT (catalog, uuid, ref_name) DO UPDATE
                 SET head = excluded.head, first_seen = excluded.first_seen, last_seen = excluded.last_seen",
            )
            .bind(catalog)
            .bind(uuid.to_string())
            .bind(name.as_str())
            .bind(sighting.head.0)
            .bind(sighting.first_seen.0)
            .bind(sighting.last_seen.0)
            .execute(&mut *transaction)
            .await
            .map_err(self.failed(doing))?;
        }
        transaction.commit().await.map_err(self.failed(doing))?;
        Ok(seen)
    }
}

fn from_row(row: &AnyRow) -> Result<(RefName, Sighting), sqlx::Error> {
    let sighting = Sighting {
        head: SnapshotId(row.try_get("head")?),
        first_seen: time(row, "first_seen")?,
        last_seen: time(row, "last_seen")?,
    };
    Ok((RefName::new(row.try_get::<String, _>("ref_name")?), sighting))
}
