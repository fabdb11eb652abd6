//! What a table's folders hold, by listing them: the first half of an orphan job's facts, and of its second proof.
//!
//! The metadata is read after the listing has ended (safety rule 1): whatever is committed meanwhile counts as
//! referenced.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::spill::{Objects, SpillError};
use crate::model::file::{is_metadata_file, is_other_format};
use crate::model::{ObjectFacts, Root};
use crate::storage::{ListProgress, Listed, Storage, StorageError};

/// What a listing found, beside the objects themselves.
#[derive(Debug)]
pub struct Found {
    /// The folders that were listed.
    pub roots: BTreeSet<Root>,
    /// Metadata files by their names, those in other tables' folders left out.
    pub metadata_files: Vec<(String, ObjectFacts)>,
    /// A file of another table format, with the folder that tells which.
    pub other_format: Option<String>,
}

/// A listing could not be completed, or not be kept.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// By the store.
    #[error("{0}; a listing that is not whole proves nothing, so nothing was marked")]
    Storage(#[from] StorageError),
    /// By the disk.
    #[error(transparent)]
    Spill(#[from] SpillError),
}

/// Lists folders, none of which lies in another. Calls `each` with batches of objects.
pub async fn list(
    storage: &Storage,
    roots: &BTreeSet<Root>,
    others: &BTreeSet<Root>,
    progress: &Arc<ListProgress>,
    mut each: impl FnMut(Vec<Listed>) -> Result<(), SpillError>,
) -> Result<Found, FindError> {
    let mut found = Found { roots: roots.clone(), metadata_files: Vec::new(), other_format: None };
    let rules = storage.rules();
    for root in roots {
        let mut listing = storage.list(root, progress);
        while let Some(batch) = listing.next().await? {
            for listed in &batch {
                let location = listed.location();
                let below = location.strip_prefix(root.as_str()).unwrap_or(location);
                let is_metadata = is_metadata_file(below);
                let is_other = found.other_format.is_none() && is_other_format(below);
                if !is_metadata && !is_other {
                    continue;
                }
                let parsed = rules.parse(location);
                let is_theirs = parsed.is_ok_and(|parsed| Root::any_contains(others, &parsed));
                if is_theirs {
                    continue;
                }
                if is_metadata {
                    found.metadata_files.push((location.to_owned(), listed.facts().clone()));
                }
                if is_other {
                    found.other_format = Some(location.to_owned());
                }
            }
            each(batch)?;
        }
    }
    found.metadata_files.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(found)
}

/// [`list`] with the objects kept for [`super::spill::join`].
pub async fn list_into(
    storage: &Storage,
    (roots, others): (&BTreeSet<Root>, &BTreeSet<Root>),
    progress: &Arc<ListProgress>,
    memory: u64,
) -> Result<(Found, Objects), FindError> {
    let mut objects = Objects::new(memory);
    let found = list(storage, roots, others, progress, |batch| batch.iter().try_for_each(|listed| objects.add(listed)));
    let found = found.await?;
    Ok((found, objects))
}
