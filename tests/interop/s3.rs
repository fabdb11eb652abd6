//! The same on S3: what is deleted is what Iceberg Java deletes on local files, by key, byte for byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use percent_encoding::percent_decode_str;

use crate::binary::{Answer, Paused, icewarden};
use crate::parity;
use crate::parts::{S3Server, variable};

const EXPIRE: &str = "run expire --older-than 5d --retain-last 1 --apply --json";
const SWEEP: &str = "run sweep --apply --json";
/// Its folder and its partitions have names that have to be quoted.
const ODD: (&str, usize, usize) = ("ops.odd", 1, 11);
const BUCKET: &str = "s3://lake/";

/// A table as pyiceberg reads it.
#[derive(Debug, serde::Deserialize)]
struct Table {
    refs: BTreeMap<String, i64>,
    /// Each snapshot's rows: count and digest.
    snapshots: BTreeMap<String, String>,
    /// Each snapshot's manifest list, manifests and live files.
    files: BTreeMap<String, BTreeSet<String>>,
    /// The metadata files that the table knows.
    metadata: BTreeSet<String>,
}

type Tables = BTreeMap<String, Table>;

/// The pyiceberg lake in a bucket of its own, made once in a run of the tests.
struct S3Lake {
    folder: PathBuf,
    server: S3Server,
    before: Tables,
}

impl S3Lake {
    fn new(test: &str) -> Self {
        static MADE: Mutex<()> = Mutex::new(());
        let scratch = PathBuf::from(variable("ICEWARDEN_SCRATCH")).join("s3");
        let original = scratch.join("original");
        {
            let _alone = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            if !original.exists() {
                let made = scratch.join("made");
                remove(&made);
                fs::create_dir_all(&made).unwrap();
                let server = S3Server::serve(None);
                server.python("make_lake.py", &made.join("lake"), &["--odd", "--warehouse", "s3://lake/wh"]);
                server.save(&made.join("objects.zip"));
                fs::write(made.join("read.json"), server.python("read_rows.py", &made.join("lake"), &["--files"]))
                    .unwrap();
                fs::rename(made, &original).unwrap();
            }
        }
        let folder = scratch.join(test);
        remove(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(original.join("lake/catalog.db"), folder.join("catalog.db")).unwrap();
        let before = serde_json::from_slice(&fs::read(original.join("read.json")).unwrap()).unwrap();
        Self { folder, server: S3Server::serve(Some(&original.join("objects.zip"))), before }
    }

    fn config(&self) -> PathBuf {
        self.config_at(&self.server.endpoint)
    }

    fn config_at(&self, endpoint: &str) -> PathBuf {
        let folder = self.folder.display();
        let text = format!(
            r#"
[[catalog]]
name = "lake"
type = "sql"
uri = "sqlite://{folder}/catalog.db"
warehouse = "s3://lake/wh"
[storage."s3://lake"]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "test"
secret_access_key = "testtest"
allow_http = "true"
[state]
database = "sqlite://{folder}/icewarden.db"
plans = "s3://lake/icewarden/plans"
[expire]
grace = "0s"
ref_age = "spec"
keep_fork_points = false
"#
        );
        let path = self.folder.join("icewarden.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// All objects but our own plans and marks: key and digest.
    fn objects(&self) -> BTreeMap<String, String> {
        let mut objects = self.server.objects();
        objects.retain(|key, _| !key.starts_with("icewarden/"));
        objects
    }

    fn tables(&self) -> Tables {
        serde_json::from_str(&self.server.python("read_rows.py", &self.folder, &["--files"])).unwrap()
    }
}

fn remove(folder: &Path) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
}

fn key(location: &str) -> &str {
    location.strip_prefix(BUCKET).unwrap_or_else(|| panic!("{location} is not in the bucket"))
}

fn keys<'a>(locations: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
    locations.into_iter().map(|location| key(location).to_owned()).collect()
}

/// The keys of these objects that lie in the folder of the table.
fn of_table<'a>(keys: impl IntoIterator<Item = &'a String>, table: &Table) -> BTreeSet<String> {
    let metadata = key(table.metadata.first().unwrap());
    let folder = &metadata[..=metadata.rfind("/metadata/").unwrap()];
    keys.into_iter().filter(|key| key.starts_with(folder)).cloned().collect()
}

