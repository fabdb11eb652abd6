//! Where one table of the demo lake lies: its folder, the locations of files in it, and their times.

use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use iceberg::io::{FileIO, OutputFile};

use crate::model::Timestamp;

use super::DemoError;

/// A table's folder. Every file gets the time of the commit that wrote it, as in a lake that has grown.
#[derive(Debug, Clone)]
pub(super) struct TableFolder {
    path: PathBuf,
    location: String,
    io: FileIO,
}

impl TableFolder {
    /// Makes the folder, which must be absolute, with its `data` and `metadata`.
    pub(super) fn make(path: PathBuf) -> Result<Self, DemoError> {
        for part in ["data", "metadata"] {
            make_dir(&path.join(part))?;
        }
        let location = location_of(&path)?;
        Ok(Self { path, location, io: FileIO::new_with_fs() })
    }

    /// The table's location.
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// The location of the file `relative`.
    pub(super) fn locate(&self, relative: &str) -> String {
        format!("{}/{relative}", self.location)
    }

    /// The file `relative`, for the Iceberg crate's writers; [`Self::set_time`] when they are done.
    pub(super) fn output(&self, relative: &str) -> Result<OutputFile, DemoError> {
        let location = self.locate(relative);
        self.io.new_output(&location).map_err(|error| DemoError::write(&location, &error))
    }

    /// Writes a file as if at `at`; returns its location.
    pub(super) fn write(&self, relative: &str, bytes: &[u8], at: Timestamp) -> Result<String, DemoError> {
        let path = self.path.join(relative);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        fs::write(&path, bytes).map_err(|source| DemoError::io("write", &path, source))?;
        self.set_time(relative, at)?;
        Ok(self.locate(relative))
    }

    /// Sets a file's time back to `at`; returns its size.
    pub(super) fn set_time(&self, relative: &str, at: Timestamp) -> Result<u64, DemoError> {
        let path = self.path.join(relative);
        let set = || {
            let time = UNIX_EPOCH + Duration::from_millis(at.0.unsigned_abs());
            let file = File::options().write(true).open(&path)?;
            file.set_times(FileTimes::new().set_modified(time).set_accessed(time))?;
            file.metadata().map(|metadata| metadata.len())
        };
        set().map_err(|source| DemoError::io("set the time of", &path, source))
    }
}

/// The location of a file or folder whose path is absolute.
pub(super) fn location_of(path: &Path) -> Result<String, DemoError> {
    let text = path.to_str().ok_or_else(|| DemoError::NotUnicode { path: path.to_owned() })?;
    Ok(format!("file://{text}"))
}

/// Makes a folder and those above it.
pub(super) fn make_dir(path: &Path) -> Result<(), DemoError> {
    fs::create_dir_all(path).map_err(|source| DemoError::io("make folder", path, source))
}
