//! Why a table may not be worked on, as its own metadata, the folders of the others and what lies in its own tell
//! (safety rules 2, 4 and 6).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use uuid::Uuid;

use crate::catalog::LoadedTable;
use crate::config::Config;
use crate::inventory::loose::Loose;
use crate::inventory::manifests::Unreadable;
use crate::inventory::world::World;
use crate::model::roots::{hashed_paths, roots_of};
use crate::model::{BadLocation, LocationRules, Root, TableName, TableRoots};
use crate::plan::roots::{self, Exclusive, NotExclusive, Place, Shared};

/// Why no job works on a table, as its own metadata and the folders of the others tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Safety rule 4: it is skipped.
    #[error("gc.enabled is not true")]
    GcDisabled,
    /// Safety rule 6: it is skipped.
    #[error(transparent)]
    Shared(#[from] Shared),
    /// Safety rule 2: it fails.
    #[error("the table is encrypted, which is not supported")]
    Encrypted,
}

/// What becomes of a run on an encrypted table.
pub fn encrypted(table: &LoadedTable) -> Unreadable {
    Unreadable { location: table.metadata_location.clone(), reason: Obstacle::Encrypted.to_string() }
}

/// Whether a table may be worked on: its folders among all catalogued tables, with its policy's override, or why not.
/// The outer error is a location that makes no sense.
pub fn eligible(
    config: &Config,
    rules: &LocationRules,
    table: &LoadedTable,
    world: &World,
) -> Result<Result<Place, Obstacle>, BadLocation> {
    if !table.state.gc_enabled() {
        return Ok(Err(Obstacle::GcDisabled));
    }
    let uuids = exclusive(config, &table.name);
    let this = TableRoots {
        table: table.name.clone(),
        metadata_location: table.metadata_location.clone(),
        uuid: table.state.uuid,
        roots: roots_of(&table.state, &table.metadata_location, rules)?,
    };
    Ok(match roots::place(&this, &world.roots, &uuids) {
        Err(shared) => Err(shared.into()),
        Ok(_) if table.state.is_encrypted => Err(Obstacle::Encrypted),
        Ok(place) => Ok(place),
    })
}

/// The uuids of tables that an operator declared to be no longer there in truth.
pub fn exclusive(config: &Config, table: &TableName) -> BTreeSet<Uuid> {
    let exclusive = config.policy_for(table).exclusive;
    exclusive.into_iter().flat_map(|exclusive| exclusive.value.uuids).collect()
}

/// Whether a loose metadata file makes the table's folders another table's too (safety rule 6).
pub fn shared_by(loose: &Loose, exclusive: &BTreeSet<Uuid>, world: &World) -> Option<(Shared, serde_json::Value)> {
    if let Some((file, of)) = loose.foreign.iter().find(|(_, uuid)| !exclusive.contains(uuid)) {
        return Some((
            Shared::ForeignMetadata { file: file.clone(), uuid: *of },
            json!({ "file": file, "of": of, "files": loose.foreign.len() }),
        ));
    }
    let (file, _) = loose.unknown.first()?;
    let table =
        world.unloadable.keys().next().map(TableName::full).or_else(|| world.unlisted.keys().next().cloned())?;
    Some((Shared::UnknownMetadata { file: file.clone(), table }, json!({})))
}

/// The folders of a table that hold its files alone.
pub fn alone(
    table: &LoadedTable,
    place: &Place,
    shared: &BTreeMap<Root, NotExclusive>,
    rules: &LocationRules,
) -> Result<Exclusive, BadLocation> {
    let mut shared = shared.clone();
    shared.extend(hashed_paths(&table.state, rules)?.into_iter().map(|path| (path, NotExclusive::Hashed)));
    Ok(roots::exclusive(place, &rules.root(&table.state.location)?, &shared))
}

/// Folders of warehouses and namespaces, which are no table's alone.
pub fn shared_folders(config: &Config, rules: &LocationRules, world: &World) -> BTreeMap<Root, NotExclusive> {
    let mut shared = BTreeMap::new();
    for catalog in &config.catalogs {
        let Some(warehouse) = catalog.warehouse.as_deref().and_then(|warehouse| rules.root(warehouse).ok()) else {
            continue;
        };
        let tables = world.tables.iter().filter(|table| table.name.catalog == catalog.name);
        for namespace in tables.map(|table| &table.name.namespace) {
            for depth in 1..=namespace.len() {
                let levels = &namespace[..depth];
                for path in [levels.join("/"), levels.join(".")] {
                    for ending in ["", ".db"] {
                        if let Ok(folder) = rules.root(&format!("{warehouse}{path}{ending}")) {
                            shared.insert(folder, NotExclusive::Namespace);
                        }
                    }
                }
            }
        }
        shared.insert(warehouse, NotExclusive::Warehouse);
    }
    shared
}
