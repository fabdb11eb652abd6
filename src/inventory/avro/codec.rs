//! Decompression of blocks. One [`Inflater`] serves a file: its state and its buffer live from block to block.
//!
//! No container says how large a block is when inflated, and what a compressed stream says of itself is not
//! believed: the buffer grows by doubling while there is output, up to a limit.

use zstd::stream::raw::Operation;

use super::Flaw;

/// Java's writers close a block at 64 kB, and one entry with thousands of columns has a few megabytes. More
/// than this is damage or an attack, and would be the end of a process with our default memory limit.
pub(super) const MAX_BLOCK: usize = 1 << 30;

/// The buffer's first size: a block of Java's writers, with room for its last row.
const FIRST_BUFFER: usize = 128 << 10;

/// No snappy stream is expanded more: its densest command makes 64 bytes of three.
const SNAPPY_EXPANSION: usize = 22;

/// Turns stored blocks into rows' bytes.
pub(super) struct Inflater {
    method: Method,
    buffer: Vec<u8>,
    limit: usize,
}

enum Method {
    Null,
    Deflate(libdeflater::Decompressor),
    Snappy(snap::raw::Decoder),
    Zstandard(zstd::stream::raw::Decoder<'static>),
    Bzip2,
}

impl Inflater {
    /// For the codec of that name (`avro.codec`), or `None` if we do not know it.
    pub(super) fn new(codec: &[u8]) -> Option<Self> {
        let method = match codec {
            b"null" => Method::Null,
            b"deflate" => Method::Deflate(libdeflater::Decompressor::new()),
            b"snappy" => Method::Snappy(snap::raw::Decoder::new()),
            b"zstandard" => Method::Zstandard(zstd::stream::raw::Decoder::new().ok()?),
            b"bzip2" => Method::Bzip2,
            _ => return None,
        };
        Some(Self { method, buffer: Vec::new(), limit: MAX_BLOCK })
    }

    /// The bytes of a block. They stay until the next call.
    pub(super) fn block<'s>(&'s mut self, stored: &'s [u8]) -> Result<&'s [u8], Flaw> {
        let Self { method, buffer, limit } = self;
        let mut output = Output { buffer, limit: *limit };
        let length = match method {
            Method::Null => return Ok(stored),
            Method::Deflate(decompressor) => deflate(decompressor, stored, &mut output)?,
            Method::Snappy(decoder) => snappy(decoder, stored, &mut output)?,
            Method::Zstandard(decoder) => zstandard(decoder, stored, &mut output)?,
            Method::Bzip2 => bzip2(stored, &mut output)?,
        };
        Ok(&self.buffer[..length])
    }
}

/// The growing buffer.
struct Output<'b> {
    buffer: &'b mut Vec<u8>,
    limit: usize,
}

impl Output<'_> {
    /// Makes room for a first attempt at `stored` bytes.
    fn begin(&mut self, stored: usize) -> Result<(), Flaw> {
        // Manifests compress to a half or a quarter.
        self.reserve(stored.saturating_mul(4).max(FIRST_BUFFER).min(self.limit))
    }

    /// Doubles the buffer, keeping what is in it.
    fn grow(&mut self) -> Result<(), Flaw> {
        if self.buffer.len() >= self.limit {
            return Err(Flaw::TooLarge);
        }
        self.reserve((self.buffer.len() * 2).min(self.limit))
    }

    fn reserve(&mut self, length: usize) -> Result<(), Flaw> {
        if length > self.buffer.len() {
            self.buffer.try_reserve_exact(length - self.buffer.len()).map_err(|_| Flaw::TooLarge)?;
            self.buffer.resize(length, 0);
        }
        Ok(())
    }
}

