//! Locations: addresses of files as tables store them, compared canonically and never decoded (safety rule 11).
//!
//! - `s3`, `s3a` and `s3n` are one scheme, and so are `abfss` and `abfs`; `file:/x`, `file:///x`, `file://localhost/x` and `/x` are one place.
//! - The authority counts, after the configured map; it is never dropped.
//! - The key counts byte for byte. `%2F`, `+` and `é` are what they are.
//! - An [`object_store::path::Path`] is built here and nowhere else: from the raw key by `Path::parse`, or not at all.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// Schemes and authorities that are the same place: `[locations]` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocationRules {
    /// From scheme to the scheme that it is the same as, beside the built-in `s3a`, `s3n` → `s3` and `abfs` → `abfss`.
    pub schemes: BTreeMap<String, String>,
    /// From authority (bucket, host) to the one that it is the same as.
    pub authorities: BTreeMap<String, String>,
}

impl LocationRules {
    /// Reads a location.
    pub fn parse(&self, raw: &str) -> Result<Location, BadLocation> {
        let parts = Parts::split(raw).ok_or_else(|| BadLocation(raw.to_owned()))?;
        let scheme = self.scheme(parts.scheme);
        let authority = self.authority(&scheme, parts.authority);
        let canonical = format!("{scheme}://{authority}/{}", parts.key);
        let key_at = canonical.len() - parts.key.len();
        Ok(Location { raw: raw.to_owned(), scheme_len: scheme.len(), key_at, canonical })
    }

    /// The canonical form of a location, without a copy where the text has it already: the inner loop
    /// over manifest entries calls this for every path.
    pub fn canonical<'a>(&self, raw: &'a str) -> Result<Cow<'a, str>, BadLocation> {
        let parts = Parts::split(raw).ok_or_else(|| BadLocation(raw.to_owned()))?;
        let scheme = self.scheme(parts.scheme);
        let authority = self.authority(&scheme, parts.authority);
        let same = scheme == parts.scheme
            && authority == parts.authority
            && raw.len() == scheme.len() + 3 + authority.len() + 1 + parts.key.len();
        Ok(if same { Cow::Borrowed(raw) } else { Cow::Owned(format!("{scheme}://{authority}/{}", parts.key)) })
    }

    /// Calls `each` with the fingerprint of every form under which a `FileIO` may find this location: as
    /// it is, cut at `?` or `#` as Java's `S3FileIO` does, and with empty segments collapsed as Hadoop does.
    pub fn fingerprints(&self, raw: &str, mut each: impl FnMut(Fingerprint)) -> Result<(), BadLocation> {
        let canonical = self.canonical(raw)?;
        each(Fingerprint::of(&canonical));
        let key_at = canonical.find("://").map_or(0, |at| at + 3);
        let cut = canonical[key_at..].find(['?', '#']).map(|at| &canonical[..key_at + at]);
        if let Some(cut) = cut {
            each(Fingerprint::of(cut));
        }
        for form in [Some(&*canonical), cut].into_iter().flatten() {
            if let Cow::Owned(collapsed) = collapse(form) {
                each(Fingerprint::of(&collapsed));
            }
        }
        Ok(())
    }

    /// The folder at this location.
    pub fn root(&self, raw: &str) -> Result<Root, BadLocation> {
        let location = self.parse(raw)?;
        if location.key().split('/').any(is_dots) {
            return Err(BadLocation(raw.to_owned()));
        }
        let mut prefix = collapse(location.canonical()).into_owned();
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        Ok(Root(prefix))
    }

    fn scheme<'a>(&'a self, scheme: &'a str) -> Cow<'a, str> {
        let lower = if scheme.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(scheme.to_ascii_lowercase())
        } else {
            Cow::Borrowed(scheme)
        };
        let lower = match lower.as_ref() {
            "s3a" | "s3n" => Cow::Borrowed("s3"),
            // With and without TLS to the one place.
            "abfs" => Cow::Borrowed("abfss"),
            _ => lower,
        };
        match self.schemes.get(lower.as_ref()) {
            Some(same) => Cow::Borrowed(same.as_str()),
            None => lower,
        }
    }

    fn authority<'a>(&'a self, scheme: &str, authority: &'a str) -> &'a str {
        if scheme == "file" && authority == "localhost" {
            return "";
        }
        self.authorities.get(authority).map_or(authority, String::as_str)
    }
}

