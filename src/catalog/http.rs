//! The HTTP below a REST catalog: its client, paths, what is tried again, and what answers and failures mean.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, RequestBuilder, StatusCode};
use serde::Deserialize;

use crate::config::{CaFile, Secret};
use crate::storage::install_crypto;

/// A server that is there accepts a connection at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Loading and committing a table of a hundred megabytes of metadata takes its time.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// All pages of one namespace. Some servers repeat a page for ever, and each time it is kept once more.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);

/// Before the first retry; doubled before each further one. With three of them a restart of the server is survived.
const BACKOFF: Duration = Duration::from_millis(500);

/// A server that wants a longer pause is asked again after this one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// After the first attempt.
const RETRIES: u32 = 3;

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How long we wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) connect: Duration,
    pub(super) request: Duration,
    pub(super) backoff: Duration,
    /// All pages of one namespace.
    pub(super) listing: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connect: CONNECT_TIMEOUT, request: REQUEST_TIMEOUT, backoff: BACKOFF, listing: LIST_TIMEOUT }
    }
}

impl Patience {
    /// Before the retry after this many failed ones. Half of it is by chance, so that callers who failed together do
    /// not come back together.
    fn pause(&self, retries: u32, asked: Option<Duration>) -> Duration {
        let backoff = self.backoff.saturating_mul(1 << retries.min(8));
        let chance = RandomState::new().hash_one(retries) % 1000;
        let backoff = backoff / 2 + backoff.mul_f64(chance as f64 / 2000.0);
        asked.unwrap_or(backoff).min(LONGEST_PAUSE)
    }
}

/// The client of one server. It follows no redirects: a POST that is redirected may arrive as a GET, whose answer
/// looks like that of a commit.
pub(super) fn client(
    headers: &BTreeMap<String, Secret>,
    ca: Option<&CaFile>,
    patience: Patience,
) -> Result<Client, String> {
    install_crypto();
    let mut sent = HeaderMap::new();
    for (name, secret) in headers {
        let value = HeaderValue::from_str(secret.reveal()).ok();
        let Some((name, mut value)) = HeaderName::from_bytes(name.as_bytes()).ok().zip(value) else {
            return Err(format!("the header {name} cannot be sent: check [catalog.headers]"));
        };
        value.set_sensitive(true);
        sent.insert(name, value);
    }
    let builder = Client::builder()
        .user_agent(concat!("icewarden/", env!("CARGO_PKG_VERSION")))
        .default_headers(sent)
        .redirect(Policy::none())
        .connect_timeout(patience.connect)
        .timeout(patience.request);
    let Some(ca) = ca else { return builder.build().map_err(|error| explain(&error)) };
    let unusable = |reason: String| format!("the certificates of ca_file {:?} cannot be used: {reason}", ca.name);
    let roots = Certificate::from_pem_bundle(ca.pem.as_bytes()).map_err(|error| unusable(explain(&error)))?;
    if roots.is_empty() {
        return Err(unusable("there are none in it".to_owned()));
    }
    let builder = roots.into_iter().fold(builder, ClientBuilder::add_root_certificate);
    // A certificate is taken apart only here.
    builder.build().map_err(|error| unusable(explain(&error)))
}

/// A request that got no good answer.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// Of the answer; none without one.
    pub(super) status: Option<StatusCode>,
    /// In the server's words, or what went wrong before.
    pub(super) reason: String,
    /// Whether it may pass by itself, so that what changes nothing is worth another attempt.
    pub(super) may_pass: bool,
    /// The pause that the server asks for.
    pub(super) pause: Option<Duration>,
}

impl Failure {
    /// One that has nothing to do with the answer to the request itself.
    pub(super) fn before(reason: String) -> Self {
        Self { status: None, reason, may_pass: false, pause: None }
    }

    /// Of a request that got no whole answer.
    pub(super) fn unanswered(error: &reqwest::Error) -> Self {
        Self { may_pass: error.is_connect(), ..Self::before(explain(error)) }
    }

    /// Of an answer that is no success.
    pub(super) fn answered(status: StatusCode, reason: String, retry_after: Option<&str>) -> Self {
        let may_pass = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        // Its other form is a date, for which our own pause does.
        let pause = retry_after.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
        Self { status: Some(status), reason, may_pass, pause }
    }
}

/// The attempts at something that changes nothing.
#[derive(Debug)]
pub(super) struct Attempts {
    patience: Patience,
    retries: u32,
}

impl Attempts {
    /// None yet.
    pub(super) fn new(patience: Patience) -> Self {
        Self { patience, retries: 0 }
    }

    /// After an attempt that failed: waits until the next one, or gives back the failure if there is to be none.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.may_pass && self.retries < RETRIES {
            tokio::time::sleep(self.patience.pause(self.retries, failure.pause)).await;
            self.retries += 1;
            return Ok(());
        }
        if self.retries == 0 {
            return Err(failure);
        }
        let reason = format!("{} (after {} attempts)", failure.reason, self.retries + 1);
        Err(Failure { reason, ..failure })
    }
}

