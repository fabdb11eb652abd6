//! Records by fingerprint that stay in memory up to a share, and go to files beyond it.
//!
//! A referenced set and a listing are joined partition by partition: all that has one fingerprint is in one partition
//! of both, so that only one partition at a time has to be in memory as a map. A collision of fingerprints can only
//! keep an object. Files have no name: they are gone when their process is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use crate::model::{FileKind, Fingerprint, ObjectFacts, Timestamp};
use crate::state::Entry;
use crate::storage::Listed;

/// Partitions of a set. Each may have a file open.
const PARTITIONS: usize = 64;

/// A file for what does not fit in memory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use a temporary file in {folder}: {source}; set TMPDIR to a folder with room, or [limits] memory higher"
)]
pub struct SpillError {
    folder: String,
    source: io::Error,
}

impl From<io::Error> for SpillError {
    fn from(source: io::Error) -> Self {
        Self { folder: std::env::temp_dir().display().to_string(), source }
    }
}

/// Records one after another.
#[derive(Debug, Default)]
pub struct Spool {
    memory: Vec<u8>,
    limit: usize,
    file: Option<File>,
}

impl Spool {
    /// An empty one that holds this many bytes in memory.
    pub fn new(limit: usize) -> Self {
        Self { memory: Vec::new(), limit, file: None }
    }

    /// Adds a record.
    pub fn push(&mut self, record: &[u8]) -> Result<(), SpillError> {
        put_number(&mut self.memory, record.len() as u64);
        self.memory.extend_from_slice(record);
        if self.memory.len() > self.limit {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert(tempfile::tempfile()?),
            };
            file.write_all(&self.memory)?;
            self.memory.clear();
        }
        Ok(())
    }

    /// Visits all records, in the order in which they came.
    pub fn each<E: From<SpillError>>(&mut self, mut visit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut record = Vec::new();
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(0)).map_err(SpillError::from)?;
            let mut from = BufReader::with_capacity(1 << 18, file);
            while next(&mut from, &mut record)? {
                visit(&record)?;
            }
        }
        let mut rest = &self.memory[..];
        while next(&mut rest, &mut record)? {
            visit(&record)?;
        }
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::End(0)).map_err(SpillError::from)?;
        }
        Ok(())
    }
}

/// Reads the next record; false at the end.
fn next(from: &mut impl Read, record: &mut Vec<u8>) -> Result<bool, SpillError> {
    let Some(length) = take_number(from)? else { return Ok(false) };
    record.clear();
    let read = from.by_ref().take(length).read_to_end(record)?;
    if read as u64 != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(true)
}

/// A number as few bytes as it takes, low bits first.
fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}

fn take_number(from: &mut impl Read) -> Result<Option<u64>, SpillError> {
    let (mut number, mut shift) = (0_u64, 0);
    let mut byte = [0];
    loop {
        if from.read(&mut byte)? == 0 {
            return if shift == 0 { Ok(None) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) };
        }
        number |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(number));
        }
        shift += 7;
        if shift > 63 {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
    }
}

/// Records by fingerprint.
#[derive(Debug)]
struct Partitioned(Vec<Spool>);

impl Partitioned {
    fn new(memory: u64) -> Self {
        let share = usize::try_from(memory).unwrap_or(usize::MAX) / PARTITIONS;
        Self((0..PARTITIONS).map(|_| Spool::new(share)).collect())
    }

    fn push(&mut self, fingerprint: Fingerprint, record: &[u8]) -> Result<(), SpillError> {
        // The high bits: maps in memory use the low ones.
        let at = (fingerprint.bits() >> 120) as usize % PARTITIONS;
        self.0[at].push(record)
    }
}

/// What is referred to.
#[derive(Debug)]
pub struct References(Partitioned);

/// Whether a reference must be found in the listing.
const MUST: u8 = 1;

impl References {
    /// None yet; holds about `memory` bytes in memory.
    pub fn new(memory: u64) -> Self {
        Self(Partitioned::new(memory))
    }