/// A location as text, cut in three. A key starts after the one slash that ends the authority.
struct Parts<'a> {
    scheme: &'a str,
    authority: &'a str,
    key: &'a str,
}

impl<'a> Parts<'a> {
    fn split(raw: &'a str) -> Option<Self> {
        if let Some(key) = raw.strip_prefix('/') {
            return Some(Self { scheme: "file", authority: "", key });
        }
        let colon = raw.find(':')?;
        let (scheme, rest) = (&raw[..colon], &raw[colon + 1..]);
        let is_scheme = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
            && scheme.as_bytes().first().is_some_and(u8::is_ascii_alphabetic);
        if !is_scheme {
            return None;
        }
        let Some(after) = rest.strip_prefix("//") else {
            // Hadoop writes `file:/x`; no other scheme has a place without an authority.
            let key = rest.strip_prefix('/').filter(|_| scheme.eq_ignore_ascii_case("file"))?;
            return Some(Self { scheme, authority: "", key });
        };
        let (authority, key) = after.split_once('/').unwrap_or((after, ""));
        if authority.is_empty() && !scheme.eq_ignore_ascii_case("file") {
            return None;
        }
        Some(Self { scheme, authority, key })
    }
}

/// Where a file is. Two locations are the same place if and only if their canonical forms are equal.
#[derive(Debug, Clone)]
pub struct Location {
    raw: String,
    canonical: String,
    scheme_len: usize,
    key_at: usize,
}

impl Location {
    /// The text as the table has it, for messages and for finding it again.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// `scheme://authority/key`, for comparing.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// The scheme after mapping, lower case.
    pub fn scheme(&self) -> &str {
        &self.canonical[..self.scheme_len]
    }

    /// Bucket, host, or Azure's `container@host`; empty for local files.
    pub fn authority(&self) -> &str {
        &self.canonical[self.scheme_len + 3..self.key_at - 1]
    }

    /// The raw key.
    pub fn key(&self) -> &str {
        &self.canonical[self.key_at..]
    }

    /// `scheme://authority`, which names a store.
    pub fn store(&self) -> &str {
        &self.canonical[..self.key_at - 1]
    }

    /// The last segment of the key.
    pub fn file_name(&self) -> &str {
        self.key().rsplit('/').next().unwrap_or_default()
    }

    /// The path to ask the store for, equal to the raw key.
    pub fn object_path(&self) -> Result<Path, Unrepresentable> {
        path_of_key(self.scheme(), self.key()).map_err(|why| Unrepresentable { location: self.raw.clone(), why })
    }

    /// Whether readers disagree on what object this names: Java's `S3FileIO` cuts at `?` and `#`, others do not.
    pub fn is_ambiguous(&self) -> bool {
        self.key().contains(['?', '#'])
    }
}

/// The path to ask a store of this scheme for, equal to this raw key, or what stands in the way.
#[allow(clippy::disallowed_methods)] // the one place
pub fn path_of_key(scheme: &str, key: &str) -> Result<Path, &'static str> {
    // Path::parse strips one slash at each end, which names another object.
    if key.is_empty() || key.starts_with('/') || key.ends_with('/') || key.contains("//") {
        return Err("its key has an empty segment");
    }
    if key.split('/').any(is_dots) {
        return Err("its key has a segment `.` or `..`");
    }
    // There are servers that take it for a slash where one object is asked for, and so find another one. On a file system
    // it is a letter like others.
    if scheme != "file" && key.contains('\\') {
        return Err("its key has a backslash, which some servers take for a slash");
    }
    let path = Path::parse(key).ok().filter(|path| path.as_ref() == key);
    path.ok_or("its key has characters that cannot be asked for")
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for Location {}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.raw)
    }
}

/// A folder that belongs to a table: canonical, empty segments collapsed, always ends in `/`, so that
/// `t` never contains `t_backup`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Root(String);

impl Root {
    /// The folder of this canonical text, which ends in `/` and lies in a root.
    pub(crate) fn of_canonical(folder: String) -> Self {
        Self(folder)
    }

    /// The folder with its `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this file lies in the folder. One with `.` or `..` in its key never does.
    pub fn contains(&self, location: &Location) -> bool {
        !location.key().split('/').any(is_dots) && collapse(location.canonical()).starts_with(&self.0)
    }

