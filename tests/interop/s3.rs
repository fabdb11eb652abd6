//! The same on S3: what is deleted is what Iceberg Java deletes on local files, by key, byte for byte.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

use percent_encoding::percent_decode_str;

use crate::binary::{Answer, Paused, icewarden};
use crate::parity;
use crate::s3_lake::{S3Lake, key, of_table};

const EXPIRE: &str = "run expire --older-than 5d --retain-last 1 --apply --json";
const SWEEP: &str = "run sweep --apply --json";

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
    lake.assert_expired_as_java_does(&before, &expire, "by us");
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