    /// Adds one. One that `must` be listed and is not is told by [`join`].
    pub fn add(&mut self, fingerprint: Fingerprint, must: bool) -> Result<(), SpillError> {
        let mut record = [0; 17];
        record[..16].copy_from_slice(&fingerprint.bits().to_le_bytes());
        record[16] = if must { MUST } else { 0 };
        self.0.push(fingerprint, &record)
    }
}

/// What was listed.
#[derive(Debug)]
pub struct Objects(Partitioned);

/// One listed object, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Canonical.
    pub location: String,
    /// As listed.
    pub facts: ObjectFacts,
    /// Whether its key can be asked for byte for byte.
    pub is_representable: bool,
}

impl Objects {
    /// None yet; holds about `memory` bytes in memory.
    pub fn new(memory: u64) -> Self {
        Self(Partitioned::new(memory))
    }

    /// Adds one.
    pub fn add(&mut self, listed: &Listed) -> Result<(), SpillError> {
        let mut record = Vec::with_capacity(listed.location().len() + 64);
        encode(&mut record, listed.location(), listed.facts(), u8::from(matches!(listed, Listed::Object { .. })));
        self.0.push(Fingerprint::of(listed.location()), &record)
    }
}

fn encode(to: &mut Vec<u8>, location: &str, facts: &ObjectFacts, kind: u8) {
    to.push(kind);
    put_number(to, facts.size);
    // Times before 1970 are none.
    put_number(to, facts.modified.map_or(0, |time| u64::try_from(time.0).unwrap_or_default().saturating_add(1)));
    let etag = facts.etag.as_deref();
    put_number(to, etag.map_or(0, |etag| etag.len() as u64 + 1));
    to.extend_from_slice(etag.unwrap_or_default().as_bytes());
    to.extend_from_slice(location.as_bytes());
}

fn decode(record: &[u8]) -> Result<(u8, String, ObjectFacts), SpillError> {
    let bad = || SpillError::from(io::Error::from(io::ErrorKind::InvalidData));
    let (kind, mut rest) = record.split_first().ok_or_else(bad)?;
    let mut number = || take_number(&mut rest)?.ok_or_else(bad);
    let (size, modified, etag) = (number()?, number()?, number()?);
    let modified = modified.checked_sub(1).map(|ms| Timestamp(i64::try_from(ms).unwrap_or(i64::MAX)));
    let length = usize::try_from(etag.saturating_sub(1)).unwrap_or(usize::MAX);
    let (tag, location) = rest.split_at_checked(length).ok_or_else(bad)?;
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad());
    let etag = if etag == 0 { None } else { Some(text(tag)?) };
    Ok((*kind, text(location)?, ObjectFacts { size, modified, etag }))
}

/// Visits every object with whether something refers to it, and returns the references that must be listed and are not.
pub fn join(
    references: References,
    objects: Objects,
    mut visit: impl FnMut(Object, bool) -> Result<(), SpillError>,
) -> Result<Vec<Fingerprint>, SpillError> {
    let mut missing = Vec::new();
    for (mut references, mut objects) in references.0.0.into_iter().zip(objects.0.0) {
        let mut open: HashMap<Fingerprint, u8> = HashMap::new();
        references.each(|record| {
            let (bits, must) = record.split_at_checked(16).unwrap_or((&[0; 16], &[]));
            let mut fingerprint = [0; 16];
            fingerprint.copy_from_slice(bits);
            let must = must.first().copied().unwrap_or_default();
            let known = open.entry(Fingerprint::from_bits(u128::from_le_bytes(fingerprint))).or_default();
            *known |= must;
            Ok::<_, SpillError>(())
        })?;
        drop(references);
        objects.each(|record| {
            let (kind, location, facts) = decode(record)?;
            let found = open.get_mut(&Fingerprint::of(&location));
            let is_referenced = found.is_some();
            if let Some(must) = found {
                *must = 0;
            }
            visit(Object { location, facts, is_representable: kind == 1 }, is_referenced)
        })?;
        missing.extend(open.into_iter().filter(|(_, must)| *must == MUST).map(|(fingerprint, _)| fingerprint));
    }
    Ok(missing)
}

/// Objects to be gone through a second time.
#[derive(Debug)]
pub struct Kept(Spool);

