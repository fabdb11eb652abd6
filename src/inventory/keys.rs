//! Locations by their key alone: two names of one bucket, perhaps (safety rule 11).

use std::collections::{BTreeSet, HashMap};

use crate::model::{Fingerprint, Location, LocationRules};

/// Locations by their key alone, to find the same key under another authority: two names of one bucket, perhaps.
#[derive(Debug, Default)]
pub struct Keys {
    /// By the fingerprint of scheme and key: the location.
    by_key: HashMap<Fingerprint, String>,
    /// `scheme://authority` of all of them.
    stores: BTreeSet<String>,
}

impl Keys {
    /// The keys of these locations.
    pub fn of<'a>(locations: impl Iterator<Item = &'a str>, rules: &LocationRules) -> Self {
        let mut keys = Self::default();
        locations.for_each(|location| keys.add(location, rules));
        keys
    }

    /// Adds one; text that is no location has no key.
    pub fn add(&mut self, location: &str, rules: &LocationRules) {
        let Ok(location) = rules.parse(location) else { return };
        self.by_key.insert(key_of(&location), location.canonical().to_owned());
        if !self.stores.contains(location.store()) {
            self.stores.insert(location.store().to_owned());
        }
    }

    /// The location that has the key of this reference under another authority, if there is one.
    pub fn conflict(&self, reference: &str, rules: &LocationRules) -> Option<String> {
        // In nearly every table all files are in one place; then nothing can be under another.
        if let (1, Some(only)) = (self.stores.len(), self.stores.first())
            && reference.strip_prefix(only.as_str()).is_some_and(|rest| rest.starts_with('/'))
        {
            return None;
        }
        let reference = rules.parse(reference).ok()?;
        let other = self.by_key.get(&key_of(&reference))?;
        (other != reference.canonical()).then(|| other.clone())
    }
}

fn key_of(location: &Location) -> Fingerprint {
    Fingerprint::of(&format!("{}:{}", location.scheme(), location.key()))
}
