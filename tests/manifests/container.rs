//! A writer of Avro container files that can lie, and a changer of codecs.

use std::io::Write;

pub(crate) const SYNC: [u8; 16] = *b"0123456789abcdef";
pub(crate) const CODECS: [&str; 5] = ["null", "deflate", "snappy", "zstandard", "bzip2"];

pub(crate) fn long(value: i64) -> Vec<u8> {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    let mut bytes = vec![];
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

pub(crate) fn bytes(value: &[u8]) -> Vec<u8> {
    [long(value.len() as i64), value.to_vec()].concat()
}

/// An optional value whose null is branch 0.
pub(crate) fn optional(value: Option<Vec<u8>>) -> Vec<u8> {
    value.map_or_else(|| long(0), |value| [long(1), value].concat())
}

pub(crate) fn compress(codec: &str, raw: &[u8]) -> Vec<u8> {
    match codec {
        "null" => raw.to_vec(),
        "deflate" => {
            let mut encoder = flate2::write::DeflateEncoder::new(vec![], flate2::Compression::default());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        "snappy" => {
            let mut stored = snap::raw::Encoder::new().compress_vec(raw).unwrap();
            stored.extend(crc32fast::hash(raw).to_be_bytes());
            stored
        }
        "zstandard" => zstd::encode_all(raw, 3).unwrap(),
        "bzip2" => {
            let mut encoder = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::fast());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        other => panic!("no codec {other}"),
    }
}

/// A header with these metadata and [`SYNC`].
pub(crate) fn header(metadata: &[(&str, &[u8])]) -> Vec<u8> {
    let items = metadata.iter().flat_map(|(key, value)| [bytes(key.as_bytes()), bytes(value)].concat()).collect();
    [b"Obj\x01".to_vec(), long(metadata.len() as i64), items, long(0), SYNC.to_vec()].concat()
}

/// A block whose stored bytes are these.
pub(crate) fn stored_block(count: i64, stored: &[u8]) -> Vec<u8> {
    [long(count), bytes(stored), SYNC.to_vec()].concat()
}

/// A file of these blocks, each a number of rows and their bytes.
pub(crate) fn file(schema: &str, codec: &str, blocks: &[(i64, Vec<u8>)]) -> Vec<u8> {
    let mut file = header(&[("avro.schema", schema.as_bytes()), ("avro.codec", codec.as_bytes())]);
    for (count, raw) in blocks {
        file.extend(stored_block(*count, &compress(codec, raw)));
    }
    file
}

/// Reads what this trusted reader needs of a trusted file.
struct Trusted<'a>(&'a [u8]);

impl<'a> Trusted<'a> {
    fn long(&mut self) -> i64 {
        let end = self.0.iter().position(|byte| *byte < 0x80).unwrap();
        let stored = self.0[..=end].iter().rev().fold(0u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
        self.0 = &self.0[end + 1..];
        (stored >> 1).cast_signed() ^ -(stored & 1).cast_signed()
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::try_from(self.long()).unwrap();
        self.take(length)
    }
}

/// The metadata and blocks (count and stored bytes) of a sound file.
type Parts<'a> = (Vec<(&'a str, &'a [u8])>, Vec<(i64, &'a [u8])>);

fn parts(file: &[u8]) -> Parts<'_> {
    let mut rest = Trusted(file);
    assert_eq!(rest.take(4), b"Obj\x01");
    let (mut metadata, mut blocks) = (vec![], vec![]);
    loop {
        match rest.long() {
            0 => break,
            count => {
                for _ in 0..count {
                    metadata.push((std::str::from_utf8(rest.bytes()).unwrap(), rest.bytes()));
                }
            }
        }
    }
    rest.take(16);
    while !rest.0.is_empty() {
        blocks.push((rest.long(), rest.bytes()));
        rest.take(16);
    }
    (metadata, blocks)
}

/// The same rows as in a sound file that is not compressed, with another codec.
pub(crate) fn with_codec(file: &[u8], codec: &str) -> Vec<u8> {
    let (mut metadata, blocks) = parts(file);
    assert!(metadata.iter().all(|(key, value)| *key != "avro.codec" || *value == b"null"));
    metadata.retain(|(key, _)| *key != "avro.codec");
    metadata.push(("avro.codec", codec.as_bytes()));
    let mut changed = header(&metadata);
    for (count, stored) in blocks {
        changed.extend(stored_block(count, &compress(codec, stored)));
    }
    changed
}

/// Where a sound file can be cut so that it still looks whole: behind its header and behind each block.
pub(crate) fn ends(file: &[u8]) -> Vec<usize> {
    let (metadata, blocks) = parts(file);
    let tail: usize = blocks.iter().map(|(count, stored)| stored_block(*count, stored).len()).sum();
    assert!(metadata.iter().any(|(key, _)| *key == "avro.schema"));
    let mut ends = vec![file.len() - tail];
    for (count, stored) in blocks {
        ends.push(ends.last().unwrap() + stored_block(count, stored).len());
    }
    ends
}
