//! Objects of all other stores, by `object_store`: local files, Google Cloud Storage, Azure, stores that a caller brings.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::JoinSet;

use super::pace::{Paces, Verdict};
use super::{Deadline, Deleted, Failure, SINGLE, Settled, Told};
use crate::storage::{Loan, StorageError, StorageErrorKind};

/// Deletes in a store.
#[derive(Clone)]
pub(super) struct Deleter {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) loan: Option<Loan>,
    pub(super) paces: Arc<Paces>,
    pub(super) deadline: Deadline,
}

/// What a store said to a request for many objects.
#[derive(Default)]
struct Many {
    confirmed: HashSet<Path>,
    /// That our keys are no good, if it said so.
    refused: Option<StorageError>,
    is_slow_down: bool,
}

impl Deleter {
    /// Deletes a batch, until the deadline. What a request for many does not confirm is deleted singly, since the text
    /// of its errors does not reliably tell which object they are about.
    pub(super) async fn delete(self, mut told: Told) -> Told {
        let _in_time = tokio::time::timeout_at(self.deadline.at, self.all(&mut told)).await;
        if let Some(loan) = &self.loan {
            told.redact(&loan.lent);
        }
        told
    }

    async fn all(&self, told: &mut Told) {
        let mut loan = self.loan.clone();
        if told.len() > 1 {
            let mut many = self.many(told).await;
            if let (Some(loan), Some(refused)) = (&mut loan, many.refused.take())
                && loan.is_worth_another(&refused).await
            {
                many = self.many(told).await;
            }
            for at in 0..told.len() {
                if many.confirmed.contains(told.path(at)) {
                    told.settle(at, Ok(Deleted::Deleted));
                }
            }
        }
        let left: Vec<(usize, Path)> = told.open().into_iter().map(|at| (at, told.path(at).clone())).collect();
        let mut singles = stream::iter(left)
            .map(|(at, path)| {
                let loan = loan.clone();
                async move { (at, self.one(path, loan).await) }
            })
            .buffer_unordered(SINGLE);
        while let Some((at, settled)) = singles.next().await {
            told.settle(at, settled);
        }
    }

    async fn many(&self, told: &Told) -> Many {
        let paths: Vec<_> = (0..told.len()).map(|at| Ok(told.path(at).clone())).collect();
        let turn = self.paces.many.turn().await;
        if self.deadline.is_over() {
            return Many::default();
        }
        let store = Arc::clone(&self.store);
        let many = apart(async move {
            let mut results = store.delete_stream(stream::iter(paths).boxed());
            let mut many = Many::default();
            while let Some(result) = results.next().await {
                match result {
                    Ok(path) => _ = many.confirmed.insert(path),
                    Err(error) => {
                        let error = StorageError::of("", &error);
                        many.is_slow_down |= is_slow_down(&error);
                        let is_refused = error.kind == StorageErrorKind::Denied;
                        many.refused = many.refused.or(Some(error).filter(|_| is_refused));
                    }
                }
            }
            many
        })
        .await
        .unwrap_or_default();
        turn.ended(if many.is_slow_down { Verdict::SlowDown } else { Verdict::Done });
        many
    }

    async fn one(&self, path: Path, mut loan: Option<Loan>) -> Settled {
        loop {
            let turn = self.paces.one.turn().await;
            if self.deadline.is_over() {
                return Err(Failure::too_late(None));
            }
            let (store, path) = (Arc::clone(&self.store), path.clone());
            let error = match apart(async move { store.delete(&path).await }).await {
                Err(reason) => return Err(Failure::unavailable(&format!("the client failed: {reason}"))),
                Ok(Ok(())) => {
                    turn.ended(Verdict::Done);
                    return Ok(Deleted::Deleted);
                }
                Ok(Err(error)) => StorageError::of("", &error),
            };
            turn.ended(if is_slow_down(&error) { Verdict::SlowDown } else { Verdict::Done });
            if error.kind == StorageErrorKind::NotFound {
                return Ok(Deleted::AlreadyGone);
            }
            let has_new_keys = match &mut loan {
                Some(loan) => loan.is_worth_another(&error).await,
                None => false,
            };
            if !has_new_keys {
                return Err(Failure { kind: error.kind, reason: error.reason });
            }
        }
    }
}

/// In a task of its own, since the client may panic over an answer; it ends when nobody waits for it any more.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, String> {
    let mut task = JoinSet::new();
    task.spawn(work);
    match task.join_next().await {
        Some(Ok(done)) => Ok(done),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("it was not started".to_owned()),
    }
}

/// The client has asked again before it says so.
fn is_slow_down(error: &StorageError) -> bool {
    ["SlowDown", "ServerBusy", "429 ", "503 "].iter().any(|said| error.reason.contains(said))
}
