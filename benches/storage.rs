//! Lists and deletes objects of an S3 server in this process: `cargo bench --bench storage`.
//! Prints how fast; asserts that every object is listed once, and that what goes is gone and nothing else.
//!
//! The server answers on a real port after a time that can be chosen, and has S3's limits for one prefix: 5,500 listings
//! and 3,500 deleted objects a second, 503 `SlowDown` above them.
//!
//! - *Listing*: `Storage::list`, and the very same requests again by a plain client, as many at once, which drops what it
//!   reads. The two take turns.
//! - *Deletes*: `Storage::delete` of 10,000 at a time, as the sweep calls it.
//!
//! `cargo bench --bench storage -- objects=10000 deletes=5000 latency=5 delete-latency=50` is a small run.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a benchmark's world is known")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of a benchmark are small")]

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use icewarden::config::Secret;
use icewarden::model::{Location, LocationRules};
use icewarden::storage::{Deleted, ListProgress, Listed, Storage};
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 3;
const CONCURRENCY: usize = 64;
const LISTINGS_PER_SECOND: f64 = 5_500.0;
const DELETES_PER_SECOND: f64 = 3_500.0;
/// As the sweep has them.
const GROUP: usize = 10_000;
/// What is beside the objects to be deleted.
const KEPT: usize = 1_000;

fn main() -> AnyResult<()> {
    let mut settings =
        BTreeMap::from([("objects", 1_000_000_u64), ("deletes", 100_000), ("latency", 20), ("delete-latency", 200)]);
    // Cargo adds `--bench`.
    for argument in std::env::args().skip(1).filter(|argument| argument != "--bench") {
        let setting = argument.split_once('=').and_then(|(name, value)| {
            *settings.get_mut(name)? = value.parse().ok()?;
            Some(())
        });
        setting.ok_or("usage: cargo bench --bench storage [-- objects=N deletes=N latency=MS delete-latency=MS]")?;
    }
    icewarden::catalog::install_crypto();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        list(settings["objects"] as usize, Duration::from_millis(settings["latency"])).await?;
        println!();
        delete(settings["deletes"] as usize, Duration::from_millis(settings["delete-latency"])).await
    })
}

fn key(number: usize) -> String {
    format!("wh/db/t/data/day={:04}/{number:08}-5d456f63-00001.parquet", number / 1_000)
}

fn storage(uri: &str) -> Storage {
    let options = [
        ("endpoint", uri),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("access_key_id", "bench"),
        ("secret_access_key", "bench"),
    ];
    let options = options.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect();
    Storage::new(LocationRules::default(), [("s3://lake".to_owned(), options)].into(), CONCURRENCY)
}

/// A limit with a second's worth in stock.
struct Limit {
    per_second: f64,
    stock: Mutex<(f64, Instant)>,
}

impl Limit {
    fn new(per_second: f64) -> Self {
        Self { per_second, stock: Mutex::new((per_second, Instant::now())) }
    }

    fn allows(&self, count: usize) -> bool {
        let mut stock = self.stock.lock().unwrap();
        let now = Instant::now();
        let grown = stock.0 + self.per_second * (now - stock.1).as_secs_f64();
        *stock = (grown.min(self.per_second), now);
        let is_allowed = stock.0 >= count as f64;
        stock.0 -= if is_allowed { count as f64 } else { 0.0 };
        is_allowed
    }
}

/// A bucket on a real port.
struct Server {
    latency: Duration,
    /// Sorted, and where what is said of each ends in `said`.
    keys: Vec<(String, usize)>,
    said: String,
    objects: Mutex<HashSet<String>>,
    listings: Limit,
    deletes: Limit,
    /// Queries of listings.
    asked: Mutex<Vec<String>>,
    requests: AtomicU64,
    refused: AtomicU64,
}

