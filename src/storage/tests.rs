//! Stores over real HTTP: what each kind of store is asked, and with which keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes as Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::IntoResponse;
use futures::FutureExt;
use tokio::net::TcpListener;

use super::*;

/// A server on a real port that has every object, deletes what it is told to, and refuses some keys.
pub(crate) struct ObjectServer {
    pub(crate) uri: String,
    asked: Arc<Mutex<Vec<String>>>,
    refused: Arc<Mutex<Vec<&'static str>>>,
    bodies: Arc<Mutex<BTreeMap<String, String>>>,
}

impl ObjectServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { uri, asked: Arc::default(), refused: Arc::default(), bodies: Arc::default() };
        let (asked, refused, bodies) =
            (Arc::clone(&server.asked), Arc::clone(&server.refused), Arc::clone(&server.bodies));
        let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Body| {
            let with = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
            let sent = format!("{method} {uri} {} {}", with("authorization"), with("x-amz-security-token"));
            asked.lock().unwrap().push(sent.clone());
            let refused = refused.lock().unwrap().iter().any(|key| sent.contains(key));
            let object = bodies.lock().unwrap().get(uri.path()).cloned().unwrap_or_else(|| "bytes".to_owned());
            let body = String::from_utf8_lossy(&body).into_owned();
            async move {
                let meta = [("last-modified", "Tue, 01 Dec 2026 00:00:00 GMT"), ("etag", "\"1\"")];
                match method {
                    // S3 tells what it was sent.
                    _ if refused => (StatusCode::FORBIDDEN, format!("<Error>{sent}</Error>")).into_response(),
                    Method::POST => {
                        let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
                        let deleted = keys.map(|key| format!("<Deleted><Key>{key}</Key></Deleted>"));
                        format!("<DeleteResult>{}</DeleteResult>", deleted.collect::<String>()).into_response()
                    }
                    Method::DELETE => StatusCode::NO_CONTENT.into_response(),
                    _ => (meta, object).into_response(),
                }
            }
        };
        let app = Router::new().fallback(handler);
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    /// What it was asked since the last time: `METHOD path?query authorization token`.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// Refuses requests that hold this from now on.
    pub(crate) fn refuse(&self, key: &'static str) {
        self.refused.lock().unwrap().push(key);
    }

    /// Puts an object in the place of what it answers otherwise.
    pub(crate) fn put(&self, path: &str, body: String) {
        self.bodies.lock().unwrap().insert(path.to_owned(), body);
    }
}

fn configured(store: &str, options: &[(&str, &str)]) -> Storage {
    let options = options.iter().map(|(key, value)| ((*key).to_owned(), Secret::new(*value))).collect();
    Storage::new(LocationRules::default(), [(store.to_owned(), options)].into(), 4)
}

/// One that answers with these, in turn; the last again and again.
fn lender(answers: Vec<Result<Vec<Grant>, String>>) -> (Lender, Arc<Mutex<usize>>) {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let lender: Lender = Arc::new(move || {
        let mut count = count.lock().unwrap();
        let answer = answers[(*count).min(answers.len() - 1)].clone();
        *count += 1;
        async move { answer }.boxed()
    });
    (lender, asked)
}

fn s3_keys(id: &str) -> Keys {
    Keys::S3 {
        access_key_id: Secret::new(id),
        secret_access_key: Secret::new(format!("secret-of-{id}")),
        session_token: Some(Secret::new(format!("token-of-{id}"))),
    }
}

fn grant(prefix: &str, keys: Keys, until: Option<Timestamp>) -> Grant {
    Grant { prefix: prefix.to_owned(), settings: BTreeMap::new(), keys, until }
}

fn s3(server: &ObjectServer, lent: Option<Lent>) -> Storage {
    let options = [
        ("endpoint", server.uri.as_str()),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("access_key_id", "CONFIGURED"),
        ("secret_access_key", "secret"),
    ];
    configured("s3://lake", &options).lending(lent)
}

#[tokio::test]
async fn the_longest_prefix_that_is_lent_wins_and_what_is_beside_it_is_not_lent() {
    let server = ObjectServer::start().await;
    let grants = vec![
        grant("s3://lake/wh/t", s3_keys("TABLE"), None),
        grant("s3://lake/wh/t/data/", s3_keys("DATA"), None),
        grant("s3://lake/wh/t/data/", s3_keys("SECOND"), None),
    ];
    let (lender, asked) = lender(vec![Err("not now".to_owned())]);
    let storage = s3(&server, Lent::new(grants, Clock::system(), lender));
    for (key, id) in [
        ("wh/t/data/1", "DATA"),
        ("wh/t/database", "TABLE"),
        ("wh/t/metadata/1", "TABLE"),
        ("wh/t_backup/1", "CONFIGURED"),
        ("wh/u/1", "CONFIGURED"),
    ] {
        storage.read(&format!("s3a://lake/{key}")).await.unwrap();
        let asked = server.asked();
        assert!(asked[0].starts_with(&format!("GET /lake/{key} ")), "{asked:?}");
        assert!(asked[0].contains(&format!("Credential={id}/")) && asked.len() == 1, "{key}: {asked:?}");
        assert_eq!(asked[0].contains(&format!("token-of-{id}")), id != "CONFIGURED", "{asked:?}");
    }
    assert_eq!(*asked.lock().unwrap(), 0);
    let shown = format!("{storage:?}");
    assert!(shown.contains("s3://lake/wh/t/data/") && !shown.contains("secret-of") && !shown.contains("token-of"));
    assert!(Lent::new(Vec::new(), Clock::system(), self::lender(vec![]).0).is_none());
}

