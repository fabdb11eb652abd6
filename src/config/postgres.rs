//! Addresses of PostgreSQL databases: `postgres://user:password@host:port/database?…`.

use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

use super::Secret;

/// Parameters that may follow `?`. Others would be passed over in silence by the client, a misspelt `sslmode` among
/// them.
const PARAMETERS: [&str; 7] = ["application_name", "host", "options", "sslcert", "sslkey", "sslmode", "sslrootcert"];
/// From no TLS at all to a certificate that must name the host.
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// An address that was looked at closely. `Display` leaves out the password and all parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    url: Url,
    shown: String,
}

impl PostgresUrl {
    /// Whether the text is meant as such an address.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("postgres:") || text.starts_with("postgresql:")
    }

    /// Reads an address. What is wrong is told without quoting it, since it may hold a password.
    pub fn parse(text: &Secret) -> Result<Self, String> {
        // Characters that end a host are the usual reason.
        let bad = "is not an address of the form postgres://user:password@host:port/database \
                   (in user and password write @ : / ? # % as %40 %3A %2F %3F %23 %25)";
        let url = Url::parse(text.reveal()).map_err(|_| bad.to_owned())?;
        if !Self::is_meant(text.reveal()) || url.cannot_be_a_base() {
            return Err(bad.to_owned());
        }
        if url.fragment().is_some() {
            return Err("has a `#`; in a password write it as %23".to_owned());
        }
        let mut socket = None;
        for (key, value) in url.query_pairs() {
            let known = PARAMETERS.iter().any(|known| *known == key);
            if !known {
                let all = PARAMETERS.join(", ");
                return Err(format!("has the parameter {key:?}; known are {all}"));
            }
            match &*key {
                "sslmode" if !SSL_MODES.iter().any(|mode| *mode == value) => {
                    return Err(format!("has an unknown sslmode; known are {}", SSL_MODES.join(", ")));
                }
                "sslrootcert" | "sslcert" | "sslkey" if !value.starts_with('/') => {
                    return Err(format!("has a {key} that is no absolute path"));
                }
                "host" if !value.starts_with('/') => {
                    return Err(
                        "has a parameter `host` that is no folder of a socket; write the host after @".to_owned()
                    );
                }
                "host" => socket = Some(value.into_owned()),
                _ => {}
            }
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let Some(host) = socket.as_deref().or(host) else { return Err("names no host".to_owned()) };
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8().map(std::borrow::Cow::into_owned);
            text.map_err(|_| "is not UTF-8 after decoding".to_owned())
        };
        let database = decoded(url.path().trim_start_matches('/'))?;
        if database.is_empty() {
            return Err("names no database".to_owned());
        }
        let user = decoded(url.username())?;
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        let shown = format!("postgres://{user}{host}{port}/{database}");
        Ok(Self { url, shown })
    }

    /// The whole of it, for the one place that connects.
    pub fn reveal(&self) -> &Url {
        &self.url
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (text, shown) in [
            ("postgres://u:hunter2@h:5433/d?sslmode=verify-full&sslrootcert=/ca.pem", "postgres://u@h:5433/d"),
            ("postgresql://h/d%C3%A9%20x", "postgres://h/dé x"),
            ("postgres://a%40b:hunter2%2F%40@[::1]/d", "postgres://a@b@[::1]/d"),
            ("postgres://u@x/d?host=/run/postgresql", "postgres://u@/run/postgresql/d"),
        ] {
            let url = PostgresUrl::parse(&Secret::new(text)).unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("hunter2"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_without_the_address() {
        for (text, reason) in [
            ("postgres:", "is not an address"),
            ("postgres://u:hunter2@h:port/d", "is not an address"),
            ("postgres://u:hunter2#x@h/d", "is not an address"),
            ("postgres://u:hunter2@h/d#x", "write it as %23"),
            ("postgres:///d", "names no host"),
            ("postgres://u:hunter2@h", "names no database"),
            ("postgres://u:hunter2@h/", "names no database"),
            ("postgres://u:hunter2@h/d?ssl_mode=require", "parameter \"ssl_mode\"; known are application_name"),
            ("postgres://u:hunter2@h/d?sslmode=on", "unknown sslmode; known are disable"),
            ("postgres://u:hunter2@h/d?sslrootcert=ca.pem", "sslrootcert that is no absolute path"),
            ("postgres://u:hunter2@h/d?host=x", "no folder of a socket"),
            ("sqlite://u:hunter2@h/d", "is not an address"),
        ] {
            let said = PostgresUrl::parse(&Secret::new(text)).unwrap_err();
            assert!(said.contains(reason) && !said.contains("hunter2"), "{text}: {said}");
        }
    }
}
