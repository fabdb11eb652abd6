//! Deletes of real files, and of S3 over real HTTP: what a server may answer, and what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes as Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutOptions,
    PutPayload, PutResult,
};
use percent_encoding::percent_decode_str;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::*;
use crate::config::Secret;
use crate::model::LocationRules;
use crate::storage::xml::{self, Step};
use crate::storage::{Grant, Keys, Lender};

#[tokio::test]
async fn every_object_has_its_own_outcome_and_its_neighbours_stay() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 4);
    let at = |name: &str| format!("file://{}/{name}", folder.path().display());
    for name in ["p=a%2Fb/1", "p=New+York/2", "p=New York/3", "日本", "keep%20me", "keep me"] {
        storage.write_new(&at(name), Bytes::from_static(b"x")).await.unwrap();
    }
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let names = ["p=a%2Fb/1", "absent", "p=New York/3", "日本", "a//b", "keep%20me", "folder"];
    let locations = names.iter().map(|name| storage.rules().parse(&at(name)).unwrap()).collect();
    let outcomes = storage.delete(locations, Duration::from_mins(1)).await;
    let told: Vec<_> =
        outcomes.iter().map(|(location, outcome)| (location.file_name(), outcome.as_ref().ok().copied())).collect();
    assert_eq!(
        told,
        [
            ("1", Some(Deleted::Deleted)),
            ("absent", Some(Deleted::AlreadyGone)),
            ("3", Some(Deleted::Deleted)),
            ("日本", Some(Deleted::Deleted)),
            ("b", None),
            ("keep%20me", Some(Deleted::Deleted)),
            ("folder", None),
        ]
    );
    for name in ["p=New+York/2", "keep me"] {
        assert_eq!(&storage.read(&at(name)).await.unwrap()[..], b"x", "{name}");
    }
    assert!(folder.path().join("folder").try_exists().unwrap());
}

#[tokio::test]
async fn an_object_that_must_be_new_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 4);
    let at = format!("{}/x", folder.path().display());
    storage.write_new(&at, Bytes::from_static(b"1")).await.unwrap();
    let error = storage.write_new(&at, Bytes::from_static(b"2")).await.unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::AlreadyExists);
    assert_eq!(storage.head(&at).await.unwrap().size, 1);
    assert_eq!(storage.read(&format!("{at}y")).await.unwrap_err().kind, StorageErrorKind::NotFound);
}

/// A request to the server.
#[derive(Debug, Clone)]
struct Asked {
    /// From 0.
    number: usize,
    /// By one request for many.
    is_many: bool,
    keys: Vec<String>,
    /// Names the key that signed it.
    authorization: String,
}

/// What the server answers instead of doing it right.
type Manner = Arc<dyn Fn(Asked) -> BoxFuture<'static, Option<Response>> + Send + Sync>;

