//! `storage`: what the tables' folders hold, by listing them. Nothing is judged here: what no snapshot uses counts too.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::print;
use super::progress;
use super::text::{count, counted, left, minute, right, size, table};
use crate::catalog::ListedTable;
use crate::config::Pattern;
use crate::inventory::world::World;
use crate::model::roots::roots_of;
use crate::model::{ObjectFacts, Root, TableName, TableRoots, Timestamp};
use crate::plan::roots::{Place, place};
use crate::run::{Lake, RunError};
use crate::storage::list::outermost;
use crate::storage::{ListProgress, Listed, Storage, StorageError};

/// Tables listed at once. Each listing sends many requests at once itself.
const TABLES_IN_FLIGHT: usize = 4;

/// Keys that cannot be represented, told by name for each folder.
const EXAMPLES: usize = 5;

/// A table's folders.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line {
    table: TableName,
    uuid: Option<Uuid>,
    /// All folders together, as far as they could be listed.
    #[serde(flatten)]
    total: Held,
    folders: Vec<Folder>,
    /// Why it was not listed: its folders are not its alone.
    skipped: Option<String>,
    /// What could not be listed or loaded.
    errors: Vec<String>,
}

/// A folder that holds files of a table and lies in no other folder of it.
#[derive(Debug, Serialize, JsonSchema)]
struct Folder {
    location: String,
    #[serde(flatten)]
    held: Held,
    /// Some of the objects that cannot be represented.
    unrepresentable_examples: Vec<Example>,
}

/// What a listing adds up to.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Held {
    objects: u64,
    bytes: u64,
    /// The store's time of the oldest object.
    oldest: Option<Timestamp>,
    newest: Option<Timestamp>,
    /// Objects without a time.
    without_time: u64,
    /// Objects whose key cannot be asked for byte for byte; they are among `objects`, and no job deletes them.
    unrepresentable: u64,
    /// Objects in folders of other tables that lie in there; they are counted nowhere else here.
    of_other_tables: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Example {
    location: String,
    why: String,
}

impl Held {
    fn add(&mut self, facts: &ObjectFacts) {
        let one = Self {
            objects: 1,
            bytes: facts.size,
            oldest: facts.modified,
            newest: facts.modified,
            without_time: u64::from(facts.modified.is_none()),
            ..Self::default()
        };
        self.merge(&one);
    }

    fn merge(&mut self, other: &Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.newest = self.newest.max(other.newest);
        self.without_time += other.without_time;
        self.unrepresentable += other.unrepresentable;
        self.of_other_tables += other.of_other_tables;
    }
}

/// Lists the folders of the tables that match.
pub(super) async fn list(lake: &Lake, patterns: &[Pattern], json: bool) -> Result<u8, RunError> {
    let world = lake.survey().await?;
    world.unlisted.values().for_each(|error| print::error(error));
    let matching = |listed: &&ListedTable| {
        patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches_table(&listed.name))
    };
    let counters = Arc::new(ListProgress::default());
    let shown = progress::of_listing(&counters);
    let (world, counters) = (&*world, &counters);
    let lines: Vec<Line> = stream::iter(world.tables.iter().filter(matching))
        .map(|listed| of_table(lake, world, listed, counters).boxed())
        .buffered(TABLES_IN_FLIGHT)
        .collect()
        .await;
    shown.end();
    if json {
        lines.iter().for_each(print::json);
    } else {
        print_text(lake, &lines);
    }
    let failed = lines.iter().filter(|line| !line.errors.is_empty()).count();
    Ok(match (failed, world.unlisted.len()) {
        (0, 0) => 0,
        (failed, _) if failed == lines.len() => 1,
        _ => 4,
    })
}