/// Raw deflate, without a zlib header. Libdeflate wants the whole output at once: where the buffer is too
/// small, it grows and the block starts again, which happens on the first block of a file at most.
fn deflate(
    decompressor: &mut libdeflater::Decompressor,
    stored: &[u8],
    output: &mut Output<'_>,
) -> Result<usize, Flaw> {
    output.begin(stored.len())?;
    loop {
        match decompressor.deflate_decompress(stored, output.buffer) {
            Ok(length) => return Ok(length),
            Err(libdeflater::DecompressionError::BadData) => return Err(Flaw::Inflate),
            Err(libdeflater::DecompressionError::InsufficientSpace) => output.grow()?,
        }
    }
}

/// A raw snappy stream and, behind it, the checksum of what it inflates to.
fn snappy(decoder: &mut snap::raw::Decoder, stored: &[u8], output: &mut Output<'_>) -> Result<usize, Flaw> {
    let (stream, checksum) = stored.split_last_chunk::<4>().ok_or(Flaw::Inflate)?;
    let claimed = snap::raw::decompress_len(stream).map_err(|_| Flaw::Inflate)?;
    if claimed > output.limit {
        return Err(Flaw::TooLarge);
    }
    if claimed > stream.len().saturating_mul(SNAPPY_EXPANSION) {
        return Err(Flaw::Inflate);
    }
    output.reserve(claimed)?;
    let length = decoder.decompress(stream, output.buffer).map_err(|_| Flaw::Inflate)?;
    if crc32fast::hash(&output.buffer[..length]) != u32::from_be_bytes(*checksum) {
        return Err(Flaw::Checksum);
    }
    Ok(length)
}

/// One or more zstandard frames.
fn zstandard(
    decoder: &mut zstd::stream::raw::Decoder<'static>,
    stored: &[u8],
    output: &mut Output<'_>,
) -> Result<usize, Flaw> {
    output.begin(stored.len())?;
    decoder.reinit().map_err(|_| Flaw::Inflate)?;
    let (mut read, mut written) = (0, 0);
    loop {
        let step = decoder.run_on_buffers(&stored[read..], &mut output.buffer[written..]).map_err(|_| Flaw::Inflate)?;
        read += step.bytes_read;
        written += step.bytes_written;
        if step.remaining == 0 && read == stored.len() {
            return Ok(written);
        }
        if written == output.buffer.len() {
            output.grow()?;
        } else if step.bytes_read == 0 && step.bytes_written == 0 {
            // There is room for more output and no more input: the stream is cut.
            return Err(Flaw::Inflate);
        }
    }
}

/// One bzip2 stream.
fn bzip2(stored: &[u8], output: &mut Output<'_>) -> Result<usize, Flaw> {
    output.begin(stored.len())?;
    let mut decompressor = bzip2::Decompress::new(false);
    let (mut read, mut written) = (0, 0);
    loop {
        let status =
            decompressor.decompress(&stored[read..], &mut output.buffer[written..]).map_err(|_| Flaw::Inflate)?;
        let read_before = std::mem::replace(&mut read, place(decompressor.total_in())?);
        let written_before = std::mem::replace(&mut written, place(decompressor.total_out())?);
        match status {
            bzip2::Status::StreamEnd if read == stored.len() => return Ok(written),
            bzip2::Status::Ok if written == output.buffer.len() => output.grow()?,
            bzip2::Status::Ok if read > read_before || written > written_before => {}
            // Cut, out of memory, or followed by something else.
            _ => return Err(Flaw::Inflate),
        }
    }
}