    /// Whether this file lies in any of these folders.
    pub fn any_contains(roots: &BTreeSet<Self>, location: &Location) -> bool {
        if roots.is_empty() || location.key().split('/').any(is_dots) {
            return false;
        }
        let collapsed = collapse(location.canonical());
        let above = collapsed.match_indices('/').map(|(at, _)| &collapsed[..=at]);
        above.into_iter().any(|folder| roots.contains(folder))
    }

    /// Whether the other folder is this one, or lies in it.
    pub fn covers(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    /// Whether this is a whole bucket or the whole file system.
    pub fn is_whole_store(&self) -> bool {
        self.0.split_once("://").is_some_and(|(_, rest)| rest.find('/') == Some(rest.len() - 1))
    }

    /// The folder of this name in it; a name has no `/`, and is not empty, `.` or `..`.
    #[must_use]
    pub fn folder(&self, name: &str) -> Self {
        Self(format!("{}{name}/", self.0))
    }

    /// The folder above; none above a whole store.
    pub fn parent(&self) -> Option<Self> {
        if self.is_whole_store() {
            return None;
        }
        let at = self.0.trim_end_matches('/').rfind('/')?;
        Some(Self(self.0[..=at].to_owned()))
    }
}

impl Borrow<str> for Root {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// 128 bits that stand for a canonical location. A collision can only keep a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of a canonical location.
    pub fn of(canonical: &str) -> Self {
        Self(xxh3_128(canonical.as_bytes()))
    }

    /// Its bits, to be written down.
    pub fn bits(self) -> u128 {
        self.0
    }

    /// The fingerprint with these bits.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

fn is_dots(segment: &str) -> bool {
    segment == "." || segment == ".."
}

/// A canonical location with its empty segments left out, as Hadoop's and the local file system read it.
fn collapse(canonical: &str) -> Cow<'_, str> {
    let Some((store, key)) = canonical.split_once("://").and_then(|(scheme, rest)| {
        let slash = rest.find('/')?;
        Some((&canonical[..scheme.len() + 3 + slash], &rest[slash + 1..]))
    }) else {
        return Cow::Borrowed(canonical);
    };
    if !key.starts_with('/') && !key.contains("//") {
        return Cow::Borrowed(canonical);
    }
    let mut out = store.to_owned();
    for segment in key.split('/').filter(|segment| !segment.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    if key.ends_with('/') {
        out.push('/');
    }
    Cow::Owned(out)
}

/// The text is no location: it has no scheme, or no authority.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no location (expected scheme://bucket/key, or an absolute path)")]
pub struct BadLocation(pub String);

/// A location whose key no store can be asked for byte for byte. Such an object is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {why}")]
pub struct Unrepresentable {
    /// The location as stored.
    pub location: String,
    /// What stands in the way.
    pub why: &'static str,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn parse(raw: &str) -> Location {
        LocationRules::default().parse(raw).unwrap()
    }

    #[test]
    fn locations_are_compared_canonically_and_never_decoded() {
        for (left, right, same) in [
            ("s3://b/k", "s3a://b/k", true),
            ("s3://b/k", "S3N://b/k", true),
            ("file:/x/y", "file:///x/y", true),
            ("/x/y", "file://localhost/x/y", true),
            ("s3://b/k", "s3://c/k", false),
            ("s3://b/k", "gs://b/k", false),
            ("s3://b/a%2Fb", "s3://b/a/b", false),
            ("s3://b/a+b", "s3://b/a b", false),
            ("s3://b/e\u{301}", "s3://b/\u{e9}", false),
            ("s3://b//k", "s3://b/k", false),
            ("s3://b/K", "s3://b/k", false),
            ("abfss://c@a.dfs.core.windows.net/k", "abfs://c@a.dfs.core.windows.net/k", true),
            ("abfss://c@a.dfs.core.windows.net/k", "abfss://d@a.dfs.core.windows.net/k", false),
            ("abfss://c@a.dfs.core.windows.net/k", "abfss://c@b.dfs.core.windows.net/k", false),
            ("abfss://c@a.dfs.core.windows.net/k", "abfss://c/k", false),
            ("abfss://c@a.dfs.core.windows.net/a%2Fb", "abfss://c@a.dfs.core.windows.net/a/b", false),
        ] {
            assert_eq!(parse(left) == parse(right), same, "{left} {right}");
        }
    }

