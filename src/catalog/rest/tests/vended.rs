//! Keys that the catalog lends with a table, used on a store over real HTTP.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::vended as lent_by;
use super::*;
use crate::storage::tests::ObjectServer;

/// A catalog whose every table is this one, at its own folder; and the store of all of them. `more` is put into the
/// answer to each load, by how many were answered before.
async fn lending(
    more: impl Fn(usize, &str) -> Value + Clone + Send + Sync + 'static,
) -> (Server, ObjectServer, RestCatalog) {
    let objects = ObjectServer::start().await;
    let at = |name: &str| {
        let mut metadata = metadata_with(&[1, 2], 2);
        metadata["location"] = format!("s3://lake/{name}").into();
        metadata
    };
    for name in ["t", "u"] {
        objects.put(&format!("/lake/{name}/metadata/1.metadata.json"), at(name).to_string());
    }
    let loads = Arc::new(AtomicUsize::new(0));
    let server = Server::start(move |line| {
        let Some((_, name)) = line.split_once("/tables/") else { return empty_config() };
        let name = &name[..1];
        let location = format!("s3://lake/{name}/metadata/1.metadata.json");
        let mut answer = json!({ "metadata-location": location, "metadata": at(name) });
        let more = more(loads.fetch_add(1, Ordering::SeqCst), name);
        answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ok(&answer)
    })
    .await;
    let options = [("region", "eu-west-1"), ("access_key_id", "CONFIGURED"), ("secret_access_key", "secret")];
    let mut options: BTreeMap<String, Secret> =
        options.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect();
    // The one that the catalog tells can be reached from inside only.
    options.insert("endpoint".to_owned(), Secret::new(objects.uri.clone()));
    options.insert("allow_http".to_owned(), Secret::new("true"));
    let storage = Storage::new(LocationRules::default(), [("s3://lake".to_owned(), options)].into(), 4);
    let catalog = open(&server, storage).await;
    (server, objects, catalog)
}

fn config_of(id: &str) -> Value {
    json!({
        "s3.access-key-id": id, "s3.secret-access-key": format!("secret-of-{id}"),
        "s3.session-token": format!("token-of-{id}"), "s3.endpoint": "http://store.inside:9000",
        "s3.path-style-access": true, "client.region": "us-east-1", "odd": [1, null],
    })
}

fn ids(asked: &[String]) -> Vec<&str> {
    let id = |asked: &String| -> Option<usize> { asked.find("Credential=") };
    asked.iter().map(|line| line[id(line).unwrap() + 11..].split('/').next().unwrap()).collect()
}

#[tokio::test]
async fn each_table_is_read_with_its_own_keys_which_nothing_shows() {
    let (server, objects, catalog) = lending(|_, name| match name {
        "t" => json!({
            "config": config_of("CONFIG"),
            "storage-credentials": [
                { "prefix": "s3://lake/t/", "config": { "s3.access-key-id": "T", "s3.secret-access-key": "secret-of-T" } },
                { "prefix": "s3://lake/t/data/", "config": config_of("DATA") },
                { "prefix": "gs://lake/t/", "config": { "gcs.oauth2.token": "token-of-gcs" } },
                "no credential",
            ],
        }),
        _ => json!({ "config": config_of("U"), "storage-credentials": null }),
    })
    .await;
    let t = catalog.load(&table(&["db"], "t")).await.unwrap();
    assert_eq!(server.last().line, "GET /v1/namespaces/db/tables/t?snapshots=all");
    assert_eq!(server.last().header("x-iceberg-access-delegation"), "vended-credentials");
    let u = catalog.load(&table(&["db"], "u")).await.unwrap();
    t.storage.read("s3://lake/t/data/1.parquet").await.unwrap();
    t.storage.read("s3://lake/elsewhere/1.parquet").await.unwrap();
    u.storage.read("s3://lake/u/data/1.parquet").await.unwrap();
    catalog.storage.read("s3://lake/t/data/1.parquet").await.unwrap();
    let asked = objects.asked();
    assert_eq!(ids(&asked), ["T", "U", "DATA", "CONFIG", "U", "CONFIGURED"]);
    assert!(!asked[0].contains("token-of"), "the session of other keys is not sent: {}", asked[0]);
    // The configured region wins over the one that is lent, as the endpoint does.
    assert!(asked.iter().all(|asked| asked.contains("/eu-west-1/s3/")), "{asked:?}");
    for shown in [format!("{t:?}"), format!("{u:?}"), format!("{catalog:?}")] {
        assert!(!shown.contains("secret-of") && !shown.contains("token-of"), "{shown}");
    }
}

