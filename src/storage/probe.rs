//! What a store lets us do, for `icewarden check`: one object listed and read, and, where that is asked for, a scratch
//! object written and deleted again. No other object is ever deleted here.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::timeout;
use uuid::Uuid;

use super::{Loan, Place, Storage, StorageError, StorageErrorKind};
use crate::model::{Location, Root};

/// Bytes of an object that are read to see whether it can be.
const SAMPLE: u64 = 4;

/// What a scratch object holds.
const SCRATCH: &[u8] = b"icewarden check: this object is deleted at once\n";

/// Whether the versions of an object that was deleted stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versioning {
    /// A delete frees the object's bytes.
    Off,
    /// A delete only adds a marker.
    On,
    /// It was on: older versions may still be there.
    Suspended,
    /// The store does not tell, and why.
    Unseen(String),
}

/// Something that a store does not let us do.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {source}")]
pub struct ProbeError {
    /// Verb.
    pub doing: &'static str,
    /// Names the object or folder.
    pub source: StorageError,
    /// A scratch object that may have been left behind.
    pub left: Option<String>,
}

impl ProbeError {
    fn of(doing: &'static str) -> impl Fn(StorageError) -> Self {
        move |source| Self { doing, source, left: None }
    }
}

impl Storage {
    /// Whether what is asked for in this folder is asked for with keys that a catalog lent for one table.
    pub fn is_lent(&self, folder: &Root) -> bool {
        self.place(folder).is_ok_and(|at| self.lent_for(&at).is_some())
    }

    /// Lists the first object under a folder, if there is one, and reads a little of it; tells whether there is one.
    pub async fn sample(&self, folder: &Root) -> Result<bool, ProbeError> {
        let cannot_list = ProbeError::of("list");
        let at = self.place(folder).map_err(&cannot_list)?;
        let (store, loan) = self.store_of(&at).map_err(&cannot_list)?;
        let told = |location: &str, error| without_secrets(StorageError::of(location, &error), loan.as_ref());
        // A whole bucket has no prefix.
        let prefix =
            if at.key().is_empty() { None } else { Some(at.object_path().map_err(|error| cannot_list(error.into()))?) };
        let first = store.list(prefix.as_ref()).next().await;
        let Some(listed) = first else { return Ok(false) };
        let listed = listed.map_err(|error| cannot_list(told(folder.as_str(), error)))?;
        if listed.size > 0 {
            let read = store.get_range(&listed.location, 0..listed.size.min(SAMPLE)).await;
            let location = format!("{}/{}", at.store(), listed.location);
            read.map_err(|error| ProbeError::of("read")(told(&location, error)))?;
        }
        Ok(true)
    }

    /// Writes a scratch object into the folder, reads it back, and deletes it: the very one that it wrote, whose name
    /// nobody chose before. Each request may take that long. Its name begins with a dot, so that engines and the orphan
    /// job pass it over.
    pub async fn scratch(&self, folder: &Root, each: Duration) -> Result<(), ProbeError> {
        let key = format!("{}.icewarden-check-{}", folder.as_str(), Uuid::new_v4());
        let Place { store, path, loan } = self.locate(&key).map_err(ProbeError::of("write"))?;
        let told = |error| without_secrets(StorageError::of(&key, &error), loan.as_ref());
        let late = || StorageError {
            location: key.clone(),
            kind: StorageErrorKind::Unavailable,
            reason: format!("no answer in {} s", each.as_secs()),
        };
        let payload = PutPayload::from_bytes(Bytes::from_static(SCRATCH));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let put = match timeout(each, store.put_opts(&path, payload, options)).await {
            Ok(put) => put.map(drop).map_err(told),
            Err(_) => Err(late()),
        };
        if let Err(source) = put {
            // Without a clear answer it may have been written all the same, or be so after our delete.
            let is_unclear = source.kind == StorageErrorKind::Unavailable;
            if is_unclear {
                let _tried = timeout(each, store.delete(&path)).await;
            }
            return Err(ProbeError { doing: "write", source, left: is_unclear.then_some(key) });
        }
        let read = match timeout(each, async { store.get(&path).await?.bytes().await }).await {
            Ok(Ok(bytes)) if bytes == SCRATCH => Ok(()),
            Ok(Ok(_)) => {
                let reason = "reads back as other bytes than were written".to_owned();
                Err(StorageError { location: key.clone(), kind: StorageErrorKind::Unavailable, reason })
            }
            Ok(Err(error)) => Err(told(error)),
            Err(_) => Err(late()),
        };
        // Whatever the reading said.
        match timeout(each, store.delete(&path)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let source = told(error);
                return Err(ProbeError { doing: "delete", source, left: Some(key) });
            }
            Err(_) => return Err(ProbeError { doing: "delete", source: late(), left: Some(key) }),
        }
        read.map_err(ProbeError::of("read back"))
    }

    /// Whether the bucket of this folder keeps the versions of deleted objects; `None` for stores that have none.
    pub async fn versioning(&self, folder: &Root, within: Duration) -> Option<Versioning> {
        let at = self.place(folder).ok().filter(|at| at.scheme() == "s3")?;
        let asked = timeout(within, self.ask_versioning(&at)).await;
        let late = |_| format!("no answer in {} s", within.as_secs());
        Some(match asked.map_err(late).and_then(|asked| asked) {
            Ok(answer) => read_versioning(&answer),
            Err(reason) => Versioning::Unseen(reason),
        })
    }

    /// `GetBucketVersioning`, which `object_store` does not know.
    async fn ask_versioning(&self, at: &Location) -> Result<String, String> {
        let bucket = self.bucket(at).map_err(|error| error.reason)?;
        let answer = bucket.get("versioning").await?;
        let status = answer.status;
        if !status.is_success() {
            return Err(match status.as_u16() {
                401 | 403 => "s3:GetBucketVersioning is not allowed to us".to_owned(),
                _ => format!("the store answers {status}"),
            });
        }
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    fn place(&self, folder: &Root) -> Result<Location, StorageError> {
        Ok(self.rules.parse(folder.as_str().trim_end_matches('/'))?)
    }
}

