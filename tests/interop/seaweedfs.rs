//! SeaweedFS: its S3 below Iceberg's own REST catalog, which lends the keys to it; and its own REST catalog with OAuth2.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::binary::{Answer, Paused, icewarden};
use crate::parts::{RestCatalog, S3Server, send, variable};
use crate::s3_lake::{S3Lake, Table, Tables};

const EXPIRE: &str = "run expire --older-than 5d --retain-last 1 --apply --json";

#[test]
fn a_lake_whose_catalog_lends_the_keys_is_cleaned_as_by_java_and_shows_no_key() {
    let lake = S3Lake::on_seaweedfs("lent");
    let endpoint = &lake.server.endpoint;
    let rest = RestCatalog::serve_with(
        &lake.folder.join("catalog.db"),
        "s3://lake/wh",
        &[
            "token=let-me-in",
            "io-impl=org.apache.iceberg.aws.s3.S3FileIO",
            "s3.path-style-access=true",
            "s3.access-key-id=test",
            "s3.secret-access-key=testtest",
            "client.region=us-east-1",
            &format!("s3.endpoint={endpoint}"),
            &format!("config.s3.endpoint={endpoint}"),
            "config.s3.access-key-id=test",
            "config.s3.secret-access-key=testtest",
            "config.client.region=us-east-1",
        ],
    );
    let (uri, plans) = (&rest.uri, format!("file://{}/plans", lake.folder.display()));
    let catalog = format!("type = \"rest\"\nuri = \"{uri}\"\ntoken = \"let-me-in\"");
    let before = lake.objects();

    // Without them nothing can be read, and nothing happens.
    let config = lake.config_with(&format!("{catalog}\nvended_credentials = false"), "", &plans);
    let refused = Answer::of(&mut ours(&config)).exits(1);
    assert_eq!(refused.table("sales.orders")["outcome"], "failed", "{refused}");
    assert_eq!(lake.objects(), before);

    let check = Answer::of(&mut with_lent_keys(&config, "check --json")).exits(1);
    assert_eq!(checked(&check, "catalog")["status"], "fail", "{check}");

    let config = lake.config_with(&catalog, "", &plans);
    // What is lent for a table holds in its own folder, so that is where the check looks.
    let check = Answer::of(&mut with_lent_keys(&config, "check --write --json")).exits(0);
    let store = checked(&check, "store");
    assert!(store["name"].as_str().unwrap().starts_with("s3://lake/wh/ops/"), "{check}");
    assert!(store["text"].as_str().unwrap().contains("a scratch object written, read, deleted"), "{check}");
    assert_eq!(checked(&check, "versioning")["text"], "off: what is deleted is freed", "{check}");
    assert_eq!(checked(&check, "clock")["status"], "ok", "{check}");
    assert!(!check.to_string().contains("testtest"), "{check}");
    assert_eq!(lake.objects(), before);

    let held = Answer::of(&mut with_lent_keys(&config, "storage --json")).exits(0);
    let lines = held.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let objects: u64 = lines.map(|line| line["objects"].as_u64().unwrap()).sum();
    assert_eq!(objects, before.len() as u64, "{held}");

    let answer = Answer::of(&mut ours(&config)).exits(0);
    lake.assert_expired_as_java_does(&before, &answer, "by the server");
    let log = rest.log();
    assert!(log.iter().any(|line| line.contains("/tables/orders?snapshots=all 200")), "{log:?}");
    for said in [&answer, &refused, &held] {
        for secret in ["testtest", "let-me-in"] {
            assert!(!said.to_string().contains(secret), "{secret}\n{said}");
        }
    }
    let state = fs::read(lake.folder.join("icewarden.db")).unwrap();
    assert!(!String::from_utf8_lossy(&state).contains("testtest"), "no key is kept");

    let again = Answer::of(&mut ours(&config)).exits(0);
    assert_eq!(again.table("sales.orders")["counts"]["commits"], 0, "{again}");
}

/// The one thing that `check --json` says about this.
fn checked(answer: &Answer, about: &str) -> serde_json::Value {
    let lines = answer.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut found = lines.filter(|item| item["about"] == about);
    let item = found.next().unwrap_or_else(|| panic!("nothing about {about}\n{answer}"));
    assert!(found.next().is_none(), "more than one about {about}\n{answer}");
    item
}

fn ours(config: &std::path::Path) -> std::process::Command {
    with_lent_keys(config, EXPIRE)
}

/// No key but those that are lent: none of the environment, no metadata service to ask.
fn with_lent_keys(config: &std::path::Path, arguments: &str) -> std::process::Command {
    let mut command = icewarden(config, arguments);
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
    command
}

/// SeaweedFS's own catalog with the table db.t, and how it is reached.
struct OwnCatalog {
    server: S3Server,
    folder: PathBuf,
}

const OF_CATALOG: [&str; 4] = ["--prop", "warehouse=s3://ice", "--prop", "credential=test:testtest"];
/// Snapshots are seconds old.
const EXPIRE_ALL: &str = "run expire --older-than 0s --retain-last 1 --apply --json";

