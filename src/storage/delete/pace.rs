//! How fast a store takes deletes: found out by asking a little more each time, and a good deal less when it says that
//! this was too much.
//!
//! A pace is a *window*: how many requests may be in flight. It doubles until the store first asks us to slow down; from
//! then on it grows by a small step (additive increase), and is cut to a part of itself at each further refusal
//! (multiplicative decrease). A window may be below one, since one request deletes a thousand objects: then there are
//! pauses between them. So from the first refusal on, requests also keep a distance, of a request's time by the window.
//!
//! All who use a store share its paces, also their budget of retries: each failed request takes one from it and each
//! that went well gives one back, so that a store which is down is not asked again and again by everybody.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Gate, Notify};
use tokio::time::{Instant, sleep_until};

/// Requests in flight at first.
const FIRST_WINDOW: f64 = 4.0;

/// The least window: one request in the time of twenty.
const LEAST_WINDOW: f64 = 0.05;

/// What is left of a window after a refusal.
const CUT: f64 = 0.8;

/// What is left of it while nothing went well since the last one, and at the first of all.
const DEEP_CUT: f64 = 0.5;

/// What a window grows by in a round, as a part of the one that was too much.
const STEP: f64 = 0.02;

/// The same above that one: perhaps the store gives more by now.
const FREE_STEP: f64 = 0.2;

/// After a refusal nobody asks for this long; longer each time while nothing goes well.
const PAUSE: Duration = Duration::from_millis(50);

/// At most.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Failed requests in a row, of all who use the store, that are sent again.
const BUDGET: u32 = 64;

/// How long a request takes, before one went well.
const UNKNOWN_TIME: Duration = Duration::from_millis(100);

/// Of one store: requests for many objects and for one are different things to it.
#[derive(Debug)]
pub(in crate::storage) struct Paces {
    pub(super) many: Pace,
    pub(super) one: Pace,
    /// The store was found not to know requests for many.
    pub(super) has_no_many: AtomicBool,
}

impl Paces {
    pub(in crate::storage) fn new(most: usize) -> Self {
        Self { many: Pace::new(most), one: Pace::new(most), has_no_many: AtomicBool::new(false) }
    }
}

#[derive(Debug)]
pub(super) struct Pace {
    state: Mutex<State>,
    /// Who waits for the next turn: first come, first served.
    gate: Gate<()>,
    ended: Notify,
}

#[derive(Debug)]
struct State {
    most: f64,
    window: f64,
    in_flight: usize,
    /// The window that was too much, once there was one.
    too_much: Option<f64>,
    /// Refusals since something went well.
    refused: u32,
    cut_at: Option<Instant>,
    /// Not before.
    next: Option<Instant>,
    /// How long a request takes.
    takes: Option<Duration>,
    budget: u32,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    SlowDown,
    Failed,
}

/// Leave to send one request.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    began: Instant,
}

impl Pace {
    fn new(most: usize) -> Self {
        Self { state: Mutex::new(State::new(most)), gate: Gate::new(()), ended: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let _first = self.gate.lock().await;
        loop {
            let now = Instant::now();
            let wait = self.state().begin(now);
            match wait {
                Ok(()) => return Turn { pace: self, began: now },
                Err(Wait::Until(next)) => sleep_until(next).await,
                Err(Wait::ForAnEnd) => self.ended.notified().await,
            }
        }
    }

    /// Whether what failed may be sent again.
    pub(super) fn may_retry(&self) -> bool {
        self.state().budget > 0
    }
}

/// Why there is no turn yet.
#[derive(Debug, PartialEq, Eq)]
enum Wait {
    ForAnEnd,
    Until(Instant),
}

impl State {
    fn new(most: usize) -> Self {
        let most = most.max(1) as f64;
        Self {
            most,
            window: FIRST_WINDOW.min(most),
            in_flight: 0,
            too_much: None,
            refused: 0,
            cut_at: None,
            next: None,
            takes: None,
            budget: BUDGET,
        }
    }

    fn begin(&mut self, now: Instant) -> Result<(), Wait> {
        if self.in_flight as f64 >= self.window.ceil() {
            return Err(Wait::ForAnEnd);
        }
        if let Some(next) = self.next.filter(|next| *next > now) {
            return Err(Wait::Until(next));
        }
        self.in_flight += 1;
        // Where the store was found to have a limit, requests keep a distance.
        self.next = self.too_much.map(|_| {
            let takes = self.takes.unwrap_or(UNKNOWN_TIME);
            now + takes.div_f64(self.window).min(MAX_PAUSE)
        });
        Ok(())
    }

    fn went_well(&mut self, took: Duration) {
        self.takes = Some(self.takes.map_or(took, |before| before.mul_f64(0.8) + took.mul_f64(0.2)));
        self.budget = (self.budget + 1).min(BUDGET);
        self.refused = 0;
        // What is not used has not been tried.
        if (self.in_flight as f64) < self.window / 2.0 {
            return;
        }
        let step = match self.too_much {
            None => 1.0,
            Some(limit) if self.window < limit => STEP * limit / self.window.max(1.0),
            Some(limit) => FREE_STEP * limit / self.window.max(1.0),
        };
        self.window = (self.window + step).min(self.most);
    }

