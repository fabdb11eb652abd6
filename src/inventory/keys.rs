//! Locations by their key alone: two names of one bucket, perhaps (safety rule 11).

use std::collections::{BTreeSet, HashMap};

use crate::model::{Fingerprint, Location, LocationRules};

/// Locations by their key alone, to find the same key under another authority: two names of one bucket, perhaps.
#[derive(Debug, Default)]
pub struct Keys {
    /// By the fingerprint of the key alone, whatever the scheme: the locations.
    by_key: HashMap<Fingerprint, Vec<String>>,
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
        let known = self.by_key.entry(key_of(&location)).or_default();
        if !known.iter().any(|other| other == location.canonical()) {
            known.push(location.canonical().to_owned());
        }
        if !self.stores.contains(location.store()) {
            self.stores.insert(location.store().to_owned());
        }
    }

    /// The locations that have the key of this reference under another authority or scheme: engines write one bucket as
    /// `s3://`, `gs://` or `oss://`.
    pub fn conflicts(&self, reference: &str, rules: &LocationRules) -> Vec<String> {
        // In nearly every table all files are in one place; then nothing can be under another.
        if let (1, Some(only)) = (self.stores.len(), self.stores.first())
            && reference.strip_prefix(only.as_str()).is_some_and(|rest| rest.starts_with('/'))
        {
            return Vec::new();
        }
        let Ok(reference) = rules.parse(reference) else { return Vec::new() };
        let same = self.by_key.get(&key_of(&reference)).into_iter().flatten();
        same.filter(|other| *other != reference.canonical()).cloned().collect()
    }
}

fn key_of(location: &Location) -> Fingerprint {
    Fingerprint::of(location.key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_under_another_authority_or_scheme_is_told_for_every_place_that_has_it() {
        let rules = LocationRules::default();
        let keys = Keys::of(["s3://a/t/x", "s3://b/t/x", "s3://a/t/y"].into_iter(), &rules);
        for (reference, expected) in [
            ("s3a://a/t/x", vec!["s3://b/t/x"]),
            ("s3://c/t/x", vec!["s3://a/t/x", "s3://b/t/x"]),
            ("gs://a/t/x", vec!["s3://a/t/x", "s3://b/t/x"]),
            ("oss://a/t/y", vec!["s3://a/t/y"]),
            ("s3://a/t/y", vec![]),
            ("s3://a/t/z", vec![]),
            ("no location", vec![]),
        ] {
            assert_eq!(keys.conflicts(reference, &rules), expected, "{reference}");
        }
    }
}
