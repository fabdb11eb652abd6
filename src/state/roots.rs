//! The folders and uuid of every table, by metadata location, so that only changed tables are loaded to see
//! which tables share a folder or a uuid (safety rule 6).

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{State, StateError, from_json, json, namespace, table, uuid_or_none};
use crate::model::{TableName, TableRoots, Timestamp};

impl State {
    /// Remembers a table's folders, in the place of what was known of it.
    pub async fn put_roots(&self, seen: &TableRoots) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO roots (catalog, namespace, table_name, metadata_location, uuid, roots)
             VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (catalog, namespace, table_name) DO UPDATE
             SET metadata_location = excluded.metadata_location, uuid = excluded.uuid, roots = excluded.roots",
        )
        .bind(seen.table.catalog.as_str())
        .bind(namespace(&seen.table))
        .bind(seen.table.name.as_str())
        .bind(seen.metadata_location.as_str())
        .bind(seen.uuid.map(|uuid| uuid.to_string()))
        .bind(json(&seen.roots))
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("remember a table's folders"))
    }

    /// What is known of a catalog's tables.
    pub async fn roots(&self, catalog: &str) -> Result<Vec<TableRoots>, StateError> {
        let rows = sqlx::query("SELECT * FROM roots WHERE catalog = $1 ORDER BY namespace, table_name")
            .bind(catalog)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(from_row).collect());
        rows.map_err(self.failed("read the tables' folders"))
    }

    /// Notes that a catalog was listed.
    pub async fn note_listed(&self, catalog: &str, now: Timestamp) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO catalogs (name, listed_at) VALUES ($1, $2)
             ON CONFLICT (name) DO UPDATE SET listed_at = excluded.listed_at",
        )
        .bind(catalog)
        .bind(now.0)
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("note that a catalog was listed"))
    }

    /// Whether a catalog was ever listed, be it an empty one.
    pub async fn was_listed(&self, catalog: &str) -> Result<bool, StateError> {
        sqlx::query("SELECT name FROM catalogs WHERE name = $1")
            .bind(catalog)
            .fetch_optional(&self.pool)
            .await
            .map(|row| row.is_some())
            .map_err(self.failed("look whether a catalog was listed"))
    }

    /// Forgets the catalog's tables that are not listed any more, and tells how many those were.
    pub async fn forget_roots(&self, catalog: &str, listed: &BTreeSet<TableName>) -> Result<usize, StateError> {
        let doing = "forget the folders of tables that are gone";
        let mut transaction = self.write(doing).await?;
        let rows: Result<Vec<TableName>, _> = sqlx::query("SELECT * FROM roots WHERE catalog = $1")
            .bind(catalog)
            .fetch_all(&mut *transaction)
            .await
            .and_then(|rows| rows.iter().map(table).collect());
        let mut known = rows.map_err(self.failed(doing))?;
        known.retain(|table| !listed.contains(table));
        for gone in &known {
            sqlx::query("DELETE FROM roots WHERE catalog = $1 AND namespace = $2 AND table_name = $3")
                .bind(catalog)
                .bind(namespace(gone))
                .bind(gone.name.as_str())
                .execute(&mut *transaction)
                .await
                .map_err(self.failed(doing))?;
        }
        transaction.commit().await.map_err(self.failed(doing))?;
        Ok(known.len())
    }
}

fn from_row(row: &AnyRow) -> Result<TableRoots, sqlx::Error> {
    Ok(TableRoots {
        table: table(row)?,
        metadata_location: row.try_get("metadata_location")?,
        uuid: uuid_or_none(row, "uuid")?,
        roots: from_json(row, "roots")?,
    })
}
