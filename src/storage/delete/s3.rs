//! Objects of a bucket of S3: many by one request, and singly where that does not settle one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use reqwest::StatusCode;

use super::list::{self, Answer, NoAnswer};
use super::pace::{Pace, Paces, Verdict, longer_each_time};
use super::{Deadline, Deleted, Failure, SINGLE, Settled, Told};
use crate::storage::fault::{Fault, Sense};
use crate::storage::signed::{self, Bucket};
use crate::storage::{Lent, Loan};

/// Requests for one thing, all told.
const ATTEMPTS: u32 = 8;

/// Answers for many objects that make no sense, before the objects are asked for singly.
const MAX_BROKEN: u32 = 2;

/// Before what failed is sent again; longer each time.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Deletes in a bucket.
#[derive(Clone)]
pub(super) struct Deleter {
    pub(super) bucket: Arc<Bucket>,
    pub(super) lent: Option<Lent>,
    pub(super) paces: Arc<Paces>,
    pub(super) deadline: Deadline,
}

/// Why a request did not do what it should.
struct Failed {
    sense: Sense,
    reason: String,
    came: Came,
}

/// What came back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// An answer of the store.
    Answer,
    /// Something that is none.
    Nonsense,
    Nothing,
}

impl Failed {
    fn answered(status: StatusCode, fault: &Fault) -> Self {
        let said = fault.words();
        let reason = if status.is_success() {
            format!("the store says success, and {said}")
        } else {
            format!("the store answers {status}: {said}")
        };
        Self { sense: fault.sense(Some(status)), reason, came: Came::Answer }
    }

    fn verdict(&self) -> Verdict {
        match self.sense {
            Sense::SlowDown => Verdict::SlowDown,
            Sense::Later => Verdict::Failed,
            // The store did its part.
            Sense::Gone | Sense::Denied | Sense::BadKeys | Sense::Unknown | Sense::Final => Verdict::Done,
        }
    }
}

/// What was sent, and what came back.
fn received(sent: Result<signed::Answer, String>) -> Result<signed::Answer, Failed> {
    let answer = sent.map_err(|reason| Failed { sense: Sense::Later, reason, came: Came::Nothing })?;
    if answer.status.is_success() {
        return Ok(answer);
    }
    Err(Failed::answered(answer.status, &Fault::read(&answer.body).unwrap_or_default()))
}

fn read_many(sent: Result<signed::Answer, String>) -> Result<Answer, Failed> {
    let answer = received(sent)?;
    list::read(&answer.body).map_err(|none| match none {
        NoAnswer::Fault(fault) => Failed::answered(answer.status, &fault),
        NoAnswer::Broken(reason) => Failed { sense: Sense::Later, reason, came: Came::Nonsense },
    })
}

fn read_one(sent: Result<signed::Answer, String>) -> Result<Deleted, Failed> {
    let status = sent.as_ref().ok().map(|answer| answer.status);
    let is_empty = sent.as_ref().is_ok_and(|answer| answer.body.is_empty());
    match received(sent) {
        Ok(answer) => match Fault::read(&answer.body) {
            Some(fault) => Err(Failed::answered(answer.status, &fault)),
            None => Ok(Deleted::Deleted),
        },
        // Not one that says there is no such bucket, or comes from somewhere on the way.
        Err(failed) if failed.sense == Sense::Gone || (status == Some(StatusCode::NOT_FOUND) && is_empty) => {
            Ok(Deleted::AlreadyGone)
        }
        Err(failed) => Err(failed),
    }
}

/// How often a thing was asked for, and with which keys.
struct Attempts<'a> {
    pace: &'a Pace,
    lent: Option<&'a Lent>,
    loan: Option<Loan>,
    count: u32,
}

