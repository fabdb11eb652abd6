//! Faults of a step: armed before it, counted by the catalog and the stores.

use std::sync::{Mutex, OnceLock};

use futures::future::BoxFuture;
use icewarden::model::Age;

use super::format::{FaultSpec, On};
use super::lake::World;

/// What a fault does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    Conflict,
    /// Answers as if the commit were applied.
    Ignore,
    /// Somebody gives a branch an age, where it is.
    SetAge {
        name: String,
        age: i64,
    },
    ApplyThen504,
    Status(u16),
    CreateRef {
        name: String,
        snapshot: String,
    },
    CrashAfter,
    /// Changes a table property first.
    Set {
        property: String,
        value: String,
    },
    /// The table and another change names first.
    Rename(String),
    /// So many milliseconds pass first.
    Wait(i64),
    Corrupt,
    /// Commits a `later` snapshot.
    Commit(String),
    /// A listing leaves the object out.
    Hide,
    /// An operator holds the table of this name.
    Hold(String),
}

/// What an operation is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Table(&'a str),
    /// A canonical location, or a listed prefix.
    Location(&'a str),
}

#[derive(Debug)]
struct Armed {
    on: On,
    nth: Option<u64>,
    from: Option<u64>,
    act: Act,
    locations: Vec<String>,
    table: Option<(String, String)>,
    seen: u64,
}

type Happen = Box<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// The armed faults; shared by the catalog and the stores.
#[derive(Default)]
pub(crate) struct Faults {
    armed: Mutex<Vec<Armed>>,
    land: OnceLock<Happen>,
    hold: Mutex<Option<Happen>>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Faults {
    /// Replaces the faults by those of the next step.
    pub(crate) fn arm(&self, specs: &[FaultSpec], world: &World) -> Result<(), String> {
        let armed: Result<Vec<_>, String> = specs.iter().map(|spec| Armed::new(spec, world)).collect();
        *self.armed.lock().unwrap() = armed?;
        Ok(())
    }

    /// How `Commit` acts of stores reach the catalog.
    pub(crate) fn on_commit(&self, land: Happen) {
        assert!(self.land.set(land).is_ok(), "set once");
    }

    /// How `Hold` acts of stores reach the state of the step's lake.
    pub(crate) fn on_hold(&self, hold: Happen) {
        *self.hold.lock().unwrap() = Some(hold);
    }

    /// An operator holds a table.
    pub(crate) async fn hold(&self, table: String) {
        let holding = self.hold.lock().unwrap().as_ref().expect("a lake is open")(table);
        holding.await;
    }

    /// Counts an operation, and says what befalls it.
    pub(crate) fn hit(&self, on: On, place: Place<'_>) -> Vec<Act> {
        let mut armed = self.armed.lock().unwrap();
        armed.iter_mut().filter(|fault| fault.on == on).filter_map(|fault| fault.hit(place)).collect()
    }

    /// Whether listings leave this object out.
    pub(crate) fn hides(&self, location: &str) -> bool {
        let armed = self.armed.lock().unwrap();
        armed.iter().any(|fault| fault.act == Act::Hide && fault.locations.iter().any(|one| one == location))
    }

    /// Commits a `later` snapshot.
    pub(crate) async fn land(&self, snapshot: String) {
        let landing = self.land.get().expect("a catalog is there")(snapshot);
        landing.await;
    }
}

impl Armed {
    fn new(spec: &FaultSpec, world: &World) -> Result<Self, String> {
        let action = spec.action.as_str();
        let bad = || format!("no fault does {action:?} on {:?}", spec.on);
        let act = match (spec.on, action) {
            (On::Commit, "conflict") => Act::Conflict,
            (On::Commit, "ignore") => Act::Ignore,
            (On::Commit, "apply-then-504") => Act::ApplyThen504,
            (On::Commit, "crash-after") => Act::CrashAfter,
            (On::Get, "corrupt") => Act::Corrupt,
            (On::List, "hide") if spec.key.is_some() => Act::Hide,
            (On::Commit | On::List, "500")
            | (On::Load | On::Get, "404" | "500")
            | (On::Delete, "404" | "403" | "500" | "503") => Act::Status(action.parse().map_err(|_| bad())?),
            (On::List | On::Delete, _) => {
                let (what, name) = action.split_once(':').ok_or_else(bad)?;
                match (spec.on, what) {
                    (_, "commit") => Act::Commit(name.to_owned()),
                    (On::Delete, "hold") => Act::Hold(name.to_owned()),
                    _ => return Err(bad()),
                }
            }
            (On::Commit, _) => first_change(action).ok_or_else(bad)?,
            _ => return Err(bad()),
        };
        let locations = spec.key.as_deref().map(|key| world.resolve(key)).transpose()?;
        if locations.is_some() && act != Act::Hide && matches!(spec.on, On::Commit | On::Load | On::List) {
            return Err(format!("a fault on {:?} has no key", spec.on));
        }
        let table = spec
            .table
            .as_deref()
            .map(|name| world.table(name).map(|table| (name.to_owned(), table.root.clone())))
            .transpose()?;
        Ok(Self {
            on: spec.on,
            nth: spec.nth,
            from: spec.from,
            act,
            locations: locations.unwrap_or_default(),
            table,
            seen: 0,
        })
    }

    fn hit(&mut self, place: Place<'_>) -> Option<Act> {
        let is_meant = match place {
            Place::Table(name) => self.table.as_ref().is_none_or(|(table, _)| table == name),
            Place::Location(location) => {
                self.table.as_ref().is_none_or(|(_, root)| format!("{location}/").starts_with(root))
                    && (self.locations.is_empty() || self.locations.iter().any(|one| one == location))
            }
        };
        if !is_meant {
            return None;
        }
        self.seen += 1;
        let fires = match (self.nth, self.from) {
            (Some(nth), _) => self.seen == nth,
            (None, Some(from)) => self.seen >= from,
            (None, None) => true,
        };
        fires.then(|| self.act.clone())
    }
}

/// What changes first; then the commit is judged.
fn first_change(action: &str) -> Option<Act> {
    let (what, rest) = action.split_once(':')?;
    Some(match what {
        "create-ref" => {
            let (name, snapshot) = rest.rsplit_once('@')?;
            Act::CreateRef { name: name.to_owned(), snapshot: snapshot.to_owned() }
        }
        "set-age" => {
            let (name, age) = rest.split_once('=')?;
            Act::SetAge { name: name.to_owned(), age: age.parse::<Age>().ok()?.0 }
        }
        "set" => {
            let (property, value) = rest.split_once('=')?;
            Act::Set { property: property.to_owned(), value: value.to_owned() }
        }
        "rename" => Act::Rename(rest.to_owned()),
        "wait" => Act::Wait(rest.parse::<Age>().ok()?.0),
        _ => return None,
    })
}