impl Kept {
    /// None yet; holds about `memory` bytes in memory.
    pub fn new(memory: u64) -> Self {
        Self(Spool::new(usize::try_from(memory).unwrap_or(usize::MAX)))
    }

    /// Adds one.
    pub fn add(&mut self, object: &Object) -> Result<(), SpillError> {
        let mut record = Vec::new();
        encode(&mut record, &object.location, &object.facts, u8::from(object.is_representable));
        self.0.push(&record)
    }

    /// Visits all.
    pub fn each(&mut self, mut visit: impl FnMut(Object) -> Result<(), SpillError>) -> Result<(), SpillError> {
        self.0.each(|record| {
            let (kind, location, facts) = decode(record)?;
            visit(Object { location, facts, is_representable: kind == 1 })
        })
    }
}

/// Entries of a mark list, to be gone through in their order.
#[derive(Debug)]
pub struct Sorted {
    memory: Vec<Entry>,
    held: u64,
    limit: u64,
    runs: Vec<Spool>,
}

impl Sorted {
    /// None yet; holds about `memory` bytes in memory.
    pub fn new(memory: u64) -> Self {
        Self { memory: Vec::new(), held: 0, limit: memory, runs: Vec::new() }
    }

    /// Adds one; each location comes once.
    pub fn add(&mut self, kind: FileKind, object: Object) -> Result<(), SpillError> {
        let Object { location, facts, .. } = object;
        self.held += (size_of::<Entry>() + location.len() + facts.etag.as_ref().map_or(0, String::len)) as u64;
        self.memory.push(Entry { kind, location, facts: Some(facts), recorded_size: None });
        if self.held > self.limit {
            self.sort();
            let mut run = Spool::new(1 << 20);
            let mut record = Vec::new();
            for entry in self.memory.drain(..) {
                record.clear();
                encode_entry(&mut record, &entry);
                run.push(&record)?;
            }
            self.held = 0;
            self.runs.push(run);
        }
        Ok(())
    }

    fn sort(&mut self) {
        self.memory.sort_unstable_by(|left, right| order(left).cmp(&order(right)));
    }

    /// Visits all in the order of deletion: by kind, then by location.
    pub fn each<E: From<SpillError>>(&mut self, mut visit: impl FnMut(&Entry) -> Result<(), E>) -> Result<(), E> {
        self.sort();
        let mut runs = Vec::with_capacity(self.runs.len());
        for run in &mut self.runs {
            runs.push(Run::begin(run)?);
        }
        let mut memory = self.memory.iter().peekable();
        loop {
            let first = (0..runs.len())
                .filter_map(|at| Some((at, runs[at].head.as_ref()?)))
                .min_by(|(_, left), (_, right)| order(left).cmp(&order(right)));
            match (first, memory.peek()) {
                (Some((at, entry)), in_memory) if in_memory.is_none_or(|next| order(entry) <= order(next)) => {
                    visit(entry)?;
                    runs[at].advance()?;
                }
                (_, Some(_)) => {
                    if let Some(entry) = memory.next() {
                        visit(entry)?;
                    }
                }
                (None, None) => return Ok(()),
                (Some((at, _)), None) => runs[at].advance()?,
            }
        }
    }
}

fn order(entry: &Entry) -> (FileKind, &str) {
    (entry.kind, &entry.location)
}

fn encode_entry(to: &mut Vec<u8>, entry: &Entry) {
    let kind = FileKind::ALL.iter().position(|kind| *kind == entry.kind).unwrap_or_default();
    let nothing = ObjectFacts { size: 0, modified: None, etag: None };
    encode(to, &entry.location, entry.facts.as_ref().unwrap_or(&nothing), kind.to_le_bytes()[0]);
}

/// A sorted run that is being read.
struct Run<'a> {
    from: BufReader<Box<dyn Read + 'a>>,
    head: Option<Entry>,
    record: Vec<u8>,
}

