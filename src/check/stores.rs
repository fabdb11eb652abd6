//! Stores: whether they are listed and read and, where that is asked for, written; their clocks; their versioning.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::{About, CheckItem, CheckRequest, catalogs};
use crate::clock::Clock;
use crate::config::Config;
use crate::guard::MAX_CLOCK_SKEW;
use crate::model::roots::root_of_metadata_file;
use crate::model::{Age, LocationRules, Root};
use crate::storage::{Storage, Versioning};

/// To list and read one object.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// To each request of a scratch object: it is deleted in any case.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// To tell the versioning.
const VERSIONING_LIMIT: Duration = Duration::from_secs(10);

/// A place with tables.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// What it is called, and where a scratch object goes: beside tables, not into one.
    folder: Root,
    /// What is listed: the metadata folder of one table.
    sample: Root,
}

/// Checks each bucket or folder that tables are in.
pub(super) async fn all(
    config: &Config,
    storage: &Storage,
    lake: &[catalogs::Seen],
    request: CheckRequest,
) -> Vec<CheckItem> {
    let rules = storage.rules();
    let warehouses: Vec<Root> =
        config.catalogs.iter().filter_map(|catalog| rules.root(catalog.warehouse.as_deref()?).ok()).collect();
    let mut tables: Vec<(Root, Root)> = Vec::new();
    // What a catalog lends for a table holds in the table's own folder only.
    let mut lent: BTreeMap<Root, (Root, &Storage)> = BTreeMap::new();
    for table in lake.iter().flat_map(|catalog| &catalog.tables) {
        let Ok(loaded) = &table.loaded else { continue };
        let roots = table.roots.iter().flat_map(|roots| &roots.roots).map(|root| (root.clone(), root.clone()));
        for (root, sample) in metadata_folder(&loaded.metadata_location, rules).into_iter().chain(roots) {
            if loaded.storage.is_lent(&sample) {
                lent.entry(sample.clone()).or_insert_with(|| (root.clone(), &loaded.storage));
            }
            tables.push((root, sample));
        }
    }
    let places: Vec<(Root, Root, &Storage)> = places(&warehouses, &tables)
        .into_iter()
        // A warehouse without tables: where keys are lent, there are none for it.
        .filter(|place| place.folder != place.sample || lent.is_empty() || lent.contains_key(&place.sample))
        .map(|Place { folder, sample }| match lent.get(&sample) {
            Some((root, lent)) => (root.clone(), sample, *lent),
            None => (folder, sample, storage),
        })
        .collect();
    let mut buckets: BTreeMap<String, (&Root, &Storage)> = BTreeMap::new();
    for (folder, _, storage) in &places {
        buckets.entry(store_of(folder)).or_insert((folder, storage));
    }
    let (used, told) = tokio::join!(
        join_all(places.iter().map(|(folder, sample, storage)| used(storage, folder, sample, request))),
        join_all(buckets.iter().map(|(name, (folder, storage))| of_bucket(storage, name, folder))),
    );
    used.into_iter().chain(told.into_iter().flatten()).collect()
}

/// A table's folder, and the metadata folder in it, as its metadata file tells.
fn metadata_folder(metadata_location: &str, rules: &LocationRules) -> Option<(Root, Root)> {
    let folder = metadata_location.rsplit_once('/')?.0;
    Some((root_of_metadata_file(metadata_location, rules).ok()?, rules.root(folder).ok()?))
}

/// The places of these tables, each told by its folder and what is listed of it: one for each warehouse, and one for
/// each bucket with tables that are in no warehouse.
fn places(warehouses: &[Root], tables: &[(Root, Root)]) -> Vec<Place> {
    let mut found: BTreeMap<Root, Place> = BTreeMap::new();
    let mut stores: BTreeMap<String, Place> = BTreeMap::new();
    for (root, sample) in tables {
        let in_warehouse =
            warehouses.iter().filter(|warehouse| warehouse.covers(root)).max_by_key(|w| w.as_str().len());
        if let Some(warehouse) = in_warehouse {
            let place = Place { folder: warehouse.clone(), sample: sample.clone() };
            found.entry(warehouse.clone()).or_insert(place);
        } else {
            // A scratch object does not go into the root of the file system.
            let above = root.parent().filter(|above| store_of(above) != "file://" || !above.is_whole_store());
            let place = Place { folder: above.unwrap_or_else(|| root.clone()), sample: sample.clone() };
            stores.entry(store_of(root)).or_insert(place);
        }
    }
    for warehouse in warehouses {
        let place = Place { folder: warehouse.clone(), sample: warehouse.clone() };
        found.entry(warehouse.clone()).or_insert(place);
    }
    found.into_values().chain(stores.into_values()).collect()
}

/// `scheme://authority`.
fn store_of(root: &Root) -> String {
    let text = root.as_str();
    let after = text.find("://").map_or(0, |at| at + 3);
    text[after..].find('/').map_or(text, |slash| &text[..after + slash]).to_owned()
}