async fn of_table(lake: &Lake, world: &World, listed: &ListedTable, counters: &Arc<ListProgress>) -> Line {
    let mut line = Line {
        table: listed.name.clone(),
        uuid: None,
        total: Held::default(),
        folders: Vec::new(),
        skipped: None,
        errors: Vec::new(),
    };
    let Some(catalog) = lake.catalog(&listed.name.catalog) else { return line };
    // With the keys that the catalog lends for it.
    let loaded = match catalog.load(&listed.name).await {
        Ok(loaded) => loaded,
        Err(error) => {
            line.errors.push(error.to_string());
            return line;
        }
    };
    line.uuid = loaded.state.uuid;
    let roots = match roots_of(&loaded.state, &loaded.metadata_location, loaded.storage.rules()) {
        Ok(roots) => roots,
        Err(error) => {
            line.errors.push(error.to_string());
            return line;
        }
    };
    let this = TableRoots {
        table: loaded.name.clone(),
        metadata_location: loaded.metadata_location.clone(),
        uuid: loaded.state.uuid,
        roots,
    };
    let exclusive = lake.hands.config.policy_for(&loaded.name).exclusive;
    let uuids = exclusive.into_iter().flat_map(|exclusive| exclusive.value.uuids).collect();
    let Place { roots, others, .. } = match place(&this, &world.roots, &uuids) {
        Ok(place) => place,
        Err(shared) => {
            line.skipped = Some(shared.to_string());
            return line;
        }
    };
    for root in outermost(&roots) {
        match of_folder(&loaded.storage, root, &others, counters).await {
            Ok(folder) => {
                line.total.merge(&folder.held);
                line.folders.push(folder);
            }
            Err(error) => line.errors.push(error.to_string()),
        }
    }
    line
}

/// What a folder holds, but for what lies in these other ones.
async fn of_folder(
    storage: &Storage,
    root: &Root,
    others: &BTreeSet<Root>,
    counters: &Arc<ListProgress>,
) -> Result<Folder, StorageError> {
    let inner: BTreeSet<Root> = others.iter().filter(|other| root.covers(other)).cloned().collect();
    let mut folder =
        Folder { location: root.as_str().to_owned(), held: Held::default(), unrepresentable_examples: Vec::new() };
    let mut listing = storage.list(root, counters);
    while let Some(batch) = listing.next().await? {
        for listed in batch {
            if !inner.is_empty() && Root::any_contains(&inner, &storage.rules().parse(listed.location())?) {
                folder.held.of_other_tables += 1;
                continue;
            }
            folder.held.add(listed.facts());
            if let Listed::Unrepresentable { location, why, .. } = listed {
                folder.held.unrepresentable += 1;
                if folder.unrepresentable_examples.len() < EXAMPLES {
                    folder.unrepresentable_examples.push(Example { location, why: why.to_owned() });
                }
            }
        }
    }
    // Ranges are listed side by side, and come as they come.
    folder.unrepresentable_examples.sort_by(|left, right| left.location.cmp(&right.location));
    Ok(folder)
}

fn print_text(lake: &Lake, lines: &[Line]) {
    let columns = [
        left("TABLE", 0),
        right("OBJECTS", 0),
        right("SIZE", 0),
        right("OLDEST", 2),
        right("NEWEST", 1),
        left("NOTE", 3),
    ];
    let mut rows = Vec::new();
    let mut all = Held::default();
    for line in lines {
        let name = if lake.catalogs.len() > 1 { line.table.full() } else { line.table.to_string() };
        let told = match (&line.skipped, line.errors.is_empty()) {
            (_, false) => "not all could be listed".to_owned(),
            (Some(_), true) => "its folders are not its alone: skipped".to_owned(),
            (None, true) => note(&line.total),
        };
        rows.push(row(name, &line.total, told));
        if line.folders.len() > 1 {
            rows.extend(
                line.folders
                    .iter()
                    .map(|folder| row(format!("  {}", folder.location), &folder.held, note(&folder.held))),
            );
        }
        all.merge(&line.total);
    }
    if lines.len() > 1 {
        rows.push(row(format!("all {} tables", count(lines.len() as u64)), &all, note(&all)));
    }
    table(&columns, &rows).iter().for_each(print::line);
    for line in lines {
        for example in line.folders.iter().flat_map(|folder| &folder.unrepresentable_examples) {
            // A name may hold anything, a line feed too.
            print::line(format!("{:?}: {}", example.location, example.why));
        }
        if let Some(skipped) = &line.skipped {
            print::note(format!("{}: {skipped}", line.table));
        }
        line.errors.iter().for_each(|error| print::error(&format!("{}: {error}", line.table)));
    }
}

fn note(held: &Held) -> String {
    let parts = [
        (held.unrepresentable, "cannot be represented"),
        (held.without_time, "without a time"),
        (held.of_other_tables, "of other tables left out"),
    ];
    let told: Vec<String> = parts
        .iter()
        .filter(|(objects, _)| *objects > 0)
        .map(|(objects, what)| format!("{} {what}", counted(*objects, "object")))
        .collect();
    told.join(", ")
}

fn row(name: String, held: &Held, note: String) -> Vec<String> {
    let time = |time: Option<Timestamp>| time.map(minute).unwrap_or_default();
    vec![name, count(held.objects), size(held.bytes), time(held.oldest), time(held.newest), note]
}