impl<'a> Run<'a> {
    fn begin(spool: &'a mut Spool) -> Result<Self, SpillError> {
        let memory = &spool.memory[..];
        let from: Box<dyn Read + 'a> = match &mut spool.file {
            Some(file) => {
                file.seek(SeekFrom::Start(0))?;
                Box::new(file.chain(memory))
            }
            None => Box::new(memory),
        };
        let mut run = Self { from: BufReader::with_capacity(1 << 16, from), head: None, record: Vec::new() };
        run.advance()?;
        Ok(run)
    }

    fn advance(&mut self) -> Result<(), SpillError> {
        self.head = if next(&mut self.from, &mut self.record)? {
            let (kind, location, facts) = decode(&self.record)?;
            let kind = FileKind::ALL.get(usize::from(kind)).copied().unwrap_or(FileKind::Other);
            Some(Entry { kind, location, facts: Some(facts), recorded_size: None })
        } else {
            None
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn listed(name: &str, size: u64) -> Listed {
        let facts = ObjectFacts {
            size,
            modified: (!size.is_multiple_of(3)).then_some(Timestamp(size.cast_signed())),
            etag: (!size.is_multiple_of(2)).then(|| format!("\"{name}\"")),
        };
        let location = format!("s3://b/{name}");
        if size.is_multiple_of(5) {
            Listed::Unrepresentable { location, facts, why: "odd" }
        } else {
            Listed::Object { location, facts }
        }
    }

    proptest! {
        /// Whether records are in memory, in files or both, the join says what two sets say.
        #[test]
        fn a_join_says_what_two_sets_say(
            names in proptest::collection::btree_map("[a-z]{1,2}", 0_u64..50, 0..200),
            referred in proptest::collection::btree_map("[a-z]{1,2}", any::<bool>(), 0..200),
            memory in prop_oneof![Just(0_u64), Just(4000), Just(1 << 20)],
        ) {
            let (mut references, mut objects) = (References::new(memory), Objects::new(memory));
            for (name, must) in &referred {
                references.add(Fingerprint::of(&format!("s3://b/{name}")), *must).unwrap();
                // Once more, without the need.
                references.add(Fingerprint::of(&format!("s3://b/{name}")), false).unwrap();
            }
            for (name, size) in &names {
                objects.add(&listed(name, *size)).unwrap();
            }
            let mut seen = BTreeMap::new();
            let missing: BTreeSet<_> = join(references, objects, |object, is_referenced| {
                seen.insert(object.location.clone(), (object, is_referenced));
                Ok(())
            }).unwrap().into_iter().collect();
            let expected: BTreeMap<_, _> = names.iter().map(|(name, size)| {
                let listed = listed(name, *size);
                let object = Object {
                    location: listed.location().to_owned(),
                    facts: listed.facts().clone(),
                    is_representable: matches!(listed, Listed::Object { .. }),
                };
                (object.location.clone(), (object, referred.contains_key(name)))
            }).collect();
            prop_assert_eq!(seen, expected);
            let absent = referred.iter().filter(|(name, must)| **must && !names.contains_key(*name));
            let absent: BTreeSet<_> = absent.map(|(name, _)| Fingerprint::of(&format!("s3://b/{name}"))).collect();
            prop_assert_eq!(missing, absent);
        }

        #[test]
        fn entries_come_sorted_however_little_memory_there_is(
            names in proptest::collection::btree_map("[a-zé]{1,3}", 0_usize..7, 0..300),
            memory in prop_oneof![Just(0_u64), Just(3000), Just(1 << 20)],
        ) {
            let mut sorted = Sorted::new(memory);
            let mut expected = Vec::new();
            for (name, kind) in &names {
                let listed = listed(name, name.len() as u64);
                let object = Object { location: listed.location().to_owned(), facts: listed.facts().clone(), is_representable: true };
                expected.push((FileKind::ALL[*kind], object.location.clone(), Some(object.facts.clone())));
                sorted.add(FileKind::ALL[*kind], object).unwrap();
            }
            expected.sort_by(|left, right| (left.0, &left.1).cmp(&(right.0, &right.1)));
            // A plan is gone through twice: for its decisions, and for its marks.
            for _ in 0..2 {
                let mut seen = Vec::new();
                sorted.each(|entry| {
                    seen.push((entry.kind, entry.location.clone(), entry.facts.clone()));
                    Ok::<_, SpillError>(())
                }).unwrap();
                prop_assert_eq!(&seen, &expected);
            }
        }
    }
}
