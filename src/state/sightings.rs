//! What was seen of the refs of each table: since when, with which retention, and where they left `main`. What tells
//! the age of a ref where the metadata log does not, and that a ref is gone.

use std::collections::BTreeMap;

use sqlx::any::AnyRow;
use sqlx::{Any, Row, Transaction};
use uuid::Uuid;

use super::{State, StateError, from_json, json, time};
use crate::model::sighting::see;
use crate::model::{DroppedRef, RefKind, RefName, Sighting, SnapshotId, TableState, Timestamp};

/// What is known of a table's refs after a look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRefs {
    /// Those that are there.
    pub refs: BTreeMap<RefName, Sighting>,
    /// Those that are gone, and whose snapshots are on no other ref.
    pub dropped: Vec<DroppedRef>,
}

impl State {
    /// Records the refs of a table as they are seen now, and those that are gone since the last look; tells what is
    /// known of them. Fork points that are told count for refs that were not seen before.
    /// In one transaction: of two runs at once, the later one goes on from what the other has recorded.
    pub async fn see_refs(
        &self,
        catalog: &str,
        uuid: Uuid,
        state: &TableState,
        fork_points: &BTreeMap<RefName, SnapshotId>,
        now: Timestamp,
    ) -> Result<KnownRefs, StateError> {
        let doing = "record the refs of a table";
        let mut transaction = self.write(doing).await?;
        let known = sightings(&mut transaction, catalog, uuid).await.map_err(self.failed(doing))?;
        let seen = see(state, &known, fork_points, now);
        for name in known.keys().filter(|name| !seen.refs.contains_key(*name)) {
            sqlx::query("DELETE FROM sightings WHERE uuid = $1 AND catalog = $2 AND ref_name = $3")
                .bind(uuid.to_string())
                .bind(catalog)
                .bind(name.as_str())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed(doing))?;
        }
        for (name, sighting) in seen.refs.iter().filter(|(name, sighting)| known.get(*name) != Some(*sighting)) {
            sqlx::query(
                "INSERT INTO sightings
                     (catalog, uuid, ref_name, kind, head, first_seen, last_seen, own, in_force, fork_point)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                 ON CONFLICT (catalog, uuid, ref_name) DO UPDATE
                 SET kind = excluded.kind, head = excluded.head, first_seen = excluded.first_seen,
                     last_seen = excluded.last_seen, own = excluded.own, in_force = excluded.in_force,
                     fork_point = excluded.fork_point",
            )
            .bind(catalog)
            .bind(uuid.to_string())
            .bind(name.as_str())
            .bind(sighting.kind.as_str())
            .bind(sighting.head.0)
            .bind(sighting.first_seen.0)
            .bind(sighting.last_seen.0)
            .bind(json(&sighting.own))
            .bind(json(&sighting.in_force))
            .bind(sighting.fork_point.map(|id| id.0))
            .execute(&mut *transaction)
            .await
            .map_err(self.failed(doing))?;
        }
        let dropped = self.see_gone(&mut transaction, catalog, uuid, state, seen.gone, now).await?;
        transaction.commit().await.map_err(self.failed(doing))?;
        Ok(KnownRefs { refs: seen.refs, dropped })
    }
}

impl State {
    /// Where the branches of a table left `main`; `None` for a table that was never seen.
    pub(super) async fn fork_points(
        &self,
        catalog: &str,
        uuid: Uuid,
    ) -> Result<Option<BTreeMap<RefName, SnapshotId>>, StateError> {
        let rows = sqlx::query("SELECT * FROM sightings WHERE uuid = $1 AND catalog = $2")
            .bind(uuid.to_string())
            .bind(catalog)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(from_row).collect::<Result<Vec<_>, _>>())
            .map_err(self.failed("read what is known of refs"))?;
        let of = |(name, seen): (RefName, Sighting)| Some((name, seen.fork_point?));
        Ok((!rows.is_empty()).then(|| rows.into_iter().filter_map(of).collect()))
    }
}

async fn sightings(
    transaction: &mut Transaction<'static, Any>,
    catalog: &str,
    uuid: Uuid,
) -> Result<BTreeMap<RefName, Sighting>, sqlx::Error> {
    sqlx::query("SELECT * FROM sightings WHERE uuid = $1 AND catalog = $2")
        .bind(uuid.to_string())
        .bind(catalog)
        .fetch_all(&mut **transaction)
        .await
        .and_then(|rows| rows.iter().map(from_row).collect())
}

fn from_row(row: &AnyRow) -> Result<(RefName, Sighting), sqlx::Error> {
    let sighting = Sighting {
        kind: kind(row)?,
        head: SnapshotId(row.try_get("head")?),
        first_seen: time(row, "first_seen")?,
        last_seen: time(row, "last_seen")?,
        own: from_json(row, "own")?,
        in_force: from_json(row, "in_force")?,
        fork_point: row.try_get::<Option<i64>, _>("fork_point")?.map(SnapshotId),
    };
    Ok((RefName::new(row.try_get::<String, _>("ref_name")?), sighting))
}

pub(super) fn kind(row: &AnyRow) -> Result<RefKind, sqlx::Error> {
    let word: String = row.try_get("kind")?;
    RefKind::of(&word).ok_or_else(|| {
        let unknown = super::UnknownWord(word, "kind of ref");
        sqlx::Error::ColumnDecode { index: "kind".to_owned(), source: unknown.into() }
    })
}
