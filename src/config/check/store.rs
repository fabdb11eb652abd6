//! `[[catalog]]` and `[state]`: what Icewarden connects to.

use std::collections::BTreeMap;
use std::str::FromStr;

use reqwest::header::{HeaderName, HeaderValue};
use toml::Spanned;

use super::{Names, place};
use crate::config::raw::{Section, Text};
use crate::config::{AuthConfig, CaFile, CatalogConfig, CatalogKind, RestConfig, Secret, StateConfig, default};
use crate::model::LocationRules;

/// The keys that only catalogs of type `rest` have.
const REST_KEYS: [&str; 9] = [
    "token",
    "token_file",
    "credential",
    "credential_file",
    "oauth2_server_uri",
    "scope",
    "ca_file",
    "headers",
    "vended_credentials",
];

/// Headers that the HTTP client sets, or a request falls apart.
const OWN_HEADERS: [&str; 5] = ["connection", "content-length", "content-type", "host", "transfer-encoding"];

pub(super) fn catalogs(root: &Section<'_>, rules: &LocationRules) -> Vec<CatalogConfig> {
    let sections = root.sections("catalog");
    if !root.has("catalog") || sections.as_ref().is_some_and(Vec::is_empty) {
        root.reader().error_with_hint(
            &root.at,
            "no [[catalog]]",
            "add at least one, with name, type = \"sql\" or \"rest\", and uri",
        );
    }
    let mut names = Names::default();
    sections.into_iter().flatten().filter_map(|section| catalog(section, &mut names, rules)).collect()
}

fn catalog(section: Section<'_>, names: &mut Names, rules: &LocationRules) -> Option<CatalogConfig> {
    #[derive(Clone, Copy, PartialEq)]
    enum Type {
        Sql,
        Rest,
    }
    let reader = section.reader();
    let name = section.text("name");
    if let Some(name) = &name {
        if name.value.contains('.') {
            let hint = "the name is the first part of catalog.namespace.table";
            reader.error_with_hint(&name.at, format!("{}: a catalog's name has no dots", name.shown()), hint);
        }
        if let Err(line) = names.take(&name.value, &name.at, reader) {
            reader.error(&name.at, format!("{}: the catalog of line {line} has this name", name.shown()));
        }
    } else if !section.has("name") {
        section.missing("name", "the first part of catalog.namespace.table");
    }
    let kind = section.choice("type", &[("sql", Type::Sql), ("rest", Type::Rest)]);
    if !section.has("type") {
        section.missing("type", "\"sql\" or \"rest\"");
    }
    let uri = section.text("uri");
    if !section.has("uri") {
        section.missing("uri", "sqlite:///path or postgres://… for type \"sql\", https://… for type \"rest\"");
    }
    let warehouse = section.text("warehouse");
    let warehouse = warehouse.and_then(|text| match kind {
        // A REST server's warehouse may be a mere name.
        Some(Type::Rest) | None => Some(text.value),
        Some(Type::Sql) => place::location(reader, &text, rules),
    });
    let kind = match kind {
        Some(Type::Sql) => {
            for key in REST_KEYS.into_iter().filter(|key| section.has(key)) {
                if let Some(value) = section.value(key) {
                    reader.error(&value.span(), format!("{key} is for catalogs of type \"rest\""));
                }
            }
            uri.and_then(|uri| place::database(reader, "uri", &uri)).map(|uri| CatalogKind::Sql { uri })
        }
        Some(Type::Rest) => rest(&section, uri.as_ref()),
        None => {
            for key in REST_KEYS {
                section.value(key);
            }
            None
        }
    };
    section.close();
    Some(CatalogConfig { name: name?.value, kind: kind?, warehouse })
}

fn rest(section: &Section<'_>, uri: Option<&Text>) -> Option<CatalogKind> {
    let reader = section.reader();
    let base = uri.and_then(|uri| place::server(reader, "uri", uri));
    if let (Some(base), Some(uri)) = (&base, uri)
        && base.ends_with("/v1")
    {
        reader.warning(
            &uri.at,
            "uri ends in /v1, which is added to it",
            "leave it out, unless the server has it twice",
        );
    }
    let auth = auth(section);
    let ca = section.text("ca_file").and_then(|file| ca(section, &file));
    let headers = headers(section.section("headers"), &auth);
    let vended_credentials = section.boolean("vended_credentials").unwrap_or(default::VENDED_CREDENTIALS);
    Some(CatalogKind::Rest(RestConfig { uri: base?, auth, headers, ca, vended_credentials }))
}