impl Attempts<'_> {
    /// Right before a request.
    fn begin(&mut self) {
        self.loan = self.loan.take().or_else(|| self.lent.map(Loan::of));
    }

    /// Whether there are other keys since ours were refused. Once.
    async fn has_new_keys(&mut self, reason: &str) -> bool {
        let Some(loan) = &mut self.loan else { return false };
        loan.is_worth_another(&Failure::denied(reason).of("")).await
    }

    /// Waits before another request, if there is to be one.
    async fn may_go_on(&mut self, is_slow_down: bool, reason: &str) -> bool {
        self.count += 1;
        if self.count >= ATTEMPTS || !self.pace.may_retry() {
            return false;
        }
        tracing::debug!(attempt = self.count, reason, "a delete is sent again");
        // After a refusal all who use the store wait for their turn.
        if !is_slow_down {
            tokio::time::sleep(longer_each_time(PAUSE, self.count - 1)).await;
        }
        true
    }

    fn failure(&self, reason: &str) -> Failure {
        match self.count {
            0 | 1 => Failure::unavailable(reason),
            count => Failure::unavailable(&format!("{reason} (asked {count} times)")),
        }
    }
}

/// Keys that an answer for many did not settle.
#[derive(Default)]
struct Unsettled {
    /// It says nothing of them.
    unnamed: Vec<usize>,
    denied: Vec<(usize, String)>,
    later: Vec<(usize, String)>,
    is_slow_down: bool,
}

impl Deleter {
    /// Deletes a batch, until the deadline; what was told until then is kept.
    pub(super) async fn delete(self, mut told: Told) -> Told {
        let _in_time = tokio::time::timeout_at(self.deadline.at, self.all(&mut told)).await;
        if let Some(lent) = &self.lent {
            told.redact(lent);
        }
        told
    }

    async fn all(&self, told: &mut Told) {
        let has_many = self.bucket.has_bulk && !self.paces.has_no_many.load(Ordering::Relaxed);
        let (many, mut one): (Vec<usize>, Vec<usize>) =
            (0..told.len()).partition(|at| has_many && list::can_name(told.key(*at)));
        one.extend(if many.len() > 1 { self.many(told, many).await } else { many });
        let keys: Vec<(usize, String)> = one.into_iter().map(|at| (at, told.key(at).to_owned())).collect();
        let mut singles =
            stream::iter(keys).map(|(at, key)| async move { (at, self.one(&key).await) }).buffer_unordered(SINGLE);
        while let Some((at, settled)) = singles.next().await {
            told.settle(at, settled);
        }
    }

    fn attempts<'a>(&'a self, pace: &'a Pace) -> Attempts<'a> {
        Attempts { pace, lent: self.lent.as_ref(), loan: None, count: 0 }
    }

    /// Deletes these by requests that name all that are not settled yet; gives back those to be asked for singly.
    async fn many(&self, told: &mut Told, mut open: Vec<usize>) -> Vec<usize> {
        let mut attempts = self.attempts(&self.paces.many);
        let (mut unnamed, mut broken) = (Vec::new(), 0);
        while !open.is_empty() {
            let body = Bytes::from(list::write(open.iter().map(|at| told.key(*at))));
            let turn = self.paces.many.turn().await;
            if self.deadline.is_over() {
                return Vec::new();
            }
            attempts.begin();
            let failed = match read_many(self.bucket.delete_many(body).await) {
                Ok(answer) => {
                    let mut unsettled = take_in(told, &open, &answer);
                    turn.ended(if unsettled.is_slow_down { Verdict::SlowDown } else { Verdict::Done });
                    unnamed.append(&mut unsettled.unnamed);
                    open = again(told, &mut attempts, unsettled).await;
                    continue;
                }
                Err(failed) => failed,
            };
            turn.ended(failed.verdict());
            let Failed { sense, reason, came } = failed;
            told.last = Some(reason.clone());
            broken += u32::from(came == Came::Nonsense);
            match sense {
                Sense::Denied | Sense::BadKeys if attempts.has_new_keys(&reason).await => {}
                Sense::BadKeys => {
                    told.fail(&open, &Failure::denied(&reason));
                    return unnamed;
                }
                Sense::Unknown => {
                    tracing::debug!(reason, "the store does not delete many objects by one request");
                    self.paces.has_no_many.store(true, Ordering::Relaxed);
                    break;
                }
                // Because of one object, perhaps.
                Sense::Denied | Sense::Final | Sense::Gone => break,
                Sense::SlowDown | Sense::Later => {
                    if broken >= MAX_BROKEN {
                        break;
                    }
                    if !attempts.may_go_on(sense == Sense::SlowDown, &reason).await {
                        if came == Came::Answer && sense == Sense::Later {
                            break;
                        }
                        told.fail(&open, &attempts.failure(&reason));
                        return unnamed;
                    }
                }
            }
        }
        unnamed.append(&mut open);
        unnamed
    }