fn slow_down() -> Response {
    let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

impl Server {
    async fn start(keys: Vec<String>, latency: Duration) -> AnyResult<(Arc<Self>, String)> {
        let mut said = String::new();
        let with_ends = |key: &String| {
            write!(
                said,
                "<Contents><Key>{}</Key><LastModified>2026-11-30T12:00:00.000Z</LastModified>\
                 <ETag>&quot;9b2cf535f27731c974343645a3985328&quot;</ETag><Size>1048576</Size>\
                 <StorageClass>STANDARD</StorageClass></Contents>",
                key.replace('=', "%3D")
            )
            .unwrap();
            (key.clone(), said.len())
        };
        let indexed = keys.iter().map(with_ends).collect();
        let server = Arc::new(Self {
            latency,
            keys: indexed,
            said,
            objects: Mutex::new(keys.into_iter().collect()),
            listings: Limit::new(LISTINGS_PER_SECOND),
            deletes: Limit::new(DELETES_PER_SECOND),
            asked: Mutex::default(),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let (told, uri) = tokio::sync::oneshot::channel();
        let answering = Arc::clone(&server);
        // With threads of its own.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
                let handler = move |method: Method, uri: Uri, body: Bytes| {
                    let server = Arc::clone(&answering);
                    async move { server.answer(&method, &uri, &body).await }
                };
                let app = Router::new().fallback(handler).layer(DefaultBodyLimit::disable());
                axum::serve(listener, app).await.unwrap();
            });
        });
        Ok((server, uri.await?))
    }

    async fn answer(&self, method: &Method, uri: &Uri, body: &Bytes) -> Response {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let answer = match *method {
            Method::GET if self.listings.allows(1) => Some(self.page(uri.query().unwrap_or_default())),
            Method::POST => self.delete(std::str::from_utf8(body).unwrap()),
            Method::GET => None,
            _ => panic!("{method} {uri}"),
        };
        let Some(answer) = answer else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return slow_down();
        };
        tokio::time::sleep_until(began + self.latency).await;
        Body::from(answer).into_response()
    }

    /// A page of `ListObjectsV2`.
    fn page(&self, query: &str) -> String {
        self.asked.lock().unwrap().push(query.to_owned());
        let of = |name: &str| {
            let value =
                query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default();
            percent_decode_str(value).decode_utf8().unwrap().into_owned()
        };
        let (prefix, after, token) = (of("prefix"), of("start-after"), of("continuation-token"));
        let begin = match token.parse::<usize>() {
            Ok(begin) => begin,
            Err(_) => self.keys.partition_point(|(key, _)| *key < prefix || *key <= after),
        };
        let end = self.keys.partition_point(|(key, _)| key.starts_with(&prefix) || *key < prefix);
        let mut answer = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult \
                          xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><EncodingType>url</EncodingType>"
            .to_owned();
        if of("delimiter").is_empty() {
            let page_end = end.min(begin + 1_000);
            let from = if begin == 0 { 0 } else { self.keys[begin - 1].1 };
            answer.push_str(&self.said[from..if page_end > begin { self.keys[page_end - 1].1 } else { from }]);
            if page_end < end {
                write!(answer, "<NextContinuationToken>{page_end}</NextContinuationToken>").unwrap();
            }
            write!(answer, "<IsTruncated>{}</IsTruncated>", page_end < end).unwrap();
        } else {
            let mut at = begin;
            let mut count = 0;
            while at < end && count < 1_000 {
                let key = &self.keys[at].0;
                let Some(slash) = key[prefix.len()..].find('/') else { panic!("{key} is beside folders") };
                let folder = &key[..=prefix.len() + slash];
                let name = folder.replace('=', "%3D");
                write!(answer, "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>").unwrap();
                at += self.keys[at..].partition_point(|(key, _)| key.starts_with(folder));
                count += 1;
            }
            if at < end {
                write!(answer, "<NextContinuationToken>{at}</NextContinuationToken>").unwrap();
            }
            write!(answer, "<IsTruncated>{}</IsTruncated>", at < end).unwrap();
        }
        answer.push_str("</ListBucketResult>");
        answer
    }

    /// `DeleteObjects`; none where that is too many a second.
    fn delete(&self, body: &str) -> Option<String> {
        let keys: Vec<&str> = body.split("<Key>").skip(1).map(|rest| &rest[..rest.find("</Key>").unwrap()]).collect();
        assert!(keys.len() <= 1_000, "{} keys in a request", keys.len());
        if !self.deletes.allows(keys.len()) {
            return None;
        }
        let mut objects = self.objects.lock().unwrap();
        let mut answer = "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for key in keys {
            assert!(objects.remove(key), "{key} is not there, or was confirmed before");
            write!(answer, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
        }
        answer.push_str("</DeleteResult>");
        Some(answer)
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn per_second(count: usize, time: Duration) -> String {
    format!("{:.0}", count as f64 / time.as_secs_f64())
}

async fn list(objects: usize, latency: Duration) -> AnyResult<()> {
    let (server, uri) = Server::start((0..objects).map(key).collect(), latency).await?;
    let storage = storage(&uri);
    let root = storage.rules().root("s3://lake/wh/db/t")?;
    let (mut ours, mut bare, mut requests) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut listing = storage.list(&root, &Arc::new(ListProgress::default()));
        let mut seen = vec![false; objects];
        while let Some(batch) = listing.next().await? {
            for listed in batch {
                let Listed::Object { location, facts } = listed else { panic!("{listed:?}") };
                let name = location.rsplit('/').next().unwrap();
                let number: usize = name.split('-').next().unwrap().parse()?;
                assert!(!std::mem::replace(&mut seen[number], true), "{location} came twice");
                assert!(facts.size == 1_048_576 && facts.etag.is_some() && facts.modified.is_some(), "{facts:?}");
            }
        }
        ours.push(began.elapsed());
        assert!(seen.into_iter().all(|seen| seen), "an object was not listed");

        let asked = std::mem::take(&mut *server.asked.lock().unwrap());
        requests = asked.len();
        let client = reqwest::Client::new();
        let began = Instant::now();
        let bytes: usize = futures::stream::iter(asked)
            .map(|query| {
                let sent = client.get(format!("{uri}/lake?{query}")).send();
                async move { sent.await.unwrap().error_for_status().unwrap().bytes().await.unwrap().len() }
            })
            .buffer_unordered(CONCURRENCY)
            .fold(0, |sum, length| async move { sum + length })
            .await;
        bare.push(began.elapsed());
        assert!(bytes > server.said.len(), "the plain client has read all of it");
        server.asked.lock().unwrap().clear();
    }
    assert_eq!(server.refused.load(Ordering::Relaxed), 0);
    let (ours, bare) = (median(ours), median(bare));
    println!("| listing | objects | requests | time | objects/s | of bare |");
    println!("|---|---|---|---|---|---|");
    println!(
        "| icewarden | {objects} | {requests} | {:.2} s | {} | {:.0} % |",
        ours.as_secs_f64(),
        per_second(objects, ours),
        100.0 * bare.as_secs_f64() / ours.as_secs_f64()
    );
    println!("| bare | {objects} | {requests} | {:.2} s | {} | |", bare.as_secs_f64(), per_second(objects, bare));
    Ok(())
}