impl OwnCatalog {
    fn new(test: &str) -> Self {
        let folder = PathBuf::from(variable("ICEWARDEN_SCRATCH")).join(format!("seaweedfs-{test}"));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        let own = Self { server: S3Server::seaweedfs(None), folder };
        own.server.python("make_rest_table.py", own.uri(), &OF_CATALOG);
        own
    }

    fn uri(&self) -> &str {
        self.server.rest.as_deref().unwrap()
    }

    fn table(&self) -> Table {
        let read = self.server.python("read_rows.py", self.uri(), &[&OF_CATALOG[..], &["--files"]].concat());
        serde_json::from_str::<Tables>(&read).unwrap().remove("db.t").unwrap()
    }

    fn objects(&self) -> BTreeSet<String> {
        self.server.objects_of("ice").into_keys().map(|key| format!("s3://ice/{key}")).collect()
    }

    /// Creates a branch, as any client would.
    fn create_branch(&self, branch: &str, snapshot: i64) {
        let client = reqwest::Client::new();
        let form = [("grant_type", "client_credentials"), ("client_id", "test"), ("client_secret", "testtest")];
        let (_, token) = send(client.post(format!("{}/v1/oauth/tokens", self.uri())).form(&form));
        let body = json!({"requirements": [], "updates": [
            {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot}]});
        let post = client.post(format!("{}/v1/ice/namespaces/db/tables/t", self.uri())).json(&body);
        let (status, answer) = send(post.bearer_auth(token["access_token"].as_str().unwrap()));
        assert!(status.is_success(), "creating {branch} at {snapshot}: {status} {answer}");
    }

    fn config(&self) -> PathBuf {
        let (uri, endpoint, folder) = (self.uri(), &self.server.endpoint, self.folder.display());
        let text = format!(
            r#"
[[catalog]]
name = "lake"
type = "rest"
uri = "{uri}"
warehouse = "s3://ice"
credential = "test:testtest"
[storage."s3://ice"]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "test"
secret_access_key = "testtest"
allow_http = true
[state]
database = "sqlite://{folder}/icewarden.db"
plans = "file://{folder}/plans"
[expire]
grace = "0s"
floor = "0s"
ref_age = "spec"
keep_fork_points = false
[guard]
allow_floor_below_minimum = true
"#
        );
        let path = self.folder.join("icewarden.toml");
        fs::write(&path, text).unwrap();
        path
    }
}

#[test]
fn seaweedfs_own_catalog_is_cleaned_by_oauth2_and_keeps_every_retained_row() {
    let own = OwnCatalog::new("oauth2");
    let (was, before) = (own.table(), own.objects());
    assert_eq!((was.snapshots.len(), was.refs.len()), (7, 3));
    let answer = Answer::of(&mut icewarden(&own.config(), EXPIRE_ALL)).exits(0);
    let (is, after) = (own.table(), own.objects());
    assert_eq!(is.refs, was.refs, "{answer}");
    let heads: BTreeSet<String> = was.refs.values().map(ToString::to_string).collect();
    assert_eq!(is.snapshots.keys().cloned().collect::<BTreeSet<_>>(), heads, "{answer}");
    assert!(is.snapshots.iter().all(|(id, rows)| was.snapshots[id] == *rows), "rows of what is retained");

    let files = |table: &Table| table.files.values().flatten().cloned().collect::<BTreeSet<_>>();
    let doomed = &files(&was) - &files(&is);
    assert!(doomed.len() >= 4, "four manifest lists at least: {doomed:?}");
    assert_eq!(&before - &after, doomed, "{answer}");
    assert_eq!(answer.table("db.t")["counts"]["deleted_objects"], doomed.len(), "{answer}");
    assert!((&after - &before).iter().all(|new| new.ends_with(".metadata.json")), "only metadata is new");
    let again = Answer::of(&mut icewarden(&own.config(), EXPIRE_ALL)).exits(0);
    assert_eq!(again.table("db.t")["counts"]["commits"], 0, "{again}");
}

#[test]
fn a_branch_that_seaweedfs_removed_with_our_snapshots_is_reported_and_nothing_is_deleted() {
    let own = OwnCatalog::new("race");
    let (was, before) = (own.table(), own.objects());
    let doomed = was.snapshots.keys().find(|id| !was.refs.values().any(|head| head.to_string() == **id)).unwrap();
    let paused = Paused::at("after-intent", icewarden(&own.config(), EXPIRE_ALL));
    own.create_branch("late", doomed.parse().unwrap());
    let answer = paused.go_on().exits(1);
    let is = own.table();
    assert!(!is.refs.contains_key("late"), "the server removes it in silence\n{answer}");
    assert_eq!(answer.table("db.t")["counts"]["marked_objects"], 0, "{answer}");
    Answer::of(&mut icewarden(&own.config(), "findings --json")).exits(0).says("unplanned_removal");
    Answer::of(&mut icewarden(&own.config(), "run sweep --apply --json"));
    assert_eq!(&before - &own.objects(), BTreeSet::new(), "nothing is deleted");
    assert!(is.snapshots.iter().all(|(id, rows)| was.snapshots[id] == *rows), "rows of what is retained");
}
