//! Eight bytes at a time, in an ordinary register: what most bytes of a head are looked at with.
//!
//! A question about a word is answered with the highest bit of each byte for which it is true. Where a subtraction borrows
//! from the next byte, that answer may be wrong; but only above a byte for which it is true. So whether any byte is hit is
//! always right, and so is the [`first`] one.

/// The highest bit of each byte.
pub(super) const HIGH: u64 = each(0x80);

/// This byte eight times.
pub(super) const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Which bytes are less than `bound`, which is at most 128.
#[inline(always)]
pub(super) const fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(each(bound)) & !word & HIGH
}

/// Which bytes are `byte`.
#[inline(always)]
pub(super) const fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ each(byte), 1)
}

/// Which bytes are DEL or no ASCII.
#[inline(always)]
pub(super) const fn del_or_high(word: u64) -> u64 {
    // A carry comes from a byte that is hit.
    (word | word.wrapping_add(each(1))) & HIGH
}

/// Which bytes are neither letters nor `-`, of which most names of fields are made.
#[inline(always)]
pub(super) const fn not_letter_or_dash(word: u64) -> u64 {
    // Without the highest bits no sum reaches the next byte.
    let low = word & !HIGH;
    let lower = low | each(0x20);
    let from_a = lower.wrapping_add(each(0x80 - b'a'));
    let above_z = lower.wrapping_add(each(0x7f - b'z'));
    let not_dash = (low ^ each(b'-')).wrapping_add(each(0x7f));
    (word | (!from_a | above_z) & not_dash) & HIGH
}

/// The place of the first hit, 8 if there is none.
#[inline(always)]
pub(super) const fn first(hits: u64) -> usize {
    (hits.trailing_zeros() / 8) as usize
}

/// Which bytes are none of letters, digits, `-` and `.`, of which most hosts are made.
#[inline(always)]
pub(super) const fn not_host(word: u64) -> u64 {
    let low = word & !HIGH;
    let from_dash = low.wrapping_add(each(0x80 - b'-'));
    let above_9 = low.wrapping_add(each(0x7f - b'9'));
    let not_slash = (low ^ each(b'/')).wrapping_add(each(0x7f));
    // Letters, and what lies from the dash to the 9 but for the slash.
    (word & HIGH) | not_letter_or_dash(word) & !(from_dash & !above_9 & not_slash)
}

/// The place of the first byte that is hit. None if there is none.
#[inline(always)]
pub(super) fn first_hit(text: &[u8], is_hit: impl Fn(u64) -> u64) -> Option<usize> {
    let mut rest = text;
    while let Some((word, behind)) = rest.split_first_chunk() {
        let hits = is_hit(u64::from_le_bytes(*word));
        if hits != 0 {
            return Some(text.len() - rest.len() + first(hits));
        }
        rest = behind;
    }
    let range = first(is_hit(last_word(text, rest)));
    (range < rest.len()).then_some(text.len() - rest.len() + range)
}

/// The last bytes of the text, at most seven, as a word that is filled up with zeros.
#[inline(never)]
fn last_word(text: &[u8], last: &[u8]) -> u64 {
    match text.last_chunk() {
        Some(word) if !last.is_empty() => u64::from_le_bytes(*word) >> (8 * (8 - last.len())),
        _ => last.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// Whether `hit` is not zero for a word of these bytes; what the last word lacks is filled up with `A`.
#[inline(always)]
pub(super) fn any(bytes: &[u8], hit: impl Fn(u64) -> u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hits = 0;
    for word in words {
        hits |= hit(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        // The last eight bytes, of which some are looked at again.
        hits |= match bytes.last_chunk() {
            Some(last) => hit(u64::from_le_bytes(*last)),
            None => hit(short_word(rest)),
        };
    }
    hits != 0
}

/// At most seven bytes as a word.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    bytes.iter().fold(each(b'A'), |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every place, among bytes that are not hit and followed by one that is.
    fn check(hit: impl Fn(u64) -> u64, is_hit: impl Fn(u8) -> bool) {
        for range in 0..8 {
            for byte in 0..=255 {
                for others in [b'a', b'Z'] {
                    let mut bytes = [others; 8];
                    bytes[range] = byte;
                    let hits = hit(u64::from_le_bytes(bytes));
                    assert_eq!(first(hits), if is_hit(byte) { range } else { 8 }, "{bytes:?}");
                    assert_eq!(hits != 0, is_hit(byte));
                }
                let mut bytes = [byte; 8];
                bytes[..range].fill(b'a');
                let hits = hit(u64::from_le_bytes(bytes));
                assert_eq!(first(hits), if is_hit(byte) { range } else { 8 }, "{bytes:?}");
            }
        }
    }

    #[test]
    fn the_first_hit_is_found_whatever_follows_it() {
        check(|word| below(word, 0x20), |byte| byte < 0x20);
        check(|word| below(word, 0x21), |byte| byte < 0x21);
        check(|word| equal(word, 0x7f), |byte| byte == 0x7f);
        check(|word| equal(word, b'#'), |byte| byte == b'#');
        check(del_or_high, |byte| byte >= 0x7f);
        check(not_letter_or_dash, |byte| !byte.is_ascii_alphabetic() && byte != b'-');
        check(not_host, |byte| !byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'.');
    }

    #[test]
    fn every_byte_of_every_length_is_looked_at() {
        let is_hit = |word| below(word, 0x20);
        for length in 0..20 {
            let mut text = vec![b'a'; length];
            assert!(!any(&text, is_hit) && first_hit(&text, is_hit).is_none());
            for range in 0..length {
                text[range] = 1;
                assert!(any(&text, is_hit), "{range} of {length}");
                assert_eq!(first_hit(&text, is_hit), Some(range), "{length}");
                text[range] = b'a';
            }
        }
    }
}
