//! Requests to a bucket of S3 that `object_store` does not know, or whose answers it reads too narrowly: signed by its
//! signer, with its keys, sent by its client.

use std::sync::{Arc, PoisonError};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use md5::Md5;
use object_store::ClientOptions;
use object_store::aws::{AmazonS3ConfigKey, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use sha2::Sha256;

use super::{Storage, StorageError, StorageErrorKind, install_crypto, with_causes};
use crate::model::Location;

/// The client's settings that can be told; all, so that what reads objects also lists them.
const CLIENT_SETTINGS: [ClientConfigKey; 20] = {
    use ClientConfigKey as Key;
    [
        Key::AllowHttp,
        Key::AllowInvalidCertificates,
        Key::NoSystemCertificates,
        Key::ConnectTimeout,
        Key::DefaultContentType,
        Key::Http1Only,
        Key::Http2KeepAliveInterval,
        Key::Http2KeepAliveTimeout,
        Key::Http2KeepAliveWhileIdle,
        Key::Http2MaxFrameSize,
        Key::Http2Only,
        Key::PoolIdleTimeout,
        Key::PoolMaxIdlePerHost,
        Key::ProxyUrl,
        Key::ProxyCaCertificate,
        Key::ProxyExcludes,
        Key::RandomizeAddresses,
        Key::ReadTimeout,
        Key::Timeout,
        Key::UserAgent,
    ]
};

/// What stays as it is in the address of an object: the rest is what a signature encodes too.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A bucket that can be asked.
#[derive(Debug)]
pub(super) struct Bucket {
    url: String,
    region: String,
    /// None where the store takes requests without a signature.
    keys: Option<AwsCredentialProvider>,
    pays: bool,
    /// Whether it was configured that the store has no requests for many objects.
    pub(super) has_bulk: bool,
    client: HttpClient,
}

/// What a bucket answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Storage {
    /// The bucket of this location, with the keys that are for it; with keys of our own it is opened once.
    pub(super) fn bucket(&self, at: &Location) -> Result<Arc<Bucket>, StorageError> {
        if self.lent_for(at).is_some() {
            return self.open_bucket(at).map(Arc::new);
        }
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get(at.store()) {
            return Ok(Arc::clone(bucket));
        }
        let bucket = Arc::new(self.open_bucket(at)?);
        buckets.insert(at.store().to_owned(), Arc::clone(&bucket));
        Ok(bucket)
    }

    fn open_bucket(&self, at: &Location) -> Result<Bucket, StorageError> {
        use AmazonS3ConfigKey as Key;
        let failed = |error: object_store::Error| StorageError {
            location: at.raw().to_owned(),
            kind: StorageErrorKind::Unavailable,
            reason: with_causes(&error),
        };
        install_crypto();
        let builder = self.s3(at)?;
        let option = |key: Key| builder.get_config_value(&key);
        let is_on = |key: Key| option(key).is_some_and(|value| value == "true");
        let region = option(Key::Region).unwrap_or_else(|| "us-east-1".to_owned());
        let url = bucket_url(
            at.authority(),
            option(Key::Endpoint).as_deref(),
            &region,
            is_on(Key::VirtualHostedStyleRequest),
        );
        let settings = CLIENT_SETTINGS.into_iter().filter_map(|key| Some((key, option(Key::Client(key))?)));
        let options = settings.fold(ClientOptions::default(), |set, (key, value)| set.with_config(key, value));
        let client = ReqwestConnector::default().connect(&options).map_err(failed)?;
        let has_bulk = !is_on(Key::DisableBulkDelete);
        let (is_signed, pays) = (!is_on(Key::SkipSignature), is_on(Key::RequestPayer));
        let keys = if is_signed { Some(builder.build().map_err(failed)?.credentials().clone()) } else { None };
        Ok(Bucket { url, region, keys, pays, has_bulk, client })
    }
}

impl Bucket {
    /// Sends `GET bucket?query`, the query encoded; an error is in words: what was sent may not have arrived.
    pub(super) async fn get(&self, query: &str) -> Result<Answer, String> {
        self.send(Method::GET, &format!("{}?{query}", self.url), &[], Bytes::new()).await
    }

    /// Sends `POST bucket?delete` with the list of objects, with the digests that S3 wants of it.
    pub(super) async fn delete_many(&self, body: Bytes) -> Result<Answer, String> {
        let headers = [
            (CONTENT_TYPE, "application/xml".to_owned()),
            (HeaderName::from_static("content-md5"), BASE64_STANDARD.encode(<Md5 as md5::Digest>::digest(&body))),
            (
                HeaderName::from_static("x-amz-checksum-sha256"),
                BASE64_STANDARD.encode(<Sha256 as sha2::Digest>::digest(&body)),
            ),
        ];
        self.send(Method::POST, &format!("{}?delete", self.url), &headers, body).await
    }

    /// Sends `DELETE bucket/key`.
    pub(super) async fn delete_one(&self, key: &str) -> Result<Answer, String> {
        self.send(Method::DELETE, &object_url(&self.url, key), &[], Bytes::new()).await
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(HeaderName, String)],
        body: Bytes,
    ) -> Result<Answer, String> {
        let mut request = HttpRequest::new(HttpRequestBody::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = url.parse().map_err(|_| format!("{url} is no address"))?;
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| format!("{name} cannot be {value:?}"))?;
            request.headers_mut().insert(name, value);
        }
        if let Some(keys) = &self.keys {
            let credential = keys.get_credential().await.map_err(|error| with_causes(&error))?;
            let signer = AwsAuthorizer::new(&credential, "s3", &self.region).with_request_payer(self.pays);
            signer.try_authorize(&mut request, None).map_err(|error| with_causes(&error))?;
        }
        let sent = self.client.execute(request).await.map_err(|error| with_causes(&error))?;
        let status = sent.status();
        let body = sent.into_body().bytes().await.map_err(|error| with_causes(&error))?;
        Ok(Answer { status, body })
    }
}

/// Where an object is asked for.
fn object_url(bucket: &str, key: &str) -> String {
    format!("{}/{}", bucket.trim_end_matches('/'), utf8_percent_encode(key, ENCODED))
}

/// Where a bucket is asked, as `object_store` makes its own addresses.
fn bucket_url(bucket: &str, endpoint: Option<&str>, region: &str, is_virtual_hosted: bool) -> String {
    let endpoint = endpoint.map(|endpoint| endpoint.trim_end_matches('/'));
    match (endpoint, is_virtual_hosted) {
        // Such an endpoint names the bucket itself.
        (Some(endpoint), true) => format!("{endpoint}/"),
        (Some(endpoint), false) => format!("{endpoint}/{bucket}"),
        (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com/"),
        (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_asked_where_its_objects_are() {
        for (endpoint, is_virtual_hosted, url) in [
            (None, false, "https://s3.eu-west-1.amazonaws.com/b"),
            (None, true, "https://b.s3.eu-west-1.amazonaws.com/"),
            (Some("http://store:9000/"), false, "http://store:9000/b"),
            (Some("https://b.store"), true, "https://b.store/"),
        ] {
            assert_eq!(bucket_url("b", endpoint, "eu-west-1", is_virtual_hosted), url);
            let object = format!("{}/t/a%2520%2B%20%C3%A9", url.trim_end_matches('/'));
            assert_eq!(object_url(url, "t/a%20+ é"), object);
        }
    }
}