async fn delete(objects: usize, latency: Duration) -> AnyResult<()> {
    let (server, uri) = Server::start((0..objects + KEPT).map(key).collect(), latency).await?;
    let storage = storage(&uri);
    let doomed: Vec<Location> = (0..objects)
        .map(|number| storage.rules().parse(&format!("s3://lake/{}", key(number))))
        .collect::<Result<_, _>>()?;
    let began = Instant::now();
    for group in doomed.chunks(GROUP) {
        for (location, outcome) in storage.delete(group.to_vec(), Duration::from_mins(1)).await {
            assert!(matches!(outcome, Ok(Deleted::Deleted)), "{location}: {outcome:?}");
        }
    }
    let took = began.elapsed();
    let left = server.objects.lock().unwrap();
    assert_eq!(left.len(), KEPT);
    assert!((objects..objects + KEPT).all(|number| left.contains(&key(number))), "a neighbour is gone");
    println!("| deletes | objects | requests | refused | time | objects/s | limit |");
    println!("|---|---|---|---|---|---|---|");
    println!(
        "| icewarden | {objects} | {} | {} | {:.1} s | {} | {DELETES_PER_SECOND} |",
        server.requests.load(Ordering::Relaxed),
        server.refused.load(Ordering::Relaxed),
        took.as_secs_f64(),
        per_second(objects, took)
    );
    Ok(())
}
