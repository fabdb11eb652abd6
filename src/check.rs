//! `icewarden check`: what works and what is allowed, found out by asking.
//!
//! It takes no lease, and writes nothing to the state but what opening it does. Catalogs and stores are asked side by
//! side, each for a limited time, so that a dead one hides nothing of the others. Whether a table may be worked on is
//! judged by the functions that a run uses.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::config::{Config, Problem};
use crate::model::TableName;
use crate::state::{Plans, State};
use crate::storage::Storage;

mod catalogs;
mod stores;
mod tables;

/// To open the state database, for which other processes may have to be waited.
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// What is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckRequest {
    /// Write and delete a scratch object in each store.
    pub write: bool,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// The configuration file.
    Config,
    /// The state database.
    State,
    /// The plans store.
    Plans,
    /// A catalog: it answers, lists and loads.
    Catalog,
    /// Whether a catalog takes commits.
    Commit,
    /// A bucket or folder with tables: it is listed, read and, where asked for, written.
    Store,
    /// The clock of a store.
    Clock,
    /// Whether a bucket keeps the versions of deleted objects.
    Versioning,
    /// One table that no run works on.
    Table,
    /// All tables.
    Tables,
}

impl About {
    /// One word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::State => "state",
            Self::Plans => "plans",
            Self::Catalog => "catalog",
            Self::Commit => "commit",
            Self::Store => "store",
            Self::Clock => "clock",
            Self::Versioning => "versioning",
            Self::Table => "table",
            Self::Tables => "tables",
        }
    }
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It works, or nothing speaks against it.
    Ok,
    /// It works, but somebody should know this.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckItem {
    /// What it is about.
    pub about: About,
    /// Which one; empty where there is only one.
    pub name: String,
    /// How it is.
    pub status: Status,
    /// In words.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// How long it took to find out, in milliseconds.
    pub took_ms: Option<u64>,
    /// Numbers, by their names.
    pub counts: BTreeMap<&'static str, u64>,
}

impl CheckItem {
    fn new(about: About, name: impl Into<String>, status: Status, text: impl Into<String>) -> Self {
        let counts = BTreeMap::new();
        Self { about, name: name.into(), status, text: text.into(), advice: None, took_ms: None, counts }
    }

    fn ok(about: About, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(about, name, Status::Ok, text)
    }

    fn warn(about: About, name: impl Into<String>, text: impl Into<String>, advice: &str) -> Self {
        Self { advice: Some(advice.to_owned()), ..Self::new(about, name, Status::Warn, text) }
    }

    fn fail(about: About, name: impl Into<String>, text: impl Into<String>, advice: &str) -> Self {
        Self { advice: Some(advice.to_owned()), ..Self::new(about, name, Status::Fail, text) }
    }

    fn took(mut self, since_boot_ms: u64) -> Self {
        self.took_ms = Some(Clock::boot_ms().saturating_sub(since_boot_ms));
        self
    }