/// Keys that a client which decodes, encodes, trims or normalizes takes for this one.
fn near_misses(key: &str) -> Vec<String> {
    let (folder, name) = key.rsplit_once('/').unwrap();
    let decoded = percent_decode_str(key).decode_utf8().unwrap();
    vec![
        format!("{folder}%2F{name}"),
        format!("{folder}//{name}"),
        format!("{key}/"),
        format!("{key} "),
        format!("{key}+"),
        decoded.replace('+', " "),
        decoded.into_owned(),
        key.replace('+', " "),
        key.replace(' ', "+"),
        key.replace(' ', "%20"),
        key.replace('%', "%25"),
        key.replace('=', "%3D"),
        key.replace("e\u{301}", "é"),
        key.replace('é', "e\u{301}"),
        key.to_uppercase(),
    ]
}

#[test]
fn expiry_on_s3_deletes_exactly_what_only_expired_snapshots_need() {
    let lake = S3Lake::new("exact");
    // Near misses of all keys of the odd table, which are many, and of some of the others.
    let live = lake.objects();
    let chosen = live.keys().enumerate().filter(|(at, key)| key.contains("/odd ") || at % 40 == 0);
    let planted: BTreeSet<String> =
        chosen.flat_map(|(_, key)| near_misses(key)).filter(|key| !live.contains_key(key)).collect();
    lake.server.put(&Vec::from_iter(planted.clone()));
    let before = lake.objects();
    assert_eq!(before.len(), live.len() + planted.len());
    assert!(live.iter().all(|(key, digest)| before[key] == *digest), "the server keeps near misses apart");

    let config = lake.config();
    let expire = Answer::of(&mut icewarden(&config, EXPIRE)).exits(0);
    let sweep = Answer::of(&mut icewarden(&config, SWEEP)).exits(0);
    assert_eq!(sweep.json()["tables"], serde_json::json!([]), "without grace, the expiry has swept\n{sweep}");
    let (tables, after) = (lake.tables(), lake.objects());
    let gone: BTreeSet<&String> = before.keys().filter(|key| !after.contains_key(*key)).collect();

    let mut expected = BTreeSet::new();
    for (name, snapshots, files) in parity::TABLES.into_iter().chain([ODD]) {
        let (was, is) = (&lake.before[name], &tables[name]);
        let retained = is.files.values().flatten().collect::<BTreeSet<_>>();
        let mut doomed: BTreeSet<&String> =
            was.files.values().flatten().filter(|&file| !retained.contains(file)).collect();
        doomed.extend(was.metadata.difference(&is.metadata));
        assert_eq!(of_table(gone.iter().copied(), was), keys(doomed.iter().copied()), "objects of {name}");
        assert_eq!((was.snapshots.len() - is.snapshots.len(), doomed.len()), (snapshots, files), "{name}");
        expected.extend(keys(doomed));

        let counts = expire.table(name)["counts"].clone();
        let count = |what: &str| counts[what].as_u64().unwrap();
        assert_eq!(count("expired_snapshots"), snapshots as u64, "{name}");
        assert_eq!(count("deleted_objects"), files as u64, "{name}");
        assert_eq!((count("failed_deletes"), count("unrepresentable"), count("already_gone")), (0, 0, 0), "{name}");

        let mut rows = was.snapshots.clone();
        rows.retain(|snapshot, _| is.snapshots.contains_key(snapshot));
        assert_eq!(is.snapshots, rows, "rows of {name}");
        let dropped: Vec<_> = was.refs.keys().filter(|&name| !is.refs.contains_key(name)).collect();
        let expected: &[&str] = if name == "sales.orders" { &["eom_old", "pr_4812"] } else { &[] };
        assert_eq!(dropped, expected, "dropped refs of {name}");
    }
    assert_eq!(gone.into_iter().cloned().collect::<BTreeSet<_>>(), expected);

    let known: BTreeSet<String> = tables.values().flat_map(|table| keys(&table.metadata)).collect();
    for (key, digest) in &after {
        match before.get(key) {
            Some(before) => assert_eq!(digest, before, "{key} is as it was"),
            None => assert!(known.contains(key), "only metadata files are new, not {key}"),
        }
    }
}

