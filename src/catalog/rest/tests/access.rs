//! Tokens, headers, certificates, and what is tried again.

use axum::serve::Listener;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::config::CaFile;

const TOKENS: &str = "POST /v1/oauth/tokens";
const LOAD: &str = "GET /v1/namespaces/db/tables/t?snapshots=all";

fn credential() -> AuthConfig {
    AuthConfig::Credential {
        id: "me".into(),
        secret: Secret::new("s3cret"),
        oauth2_server_uri: None,
        scope: "catalog".into(),
    }
}

/// A catalog that gives the tokens `token-1`, `token-2`, …, of this life, and answers with `answer` to a request with
/// a token, which it is told by number.
async fn catalog_with_tokens(
    expires_in: Value,
    answer: impl Fn(usize, &str) -> Answer + Clone + Send + Sync + 'static,
) -> Server {
    let given = Arc::new(Mutex::new(0));
    Server::start_for(move |asked| {
        if asked.line == TOKENS {
            let mut given = given.lock().unwrap();
            *given += 1;
            let token = format!("token-{given}");
            return ok(&json!({ "access_token": token, "token_type": "bearer", "expires_in": expires_in }));
        }
        match asked.header("authorization").strip_prefix("Bearer token-") {
            Some(number) => answer(number.parse().unwrap(), &asked.line),
            None => error(401, "NotAuthorizedException"),
        }
    })
    .await
}

/// A catalog of one table `db.t`.
fn one_table(line: &str) -> Answer {
    match line.split('?').next().unwrap() {
        "GET /v1/config" => empty_config(),
        "GET /v1/namespaces" if line.contains("parent") => ok(&json!({ "namespaces": [] })),
        "GET /v1/namespaces" => ok(&json!({ "namespaces": [["db"]] })),
        "GET /v1/namespaces/db/tables" => ok(&json!({ "identifiers": [{ "namespace": ["db"], "name": "t" }] })),
        _ => error(404, "NoSuchTableException"),
    }
}

fn count(server: &Server, line: &str) -> usize {
    server.lines().iter().filter(|asked| *asked == line).count()
}

fn no_such_table(loaded: &Result<LoadedTable, CatalogError>) -> bool {
    matches!(loaded, Err(CatalogError::NoSuchTable { .. }))
}

#[tokio::test]
async fn one_token_serves_many_calls_and_all_who_wait_for_it() {
    // Without a life it holds until it is refused.
    for expires_in in [json!(3600), json!("3600"), json!(3600.5), Value::Null] {
        let server = catalog_with_tokens(expires_in, |_, line| one_table(line)).await;
        let catalog = open_as(&server.uri, credential()).await.unwrap();
        assert_eq!(server.asked.lock().unwrap()[0].line, TOKENS);
        let form = server.asked.lock().unwrap()[0].body.clone();
        assert_eq!(form, "grant_type=client_credentials&client_id=me&client_secret=s3cret&scope=catalog");
        assert_eq!(catalog.list_tables().await.unwrap().len(), 1);
        let name = table(&["db"], "t");
        let loads = futures::future::join_all((0..8).map(|_| catalog.load(&name))).await;
        assert!(loads.iter().all(no_such_table));
        catalog.commit(&base(), &[], &[]).await;
        assert_eq!(count(&server, TOKENS), 1);
        assert_eq!(server.last().header("authorization"), "Bearer token-1");
        let shown = format!("{catalog:?}{catalog:#?}");
        assert!(!shown.contains("token-1") && !shown.contains("s3cret"), "{shown}");
    }
}

#[tokio::test]
async fn a_token_at_its_end_is_replaced_before_it_is_sent() {
    let server = catalog_with_tokens(json!(0), |_, line| one_table(line)).await;
    let catalog = open_as(&server.uri, credential()).await.unwrap();
    for number in 2..5 {
        assert!(no_such_table(&catalog.load(&table(&["db"], "t")).await));
        assert_eq!(server.last().header("authorization"), format!("Bearer token-{number}"));
    }
    // The lister too, whose crate takes a token only when it is built.
    catalog.list_tables().await.unwrap();
    let asked = server.asked.lock().unwrap().clone();
    let used: Vec<&str> =
        asked.iter().map(|asked| asked.header("authorization")).filter(|sent| !sent.is_empty()).collect();
    assert!(used.iter().all(|sent| used.iter().filter(|other| other == &sent).count() <= 2), "{used:?}");
}

