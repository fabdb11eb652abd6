//! `[storage."s3://bucket"]`: how the store of a bucket is reached.

use std::collections::BTreeMap;
use std::str::FromStr;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use toml::Spanned;
use toml::de::DeValue;

use super::Names;
use crate::config::Secret;
use crate::config::raw::{Section, closest, did_you_mean};
use crate::model::LocationRules;

/// Options of the client that all kinds of store have.
const CLIENT_OPTIONS: [&str; 15] = [
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "disable_system_certificates",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
];

/// Options of S3 that people write, for suggestions; `object_store` knows more.
const S3_OPTIONS: [&str; 23] = [
    "access_key_id",
    "bucket",
    "checksum_algorithm",
    "conditional_put",
    "copy_if_not_exists",
    "default_region",
    "disable_bulk_delete",
    "disable_tagging",
    "endpoint",
    "endpoint_url",
    "imdsv1_fallback",
    "metadata_endpoint",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret_access_key",
    "server_side_encryption",
    "session_token",
    "skip_signature",
    "unsigned_payload",
    "virtual_hosted_style_request",
];

/// Of Google Cloud Storage.
const GCS_OPTIONS: [&str; 6] =
    ["application_credentials", "base_url", "bearer_token", "service_account", "service_account_key", "skip_signature"];

/// Of Azure.
const AZURE_OPTIONS: [&str; 17] = [
    "access_key",
    "account_name",
    "authority_host",
    "authority_id",
    "bearer_token",
    "client_id",
    "client_secret",
    "credential_type",
    "disable_tagging",
    "endpoint",
    "federated_token_file",
    "msi_endpoint",
    "sas_token",
    "skip_signature",
    "tenant_id",
    "use_azure_cli",
    "use_emulator",
];

/// A kind of store, by the scheme of its locations.
#[derive(Clone, Copy)]
enum Kind {
    S3,
    Gcs,
    Azure,
}

impl Kind {
    fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" => Some(Self::S3),
            "gs" => Some(Self::Gcs),
            "abfss" => Some(Self::Azure),
            _ => None,
        }
    }

    /// The one name of an option that has several, if there is such an option.
    fn option(self, name: &str) -> Option<String> {
        fn known<K: FromStr + AsRef<str>>(name: &str) -> Option<String> {
            Some(K::from_str(name).ok()?.as_ref().to_owned())
        }
        match self {
            Self::S3 => known::<AmazonS3ConfigKey>(name),
            Self::Gcs => known::<GoogleConfigKey>(name),
            Self::Azure => known::<AzureConfigKey>(name),
        }
    }

    /// For suggestions.
    fn options(self) -> impl Iterator<Item = &'static str> {
        let own: &[&str] = match self {
            Self::S3 => &S3_OPTIONS,
            Self::Gcs => &GCS_OPTIONS,
            Self::Azure => &AZURE_OPTIONS,
        };
        own.iter().chain(&CLIENT_OPTIONS).copied()
    }
}

/// `[storage."s3://bucket"]` and those of other kinds, by the canonical name of the store.
pub(super) fn storage(section: Section<'_>, rules: &LocationRules) -> BTreeMap<String, BTreeMap<String, Secret>> {
    let reader = section.reader();
    let mut names = Names::default();
    let mut stores = BTreeMap::new();
    for (key, _) in section.entries() {
        let name = *key.get_ref();
        let location = rules.parse(name).ok().filter(|location| location.key().is_empty());
        let kind = location.as_ref().and_then(|location| Kind::of(location.scheme()));
        // Looked through in any case, for what else is wrong with it.
        let options = options(section.section(name), kind.unwrap_or(Kind::S3));
        let Some((location, _)) = location.zip(kind) else {
            let message = format!("[storage.{name:?}] names no store that has options");
            let hint =
                "the name of a bucket: s3://bucket, gs://bucket or abfss://container@account.dfs.core.windows.net";
            reader.error_with_hint(&key.span(), message, hint);
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

fn options(section: Section<'_>, kind: Kind) -> BTreeMap<String, Secret> {
    let reader = section.reader();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut options = BTreeMap::new();
    for (key, value) in section.entries() {
        let name = *key.get_ref();
        // Some options of `object_store` end in `_file` themselves.
        let from_file = name.strip_suffix("_file").filter(|_| kind.option(name).is_none());
        let option = from_file.unwrap_or(name);
        let Some(known) = kind.option(option) else {
            let close = closest(option, kind.options()).map(|close| format!("`{close}`"));
            let suggestion = did_you_mean(close.as_deref());
            reader.error(&key.span(), format!("unknown key `{name}` in {}{suggestion}", section.name()));
            continue;
        };
        if let Some(before) = names.insert(known, name.to_owned()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_that_is_suggested_exists() {
        for kind in [Kind::S3, Kind::Gcs, Kind::Azure] {
            for option in kind.options() {
                assert!(kind.option(option).is_some(), "{option}");
            }
        }
    }
}
