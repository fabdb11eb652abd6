//! Avro's binary encoding over a byte slice: reads, and skips that are faster than reads.
//!
//! Nothing here trusts a length or a count: each is compared with the bytes left before it is used.

use super::Flaw;

/// The bit that says "another byte follows", in each of eight bytes.
const CONTINUES: u64 = 0x8080_8080_8080_8080;

/// A place in a slice. After an error the place is not defined and the cursor is to be dropped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    #[inline]
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The varint as it is stored, before zigzag.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, Flaw> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Flaw> {
        let mut value = 0;
        for index in 0..10 {
            let byte = *self.bytes.get(self.at + index).ok_or(Flaw::Truncated)?;
            // The tenth byte has room for one bit.
            if index == 9 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.at += index + 1;
                return Ok(value);
            }
        }
        Err(Flaw::Integer)
    }

    /// An `int` or `long`.
    #[inline]
    pub(super) fn long(&mut self) -> Result<i64, Flaw> {
        let stored = self.varint()?;
        Ok((stored >> 1).cast_signed() ^ -(stored & 1).cast_signed())
    }

    /// The next `count` bytes.
    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Flaw> {
        let taken = self.bytes[self.at..].get(..count).ok_or(Flaw::Truncated)?;
        self.at += count;
        Ok(taken)
    }

    /// A `bytes` or `string`.
    #[inline]
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Flaw> {
        let length = usize::try_from(self.long()?).map_err(|_| Flaw::Length)?;
        self.take(length).map_err(|_| Flaw::Length)
    }

    #[inline]
    pub(super) fn skip(&mut self, count: usize) -> Result<(), Flaw> {
        self.take(count).map(|_| ())
    }

    /// Skips `count` varints, eight bytes at a time: each has exactly one byte with a clear top bit. Their
    /// values are not checked.
    #[inline]
    pub(super) fn skip_varints(&mut self, mut count: u64) -> Result<(), Flaw> {
        // With eight or more to go, none of eight bytes lies behind the last one's end.
        while count >= 8 {
            let Some(eight) = self.bytes[self.at..].first_chunk::<8>() else { break };
            count -= u64::from((!u64::from_le_bytes(*eight) & CONTINUES).count_ones());
            self.at += 8;
        }
        while count > 0 {
            let byte = *self.bytes.get(self.at).ok_or(Flaw::Truncated)?;
            count -= u64::from(byte < 0x80);
            self.at += 1;
        }
        Ok(())
    }

    /// Skips `count` pairs of a varint and a `bytes`: in one load of four bytes where the key has at most
    /// two bytes and the length has one, which is nearly every bound of nearly every column.
    #[inline]
    pub(super) fn skip_pairs(&mut self, count: u64) -> Result<(), Flaw> {
        // A local copy, which stays in a register. It may run past the end until the next check.
        let mut at = self.at;
        for _ in 0..count {
            if let Some(four) = self.bytes.get(at..).and_then(<[u8]>::first_chunk::<4>) {
                let four = u32::from_le_bytes(*four);
                let key_goes_on = four >> 7 & 1;
                let key_fits = key_goes_on == 0 || four & 0x8000 == 0;
                let length = four >> (8 + 8 * key_goes_on);
                // Of the length's byte, the top bit says that more follow and the lowest that it is negative.
                if key_fits && length & 0x81 == 0 {
                    at += 2 + key_goes_on as usize + (length >> 1 & 0x3f) as usize;
                    continue;
                }
            }
            if at > self.bytes.len() {
                return Err(Flaw::Truncated);
            }
            self.at = at;
            self.varint()?;
            self.bytes()?;
            at = self.at;
        }
        if at > self.bytes.len() {
            return Err(Flaw::Truncated);
        }
        self.at = at;
        Ok(())
    }

    /// Calls `items` with the count of each block of an array or map whose items have at least `smallest`
    /// bytes each. A block with a negative count carries its size in bytes and is jumped.
    #[inline]
    pub(super) fn blocks(
        &mut self,
        smallest: u64,
        mut items: impl FnMut(&mut Self, u64) -> Result<(), Flaw>,
    ) -> Result<(), Flaw> {
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            let Ok(count) = u64::try_from(count) else {
                let size = usize::try_from(self.long()?).map_err(|_| Flaw::Length)?;
                self.skip(size).map_err(|_| Flaw::Length)?;
                continue;
            };
            // Items of size zero have no bytes to skip, however many there are said to be.
            if smallest == 0 {
                continue;
            }
            if count > self.left() as u64 / smallest {
                return Err(Flaw::Count);
            }
            items(self, count)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = vec![];
        while value >= 0x80 {
            bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        bytes.push((value & 0x7f) as u8);
        bytes
    }

    fn long(value: i64) -> Vec<u8> {
        varint(((value << 1) ^ (value >> 63)).cast_unsigned())
    }

    #[test]
    fn every_long_is_read_as_it_was_written() {
        for value in [0, 1, -1, 63, 64, -64, -65, 8191, 8192, i64::MAX, i64::MIN, 1 << 56, -(1 << 62)] {
            let bytes = long(value);
            let mut cursor = Cursor::new(&bytes, 0);
            assert_eq!(cursor.long(), Ok(value));
            assert_eq!(cursor.left(), 0);
        }
    }

    #[test]
    fn integers_that_are_cut_or_too_long_are_flaws() {
        for (bytes, flaw) in [
            (vec![], Flaw::Truncated),
            (vec![0x80], Flaw::Truncated),
            (vec![0xff; 9], Flaw::Truncated),
            (vec![0xff; 10], Flaw::Integer),
            ([vec![0xff; 9], vec![2]].concat(), Flaw::Integer),
            (vec![0x80; 40], Flaw::Integer),
        ] {
            assert_eq!(Cursor::new(&bytes, 0).long(), Err(flaw), "{bytes:?}");
        }
    }

    #[test]
    fn skipped_varints_end_where_read_ones_end() {
        let values: Vec<u64> = (0..200).map(|i| (1u64 << (i % 64)).wrapping_add(i)).collect();
        for count in 0..values.len() {
            for behind in [0usize, 1, 7, 30] {
                let mut bytes: Vec<u8> = values[..count].iter().flat_map(|value| varint(*value)).collect();
                let end = bytes.len();
                // What follows looks like the middle of a varint.
                bytes.extend(std::iter::repeat_n(0xff, behind));
                let mut cursor = Cursor::new(&bytes, 0);
                assert_eq!(cursor.skip_varints(count as u64), Ok(()));
                assert_eq!(cursor.offset(), end);
                if behind == 0 {
                    assert_eq!(cursor.skip_varints(1), Err(Flaw::Truncated));
                }
            }
        }
    }

    #[test]
    fn skipped_pairs_end_where_read_ones_end() {
        for key in [0, 1, 63, 64, 8191, 8192, 2_000_000, -1, -64, -65] {
            for length in [0u16, 1, 15, 16, 62, 63, 64, 65, 8191, 8192] {
                let pair = [long(key), long(length.into()), vec![0xff; length.into()]].concat();
                let bytes = [pair.clone(), pair.clone(), pair.clone()].concat();
                let mut cursor = Cursor::new(&bytes, 0);
                assert_eq!(cursor.skip_pairs(2), Ok(()), "key {key}, length {length}");
                assert_eq!(cursor.offset(), 2 * pair.len(), "key {key}, length {length}");
                for cut in 0..pair.len().min(70) {
                    assert!(
                        Cursor::new(&pair[..cut], 0).skip_pairs(1).is_err(),
                        "key {key}, length {length}, cut {cut}"
                    );
                }
            }
        }
        let negative = [long(1), long(-1), vec![0; 8]].concat();
        assert_eq!(Cursor::new(&negative, 0).skip_pairs(1), Err(Flaw::Length));
    }

    #[test]
    fn blocks_of_items_are_counted_jumped_or_refused() {
        let read = |bytes: &[u8], smallest: u64| {
            let mut cursor = Cursor::new(bytes, 0);
            let mut seen = 0;
            let result = cursor.blocks(smallest, |cursor, count| {
                seen += count;
                cursor.skip_varints(count)
            });
            result.map(|()| (seen, cursor.left()))
        };
        let jumped = [long(-2), long(3), vec![9; 3], long(0)].concat();
        let counted = [long(2), vec![1, 1], long(1), vec![1], long(0)].concat();
        let past_the_end = [long(-2), long(4), vec![9; 3]].concat();
        let backwards = [long(i64::MIN), long(-1), long(0)].concat();
        for (name, bytes, smallest, expected) in [
            ("a negative count is jumped by its size", jumped, 1, Ok((0, 0))),
            ("positive counts are skipped item by item", counted, 1, Ok((3, 0))),
            ("a jump past the end is refused", past_the_end, 1, Err(Flaw::Length)),
            ("a jump backwards is refused", backwards, 1, Err(Flaw::Length)),
            (
                "a huge count is refused before it is looped over",
                [long(i64::MAX), long(0)].concat(),
                1,
                Err(Flaw::Count),
            ),
            ("a count is compared with the smallest item", [long(2), vec![0; 3]].concat(), 2, Err(Flaw::Count)),
            ("a huge count of empty items is not looped over", [long(i64::MAX), long(0)].concat(), 0, Ok((0, 0))),
            ("blocks without an end are cut", long(1), 0, Err(Flaw::Truncated)),
        ] {
            assert_eq!(read(&bytes, smallest), expected, "{name}");
        }
    }
}
