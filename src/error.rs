//! Why a table could not be worked on. Each names the table or the file, and what to do.

use crate::catalog::CatalogError;
use crate::catalog::metadata::MetadataError;
use crate::inventory::found::FindError;
use crate::inventory::manifests::Unreadable;
use crate::inventory::spill::SpillError;
use crate::inventory::world::SurveyError;
use crate::model::{BadLocation, TableName};
use crate::plan::values::BadProperty;
use crate::state::{ListError, PlansError, StateError};

/// A table could not be worked on; it was left as it is, unless the text says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The catalog, or the table's metadata.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A previous metadata file.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A manifest list or manifest of a snapshot that stays (safety rule 2).
    #[error("cannot read {0}; while a file of a retained snapshot cannot be read, nothing of the table is deleted")]
    Unreadable(#[from] Unreadable),
    /// The table's own folders.
    #[error("the table's location makes no sense: {0}")]
    Location(#[from] BadLocation),
    /// A table property.
    #[error(transparent)]
    Property(#[from] BadProperty),
    /// The state database.
    #[error(transparent)]
    State(#[from] StateError),
    /// The plans store.
    #[error(transparent)]
    Plans(#[from] PlansError),
    /// A list file.
    #[error(transparent)]
    List(#[from] ListError),
    /// The other tables.
    #[error(transparent)]
    Survey(#[from] SurveyError),
    /// A listing.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A temporary file.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// Another run works on the table.
    #[error("the table is being worked on by {holder}; try again when that is done")]
    Busy {
        /// Who, as far as is known.
        holder: String,
    },
    /// The lease is gone: somebody else may be at work.
    #[error("the lease on the table was lost, so the run stopped before its next {before}; run it again")]
    LeaseLost {
        /// `commit` or `delete`.
        before: &'static str,
    },
    /// Too much time went by between the last look at the lease and what it allows.
    #[error(
        "the run was held up for {seconds} s right before its next {before}, so that others may have begun to work on the \
         table; it stopped there, run it again"
    )]
    Stalled {
        /// In boot time.
        seconds: u64,
        /// `commit` or `delete`.
        before: &'static str,
    },
    /// The table was replaced, or forbids maintenance now.
    #[error(
        "{table} was replaced, its gc.enabled switched off, or the tables around it changed, during the sweep; the rest keeps its marks"
    )]
    Changed {
        /// Which.
        table: TableName,
    },
    /// A hold was put on the table while the run was on its way.
    #[error("held by {by}: {reason}; the run stopped before its next {before}")]
    Held {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// `commit` or `delete`.
        before: &'static str,
    },
    /// The commit was not applied, or nobody knows.
    #[error("{0}")]
    Commit(String),
    /// A plan or report could not be written as JSON.
    #[error("cannot write as JSON: {0}")]
    Json(#[from] serde_json::Error),
}