    async fn one(&self, key: &str) -> Settled {
        let mut attempts = self.attempts(&self.paces.one);
        loop {
            let turn = self.paces.one.turn().await;
            if self.deadline.is_over() {
                return Err(Failure::too_late(None));
            }
            attempts.begin();
            let read = read_one(self.bucket.delete_one(key).await);
            turn.ended(read.as_ref().map_or_else(Failed::verdict, |_| Verdict::Done));
            let Failed { sense, reason, .. } = match read {
                Ok(deleted) => return Ok(deleted),
                Err(failed) => failed,
            };
            match sense {
                Sense::Denied | Sense::BadKeys if attempts.has_new_keys(&reason).await => {}
                Sense::Denied | Sense::BadKeys => return Err(Failure::denied(&reason)),
                Sense::SlowDown | Sense::Later => {
                    if !attempts.may_go_on(sense == Sense::SlowDown, &reason).await {
                        return Err(attempts.failure(&reason));
                    }
                }
                Sense::Gone | Sense::Unknown | Sense::Final => return Err(Failure::unavailable(&reason)),
            }
        }
    }
}

/// Settles what an answer says for sure: its word for a key, byte for byte, and an error before a success.
fn take_in(told: &mut Told, open: &[usize], answer: &Answer) -> Unsettled {
    let asked: HashSet<&str> = open.iter().map(|at| told.key(*at)).collect();
    let strangers: Vec<&String> =
        answer.deleted.iter().chain(answer.failed.keys()).filter(|key| !asked.contains(key.as_str())).collect();
    if let Some(first) = strangers.first() {
        tracing::warn!(count = strangers.len(), first, "the store tells of objects that it was not asked to delete");
    }
    let mut unsettled = Unsettled::default();
    for at in open.iter().copied() {
        let Some(fault) = answer.failed.get(told.key(at)) else {
            if answer.deleted.contains(told.key(at)) {
                told.settle(at, Ok(Deleted::Deleted));
            } else {
                unsettled.unnamed.push(at);
            }
            continue;
        };
        let reason = format!("the store says {}", fault.words());
        let sense = fault.sense(None);
        unsettled.is_slow_down |= sense == Sense::SlowDown;
        match sense {
            Sense::Gone => told.settle(at, Ok(Deleted::AlreadyGone)),
            Sense::SlowDown | Sense::Later => unsettled.later.push((at, reason)),
            Sense::Denied | Sense::BadKeys => unsettled.denied.push((at, reason)),
            Sense::Unknown | Sense::Final if fault.code.is_empty() => unsettled.unnamed.push(at),
            Sense::Unknown | Sense::Final => told.settle(at, Err(Failure::unavailable(&reason))),
        }
    }
    unsettled
}

/// Of the keys that were refused and those that failed for now, those that are worth another request; the others have
/// failed.
async fn again(told: &mut Told, attempts: &mut Attempts<'_>, unsettled: Unsettled) -> Vec<usize> {
    let Unsettled { denied, later, is_slow_down, .. } = unsettled;
    let mut open = Vec::new();
    if let Some((_, reason)) = denied.first() {
        if attempts.has_new_keys(reason).await {
            open.extend(denied.into_iter().map(|(at, _)| at));
        } else {
            for (at, reason) in denied {
                told.settle(at, Err(Failure::denied(&reason)));
            }
        }
    }
    if let Some((_, reason)) = later.first() {
        told.last = Some(reason.clone());
        if attempts.may_go_on(is_slow_down, reason).await {
            open.extend(later.into_iter().map(|(at, _)| at));
        } else {
            for (at, reason) in later {
                told.settle(at, Err(attempts.failure(&reason)));
            }
        }
    }
    open
}
