//! `[[catalog]]`, `[storage]` and `[state]`: what Icewarden connects to.

use std::collections::BTreeMap;
use std::str::FromStr;

use object_store::aws::AmazonS3ConfigKey;
use reqwest::header::{HeaderName, HeaderValue};
use toml::Spanned;
use toml::de::DeValue;

use super::{Names, place};
use crate::config::raw::{Section, Text, closest, did_you_mean};
use crate::config::{AuthConfig, CaFile, CatalogConfig, CatalogKind, RestConfig, Secret, StateConfig, default};
use crate::model::LocationRules;

/// The keys that only catalogs of type `rest` have.
const REST_KEYS: [&str; 8] =
    ["token", "token_file", "credential", "credential_file", "oauth2_server_uri", "scope", "ca_file", "headers"];

/// Headers that the HTTP client sets, or a request falls apart.
const OWN_HEADERS: [&str; 5] = ["connection", "content-length", "content-type", "host", "transfer-encoding"];

/// Options of an S3 store that people write, for suggestions; `object_store` knows more.
const S3_OPTIONS: [&str; 38] = [
    "access_key_id",
    "allow_http",
    "allow_invalid_certificates",
    "bucket",
    "checksum_algorithm",
    "conditional_put",
    "connect_timeout",
    "copy_if_not_exists",
    "default_region",
    "disable_bulk_delete",
    "disable_system_certificates",
    "disable_tagging",
    "endpoint",
    "endpoint_url",
    "http1_only",
    "http2_only",
    "imdsv1_fallback",
    "metadata_endpoint",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret_access_key",
    "server_side_encryption",
    "session_token",
    "skip_signature",
    "timeout",
    "unsigned_payload",
    "user_agent",
    "virtual_hosted_style_request",
];

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
    Some(CatalogKind::Rest(RestConfig { uri: base?, auth, headers, ca }))
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

/// `[storage."s3://bucket"]`, by the canonical name of the store.
pub(super) fn storage(section: Section<'_>, rules: &LocationRules) -> BTreeMap<String, BTreeMap<String, Secret>> {
    let reader = section.reader();
    let mut names = Names::default();
    let mut stores = BTreeMap::new();
    for (key, _) in section.entries() {
        let name = *key.get_ref();
        let options = options(section.section(name));
        let location = rules.parse(name).ok();
        let Some(location) = location.filter(|location| location.scheme() == "s3" && location.key().is_empty()) else {
            let message = format!("[storage.{name:?}] names no store that has options");
            reader.error_with_hint(&key.span(), message, "the name of an S3 bucket, as in [storage.\"s3://bucket\"]");
            continue;
        };
        if let Err(line) = names.take(location.store(), &key.span(), reader) {
            reader.error(&key.span(), format!("[storage.{name:?}] is the same store as line {line} names"));
            continue;
        }
        stores.insert(location.store().to_owned(), options);
    }
    section.close();
    stores
}

fn options(section: Section<'_>) -> BTreeMap<String, Secret> {
    let reader = section.reader();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut options = BTreeMap::new();
    for (key, value) in section.entries() {
        let name = *key.get_ref();
        // Some options of `object_store` end in `_file` themselves.
        let from_file = name.strip_suffix("_file").filter(|_| AmazonS3ConfigKey::from_str(name).is_err());
        let option = from_file.unwrap_or(name);
        let Ok(known) = AmazonS3ConfigKey::from_str(option) else {
            let close = closest(option, S3_OPTIONS.into_iter()).map(|close| format!("`{close}`"));
            let suggestion = did_you_mean(close.as_deref());
            reader.error(&key.span(), format!("unknown key `{name}` in {}{suggestion}", section.name()));
            continue;
        };
        if let Some(before) = names.insert(known.as_ref().to_owned(), name.to_owned()) {
            reader.error(&key.span(), format!("{} has both `{before}` and `{name}`", section.name()));
        }
        let secret = match value.get_ref() {
            DeValue::String(_) if from_file.is_some() => section.text(name).and_then(|file| section.secret_of(file)),
            DeValue::String(_) => section.text(name).map(|text| Spanned::new(text.at, Secret::new(text.value))),
            DeValue::Boolean(flag) => Some(Spanned::new(value.span(), Secret::new(flag.to_string()))),
            DeValue::Integer(number) => Some(Spanned::new(value.span(), Secret::new(number.to_string()))),
            DeValue::Float(number) => Some(Spanned::new(value.span(), Secret::new(number.to_string()))),
            other => {
                section.wrong_type(name, &value.span(), "text, a number, or true or false", other);
                None
            }
        };
        if let Some(secret) = secret {
            options.insert(option.to_owned(), secret.into_inner());
        }
    }
    section.close();
    options
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_is_suggested_exists() {
        for option in S3_OPTIONS {
            assert!(AmazonS3ConfigKey::from_str(option).is_ok(), "{option}");
        }
    }
}
