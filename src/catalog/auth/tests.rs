use std::sync::Mutex as Log;

use axum::Router;
use axum::http::StatusCode as Code;
use axum::response::IntoResponse;
use tokio::net::TcpListener;

use super::*;

/// A credential whose server gives these answers, the last one for ever.
async fn credential(answers: Vec<(u16, &'static str)>) -> Credential {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/token", listener.local_addr().unwrap());
    let answers = Arc::new(Log::new(answers));
    let handler = move || {
        let mut answers = answers.lock().unwrap();
        let (code, body) = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        std::future::ready((Code::from_u16(code).unwrap(), body).into_response())
    };
    tokio::spawn(axum::serve(listener, Router::new().fallback(handler)).into_future());
    let patience = Patience { backoff: std::time::Duration::from_millis(1), ..Patience::default() };
    Credential {
        client: http::client(&BTreeMap::new(), None, patience).unwrap(),
        patience,
        endpoint,
        id: "me".into(),
        secret: Secret::new("s3cret"),
        scope: "catalog".into(),
        fetches: AtomicU64::new(0),
        held: Mutex::default(),
    }
}

async fn token_at(credential: &Credential, now: u64) -> Result<String, String> {
    let pass = credential.pass_at(now).await.map_err(|failure| failure.reason)?;
    Ok(pass.token.unwrap().reveal().to_owned())
}

const FIRST: (u16, &str) = (200, r#"{"access_token":"first","expires_in":100}"#);
const SECOND: (u16, &str) = (200, r#"{"access_token":"second","expires_in":100}"#);

#[tokio::test]
async fn a_token_is_renewed_when_four_fifths_of_its_life_are_over() {
    let credential = credential(vec![FIRST, SECOND]).await;
    for (now, token) in [(5_000, "first"), (84_999, "first"), (85_000, "second"), (164_999, "second")] {
        assert_eq!(token_at(&credential, now).await.unwrap(), token, "{now}");
    }
    assert_eq!(credential.pass_at(164_999).await.unwrap().generation, 2);
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_serves_to_its_end() {
    let credential = credential(vec![FIRST, (500, ""), (500, ""), (500, "")]).await;
    assert_eq!(token_at(&credential, 0).await.unwrap(), "first");
    // Each attempt in vain halves the time to the next.
    for (now, fetches) in [(79_999, 1), (80_000, 2), (89_999, 2), (90_000, 3), (94_999, 3), (99_999, 4)] {
        assert_eq!(token_at(&credential, now).await.unwrap(), "first", "{now}");
        assert_eq!(credential.fetches.load(Ordering::SeqCst), fetches, "{now}");
    }
    let failure = token_at(&credential, 100_000).await.unwrap_err();
    assert!(failure.contains("HTTP 500"), "{failure}");
}

#[tokio::test]
async fn those_who_wait_share_a_failure_too() {
    let credential = credential(vec![(400, "no")]).await;
    let passes = futures::future::join_all((0..16).map(|_| credential.pass_at(0))).await;
    assert!(passes.iter().all(Result::is_err));
    assert_eq!(credential.fetches.load(Ordering::SeqCst), 1);
    assert!(credential.pass_at(0).await.is_err());
    assert_eq!(credential.fetches.load(Ordering::SeqCst), 2, "who comes later asks anew");
}

#[test]
fn the_life_of_a_token_is_read_as_servers_write_it() {
    for (value, expected) in [
        (Value::from(3600), Some(3600)),
        (Value::from("3600"), Some(3600)),
        (Value::from(59.9), Some(59)),
        (Value::from(-1), Some(0)),
        (Value::Null, None),
        (Value::from("soon"), None),
    ] {
        assert_eq!(seconds(&value), expected, "{value}");
    }
}
