//! Asks a bucket for pages, again where that helps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqwest::StatusCode;

use super::page::{self, NoPage, Page, Plus};
use super::{ListProgress, Paging, error_of};
use crate::model::{Location, Root};
use crate::storage::signed::Bucket;
use crate::storage::{Lent, Loan, Storage, StorageError, StorageErrorKind};

/// Requests for one page, all told.
const ATTEMPTS: u32 = 8;

/// Between two of them at most.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// All but what a signature leaves as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Ask {
    /// Every key begins so.
    pub(super) prefix: Vec<u8>,
    /// Behind this key.
    pub(super) after: Option<Vec<u8>>,
    /// Where a page before told to go on.
    pub(super) token: Option<String>,
    /// Folders are told, not gone into.
    pub(super) by_folder: bool,
}

/// A bucket under one root.
pub(super) struct Source {
    bucket: Arc<Bucket>,
    root: Root,
    paging: Paging,
    lent: Option<Lent>,
    /// What a plus is here: 0 is not known yet.
    plus: AtomicU8,
    progress: Arc<ListProgress>,
}

impl Source {
    pub(super) fn open(
        storage: &Storage,
        root: &Root,
        at: &Location,
        paging: Paging,
        progress: Arc<ListProgress>,
    ) -> Result<Self, StorageError> {
        let lent = storage.lent_for(at).map(|(lent, _)| lent.clone());
        let bucket = storage.bucket(at)?;
        Ok(Self { bucket, root: root.clone(), paging, lent, plus: AtomicU8::new(0), progress })
    }

    /// A page of the bucket.
    pub(super) async fn page(&self, ask: &Ask) -> Result<Page, StorageError> {
        let mut attempt = 0;
        let mut loan = self.lent.as_ref().map(Loan::of);
        loop {
            let failed = match self.once(ask, true).await {
                Err(Failed::UnclearPlus) => self.with_raw_plus(ask).await,
                tried => tried,
            };
            let failed = match failed {
                Ok(page) => return Ok(page),
                Err(failed) => failed,
            };
            attempt += 1;
            match failed {
                Failed::Now(error) => return Err(self.without_secrets(error)),
                Failed::Denied(error) => {
                    let Some(loan) = &mut loan else { return Err(error) };
                    if !loan.is_worth_another(&error).await {
                        return Err(self.without_secrets(error));
                    }
                }
                Failed::Later(reason) if attempt >= ATTEMPTS => {
                    let reason = format!("{reason} (asked {ATTEMPTS} times)");
                    return Err(self.without_secrets(self.error(StorageErrorKind::Unavailable, &reason)));
                }
                Failed::Later(reason) => {
                    tracing::debug!(root = %self.root, attempt, reason, "a page is asked for again");
                    tokio::time::sleep(self.pause(attempt)).await;
                }
                Failed::UnclearPlus => {
                    let reason = "it cannot be told what the plus in its keys stands for";
                    return Err(self.error(StorageErrorKind::Unavailable, reason));
                }
            }
        }
    }

    /// An error of this listing.
    pub(super) fn error(&self, kind: StorageErrorKind, reason: &str) -> StorageError {
        error_of(&self.root, kind, reason)
    }

    fn without_secrets(&self, error: StorageError) -> StorageError {
        match &self.lent {
            Some(lent) => error.without_secrets(&Loan::of(lent)),
            None => error,
        }
    }

    /// Twice as long each time, and never at the same time as all others.
    fn pause(&self, attempt: u32) -> Duration {
        let longest = self.paging.pause.saturating_mul(1 << (attempt - 1).min(10)).min(MAX_PAUSE);
        let chance = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        longest.mul_f64(0.5 + chance / 2.0)
    }

    /// The same page with keys that are not encoded tells what a plus in the encoded ones was.
    async fn with_raw_plus(&self, ask: &Ask) -> Result<Page, Failed> {
        let page = self.once(ask, false).await?;
        let has_plus = page.objects.iter().map(|(key, _)| key).chain(&page.folders).any(|key| key.contains(&b'+'));
        self.plus.store(if has_plus { 2 } else { 1 }, Ordering::Relaxed);
        Ok(page)
    }

    async fn once(&self, ask: &Ask, is_encoded: bool) -> Result<Page, Failed> {
        let encode = |text: &[u8]| percent_encode(text, ENCODED).to_string();
        let mut query = format!("list-type=2&max-keys={}&prefix={}", self.paging.page_size, encode(&ask.prefix));
        if is_encoded {
            query.push_str("&encoding-type=url");
        }
        if ask.by_folder {
            query.push_str("&delimiter=%2F");
        }
        if let Some(token) = &ask.token {
            query = format!("{query}&continuation-token={}", encode(token.as_bytes()));
        } else if let Some(after) = &ask.after {
            query = format!("{query}&start-after={}", encode(after));
        }
        self.progress.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.bucket.get(&query).await.map_err(Failed::Later)?;
        if !answer.status.is_success() {
            return Err(self.refused(answer.status, &String::from_utf8_lossy(&answer.body)));
        }
        let plus = match self.plus.load(Ordering::Relaxed) {
            1 => Some(Plus::Space),
            2 => Some(Plus::Plus),
            _ => None,
        };
        page::read(&answer.body, plus).map_err(|failed| match failed {
            NoPage::Broken(reason) => Failed::Later(reason),
            NoPage::Error(said) => Failed::Later(format!("the store says success, and {said}")),
            NoPage::UnclearPlus => Failed::UnclearPlus,
        })
    }

    fn refused(&self, status: StatusCode, body: &str) -> Failed {
        let said = page::store_error(body).unwrap_or_default();
        let reason = format!("the store answers {status} {said}").trim_end().to_owned();
        let is_over = said.contains("ExpiredToken");
        match status.as_u16() {
            401 | 403 => Failed::Denied(self.error(StorageErrorKind::Denied, &reason)),
            // S3 answers 400 to keys whose time is over.
            400 if is_over => Failed::Denied(self.error(StorageErrorKind::Denied, &reason)),
            404 => Failed::Now(self.error(StorageErrorKind::NotFound, &reason)),
            408 | 429 | 500.. => Failed::Later(reason),
            _ => Failed::Now(self.error(StorageErrorKind::Unavailable, &reason)),
        }
    }
}

/// What became of one request.
enum Failed {
    /// It is so, however often it is asked.
    Now(StorageError),
    /// Our keys are refused.
    Denied(StorageError),
    /// It may go well later.
    Later(String),
    UnclearPlus,
}
