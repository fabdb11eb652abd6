//! Avro container files of other codecs and more blocks than the writer of the scenarios makes.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;

const SYNC: usize = 16;

/// Appends an `int` or `long`.
pub(crate) fn long(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Appends a `bytes` or `string`.
pub(crate) fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    long(out, value.len() as i64);
    out.extend_from_slice(value);
}

/// A container file in the making.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    /// As far as it is written.
    pub(crate) file: Vec<u8>,
    codec: &'static str,
    sync: [u8; SYNC],
}

impl Container {
    /// Begins with the header of `like`, a file without rows, but with this codec.
    pub(crate) fn like(like: &[u8], codec: &'static str) -> Self {
        let sync = *like.last_chunk::<SYNC>().unwrap();
        let mut this = Self { file: like.to_vec(), codec, sync };
        let old = ["null", "deflate"].into_iter().find(|old| this.swap("avro.codec", old, codec));
        assert!(old.is_some(), "the file says its codec");
        this
    }

    /// Changes a value of the header; false if it is not there.
    pub(crate) fn swap(&mut self, key: &str, old: &str, new: &str) -> bool {
        let pair = |value: &str| {
            let mut pair = Vec::new();
            bytes(&mut pair, key.as_bytes());
            bytes(&mut pair, value.as_bytes());
            pair
        };
        let (old, new) = (pair(old), pair(new));
        let at = self.file.windows(old.len()).position(|window| window == old);
        if let Some(at) = at {
            self.file.splice(at..at + old.len(), new);
        }
        at.is_some()
    }

    /// Appends a block of rows.
    pub(crate) fn block(&mut self, rows: usize, raw: &[u8]) {
        let stored = match self.codec {
            "null" => raw.to_vec(),
            "deflate" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(raw).unwrap();
                encoder.finish().unwrap()
            }
            "zstandard" => zstd::encode_all(raw, 3).unwrap(),
            other => panic!("no codec {other}"),
        };
        long(&mut self.file, rows as i64);
        bytes(&mut self.file, &stored);
        self.file.extend_from_slice(&self.sync);
    }
}

/// The rows and stored bytes of every block of a sound file.
pub(crate) fn blocks(file: &[u8]) -> Vec<(usize, &[u8])> {
    fn number(rest: &mut &[u8]) -> usize {
        let end = rest.iter().position(|byte| *byte < 0x80).unwrap();
        let stored = rest[..=end].iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
        *rest = &rest[end + 1..];
        stored / 2
    }
    // The header ends with the marker that ends every block.
    let sync = file.last_chunk::<SYNC>().unwrap();
    let header = file.windows(SYNC).position(|window| window == sync).unwrap() + SYNC;
    let mut rest = &file[header..];
    let mut blocks = Vec::new();
    while !rest.is_empty() {
        let (rows, length) = (number(&mut rest), number(&mut rest));
        blocks.push((rows, &rest[..length]));
        rest = &rest[length + SYNC..];
    }
    blocks
}