    fn counting(mut self, counts: &[(&'static str, usize)]) -> Self {
        self.counts.extend(counts.iter().map(|(name, count)| (*name, *count as u64)));
        self
    }
}

/// What the configuration alone tells.
pub fn offline(config: &Config, warnings: &[Problem]) -> Vec<CheckItem> {
    let (catalogs, policies) = (config.catalogs.len(), config.policies.len());
    let text = format!("{}: {}, {}", config.file, some(catalogs, "catalog", "s"), some_policies(policies));
    let good = CheckItem::ok(About::Config, "", text).counting(&[("catalogs", catalogs), ("policies", policies)]);
    let mut items = vec![good];
    items.extend(warnings.iter().map(of_problem));
    let without: Vec<String> =
        config.keys_without_effect().into_iter().map(|(key, at)| format!("{key} ({at})")).collect();
    if !without.is_empty() {
        let text = format!("no effect in this version: {}", without.join(", "));
        items.push(CheckItem::warn(
            About::Config,
            "",
            text,
            "nothing need be done; they are read, checked, and passed over",
        ));
    }
    items
}

/// Asks everything that the configuration names.
pub async fn online(config: &Config, warnings: &[Problem], request: CheckRequest) -> Vec<CheckItem> {
    let storage = Storage::new(config.locations.clone(), config.storage.clone(), config.limits.concurrency);
    let opened = join_all(config.catalogs.iter().map(|catalog| catalogs::open(catalog, &storage)));
    let ((state, of_state), mut lake) = tokio::join!(remembered(config, &storage, request), opened);
    let loaded = join_all(lake.iter_mut().map(|catalog| catalog.load_tables(state.as_ref(), storage.rules())));
    loaded.await;
    let now = Clock::system();
    let found = tables::judge(config, &storage, state.as_ref(), &lake, now).await;
    let of_stores = stores::all(config, &storage, &lake, request).await;

    let mut items = offline(config, warnings);
    items.extend(unmatched(config, &lake));
    items.extend(of_state);
    items.extend(lake.iter().flat_map(catalogs::Seen::items));
    items.extend(of_stores);
    items.extend(found);
    items
}

fn of_problem(problem: &Problem) -> CheckItem {
    let text = format!("{}:{} {}", problem.file, problem.at, problem.message);
    CheckItem { advice: problem.hint.clone(), ..CheckItem::new(About::Config, "", Status::Warn, text) }
}

/// Patterns that match no table; only where all tables are known.
fn unmatched(config: &Config, lake: &[catalogs::Seen]) -> Vec<CheckItem> {
    let mut names: Vec<TableName> = Vec::new();
    for catalog in lake {
        let Ok(listed) = &catalog.listed else { return Vec::new() };
        names.extend(listed.iter().map(|table| table.name.clone()));
    }
    config.unmatched_patterns(&names).iter().map(of_problem).collect()
}

/// The state database, if it can be used, and what is to be said of it and of the plans store.
async fn remembered(config: &Config, storage: &Storage, request: CheckRequest) -> (Option<State>, Vec<CheckItem>) {
    let began = Clock::boot_ms();
    let state = match timeout(STATE_LIMIT, State::open(&config.state.database)).await {
        Ok(opened) => opened.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer in {} s: another process may hold it", STATE_LIMIT.as_secs())),
    };
    match state {
        Ok(state) => {
            let text = format!("{}: may be read and written", state.database());
            let mut items = vec![CheckItem::ok(About::State, "", text).took(began)];
            // One that fails now is told by the first table.
            if let Ok(Some((_, skew))) = state.clock_skew().await {
                items.push(stores::of_clock("state database", Some(skew)));
            }
            items.push(plans(config, storage, &state, request).await);
            (Some(state), items)
        }
        Err(reason) => {
            let advice = "correct [state] database, or make it usable for this user";
            let of_state = CheckItem::fail(About::State, "", reason, advice).took(began);
            // As when a run begins: what is made where it is missing comes after the database.
            let of_plans = CheckItem::warn(About::Plans, "", "not tried", "mend the state database first");
            (None, vec![of_state, of_plans])
        }
    }
}

async fn plans(config: &Config, storage: &Storage, state: &State, request: CheckRequest) -> CheckItem {
    let began = Clock::boot_ms();
    let location = config.state.plans.as_str();
    let advice = "correct [state] plans, or make it usable for this user";
    let fail = |reason: String| CheckItem::fail(About::Plans, "", reason, advice).took(began);
    let plans = match Plans::open(storage.clone(), location) {
        Ok(plans) => plans,
        Err(error) => return fail(error.to_string()),
    };
    // As opening a lake does: keeps and holds are read.
    match timeout(STATE_LIMIT, plans.restore(state)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return fail(error.to_string()),
        Err(_) => return fail(format!("{location}: no answer in {} s", STATE_LIMIT.as_secs())),
    }
    let root = match storage.rules().root(location) {
        Ok(root) => root,
        Err(error) => return fail(error.to_string()),
    };
    let of_store = stores::used(storage, &root, &root, request).await;
    CheckItem { about: About::Plans, name: String::new(), text: format!("{location}: {}", of_store.text), ..of_store }
}

/// `2 tables`.
fn some(count: usize, noun: &str, plural: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}

fn some_policies(count: usize) -> String {
    if count == 1 { "1 policy".to_owned() } else { format!("{count} policies") }
}