/// A bucket `lake` of S3 on a real port.
struct Server {
    uri: String,
    objects: Arc<Mutex<BTreeSet<String>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// Does everything right but for what `manner` says.
fn manner<F>(answer: F) -> Manner
where
    F: Fn(&Asked) -> Option<Response> + Send + Sync + 'static,
{
    Arc::new(move |asked| {
        let answer = answer(&asked);
        async move { answer }.boxed()
    })
}

fn right() -> Manner {
    manner(|_| None)
}

/// The keys that a list names.
fn listed(body: &str) -> Vec<String> {
    let (mut keys, mut path) = (Vec::new(), Vec::new());
    xml::walk(body, |step| {
        match step {
            Step::Open(name) => path.push(String::from_utf8(name.to_vec()).unwrap()),
            Step::Close(text) => {
                if path.join("/") == "Delete/Object/Key" {
                    keys.push(text);
                }
                path.pop();
            }
        }
        Ok(())
    })
    .unwrap();
    keys
}

fn escape(key: &str) -> String {
    key.replace('&', "&amp;").replace('<', "&lt;").replace('\n', "&#10;")
}

fn deleted(key: &str) -> String {
    format!("<Deleted><Key>{}</Key></Deleted>", escape(key))
}

fn failed(key: &str, code: &str) -> String {
    format!("<Error><Key>{}</Key><Code>{code}</Code><Message>Because</Message></Error>", escape(key))
}

fn result(inner: &[String]) -> Response {
    let xmlns = "http://s3.amazonaws.com/doc/2006-03-01/";
    format!("<?xml version=\"1.0\"?>\n<DeleteResult xmlns=\"{xmlns}\">{}</DeleteResult>", inner.concat())
        .into_response()
}

fn error(status: u16, code: &str) -> Response {
    let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Because</Message></Error>");
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

impl Server {
    async fn start(keys: &[String], manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let objects = Arc::new(Mutex::new(keys.iter().cloned().collect::<BTreeSet<_>>()));
        let server = Self { uri, objects: Arc::clone(&objects), asked: Arc::default() };
        let log = Arc::clone(&server.asked);
        let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Body| {
            let with = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
            let is_many = method == Method::POST;
            let keys = if is_many {
                assert_eq!((uri.path(), uri.query()), ("/lake", Some("delete")));
                assert_eq!(with("content-md5"), BASE64_STANDARD.encode(<md5::Md5 as md5::Digest>::digest(&body)));
                let sha256 = <sha2::Sha256 as sha2::Digest>::digest(&body);
                assert_eq!(with("x-amz-checksum-sha256"), BASE64_STANDARD.encode(sha256));
                listed(std::str::from_utf8(&body).unwrap())
            } else {
                assert_eq!(method, Method::DELETE);
                let path = percent_decode_str(uri.path()).decode_utf8().unwrap();
                vec![path.strip_prefix("/lake/").unwrap().to_owned()]
            };
            let asked = {
                let mut log = log.lock().unwrap();
                let authorization = with("authorization").to_owned();
                let number = log.len();
                log.push(Asked { number, is_many, keys, authorization });
                log.last().unwrap().clone()
            };
            let (objects, answer) = (Arc::clone(&objects), manner(asked.clone()));
            async move {
                if let Some(answer) = answer.await {
                    return answer;
                }
                let mut objects = objects.lock().unwrap();
                asked.keys.iter().for_each(|key| _ = objects.remove(key));
                if asked.is_many {
                    result(&asked.keys.iter().map(|key| deleted(key)).collect::<Vec<_>>())
                } else {
                    StatusCode::NO_CONTENT.into_response()
                }
            }
        };
        let app = Router::new().fallback(handler).layer(axum::extract::DefaultBodyLimit::disable());
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    fn storage(&self) -> Storage {
        let keys = [("access_key_id", "test"), ("secret_access_key", "testtest"), ("region", "us-east-1")];
        let options = [&keys[..], &[("endpoint", self.uri.as_str()), ("allow_http", "true")]].concat();
        let options = options.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect();
        Storage::new(LocationRules::default(), [("s3://lake".to_owned(), options)].into(), 8)
    }

    /// What each of these keys came to, in words where it failed.
    async fn delete(&self, storage: &Storage, keys: &[String]) -> Vec<Result<Deleted, (StorageErrorKind, String)>> {
        self.delete_within(storage, keys, Duration::from_mins(1)).await
    }

    async fn delete_within(
        &self,
        storage: &Storage,
        keys: &[String],
        within: Duration,
    ) -> Vec<Result<Deleted, (StorageErrorKind, String)>> {
        let locations: Vec<Location> =
            keys.iter().map(|key| storage.rules().parse(&format!("s3://lake/{key}")).unwrap()).collect();
        let outcomes = storage.delete(locations.clone(), within).await;
        assert_eq!(
            outcomes.iter().map(|(location, _)| location).collect::<Vec<_>>(),
            locations.iter().collect::<Vec<_>>()
        );
        let told = outcomes.into_iter().map(|(location, outcome)| {
            outcome.map_err(|error| {
                assert_eq!(error.location, location.raw());
                (error.kind, error.reason)
            })
        });
        told.collect()
    }

    fn left(&self) -> Vec<String> {
        self.objects.lock().unwrap().iter().cloned().collect()
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("t/data/{n:05}.parquet")).collect()
}

#[tokio::test]
async fn b41_a_store_that_throttles_has_all_objects_deleted_and_is_asked_again_only_for_what_it_did_not_confirm() {
    let all = keys(2500);
    let kept = ["t/data/00000.parquet.crc".to_owned(), "t/data2".to_owned()];
    let throttled = manner(|asked| match asked.number {
        0 => Some(error(200, "SlowDown")),
        number if number % 5 == 0 => Some(error(503, "SlowDown")),
        _ => None,
    });
    let server = Server::start(&[&all[..], &kept[..]].concat(), throttled).await;
    let outcomes = server.delete(&server.storage(), &all).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(Deleted::Deleted)), "{outcomes:?}");
    assert_eq!(server.left(), kept);
    let mut confirmed = BTreeSet::new();
    for asked in server.asked() {
        assert!(asked.is_many && asked.keys.len() <= 1000, "{asked:?}");
        assert!(asked.keys.iter().all(|key| !confirmed.contains(key)), "asked again for what was confirmed");
        if asked.number % 5 != 0 {
            confirmed.extend(asked.keys);
        }
    }
    assert_eq!(confirmed.len(), 2500);
}

#[tokio::test]
async fn batches_are_in_flight_side_by_side() {
    let all = keys(4000);
    let together = Arc::new(Barrier::new(4));
    let waits: Manner = Arc::new(move |_| {
        let together = Arc::clone(&together);
        async move {
            together.wait().await;
            None
        }
        .boxed()
    });
    let server = Server::start(&all, waits).await;
    let storage = server.storage();
    let deleted = tokio::time::timeout(Duration::from_secs(20), server.delete(&storage, &all)).await;
    assert!(deleted.unwrap().iter().all(Result::is_ok));
    assert_eq!((server.left().len(), server.asked().len()), (0, 4));
}

#[tokio::test]
async fn b35_each_key_has_the_word_of_the_server_for_it_inside_an_answer_that_says_success() {
    let names = ["deleted", "gone", "denied", "later", "never", "locked", "unnamed", "both", "no-code"];
    let all: Vec<String> = names.iter().map(|name| format!("t/{name}")).collect();
    let answers = manner(|asked| {
        if !asked.is_many {
            return None;
        }
        let mut inner = vec![deleted("t/elsewhere"), failed("t/nowhere", "AccessDenied")];
        for key in &asked.keys {
            match key.as_str() {
                "t/gone" => inner.push(failed(key, "NoSuchKey")),
                "t/denied" => inner.push(failed(key, "AccessDenied")),
                "t/later" if asked.number == 0 => inner.push(failed(key, "SlowDown")),
                "t/never" => inner.push(failed(key, "InternalError")),
                "t/locked" => inner.push(failed(key, "ObjectLocked")),
                "t/unnamed" => {}
                "t/both" => inner.extend([deleted(key), failed(key, "AccessDenied")]),
                "t/no-code" => inner.push(failed(key, "")),
                _ => inner.push(deleted(key)),
            }
        }
        Some(result(&inner))
    });
    let server = Server::start(&all, answers).await;
    let outcomes = server.delete(&server.storage(), &all).await;
    let of = |name: &str| outcomes[names.iter().position(|known| *known == name).unwrap()].clone();
    for name in ["deleted", "later", "unnamed", "no-code"] {
        assert_eq!(of(name), Ok(Deleted::Deleted), "{name}");
    }
    assert_eq!(of("gone"), Ok(Deleted::AlreadyGone));
    for (name, kind, words) in [
        ("denied", StorageErrorKind::Denied, "the store says AccessDenied: Because"),
        ("both", StorageErrorKind::Denied, "the store says AccessDenied: Because"),
        ("never", StorageErrorKind::Unavailable, "the store says InternalError: Because (asked 8 times)"),
        ("locked", StorageErrorKind::Unavailable, "the store says ObjectLocked: Because"),
    ] {
        assert_eq!(of(name), Err((kind, words.to_owned())), "{name}");
    }
    let asked = server.asked();
    let (many, one): (Vec<_>, Vec<_>) = asked.iter().partition(|asked| asked.is_many);
    assert_eq!(many[1].keys, ["t/later", "t/never"]);
    assert!(many[2..].iter().all(|asked| asked.keys == ["t/never"]), "{many:?}");
    let one: BTreeSet<&str> = one.iter().map(|asked| asked.keys[0].as_str()).collect();
    assert_eq!(one, ["t/unnamed", "t/no-code"].into());
    assert!(!server.left().contains(&"t/unnamed".to_owned()), "asked for singly");
}

fn lent(answers: Vec<Result<&'static str, String>>, asked: &Arc<AtomicUsize>) -> Option<Lent> {
    let grant = |id: &str| Grant {
        prefix: "s3://lake/".to_owned(),
        settings: BTreeMap::new(),
        keys: Keys::S3 {
            access_key_id: Secret::new(id),
            secret_access_key: Secret::new(format!("secret-of-{id}")),
            session_token: Some(Secret::new(format!("token-of-{id}"))),
        },
        until: None,
    };
    let asked = Arc::clone(asked);
    let lender: Lender = Arc::new(move || {
        let answer = answers[asked.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)].clone();
        let grants = answer.map(|id| vec![grant(id)]);
        async move { grants }.boxed()
    });
    Lent::new(vec![grant("OLD")], Clock::system(), lender)
}