/// The body of a successful answer. `words` makes a reason of one that is none.
pub(super) async fn fetch(request: RequestBuilder, words: fn(StatusCode, &[u8]) -> String) -> Result<Bytes, Failure> {
    let answer = request.send().await.map_err(|error| Failure::unanswered(&error))?;
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = answer.bytes().await.map_err(|error| Failure::unanswered(&error))?;
    if status == StatusCode::OK {
        return Ok(body);
    }
    Err(Failure::answered(status, words(status, &body), retry_after.as_deref()))
}

/// A name as one segment of a path. `.` and `..` have no such form: every URL parser takes them, and their encoded
/// forms, for steps in the path.
pub(super) fn segment(name: &str) -> Result<String, String> {
    if matches!(name, "" | "." | "..") {
        return Err(format!("the name {name:?} cannot be sent in a URL"));
    }
    Ok(utf8_percent_encode(name, RESERVED).to_string())
}

/// The levels of a namespace as one segment; `separator` is percent-encoded as the server told it.
pub(super) fn namespace(levels: &[String], separator: &str) -> Result<String, String> {
    let encoded = levels.iter().map(|level| utf8_percent_encode(level, RESERVED).to_string());
    let joined = encoded.collect::<Vec<_>>().join(separator);
    if matches!(joined.as_str(), "" | "." | "..") {
        return Err(format!("the namespace {levels:?} cannot be sent in a URL"));
    }
    Ok(joined)
}

/// A failure to get an answer, with its causes.
pub(super) fn explain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

/// Whether a request certainly never left.
pub(super) fn was_not_sent(error: &reqwest::Error) -> bool {
    error.is_connect() || error.is_builder()
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorModel,
}

#[derive(Deserialize)]
struct ErrorModel {
    message: Option<String>,
    r#type: Option<String>,
}

/// An answer that is no success, in the server's words where it has any.
pub(super) fn complaint(status: StatusCode, body: &[u8]) -> String {
    const SHOWN: usize = 300;
    let said = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error }) => [error.r#type, error.message].into_iter().flatten().collect::<Vec<_>>().join(": "),
        Err(_) => String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect(),
    };
    if said.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {said}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_but_for_the_unreserved() {
        for (name, encoded) in [
            ("orders", "orders"),
            ("a-b._~9", "a-b._~9"),
            ("a/b#c?d", "a%2Fb%23c%3Fd"),
            ("50%", "50%25"),
            ("a b+ü", "a%20b%2B%C3%BC"),
            ("\u{1f}", "%1F"),
        ] {
            assert_eq!(segment(name).unwrap(), encoded);
        }
        for name in ["", ".", ".."] {
            assert!(segment(name).is_err() && namespace(&[name.to_owned()], "%1F").is_err());
        }
        let levels = ["a.b".to_owned(), "c/d".to_owned()];
        assert_eq!(namespace(&levels, "%1F").unwrap(), "a.b%1Fc%2Fd");
        assert_eq!(namespace(&levels, "%2E").unwrap(), "a.b%2Ec%2Fd");
        assert!(namespace(&[], "%1F").is_err());
    }

    #[test]
    fn pauses_double_but_the_server_decides_up_to_half_a_minute() {
        let patience = Patience { backoff: Duration::from_millis(500), ..Patience::default() };
        for (retries, from, to) in [(0, 250, 500), (1, 500, 1000), (2, 1000, 2000)] {
            let pause = patience.pause(retries, None).as_millis();
            assert!((from..=to).contains(&pause), "{retries}: {pause}");
        }
        for (header, seconds) in [("0", Some(0)), (" 7 ", Some(7)), ("3600", Some(30)), ("Wed, 21 Oct", None)] {
            let failure = Failure::answered(StatusCode::TOO_MANY_REQUESTS, String::new(), Some(header));
            assert_eq!(failure.pause.map(|pause| patience.pause(0, Some(pause)).as_secs()), seconds, "{header}");
        }
    }

    #[test]
    fn only_what_passes_by_itself_is_tried_again() {
        for (code, passes) in
            [(429, true), (502, true), (503, true), (504, true), (500, false), (401, false), (404, false)]
        {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(Failure::answered(status, String::new(), None).may_pass, passes, "{code}");
        }
    }

    #[test]
    fn complaints_are_in_the_servers_words_where_it_has_any() {
        let status = StatusCode::CONFLICT;
        for (body, text) in [
            (r#"{"error":{"message":"m","type":"T","code":409}}"#, "HTTP 409 Conflict: T: m"),
            (r#"{"error":{"message":"m","code":"odd","stack":7}}"#, "HTTP 409 Conflict: m"),
            ("<html>no</html>\n", "HTTP 409 Conflict: <html>no</html>"),
            ("", "HTTP 409 Conflict"),
        ] {
            assert_eq!(complaint(status, body.as_bytes()), text);
        }
        assert!(complaint(status, "é".repeat(9999).as_bytes()).chars().count() < 400);
    }
}
