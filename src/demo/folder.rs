//! Where one table of the demo lake lies: its folder, the locations of files in it, and their times.

use std::fs::{self, File, FileTimes};
use std::io::Write;
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
    /// What the Iceberg crate writes, before it is a file: its own local files are synced one by one, which
    /// takes longer than all the rest.
    buffer: FileIO,
}

impl TableFolder {
    /// Makes the folder, which must be absolute, with its `data` and `metadata`.
    pub(super) fn make(path: PathBuf) -> Result<Self, DemoError> {
        for part in ["data", "metadata"] {
            make_dir(&path.join(part))?;
        }
        let location = location_of(&path)?;
        Ok(Self { path, location, buffer: FileIO::new_with_memory() })
    }

    /// The table's location.
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// The location of the file `relative`.
    pub(super) fn locate(&self, relative: &str) -> String {
        format!("{}/{relative}", self.location)
    }

    /// Where the Iceberg crate's writers write the file `relative`; [`Self::settle`] makes it a file.
    pub(super) fn output(&self, relative: &str) -> Result<OutputFile, DemoError> {
        let location = self.locate(relative);
        self.buffer.new_output(&location).map_err(|error| DemoError::write(&location, &error))
    }

    /// Writes what was put out for `relative` as a file of time `at`; returns its size.
    pub(super) async fn settle(&self, relative: &str, at: Timestamp) -> Result<u64, DemoError> {
        let location = self.locate(relative);
        let failed = |error: iceberg::Error| DemoError::write(&location, &error);
        let bytes = self.buffer.new_input(&location).map_err(failed)?.read().await.map_err(failed)?;
        self.buffer.delete(&location).await.map_err(failed)?;
        self.write(relative, &bytes, at)?;
        Ok(bytes.len() as u64)
    }

    /// Writes a file as if at `at`; returns its location.
    pub(super) fn write(&self, relative: &str, bytes: &[u8], at: Timestamp) -> Result<String, DemoError> {
        let path = self.path.join(relative);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        let write = || {
            let time = UNIX_EPOCH + Duration::from_millis(at.0.unsigned_abs());
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.set_times(FileTimes::new().set_modified(time).set_accessed(time))
        };
        write().map_err(|source| DemoError::io("write", &path, source))?;
        Ok(self.locate(relative))
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
