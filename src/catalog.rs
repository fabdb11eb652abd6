//! Catalogs: list tables, load a table, commit updates. Nothing here decides anything.

use std::sync::Arc;

use bytes::Bytes;
use iceberg::{TableRequirement, TableUpdate};

use crate::model::{Age, TableName, TableState, Timestamp};
use crate::storage::Storage;

mod auth;
mod http;
pub mod metadata;
pub mod rest;
pub mod sql;

pub use crate::storage::install_crypto;

/// A configured catalog.
#[derive(Debug)]
pub enum Catalog {
    /// JDBC layout in SQLite or PostgreSQL.
    Sql(sql::SqlCatalog),
    /// Iceberg REST.
    Rest(rest::RestCatalog),
    /// One that could not be opened: it has no tables now, and nothing can be done in it.
    Broken {
        /// Its name.
        name: String,
        /// Why it could not be opened.
        reason: String,
    },
}

/// A table as the catalog lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTable {
    /// Its name.
    pub name: TableName,
    /// The current metadata file, where the listing tells it (SQL catalogs do, REST catalogs do not).
    pub metadata_location: Option<String>,
}

/// A table as loaded for one decision. `metadata` is the file at `metadata_location`, inflated.
#[derive(Debug, Clone)]
pub struct LoadedTable {
    /// Its name.
    pub name: TableName,
    /// The current metadata file.
    pub metadata_location: String,
    /// Its JSON, inflated.
    pub metadata: Bytes,
    /// What we make of it.
    pub state: Arc<TableState>,
    /// What its files are read and deleted with: keys that the catalog lends for them, and for no other table's.
    pub storage: Storage,
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is the table's new state.
    Committed,
    /// Somebody else was faster (409, or a lost compare-and-swap), or the server wants the same in another form, which it
    /// will get from now on; nothing was changed. What comes next is a look at the table, and a new plan.
    Conflict {
        /// In the catalog's words.
        reason: String,
        /// A metadata file that was written for this commit and that nothing refers to.
        left_behind: Option<String>,
    },
    /// It may or may not have been applied (500, 502, 503, 504, a broken connection).
    Unknown {
        /// In the catalog's words.
        reason: String,
    },
    /// The catalog refused it as wrong; nothing was changed.
    Rejected {
        /// In the catalog's words.
        reason: String,
        /// As for a conflict.
        left_behind: Option<String>,
    },
}

/// Whether a catalog would take a commit, as far as that can be known without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committing {
    /// What it tells speaks for it.
    Offered(&'static str),
    /// It tells that it does not.
    Refused(String),
    /// It tells nothing.
    Untold(&'static str),
}

impl Catalog {
    /// The name of its `[[catalog]]`.
    pub fn name(&self) -> &str {
        match self {
            Self::Sql(catalog) => catalog.name(),
            Self::Rest(catalog) => catalog.name(),
            Self::Broken { name, .. } => name,
        }
    }

    /// Why it could not be opened, if it could not.
    pub fn broken(&self) -> Option<String> {
        match self {
            Self::Broken { reason, .. } => Some(reason.clone()),
            Self::Sql(_) | Self::Rest(_) => None,
        }
    }

    /// What to do in place of ours where the catalog has branches of its own, which no metadata file tells of.
    pub fn keeps_house(&self) -> Option<&'static str> {
        match self {
            Self::Rest(catalog) => catalog.keeps_house(),
            Self::Sql(_) | Self::Broken { .. } => None,
        }
    }

    /// Every table of every namespace, sorted by name.
    pub async fn list_tables(&self) -> Result<Vec<ListedTable>, CatalogError> {
        match self {
            Self::Sql(catalog) => catalog.list_tables().await,
            Self::Rest(catalog) => catalog.list_tables().await,
            Self::Broken { name, reason } => {
                Err(CatalogError::NotOpen { catalog: name.clone(), reason: reason.clone() })
            }
        }
    }

    /// The table now, uncached, with all of its snapshots; its refs and snapshots are those of the file at
    /// the metadata location (safety rule 9).
    pub async fn load(&self, table: &TableName) -> Result<LoadedTable, CatalogError> {
        match self {
            Self::Sql(catalog) => catalog.load(table).await,
            Self::Rest(catalog) => catalog.load(table).await,
            Self::Broken { name, reason } => {
                Err(CatalogError::NotOpen { catalog: name.clone(), reason: reason.clone() })
            }
        }
    }

    /// How far our system clock is ahead of the catalog's, and whose clock that is; `None` where it has none of its own,
    /// or does not tell (safety rule 3).
    pub async fn clock_skew(&self) -> Result<Option<(String, Age)>, CatalogError> {
        match self {
            Self::Sql(catalog) => catalog.clock_skew().await,
            Self::Rest(_) | Self::Broken { .. } => Ok(None),
        }
    }

    /// Whether it would take a commit, as far as that can be known; changes nothing.
    pub async fn committing(&self) -> Committing {
        match self {
            Self::Sql(catalog) => catalog.committing().await,
            Self::Rest(catalog) => catalog.committing(),
            Self::Broken { reason, .. } => Committing::Refused(reason.clone()),
        }
    }

    /// Commits `updates` to `base` if all `requirements` hold. `now` becomes the metadata's
    /// `last-updated-ms` where we write the file (SQL).
    pub async fn commit(
        &self,
        base: &LoadedTable,
        requirements: &[TableRequirement],
        updates: &[TableUpdate],
        now: Timestamp,
    ) -> CommitOutcome {
        match self {
            Self::Sql(catalog) => catalog.commit(base, requirements, updates, now).await,
            Self::Rest(catalog) => catalog.commit(base, requirements, updates).await,
            Self::Broken { reason, .. } => CommitOutcome::Rejected { reason: reason.clone(), left_behind: None },
        }
    }
}

/// A catalog or a table in it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The catalog does not answer, or refuses us.
    #[error("cannot {action} catalog {catalog}: {reason}")]
    Unavailable {
        /// The catalog's name.
        catalog: String,
        /// Verb, such as `list tables of` or `open`.
        action: &'static str,
        /// In the catalog's words.
        reason: String,
    },
    /// The catalog could not be opened.
    #[error("{reason}")]
    NotOpen {
        /// The catalog's name.
        catalog: String,
        /// Names it, and says why.
        reason: String,
    },
    /// The catalog has no such table.
    #[error("catalog {} has no table {table}", table.catalog)]
    NoSuchTable {
        /// The name asked for.
        table: TableName,
    },
    /// The catalog's answer about a table makes no sense.
    #[error("cannot load {table}: {reason}")]
    BadAnswer {
        /// Which table.
        table: TableName,
        /// What is wrong.
        reason: String,
    },
    /// A metadata file cannot be read, or is not one (safety rule 2).
    #[error("cannot read metadata of {table}: {source}")]
    Metadata {
        /// Which table.
        table: TableName,
        /// Names the file and what is wrong with it.
        source: metadata::MetadataError,
    },
}