    #[test]
    fn configured_schemes_and_authorities_are_the_same_place() {
        let rules = LocationRules {
            schemes: [("oss".to_owned(), "s3".to_owned())].into(),
            authorities: [("old".to_owned(), "new".to_owned())].into(),
        };
        assert_eq!(rules.parse("oss://old/k").unwrap(), rules.parse("s3a://new/k").unwrap());
    }

    #[test]
    fn text_that_is_no_location_is_an_error() {
        for bad in ["", "data/x", "s3:/b/k", "s3:///k", "://x/y", "1s3://b/k", "s 3://b/k"] {
            assert!(LocationRules::default().parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_object_path_is_the_raw_key_or_nothing() {
        for good in
            ["s3://b/p=a%2Fb/1", "s3://b/New York/#2?", "s3://b/日本/100%", "s3://b/t..x/~*", "/w/t/x", "/w/t/a\\b"]
        {
            let location = parse(good);
            assert_eq!(location.object_path().unwrap().as_ref(), location.key(), "{good}");
        }
        for bad in [
            "s3://b",
            "s3://b/",
            "s3://b//k",
            "s3://b/a//k",
            "s3://b/a/",
            "s3://b/../k",
            "s3://b/./k",
            "s3://b/a\n",
            "s3://b/a\\b",
            "gs://b/a\\b",
        ] {
            assert!(parse(bad).object_path().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_root_contains_what_lies_in_it_and_no_sibling() {
        let root = LocationRules::default().root("s3a://wh/db/t/").unwrap();
        assert_eq!(root.as_str(), "s3://wh/db/t/");
        for (raw, inside) in [
            ("s3://wh/db/t/data/x", true),
            ("s3://wh/db/t//data/x", true),
            ("s3://wh/db/t2/x", false),
            ("s3://wh/db/t-old/x", false),
            ("s3://other/db/t/x", false),
            ("s3://wh/db/t/../u/x", false),
        ] {
            assert_eq!(root.contains(&parse(raw)), inside, "{raw}");
            assert_eq!(Root::any_contains(&[root.clone()].into(), &parse(raw)), inside, "{raw}");
        }
        let bucket = LocationRules::default().root("s3://wh").unwrap();
        assert!(bucket.is_whole_store() && bucket.covers(&root) && !root.covers(&bucket) && !root.is_whole_store());
        assert_eq!(root.parent().unwrap().as_str(), "s3://wh/db/");
        assert_eq!(root.parent().unwrap().folder("t"), root);
        assert_eq!(bucket.parent(), None);
        assert!(LocationRules::default().root("file:///").unwrap().is_whole_store());
    }

    #[test]
    fn a_reference_counts_under_every_form_that_a_reader_gives_it() {
        let forms = |raw: &str| {
            let mut all = HashSet::new();
            LocationRules::default().fingerprints(raw, |f| _ = all.insert(f)).unwrap();
            all
        };
        let of = |all: &[&str]| all.iter().map(|c| Fingerprint::of(c)).collect::<HashSet<_>>();
        assert_eq!(forms("s3a://b/k"), of(&["s3://b/k"]));
        assert_eq!(forms("s3://b//a//k"), of(&["s3://b//a//k", "s3://b/a/k"]));
        assert_eq!(forms("s3://b/a?v=1"), of(&["s3://b/a?v=1", "s3://b/a"]));
        assert_eq!(forms("s3://b/a//k#x//y"), of(&["s3://b/a//k#x//y", "s3://b/a//k", "s3://b/a/k#x/y", "s3://b/a/k"]));
    }

    proptest! {
        #[test]
        fn the_borrowed_form_equals_the_parsed_one(raw in "(s3|s3a|file|S3)?:?/{0,3}[ab/.%?#é]{0,12}") {
            let rules = LocationRules::default();
            match (rules.canonical(&raw), rules.parse(&raw)) {
                (Ok(canonical), Ok(location)) => {
                    prop_assert_eq!(&*canonical, location.canonical());
                    let again = rules.parse(location.canonical()).unwrap();
                    prop_assert_eq!(again.canonical(), location.canonical());
                    prop_assert_eq!(location.store().len() + 1 + location.key().len(), location.canonical().len());
                }
                (Err(_), Err(_)) => {}
                (left, right) => prop_assert!(false, "{:?} {:?}", left, right),
            }
        }
    }
}