#[tokio::test]
async fn a_401_in_the_middle_gets_one_new_token_and_the_work_goes_on() {
    let revoked = Arc::new(Mutex::new(0));
    let last = Arc::clone(&revoked);
    let server = catalog_with_tokens(json!(3600), move |number, line| {
        if number <= *last.lock().unwrap() { error(401, "NotAuthorizedException") } else { one_table(line) }
    })
    .await;
    let catalog = open_as(&server.uri, credential()).await.unwrap();
    assert_eq!(catalog.list_tables().await.unwrap().len(), 1);

    *revoked.lock().unwrap() = 1;
    let name = table(&["db"], "t");
    let loads = futures::future::join_all((0..8).map(|_| catalog.load(&name))).await;
    assert!(loads.iter().all(no_such_table));
    assert_eq!(count(&server, TOKENS), 2, "eight who were refused share one");

    *revoked.lock().unwrap() = 2;
    assert_eq!(catalog.list_tables().await.unwrap().len(), 1, "the lister gets the new one");
    assert_eq!(count(&server, TOKENS), 3);

    // A commit is not sent again, but what follows it has a new token.
    *revoked.lock().unwrap() = 3;
    let outcome = catalog.commit(&base(), &[], &[]).await;
    assert!(matches!(&outcome, CommitOutcome::Rejected { reason, .. } if reason.contains("HTTP 401")), "{outcome:?}");
    assert_eq!((count(&server, "POST /v1/namespaces/db/tables/t"), count(&server, TOKENS)), (1, 4));
    assert!(no_such_table(&catalog.load(&name).await));
    assert_eq!(count(&server, TOKENS), 4);
}

#[tokio::test]
async fn a_second_401_stands_and_says_what_to_check() {
    let server = catalog_with_tokens(json!(3600), |_, line| {
        if line.contains("config") {
            return empty_config();
        }
        // A server that repeats what it was sent.
        (401, "no: Bearer token-1 token-2 token-3 s3cret".into())
    })
    .await;
    let catalog = open_as(&server.uri, credential()).await.unwrap();
    let load = catalog.load(&table(&["db"], "t")).await.unwrap_err();
    assert!(matches!(load, CatalogError::Unavailable { .. }));
    let load = load.to_string();
    assert!(load.contains("HTTP 401 Unauthorized") && load.contains("check `scope`"), "{load}");
    assert!(!load.contains("token-2") && !load.contains("s3cret"), "{load}");
    assert_eq!((count(&server, TOKENS), count(&server, LOAD)), (2, 2));
    let list = catalog.list_tables().await.unwrap_err().to_string();
    assert!(list.contains("HTTP 401 Unauthorized: no") && list.contains("check `scope`"), "{list}");
    assert!(!list.contains("token-3") && !list.contains("s3cret"), "{list}");

    for (auth, advice) in
        [(AuthConfig::None, "`credential` or `token`"), (AuthConfig::Token(Secret::new("token-x")), "check `token`")]
    {
        let server = Server::start(|_| (401, "token-x is not known".into())).await;
        let failure = open_as(&server.uri, auth.clone()).await.unwrap_err().to_string();
        assert!(failure.contains(advice) && server.lines().len() == 1, "{failure}");
        assert_eq!(failure.contains("token-x"), auth == AuthConfig::None, "{failure}");
    }
}