    fn was_too_much(&mut self, began: Instant, now: Instant) {
        self.budget = self.budget.saturating_sub(1);
        // Of those in flight together the first tells it all.
        if self.cut_at.is_some_and(|cut_at| began <= cut_at) {
            return;
        }
        let is_deep = self.too_much.is_none() || self.refused > 0;
        self.too_much = Some(self.window);
        self.window = (self.window * if is_deep { DEEP_CUT } else { CUT }).max(LEAST_WINDOW);
        let next = now + longer_each_time(PAUSE, self.refused);
        self.next = Some(self.next.map_or(next, |before| before.max(next)));
        self.refused += 1;
        self.cut_at = Some(now);
    }
}

impl Turn<'_> {
    /// Tells what became of the request.
    pub(super) fn ended(self, verdict: Verdict) {
        let now = Instant::now();
        let mut state = self.pace.state();
        match verdict {
            Verdict::Done => state.went_well(now.saturating_duration_since(self.began)),
            Verdict::SlowDown => state.was_too_much(self.began, now),
            Verdict::Failed => state.budget = state.budget.saturating_sub(1),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pace.state().in_flight -= 1;
        self.pace.ended.notify_one();
    }
}

/// Twice as long each time, and never at the same time as all others.
pub(super) fn longer_each_time(first: Duration, times: u32) -> Duration {
    let longest = first.saturating_mul(1 << times.min(10)).min(MAX_PAUSE);
    let chance = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
    longest.mul_f64(0.5 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const TAKES: Duration = Duration::from_millis(100);

    /// A store that takes this long, asked by one after another.
    struct Asked {
        state: State,
        now: Instant,
    }

    impl Asked {
        fn new(most: usize) -> Self {
            Self { state: State::new(most), now: Instant::now() }
        }

        fn send(&mut self, verdict: Verdict, times: usize) {
            for _ in 0..times {
                if let Err(wait) = self.state.begin(self.now) {
                    let Wait::Until(next) = wait else { panic!("nothing is in flight") };
                    self.now = next;
                    self.state.begin(next).unwrap();
                }
                let began = self.now;
                self.now += TAKES;
                match verdict {
                    Verdict::Done => self.state.went_well(TAKES),
                    Verdict::SlowDown => self.state.was_too_much(began, self.now),
                    Verdict::Failed => unreachable!(),
                }
                self.state.in_flight -= 1;
            }
        }

        #[track_caller]
        fn assert_window(&self, about: f64) {
            assert!((self.state.window / about - 1.0).abs() < 0.05, "{} is not {about}", self.state.window);
        }
    }

    #[test]
    fn a_window_doubles_is_cut_and_grows_again_by_small_steps() {
        let mut asked = Asked::new(64);
        for _ in 0..4 {
            asked.state.begin(asked.now).unwrap();
        }
        assert_eq!(asked.state.begin(asked.now), Err(Wait::ForAnEnd));
        for _ in 0..4 {
            asked.state.went_well(TAKES);
        }
        asked.assert_window(8.0);
        asked.state.in_flight = 0;

        asked.send(Verdict::SlowDown, 1);
        asked.assert_window(4.0);
        asked.send(Verdict::SlowDown, 2);
        asked.assert_window(1.0);
        asked.send(Verdict::Done, 1);
        assert!(asked.state.window > 1.0 && asked.state.window < 1.1, "{}", asked.state.window);
        let before = asked.state.window;
        asked.send(Verdict::SlowDown, 1);
        asked.assert_window(before * CUT);
        // While all is refused it goes down to the least, and not further.
        asked.send(Verdict::SlowDown, 20);
        asked.assert_window(LEAST_WINDOW);
        // When all goes well it comes back, as far as it is used.
        asked.send(Verdict::Done, 20_000);
        asked.assert_window(2.0);
    }

    #[test]
    fn requests_that_were_in_flight_together_cut_once_and_then_nobody_asks_for_a_while() {
        let mut asked = Asked::new(2);
        let began = asked.now;
        asked.state.begin(began).unwrap();
        asked.state.begin(began).unwrap();
        asked.state.was_too_much(began, began + TAKES);
        asked.state.was_too_much(began, began + TAKES * 2);
        asked.assert_window(1.0);
        asked.state.in_flight = 0;
        let Err(Wait::Until(next)) = asked.state.begin(began + TAKES) else { panic!("right after a refusal") };
        assert!(next >= began + TAKES + PAUSE / 2);
        assert_eq!(asked.state.begin(next), Ok(()));
    }

    #[test]
    fn below_one_request_there_are_pauses_between_them() {
        let mut asked = Asked::new(1);
        asked.send(Verdict::SlowDown, 2);
        asked.assert_window(0.25);
        asked.send(Verdict::Done, 1);
        let began = asked.now;
        asked.send(Verdict::Done, 10);
        let each = (asked.now - began) / 10;
        assert!(each > TAKES * 3 && each < TAKES * 4, "{each:?}");
    }

    #[test]
    fn the_budget_of_retries_runs_out_where_nothing_goes_well() {
        let pace = Pace::new(8);
        let end = |verdict: Verdict| pace.turn().now_or_never().unwrap().ended(verdict);
        (1..BUDGET).for_each(|_| end(Verdict::Failed));
        assert!(pace.may_retry());
        end(Verdict::Failed);
        end(Verdict::Failed);
        assert!(!pace.may_retry());
        end(Verdict::Done);
        assert!(pace.may_retry());
        drop(pace.turn().now_or_never().unwrap());
        assert_eq!(pace.state().in_flight, 0, "a turn that nobody told the end of is over too");
    }
}
