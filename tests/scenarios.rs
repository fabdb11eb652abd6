//! Runs every scenario file of `tests/scenarios/` through the real pipeline: see its README.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's world is known")]
#![allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation, reason = "numbers of a scenario are small")]
#![allow(clippy::match_bool, reason = "two forms of one thing read best side by side")]

#[path = "scenario/avro.rs"]
mod avro;
#[path = "scenario/change.rs"]
mod change;
#[path = "scenario/drive.rs"]
mod drive;
#[path = "scenario/faults.rs"]
mod faults;
#[path = "scenario/format.rs"]
mod format;
#[path = "scenario/lake.rs"]
mod lake;
#[path = "scenario/rest_server.rs"]
mod rest_server;
#[path = "scenario/runner.rs"]
mod runner;
#[path = "scenario/store.rs"]
mod store;
#[path = "scenario/table.rs"]
mod table;
#[path = "scenario/two_catalogs.rs"]
mod two_catalogs;
#[path = "scenario/updates.rs"]
mod updates;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::format::Scenario;
use crate::lake::World;
use futures::StreamExt;
use iceberg::spec::{FormatVersion, Manifest, ManifestList, TableMetadata};
use icewarden::inventory::manifests::{read_manifest, read_manifest_list};

/// Scenarios in flight at once.
const PARALLEL: usize = 4;

/// Every scenario file: name and text.
fn files() -> Vec<(String, String)> {
    #[expect(clippy::disallowed_methods, reason = "a test's input, not the product's")]
    let more = std::env::var("ICEWARDEN_SCENARIOS").ok();
    let mut files = Vec::new();
    for folder in [Some(format!("{}/tests/scenarios", env!("CARGO_MANIFEST_DIR"))), more].into_iter().flatten() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        files.extend(paths.into_iter().map(|path| {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path.file_name().unwrap().to_string_lossy().into_owned(), text)
        }));
    }
    files
}

/// Runs all in parallel; the failures, readable.
async fn failures(files: Vec<(String, String)>) -> Vec<String> {
    futures::stream::iter(files)
        .map(|(name, text)| async move {
            // On a runtime of its own: the catalog and whatever a run leaves behind end with it.
            let task = tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(runner::run(&text))
            });
            let wrong = match task.await {
                Ok(Ok(())) => return None,
                Ok(Err(wrong)) => wrong,
                Err(panicked) => vec![panicked.to_string()],
            };
            Some(format!("{name}\n    {}", wrong.join("\n    ")))
        })
        .buffer_unordered(PARALLEL)
        .filter_map(|failure| async { failure })
        .collect()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_scenario_ends_as_its_file_says() {
    let files = files();
    let count = files.len();
    assert!(count > 40, "only {count} scenario files were found");
    let mut failures = failures(files).await;
    failures.sort();
    assert!(failures.is_empty(), "{} of {count} scenarios failed:\n\n{}\n", failures.len(), failures.join("\n\n"));
}

/// B39 (b): a chain of 5,000 snapshots is walked without recursion, and all but the last 10 go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_snapshots_in_one_chain() {
    const SNAPSHOTS: usize = 5_000;
    const KEPT: usize = 10;
    let mut text = format!(
        "case = 'B39'\ntitle = 'five thousand'\nnow = '2026-01-31T00:00:00Z'\n\
         config = \"[expire]\\nretain_last = {KEPT}\"\n[[table]]\nname = 'db.t'\n\
         [[table.manifest]]\nid = 'M1'\nentries = [{{ file = 'D1' }}]\n"
    );
    for number in 1..=SNAPSHOTS {
        let parent = if number == 1 { String::new() } else { format!("S{}", number - 1) };
        writeln!(
            text,
            "[[table.snapshot]]\nid = 'S{number}'\nat = '-10d'\nparent = '{parent}'\nlist = 'ML{number}'\nmanifests = ['M1']"
        )
        .unwrap();
    }
    let named = |letters: &str, numbers: std::ops::RangeInclusive<usize>| {
        numbers.map(|number| format!("'{letters}{number}'")).collect::<Vec<_>>().join(",")
    };
    let gone = SNAPSHOTS - KEPT;
    writeln!(
        text,
        "[[step]]\njob = 'expire'\n[step.expect]\noutcome = 'done'\ndeleted = [{}]\nsnapshots = {{ 'db.t' = [{}] }}\n\
         counts = {{ expired_snapshots = {gone}, deleted_objects = {gone}, commits = 1 }}",
        named("ML", 1..=gone),
        named("S", gone + 1..=SNAPSHOTS)
    )
    .unwrap();
    if let Err(wrong) = runner::run(&text).await {
        panic!("{}", wrong.join("\n").chars().take(2_000).collect::<String>());
    }
}