#[test]
fn a_table_that_lost_a_manifest_on_s3_fails_by_name_and_the_others_are_done() {
    let lake = S3Lake::new("lost");
    let broken = &lake.before["sales.customers"];
    let head = &broken.files[&broken.refs["main"].to_string()];
    let manifest = head.iter().find(|file| file.ends_with("-m0.avro")).unwrap();
    lake.server.delete(&[key(manifest).to_owned()]);
    let left = of_table(lake.objects().keys(), broken);

    let config = lake.config();
    let answer = Answer::of(&mut icewarden(&config, EXPIRE)).exits(4);
    let report = answer.table("sales.customers");
    assert_eq!(report["outcome"], "failed", "{answer}");
    assert!(report["reason"].as_str().unwrap().contains(manifest), "names {manifest}\n{answer}");
    for (table, snapshots, _) in parity::TABLES.into_iter().filter(|(table, ..)| *table != "sales.customers") {
        let report = answer.table(table);
        assert_eq!(report["counts"]["expired_snapshots"], snapshots, "{table}\n{answer}");
        assert_eq!(report["outcome"], if table == "ops.frozen" { "skipped" } else { "done" }, "{table}\n{answer}");
    }
    Answer::of(&mut icewarden(&config, SWEEP));
    assert_eq!(of_table(lake.objects().keys(), broken), left, "nothing of it is touched");
}

#[test]
fn a_sweep_that_cannot_reach_s3_says_so_and_keeps_its_marks() {
    let lake = S3Lake::new("closed");
    let expire = EXPIRE.replace("run expire", "run expire --table sales.customers");
    Paused::at("after-mark", icewarden(&lake.config(), &expire)).kill();
    let marks = || Answer::of(&mut icewarden(&lake.config(), "marks list --json")).exits(0).stdout;
    let (marked, objects) = (marks(), lake.objects());
    let list: serde_json::Value = serde_json::from_str(&marked).unwrap();
    assert_eq!((&list["table"]["name"], &list["objects"]), (&"customers".into(), &26.into()), "{marked}");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answer = Answer::of(&mut icewarden(&lake.config_at(&format!("http://{closed}")), SWEEP)).exits(1);
    answer.says("s3://lake/icewarden/plans/").says(&closed.to_string());
    assert_eq!(marks(), marked);
    assert_eq!(lake.objects(), objects);

    let answer = Answer::of(&mut icewarden(&lake.config(), SWEEP)).exits(0);
    assert_eq!(answer.table("sales.customers")["counts"]["deleted_objects"], 26, "{answer}");
}

#[test]
fn check_sees_what_is_allowed_in_a_bucket_and_leaves_it_as_it_was() {
    let lake = S3Lake::new("check");
    let objects = lake.server.objects();
    let check = |config: &Path, write: &str| Answer::of(&mut icewarden(config, &format!("check{write} --json")));
    let item = |answer: &Answer, about: &str| -> serde_json::Value {
        let lines = answer.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut found = lines.filter(|item| item["about"] == about);
        let item = found.next().unwrap_or_else(|| panic!("nothing about {about}\n{answer}"));
        assert!(found.next().is_none(), "more than one about {about}\n{answer}");
        item
    };
    for write in ["", " --write"] {
        let answer = check(&lake.config(), write).exits(0);
        let store = item(&answer, "store");
        assert_eq!((&store["name"], &store["status"]), (&"s3://lake/wh/".into(), &"ok".into()), "{answer}");
        let text = if write.is_empty() { "not tried" } else { "a scratch object written, read, deleted" };
        for about in ["store", "plans"] {
            assert!(item(&answer, about)["text"].as_str().unwrap().contains(text), "{answer}");
        }
        assert_eq!(item(&answer, "versioning")["text"], "off: what is deleted is freed", "{answer}");
        assert_eq!(item(&answer, "clock")["status"], "ok", "{answer}");
        assert_eq!(lake.server.objects(), objects, "check{write}");
    }

    // A versioned bucket keeps what is deleted, also the scratch objects: one beside the tables, one with the plans.
    for status in ["Enabled", "Suspended"] {
        lake.server.set_versioning(status);
        let before = lake.server.versions();
        let answer = check(&lake.config(), " --write").exits(0);
        let versioning = item(&answer, "versioning");
        assert_eq!(versioning["status"], "warn", "{answer}");
        assert!(versioning["advice"].as_str().unwrap().contains("expire noncurrent versions"), "{answer}");
        assert_eq!(lake.server.objects(), objects, "{status}");
        // What is deleted while it is suspended, and was written so, is gone.
        let kept = if status == "Enabled" { 2 } else { 0 };
        let mut after = lake.server.versions();
        after.retain(|key, count| before.get(key) != Some(count));
        assert!(after.keys().all(|key| key.contains("/.icewarden-check-")), "{after:?}");
        assert_eq!(after.len(), kept, "{status}: {after:?}");
    }

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let answer = check(&lake.config_at(&format!("http://{closed}")), "").exits(1);
    assert_eq!(item(&answer, "store")["status"], "fail", "{answer}");
    let answer = answer.says(&closed.to_string());
    assert!(item(&answer, "versioning")["text"].as_str().unwrap().starts_with("not seen"), "{answer}");
}