#[tokio::test]
async fn keys_are_asked_for_anew_before_they_end() {
    let server = ObjectServer::start().await;
    let now = Clock::system();
    let minutes = |count: i64| Some(Timestamp(now.0 + count * 60_000));
    let of = |id: &str, until| vec![grant("s3://lake/", s3_keys(id), until)];
    // Asked for an hour ago: four minutes are less than the five before the end.
    let (lender, asked) = lender(vec![Err("later".to_owned()), Ok(of("NEW", minutes(60)))]);
    let storage = s3(&server, Lent::new(of("OLD", minutes(4)), Timestamp(now.0 - 3_600_000), lender));
    for _ in 0..3 {
        storage.head("s3://lake/k").await.unwrap();
    }
    assert!(server.asked().iter().all(|asked| asked.contains("Credential=OLD/")), "the old ones still hold");
    assert_eq!(*asked.lock().unwrap(), 1, "not at every request");

    // A minute before the end of an hour.
    let (lender, asked) = self::lender(vec![Ok(of("NEW", minutes(60)))]);
    let storage = s3(&server, Lent::new(of("OLD", minutes(1)), Timestamp(now.0 - 3_600_000), lender));
    for _ in 0..3 {
        storage.head("s3://lake/k").await.unwrap();
    }
    assert!(server.asked().iter().all(|asked| asked.contains("Credential=NEW/")));
    assert_eq!(*asked.lock().unwrap(), 1);

    // Over, and the catalog has none.
    let (lender, _) = self::lender(vec![Err("no such table".to_owned())]);
    let storage = s3(&server, Lent::new(of("OLD", minutes(-1)), Timestamp(now.0 - 3_600_000), lender));
    let error = storage.read("s3://lake/k").await.unwrap_err();
    assert!(error.reason.contains("have ended") && error.reason.contains("no such table"), "{error}");
    assert_eq!(server.asked(), [""; 0]);
}

#[tokio::test]
async fn refused_keys_are_asked_for_anew_once_and_are_in_no_message() {
    let server = ObjectServer::start().await;
    let of = |id: &str| vec![grant("s3://lake/", s3_keys(id), None)];
    server.refuse("OLD");
    let (lender, asked) = lender(vec![Ok(of("NEW")), Ok(of("NEWEST"))]);
    let storage = s3(&server, Lent::new(of("OLD"), Clock::system(), lender));
    let locations = || (0..3).map(|n| storage.rules().parse(&format!("s3://lake/{n}")).unwrap()).collect();
    let outcomes = storage.delete(locations(), Duration::from_mins(1)).await;
    assert!(outcomes.iter().all(|(_, outcome)| outcome.as_ref().is_ok_and(|done| *done == Deleted::Deleted)));
    let sent = server.asked();
    assert!(sent.len() == 2 && sent[0].contains("OLD") && sent[1].contains("Credential=NEW/"), "{sent:?}");
    storage.read("s3://lake/k").await.unwrap();
    storage.head("s3://lake/k").await.unwrap();
    assert_eq!(*asked.lock().unwrap(), 1);

    // New ones that are refused at once have another reason.
    server.refuse("NEW");
    for error in [storage.read("s3://lake/k").await.unwrap_err(), storage.head("s3://lake/k").await.unwrap_err()] {
        assert_eq!(error.kind, StorageErrorKind::Denied);
        assert!(!error.reason.contains("token-of") && !error.reason.contains("secret-of"), "{error}");
    }
    for (_, outcome) in storage.delete(locations(), Duration::from_mins(1)).await {
        let error = outcome.unwrap_err();
        assert!(error.kind == StorageErrorKind::Denied && !error.reason.contains("token-of"), "{error}");
    }
    assert_eq!(*asked.lock().unwrap(), 1);
    assert!(server.asked().iter().any(|sent| sent.contains("token-of-NEW")), "the server was told it");
}

