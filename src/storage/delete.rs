//! Bulk deletes with one outcome per object (safety rule 12). The only caller is `sweep`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, timeout_at};

use super::{Loan, Place, Storage, StorageError, StorageErrorKind};
use crate::model::Location;

/// A delete that did what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// The store took the delete.
    Deleted,
    /// There was no such object.
    AlreadyGone,
}

/// The keys of one store, each with its place in the outcomes.
struct Batch {
    store: Arc<dyn ObjectStore>,
    loan: Option<Loan>,
    keys: Vec<(usize, Path)>,
}

/// S3's limit on keys in one request.
const BATCH: usize = 1000;
/// Single deletes in flight, where a bulk request did not settle a key.
const SINGLE: usize = 16;

impl Storage {
    /// Deletes these objects; every one of them has an outcome, in the order given. What is not done `within` that
    /// time is not tried any more, and has failed.
    ///
    /// What a bulk request does not confirm by name is deleted singly, since the text of a bulk error does
    /// not reliably tell which keys it is about.
    pub async fn delete(
        &self,
        locations: Vec<Location>,
        within: Duration,
    ) -> Vec<(Location, Result<Deleted, StorageError>)> {
        let end = Instant::now() + within;
        let mut outcomes: Vec<Option<Result<Deleted, StorageError>>> = Vec::new();
        outcomes.resize_with(locations.len(), || None);
        // By store: where keys are lent there may be several for one bucket.
        let mut batches: BTreeMap<(&str, Option<String>), Batch> = BTreeMap::new();
        for (index, location) in locations.iter().enumerate() {
            match self.object(location) {
                Ok(Place { store, path, loan }) => {
                    let prefix = loan.as_ref().and_then(|loan| Some(loan.lent.grant(location)?.prefix.clone()));
                    let batch = batches.entry((location.store(), prefix));
                    batch.or_insert_with(|| Batch { store, loan, keys: Vec::new() }).keys.push((index, path));
                }
                Err(error) => outcomes[index] = Some(Err(error)),
            }
        }
        for Batch { store, mut loan, keys } in batches.into_values() {
            for batch in keys.chunks(BATCH) {
                let mut told = timeout_at(end, bulk(&store, batch)).await.unwrap_or_default();
                if let (Some(loan), Some(refused)) = (&mut loan, told.refused.take())
                    && loan.is_worth_another(&refused).await
                {
                    told = timeout_at(end, bulk(&store, batch)).await.unwrap_or_default();
                }
                let confirmed = told.confirmed;
                let rest: Vec<_> = batch.iter().filter(|(_, path)| !confirmed.contains_key(path)).cloned().collect();
                for (index, path) in batch {
                    outcomes[*index] = confirmed.get(path).copied().map(Ok);
                }
                let singles: Vec<_> = stream::iter(rest)
                    .map(|(index, path)| {
                        let (store, location) = (Arc::clone(&store), locations[index].raw().to_owned());
                        let loan = loan.clone();
                        async move {
                            let outcome = timeout_at(end, single(&store, &path, &location, loan)).await;
                            (index, outcome.unwrap_or_else(|_| Err(too_late(&location))))
                        }
                    })
                    .buffer_unordered(SINGLE)
                    .collect()
                    .await;
                for (index, outcome) in singles {
                    outcomes[index] = Some(outcome);
                }
            }
        }
        let untold = |location: &Location| {
            Err(StorageError {
                location: location.raw().to_owned(),
                kind: StorageErrorKind::Unavailable,
                reason: "the store did not tell what became of it".to_owned(),
            })
        };
        locations
            .into_iter()
            .zip(outcomes)
            .map(|(location, outcome)| {
                let outcome = outcome.unwrap_or_else(|| untold(&location));
                (location, outcome)
            })
            .collect()
    }
}

fn too_late(location: &str) -> StorageError {
    StorageError {
        location: location.to_owned(),
        kind: StorageErrorKind::Unavailable,
        reason: "the store took too long; it was not deleted, or did not say so".to_owned(),
    }
}

