//! Who we are to a REST catalog: nobody, the bearer of a fixed token, or an OAuth2 client that fetches its tokens.
//!
//! A token is fetched when it is first needed, and anew when four fifths of its life are over, or once after the
//! catalog refused it. Callers who need one at the same time share one request. No token and no secret is ever logged,
//! shown by `Debug`, or left in what a server says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::http::{self, Attempts, Failure, Patience};
use crate::clock::Clock;
use crate::config::{AuthConfig, RestConfig, Secret};

/// Shorter values are no secrets, and blotting them out would garble what a server says.
const SHORTEST_SECRET: usize = 4;

/// Who we are to one catalog.
#[derive(Debug, Clone)]
pub(super) struct Auth {
    kind: Kind,
    /// What must not appear in any message, besides tokens.
    hidden: Vec<Secret>,
}

#[derive(Debug, Clone)]
enum Kind {
    None,
    Token(Secret),
    Credential(Arc<Credential>),
}

/// What one request is sent with.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    token: Option<Secret>,
    /// Grows with every new token.
    pub(super) generation: u64,
}

impl Pass {
    /// For clients that send it themselves.
    pub(super) fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// The request with its `Authorization`.
    pub(super) fn on(&self, request: RequestBuilder) -> Result<RequestBuilder, Failure> {
        let Some(token) = &self.token else { return Ok(request) };
        Ok(request.header(AUTHORIZATION, bearer(token).map_err(Failure::before)?))
    }
}

impl Auth {
    /// Asks for nothing yet.
    pub(super) fn new(config: &RestConfig, patience: Patience) -> Result<Self, String> {
        let mut hidden: Vec<Secret> = config.headers.values().cloned().collect();
        let kind = match &config.auth {
            AuthConfig::None => Kind::None,
            AuthConfig::Token(token) => {
                bearer(token)?;
                Kind::Token(token.clone())
            }
            AuthConfig::Credential { id, secret, oauth2_server_uri, scope } => {
                hidden.push(secret.clone());
                let own = format!("{}/v1/oauth/tokens", config.uri.trim_end_matches('/'));
                // The catalog's headers may hold keys that are not for another server.
                let headers = if oauth2_server_uri.is_none() { config.headers.clone() } else { BTreeMap::new() };
                Kind::Credential(Arc::new(Credential {
                    client: http::client(&headers, config.ca.as_ref(), patience)?,
                    patience,
                    endpoint: oauth2_server_uri.clone().unwrap_or(own),
                    id: id.clone(),
                    secret: secret.clone(),
                    scope: scope.clone(),
                    fetches: AtomicU64::new(0),
                    held: Mutex::default(),
                }))
            }
        };
        Ok(Self { kind, hidden })
    }

