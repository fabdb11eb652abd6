//! Opens the store of a bucket: with the keys that a catalog lends, else as configured, else by the environment's own
//! chain.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, RetryConfig};

use super::{Grant, Lent, StorageError, StorageErrorKind, install_crypto};
use crate::config::Secret;
use crate::model::Location;

/// Options of one store, by name.
type Options = BTreeMap<String, Secret>;

/// The store of this location. What is lent is for it; single options win over what is lent with the keys.
pub(super) fn open(
    location: &Location,
    options: Option<&Options>,
    lent: Option<(&Lent, &Grant)>,
) -> Result<Arc<dyn ObjectStore>, StorageError> {
    let failed = |error: object_store::Error| unavailable(location, &error);
    install_crypto();
    match location.scheme() {
        "file" => Ok(Arc::new(LocalFileSystem::new().with_fsync(true))),
        "s3" => Ok(Arc::new(s3(location, options, lent)?.build().map_err(failed)?)),
        "gs" => {
            let mut builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(location.authority()).with_retry(retries());
            if let Some((lent, grant)) = lent {
                // Not from the environment, whose keys would be read, and a bad file of them be an error.
                builder = GoogleCloudStorageBuilder::new()
                    .with_bucket_name(location.authority())
                    .with_retry(retries())
                    .with_credentials(lent.for_gcs(grant));
            }
            for (key, value) in settings::<GoogleConfigKey>(options, lent).map_err(failed)? {
                builder = builder.with_config(key, value);
            }
            Ok(Arc::new(builder.build().map_err(failed)?))
        }
        "abfss" => {
            let (container, host) = location.authority().split_once('@').unwrap_or((location.authority(), ""));
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container).with_retry(retries());
            if let Some((account, _)) = host.split_once('.') {
                // Both names are one place; the one for blobs has what is asked for here.
                let host = host.replacen(".dfs.", ".blob.", 1);
                builder = builder.with_account(account).with_endpoint(format!("https://{host}"));
            }
            for (key, value) in settings::<AzureConfigKey>(options, lent).map_err(failed)? {
                builder = builder.with_config(key, value);
            }
            if let Some((lent, grant)) = lent {
                builder = builder.with_credentials(lent.for_azure(grant));
            }
            Ok(Arc::new(builder.build().map_err(failed)?))
        }
        other => {
            let reason = format!("no store is known for {other}:// (known: file, s3, gs, abfss)");
            Err(unavailable(location, &reason))
        }
    }
}

/// The client of a bucket of S3.
pub(super) fn s3(
    location: &Location,
    options: Option<&Options>,
    lent: Option<(&Lent, &Grant)>,
) -> Result<AmazonS3Builder, StorageError> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(location.authority()).with_retry(retries());
    for (key, value) in settings::<AmazonS3ConfigKey>(options, lent).map_err(|error| unavailable(location, &error))? {
        builder = builder.with_config(key, value);
    }
    Ok(match lent {
        Some((lent, grant)) => builder.with_credentials(lent.for_s3(grant)),
        None => builder,
    })
}

fn unavailable(location: &Location, reason: &impl ToString) -> StorageError {
    StorageError {
        location: location.raw().to_owned(),
        kind: StorageErrorKind::Unavailable,
        reason: reason.to_string(),
    }
}

fn retries() -> RetryConfig {
    RetryConfig { max_retries: 5, retry_timeout: Duration::from_mins(1), ..RetryConfig::default() }
}

/// What is lent with the keys, then the configuration's options, which so win.
fn settings<K: FromStr<Err = object_store::Error>>(
    options: Option<&Options>,
    lent: Option<(&Lent, &Grant)>,
) -> object_store::Result<Vec<(K, String)>> {
    let lent = lent.into_iter().flat_map(|(_, grant)| &grant.settings).map(|(key, value)| (key, value.as_str()));
    let options = options.into_iter().flatten().map(|(key, value)| (key, value.reveal()));
    lent.chain(options).map(|(key, value)| Ok((key.parse()?, value.to_owned()))).collect()
}
