//! Tables that a run would skip, refuse or fail on, judged by the functions that runs use.

use std::collections::BTreeSet;

use super::{About, CheckItem, Status, catalogs, some};
use crate::catalog::LoadedTable;
use crate::config::Config;
use crate::error::Error;
use crate::inventory::world::{SurveyError, World};
use crate::model::{TableName, Timestamp};
use crate::run;
use crate::state::{HoldScope, State};
use crate::storage::Storage;
use crate::sweep::{self, Obstacle};

/// What ends a hold.
const RELEASE: &str = "icewarden hold list; icewarden hold release";

/// A line for each table that no run would change now, and one for all.
pub(super) async fn judge(
    config: &Config,
    storage: &Storage,
    state: Option<&State>,
    lake: &[catalogs::Seen],
    now: Timestamp,
) -> Vec<CheckItem> {
    let asked = lake.iter().flat_map(|catalog| &catalog.tables);
    let loaded: BTreeSet<&TableName> =
        asked.clone().filter(|table| table.loaded.is_ok()).map(|table| &table.name).collect();
    let (world, blind) = match world(lake) {
        Ok(world) => (Some(world), None),
        Err(error) => (None, Some(error)),
    };
    let mut items = wide_holds(state).await;
    let count = items.len();
    for table in asked.clone() {
        let found = match &table.loaded {
            Err(error) => Some(Found::Fails(error.to_string())),
            Ok(table) => match judge_one(config, storage, world.as_ref(), &loaded, table, now) {
                None => refused(state, table, now).await,
                found => found,
            },
        };
        items.extend(found.map(|found| found.item(&table.name)));
    }
    let of_all = all(asked.count(), &items[count..], blind);
    items.push(of_all);
    items
}

/// Holds on more than one table, each told once.
async fn wide_holds(state: Option<&State>) -> Vec<CheckItem> {
    let Some(state) = state else { return Vec::new() };
    match state.holds().await {
        Ok(holds) => holds
            .into_iter()
            .filter(|hold| !matches!(hold.scope, HoldScope::Table(_)))
            .map(|hold| {
                let text = format!("{} is held by {}: {}", hold.scope, hold.by, hold.reason);
                CheckItem::warn(About::Tables, "", text, RELEASE)
            })
            .collect(),
        Err(error) => vec![CheckItem::fail(About::State, "", error.to_string(), "correct [state] database")],
    }
}

/// All tables with their folders, as a run sees them.
fn world(lake: &[catalogs::Seen]) -> Result<World, SurveyError> {
    let mut world = World::default();
    for seen in lake {
        match &seen.listed {
            Ok(listed) => {
                world.tables.extend(listed.iter().cloned());
                world.roots.extend(seen.tables.iter().filter_map(|table| table.roots.clone()));
            }
            Err(error) => {
                let error = crate::catalog::CatalogError::NotOpen {
                    catalog: seen.catalog.name().to_owned(),
                    reason: error.to_string(),
                };
                world.add_unlisted(seen.catalog.name(), error, seen.known.clone(), seen.was_listed)?;
            }
        }
    }
    Ok(world)
}

/// Why no run would change a table now.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It is not ours to touch, or somebody said no.
    Passed(&'static str, String, Option<&'static str>),
    /// Something is broken.
    Fails(String),
}

impl Found {
    fn item(self, table: &TableName) -> CheckItem {
        let (status, text, advice) = match self {
            Self::Passed(word, why, advice) => (Status::Warn, format!("{word}: {why}"), advice),
            Self::Fails(why) => (Status::Fail, why, None),
        };
        let advice = advice.map(str::to_owned);
        CheckItem { advice, ..CheckItem::new(About::Table, table.full(), status, text) }
    }
}

fn judge_one(
    config: &Config,
    storage: &Storage,
    world: Option<&World>,
    loaded: &BTreeSet<&TableName>,
    table: &LoadedTable,
    now: Timestamp,
) -> Option<Found> {
    // Without all tables nothing is known of folders that are shared; the line for all says so.
    let nobody = World::default();
    let place = match sweep::eligible(config, storage.rules(), table, world.unwrap_or(&nobody)) {
        Err(location) => return Some(Found::Fails(Error::from(location).to_string())),
        Ok(Err(Obstacle::Encrypted)) => return Some(Found::Fails(Error::from(sweep::encrypted(table)).to_string())),
        Ok(Err(obstacle)) => return Some(Found::Passed("skipped", obstacle.to_string(), None)),
        Ok(Ok(place)) => place,
    };
    if let Some(neighbour) = place.neighbours.iter().find(|neighbour| !loaded.contains(neighbour)) {
        return Some(Found::Fails(format!("its folder lies in that of {neighbour}, which cannot be loaded")));
    }
    let values = run::values_of(config, table, now);
    values.err().map(|error| Found::Fails(Error::from(error).to_string()))
}

/// What the state has against changing a table.
async fn refused(state: Option<&State>, table: &LoadedTable, now: Timestamp) -> Option<Found> {
    let (state, uuid) = (state?, table.state.uuid?);
    match state.held(&table.name).await {
        Ok(Some(hold)) if matches!(hold.scope, HoldScope::Table(_)) => {
            return Some(Found::Passed("held", format!("by {}: {}", hold.by, hold.reason), Some(RELEASE)));
        }
        // One on more than this table is told once.
        Ok(_) => {}
        Err(error) => return Some(Found::Fails(error.to_string())),
    }
    match sweep::unplanned_removal(state, uuid, now).await {
        Ok(Some(finding)) => {
            let why = format!("finding {finding} is open: a commit removed what it should not have");
            Some(Found::Passed("refused", why, Some("icewarden findings")))
        }
        Ok(None) => None,
        Err(error) => Some(Found::Fails(error.to_string())),
    }
}

fn all(asked: usize, items: &[CheckItem], blind: Option<SurveyError>) -> CheckItem {
    let of = |status: Status| items.iter().filter(|item| item.status == status).count();
    let (passed, failed) = (of(Status::Warn), of(Status::Fail));
    let fine = asked - passed - failed;
    let counts = [("tables", asked), ("workable", fine), ("passed_over", passed), ("failed", failed)];
    if let Some(error) = blind {
        let advice = "mend that catalog first, or take it out of the configuration";
        return CheckItem::fail(About::Tables, "", error.to_string(), advice).counting(&counts);
    }
    let text = format!("{fine} of {} can be worked on", some(asked, "table", "s"));
    CheckItem::ok(About::Tables, "", text).counting(&counts)
}
