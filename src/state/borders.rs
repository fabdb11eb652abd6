//! Where tables refer beyond their own folders, by metadata location, so that only what is new is read to see whose
//! folders a table has files in (safety rule 6).

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{ListFile, State, StateError, from_json, json, namespace, number, table};
use crate::model::{Root, TableName};

/// The folders of others in which a table has files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Borders {
    /// Which table.
    pub table: TableName,
    /// The metadata file up to which it was read; none where it could not be read whole.
    pub metadata_location: Option<String>,
    /// Folders outside its own, at least those that it refers to files in.
    pub outside: BTreeSet<Root>,
    /// The manifests that were read for it, which need not be read again.
    pub manifests: ListFile,
}

impl State {
    /// Remembers where a table refers to, in the place of what was known of it.
    pub async fn put_borders(&self, seen: &Borders) -> Result<(), StateError> {
        sqlx::query(
            "INSERT INTO borders (catalog, namespace, table_name, metadata_location, outside, list_location, list_sha256,
                 list_objects, list_bytes)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
             ON CONFLICT (catalog, namespace, table_name) DO UPDATE
             SET metadata_location = excluded.metadata_location, outside = excluded.outside,
                 list_location = excluded.list_location, list_sha256 = excluded.list_sha256,
                 list_objects = excluded.list_objects, list_bytes = excluded.list_bytes",
        )
        .bind(seen.table.catalog.as_str())
        .bind(namespace(&seen.table))
        .bind(seen.table.name.as_str())
        .bind(seen.metadata_location.as_deref())
        .bind(json(&seen.outside))
        .bind(seen.manifests.location.as_str())
        .bind(seen.manifests.sha256.as_str())
        .bind(number(seen.manifests.objects))
        .bind(number(seen.manifests.bytes))
        .execute(&self.pool)
        .await
        .map(drop)
        .map_err(self.failed("remember where a table refers to"))
    }

    /// What is known of a catalog's tables.
    pub async fn borders(&self, catalog: &str) -> Result<Vec<Borders>, StateError> {
        let rows = sqlx::query("SELECT * FROM borders WHERE catalog = $1 ORDER BY namespace, table_name")
            .bind(catalog)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(from_row).collect());
        rows.map_err(self.failed("read where tables refer to"))
    }

    /// Forgets a table that is gone.
    pub async fn forget_borders(&self, of: &TableName) -> Result<(), StateError> {
        sqlx::query("DELETE FROM borders WHERE catalog = $1 AND namespace = $2 AND table_name = $3")
            .bind(of.catalog.as_str())
            .bind(namespace(of))
            .bind(of.name.as_str())
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("forget where a table refers to"))
    }

    /// The tables that a catalog had at its last orphan run; `None` if there was none.
    pub async fn tables_at_last_orphan_run(&self, catalog: &str) -> Result<Option<BTreeSet<TableName>>, StateError> {
        let row = sqlx::query("SELECT orphan_tables FROM catalogs WHERE name = $1 AND orphan_tables IS NOT NULL")
            .bind(catalog)
            .fetch_optional(&self.pool)
            .await
            .and_then(|row| row.as_ref().map(|row| from_json(row, "orphan_tables")).transpose());
        row.map_err(self.failed("read which tables a catalog had"))
    }

    /// Writes down which tables a catalog has.
    pub async fn note_orphan_run(&self, catalog: &str, tables: &BTreeSet<TableName>) -> Result<(), StateError> {
        sqlx::query("UPDATE catalogs SET orphan_tables = $2 WHERE name = $1")
            .bind(catalog)
            .bind(json(tables))
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(self.failed("write down which tables a catalog has"))
    }
}

fn from_row(row: &AnyRow) -> Result<Borders, sqlx::Error> {
    Ok(Borders {
        table: table(row)?,
        metadata_location: row.try_get("metadata_location")?,
        outside: from_json(row, "outside")?,
        manifests: ListFile::from_row(row)?,
    })
}