    /// Begins something that changes nothing, and so may be tried several times.
    pub(super) async fn begin(&self, patience: Patience) -> Result<Authorized<'_>, Failure> {
        Ok(Authorized { auth: self, pass: self.pass().await?, attempts: Attempts::new(patience), is_renewed: false })
    }

    /// What a request is sent with now.
    pub(super) async fn pass(&self) -> Result<Pass, Failure> {
        match &self.kind {
            Kind::None => Ok(Pass { token: None, generation: 0 }),
            Kind::Token(token) => Ok(Pass { token: Some(token.clone()), generation: 0 }),
            Kind::Credential(credential) => self.without_secrets(credential.pass_at(Clock::boot_ms()).await),
        }
    }

    /// Another pass than this one, which the catalog did not accept; none where there is no other.
    pub(super) async fn renewed(&self, refused: &Pass) -> Result<Option<Pass>, Failure> {
        match &self.kind {
            Kind::None | Kind::Token(_) => Ok(None),
            Kind::Credential(credential) => {
                self.without_secrets(credential.renewed(refused.generation, Clock::boot_ms()).await).map(Some)
            }
        }
    }

    /// What a server said, without what we sent it.
    pub(super) fn redact(&self, said: &str, pass: &Pass) -> String {
        self.blot(said, pass.token.as_ref())
    }

    /// What to check if the catalog does not accept us.
    fn advice(&self) -> &'static str {
        match self.kind {
            Kind::None => "it wants to know who asks: give `credential` or `token`",
            Kind::Token(_) => "check `token`: it may have expired, or be another server's",
            Kind::Credential(_) => {
                "a new token was refused too: check `scope`, `oauth2_server_uri`, and what this client is allowed"
            }
        }
    }

    fn told(&self, mut failure: Failure, pass: &Pass) -> Failure {
        failure.reason = self.redact(&failure.reason, pass);
        if failure.status == Some(StatusCode::UNAUTHORIZED) {
            failure.reason = format!("{}; {}", failure.reason, self.advice());
        }
        failure
    }

    fn without_secrets<T>(&self, asked: Result<T, Failure>) -> Result<T, Failure> {
        asked.map_err(|failure| Failure { reason: self.blot(&failure.reason, None), ..failure })
    }

    fn blot(&self, said: &str, token: Option<&Secret>) -> String {
        let secrets = self.hidden.iter().chain(token).map(Secret::reveal);
        let secrets = secrets.filter(|secret| secret.len() >= SHORTEST_SECRET);
        secrets.fold(said.to_owned(), |said, secret| said.replace(secret, "***"))
    }
}

/// The attempts at something that changes nothing, each with a pass.
#[derive(Debug)]
pub(super) struct Authorized<'a> {
    auth: &'a Auth,
    /// For the next attempt.
    pub(super) pass: Pass,
    attempts: Attempts,
    is_renewed: bool,
}

impl Authorized<'_> {
    /// After an attempt that failed: gets a new pass if that may help, or waits, until the next one; or gives back the
    /// failure, with advice, if there is to be none.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<(), Failure> {
        if failure.status == Some(StatusCode::UNAUTHORIZED)
            && !self.is_renewed
            && let Some(new) = self.auth.renewed(&self.pass).await?
        {
            self.pass = new;
            self.is_renewed = true;
            return Ok(());
        }
        self.attempts.after(failure).await.map_err(|failure| self.auth.told(failure, &self.pass))
    }
}

fn bearer(token: &Secret) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))
        .map_err(|_| "`token` holds characters that no HTTP header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// OAuth2 client credentials and the token that was last given for them.
#[derive(Debug)]
struct Credential {
    client: Client,
    patience: Patience,
    endpoint: String,
    id: String,
    secret: Secret,
    scope: String,
    /// How many requests for a token have ended.
    fetches: AtomicU64,
    /// Locked while a token is asked for, so that one request serves all who wait.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    token: Option<Token>,
    generation: u64,
    /// Of the last request for a token, if it failed.
    failure: Option<Failure>,
}

#[derive(Debug, Clone)]
struct Token {
    value: Secret,
    life: Option<Life>,
}

/// In milliseconds of boot time.
#[derive(Debug, Clone, Copy)]
struct Life {
    renew: u64,
    end: u64,
}

/// What the token server answers, leniently (RFC 6749, 5.1).
#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    #[serde(default)]
    expires_in: Value,
}

/// RFC 6749, 5.2.
#[derive(Deserialize)]
struct TokenRefusal {
    error: String,
    error_description: Option<String>,
}

impl Credential {
    async fn pass_at(&self, now: u64) -> Result<Pass, Failure> {
        let seen = self.fetches.load(Ordering::SeqCst);
        let mut held = self.held.lock().await;
        let Some(token) = held.token.clone() else { return self.fetch(&mut held, seen, now).await };
        match token.life {
            Some(life) if life.end <= now => self.fetch(&mut held, seen, now).await,
            Some(life) if life.renew <= now => match self.fetch(&mut held, seen, now).await {
                Err(failure) => {
                    tracing::warn!(reason = self.shown(&failure), "no new token yet; the old one still holds");
                    // Not at every request until then.
                    let renew = now + (life.end - now).div_ceil(2);
                    held.token = Some(Token { life: Some(Life { renew, ..life }), ..token });
                    Ok(held.pass())
                }
                fetched => fetched,
            },
            _ => Ok(held.pass()),
        }
    }