/// What a store said to a bulk request.
#[derive(Default)]
struct Told {
    /// The keys that it confirms.
    confirmed: HashMap<Path, Deleted>,
    /// That our credentials are no good, if it said so.
    refused: Option<StorageError>,
}

/// What becomes of a batch. In a task of its own: an answer that names a key which was not asked for panics the
/// client, and that must cost this batch only.
async fn bulk(store: &Arc<dyn ObjectStore>, batch: &[(usize, Path)]) -> Told {
    let paths: Vec<Path> = batch.iter().map(|(_, path)| path.clone()).collect();
    if paths.len() < 2 {
        return Told::default();
    }
    let store = Arc::clone(store);
    let task = tokio::spawn(async move {
        let paths: Vec<_> = paths.into_iter().map(Ok).collect();
        let mut results = store.delete_stream(stream::iter(paths).boxed());
        let mut told = Told::default();
        while let Some(result) = results.next().await {
            match result {
                Ok(path) => _ = told.confirmed.insert(path, Deleted::Deleted),
                Err(error) => {
                    let error = StorageError::of("", &error);
                    told.refused = told.refused.or(Some(error).filter(|error| error.kind == StorageErrorKind::Denied));
                }
            }
        }
        told
    });
    task.await.unwrap_or_default()
}

async fn single(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    location: &str,
    mut loan: Option<Loan>,
) -> Result<Deleted, StorageError> {
    let unavailable =
        |reason: String| StorageError { location: location.to_owned(), kind: StorageErrorKind::Unavailable, reason };
    loop {
        let (store, path) = (Arc::clone(store), path.clone());
        let task = tokio::spawn(async move { store.delete(&path).await });
        let error = match task.await.map_err(|error| unavailable(format!("the client failed: {error}")))? {
            Ok(()) => return Ok(Deleted::Deleted),
            Err(error) => StorageError::of(location, &error),
        };
        if error.kind == StorageErrorKind::NotFound {
            return Ok(Deleted::AlreadyGone);
        }
        let Some(loan) = &mut loan else { return Err(error) };
        if !loan.is_worth_another(&error).await {
            return Err(error.without_secrets(loan));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;

    use super::*;
    use crate::model::LocationRules;

    #[tokio::test]
    async fn every_object_has_its_own_outcome_and_its_neighbours_stay() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 4);
        let at = |name: &str| format!("file://{}/{name}", folder.path().display());
        for name in ["p=a%2Fb/1", "p=New+York/2", "p=New York/3", "日本", "keep%20me", "keep me"] {
            storage.write_new(&at(name), Bytes::from_static(b"x")).await.unwrap();
        }
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        let names = ["p=a%2Fb/1", "absent", "p=New York/3", "日本", "a//b", "keep%20me", "folder"];
        let locations = names.iter().map(|name| storage.rules().parse(&at(name)).unwrap()).collect();
        let outcomes = storage.delete(locations, Duration::from_mins(1)).await;
        let told: Vec<_> =
            outcomes.iter().map(|(location, outcome)| (location.file_name(), outcome.as_ref().ok().copied())).collect();
        assert_eq!(
            told,
            [
                ("1", Some(Deleted::Deleted)),
                ("absent", Some(Deleted::AlreadyGone)),
                ("3", Some(Deleted::Deleted)),
                ("日本", Some(Deleted::Deleted)),
                ("b", None),
                ("keep%20me", Some(Deleted::Deleted)),
                ("folder", None),
            ]
        );
        for name in ["p=New+York/2", "keep me"] {
            assert_eq!(&storage.read(&at(name)).await.unwrap()[..], b"x", "{name}");
        }
        assert!(folder.path().join("folder").try_exists().unwrap());
    }

    #[tokio::test]
    async fn an_object_that_must_be_new_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 4);
        let at = format!("{}/x", folder.path().display());
        storage.write_new(&at, Bytes::from_static(b"1")).await.unwrap();
        let error = storage.write_new(&at, Bytes::from_static(b"2")).await.unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::AlreadyExists);
        assert_eq!(storage.head(&at).await.unwrap().size, 1);
        assert_eq!(storage.read(&format!("{at}y")).await.unwrap_err().kind, StorageErrorKind::NotFound);
    }
}