fn place(total: u64) -> Result<usize, Flaw> {
    usize::try_from(total).map_err(|_| Flaw::TooLarge)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const CODECS: [&str; 5] = ["null", "deflate", "snappy", "zstandard", "bzip2"];

    fn store(codec: &str, bytes: &[u8]) -> Vec<u8> {
        match codec {
            "null" => bytes.to_vec(),
            "deflate" => {
                let mut encoder = flate2::write::DeflateEncoder::new(vec![], flate2::Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            "snappy" => {
                let mut stored = snap::raw::Encoder::new().compress_vec(bytes).unwrap();
                stored.extend(crc32fast::hash(bytes).to_be_bytes());
                stored
            }
            "zstandard" => zstd::encode_all(bytes, 3).unwrap(),
            "bzip2" => {
                let mut encoder = bzip2::write::BzEncoder::new(vec![], bzip2::Compression::default());
                encoder.write_all(bytes).unwrap();
                encoder.finish().unwrap()
            }
            other => panic!("no codec {other}"),
        }
    }

    fn texts() -> Vec<Vec<u8>> {
        let dense: Vec<u8> = (0..70_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        vec![vec![], b"x".to_vec(), vec![7; FIRST_BUFFER], vec![7; FIRST_BUFFER + 1], vec![0; 600_000], dense]
    }

    #[test]
    fn every_codec_gives_back_what_was_stored_block_after_block() {
        for codec in CODECS {
            let mut inflater = Inflater::new(codec.as_bytes()).unwrap();
            for text in texts().iter().chain(texts().iter().rev()) {
                let stored = store(codec, text);
                assert!(inflater.block(&stored) == Ok(text.as_slice()), "{codec}, {} bytes", text.len());
            }
        }
    }

    #[test]
    fn zstandard_of_several_frames_is_one_block() {
        let stored = [store("zstandard", b"one "), store("zstandard", b""), store("zstandard", b"two")].concat();
        assert_eq!(Inflater::new(b"zstandard").unwrap().block(&stored), Ok(b"one two".as_slice()));
    }

    #[test]
    fn a_cut_block_is_a_flaw_and_the_next_block_is_not_touched_by_it() {
        let text = b"a row and a row and a row and another row".repeat(40);
        for codec in &CODECS[1..] {
            let stored = store(codec, &text);
            let mut inflater = Inflater::new(codec.as_bytes()).unwrap();
            for cut in 0..stored.len() {
                assert!(inflater.block(&stored[..cut]).is_err(), "{codec}, cut at {cut} of {}", stored.len());
            }
            assert_eq!(inflater.block(&stored), Ok(text.as_slice()), "{codec}");
        }
    }

    #[test]
    fn a_block_larger_than_the_limit_is_refused_and_memory_stays_below_it() {
        let limit = 1 << 18;
        for codec in &CODECS[1..] {
            let mut inflater = Inflater { limit, ..Inflater::new(codec.as_bytes()).unwrap() };
            assert_eq!(inflater.block(&store(codec, &vec![0; limit + 1])), Err(Flaw::TooLarge), "{codec}");
            assert!(inflater.buffer.capacity() <= limit, "{codec}: {}", inflater.buffer.capacity());
            assert_eq!(inflater.block(&store(codec, &vec![1; limit])), Ok(vec![1; limit].as_slice()), "{codec}");
        }
    }

    #[test]
    fn a_snappy_block_with_a_wrong_checksum_or_a_lying_length_is_refused() {
        let mut stored = store("snappy", b"some rows");
        *stored.last_mut().unwrap() ^= 1;
        assert_eq!(Inflater::new(b"snappy").unwrap().block(&stored), Err(Flaw::Checksum));
        for (claimed, flaw) in
            [([0xff, 0xff, 0xff, 0xff, 0x0f], Flaw::TooLarge), ([0xff, 0xff, 0xff, 0xff, 0x01], Flaw::Inflate)]
        {
            let lying = [claimed.as_slice(), &[0; 40]].concat();
            assert_eq!(Inflater::new(b"snappy").unwrap().block(&lying), Err(flaw));
        }
    }

    #[test]
    fn deflate_with_a_zlib_header_is_refused() {
        let mut encoder = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::default());
        encoder.write_all(b"some rows").unwrap();
        let stored = encoder.finish().unwrap();
        assert_eq!(Inflater::new(b"deflate").unwrap().block(&stored), Err(Flaw::Inflate));
    }

    #[test]
    fn codecs_that_nobody_writes_manifests_with_are_not_known() {
        for codec in ["xz", "zstd", "gzip", "Deflate", "bzip2 "] {
            assert!(Inflater::new(codec.as_bytes()).is_none(), "{codec}");
        }
    }
}
