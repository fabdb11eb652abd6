//! The HTTP below a REST catalog: paths, headers, time limits, and what answers and failures mean.

use std::error::Error as _;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde::Deserialize;

use crate::config::Secret;

/// A server that is there accepts a connection at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Loading and committing a table of a hundred megabytes of metadata takes its time.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How long we wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    pub(super) request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: CONNECT_TIMEOUT, request: REQUEST_TIMEOUT }
    }
}

/// The client of one catalog. It follows no redirects: a POST that is redirected may arrive as a GET, whose answer
/// looks like that of a commit.
pub(super) fn client(token: Option<&Secret>, timeouts: Timeouts) -> Result<Client, String> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))
            .map_err(|_| "`token` holds characters that no HTTP header can carry".to_owned())?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Client::builder()
        .user_agent(concat!("icewarden/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(Policy::none())
        .connect_timeout(timeouts.connect)
        .timeout(timeouts.request)
        .build()
        .map_err(|error| explain(&error))
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