#[tokio::test]
async fn b34_keys_that_expire_in_the_middle_are_renewed_once_and_without_new_ones_the_rest_has_failed() {
    for (renewed, done) in [(Ok("NEW"), 2500), (Err("no such table".to_owned()), 1000)] {
        let all = keys(2500);
        let server = Server::start(
            &all,
            manner(move |asked| {
                let is_first = asked.keys.contains(&"t/data/00000.parquet".to_owned());
                let is_old = asked.authorization.contains("Credential=OLD/");
                (is_old && !is_first).then(|| error(400, "ExpiredToken"))
            }),
        )
        .await;
        let renewals = Arc::new(AtomicUsize::new(0));
        let storage = server.storage().lending(lent(vec![renewed.clone()], &renewals));
        let outcomes = server.delete(&storage, &all).await;
        let (ok, failed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        assert_eq!((ok.len(), failed.len()), (done, 2500 - done), "{renewed:?}");
        assert_eq!(server.left().len(), 2500 - done);
        assert_eq!(renewals.load(Ordering::SeqCst), 1);
        for failure in failed {
            let (kind, reason) = failure.unwrap_err();
            assert!(kind == StorageErrorKind::Denied && reason.contains("ExpiredToken"), "{reason}");
        }
        assert!(server.asked().iter().all(|asked| asked.is_many), "keys that are refused are refused for each");
    }
}

#[tokio::test]
async fn one_object_that_is_denied_leaves_the_others_and_new_keys_are_asked_for_once() {
    let all = keys(5);
    let denied = |key: &str| key.ends_with("2.parquet");
    let server = Server::start(
        &all,
        manner(move |asked| {
            let told =
                asked.keys.iter().map(|key| if denied(key) { failed(key, "AccessDenied") } else { deleted(key) });
            Some(result(&told.collect::<Vec<_>>()))
        }),
    )
    .await;
    let renewals = Arc::new(AtomicUsize::new(0));
    let storage = server.storage().lending(lent(vec![Ok("NEW")], &renewals));
    let outcomes = server.delete(&storage, &all).await;
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Ok(Deleted::Deleted)).count(), 4);
    assert_eq!(outcomes[2].as_ref().unwrap_err().0, StorageErrorKind::Denied);
    assert_eq!(renewals.load(Ordering::SeqCst), 1);
    let asked = server.asked();
    assert_eq!(asked.iter().map(|asked| asked.keys.len()).collect::<Vec<_>>(), [5, 1]);
    assert!(asked[1].authorization.contains("Credential=NEW/"));
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_confirms_nothing() {
    let all = keys(20);
    let whole = |asked: &Asked| {
        format!("<DeleteResult>{}</DeleteResult>", asked.keys.iter().map(|key| deleted(key)).collect::<String>())
    };
    let nonsense: [fn(String) -> String; 4] = [
        |whole| whole[..whole.len() / 2].to_owned(),
        |_| "<html>Please log in</html>".to_owned(),
        |_| String::new(),
        |whole| whole.replace("DeleteResult", "Something"),
    ];
    for garble in nonsense {
        // Once; then always, so that each is asked for singly.
        for always in [false, true] {
            let garbled = manner(move |asked| {
                (asked.is_many && (always || asked.number == 0)).then(|| garble(whole(asked)).into_response())
            });
            let server = Server::start(&all, garbled).await;
            let outcomes = server.delete(&server.storage(), &all).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Ok(Deleted::Deleted)), "{outcomes:?}");
            assert_eq!(server.left(), [""; 0]);
            let singles = server.asked().iter().filter(|asked| !asked.is_many).count();
            assert_eq!(singles, if always { 20 } else { 0 });
        }
    }
}