#[tokio::test]
async fn a_token_that_is_not_given_says_what_to_check() {
    let refused = json!({ "error": "invalid_client", "error_description": "s3cret is wrong" });
    for (answer, expected) in [
        ((401, refused.to_string()), "HTTP 401 Unauthorized: invalid_client: *** is wrong; check `credential`"),
        ((400, json!({ "error": "invalid_scope" }).to_string()), "invalid_scope; check `credential` and `scope`"),
        // Not to be taken for a table that is not there.
        ((404, "nothing here".to_owned()), "HTTP 404 Not Found: nothing here; check `oauth2_server_uri`"),
        ((500, String::new()), "HTTP 500 Internal Server Error; the token server is in trouble"),
        ((503, String::new()), "(after 4 attempts); the token server is in trouble"),
        (ok(&json!({ "token": "s3cret" })), "has no access_token"),
        (ok(&json!({ "access_token": "a\nb" })), "characters that no HTTP header can carry"),
    ] {
        // Gives a good token first, which is then revoked.
        let given = Arc::new(Mutex::new(false));
        let server = Server::start(move |line| {
            let mut given = given.lock().unwrap();
            match line {
                TOKENS if *given => answer.clone(),
                TOKENS => {
                    *given = true;
                    ok(&json!({ "access_token": "first" }))
                }
                line if line.contains("config") => empty_config(),
                _ => error(401, "NotAuthorizedException"),
            }
        })
        .await;
        let catalog = open_as(&server.uri, credential()).await.unwrap();
        let load = catalog.load(&table(&["db"], "t")).await.unwrap_err();
        assert!(matches!(load, CatalogError::Unavailable { .. }), "{load}");
        for said in [load.to_string(), catalog.list_tables().await.unwrap_err().to_string()] {
            assert!(said.contains(expected) && said.contains("/v1/oauth/tokens"), "{said}");
            assert!(!said.contains("s3cret"), "{said}");
        }
        let posts = |line: &String| line.starts_with("POST /v1/namespaces");
        let outcome = catalog.commit(&base(), &[], &[]).await;
        assert!(matches!(&outcome, CommitOutcome::Rejected { reason, .. } if reason.contains(expected)), "{outcome:?}");
        assert!(!server.lines().iter().any(posts), "nothing is sent without a token");
    }
}

#[tokio::test]
async fn headers_go_with_every_request_but_not_to_another_token_server() {
    let tokens = Server::start(|_| ok(&json!({ "access_token": "elsewhere" }))).await;
    for elsewhere in [false, true] {
        let server = catalog_with_tokens(json!(3600), |_, line| one_table(line)).await;
        let lax = Server::start(one_table).await;
        let mut auth = credential();
        if elsewhere && let AuthConfig::Credential { oauth2_server_uri, .. } = &mut auth {
            *oauth2_server_uri = Some(format!("{}/token", tokens.uri));
        }
        let server = if elsewhere { lax } else { server };
        let mut config = config(&server.uri, auth);
        config.headers = [("x-api-key".to_owned(), Secret::new("k3y-of-gate"))].into();
        let catalog = RestCatalog::open_within("lake", &config, None, storage(), HURRIED).await.unwrap();
        catalog.list_tables().await.unwrap();
        assert!(no_such_table(&catalog.load(&table(&["db"], "t")).await));
        catalog.commit(&base(), &[], &[]).await;
        let asked = server.asked.lock().unwrap().clone();
        assert!(asked.len() >= 6 && asked.iter().all(|asked| asked.header("x-api-key") == "k3y-of-gate"));
        assert!(!format!("{catalog:?}").contains("k3y-of-gate"));
        if elsewhere {
            assert_eq!(tokens.last().line, "POST /token");
            assert_eq!(tokens.last().header("x-api-key"), "");
            assert_eq!(server.last().header("authorization"), "Bearer elsewhere");
        }
    }
    // A gate that repeats the key.
    let gate = Server::start(|_| (403, "k3y-of-gate is blocked".into())).await;
    let mut config = config(&gate.uri, AuthConfig::None);
    config.headers = [("x-api-key".to_owned(), Secret::new("k3y-of-gate"))].into();
    let failure = RestCatalog::open("lake", &config, None, storage()).await.unwrap_err().to_string();
    assert!(failure.ends_with("HTTP 403 Forbidden: *** is blocked"), "{failure}");
}

#[tokio::test]
async fn what_passes_is_asked_again_three_times() {
    for code in [429, 502, 503, 504] {
        for failures in [1, 3, 4] {
            let left = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
            let server = Server::start(move |line| {
                let mut left = left.lock().unwrap();
                let left = left.entry(line.to_owned()).or_insert(failures);
                if *left == 0 {
                    return one_table(line);
                }
                *left -= 1;
                error(code, "BusyException")
            })
            .await;
            let opened = open_as(&server.uri, AuthConfig::None).await;
            if failures > 3 {
                let failure = opened.unwrap_err().to_string();
                assert!(failure.contains("BusyException: said so (after 4 attempts)"), "{failure}");
                assert_eq!(server.lines().len(), 4);
                continue;
            }
            let catalog = opened.unwrap();
            assert!(no_such_table(&catalog.load(&table(&["db"], "t")).await));
            assert_eq!(count(&server, LOAD), failures as usize + 1);
            // The crate's own request for the configuration succeeds at once.
            assert_eq!(catalog.list_tables().await.unwrap().len(), 1);
            assert_eq!(count(&server, "GET /v1/namespaces/db/tables"), failures as usize + 1);
            let outcome = catalog.commit(&base(), &[], &[]).await;
            assert!(!matches!(outcome, CommitOutcome::Committed));
            assert_eq!(count(&server, "POST /v1/namespaces/db/tables/t"), 1, "a commit is never sent twice");
        }
    }
    // Told once, for good.
    let server = Server::start(|line| if line.contains("config") { empty_config() } else { error(500, "Oops") }).await;
    let failure = open_as(&server.uri, AuthConfig::None).await.unwrap().list_tables().await.unwrap_err().to_string();
    assert!(failure.ends_with("HTTP 500 Internal Server Error: Oops: said so"), "{failure}");
    assert_eq!(count(&server, "GET /v1/namespaces"), 1);
}

