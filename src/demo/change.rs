//! One commit's change of a demo table's files, and what a snapshot's summary says of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::content::{ContentFile, Holds};

/// Tells content files apart: a location and, where a Puffin file holds several vectors, the data file.
pub(super) type FileKey = (String, Option<String>);

/// The key of a content file.
pub(super) fn key(file: &ContentFile) -> FileKey {
    let target = match &file.holds {
        Holds::Vector { target, .. } => Some(target.clone()),
        Holds::Rows(_) | Holds::PositionDeletes { .. } => None,
    };
    (file.location.clone(), target)
}

/// One commit's change of files.
#[derive(Debug)]
pub(super) struct Change {
    /// `append`, `overwrite`, `replace` or `delete`.
    pub(super) operation: &'static str,
    pub(super) added: Vec<ContentFile>,
    pub(super) removed: BTreeSet<FileKey>,
    /// More for the summary.
    pub(super) notes: Vec<(&'static str, String)>,
}

impl Change {
    /// A change that only adds files.
    pub(super) fn of(operation: &'static str, added: Vec<ContentFile>) -> Self {
        Self { operation, added, removed: BTreeSet::new(), notes: Vec::new() }
    }

    /// The snapshot's summary; `before` is what its parent has.
    pub(super) fn summary<'a>(&self, before: impl Iterator<Item = &'a ContentFile> + Clone) -> Value {
        let had = count(before.clone());
        let gone = count(before.filter(|file| self.removed.contains(&key(file))));
        let new = count(self.added.iter());
        let mut summary = json!({ "operation": self.operation });
        for (key, value) in &self.notes {
            summary[*key] = json!(value);
        }
        let names = [
            ["added-data-files", "deleted-data-files", "total-data-files"],
            ["added-records", "deleted-records", "total-records"],
            ["added-delete-files", "removed-delete-files", "total-delete-files"],
            ["added-position-deletes", "removed-position-deletes", "total-position-deletes"],
            ["added-files-size", "removed-files-size", "total-files-size"],
        ];
        for (at, [added, deleted, total]) in names.into_iter().enumerate() {
            for (name, count) in [(added, new[at]), (deleted, gone[at])] {
                if count > 0 {
                    summary[name] = json!(count.to_string());
                }
            }
            summary[total] = json!((had[at] + new[at] - gone[at]).to_string());
        }
        summary["total-equality-deletes"] = json!("0");
        summary
    }
}

/// Data files and their rows, delete files and theirs, bytes.
fn count<'a>(files: impl Iterator<Item = &'a ContentFile>) -> [u64; 5] {
    let mut counts = [0; 5];
    for file in files {
        let of = if file.is_data() { 0 } else { 2 };
        counts[of] += 1;
        counts[of + 1] += file.records;
        counts[4] += file.size;
    }
    counts
}
