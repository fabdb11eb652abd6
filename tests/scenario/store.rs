//! A bucket: `object_store`'s own in-memory store, with modification times of the scenario's choice, faults,
//! and a record of what was removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use icewarden::model::{LocationRules, Timestamp};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::faults::{Act, Faults, Place};
use super::format::On;

/// One bucket; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Bucket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `s3://wh`.
    name: String,
    objects: InMemory,
    times: Mutex<BTreeMap<String, Timestamp>>,
    removed: Mutex<BTreeSet<String>>,
    clock: Arc<AtomicI64>,
    faults: Arc<Faults>,
}

/// The path of a location's key.
pub(crate) fn path(location: &str) -> Path {
    let location = LocationRules::default().parse(location).unwrap();
    location.object_path().unwrap_or_else(|error| panic!("{location}: {error}"))
}

impl Bucket {
    pub(crate) fn new(name: &str, clock: Arc<AtomicI64>, faults: Arc<Faults>) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            objects: InMemory::new(),
            times: Mutex::default(),
            removed: Mutex::default(),
            clock,
            faults,
        }))
    }

    /// Puts an object of that age; no fault befalls this.
    pub(crate) async fn seed(&self, location: &str, bytes: Bytes, at: Timestamp) {
        let path = path(location);
        self.0.objects.put(&path, PutPayload::from_bytes(bytes)).await.unwrap();
        self.0.times.lock().unwrap().insert(path.to_string(), at);
    }

    /// What an object holds; no fault befalls this.
    pub(crate) async fn bytes(&self, location: &str) -> Bytes {
        let got = self.0.objects.get(&path(location)).await;
        got.unwrap_or_else(|error| panic!("{location}: {error}")).bytes().await.unwrap()
    }

    /// What is there, by canonical location.
    pub(crate) async fn locations(&self) -> BTreeSet<String> {
        let listed = self.0.objects.list(None).map_ok(|meta| self.0.location(&meta.location));
        listed.try_collect().await.unwrap()
    }

    /// What was removed since the last call.
    pub(crate) fn take_removed(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.0.removed.lock().unwrap())
    }
}

impl Inner {
    fn location(&self, path: &Path) -> String {
        format!("{}/{path}", self.name)
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(time) = self.times.lock().unwrap().get(meta.location.as_ref()) {
            meta.last_modified = DateTime::from_timestamp_millis(time.0).unwrap();
        }
        meta
    }

    async fn delete(&self, path: Path) -> Result<Path> {
        let location = self.location(&path);
        for act in self.faults.hit(On::Delete, Place::Location(&location)) {
            match act {
                Act::Commit(snapshot) => self.faults.land(snapshot).await,
                Act::Hold(table) => self.faults.hold(table).await,
                act => return Err(failure(&act, &location)),
            }
        }
        if self.objects.head(&path).await.is_ok() {
            self.objects.delete(&path).await?;
            self.removed.lock().unwrap().insert(location);
        }
        Ok(path)
    }
}

fn failure(act: &Act, location: &str) -> Error {
    let path = location.to_owned();
    match act {
        Act::Status(404) => Error::NotFound { path, source: "404 Not Found".into() },
        Act::Status(403) => Error::PermissionDenied { path, source: "403 AccessDenied".into() },
        Act::Status(status) => Error::Generic { store: "S3", source: format!("server answered {status}").into() },
        act => panic!("{act:?} befalls no store"),
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let result = self.0.objects.put_opts(location, payload, options).await?;
        let now = Timestamp(self.0.clock.load(Ordering::SeqCst));
        self.0.times.lock().unwrap().insert(location.to_string(), now);
        self.0.removed.lock().unwrap().remove(&self.0.location(location));
        Ok(result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let full = self.0.location(location);
        let acts = self.0.faults.hit(On::Get, Place::Location(&full));
        if let Some(act) = acts.iter().find(|act| **act != Act::Corrupt) {
            return Err(failure(act, &full));
        }
        let mut result = self.0.objects.get_opts(location, options).await?;
        result.meta = self.0.dated(result.meta);
        if acts.is_empty() {
            return Ok(result);
        }
        // As long as it was, and nothing of what it was.
        let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let extensions = result.extensions.clone();
        let broken: Bytes = result.bytes().await?.iter().map(|byte| byte ^ 0x5a).collect();
        let payload = GetResultPayload::Stream(futures::stream::iter([Ok(broken)]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let inner = Arc::clone(&self.0);
        locations
            .then(move |path| {
                let inner = Arc::clone(&inner);
                async move { inner.delete(path?).await }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let full = self.0.location(&prefix.cloned().unwrap_or_default());
        let acts = self.0.faults.hit(On::List, Place::Location(&full));
        let inner = Arc::clone(&self.0);
        let shown = Arc::clone(&self.0);
        let is_shown = move |meta: &ObjectMeta| !shown.faults.hides(&shown.location(&meta.location));
        let listed = if let Some(act) = acts.iter().find(|act| matches!(act, Act::Status(_))) {
            futures::stream::iter([Err(failure(act, &full))]).boxed()
        } else {
            let dated = self.0.objects.list(prefix).map_ok(move |meta| inner.dated(meta));
            dated.try_filter(move |meta| futures::future::ready(is_shown(meta))).boxed()
        };
        let faults = Arc::clone(&self.0.faults);
        let after = futures::stream::once(async move {
            for act in acts {
                if let Act::Commit(snapshot) = act {
                    faults.land(snapshot).await;
                }
            }
        })
        .filter_map(|()| async { None });
        listed.chain(after).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let full = self.0.location(&prefix.cloned().unwrap_or_default());
        if let Some(act) =
            self.0.faults.hit(On::List, Place::Location(&full)).iter().find(|act| matches!(act, Act::Status(_)))
        {
            return Err(failure(act, &full));
        }
        let mut result = self.0.objects.list_with_delimiter(prefix).await?;
        result.objects = result.objects.into_iter().map(|meta| self.0.dated(meta)).collect();
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.objects.copy_opts(from, to, options).await
    }
}
