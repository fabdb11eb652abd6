//! PostgreSQL, for the state database and for SQL catalogs: how it is connected to, what each connection is told, what
//! time it is there, and what its errors say about a statement.

use std::sync::Once;
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{AnyConnection, ConnectOptions, Executor, Row};

use crate::clock::Clock;
use crate::config::{PostgresUrl, Secret};
use crate::model::{Age, Timestamp};

/// How long a server may take until a connection is set up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A database on a server.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    url: PostgresUrl,
    options: AnyConnectOptions,
}

impl Server {
    /// The database at this address; `Err` tells what is wrong with it, without a password.
    pub(crate) fn of(text: &Secret) -> Result<Self, String> {
        install_drivers();
        let url = PostgresUrl::parse(text)?;
        let options = AnyConnectOptions::from_url(url.reveal()).map_err(|error| format!("is not usable: {error}"))?;
        Ok(Self { url, options })
    }

    /// The address without its password.
    pub(crate) fn shown(&self) -> String {
        self.url.to_string()
    }

    pub(crate) fn options(&self) -> AnyConnectOptions {
        self.options.clone()
    }

    /// A new connection that is set up. One that takes too long is an error, not a hang.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let connecting = async {
            let mut connection = self.options.connect().await?;
            set_up(&mut connection).await?;
            Ok(connection)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| {
            let seconds = CONNECT_TIMEOUT.as_secs();
            Err(sqlx::Error::Io(std::io::Error::other(format!("no connection after {seconds} s"))))
        })
    }
}

/// Makes sqlx know its databases, once.
pub(crate) fn install_drivers() {
    static DRIVERS: Once = Once::new();
    DRIVERS.call_once(sqlx::any::install_default_drivers);
}

/// What each connection is told, whatever the defaults of the role, the database or the server are.
///
/// - `read committed`: a statement that waited for a lock sees what the lock's holder wrote. The state's transactions
///   rest on that (see `State::write`).
/// - `synchronous_commit = on`: what was committed is on the disk when the call returns.
/// - A lock that others keep for ten seconds is an error, as with SQLite.
/// - A process that was stopped in the middle of a transaction does not keep its locks for ever.
pub(crate) async fn set_up(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let settings = "SET default_transaction_isolation = 'read committed'; SET synchronous_commit = on; \
                    SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '2min'";
    connection.execute(sqlx::raw_sql(settings)).await.map(drop)
}

/// The server's clock.
pub(crate) async fn now(connection: &mut AnyConnection) -> Result<Timestamp, sqlx::Error> {
    // Not now(): that is when the transaction began, which may have waited for a lock since.
    let row = sqlx::query("SELECT CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT) AS now")
        .fetch_one(connection)
        .await?;
    row.try_get("now").map(Timestamp)
}

/// How far our system clock is ahead of the server's (safety rule 3). The time that the question takes is no difference.
pub(crate) async fn clock_skew(connection: &mut AnyConnection) -> Result<Age, sqlx::Error> {
    let before = Clock::system();
    let theirs = now(connection).await?;
    let after = Clock::system();
    Ok(ahead(before, theirs, after))
}

fn ahead(before: Timestamp, theirs: Timestamp, after: Timestamp) -> Age {
    if theirs < before {
        before.since(theirs)
    } else if theirs > after {
        after.since(theirs)
    } else {
        Age::ZERO
    }
}

/// The SQLSTATE of an error, where a PostgreSQL server sent it.
pub(crate) fn sqlstate(error: &sqlx::Error) -> Option<&str> {
    of_server(error).map(PgDatabaseError::code)
}

/// Whether it is sure that the statement, sent by itself, was rolled back. A lost connection leaves that open, and so
/// does a session that the server ends: while a commit waits for a standby, it is in the log already.
pub(crate) fn was_rolled_back(error: &sqlx::Error) -> bool {
    // Classes of SQLSTATE: cardinality, data, constraints, transaction state, authorisation, rollback, syntax and
    // access, check option, resources, limits, object state, raised by a trigger.
    const CLASSES: [&str; 14] = ["21", "22", "23", "25", "27", "28", "2B", "40", "42", "44", "53", "54", "55", "P0"];
    const CANCELLED: &str = "57014";
    const COMPLETION_UNKNOWN: &str = "40003";
    let Some(said) = of_server(error) else { return false };
    let code = said.code();
    said.severity() == PgSeverity::Error
        && code != COMPLETION_UNKNOWN
        && (code == CANCELLED || code.get(..2).is_some_and(|class| CLASSES.contains(&class)))
}

fn of_server(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    match error {
        sqlx::Error::Database(said) => said.try_downcast_ref::<PgDatabaseError>(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_the_question_takes_is_no_difference() {
        for (before, theirs, after, skew) in
            [(100, 100, 100, 0), (100, 150, 200, 0), (100, 70, 200, 30), (100, 260, 200, -60), (100, 200, 200, 0)]
        {
            assert_eq!(ahead(Timestamp(before), Timestamp(theirs), Timestamp(after)), Age(skew), "{theirs}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_open_what_became_of_the_statement() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(!was_rolled_back(&lost) && sqlstate(&lost).is_none());
    }
}