#[tokio::test]
async fn keys_about_to_end_and_refused_keys_are_lent_anew_for_the_same_table_only() {
    let ended = (Clock::system().0 - 1000).to_string();
    let (server, objects, catalog) = lending(move |loads, _| {
        let mut config = config_of(["FIRST", "SECOND", "THIRD"][loads.min(2)]);
        if loads == 0 {
            config["s3.session-token-expires-at-ms"] = ended.clone().into();
        }
        let mut answer = json!({ "config": config });
        if loads > 2 {
            let mut metadata = metadata_with(&[1, 2], 2);
            metadata["table-uuid"] = "1fb5c1f6-e3a6-4b54-9b11-a1a1ea1b6f00".into();
            answer["metadata"] = metadata;
        }
        answer
    })
    .await;
    let t = catalog.load(&table(&["db"], "t")).await.unwrap();
    objects.refuse("SECOND");
    t.storage.read("s3://lake/t/data/1.parquet").await.unwrap();
    assert_eq!(ids(&objects.asked()), ["SECOND", "SECOND", "THIRD"]);
    let lines = server.lines();
    assert_eq!(
        lines[1..].iter().map(|line| line.rsplit('=').next().unwrap()).collect::<Vec<_>>(),
        ["all", "refs", "refs"]
    );
    // Another table has the name now: its keys are not for this one.
    let asked = Clock::system();
    let vended = Vended::of(json!({}), json!(null));
    let again = catalog.storage_of(&t.name, &t.metadata_location, &t.state, &vended, asked);
    assert!(!format!("{again:?}").contains("s3://lake/\""), "nothing lent, nothing held: {again:?}");
    let mut old = config_of("OLD");
    old["s3.session-token-expires-at-ms"] = 1.into();
    let vended = Vended::of(old, json!(null));
    let again = catalog.storage_of(&t.name, &t.metadata_location, &t.state, &vended, asked);
    let error = again.read("s3://lake/t/data/1.parquet").await.unwrap_err();
    assert!(error.reason.contains("was given to another table"), "{error}");
    assert_eq!(objects.asked(), [""; 0]);
}

#[tokio::test]
async fn a_catalog_that_is_not_to_lend_is_not_asked_and_its_keys_are_not_used() {
    let (server, objects, mut catalog) = lending(|_, _| json!({ "config": config_of("LENT") })).await;
    catalog.lends = false;
    let t = catalog.load(&table(&["db"], "t")).await.unwrap();
    t.storage.read("s3://lake/t/data/1.parquet").await.unwrap();
    assert_eq!(ids(&objects.asked()), ["CONFIGURED", "CONFIGURED"]);
    assert_eq!(server.last().header("x-iceberg-access-delegation"), "");
}

#[test]
fn properties_become_keys_by_icebergs_names() {
    let mut metadata = metadata_with(&[1], 1);
    let of = |location: &str, metadata: &mut Value, config: Value, credentials: Value| {
        metadata["location"] = location.into();
        let file = format!("{location}/metadata/1.metadata.json");
        let state = metadata::parse(metadata.to_string().as_bytes(), &file).unwrap();
        let rules = LocationRules::default();
        let table = lent_by::Table { rules: &rules, metadata_location: &file, state: &state, allows_http: false };
        let grants = Vended::of(config, credentials).grants(&table);
        let told = |grant: crate::storage::Grant| {
            (grant.prefix, grant.keys.scheme(), grant.until.map(|until| until.0), grant.settings)
        };
        grants.into_iter().map(told).collect::<Vec<_>>()
    };
    let none = BTreeMap::new;
    let gcs = json!({ "gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": 7 });
    assert_eq!(of("gs://b/t", &mut metadata, gcs.clone(), json!([])), [("gs://b/".to_owned(), "gs", Some(7), none())]);
    // A mere scheme stands for the table's own buckets.
    assert_eq!(
        of("gs://b/t", &mut metadata, json!(null), json!([{ "prefix": "gs", "config": gcs }])),
        [("gs://b/".to_owned(), "gs", Some(7), none())]
    );
    let azure = |name: &str| json!({ format!("adls.sas-token.{name}"): "sig=x", format!("adls.sas-token-expires-at-ms.{name}"): "8" });
    let store = "abfss://c@account.dfs.core.windows.net/";
    for (name, found) in [("account.dfs.core.windows.net", 1), ("account", 1), ("other.dfs.core.windows.net", 0)] {
        let grants = of(&format!("{store}t"), &mut metadata, azure(name), json!([]));
        assert_eq!(grants, vec![(store.to_owned(), "abfss", Some(8), none()); found], "{name}");
    }
    // Keys are whole, and of the store's own kind.
    let half = json!({ "s3.access-key-id": "K", "s3.endpoint": "http://x" });
    let rest = json!([{ "prefix": "s3://b/t", "config": { "s3.secret-access-key": "s" } }]);
    assert_eq!(of("s3://b/t", &mut metadata, half.clone(), rest), []);
    assert_eq!(of("file:///t", &mut metadata, half.clone(), json!("odd")), []);
    let whole = json!({ "s3.access-key-id": "K", "s3.secret-access-key": "s", "s3.endpoint": "http://x" });
    let settings = BTreeMap::from([("endpoint".to_owned(), "http://x".to_owned())]);
    assert_eq!(
        of("s3a://b/t", &mut metadata, whole, json!([])),
        [("s3://b/".to_owned(), "s3", None, settings)],
        "a catalog on https:// does not send keys to http://"
    );
}
