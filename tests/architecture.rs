//! The rules of ARCHITECTURE.md that can be read off the source: who may use whom, and who does no IO.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Each module uses only what stands left of it (and its own parts).
const ORDER: [&str; 18] = [
    "model",
    "clock",
    "config",
    "storage",
    "postgres",
    "catalog",
    "state",
    "inventory",
    "plan",
    "guard",
    "report",
    "error",
    "failpoint",
    "apply",
    "sweep",
    "run",
    "check",
    "demo",
];

/// Decisions and facts: synchronous, no IO, no clock.
const PURE: [&str; 3] = ["plan", "guard", "model"];

/// The product's files by top module, with the part before the unit tests.
fn sources() -> Vec<(String, PathBuf, String)> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(&root).unwrap().to_owned();
            let top = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            let is_test = relative.to_str().unwrap().contains("tests");
            if !is_test {
                found.push((top.to_owned(), relative, text.to_owned()));
            }
        }
    }
    assert!(found.len() > 60, "{}", found.len());
    found
}

/// The modules of this crate that a text names as `crate::module`.
fn named(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    code.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
        .collect()
}

#[test]
fn a_module_uses_only_what_stands_left_of_it() {
    let place = |module: &str| ORDER.iter().position(|known| *known == module);
    let mut wrong = Vec::new();
    for (top, file, text) in sources() {
        // The command line stands right of everything.
        let Some(own) = place(&top) else {
            assert!(["cli", "main", "lib", "telemetry"].contains(&top.as_str()), "{top} has no place in the order");
            continue;
        };
        for used in named(&text).iter().filter(|used| **used != top) {
            if place(used).is_none_or(|used| used > own) {
                wrong.push(format!("{} uses {used}", file.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn decisions_and_facts_do_no_io_and_read_no_clock() {
    let banned = [
        "tokio",
        "std::fs",
        "std::net",
        "async fn",
        "Utc::now",
        "SystemTime",
        "Instant::now",
        "futures::",
        "reqwest",
        "sqlx",
    ];
    let mut wrong = Vec::new();
    for (_, file, text) in sources().into_iter().filter(|(top, ..)| PURE.contains(&top.as_str())) {
        for word in banned.iter().filter(|word| text.contains(**word)) {
            wrong.push(format!("{}: {word}", file.display()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn an_object_path_is_built_in_one_place() {
    let makes =
        ["Path::parse(", "Path::from(", "Path::from_iter(", "Path::from_url_path(", "Path::from_absolute_path("];
    let users: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(_, _, text)| {
            text.contains("object_store::path::Path") && makes.iter().any(|make| text.contains(make))
        })
        .map(|(_, file, _)| file)
        .collect();
    assert_eq!(users, [Path::new("model/location.rs")]);
}

#[test]
fn objects_are_deleted_by_the_sweep_only() {
    let naming = |words: &[&str]| -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = sources()
            .into_iter()
            .filter(|(_, _, text)| words.iter().any(|word| text.contains(word)))
            .map(|(_, file, _)| file)
            .collect();
        files.sort();
        files
    };
    let callers = naming(&["storage.delete(", ".delete_stream("]);
    assert_eq!(callers, [Path::new("storage/delete/other.rs"), Path::new("sweep/delete.rs")]);
    let requests = naming(&[".delete_many(", ".delete_one("]);
    assert_eq!(requests, [Path::new("storage/delete/s3.rs")]);
    // Beside them, `check --write` deletes the one scratch object that it wrote, and can be told no other.
    let stores = naming(&["store.delete(", "ObjectStoreExt::delete("]);
    assert_eq!(stores, [Path::new("storage/delete/other.rs"), Path::new("storage/probe.rs")]);
}