/// Lists and reads `sample` and, where asked for, writes and deletes a scratch object in `folder`.
pub(super) async fn used(storage: &Storage, folder: &Root, sample: &Root, request: CheckRequest) -> CheckItem {
    let began = Clock::boot_ms();
    let name = folder.as_str();
    let advice = "see that the store is up and that this user may list, read, write and delete there \
                  ([storage.\"scheme://bucket\"])";
    let fail = |text: String| CheckItem::fail(About::Store, name, text, advice).took(began);
    let is_empty = match timeout(READ_LIMIT, storage.sample(sample)).await {
        Ok(Ok(has_object)) => !has_object,
        Ok(Err(error)) => return fail(error.to_string()),
        Err(_) => return fail(format!("cannot list {sample}: no answer in {} s", READ_LIMIT.as_secs())),
    };
    let read = if is_empty { "listed; there is nothing to read yet" } else { "listed and read" };
    if !request.write {
        let text = format!("{read}; write and delete not tried (--write)");
        return CheckItem::ok(About::Store, name, text).took(began);
    }
    match storage.scratch(folder, WRITE_LIMIT).await {
        Ok(()) => {
            let text = format!("{read}; a scratch object written, read, deleted");
            CheckItem::ok(About::Store, name, text).took(began)
        }
        Err(error) => {
            let mut item = fail(error.to_string());
            if let Some(left) = &error.left {
                item.advice = Some(format!("{advice}; delete {left}, if this check left it behind"));
            }
            item
        }
    }
}

/// The clock and the versioning of a bucket; nothing of stores that have neither.
async fn of_bucket(storage: &Storage, name: &str, folder: &Root) -> Vec<CheckItem> {
    let (skew, versioning) =
        tokio::join!(storage.clock_skew(folder.as_str()), storage.versioning(folder, VERSIONING_LIMIT),);
    let Some(versioning) = versioning else { return Vec::new() };
    vec![of_clock(name, skew.map(|(_, skew)| skew)), of_versioning(name, &versioning)]
}

/// What is to be said of a clock beside ours.
pub(super) fn of_clock(name: &str, skew: Option<Age>) -> CheckItem {
    let Some(skew) = skew else {
        return CheckItem::ok(About::Clock, name, "not seen: the store does not tell its time where it is asked");
    };
    let by = Age(skew.0.abs());
    let text = format!("ours and this one differ by {}, at most {} are allowed", by.show(), MAX_CLOCK_SKEW.show());
    if by > MAX_CLOCK_SKEW {
        let advice = "set both by NTP; until then every run that would change something is refused";
        return CheckItem::fail(About::Clock, name, text, advice);
    }
    CheckItem::ok(About::Clock, name, text)
}

fn of_versioning(name: &str, versioning: &Versioning) -> CheckItem {
    let lifecycle = "let a lifecycle rule of the bucket expire noncurrent versions and delete markers";
    match versioning {
        Versioning::Off => CheckItem::ok(About::Versioning, name, "off: what is deleted is freed"),
        Versioning::On => {
            let text = "on: deletes only add delete markers, and free nothing until noncurrent versions expire";
            CheckItem::warn(About::Versioning, name, text, lifecycle)
        }
        Versioning::Suspended => {
            let text = "suspended: objects from before keep a version when they are deleted, and free nothing until it expires";
            CheckItem::warn(About::Versioning, name, text, lifecycle)
        }
        Versioning::Unseen(why) => CheckItem::ok(About::Versioning, name, format!("not seen: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    fn root(text: &str) -> Root {
        LocationRules::default().root(text).unwrap()
    }

    fn shown(warehouses: &[&str], tables: &[&str]) -> Vec<(String, String)> {
        let warehouses: Vec<Root> = warehouses.iter().map(|text| root(text)).collect();
        let tables: Vec<(Root, Root)> =
            tables.iter().map(|text| (root(text), root(&format!("{text}/metadata")))).collect();
        let text = |root: &Root| root.as_str().to_owned();
        places(&warehouses, &tables).iter().map(|place| (text(&place.folder), text(&place.sample))).collect()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect()
    }

    #[test]
    fn each_warehouse_and_each_other_bucket_is_one_place() {
        let tables = ["s3://wh/a/t", "s3://wh/a/u", "s3://other/x/t", "s3://other/y/t", "s3://flat/t"];
        assert_eq!(
            shown(&["s3a://wh/a", "s3://wh"], &tables),
            pairs(&[
                // The closest warehouse; one without tables is listed itself.
                ("s3://wh/", "s3://wh/"),
                ("s3://wh/a/", "s3://wh/a/t/metadata/"),
                ("s3://flat/", "s3://flat/t/metadata/"),
                ("s3://other/x/", "s3://other/x/t/metadata/"),
            ])
        );
        assert_eq!(shown(&[], &["/w/db/t"]), pairs(&[("file:///w/db/", "file:///w/db/t/metadata/")]));
        assert_eq!(shown(&[], &["/t"]), pairs(&[("file:///t/", "file:///t/metadata/")]), "not the root itself");
        assert_eq!(shown(&[], &[]), []);
    }

    #[test]
    fn a_store_is_named_by_scheme_and_authority() {
        for (text, store) in [("s3://b/k", "s3://b"), ("s3://b", "s3://b"), ("/x/y", "file://")] {
            assert_eq!(store_of(&root(text)), store, "{text}");
        }
    }

    #[test]
    fn clocks_may_differ_by_a_minute() {
        for (ms, status) in [(0, Status::Ok), (60_000, Status::Ok), (60_001, Status::Fail), (-60_001, Status::Fail)] {
            assert_eq!(of_clock("s3://b", Some(Age(ms))).status, status, "{ms}");
        }
        let untold = of_clock("s3://b", None);
        assert_eq!((untold.status, untold.text.starts_with("not seen")), (Status::Ok, true));
    }

    #[test]
    fn versions_that_stay_are_a_warning() {
        for (versioning, status, word) in [
            (Versioning::Off, Status::Ok, "off"),
            (Versioning::On, Status::Warn, "on: deletes only add delete markers"),
            (Versioning::Suspended, Status::Warn, "suspended"),
            (Versioning::Unseen("why".into()), Status::Ok, "not seen: why"),
        ] {
            let item = of_versioning("s3://b", &versioning);
            assert_eq!((item.status, item.text.starts_with(word)), (status, true), "{}", item.text);
        }
    }
}
