//! What a run is doing, on stderr, where that is a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::text::{count, size};
use crate::inventory::reach::Progress;
use crate::report::Job;
use crate::run::Lake;
use crate::storage::ListProgress;

/// How often the line is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// A line that is drawn until [`Shown::end`].
#[derive(Debug)]
pub(super) struct Shown(Option<(ProgressBar, tokio::task::JoinHandle<()>)>);

/// Begins to show the lake's counters.
pub(super) fn start(lake: &Lake, job: Job) -> Shown {
    let (counters, listed) = (Arc::clone(&lake.hands.progress), Arc::clone(&lake.hands.listed));
    show(
        move || {
            if job == Job::Orphans { format!("{}  {}", listing(&listed), line(&counters)) } else { line(&counters) }
        },
    )
}

/// Begins to show how far listings are.
pub(super) fn of_listing(counters: &Arc<ListProgress>) -> Shown {
    let counters = Arc::clone(counters);
    show(move || listing(&counters))
}

fn listing(counters: &ListProgress) -> String {
    format!("listing  {} objects  {}", count(counters.objects()), size(counters.bytes()))
}

fn show(text: impl Fn() -> String + Send + 'static) -> Shown {
    if !std::io::stderr().is_terminal() {
        return Shown(None);
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let drawn = bar.clone();
    let task = tokio::spawn(async move {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            drawn.set_message(text());
            drawn.tick();
        }
    });
    Shown(Some((bar, task)))
}

fn line(progress: &Progress) -> String {
    let (read, all, bytes, entries) = progress.read();
    format!("reading manifests {}/{}  {}  {} entries", count(read), count(all), size(bytes), count(entries))
}

impl Shown {
    /// Takes the line away.
    pub(super) fn end(self) {
        if let Some((bar, task)) = self.0 {
            task.abort();
            bar.finish_and_clear();
        }
    }
}