fn without_secrets(error: StorageError, loan: Option<&Loan>) -> StorageError {
    match loan {
        Some(loan) => error.without_secrets(loan),
        None => error,
    }
}

/// The answer is a `VersioningConfiguration`, as some servers call it `GetBucketVersioningResponse`, without a `Status`
/// where versioning was never on.
fn read_versioning(xml: &str) -> Versioning {
    let status =
        xml.split_once("<Status>").and_then(|(_, rest)| rest.split_once("</Status>")).map(|(status, _)| status);
    match status {
        Some("Enabled") => Versioning::On,
        Some("Suspended") => Versioning::Suspended,
        None if xml.contains("VersioningConfiguration") || xml.contains("BucketVersioning") => Versioning::Off,
        _ => Versioning::Unseen("the store's answer is no VersioningConfiguration".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LocationRules;

    #[test]
    fn versioning_is_on_off_suspended_or_not_seen() {
        let of = |inner: &str| {
            read_versioning(&format!(
                "<?xml version=\"1.0\"?><VersioningConfiguration>{inner}</VersioningConfiguration>"
            ))
        };
        assert_eq!(of("<Status>Enabled</Status>"), Versioning::On);
        assert_eq!(of("<MfaDelete>Disabled</MfaDelete><Status>Suspended</Status>"), Versioning::Suspended);
        assert_eq!(of(""), Versioning::Off);
        for root in ["VersioningConfiguration", "GetBucketVersioningResponse"] {
            assert_eq!(read_versioning(&format!("<{root} xmlns=\"x\"/>")), Versioning::Off, "{root}");
        }
        for odd in ["", "<html>", "<VersioningConfiguration><Status>Maybe</Status></VersioningConfiguration>"] {
            assert!(matches!(read_versioning(odd), Versioning::Unseen(_)), "{odd}");
        }
    }

    #[tokio::test]
    async fn a_scratch_object_leaves_no_trace_and_touches_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(LocationRules::default(), std::collections::BTreeMap::new(), 1);
        let root = storage.rules().root(folder.path().to_str().unwrap()).unwrap();
        assert!(!storage.sample(&root).await.unwrap());
        std::fs::write(folder.path().join("kept"), "kept").unwrap();
        storage.scratch(&root, Duration::from_secs(10)).await.unwrap();
        assert!(storage.sample(&root).await.unwrap());
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
        assert_eq!(std::fs::read(folder.path().join("kept")).unwrap(), b"kept");
        assert_eq!(storage.versioning(&root, Duration::from_secs(1)).await, None);
    }

    #[tokio::test]
    async fn an_unknown_store_is_told_as_such() {
        let storage = Storage::new(LocationRules::default(), std::collections::BTreeMap::new(), 1);
        let root = storage.rules().root("ftp://host/x").unwrap();
        let error = storage.sample(&root).await.unwrap_err();
        assert_eq!(error.doing, "list");
        let error = storage.scratch(&root, Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot write ftp://host/x/.icewarden-check-"), "{error}");
        assert_eq!(error.left, None);
    }
}
