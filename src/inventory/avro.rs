//! A skipping reader of Avro object container files, made for Iceberg's manifests.
//!
//! The writer's schema in a file's header becomes a list of steps, "read this" or "skip that", which runs over
//! each inflated block and borrows texts from it. Nothing that is not wanted is decoded.
//!
//! Input is hostile: every length and count is compared with the bytes left before it is used, each block
//! must be consumed exactly, and any difference is an error with the place in the file. Avro has no checksum of
//! its own, so rows without an error can still be wrong; who reads compares their number with what is known
//! from elsewhere ([`manifests`](super::manifests)). Why we have our own: `docs/adr/0004-own-avro-reader.md`.

mod codec;
mod cursor;
mod flaw;
mod schema;

use codec::Inflater;
use cursor::Cursor;
use schema::{Step, Steps};

pub use flaw::{Broken, Flaw};
pub use schema::{Column, Take};

/// First bytes of a container file.
const MAGIC: &[u8] = b"Obj\x01";
const SYNC: usize = 16;

/// Places for numbers in a [`Row`].
pub const NUMBERS: usize = 8;
/// Places for texts in a [`Row`].
pub const TEXTS: usize = 2;

/// The wanted values of one row, in the places that [`Take`] says.
#[derive(Debug)]
pub struct Row<'a> {
    numbers: [Option<i64>; NUMBERS],
    texts: [Option<&'a [u8]>; TEXTS],
}

impl<'a> Row<'a> {
    const EMPTY: Self = Self { numbers: [None; NUMBERS], texts: [None; TEXTS] };

    /// The number at `place`, `None` if null or not in the schema.
    #[inline]
    pub fn number(&self, place: usize) -> Option<i64> {
        self.numbers[place]
    }

    /// The number at `place`, which must not be null.
    #[inline]
    pub fn required_number(&self, place: usize) -> Result<i64, Flaw> {
        self.numbers[place].ok_or(Flaw::Null)
    }

    /// The count or size at `place`, which must be there and not below zero.
    #[inline]
    pub fn size(&self, place: usize) -> Result<u64, Flaw> {
        u64::try_from(self.required_number(place)?).map_err(|_| Flaw::Negative)
    }

    /// The bytes at `place`, `None` if null or not in the schema.
    #[inline]
    pub fn bytes(&self, place: usize) -> Option<&'a [u8]> {
        self.texts[place]
    }

    /// The text at `place`, `None` if null or not in the schema.
    #[inline]
    pub fn text(&self, place: usize) -> Result<Option<&'a str>, Flaw> {
        self.texts[place].map(std::str::from_utf8).transpose().map_err(|_| Flaw::NotUtf8)
    }

    /// The location at `place`, which must be there and not empty.
    #[inline]
    pub fn location(&self, place: usize) -> Result<&'a str, Flaw> {
        match self.text(place)? {
            Some("") => Err(Flaw::NoLocation),
            Some(location) => Ok(location),
            None => Err(Flaw::Null),
        }
    }
}