#[test]
fn the_iceberg_crate_reads_every_table_that_a_scenario_builds() {
    let mut read = 0;
    for (name, text) in files() {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let world = World::build(&scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (table, spec) in world.tables.iter().zip(&scenario.tables) {
            let bytes = |location: &str| {
                let canonical = lake::canonical(location).unwrap();
                world.objects.get(&canonical).map(|(bytes, _)| bytes.clone())
            };
            let parsed = serde_json::from_value::<TableMetadata>(table.metadata.clone());
            match beyond_the_crate(spec) {
                Some(why) => assert!(parsed.is_err(), "{name}: {}: the crate reads {why} now", table.name),
                None => drop(parsed.unwrap_or_else(|error| panic!("{name}: {}: {error}", table.name))),
            }
            let version =
                [FormatVersion::V1, FormatVersion::V2, FormatVersion::V3][usize::from(spec.format_version) - 1];
            for snapshot in table.metadata["snapshots"].as_array().unwrap() {
                let Some(list) = snapshot["manifest-list"].as_str().and_then(bytes) else { continue };
                let list = ManifestList::parse_with_version(&list, version)
                    .unwrap_or_else(|error| panic!("{name}: {snapshot}: {error}"));
                for listed in list.entries() {
                    let Some(manifest) = bytes(&listed.manifest_path) else { continue };
                    assert_eq!(manifest.len() as i64, listed.manifest_length, "{name}: {}", listed.manifest_path);
                    let manifest = Manifest::parse_avro(&manifest)
                        .unwrap_or_else(|error| panic!("{name}: {}: {error}", listed.manifest_path));
                    let added = manifest.entries().iter().filter(|entry| entry.status() as i32 == 1).count();
                    assert_eq!(listed.added_files_count, Some(added as u32), "{name}: {}", listed.manifest_path);
                    read += 1;
                }
            }
        }
    }
    assert!(read > 100, "only {read} manifests were read");
}

#[test]
fn our_own_readers_read_every_table_that_a_scenario_builds() {
    let mut read = 0;
    for (name, text) in files() {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let world = World::build(&scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Raw text may be no metadata.
        let raw: BTreeSet<String> = scenario
            .objects
            .iter()
            .filter(|one| one.content.is_some())
            .map(|one| lake::canonical(&one.key).unwrap())
            .collect();
        let written = world.objects.iter().filter(|(key, _)| key.ends_with(".metadata.json") && !raw.contains(*key));
        for (location, (bytes, _)) in written {
            icewarden::catalog::metadata::parse(bytes, location).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let bytes = |location: &str| world.objects.get(&lake::canonical(location).unwrap()).map(|(bytes, _)| bytes);
        for snapshot in world.tables.iter().flat_map(|table| table.metadata["snapshots"].as_array().unwrap()) {
            let Some(list) = snapshot["manifest-list"].as_str() else { continue };
            let Some(list_bytes) = bytes(list) else { continue };
            let listed = read_manifest_list(list_bytes, list).unwrap_or_else(|error| panic!("{name}: {error}"));
            for manifest in listed {
                let counts = read_manifest(bytes(&manifest.location).unwrap(), &manifest, |_| {});
                let counts = counts.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(Some(counts), manifest.counts, "{name}: {}", manifest.location);
                read += 1;
            }
        }
    }
    assert!(read > 100, "only {read} manifests were read");
}

/// What of a table the crate refuses to read, and Iceberg Java writes or reads.
fn beyond_the_crate(spec: &format::TableSpec) -> Option<&'static str> {
    let is_known = |name: &str| spec.snapshots.iter().any(|snapshot| snapshot.id == name);
    if spec.refs.iter().any(|one| !is_known(&one.snapshot)) {
        return Some("a ref to nowhere");
    }
    if spec.snapshots.iter().any(|snapshot| snapshot.list.is_empty()) {
        return Some("a snapshot without a manifest list");
    }
    None
}
