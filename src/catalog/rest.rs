//! Iceberg REST catalogs.

use iceberg::{TableRequirement, TableUpdate};

use super::{CatalogError, CommitOutcome, ListedTable, LoadedTable};
use crate::model::TableName;

/// A REST catalog.
#[derive(Debug)]
pub struct RestCatalog {
    name: String,
}

impl RestCatalog {
    /// The name of its `[[catalog]]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn list_tables(&self) -> Result<Vec<ListedTable>, CatalogError> {
        Ok(Vec::new())
    }

    pub(super) async fn load(&self, table: &TableName) -> Result<LoadedTable, CatalogError> {
        Err(CatalogError::NoSuchTable { table: table.clone() })
    }

    pub(super) async fn commit(&self, _: &LoadedTable, _: &[TableRequirement], _: &[TableUpdate]) -> CommitOutcome {
        CommitOutcome::Unknown { reason: String::new() }
    }
}
