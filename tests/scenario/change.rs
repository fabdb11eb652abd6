//! What happens to the lake before a step, beside the step: others commit, rename, overwrite; operators hold,
//! keep, acknowledge; files of the plans store are lost.

use std::path::Path;

use bytes::Bytes;
use icewarden::apply::Hands;
use icewarden::model::{Age, TableName, Timestamp};
use icewarden::run::Lake;
use icewarden::state::{Hold, HoldScope, Keep, PlansError};
use serde::Deserialize;

use super::format::time;
use super::lake::{World, canonical, filler};
use super::rest_server::{Catalog, RefTo};
use super::store::Bucket;

/// One change, as `before` of a step names it.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Change {
    /// Commits a `later` snapshot.
    Land {
        snapshot: String,
    },
    /// Changes a table property; without a value it is removed.
    Set {
        table: String,
        property: String,
        value: Option<String>,
    },
    /// Somebody creates or moves a branch; what is not said of its retention it has not.
    SetRef {
        table: String,
        name: String,
        snapshot: String,
        max_ref_age: Option<Age>,
    },
    /// Somebody drops a ref.
    DropRef {
        table: String,
        name: String,
    },
    /// Gives a table another name; the two change names if that is taken.
    Rename {
        table: String,
        to: String,
    },
    /// Takes a table out of the catalog; its files stay.
    Drop {
        table: String,
    },
    /// Points the catalog at an older metadata file of the table.
    Restore {
        table: String,
        metadata: String,
    },
    /// Puts another object in the place of one: of that size, of that time (by default as it was, and now).
    Overwrite {
        key: String,
        size: Option<u64>,
        at: Option<String>,
    },
    /// Somebody writes a new object, now.
    Put {
        key: String,
        content: String,
    },
    /// An operator's hold on the table of this name.
    Hold {
        table: String,
    },
    ReleaseHold {
        table: String,
    },
    /// An operator keeps a file.
    Keep {
        key: String,
    },
    ReleaseKeep {
        key: String,
    },
    /// Acknowledges the open findings of this kind for a year.
    Acknowledge {
        finding: String,
    },
    /// Removes the state database; the plans store stays.
    LoseDatabase,
    /// Removes the list files that are in a folder of the plans store: `intents` or `marks`.
    LoseLists {
        folder: String,
    },
    /// Flips a bit in the middle of each.
    DamageLists {
        folder: String,
    },
}

/// The scenario's only catalog.
fn table_name(name: &str) -> TableName {
    let (namespace, table) = name.rsplit_once('.').unwrap_or(("", name));
    TableName {
        catalog: "lake".to_owned(),
        namespace: namespace.split('.').map(str::to_owned).collect(),
        name: table.to_owned(),
    }
}

/// An operator holds a table.
pub(crate) async fn hold(hands: &Hands, table: &str) -> Result<(), PlansError> {
    let (by, reason) = ("somebody".to_owned(), "a scenario".to_owned());
    let hold = Hold { scope: HoldScope::Table(table_name(table)), by, reason, at: hands.clock.now() };
    hands.plans.hold(&hands.state, &hold).await
}

impl Change {
    /// Changes the catalog, the store or the plans store.
    pub(crate) async fn outside(
        &self,
        world: &World,
        catalog: &Catalog,
        bucket: impl Fn(&str) -> Option<Bucket>,
        plans: &Path,
        now: Timestamp,
        step: Timestamp,
    ) -> Result<(), String> {
        match self {
            Self::Land { snapshot } => catalog.land(snapshot).await,
            Self::Set { table, property, value } => catalog.set(table, property, value.as_deref()).await?,
            Self::SetRef { table, name, snapshot, max_ref_age } => {
                let to = RefTo { snapshot, max_ref_age: *max_ref_age };
                catalog.set_ref(table, name, Some(to)).await?;
            }
            Self::DropRef { table, name } => catalog.set_ref(table, name, None).await?,
            Self::Rename { table, to } => catalog.rename(table, to).await?,
            Self::Drop { table } => catalog.drop_table(table).await?,
            Self::Restore { table, metadata } => catalog.restore(table, &world.resolve_one(metadata)?).await?,
            Self::Overwrite { key, size, at } => {
                let location = world.resolve_one(key)?;
                let bucket = bucket(&location).ok_or_else(|| format!("no bucket of {location}"))?;
                let before = world.objects.get(&location).ok_or_else(|| format!("no object {location}"))?;
                let bytes = size.map_or_else(|| before.0.clone(), filler);
                let at = at.as_deref().map_or(Ok(step), |at| time(at, now))?;
                bucket.seed(&location, bytes, at).await;
            }
            Self::Put { key, content } => {
                let bucket = bucket(key).ok_or_else(|| format!("no bucket of {key}"))?;
                bucket.seed(&canonical(key)?, Bytes::from(content.clone()), step).await;
            }
            Self::LoseDatabase => lose_database(plans)?,
            Self::LoseLists { folder } => each_list(plans, folder, |file| std::fs::remove_file(file))?,
            Self::DamageLists { folder } => each_list(plans, folder, |file| {
                let mut bytes = std::fs::read(file)?;
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(file, bytes)
            })?,
            Self::Hold { .. }
            | Self::ReleaseHold { .. }
            | Self::Keep { .. }
            | Self::ReleaseKeep { .. }
            | Self::Acknowledge { .. } => {}
        }
        Ok(())
    }

    /// Changes what is remembered of the lake.
    pub(crate) async fn inside(&self, lake: &Lake, world: &World) -> Result<(), String> {
        let (state, plans, now) = (&lake.hands.state, &lake.hands.plans, lake.hands.clock.now());
        let (by, reason) = ("somebody".to_owned(), "a scenario".to_owned());
        let done = match self {
            Self::Hold { table } => hold(&lake.hands, table).await.map(|()| true),
            Self::ReleaseHold { table } => plans.release_hold(state, &HoldScope::Table(table_name(table))).await,
            Self::Keep { key } => {
                let location = canonical(&world.resolve_one(key)?)?;
                plans.keep(state, &Keep { location, by, reason, at: now }).await.map(|()| true)
            }
            Self::ReleaseKeep { key } => plans.release_keep(state, &world.resolve_one(key)?).await,
            Self::Acknowledge { finding } => {
                let mut known = false;
                for open in state.open_findings().await.map_err(|error| error.to_string())? {
                    if open.seen.kind.as_str() == finding {
                        let until = Timestamp(now.0 + 365 * 86_400_000);
                        known = state.acknowledge(&open.id, until, &by).await.map_err(|error| error.to_string())?;
                    }
                }
                Ok(known)
            }
            _ => Ok(true),
        };
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{self:?}: there is none")),
            Err(error) => Err(format!("{self:?}: {error}")),
        }
    }
}

fn lose_database(plans: &Path) -> Result<(), String> {
    let name = plans.file_name().unwrap_or_default().to_string_lossy().replace("plans", "state");
    let mut lost = 0;
    for ending in ["db", "db-wal", "db-shm"] {
        lost += usize::from(std::fs::remove_file(plans.with_file_name(format!("{name}.{ending}"))).is_ok());
    }
    if lost == 0 { Err(format!("no database {name}.db")) } else { Ok(()) }
}

fn each_list(plans: &Path, folder: &str, act: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let folder = plans.join(folder);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut count = 0;
    for entry in entries {
        act(&entry.unwrap().path()).map_err(|error| error.to_string())?;
        count += 1;
    }
    if count == 0 { Err(format!("{} is empty", folder.display())) } else { Ok(()) }
}