fn auth(section: &Section<'_>) -> AuthConfig {
    let reader = section.reader();
    let token = section.secret("token");
    let credential = section.secret("credential");
    if let (Some(_), Some(credential)) = (&token, &credential) {
        reader.error(&credential.span(), "token and credential exclude each other");
    }
    let server = section.text("oauth2_server_uri");
    let scope = section.text("scope");
    if !section.has("credential") && !section.has("credential_file") {
        for (key, text) in [("oauth2_server_uri", &server), ("scope", &scope)] {
            if let Some(text) = text {
                reader.warning(&text.at, format!("{key} does nothing without a `credential`"), "leave it out");
            }
        }
    }
    let oauth2_server_uri = server.and_then(|text| place::server(reader, "oauth2_server_uri", &text));
    let scope = scope.map_or_else(|| default::OAUTH2_SCOPE.to_owned(), |text| text.value);
    if let Some(credential) = credential {
        let parts = credential.get_ref().reveal().split_once(':');
        let Some((id, secret)) = parts.filter(|(id, secret)| !id.is_empty() && !secret.is_empty()) else {
            reader.error(&credential.span(), "credential: expected the client's id and secret, as in id:secret");
            return AuthConfig::None;
        };
        return AuthConfig::Credential { id: id.to_owned(), secret: Secret::new(secret), oauth2_server_uri, scope };
    }
    token.map_or(AuthConfig::None, |token| AuthConfig::Token(token.into_inner()))
}

fn ca(section: &Section<'_>, file: &Text) -> Option<CaFile> {
    let reader = section.reader();
    match (reader.sources.read)(&reader.sources.folder.join(&file.value)) {
        Ok(pem) if pem.contains("-----BEGIN CERTIFICATE-----") => Some(CaFile { name: file.value.clone(), pem }),
        Ok(_) => {
            reader.error(&file.at, format!("{}: the file has no certificate in PEM", file.shown()));
            None
        }
        Err(error) => {
            reader.error(&file.at, format!("{}: cannot read it: {error}", file.shown()));
            None
        }
    }
}

/// `[catalog.headers]`: names are free, values are secrets.
fn headers(section: Section<'_>, auth: &AuthConfig) -> BTreeMap<String, Secret> {
    let reader = section.reader();
    let mut headers = BTreeMap::new();
    for (key, value) in section.entries() {
        let name = *key.get_ref();
        let Some(text) = section.text(name) else { continue };
        let from_file = name.strip_suffix("_file");
        let header = from_file.unwrap_or(name);
        let known = HeaderName::from_str(header).map(|header| header.as_str().to_owned());
        let Ok(known) = known else {
            reader.error(&key.span(), format!("{name:?} is no name of an HTTP header"));
            continue;
        };
        if OWN_HEADERS.contains(&known.as_str()) {
            reader.error(&key.span(), format!("{header} is a header that each request sets itself"));
            continue;
        }
        if known == "authorization" && *auth != AuthConfig::None {
            reader.error(&key.span(), format!("{header} is what token or credential set; have one of them only"));
            continue;
        }
        let secret = match from_file {
            Some(_) => section.secret_of(text),
            None => Some(Spanned::new(text.at, Secret::new(text.value))),
        };
        let Some(secret) = secret.map(Spanned::into_inner) else { continue };
        if HeaderValue::from_str(secret.reveal()).is_err() {
            reader.error(&value.span(), format!("{name} holds characters that no HTTP header can carry"));
        }
        if headers.insert(known, secret).is_some() {
            reader.error(&key.span(), format!("{} has {header} twice", section.name()));
        }
    }
    section.close();
    headers
}

pub(super) fn state(section: Section<'_>, rules: &LocationRules) -> StateConfig {
    let reader = section.reader();
    let database = section.text("database").and_then(|text| place::database(reader, "database", &text));
    let plans = section.text("plans").and_then(|text| {
        let location = place::location(reader, &text, rules)?;
        let is_known = rules.parse(&location).is_ok_and(|parsed| matches!(parsed.scheme(), "file" | "s3"));
        if !is_known {
            reader.error(&text.at, format!("{}: plans are kept in file:///path or s3://bucket/prefix", text.shown()));
        }
        Some(location)
    });
    section.close();
    StateConfig {
        database: database.unwrap_or_else(|| Secret::new(default::STATE_DATABASE)),
        plans: plans.unwrap_or_else(|| default::STATE_PLANS.to_owned()),
    }
}
