//! `icewarden demo`: makes a lake that has grown for 60 days, cleans it, and reads back what must be there.
//!
//! It needs nothing but this binary. All it writes lies in one folder, which it refuses to use if it holds
//! anything else.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::catalog::CatalogError;
use crate::clock::Clock;
use crate::config::{Config, ConfigError};
use crate::report::{Job, RunReport};
use crate::run::{self, Lake, RunError, RunRequest};

use lake::MadeLake;
use read_back::ReadBack;

mod change;
mod content;
mod folder;
pub mod lake;
mod manifests;
pub mod read_back;
mod stories;
mod table;
#[cfg(test)]
mod tests;

/// Who the audit log says it was.
const ACTOR: &str = "demo";

/// What is asked for.
#[derive(Debug, Clone)]
pub struct DemoArgs {
    /// Where the lake is, or will be.
    pub folder: PathBuf,
    /// Make the lake anew even if it is there.
    pub fresh: bool,
}

/// A step of the demo, told as soon as it is done.
#[derive(Debug)]
pub enum Step<'a> {
    /// The lake was made.
    Made(&'a MadeLake),
    /// The lake was there.
    Found(&'a MadeLake),
    /// What expiry would do.
    Planned(&'a RunReport),
    /// What it did. The lake's grace is zero, so it went on to the sweep.
    Applied(&'a RunReport),
    /// What a sweep then did: nothing, unless an earlier demo was stopped and left marks.
    Swept(&'a RunReport),
    /// What the tables take, before and after.
    Stored {
        /// By `namespace.table`.
        before: &'a BTreeMap<String, Usage>,
        /// By `namespace.table`.
        after: &'a BTreeMap<String, Usage>,
    },
    /// Every file that a retained snapshot needs is there and whole; by `namespace.table`.
    ReadBack(&'a BTreeMap<String, ReadBack>),
}

/// What became of a demo.
#[derive(Debug)]
pub struct DemoReport {
    /// The lake.
    pub lake: MadeLake,
    /// The expiry, after it was planned without being applied, and its sweep.
    pub applied: RunReport,
    /// The sweep of what was left.
    pub swept: RunReport,
    /// What the tables took, by `namespace.table`.
    pub before: BTreeMap<String, Usage>,
    /// What they take now.
    pub after: BTreeMap<String, Usage>,
    /// What was read back.
    pub read: BTreeMap<String, ReadBack>,
}

impl DemoReport {
    /// The exit code of the command.
    pub fn exit_code(&self) -> u8 {
        self.applied.exit_code().max(self.swept.exit_code())
    }
}

/// Makes the lake, unless it is there, and cleans it: plan, expiry, sweep, reading back. `tell` hears of
/// each step as soon as it is done.
pub async fn run(args: &DemoArgs, clock: Clock, mut tell: impl FnMut(Step<'_>)) -> Result<DemoReport, DemoError> {
    let found = if args.fresh { None } else { lake::find(&args.folder)? };
    let made = if let Some(found) = found {
        tell(Step::Found(&found));
        found
    } else {
        let made = lake::make(&args.folder, clock.now()).await?;
        tell(Step::Made(&made));
        made
    };
    let before = summary(&made.folder)?;
    let (config, _) = Config::load(&made.config)?;
    let lake = Lake::open(config, clock).await.map_err(RunError::from)?;

    let look = RunRequest::look(Job::Expire, ACTOR);
    tell(Step::Planned(&run::run(&lake, &look).await?));
    let applied = run::run(&lake, &RunRequest { apply: true, ..look }).await?;
    tell(Step::Applied(&applied));
    let sweep = RunRequest { apply: true, ..RunRequest::look(Job::Sweep, ACTOR) };
    let swept = run::run(&lake, &sweep).await?;
    tell(Step::Swept(&swept));

    let after = summary(&made.folder)?;
    tell(Step::Stored { before: &before, after: &after });
    let mut read = BTreeMap::new();
    for catalog in &lake.catalogs {
        for table in catalog.list_tables().await? {
            let loaded = catalog.load(&table.name).await?;
            let counts = read_back::read_back(&lake.hands.storage, &loaded.state).await?;
            read.insert(table.name.to_string(), counts);
        }
    }
    tell(Step::ReadBack(&read));
    lake.hands.state.close().await;
    Ok(DemoReport { lake: made, applied, swept, before, after, read })
}

/// The demo cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file or folder of the lake.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// In the system's words.
        source: io::Error,
    },
    /// A file that one of the format's writers writes.
    #[error("cannot write {location}: {reason}")]
    Write {
        /// The file.
        location: String,
        /// In the writer's words.
        reason: String,
    },
    /// The lake's catalog.
    #[error(transparent)]
    Catalog(Box<CatalogError>),
    /// Nothing that the demo did not make is ever removed.
    #[error("{} holds something else than a demo lake; name another folder", folder.display())]
    NotADemo {
        /// The folder.
        folder: PathBuf,
    },
    /// Locations are text.
    #[error("the path {} is not valid Unicode; name another folder", path.display())]
    NotUnicode {
        /// The path.
        path: PathBuf,
    },
    /// The lake's configuration was changed and makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A run could not begin.
    #[error(transparent)]
    Run(Box<RunError>),
    /// A retained snapshot has lost something.
    #[error(transparent)]
    ReadBack(#[from] read_back::ReadBackError),
}

impl From<CatalogError> for DemoError {
    fn from(error: CatalogError) -> Self {
        Self::Catalog(Box::new(error))
    }
}

impl From<RunError> for DemoError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl DemoError {
    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    fn write(location: &str, reason: &dyn std::error::Error) -> Self {
        Self::Write { location: location.to_owned(), reason: reason.to_string() }
    }
}

/// What a table takes in the warehouse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Files of any kind.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What each table (`namespace.table`) of the lake in `folder` takes, by walking its warehouse.
pub fn summary(folder: &Path) -> Result<BTreeMap<String, Usage>, DemoError> {
    let mut tables = BTreeMap::new();
    for namespace in entries(&folder.join("warehouse"))? {
        for table in entries(&namespace)? {
            let part = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{}.{}", part(&namespace), part(&table));
            add_up(&table, tables.entry(name).or_default())?;
        }
    }
    Ok(tables)
}

fn add_up(folder: &Path, usage: &mut Usage) -> Result<(), DemoError> {
    for path in entries(folder)? {
        let metadata = fs::symlink_metadata(&path).map_err(|source| DemoError::io("look at", &path, source))?;
        if metadata.is_dir() {
            add_up(&path, usage)?;
        } else {
            usage.files += 1;
            usage.bytes += metadata.len();
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, DemoError> {
    let list = || fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>();
    list().map_err(|source| DemoError::io("list", folder, source))
}