#[tokio::test]
async fn a_listing_tells_neither_headers_nor_the_servers_configuration() {
    // The crate takes no values but texts, and would show all of them.
    let odd = json!({ "overrides": { "token": "of-the-server", "n": 7 }, "defaults": {} });
    let server = Server::start(move |_| ok(&odd)).await;
    let mut catalog = open_as(&server.uri, AuthConfig::None).await.unwrap();
    let failure = catalog.list_tables().await.unwrap_err().to_string();
    assert!(failure.contains("Failed to parse response") && failure.contains("expected a string"), "{failure}");
    assert!(!failure.contains("of-the-server"), "{failure}");

    catalog.uri = "http://127.0.0.1:1".to_owned();
    catalog.lister = HeldLister::default();
    let failure = catalog.list_tables().await.unwrap_err().to_string();
    assert!(failure.contains("refused") && failure.contains("after 4 attempts"), "{failure}");
}

/// Hands out connections after their handshake.
struct Tls(TcpListener, TlsAcceptor);

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (socket, address) = self.0.accept().await.unwrap();
            // Clients that do not trust us go away here.
            if let Ok(stream) = self.1.accept(socket).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> tokio::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_the_authority_of_ca_file_only() {
    crate::catalog::install_crypto();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let certificates = vec![made.cert.der().clone()];
    let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (asked, app) =
        app(|asked| if asked.line == TOKENS { ok(&json!({ "access_token": "x" })) } else { one_table(&asked.line) });
    tokio::spawn(axum::serve(Tls(listener, TlsAcceptor::from(Arc::new(tls))), app).into_future());

    let ca = |pem: String| Some(CaFile { name: "ca.pem".into(), pem });
    let with = |ca| RestConfig { ca, ..config(&uri, credential()) };
    let trusting = with(ca(format!("a comment\n{}", made.cert.pem())));
    let catalog = RestCatalog::open_within("lake", &trusting, None, storage(), HURRIED).await.unwrap();
    assert_eq!(catalog.list_tables().await.unwrap().len(), 1);
    assert_eq!(asked.lock().unwrap()[0].line, TOKENS);
    let served = asked.lock().unwrap().len();

    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
    for (ca, expected) in [
        (None, "UnknownIssuer"),
        (ca(other), "certificate"),
        (ca(broken), "certificates of ca_file \"ca.pem\" cannot be used"),
        (ca(String::new()), "there are none in it"),
    ] {
        let opened = RestCatalog::open_within("lake", &with(ca), None, storage(), HURRIED).await;
        let failure = opened.unwrap_err().to_string();
        assert!(failure.contains(expected), "{failure}");
    }
    assert_eq!(asked.lock().unwrap().len(), served, "nothing was sent to a server that is not trusted");
}

#[tokio::test]
async fn a_server_on_https_cannot_send_us_on_to_http() {
    crate::catalog::install_crypto();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let tls =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (_, app) = app(|_| ok(&json!({ "overrides": { "uri": "http://localhost:1" } })));
    tokio::spawn(axum::serve(Tls(listener, TlsAcceptor::from(Arc::new(tls))), app).into_future());
    let ca = Some(CaFile { name: "ca.pem".into(), pem: made.cert.pem() });
    let config = RestConfig { ca, ..config(&uri, AuthConfig::None) };
    let failure = RestCatalog::open("lake", &config, None, storage()).await.unwrap_err().to_string();
    assert!(failure.contains("tokens would go unencrypted"), "{failure}");
}