#[tokio::test]
async fn a_listing_is_asked_for_with_lent_keys_and_once_more_where_they_are_refused() {
    let server = ObjectServer::start().await;
    let page = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>wh/t/a</Key><Size>5</Size></Contents>\
                </ListBucketResult>";
    server.put("/lake", page.to_owned());
    server.refuse("OLD");
    let of = |id: &str| vec![grant("s3://lake/wh/t/", s3_keys(id), None)];
    let (lender, asked) = lender(vec![Ok(of("NEW"))]);
    let storage = s3(&server, Lent::new(of("OLD"), Clock::system(), lender));
    let progress = Arc::new(ListProgress::default());
    let root = storage.rules().root("s3://lake/wh/t").unwrap();
    let mut listing = storage.list(&root, &progress);
    let batch = listing.next().await.unwrap().unwrap();
    assert_eq!((batch[0].location(), batch[0].facts().size, batch.len()), ("s3://lake/wh/t/a", 5, 1));
    assert!(listing.next().await.unwrap().is_none());
    let sent = server.asked();
    assert!(sent.len() == 2 && sent[1].contains("Credential=NEW/") && sent[1].contains("token-of-NEW"), "{sent:?}");
    assert!(sent[1].starts_with("GET /lake?list-type=2&max-keys=1000&prefix=wh%2Ft%2F&encoding-type=url "), "{sent:?}");

    server.refuse("NEW");
    let error = storage.list(&root, &progress).next().await.unwrap_err();
    assert!(error.kind == StorageErrorKind::Denied && !error.reason.contains("token-of"), "{error}");
    assert_eq!(*asked.lock().unwrap(), 1, "new ones that are refused at once have another reason");
}

#[tokio::test]
async fn google_cloud_storage_is_asked_by_the_raw_key_with_the_token() {
    let server = ObjectServer::start().await;
    let options = [("base_url", server.uri.as_str()), ("bearer_token", "configured"), ("skip_signature", "false")];
    let service_account = r#"{"client_email": "a", "private_key_id": "b", "private_key": "", "disable_oauth": true}"#;
    let storage = configured("gs://lake", &[options[0], ("service_account_key", service_account)]);
    storage.read("gs://lake/t/a=1%2F2/é").await.unwrap();
    let asked = server.asked();
    assert!(asked[0].starts_with("GET /lake/t%2Fa%3D1%252F2%2F%C3%A9 "), "{asked:?}");

    let grants = vec![grant("gs://lake/t/", Keys::Gcs(Secret::new("lent")), None)];
    let lent = Lent::new(grants, Clock::system(), lender(vec![Err(String::new())]).0);
    let storage = configured("gs://lake", &options[..1]).lending(lent);
    let facts = storage.head("gs://lake/t/k").await.unwrap();
    assert_eq!(facts.etag.as_deref(), Some("\"1\""));
    let locations = vec![storage.rules().parse("gs://lake/t/k").unwrap()];
    let outcomes = storage.delete(locations, Duration::from_mins(1)).await;
    assert_eq!(outcomes[0].1.as_ref().unwrap(), &Deleted::Deleted);
    let asked = server.asked();
    assert!(asked[0].starts_with("HEAD /lake/t%2Fk Bearer lent"), "{asked:?}");
    assert!(asked[1].starts_with("DELETE /lake/t%2Fk Bearer lent"), "{asked:?}");
}

#[tokio::test]
async fn azure_is_asked_by_container_and_raw_key_with_the_signature() {
    let server = ObjectServer::start().await;
    let store = "abfss://lake@account.dfs.core.windows.net";
    let options = [("endpoint", server.uri.as_str()), ("allow_http", "true"), ("access_key", "c2VjcmV0")];
    let storage = configured(store, &options);
    storage.read("abfs://lake@account.dfs.core.windows.net/t/a=1%2F2/é").await.unwrap();
    let asked = server.asked();
    assert!(asked[0].starts_with("GET /lake/t/a=1%252F2/%C3%A9 SharedKey account:"), "{asked:?}");

    let grants = vec![grant(&format!("{store}/t/"), Keys::Azure(Secret::new("sv=2026&sig=S1gnature")), None)];
    let lent = Lent::new(grants, Clock::system(), lender(vec![Err(String::new())]).0);
    let storage = configured(store, &options).lending(lent);
    storage.head(&format!("{store}/t/k")).await.unwrap();
    let asked = server.asked();
    assert!(asked[0].starts_with("HEAD /lake/t/k?") && asked[0].contains("sig=S1gnature"), "{asked:?}");
    server.refuse("S1gnature");
    let error = storage.read(&format!("{store}/t/k")).await.unwrap_err();
    assert!(error.kind == StorageErrorKind::Denied && !error.reason.contains("S1gnature"), "{error}");
    // Another account with the same container is another place.
    let rules = LocationRules::default();
    let other = rules.parse("abfss://lake@other.dfs.core.windows.net/t/k").unwrap();
    assert_ne!(other, rules.parse(&format!("{store}/t/k")).unwrap());
}
