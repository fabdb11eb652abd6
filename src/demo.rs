//! `icewarden demo`: makes a lake that has grown for 60 days, cleans it, and reads back what must be there.
//!
//! It needs nothing but this binary. All it writes lies in one folder, which it refuses to use if it holds
//! anything else.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::catalog::CatalogError;

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
    /// A retained snapshot has lost something.
    #[error(transparent)]
    ReadBack(#[from] read_back::ReadBackError),
}

impl From<CatalogError> for DemoError {
    fn from(error: CatalogError) -> Self {
        Self::Catalog(Box::new(error))
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
