//! Where a SQL catalog's rows are, and how they are connected to.

use std::path::{Path, PathBuf};

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, ConnectOptions};
use url::Url;

use crate::config::{PostgresUrl, Secret};
use crate::postgres::{self, Server};

/// Writers hold SQLite's lock for milliseconds; one that is held longer is told as an error.
const BUSY_TIMEOUT: &str = "PRAGMA busy_timeout = 10000";

/// Where the rows are.
#[derive(Debug, Clone)]
pub(super) enum Place {
    File { file: PathBuf, options: AnyConnectOptions },
    Server(Server),
}

impl Place {
    pub(super) fn of(uri: &Secret) -> Result<Self, String> {
        if PostgresUrl::is_meant(uri.reveal()) {
            return Server::of(uri).map(Self::Server).map_err(|reason| format!("`uri` {reason}"));
        }
        parse_uri(uri.reveal()).map(|(options, file)| Self::File { file, options })
    }

    /// For messages: a path, or an address without its password.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::File { file, .. } => file.display().to_string(),
            Self::Server(server) => server.shown(),
        }
    }

    /// A connection for one operation. None is kept: a file that was moved away, or restored from a backup, would
    /// live on behind an open connection, and commits with it; and a server's connection that broke in a pause would
    /// make the next commit's outcome unknown.
    pub(super) async fn connect(&self) -> Result<AnyConnection, String> {
        let said = |error: sqlx::Error| format!("{}: {}", self.shown(), told(&error));
        let (file, options) = match self {
            Self::Server(server) => return server.connect().await.map_err(said),
            Self::File { file, options } => (file, options),
        };
        match tokio::fs::metadata(file).await {
            Ok(facts) if facts.is_file() => {}
            Ok(_) => return Err(format!("{} is no file", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(format!(
                    "there is no catalog file at {}; check `uri` (an absolute path is sqlite:///…)",
                    file.display()
                ));
            }
            Err(error) => return Err(format!("{}: {error}", file.display())),
        }
        let mut connection = options.connect().await.map_err(said)?;
        sqlx::query(BUSY_TIMEOUT).execute(&mut connection).await.map_err(said)?;
        Ok(connection)
    }
}

/// The database's own words, where it said something.
pub(super) fn told(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(said) => said.message().to_owned(),
        other => other.to_string(),
    }
}

/// The options and the file of a `sqlite:` URI.
pub(super) fn parse_uri(uri: &str) -> Result<(AnyConnectOptions, PathBuf), String> {
    postgres::install_drivers();

    let scheme = uri.split(':').next().unwrap_or_default();
    let Some(rest) = uri.strip_prefix("sqlite:") else {
        return Err(format!(
            "{scheme}: catalogs are not supported; `uri` must be sqlite:///absolute/path or postgres://…/database"
        ));
    };
    let path = rest.strip_prefix("//").unwrap_or(rest).split(['?', '#']).next().unwrap_or_default();
    let path = percent_encoding::percent_decode_str(path).decode_utf8().map_err(|error| error.to_string())?;
    if path.is_empty() || path == ":memory:" || rest.contains("mode=memory") {
        return Err("`uri` names no file; it must be sqlite:///absolute/path".to_owned());
    }
    let url = Url::parse(uri).map_err(|error| format!("`uri` is no URL: {error}"))?;
    let options = AnyConnectOptions::from_url(&url).map_err(|error| error.to_string())?;
    Ok((options, Path::new(&*path).to_owned()))
}
