//! An S3 bucket listed by ranges of keys, side by side.
//!
//! The ranges are a chain. Each but the first begins behind a *pivot*, which is only a guess: a folder that a walk over
//! the first levels found, or a text in the middle of what is left. A range goes on by the store's own tokens until it
//! meets the very key that the next range found first, not until it comes to the pivot. So nothing depends on pivots, nor
//! on what a store makes of them: where one skips objects behind a pivot (SeaweedFS passes over a whole folder), the range
//! before lists them, as if there were no pivot. A store that does not heed pivots at all is listed by one range.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::join_all;
use tokio::task::JoinSet;

use super::ask::{Ask, Source};
use super::order::{Order, between};
use super::page::Page;
use super::{Listed, Paging, Sink, Stopped};
use crate::model::Location;
use crate::storage::{StorageError, StorageErrorKind};

/// Pages without a key, one after another, that a range may have: S3 may answer such.
const MAX_EMPTY_PAGES: u32 = 1000;

/// Pages of a range at most before it is tried again to split its rest.
const MAX_PATIENCE: u32 = 64;

/// Requests for folders at most, to find out where to split.
const MAX_FOLDERS_ASKED: usize = 32;

/// A part of the keys, in the store's order.
#[derive(Debug, Default)]
struct Range {
    /// It begins behind this; the first of all begins where the folder does.
    pivot: Option<Vec<u8>>,
    /// Its own first key, once its first page is there and tells that it has one.
    first: Option<Vec<u8>>,
    /// The last key so far.
    last: Option<Vec<u8>>,
    token: Option<String>,
    prev: Option<usize>,
    next: Option<usize>,
    /// A page that waits until the next range knows where it begins.
    held: Option<Page>,
    /// Nothing lies behind this and before the next range.
    ceiling: Option<Vec<u8>>,
    /// Pages since its rest was split.
    pages: u32,
    /// Pages to wait for before it is.
    patience: u32,
    empty_pages: u32,
    /// It ended before the next range began, and was asked once more.
    is_asked_again: bool,
}

impl Range {
    /// Whether it is not known yet if it has a key, and which.
    fn is_unproven(&self) -> bool {
        self.pivot.is_some() && self.first.is_none()
    }
}

/// A page that was asked for, and by which range.
type Fetched = (usize, Result<Page, StorageError>);

struct Chain<'a> {
    source: Arc<Source>,
    store: &'a str,
    prefix: &'a [u8],
    paging: Paging,
    at_once: usize,
    sink: &'a Sink,
    order: Order,
    ranges: Vec<Range>,
    may_split: bool,
    waiting: VecDeque<usize>,
    fetches: JoinSet<Fetched>,
}

/// Lists everything under `at`.
pub(super) async fn list(
    source: Source,
    at: &Location,
    paging: Paging,
    at_once: usize,
    sink: &Sink,
) -> Result<(), Stopped> {
    let first = Range { patience: paging.split_after, ..Range::default() };
    let chain = Chain {
        source: Arc::new(source),
        store: at.store(),
        prefix: at.key().as_bytes(),
        paging,
        at_once,
        sink,
        order: Order::new(),
        ranges: vec![first],
        may_split: paging.split_after > 0 && at_once > 1,
        waiting: VecDeque::from([0]),
        fetches: JoinSet::new(),
    };
    chain.run().await
}

