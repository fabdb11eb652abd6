use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes as Body;
use axum::http::{HeaderMap, Method, StatusCode as Code, Uri};
use axum::response::IntoResponse;
use object_store::memory::InMemory;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::catalog::ListedTable;
use crate::config::{AuthConfig, Secret};
use crate::model::LocationRules;

mod access;
mod vended;

type Answer = (u16, String);

/// What a server was asked: `METHOD path?query`, and the body.
#[derive(Clone)]
struct Asked {
    line: String,
    headers: HeaderMap,
    body: String,
}

impl Asked {
    /// The header of this name, or nothing.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A real server on a real port, whose answers are a function of the request.
struct Server {
    uri: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    async fn start(answer: impl Fn(&str) -> Answer + Clone + Send + Sync + 'static) -> Self {
        Self::start_for(move |asked| answer(&asked.line)).await
    }

    /// Answers of 429 ask for a pause of no seconds.
    async fn start_for(answer: impl Fn(&Asked) -> Answer + Clone + Send + Sync + 'static) -> Self {
        let (asked, app) = app(answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { uri, asked }
    }

    fn lines(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|asked| asked.line.clone()).collect()
    }

    fn last(&self) -> Asked {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

fn app(answer: impl Fn(&Asked) -> Answer + Clone + Send + Sync + 'static) -> (Arc<Mutex<Vec<Asked>>>, Router) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Body| {
        let body = String::from_utf8_lossy(&body).into_owned();
        let asked = Asked { line: format!("{method} {uri}"), headers, body };
        log.lock().unwrap().push(asked.clone());
        let (code, body) = answer(&asked);
        async move {
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let pause = if code == 429 { "0" } else { "" };
            (Code::from_u16(code).unwrap(), [("retry-after", pause)], body).into_response()
        }
    };
    (asked, Router::new().fallback(handler))
}

fn ok(body: &Value) -> Answer {
    (200, body.to_string())
}

fn error(code: u16, kind: &str) -> Answer {
    (code, json!({ "error": { "message": "said so", "type": kind, "code": code } }).to_string())
}

fn empty_config() -> Answer {
    ok(&json!({ "defaults": {}, "overrides": {} }))
}

fn storage() -> Storage {
    Storage::new(LocationRules::default(), BTreeMap::new(), 4).with_store("s3://wh", Arc::new(InMemory::new()))
}

async fn open(server: &Server, storage: Storage) -> RestCatalog {
    let config = config(&server.uri, AuthConfig::Token(Secret::new("t0ken")));
    RestCatalog::open_within("lake", &config, Some("ware house"), storage, HURRIED).await.unwrap()
}

/// As by default, but for the pauses.
const HURRIED: Patience = Patience {
    connect: Duration::from_secs(10),
    request: Duration::from_mins(2),
    backoff: Duration::from_millis(1),
    listing: Duration::from_mins(2),
};

fn config(uri: &str, auth: AuthConfig) -> RestConfig {
    RestConfig { uri: uri.to_owned(), auth, headers: BTreeMap::new(), ca: None, vended_credentials: true }
}

async fn open_as(uri: &str, auth: AuthConfig) -> Result<RestCatalog, CatalogError> {
    RestCatalog::open_within("lake", &config(uri, auth), None, storage(), HURRIED).await
}

fn table(namespace: &[&str], name: &str) -> TableName {
    TableName {
        catalog: "lake".into(),
        namespace: namespace.iter().map(|level| (*level).to_owned()).collect(),
        name: name.into(),
    }
}

const FILE: &str = "s3://wh/t/metadata/1.metadata.json";

fn metadata_with(snapshots: &[i64], main: i64) -> Value {
    let snapshot = |id: &i64| json!({ "snapshot-id": id, "timestamp-ms": id, "manifest-list": format!("l{id}") });
    json!({
        "format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "s3://wh/t",
        "last-updated-ms": 5, "current-snapshot-id": main, "snapshots": snapshots.iter().map(snapshot).collect::<Vec<_>>(),
        "schemas": [{ "fields": [{ "type": "a-type-of-tomorrow" }] }],
        "refs": { "main": { "snapshot-id": main, "type": "branch" } },
    })
}

async fn put(storage: &Storage, metadata: &Value) {
    storage.write(FILE, metadata.to_string().into()).await.unwrap();
}

fn loaded(metadata: &Value) -> Answer {
    ok(&json!({ "metadata-location": FILE, "metadata": metadata, "config": { "odd": 7 } }))
}

/// A table as `commit` needs it.
fn base() -> LoadedTable {
    let metadata = metadata_with(&[1, 2], 2).to_string();
    LoadedTable {
        name: table(&["db"], "t"),
        metadata_location: FILE.into(),
        state: Arc::new(metadata::parse(metadata.as_bytes(), FILE).unwrap()),
        metadata: metadata.into(),
        storage: storage(),
    }
}

#[tokio::test]
async fn the_configuration_gives_prefix_and_separator_whatever_else_is_in_it() {
    for (config, path) in [
        (json!({ "defaults": {}, "overrides": {} }), "/v1/namespaces/a%1Fb/tables/t"),
        (json!({}), "/v1/namespaces/a%1Fb/tables/t"),
        (json!({ "defaults": { "prefix": "d" }, "overrides": null }), "/v1/d/namespaces/a%1Fb/tables/t"),
        (
            json!({ "defaults": { "prefix": "d" }, "overrides": { "prefix": "main|wh", "namespace-separator": "%2E", "n": 7 },
                    "endpoints": [1] }),
            "/v1/main|wh/namespaces/a%2Eb/tables/t",
        ),
        (
            json!({ "defaults": { "x": null }, "overrides": { "prefix": 7, "namespace-separator": "" } }),
            "/v1/namespaces/a%1Fb/tables/t",
        ),
    ] {
        let server =
            Server::start(
                move |line| if line.contains("/v1/config") { ok(&config) } else { error(404, "NoSuchTableException") },
            )
            .await;
        let catalog = open(&server, storage()).await;
        let asked = server.last();
        assert_eq!(asked.line, "GET /v1/config?warehouse=ware+house");
        assert_eq!(asked.headers["authorization"], "Bearer t0ken");
        let failure = catalog.load(&table(&["a", "b"], "t")).await.unwrap_err();
        assert!(matches!(failure, CatalogError::NoSuchTable { .. }), "{failure}");
        assert_eq!(server.last().line, format!("GET {path}?snapshots=all"));
        assert_eq!(server.last().headers["cache-control"], "no-cache");
        assert!(!format!("{catalog:?}").contains("t0ken"));
    }
}

#[tokio::test]
async fn what_is_no_catalog_cannot_be_opened() {
    for (answer, expected) in [
        (error(401, "NotAuthorizedException"), "HTTP 401 Unauthorized: NotAuthorizedException: said so"),
        ((404, "page not found".into()), "HTTP 404 Not Found: page not found"),
        ((302, String::new()), "HTTP 302 Found"),
        ((200, "<html>".into()), "no catalog configuration"),
    ] {
        let server = Server::start(move |_| answer.clone()).await;
        let failure = open_as(&server.uri, AuthConfig::None).await.unwrap_err().to_string();
        assert!(failure.contains(expected) && failure.contains("open catalog lake"), "{failure}");
    }
    let failure = open_as("http://127.0.0.1:1", AuthConfig::None).await.unwrap_err().to_string();
    assert!(failure.contains("refused") && failure.contains("after 4 attempts"), "{failure}");
    let token = AuthConfig::Token(Secret::new("a\nb"));
    let failure = open_as("http://host", token).await.unwrap_err().to_string();
    assert!(failure.contains("`token` holds characters"), "{failure}");
}

#[tokio::test]
async fn tables_of_nested_and_oddly_named_namespaces_are_listed_over_all_pages() {
    let server = Server::start(|line| {
        let ident = |namespace: &[&str], name: &str| json!({ "namespace": namespace, "name": name });
        match line.strip_prefix("GET /v1").unwrap() {
            "/config?warehouse=ware+house" => ok(&json!({ "defaults": {}, "overrides": { "prefix": "p" } })),
            "/p/namespaces" => ok(&json!({ "namespaces": [["a/b#c"]], "next-page-token": "n 1" })),
            "/p/namespaces?pageToken=n+1" => ok(&json!({ "namespaces": [["db"]], "next-page-token": null })),
            // It knows no `parent` here, and answers with all.
            "/p/namespaces?parent=a%2Fb%23c" => ok(&json!({ "namespaces": [["a/b#c"], ["db"]] })),
            "/p/namespaces?parent=db" => ok(&json!({ "namespaces": [["db", "x y"]] })),
            "/p/namespaces?parent=db%1Fx+y" => ok(&json!({ "namespaces": [] })),
            "/p/namespaces/a%2Fb%23c/tables" => ok(&json!({ "identifiers": [ident(&["a/b#c"], "50%")] })),
            "/p/namespaces/db/tables" => ok(&json!({ "identifiers": [ident(&["db"], "z")], "next-page-token": "2" })),
            "/p/namespaces/db/tables?pageToken=2" => ok(&json!({ "identifiers": [ident(&["db"], "a")] })),
            "/p/namespaces/db%1Fx%20y/tables" => ok(&json!({ "identifiers": [ident(&["db", "x y"], "t")] })),
            other => panic!("{other}"),
        }
    })
    .await;
    let listed = open(&server, storage()).await.list_tables().await.unwrap();
    let names: Vec<TableName> = listed.into_iter().map(|table| table.name).collect();
    assert_eq!(names, [table(&["a/b#c"], "50%"), table(&["db"], "a"), table(&["db"], "z"), table(&["db", "x y"], "t")]);
    assert!(server.asked.lock().unwrap().iter().all(|asked| asked.headers["authorization"] == "Bearer t0ken"));
}

#[tokio::test]
async fn a_server_with_its_own_separator_is_asked_with_it() {
    let server = Server::start(|line| match line.strip_prefix("GET /v1").unwrap() {
        "/config?warehouse=ware+house" => ok(&json!({ "defaults": {}, "overrides": { "namespace-separator": "%2E" } })),
        "/namespaces" => ok(&json!({ "namespaces": [["a"]] })),
        "/namespaces?parent=a" => ok(&json!({ "namespaces": [["a", "b"]] })),
        "/namespaces?parent=a.b" => ok(&json!({ "namespaces": [] })),
        "/namespaces/a/tables" => ok(&json!({ "identifiers": [] })),
        "/namespaces/a%2Eb/tables" => ok(&json!({ "identifiers": [{ "namespace": ["a", "b"], "name": "t" }] })),
        other => panic!("{other}"),
    })
    .await;
    let listed = open(&server, storage()).await.list_tables().await.unwrap();
    assert_eq!(listed, [ListedTable { name: table(&["a", "b"], "t"), metadata_location: None }]);
}

#[tokio::test]
async fn a_namespace_that_goes_while_listing_is_skipped_and_one_that_only_seems_gone_is_an_error() {
    for still_there in [false, true] {
        let lists = Arc::new(Mutex::new(0));
        let server = Server::start(move |line| match line.strip_prefix("GET /v1").unwrap() {
            "/config?warehouse=ware+house" => empty_config(),
            "/namespaces" => {
                let mut lists = lists.lock().unwrap();
                *lists += 1;
                let there = *lists == 1 || still_there;
                ok(&json!({ "namespaces": if there { vec![vec!["a"], vec!["b"]] } else { vec![vec!["b"]] } }))
            }
            "/namespaces?parent=b" => ok(&json!({ "namespaces": [] })),
            "/namespaces/b/tables" => ok(&json!({ "identifiers": [{ "namespace": ["b"], "name": "t" }] })),
            _ => error(404, "NoSuchNamespaceException"),
        })
        .await;
        let listed = open(&server, storage()).await.list_tables().await;
        if still_there {
            let failure = listed.unwrap_err().to_string();
            assert!(failure.contains("namespace a is listed, but asking for it answers 404"), "{failure}");
        } else {
            assert_eq!(listed.unwrap().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_listing_that_fails_half_way_is_an_error_and_not_a_short_list() {
    for broken in ["/v1/namespaces/b/tables", "/v1/namespaces?parent=a"] {
        let server = Server::start(move |line| match line.strip_prefix("GET ").unwrap() {
            line if line == broken => error(500, "ServiceFailureException"),
            "/v1/config?warehouse=ware+house" => empty_config(),
            "/v1/namespaces" => ok(&json!({ "namespaces": [["a"], ["b"]] })),
            line if line.contains("parent") => ok(&json!({ "namespaces": [] })),
            _ => ok(&json!({ "identifiers": [] })),
        })
        .await;
        let failure = open(&server, storage()).await.list_tables().await.unwrap_err().to_string();
        assert!(failure.contains("list tables of catalog lake"), "{failure}");
    }
}

#[tokio::test]
async fn a_load_gives_the_file_and_asks_for_odd_names_byte_for_byte() {
    let storage = storage();
    let metadata = metadata_with(&[1, 2], 2);
    put(&storage, &metadata).await;
    let server =
        Server::start(move |line| if line.contains("config") { empty_config() } else { loaded(&metadata) }).await;
    let catalog = open(&server, storage).await;
    for (namespace, name, path) in [
        (&["db"][..], "t", "db/tables/t"),
        (&["a/b#c", "x y"], "50%?ü", "a%2Fb%23c%1Fx%20y/tables/50%25%3F%C3%BC"),
        (&["."], "t", ""),
        (&["db"], "..", ""),
    ] {
        let load = catalog.load(&table(namespace, name)).await;
        if path.is_empty() {
            assert!(load.unwrap_err().to_string().contains("cannot be sent in a URL"));
            continue;
        }
        let loaded = load.unwrap();
        assert_eq!(server.last().line, format!("GET /v1/namespaces/{path}?snapshots=all"));
        assert_eq!((loaded.metadata_location.as_str(), loaded.state.snapshots.len()), (FILE, 2));
        assert_eq!(loaded.metadata, metadata_with(&[1, 2], 2).to_string());
    }
}

#[tokio::test]
async fn an_answer_that_differs_from_its_file_is_asked_for_once_more() {
    let truth = metadata_with(&[1, 2], 2);
    let mut other_uuid = truth.clone();
    other_uuid["table-uuid"] = json!("00000000-0000-0000-0000-000000000000");
    let mut other_retention = truth.clone();
    other_retention["refs"]["main"]["min-snapshots-to-keep"] = json!(5);
    for (answer, differs) in [
        (metadata_with(&[2], 2), "snapshot 1"),
        (metadata_with(&[1, 2, 3], 2), "snapshot 3"),
        (metadata_with(&[1, 2], 1), "ref main"),
        (other_uuid, "table-uuid"),
        (other_retention, "ref main"),
    ] {
        for once in [true, false] {
            let storage = storage();
            put(&storage, &truth).await;
            let (truth, answer, loads) = (truth.clone(), answer.clone(), Arc::new(Mutex::new(0)));
            let server = Server::start(move |line| {
                if line.contains("config") {
                    return empty_config();
                }
                let mut loads = loads.lock().unwrap();
                *loads += 1;
                loaded(if *loads > 1 && once { &truth } else { &answer })
            })
            .await;
            let load = open(&server, storage).await.load(&table(&["db"], "t")).await;
            assert_eq!(server.lines().len(), 3, "the configuration and two loads");
            if once {
                assert_eq!(load.unwrap().state.snapshots.len(), 2);
            } else {
                let failure = load.unwrap_err();
                assert!(matches!(failure, CatalogError::BadAnswer { .. }));
                assert!(failure.to_string().contains(differs) && failure.to_string().contains(FILE), "{failure}");
            }
        }
    }
}

#[tokio::test]
async fn loads_that_cannot_be_trusted_are_errors_that_name_the_table() {
    let metadata = metadata_with(&[1], 1);
    for (answer, expected) in [
        (ok(&json!({ "metadata": metadata })), "no metadata-location"),
        (ok(&json!({ "metadata-location": null, "metadata": metadata })), "no metadata-location"),
        (ok(&json!({ "metadata-location": FILE })), "no metadata"),
        (ok(&json!([])), "it is no table"),
        ((200, "<html>".into()), "it is no table"),
        (ok(&json!({ "metadata-location": FILE, "metadata": { "format-version": 4 } })), "format version 4"),
        (error(403, "ForbiddenException"), "HTTP 403 Forbidden: ForbiddenException: said so"),
        (error(503, "SlowDownException"), "HTTP 503"),
        ((204, String::new()), "HTTP 204"),
        // Not in the store.
        (loaded(&metadata), FILE),
    ] {
        let server =
            Server::start(move |line| if line.contains("config") { empty_config() } else { answer.clone() }).await;
        let failure = open(&server, storage()).await.load(&table(&["db"], "t")).await.unwrap_err().to_string();
        assert!(failure.contains(expected) && failure.contains("db.t"), "{failure}");
    }
}

#[tokio::test]
async fn a_commit_is_posted_in_the_specifications_words() {
    let server = Server::start(|line| {
        if line.contains("config") {
            empty_config()
        } else {
            ok(&json!({ "metadata-location": "s3://wh/t/metadata/2.metadata.json", "metadata": {} }))
        }
    })
    .await;
    let catalog = open(&server, storage()).await;
    let requirements = [
        TableRequirement::UuidMatch { uuid: "9c12d441-03fe-4693-9a96-a0705ddf69c1".parse().unwrap() },
        TableRequirement::RefSnapshotIdMatch { r#ref: "main".into(), snapshot_id: None },
    ];
    let updates = [
        TableUpdate::RemoveSnapshotRef { ref_name: "old".into() },
        TableUpdate::RemoveSnapshots { snapshot_ids: vec![1, i64::MAX] },
        TableUpdate::RemoveStatistics { snapshot_id: 1 },
    ];
    let outcome = catalog.commit(&base(), &requirements, &updates).await;
    assert_eq!(outcome, CommitOutcome::Committed);
    let asked = server.last();
    assert_eq!(asked.line, "POST /v1/namespaces/db/tables/t");
    assert_eq!(
        (&asked.headers["content-type"], &asked.headers["authorization"]),
        (&"application/json".parse().unwrap(), &"Bearer t0ken".parse().unwrap())
    );
    assert_eq!(
        serde_json::from_str::<Value>(&asked.body).unwrap(),
        json!({
            "identifier": { "namespace": ["db"], "name": "t" },
            "requirements": [
                { "type": "assert-table-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1" },
                { "type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": null },
            ],
            "updates": [
                { "action": "remove-snapshot-ref", "ref-name": "old" },
                { "action": "remove-snapshots", "snapshot-ids": [1, i64::MAX] },
                { "action": "remove-statistics", "snapshot-id": 1 },
            ],
        })
    );
}

#[tokio::test]
async fn a_page_that_comes_again_and_again_ends_the_listing_with_an_error() {
    let server = Server::start(|line| match line {
        line if line.contains("/tables") => ok(&json!({ "identifiers": [], "next-page-token": "again" })),
        line if line.contains("config") => empty_config(),
        line if line.contains("parent") => ok(&json!({ "namespaces": [] })),
        _ => ok(&json!({ "namespaces": [["db"]] })),
    })
    .await;
    let patience = Patience { listing: Duration::from_millis(300), ..HURRIED };
    let config = config(&server.uri, AuthConfig::None);
    let catalog = RestCatalog::open_within("lake", &config, None, storage(), patience).await.unwrap();
    let failure = catalog.list_tables().await.unwrap_err().to_string();
    assert!(failure.contains("repeats a page"), "{failure}");
    assert!(server.lines().iter().filter(|line| line.contains("pageToken=again")).count() > 1);
}

#[tokio::test]
async fn a_server_that_takes_one_snapshot_an_update_is_told_by_its_refusal_and_remembered() {
    for code in [400, 500] {
        let server = Server::start_for(move |asked| {
            let updates = serde_json::from_str::<Value>(&asked.body).unwrap_or_default();
            let several = |update: &Value| update["snapshot-ids"].as_array().is_some_and(|ids| ids.len() > 1);
            match &asked.line {
                line if line.contains("config") => empty_config(),
                _ if updates["updates"].as_array().unwrap().iter().any(several) => {
                    (code, format!("<title>java.lang.IllegalArgumentException: {ONE_ID_ONLY}: [1, 2]</title>"))
                }
                _ => ok(&json!({ "metadata-location": "s3://wh/t/metadata/2.metadata.json", "metadata": {} })),
            }
        })
        .await;
        let catalog = open(&server, storage()).await;
        let updates = [TableUpdate::RemoveSnapshots { snapshot_ids: vec![1, 2] }];
        let outcome = catalog.commit(&base(), &[], &updates).await;
        assert!(matches!(&outcome, CommitOutcome::Conflict { left_behind: None, .. }), "{code}: {outcome:?}");
        assert_eq!(server.lines().len(), 2, "not sent again before the table is looked at");
        // Remembered by all who share the catalog.
        let outcome = catalog.clone().commit(&base(), &[], &updates).await;
        assert_eq!(outcome, CommitOutcome::Committed);
        let sent: Value = serde_json::from_str(&server.last().body).unwrap();
        let one = |id| json!({ "action": "remove-snapshots", "snapshot-ids": [id] });
        assert_eq!(sent["updates"], json!([one(1), one(2)]));
    }
    // Said to a request of one id each, it is no more than any other refusal.
    let server =
        Server::start(
            |line| {
                if line.contains("config") { empty_config() } else { (400, format!("{ONE_ID_ONLY}: []")) }
            },
        )
        .await;
    let catalog = open(&server, storage()).await;
    let updates = [TableUpdate::RemoveSnapshots { snapshot_ids: vec![1] }];
    for word in ["Conflict", "Rejected", "Rejected"] {
        let outcome = catalog.commit(&base(), &[], &updates).await;
        assert!(format!("{outcome:?}").starts_with(word), "{outcome:?}");
    }
}

#[test]
fn snapshots_go_in_chunks() {
    let ids: Vec<i64> = (0..2001).collect();
    let chunks = snapshots_by(IDS_AN_UPDATE, &[TableUpdate::RemoveSnapshots { snapshot_ids: ids.clone() }]);
    let lengths = chunks.iter().map(|chunk| match chunk {
        TableUpdate::RemoveSnapshots { snapshot_ids } => snapshot_ids.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [1000, 1000, 1]);
    assert_eq!(snapshots_by(1, &[TableUpdate::RemoveSnapshots { snapshot_ids: ids }]).len(), 2001);
}

#[tokio::test]
async fn what_an_answer_to_a_commit_means() {
    for (code, word) in [
        (409, "conflict"),
        (400, "rejected"),
        (401, "rejected"),
        (403, "rejected"),
        (404, "rejected"),
        (422, "rejected"),
        (429, "rejected"),
        (302, "rejected"),
        (308, "rejected"),
        (408, "unknown"),
        (500, "unknown"),
        (502, "unknown"),
        (503, "unknown"),
        (504, "unknown"),
        // A success that is not the one we know.
        (200, "unknown"),
        (204, "unknown"),
    ] {
        let server = Server::start(
            move |line| if line.contains("config") { empty_config() } else { error(code, "SomeException") },
        )
        .await;
        let catalog = open(&server, storage()).await;
        let outcome = catalog.commit(&base(), &[], &[]).await;
        let (found, reason) = match &outcome {
            CommitOutcome::Committed => ("committed", ""),
            CommitOutcome::Conflict { reason, left_behind: None } => ("conflict", reason.as_str()),
            CommitOutcome::Rejected { reason, left_behind: None } => ("rejected", reason.as_str()),
            CommitOutcome::Unknown { reason } => ("unknown", reason.as_str()),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, word, "{code}");
        assert!(code == 200 || code == 204 || reason.contains("SomeException: said so"), "{code}: {reason}");
        assert_eq!(server.lines().len(), 2, "a commit is never sent twice");
    }
}

#[tokio::test]
async fn a_commit_that_never_left_is_rejected_and_one_without_an_answer_is_unknown() {
    let server = Server::start(|line| if line.contains("config") { empty_config() } else { (0, String::new()) }).await;
    let patience = Patience { request: Duration::from_millis(300), ..HURRIED };
    let config = config(&server.uri, AuthConfig::None);
    let mut catalog = RestCatalog::open_within("lake", &config, None, storage(), patience).await.unwrap();
    let outcome = catalog.commit(&base(), &[], &[]).await;
    assert!(matches!(outcome, CommitOutcome::Unknown { .. }), "{outcome:?}");
    assert_eq!(server.last().line, "POST /v1/namespaces/db/tables/t", "it was sent");
    let failure = catalog.load(&table(&["db"], "t")).await.unwrap_err();
    assert!(matches!(failure, CatalogError::Unavailable { .. }), "{failure}");

    // A server that takes the request and hangs up.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    catalog.base = format!("http://{}/v1", listener.local_addr().unwrap());
    let hang_up = async {
        let (socket, _) = listener.accept().await.unwrap();
        socket.readable().await.unwrap();
        drop(socket);
    };
    let posted = base();
    let (outcome, ()) = tokio::join!(catalog.commit(&posted, &[], &[]), hang_up);
    assert!(matches!(outcome, CommitOutcome::Unknown { .. }), "{outcome:?}");

    // Nobody there.
    drop(listener);
    let outcome = catalog.commit(&base(), &[], &[]).await;
    let CommitOutcome::Rejected { reason, left_behind: None } = outcome else { panic!("{outcome:?}") };
    assert!(reason.to_lowercase().contains("refused"), "{reason}");
}

#[tokio::test]
async fn a_server_may_tell_whether_it_takes_commits() {
    let commit = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}";
    let create = "POST /v1/{prefix}/namespaces/{namespace}/tables";
    let other = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}";
    let bare = "POST /v1/namespaces/{ns}/tables/{name}";
    for (endpoints, told) in [
        (Value::Null, None),
        (json!("all of them"), None),
        (json!([create, other, commit]), Some(true)),
        (json!([bare]), Some(true)),
        (json!([create, other, 7]), Some(false)),
        (json!([]), Some(false)),
    ] {
        let answer = json!({ "defaults": {}, "overrides": {}, "endpoints": endpoints });
        let server = Server::start(move |_| ok(&answer)).await;
        let committing = open_as(&server.uri, AuthConfig::None).await.unwrap().committing();
        let seen = match committing {
            Committing::Offered(_) => Some(true),
            Committing::Refused(_) => Some(false),
            Committing::Untold(_) => None,
        };
        assert_eq!(seen, told, "{endpoints}");
    }
}