#[tokio::test]
async fn what_one_request_cannot_do_is_done_singly_and_a_store_that_has_no_such_request_is_not_asked_again() {
    for (status, code, many) in
        [(501, "NotImplemented", 1), (405, "", 1), (400, "MalformedXML", 2), (403, "AccessDenied", 2)]
    {
        let all = keys(20);
        let server = Server::start(&all, manner(move |asked| asked.is_many.then(|| error(status, code)))).await;
        let storage = server.storage();
        for part in all.chunks(10) {
            let outcomes = server.delete(&storage, part).await;
            assert!(outcomes.iter().all(|outcome| *outcome == Ok(Deleted::Deleted)), "{code}: {outcomes:?}");
        }
        assert_eq!(server.left(), [""; 0]);
        let asked = server.asked();
        assert_eq!(asked.iter().filter(|asked| asked.is_many).count(), many, "{code}");
        assert_eq!(asked.len(), 20 + many);
    }
}

#[tokio::test]
async fn a_single_delete_is_gone_only_where_the_object_is() {
    for (answer, outcome) in [
        (error(404, "NoSuchKey"), Ok(Deleted::AlreadyGone)),
        (StatusCode::NOT_FOUND.into_response(), Ok(Deleted::AlreadyGone)),
        (StatusCode::OK.into_response(), Ok(Deleted::Deleted)),
        (error(404, "NoSuchBucket"), Err(StorageErrorKind::Unavailable)),
        ((StatusCode::NOT_FOUND, "<html>no such page</html>").into_response(), Err(StorageErrorKind::Unavailable)),
        (error(200, "InternalError"), Err(StorageErrorKind::Unavailable)),
        (error(403, "AccessDenied"), Err(StorageErrorKind::Denied)),
        (error(403, "SignatureDoesNotMatch"), Err(StorageErrorKind::Denied)),
        (error(409, "BucketLocked"), Err(StorageErrorKind::Unavailable)),
    ] {
        let (parts, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, 1000).await.unwrap();
        let status = parts.status;
        let told = manner(move |_| Some((status, body.clone()).into_response()));
        let server = Server::start(&keys(1), told).await;
        let outcomes = server.delete(&server.storage(), &keys(1)).await;
        assert_eq!(outcomes[0].clone().map_err(|(kind, _)| kind), outcome, "{status} {outcomes:?}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_costs_what_it_did_not_confirm_in_time() {
    let all = keys(2010);
    let hangs: Manner = Arc::new(|asked| {
        let is_stuck = !asked.keys.contains(&"t/data/00000.parquet".to_owned());
        async move {
            if is_stuck {
                futures::future::pending::<()>().await;
            }
            None
        }
        .boxed()
    });
    let server = Server::start(&all, hangs).await;
    let outcomes = server.delete_within(&server.storage(), &all, Duration::from_secs(2)).await;
    assert!(outcomes[..1000].iter().all(|outcome| *outcome == Ok(Deleted::Deleted)));
    for outcome in &outcomes[1000..] {
        let (kind, reason) = outcome.as_ref().unwrap_err();
        assert!(*kind == StorageErrorKind::Unavailable && reason.contains("took too long"), "{reason}");
    }
    assert_eq!(server.left().len(), 1010);
    assert_eq!(server.asked().len(), 3);
    // After the deadline nothing is sent at all.
    let outcomes = server.delete_within(&server.storage(), &all[..1], Duration::ZERO).await;
    assert!(outcomes[0].is_err());
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn a_store_that_is_down_is_not_asked_without_end() {
    let all = keys(3000);
    let server = Server::start(&all, manner(|_| Some(error(503, "ServiceUnavailable")))).await;
    let outcomes = server.delete_within(&server.storage(), &all, Duration::from_secs(4)).await;
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap_err().0 == StorageErrorKind::Unavailable));
    assert!(outcomes[0].as_ref().unwrap_err().1.contains("503"), "{:?}", outcomes[0]);
    let asked = server.asked().len();
    assert!((2..24).contains(&asked), "{asked} requests in four seconds");
    assert_eq!(server.left().len(), 3000);

    // One that does not listen: the requests that are sent again are counted, too.
    let closed = Server { uri: "http://127.0.0.1:1".to_owned(), ..server };
    let outcomes = closed.delete(&closed.storage(), &all).await;
    for outcome in outcomes {
        let (kind, reason) = outcome.unwrap_err();
        assert!(kind == StorageErrorKind::Unavailable && reason.contains("refused"), "{reason}");
    }
}

#[tokio::test]
async fn odd_keys_go_byte_for_byte_and_what_a_list_cannot_name_for_sure_goes_singly() {
    let plain = ["t/a b", "t/a+b", "t/a%20b%2F%zz", "t/é", "t/e\u{301}", "t/&<>\"'", "t/]]>", "t/a#1?b=*~", "t/🦀"];
    let bare = [" t/x", "t/trailing ", "t/\u{a0}"];
    let near = ["t/x", "t/trailing", "t/a%2Bb", "t/a%b", "t/a", "t/&amp;&lt;&gt;\"'", "t/a b%2F%zz", "x"];
    let texts = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let doomed = texts(&[&plain[..], &bare[..]].concat());
    let server = Server::start(&[&doomed[..], &texts(&near)].concat(), right()).await;
    let outcomes = server.delete(&server.storage(), &doomed).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(Deleted::Deleted)), "{outcomes:?}");
    let mut left = texts(&near);
    left.sort();
    assert_eq!(server.left(), left);
    let asked = server.asked();
    assert_eq!(asked[0].keys, plain);
    let singly: BTreeSet<&str> = asked[1..].iter().map(|asked| asked.keys[0].as_str()).collect();
    assert_eq!(singly, bare.into());
}

