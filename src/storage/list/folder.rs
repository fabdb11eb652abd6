//! What lies directly in a folder: one level, whole or an error.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;

use super::ask::{Ask, Source};
use super::order::Order;
use super::{ListProgress, Listed, Paging, Way, error_of, facts_of, files, prefix_of};
use crate::model::{Location, ObjectFacts, Root};
use crate::storage::{Loan, Storage, StorageError, StorageErrorKind};

/// Pages without anything, one after another: S3 may answer such.
const MAX_EMPTY_PAGES: u32 = 1000;

/// What lies directly in a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folder {
    /// The folders in it, sorted. Local ones that are empty too.
    pub folders: Vec<Root>,
    /// The objects in it, sorted by location. A folder in it that no [`Root`] can stand for (its name is empty, `.` or
    /// `..`, or not UTF-8) is told here, as [`Listed::Unrepresentable`] with a `/` at its end: what is in it can be
    /// listed with the folder above, and cannot be asked for.
    pub objects: Vec<Listed>,
}

impl Storage {
    /// What lies directly in this folder; nothing where it is not there, as with a listing. An error if that cannot be
    /// told to the end.
    pub async fn folder(&self, root: &Root) -> Result<Folder, StorageError> {
        let at = self.rules.parse(root.as_str())?;
        let progress = Arc::new(ListProgress::default());
        let mut level = Level { root, at: &at, folders: BTreeSet::new(), objects: Vec::new() };
        match self.way(root, &at, Paging::default(), &progress)? {
            Way::Files => level.of_files().await?,
            Way::S3(source) => level.of_bucket(&source).await?,
            Way::Other(store, loan) => level.of_store(store.as_ref(), loan.as_ref()).await?,
        }
        let Level { folders, mut objects, .. } = level;
        objects.sort_by(|left, right| left.location().cmp(right.location()));
        Ok(Folder { folders: folders.into_iter().collect(), objects })
    }
}

/// One level, as far as it is known.
struct Level<'a> {
    root: &'a Root,
    at: &'a Location,
    folders: BTreeSet<Root>,
    objects: Vec<Listed>,
}

impl Level<'_> {
    fn error(&self, what: &str) -> StorageError {
        error_of(self.root, StorageErrorKind::Unavailable, what)
    }

    /// A folder with this name, which comes once.
    fn add_folder(&mut self, name: &[u8]) {
        let why = match std::str::from_utf8(name) {
            Err(_) => "it is a folder whose name is not UTF-8",
            Ok("" | "." | "..") => "it is a folder whose name is empty, `.` or `..`",
            Ok(name) => {
                self.folders.insert(self.root.folder(name));
                return;
            }
        };
        let location = format!("{}{}/", self.root, String::from_utf8_lossy(name));
        let facts = ObjectFacts { size: 0, modified: None, etag: None };
        self.objects.push(Listed::Unrepresentable { location, facts, why });
    }

    async fn of_files(&mut self) -> Result<(), StorageError> {
        let (root, store) = (self.root.clone(), self.at.store().to_owned());
        let top = PathBuf::from(format!("/{}", self.at.key()));
        let read = tokio::task::spawn_blocking(move || files::level(&root, &store, &top)).await;
        let (folders, objects) = read.map_err(|error| self.error(&format!("reading broke off ({error})")))??;
        for name in &folders {
            self.add_folder(name);
        }
        self.objects.extend(objects);
        Ok(())
    }

    /// Pages with a delimiter, to the last. Objects and folders each come in the store's order, so nothing comes twice and
    /// a server that goes round in circles is found out.
    async fn of_bucket(&mut self, source: &Source) -> Result<(), StorageError> {
        let prefix = self.at.key().as_bytes();
        let (mut token, mut empty_pages) = (None, 0);
        let (mut of_objects, mut of_folders) = (Order::new(), Order::new());
        let (mut last_object, mut last_folder): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        loop {
            let ask = Ask { prefix: prefix.to_vec(), token, by_folder: true, after: None };
            let page = source.page(&ask).await?;
            let is_empty = page.objects.is_empty() && page.folders.is_empty();
            empty_pages = if is_empty { empty_pages + 1 } else { 0 };
            for (key, facts) in page.objects {
                let name = self.within(prefix, &key)?;
                if name.contains(&b'/') {
                    return Err(self.error(&format!("the store lists {:?} beside its folder", text(&key))));
                }
                self.in_order(&mut of_objects, &mut last_object, &key)?;
                self.objects.push(Listed::of(self.at.store(), &key, facts));
            }
            for folder in page.folders {
                let Some((b'/', name)) = self.within(prefix, &folder)?.split_last() else {
                    return Err(self.error(&format!("the store lists {:?} as a folder", text(&folder))));
                };
                if name.contains(&b'/') {
                    return Err(self.error(&format!("the store lists {:?}, which is further below", text(&folder))));
                }
                let name = name.to_vec();
                self.in_order(&mut of_folders, &mut last_folder, &folder)?;
                self.add_folder(&name);
            }
            if page.token.is_none() {
                return Ok(());
            }
            if page.token == ask.token {
                return Err(self.error("the store gives the same continuation token again and again"));
            }
            if empty_pages > MAX_EMPTY_PAGES {
                return Err(self.error(&format!("the store gave {MAX_EMPTY_PAGES} pages without an object")));
            }
            token = page.token;
        }
    }

    fn within<'k>(&self, prefix: &[u8], key: &'k [u8]) -> Result<&'k [u8], StorageError> {
        key.strip_prefix(prefix)
            .ok_or_else(|| self.error(&format!("the store lists {:?}, which is elsewhere", text(key))))
    }

    fn in_order(&self, order: &mut Order, last: &mut Option<Vec<u8>>, key: &[u8]) -> Result<(), StorageError> {
        if let Some(last) = last.as_ref().filter(|last| !order.allows(last, key)) {
            return Err(self.error(&format!(
                "the store lists {:?} behind {:?}, which is no order",
                text(key),
                text(last)
            )));
        }
        *last = Some(key.to_vec());
        Ok(())
    }

    async fn of_store(&mut self, store: &dyn ObjectStore, loan: Option<&Loan>) -> Result<(), StorageError> {
        let prefix = prefix_of(self.root, self.at)?;
        let found = store.list_with_delimiter(prefix.as_ref()).await.map_err(|error| {
            let told = StorageError::of(self.root.as_str(), &error);
            let told = error_of(self.root, told.kind, &told.reason);
            loan.map_or_else(|| told.clone(), |loan| told.clone().without_secrets(loan))
        })?;
        for folder in found.common_prefixes {
            let key = format!("{folder}/");
            let name = self.within(self.at.key().as_bytes(), key.as_bytes())?.to_vec();
            self.add_folder(&name[..name.len() - 1]);
        }
        for meta in found.objects {
            let key = meta.location.to_string();
            self.within(self.at.key().as_bytes(), key.as_bytes())?;
            self.objects.push(Listed::of_text(self.at.store(), &key, facts_of(meta)));
        }
        Ok(())
    }
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
