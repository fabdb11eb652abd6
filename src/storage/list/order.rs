//! The order in which a store lists keys: byte by byte, as S3 says, or folder by folder, as stores on a tree of folders
//! do. Which of the two is found out from the keys; keys that are in neither are no listing.

use std::cmp::Ordering;

/// The orders that all keys so far were in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    by_byte: bool,
    by_folder: bool,
}

impl Order {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        Self { by_byte: true, by_folder: true }
    }

    /// Notes that the store listed `right` right behind `left`; whether that can be.
    pub(super) fn allows(&mut self, left: &[u8], right: &[u8]) -> bool {
        self.by_byte &= left < right;
        self.by_folder &= by_folder(left, right) == Ordering::Less;
        self.by_byte || self.by_folder
    }

    /// Whether `key` lies behind `other`, whichever order it is.
    pub(super) fn is_behind(self, key: &[u8], other: &[u8]) -> bool {
        (!self.by_byte || key > other) && (!self.by_folder || by_folder(key, other) == Ordering::Greater)
    }

    /// Whether `key` may lie behind `other`.
    pub(super) fn may_be_behind(self, key: &[u8], other: &[u8]) -> bool {
        (self.by_byte && key > other) || (self.by_folder && by_folder(key, other) == Ordering::Greater)
    }
}

/// As if `/` came before all other bytes.
fn by_folder(left: &[u8], right: &[u8]) -> Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    left.iter().map(rank).cmp(right.iter().map(rank))
}

/// A text between `low` and `high`, about in the middle of what may lie there; `None` where there is hardly room. Keys
/// without an upper bound begin with `prefix`.
pub(super) fn between(prefix: &[u8], low: &[u8], high: Option<&[u8]>) -> Option<Vec<u8>> {
    /// Keys are mostly of these; one beyond only makes a worse middle.
    const FIRST: u8 = b' ';
    const LAST: u8 = b'~';
    let high = high.unwrap_or(prefix);
    let is_open = high == prefix;
    let mut at = low.iter().zip(high).take_while(|(left, right)| left == right).count();
    let mut above = if is_open { LAST + 1 } else { *high.get(at)? };
    loop {
        let below = low.get(at).copied().unwrap_or(FIRST);
        if below < FIRST || above > LAST + 1 {
            return None;
        }
        if above.saturating_sub(below) >= 2 {
            let mut middle = low[..at.min(low.len())].to_vec();
            middle.push(below + (above - below) / 2);
            // Not in the middle of a letter.
            return std::str::from_utf8(&middle).is_ok().then_some(middle);
        }
        // No letter between: in the upper half of what begins as `low` does.
        if at >= low.len() {
            return None;
        }
        at += 1;
        above = LAST + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_in_one_of_two_orders() {
        let mut order = Order::new();
        assert!(order.allows(b"t/a", b"t/b") && !order.is_behind(b"t/a/x", b"t/a-b"));
        assert!(order.may_be_behind(b"t/a/x", b"t/a-b") && order.may_be_behind(b"t/a-b", b"t/a/x"));
        assert!(order.allows(b"t/d/x", b"t/d-b"), "by folder");
        assert!(order.is_behind(b"t/d-b", b"t/d/x") && !order.may_be_behind(b"t/d/x", b"t/d-b"));
        assert!(!order.allows(b"t/e-b", b"t/e/x"), "then no more by byte");
        for (left, right) in [("t/b", "t/a"), ("t/a", "t/a"), ("t/a/x", "t/a")] {
            assert!(!Order::new().allows(left.as_bytes(), right.as_bytes()), "{left} {right}");
        }
    }

    #[test]
    fn a_middle_halves_what_is_left() {
        let middle = |low: &str, high: Option<&str>| {
            let found = between(b"t/", low.as_bytes(), high.map(str::as_bytes))?;
            Some(String::from_utf8(found).unwrap())
        };
        assert_eq!(middle("t/a", None).as_deref(), Some("t/p"));
        assert_eq!(middle("t/part-0", Some("t/part-8")).as_deref(), Some("t/part-4"));
        assert_eq!(middle("t/1a", Some("t/2")).as_deref(), Some("t/1p"));
        assert_eq!(middle("t/1", Some("t/2")).as_deref(), Some("t/1O"));
        assert_eq!(middle("t/1", Some("t/1!")), None);
        assert_eq!(middle("t/~~", None).as_deref(), Some("t/~~O"));
        assert_eq!(between(b"t/", "t/\u{e9}".as_bytes(), Some("t/\u{ea}".as_bytes())), None, "within a letter");
    }

    proptest! {
        #[test]
        fn a_middle_lies_between(low in "[ -~é]{1,5}", high in proptest::option::of("[ -~é]{1,5}")) {
            let (low, high) = (format!("t/{low}"), high.map(|high| format!("t/{high}")));
            prop_assume!(high.as_ref().is_none_or(|high| *high > low));
            if let Some(middle) = between(b"t/", low.as_bytes(), high.as_ref().map(String::as_bytes)) {
                prop_assert!(low.as_bytes() < &middle[..]);
                prop_assert!(high.is_none_or(|high| &middle[..] < high.as_bytes()));
            }
        }
    }
}