/// Reads all rows of the container file `bytes` and gives each to `each`. Returns how many there were.
///
/// # Errors
/// What is wrong and where, also if that is what `each` found. Rows that came before have been given then; they
/// prove nothing and are to be dropped.
pub fn read_rows(
    bytes: &[u8],
    columns: &'static [Column],
    mut each: impl FnMut(&Row<'_>) -> Result<(), Flaw>,
) -> Result<u64, Broken> {
    let header = header(bytes).map_err(Broken::Header)?;
    let steps = schema::compile(header.schema, columns).map_err(Broken::Schema)?;
    let mut inflater = Inflater::new(header.codec)
        .ok_or_else(|| Broken::Codec(String::from_utf8_lossy(&header.codec[..header.codec.len().min(40)]).into()))?;
    let mut file = Cursor::new(bytes, header.end);
    let mut rows = 0;
    while file.left() > 0 {
        let offset = file.offset();
        let broken = |flaw| Broken::Block { offset, flaw };
        let count = file.long().map_err(broken)?;
        let stored = file.bytes().map_err(broken)?;
        if file.take(SYNC).map_err(broken)? != header.sync {
            return Err(broken(Flaw::Sync));
        }
        let block = inflater.block(stored).map_err(broken)?;
        let count = u64::try_from(count).map_err(|_| broken(Flaw::Rows))?;
        if count > block.len() as u64 / steps.smallest.max(1) {
            return Err(broken(Flaw::Rows));
        }
        let mut cursor = Cursor::new(block, 0);
        read_block(&steps, &mut cursor, count, &mut each).map_err(|(row, flaw)| Broken::Row {
            offset,
            row: rows + row,
            flaw,
        })?;
        if cursor.left() > 0 {
            return Err(broken(Flaw::LeftOver));
        }
        rows += count;
    }
    Ok(rows)
}

/// An error comes with the number of the row in the block.
fn read_block(
    steps: &Steps,
    cursor: &mut Cursor<'_>,
    count: u64,
    each: &mut impl FnMut(&Row<'_>) -> Result<(), Flaw>,
) -> Result<(), (u64, Flaw)> {
    let mut row = Row::EMPTY;
    for index in 0..count {
        row.numbers = [None; NUMBERS];
        row.texts = [None; TEXTS];
        read_row(&steps.steps, cursor, &mut row).and_then(|()| each(&row)).map_err(|flaw| (index, flaw))?;
    }
    Ok(())
}

/// Recursion is as deep as the schema, which is bounded.
fn read_row<'a>(steps: &[Step], cursor: &mut Cursor<'a>, row: &mut Row<'a>) -> Result<(), Flaw> {
    for step in steps {
        match step {
            Step::SkipVarints(count) => cursor.skip_varints(*count)?,
            Step::SkipBytes => cursor.bytes().map(|_| ())?,
            Step::SkipFixed(size) => cursor.skip(*size)?,
            Step::SkipVarintItems { fields } => {
                cursor.blocks(*fields, |cursor, count| cursor.skip_varints(count * fields))?;
            }
            Step::SkipPairItems => cursor.blocks(2, Cursor::skip_pairs)?,
            Step::SkipItems { item, smallest } => cursor.blocks(*smallest, |cursor, count| {
                for _ in 0..count {
                    read_row(item, cursor, row)?;
                }
                Ok(())
            })?,
            Step::Optional { null, then } => match cursor.varint()? {
                // Zigzag: branch 0 is stored as 0 and branch 1 as 2.
                branch if branch == null << 1 => {}
                branch if branch == (1 - null) << 1 => read_row(then, cursor, row)?,
                _ => return Err(Flaw::Branch),
            },
            Step::Union(branches) => {
                let branch = usize::try_from(cursor.long()?).ok().and_then(|branch| branches.get(branch));
                read_row(branch.ok_or(Flaw::Branch)?, cursor, row)?;
            }
            Step::Number(place) => row.numbers[*place] = Some(cursor.long()?),
            Step::Text(place) => row.texts[*place] = Some(cursor.bytes()?),
        }
    }
    Ok(())
}

/// What a file says before its first block.
struct Header<'a> {
    schema: &'a [u8],
    codec: &'a [u8],
    sync: &'a [u8],
    /// Where the first block begins.
    end: usize,
}

fn header(bytes: &[u8]) -> Result<Header<'_>, Flaw> {
    if !bytes.starts_with(MAGIC) {
        return Err(Flaw::NotAvro);
    }
    let mut cursor = Cursor::new(bytes, MAGIC.len());
    let (mut schema, mut codec) = (None, None);
    loop {
        let count = cursor.long()?;
        if count == 0 {
            break;
        }
        if count < 0 {
            // Not to be jumped: this map is what we are here for. Its size is said again by its items.
            cursor.long()?;
        }
        // Each item has two bytes at least.
        if count.unsigned_abs() > cursor.left() as u64 / 2 {
            return Err(Flaw::Count);
        }
        for _ in 0..count.unsigned_abs() {
            let (key, value) = (cursor.bytes()?, cursor.bytes()?);
            let place = match key {
                b"avro.schema" => &mut schema,
                b"avro.codec" => &mut codec,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return Err(Flaw::KeyTwice);
            }
        }
    }
    let sync = cursor.take(SYNC)?;
    // A file without a codec is not compressed.
    Ok(Header { schema: schema.unwrap_or_default(), codec: codec.unwrap_or(b"null"), sync, end: cursor.offset() })
}