#[tokio::test]
async fn an_object_that_is_named_twice_is_asked_for_and_deleted_once() {
    let server = Server::start(&keys(2), right()).await;
    let storage = server.storage();
    let named = ["s3://lake/t/data/00000.parquet", "s3a://lake/t/data/00000.parquet", "s3://lake/t/data/00001.parquet"];
    let locations = named.iter().map(|location| storage.rules().parse(location).unwrap()).collect();
    let outcomes = storage.delete(locations, Duration::from_mins(1)).await;
    let told: Vec<_> =
        outcomes.into_iter().map(|(location, outcome)| (location.raw().to_owned(), outcome.unwrap())).collect();
    let expected = [Deleted::Deleted, Deleted::AlreadyGone, Deleted::Deleted];
    assert_eq!(told, named.map(str::to_owned).into_iter().zip(expected).collect::<Vec<_>>());
    assert_eq!(server.asked()[0].keys, keys(2));
}

/// A store in memory whose client panics over one object.
#[derive(Debug, Clone)]
struct Panics(Arc<InMemory>);

impl std::fmt::Display for Panics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("panics")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Panics {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> object_store::Result<PutResult> {
        self.0.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.0.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let paths = paths.inspect(|path| assert!(!path.as_ref().unwrap().as_ref().ends_with("01500.parquet")));
        self.0.delete_stream(paths.collect::<Vec<_>>().map(stream::iter).flatten_stream().boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_client_that_panics_over_one_object_costs_that_object() {
    let storage = Storage::new(LocationRules::default(), BTreeMap::new(), 8);
    let storage = storage.with_store("s3://lake", Arc::new(Panics(Arc::new(InMemory::new()))));
    let all: Vec<String> = keys(3000).into_iter().map(|key| format!("s3://lake/{key}")).collect();
    for location in &all {
        storage.write_new(location, Bytes::from_static(b"x")).await.unwrap();
    }
    let locations = all.iter().map(|location| storage.rules().parse(location).unwrap()).collect();
    for (at, (location, outcome)) in storage.delete(locations, Duration::from_mins(1)).await.into_iter().enumerate() {
        assert_eq!(outcome.is_ok(), at != 1500, "{location}: {outcome:?}");
        assert_eq!(storage.head(location.raw()).await.is_ok(), at == 1500, "{location}");
    }
}
