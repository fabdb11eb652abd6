//! Which folders belong to a table.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{BadLocation, LocationRules, Root, TableName, TableState};

/// Properties that redirect new files. The first two are current; the others are older names, under which
/// files of old tables still lie.
const PATH_PROPERTIES: [&str; 4] =
    ["write.data.path", "write.metadata.path", "write.folder-storage.path", "write.object-storage.path"];

/// A table's folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRoots {
    /// Which table.
    pub table: TableName,
    /// The metadata file they were read from.
    pub metadata_location: String,
    /// Its uuid, where it has one and is known.
    pub uuid: Option<Uuid>,
    /// Its location, data and metadata paths, and former locations.
    pub roots: BTreeSet<Root>,
}

/// The folders of a table: its location, its data and metadata paths, and the former locations that its
/// metadata log and its current metadata file tell.
pub fn roots_of(
    state: &TableState,
    metadata_location: &str,
    rules: &LocationRules,
) -> Result<BTreeSet<Root>, BadLocation> {
    let mut roots = BTreeSet::from([rules.root(&state.location)?]);
    roots.extend(paths_of(state, rules)?);
    let logged = state.metadata_log.iter().map(|entry| entry.location.as_str());
    for file in logged.chain([metadata_location]) {
        let location = rules.parse(file)?;
        if !roots.iter().any(|root| root.contains(&location)) {
            roots.insert(former_root(file, &state.location, rules)?);
        }
    }
    Ok(roots)
}

/// The folders that a table's properties name for its data and metadata.
pub fn paths_of(state: &TableState, rules: &LocationRules) -> Result<BTreeSet<Root>, BadLocation> {
    let mut paths = BTreeSet::new();
    for path in PATH_PROPERTIES.iter().filter_map(|name| state.property(name)) {
        // The specification lets the value be relative to the table's location.
        paths.insert(match rules.root(path) {
            Ok(root) => root,
            Err(_) => rules.root(&format!("{}/{path}", state.location))?,
        });
    }
    Ok(paths)
}

/// Of those, the folders in which many tables may put their files side by side, each by the hash of its name: data paths
/// of the object-store layout outside the table's location. No prefix of them is one table's.
pub fn hashed_paths(state: &TableState, rules: &LocationRules) -> Result<BTreeSet<Root>, BadLocation> {
    let is_on = state.property("write.object-storage.enabled").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let names = ["write.object-storage.path", "write.data.path", "write.folder-storage.path"];
    let names = if is_on { &names[..] } else { &names[..1] };
    let location = rules.root(&state.location)?;
    let paths = names.iter().filter_map(|name| state.property(name)).filter_map(|path| rules.root(path).ok());
    Ok(paths.filter(|path| !location.covers(path)).collect())
}

/// The former location that a logged metadata file tells: the folder above its metadata folder, unless that would
/// be a whole bucket, or a folder above the table's own, which other tables share; then the metadata folder alone.
fn former_root(file: &str, location: &str, rules: &LocationRules) -> Result<Root, BadLocation> {
    let root = root_of_metadata_file(file, rules)?;
    if root.is_whole_store() || root.covers(&rules.root(location)?) {
        return rules.root(file.rsplit_once('/').map_or(file, |(folder, _)| folder));
    }
    Ok(root)
}

/// The folder above the metadata folder of this file, or the file's own folder where that has another name.
pub fn root_of_metadata_file(file: &str, rules: &LocationRules) -> Result<Root, BadLocation> {
    let folder = file.rsplit_once('/').map_or(file, |(folder, _)| folder);
    rules.root(folder.strip_suffix("/metadata").unwrap_or(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::table::tests::empty_table;
    use crate::model::{MetadataLogEntry, Timestamp};

    #[test]
    fn a_tables_folders_are_its_location_its_paths_and_its_former_locations() {
        let mut state = empty_table();
        state.properties.insert("write.data.path".into(), "s3a://data/t/".into());
        state.properties.insert("write.metadata.path".into(), "meta".into());
        let log = [
            "s3://wh/metadata/0.metadata.json",
            "s3://wh/db/metadata/0.metadata.json",
            "s3://old/db/t/metadata/1.metadata.json",
            "s3://wh/db/t/metadata/2.metadata.json",
            "s3://odd/m/3.json",
        ];
        state.metadata_log =
            log.iter().map(|file| MetadataLogEntry { at: Timestamp(0), location: (*file).into() }).collect();
        let roots = roots_of(&state, "s3://wh/db/t/meta/4.metadata.json", &LocationRules::default()).unwrap();
        assert_eq!(
            roots.iter().map(Root::as_str).collect::<Vec<_>>(),
            [
                "s3://data/t/",
                "s3://odd/m/",
                "s3://old/db/t/",
                "s3://wh/db/metadata/",
                "s3://wh/db/t/",
                "s3://wh/db/t/meta/",
                "s3://wh/metadata/"
            ]
        );
    }
}
