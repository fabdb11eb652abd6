//! Builds the world of a scenario: every object's bytes, and every table's metadata.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use icewarden::model::{LocationRules, Timestamp};
use serde_json::{Value, json};

use super::format::{Scenario, time};
use super::table::TableBuilder;

/// The size of a content or statistics file that says none.
pub(crate) const SIZE: u64 = 100;

/// The lake before the first step.
#[derive(Debug)]
pub(crate) struct World {
    /// By canonical location.
    pub(crate) objects: BTreeMap<String, (Bytes, Timestamp)>,
    pub(crate) tables: Vec<Table>,
    /// Canonical locations of each id.
    pub(crate) ids: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) catalogued: bool,
    /// Canonical, ends in `/`.
    pub(crate) root: String,
    pub(crate) metadata_location: String,
    pub(crate) metadata: Value,
    /// Numbers of the snapshots, by their id in the file.
    pub(crate) snapshots: BTreeMap<String, i64>,
    /// Snapshots that a fault commits, and the refs that move with them.
    pub(crate) later: BTreeMap<String, Later>,
    /// What each snapshot needs to be read: canonical locations of its list, manifests and live content.
    pub(crate) needs: BTreeMap<i64, BTreeSet<String>>,
    /// When refs were first seen.
    pub(crate) sightings: Vec<(String, Timestamp)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Later {
    pub(crate) snapshot: Value,
    pub(crate) refs: Vec<(String, Value)>,
}

pub(crate) fn canonical(location: &str) -> Result<String, String> {
    LocationRules::default().canonical(location).map(Into::into).map_err(|error| error.to_string())
}

impl World {
    pub(crate) fn build(scenario: &Scenario) -> Result<Self, String> {
        let now = scenario.now()?;
        let mut world = Self { objects: BTreeMap::new(), tables: Vec::new(), ids: BTreeMap::new() };
        for spec in &scenario.tables {
            let table = TableBuilder::new(spec, now, &mut world)?.build()?;
            world.tables.push(table);
        }
        for spec in &scenario.objects {
            let location = canonical(&spec.key)?;
            let at = spec.at.as_deref().map(|at| time(at, now)).transpose()?;
            let before = world.objects.get(&location).cloned();
            let bytes = match (&spec.content, spec.size, &before) {
                (Some(text), ..) => Bytes::from(text.clone()),
                (None, Some(size), _) => filler(size),
                (None, None, Some((bytes, _))) => bytes.clone(),
                (None, None, None) => match world.foreign_metadata(&location, spec.uuid.as_deref()) {
                    Some(metadata) => metadata,
                    None => filler(SIZE),
                },
            };
            let at = at.or(before.map(|(_, at)| at)).unwrap_or_else(|| past(now));
            world.objects.insert(location.clone(), (bytes, at));
            if let Some(id) = &spec.id {
                world.ids.entry(id.clone()).or_default().insert(location);
            }
        }
        for spec in &scenario.tables {
            let location = TableBuilder::location(spec);
            for id in &spec.absent {
                let inside = |one: &&String| one.starts_with(&format!("{}/", location.trim_end_matches('/')));
                let all = world.resolve(id)?;
                let one = all.iter().find(inside).or(all.first()).ok_or_else(|| format!("absent: no file {id}"))?;
                world.objects.remove(one).ok_or_else(|| format!("absent: {id} is absent already"))?;
            }
        }
        Ok(world)
    }

    /// Another table's metadata under this table's `metadata/`.
    fn foreign_metadata(&self, location: &str, uuid: Option<&str>) -> Option<Bytes> {
        let table = self.tables.iter().find(|table| location.starts_with(&format!("{}metadata/", table.root)))?;
        if !location.ends_with(".metadata.json") {
            return None;
        }
        let mut metadata = table.metadata.clone();
        if let Some(uuid) = uuid {
            metadata["table-uuid"] = json!(uuid);
        }
        Some(Bytes::from(metadata.to_string()))
    }

    pub(crate) fn table(&self, name: &str) -> Result<&Table, String> {
        self.tables.iter().find(|table| table.name == name).ok_or_else(|| format!("no table {name}"))
    }

    /// The canonical locations of an id, or of a key.
    pub(crate) fn resolve(&self, id_or_key: &str) -> Result<Vec<String>, String> {
        if id_or_key.contains("://") {
            return Ok(vec![canonical(id_or_key)?]);
        }
        let all = self.ids.get(id_or_key).ok_or_else(|| format!("no file {id_or_key}"))?;
        Ok(all.iter().cloned().collect())
    }

    /// The one location of an id, or of a key.
    pub(crate) fn resolve_one(&self, id_or_key: &str) -> Result<String, String> {
        let mut all = self.resolve(id_or_key)?;
        match all.len() {
            1 => Ok(all.remove(0)),
            _ => Err(format!("{id_or_key} is in several tables, name it by key: {all:?}")),
        }
    }

    /// How people call this location: by its id, where that is one file.
    pub(crate) fn show(&self, location: &str) -> String {
        let id = self.ids.iter().find(|(_, all)| all.len() == 1 && all.contains(location));
        id.map_or_else(|| location.to_owned(), |(id, _)| id.clone())
    }
}

pub(crate) fn past(now: Timestamp) -> Timestamp {
    Timestamp(now.0 - 30 * 86_400_000)
}

pub(crate) fn filler(size: u64) -> Bytes {
    Bytes::from(vec![b'.'; usize::try_from(size).unwrap()])
}