    async fn renewed(&self, refused: u64, now: u64) -> Result<Pass, Failure> {
        let seen = self.fetches.load(Ordering::SeqCst);
        let mut held = self.held.lock().await;
        if held.generation != refused && held.token.is_some() {
            // Somebody else was refused too, and has a new one already.
            return Ok(held.pass());
        }
        held.token = None;
        self.fetch(&mut held, seen, now).await
    }

    /// Asks for a token, unless somebody did in vain while we waited for the lock.
    async fn fetch(&self, held: &mut Held, seen: u64, now: u64) -> Result<Pass, Failure> {
        if self.fetches.load(Ordering::SeqCst) != seen
            && let Some(failure) = &held.failure
        {
            return Err(failure.clone());
        }
        let asked = self.ask(now).await;
        self.fetches.fetch_add(1, Ordering::SeqCst);
        match asked {
            Ok(token) => {
                *held = Held { token: Some(token), generation: held.generation + 1, failure: None };
                Ok(held.pass())
            }
            Err(reason) => {
                let failure = Failure::before(reason);
                held.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    async fn ask(&self, now: u64) -> Result<Token, String> {
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", self.id.as_str()),
            ("client_secret", self.secret.reveal()),
            ("scope", self.scope.as_str()),
        ];
        let endpoint = &self.endpoint;
        let mut attempts = Attempts::new(self.patience);
        let fetched = loop {
            match http::fetch(self.client.post(endpoint).form(&form), refusal).await {
                Ok(body) => break Ok(body),
                Err(failure) => {
                    if let Err(failure) = attempts.after(failure).await {
                        break Err(failure);
                    }
                }
            }
        };
        let body = fetched.map_err(|failure| {
            let advice = match failure.status {
                Some(StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                    "check `credential` and `scope`"
                }
                Some(status) if status.is_client_error() => "check `oauth2_server_uri`",
                Some(_) => "the token server is in trouble",
                None => "check `oauth2_server_uri`, and that the server can be reached",
            };
            format!("no token from {endpoint}: {}; {advice}", failure.reason)
        })?;
        // The parser's words may quote the token.
        let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| {
            format!("no token from {endpoint}: its answer has no access_token; check `oauth2_server_uri`")
        })?;
        let value = Secret::new(answer.access_token);
        if bearer(&value).is_err() {
            return Err(format!("the token from {endpoint} holds characters that no HTTP header can carry"));
        }
        Ok(Token { value, life: seconds(&answer.expires_in).map(|seconds| Life::of(seconds, now)) })
    }

    fn shown(&self, failure: &Failure) -> String {
        failure.reason.replace(self.secret.reveal(), "***")
    }
}

impl Held {
    fn pass(&self) -> Pass {
        Pass { token: self.token.as_ref().map(|token| token.value.clone()), generation: self.generation }
    }
}

impl Life {
    /// Counted from before the token was asked for.
    fn of(seconds: u64, asked: u64) -> Self {
        Self {
            renew: asked.saturating_add(seconds.saturating_mul(800)),
            end: asked.saturating_add(seconds.saturating_mul(1000)),
        }
    }
}

/// Some servers send numbers as text, or with a fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, which is as good")]
fn seconds(value: &Value) -> Option<u64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number: &f64| number.is_finite()).map(|number| number as u64)
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    let Ok(TokenRefusal { error, error_description }) = serde_json::from_slice(body) else {
        return http::complaint(status, body);
    };
    let words = [Some(error), error_description].into_iter().flatten().collect::<Vec<_>>().join(": ");
    format!("HTTP {status}: {words}")
}

#[cfg(test)]
mod tests;