impl Chain<'_> {
    async fn run(mut self) -> Result<(), Stopped> {
        let mut is_first = true;
        loop {
            while self.fetches.len() < self.at_once
                && let Some(range) = self.waiting.pop_front()
            {
                self.fetch(range);
            }
            let Some(fetched) = self.fetches.join_next().await else {
                return Ok(());
            };
            let (range, page) = fetched.map_err(|broken| self.error(&format!("a request broke off ({broken})")))?;
            let page = page?;
            if std::mem::take(&mut is_first) && self.may_split && page.token.is_some() {
                // More than a page: where could it be split?
                let behind = page.objects.last().map(|(key, _)| key.as_slice());
                self.begin_at(self.folders().await, behind);
            }
            self.ranges[range].held = Some(page);
            self.settle(range).await?;
        }
    }

    fn fetch(&mut self, at: usize) {
        let range = &self.ranges[at];
        let ask = Ask {
            prefix: self.prefix.to_vec(),
            after: range.last.clone().or_else(|| range.pivot.clone()),
            token: range.token.clone(),
            by_folder: false,
        };
        let source = Arc::clone(&self.source);
        self.fetches.spawn(async move { (at, source.page(&ask).await) });
    }

    fn error(&self, what: &str) -> StorageError {
        self.source.error(StorageErrorKind::Unavailable, what)
    }

    /// Folders of the first levels, as far as a few requests tell. What fails here fails again in the listing itself.
    async fn folders(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut level = vec![self.prefix.to_vec()];
        let mut left = MAX_FOLDERS_ASKED.min(self.at_once);
        for _ in 0..self.paging.levels {
            level.truncate(left);
            left -= level.len();
            let asked = level.drain(..).map(|prefix| {
                let ask = Ask { prefix, by_folder: true, ..Ask::default() };
                async move { self.source.page(&ask).await }
            });
            let pages = join_all(asked).await;
            level = pages.into_iter().filter_map(Result::ok).flat_map(|page| page.folders).collect();
            found.extend(level.iter().cloned());
            if level.is_empty() || found.len() >= self.at_once {
                break;
            }
        }
        found
    }

    /// Makes the chain of ranges that begin at some of these, spread evenly.
    fn begin_at(&mut self, mut pivots: Vec<Vec<u8>>, behind: Option<&[u8]>) {
        pivots.retain(|pivot| {
            pivot.starts_with(self.prefix) && behind.is_none_or(|key| self.order.is_behind(pivot, key))
        });
        pivots.sort_unstable();
        pivots.dedup();
        let wanted = self.at_once.min(pivots.len());
        for at in (0..wanted).rev() {
            self.split(0, pivots[at * pivots.len() / wanted].clone());
        }
    }

    /// Cuts the rest of a range in two.
    fn split(&mut self, left: usize, pivot: Vec<u8>) {
        let right = self.ranges.len();
        let (next, ceiling) = (self.ranges[left].next, self.ranges[left].ceiling.take());
        self.ranges.push(Range {
            pivot: Some(pivot),
            prev: Some(left),
            next,
            ceiling,
            patience: self.paging.split_after,
            ..Range::default()
        });
        if let Some(next) = next {
            self.ranges[next].prev = Some(right);
        }
        self.ranges[left].next = Some(right);
        self.waiting.push_back(right);
    }

    /// Takes in the page that a range holds, if its end is known, and those of ranges before that waited for it.
    async fn settle(&mut self, range: usize) -> Result<(), Stopped> {
        let mut turn = Some(range);
        while let Some(at) = turn {
            let next = self.ranges[at].next;
            if next.is_some_and(|next| self.ranges[next].is_unproven()) {
                return Ok(());
            }
            let Some(page) = self.ranges[at].held.take() else { return Ok(()) };
            turn = None;
            if self.ranges[at].is_unproven() {
                turn = self.ranges[at].prev;
                if !self.prove(at, &page)? {
                    continue;
                }
            }
            self.take_in(at, page).await?;
        }
        Ok(())
    }

    /// The first page of a range that begins behind a pivot: whether there is anything that is not the next range's. If
    /// not, the range is taken out of the chain.
    fn prove(&mut self, at: usize, page: &Page) -> Result<bool, StorageError> {
        let range = &self.ranges[at];
        let Some((key, _)) = page.objects.first() else {
            if page.token.is_some() {
                self.ranges[at].empty_pages += 1;
                self.go_on(at, page.token.clone())?;
            } else {
                self.take_out(at);
            }
            return Ok(false);
        };
        self.is_under_prefix(key)?;
        let is_heeded = range.pivot.as_ref().is_none_or(|pivot| self.order.may_be_behind(key, pivot));
        if !is_heeded {
            tracing::debug!(store = self.store, "the store does not heed start-after, so it is listed in one go");
            self.may_split = false;
        }
        // As long as both orders are possible, it must lie between its neighbours in both: else it might turn out later
        // that the chain is not in the store's order, and objects came twice.
        let next_first = range.next.and_then(|next| self.ranges[next].first.as_ref());
        let is_before_next = next_first.is_none_or(|first| self.order.is_behind(first, key));
        let prev_last = range.prev.and_then(|prev| self.ranges[prev].last.as_ref());
        let is_behind_prev = prev_last.is_none_or(|last| self.order.is_behind(key, last));
        if !is_heeded || !is_before_next || !is_behind_prev {
            self.take_out(at);
            return Ok(false);
        }
        let (first, pivot) = (key.clone(), range.pivot.clone());
        if let Some(prev) = range.prev {
            self.ranges[prev].ceiling = pivot;
            self.ranges[prev].patience = self.paging.split_after;
        }
        self.ranges[at].first = Some(first);
        Ok(true)
    }

    fn take_out(&mut self, at: usize) {
        let Range { prev, next, pivot, .. } = std::mem::take(&mut self.ranges[at]);
        if let Some(next) = next {
            self.ranges[next].prev = prev;
        }
        if let Some(prev) = prev {
            let prev = &mut self.ranges[prev];
            prev.next = next;
            prev.ceiling = pivot;
            // A guess that found nothing cost a request.
            prev.patience = (prev.patience * 2).min(MAX_PATIENCE);
        }
    }

    async fn take_in(&mut self, at: usize, page: Page) -> Result<(), Stopped> {
        let Page { objects, token, .. } = page;
        let has_keys = !objects.is_empty();
        let mut batch = Vec::with_capacity(objects.len());
        let mut is_met = false;
        for (key, facts) in objects {
            self.is_under_prefix(&key)?;
            let range = &self.ranges[at];
            if let Some(last) = &range.last
                && !self.order.allows(last, &key)
            {
                let (last, key) = (String::from_utf8_lossy(last), String::from_utf8_lossy(&key));
                return Err(self.error(&format!("the store lists {key:?} behind {last:?}, which is no order")).into());
            }
            let next_first = range.next.and_then(|next| self.ranges[next].first.as_ref());
            if next_first.is_some_and(|first| key == *first || self.order.is_behind(&key, first)) {
                is_met = true;
                break;
            }
            batch.push(Listed::of(self.store, &key, facts));
            self.ranges[at].last = Some(key);
        }
        self.sink.send(batch).await?;
        let range = &mut self.ranges[at];
        range.empty_pages = if has_keys { 0 } else { range.empty_pages + 1 };
        if is_met {
            return Ok(());
        }
        if token.is_some() {
            range.is_asked_again = false;
            range.pages += 1;
            self.go_on(at, token)?;
            self.split_if_idle(at);
            return Ok(());
        }
        let Some(next) = range.next else { return Ok(()) };
        // The store says that there is no more, and there is. Objects may have come or gone meanwhile; then the same
        // question has another answer now.
        if range.is_asked_again && !has_keys {
            let first = self.ranges[next].first.as_deref().unwrap_or_default();
            let what = format!("the store ends the list before {:?}, which it has", String::from_utf8_lossy(first));
            return Err(self.error(&what).into());
        }
        range.is_asked_again = true;
        range.token = None;
        self.waiting.push_back(at);
        Ok(())
    }

    fn is_under_prefix(&self, key: &[u8]) -> Result<(), StorageError> {
        if key.starts_with(self.prefix) {
            return Ok(());
        }
        Err(self.error(&format!("the store lists {:?}, which is elsewhere", String::from_utf8_lossy(key))))
    }

    /// Asks for a range's next page.
    fn go_on(&mut self, at: usize, token: Option<String>) -> Result<(), StorageError> {
        let range = &self.ranges[at];
        if range.token == token {
            return Err(self.error("the store gives the same continuation token again and again"));
        }
        if range.empty_pages > MAX_EMPTY_PAGES {
            return Err(self.error(&format!("the store gave {MAX_EMPTY_PAGES} pages without an object")));
        }
        self.ranges[at].token = token;
        self.waiting.push_back(at);
        Ok(())
    }

    /// Cuts the rest of a range in two where a request more can be sent, and the range has shown that it is large.
    fn split_if_idle(&mut self, at: usize) {
        let range = &self.ranges[at];
        let is_idle = self.fetches.len() + self.waiting.len() < self.at_once;
        if !self.may_split || !is_idle || range.pages < range.patience {
            return;
        }
        let next_first = range.next.and_then(|next| self.ranges[next].first.as_deref());
        let Some(last) = &range.last else { return };
        let pivot = between(self.prefix, last, range.ceiling.as_deref().or(next_first));
        self.ranges[at].pages = 0;
        if let Some(pivot) = pivot {
            self.split(at, pivot);
        }
    }
}
