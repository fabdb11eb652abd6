//! Kinds of files that a table is made of, and what a store says about an object.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Timestamp;

/// What a content file holds (spec, data file field 134).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Rows.
    Data,
    /// Position deletes, deletion vectors in Puffin files among them.
    PositionDeletes,
    /// Equality deletes.
    EqualityDeletes,
}

/// What an object is to its table. The order is the order of deletion: content goes first, so that
/// whatever is needed to compute the candidates again is deleted last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A data file.
    Data,
    /// A position or equality delete file, or a Puffin file of deletion vectors.
    Delete,
    /// A manifest.
    Manifest,
    /// A manifest list.
    ManifestList,
    /// A table or partition statistics file.
    Statistics,
    /// A metadata file that fell off the log, or was written for a lost commit.
    Metadata,
    /// An object whose name does not tell: it was found by listing.
    Other,
}

impl FileKind {
    /// All kinds in the order of deletion.
    pub const ALL: [Self; 7] =
        [Self::Data, Self::Delete, Self::Manifest, Self::ManifestList, Self::Statistics, Self::Metadata, Self::Other];

    /// One word, as reports and the database have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Delete => "delete",
            Self::Manifest => "manifest",
            Self::ManifestList => "manifest_list",
            Self::Statistics => "statistics",
            Self::Metadata => "metadata",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<Content> for FileKind {
    fn from(content: Content) -> Self {
        match content {
            Content::Data => Self::Data,
            Content::PositionDeletes | Content::EqualityDeletes => Self::Delete,
        }
    }
}

/// Whether a name is that of a table's metadata file: `00001-….metadata.json`, `v1.metadata.json`, gzipped or not.
pub fn is_metadata_file(name: &str) -> bool {
    name.ends_with(".metadata.json") || name.ends_with(".metadata.json.gz")
}

/// Whether a path below a table's folder is one of another table format's own folder: Delta Lake's or Hudi's.
pub fn is_other_format(below: &str) -> bool {
    let mut folders = below.split('/').rev().skip(1);
    folders.any(|folder| folder == "_delta_log" || folder == ".hoodie")
}

/// Hadoop's local file system writes `.X.crc` beside X: the location of X.
pub fn checksummed(location: &str) -> Option<String> {
    let (folder, name) = location.rsplit_once('/')?;
    let of = name.strip_prefix('.')?.strip_suffix(".crc")?;
    (!of.is_empty()).then(|| format!("{folder}/{of}"))
}

/// What the store says about an object, from a listing or a HEAD, never from a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct ObjectFacts {
    /// Bytes.
    pub size: u64,
    /// The store's modification time; `None` where the store keeps none.
    pub modified: Option<Timestamp>,
    /// The store's entity tag, where it gives one.
    pub etag: Option<String>,
}

/// A file that only expired snapshots use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Candidate {
    /// What it is.
    pub kind: FileKind,
    /// As the table has it.
    pub location: String,
    /// What a manifest says its size is, for the plan's text only: some writers record wrong sizes.
    pub recorded_size: Option<u64>,
    /// The commit of the plan after which nothing uses it, counted from 0.
    pub step: u32,
}

/// A number of objects and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Takes one back.
    pub fn take(&mut self, bytes: u64) {
        self.objects = self.objects.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
