//! Classification of bytes, eight at a time, in a general-purpose register.
//!
//! Each function sets the highest bit of every byte that matches. A carry or borrow can make the result for later bytes
//! wrong, but only after a byte that matches. The [`first`] match is therefore always correct, and the result is
//! nonzero if and only if there is a match.

pub(crate) const HIGH: u64 = each(0x80);

pub(crate) const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Marks the bytes less than `bound`, which is at most 128.
#[inline(always)]
pub(super) const fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(each(bound)) & !word & HIGH
}

#[inline(always)]
pub(super) const fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ each(byte), 1)
}

/// Marks DEL and non-ASCII bytes.
#[inline(always)]
pub(super) const fn del_or_high(word: u64) -> u64 {
    // A carry can only come from a byte that matches.
    (word | word.wrapping_add(each(1))) & HIGH
}

/// Marks all bytes except letters and `-`, the characters of most field names.
#[inline(always)]
pub(super) const fn not_letter_or_dash(word: u64) -> u64 {
    // With the highest bits cleared, no sum carries into the next byte.
    let low = word & !HIGH;
    let lower = low | each(0x20);
    let from_a = lower.wrapping_add(each(0x80 - b'a'));
    let above_z = lower.wrapping_add(each(0x7f - b'z'));
    let not_dash = (low ^ each(b'-')).wrapping_add(each(0x7f));
    (word | (!from_a | above_z) & not_dash) & HIGH
}

/// Returns the index of the first match, or 8 if there is none.
#[inline(always)]
pub(super) const fn first(hits: u64) -> usize {
    (hits.trailing_zeros() / 8) as usize
}

/// Marks all bytes except letters, digits, `-` and `.`, the characters of most host names.
#[inline(always)]
pub(super) const fn not_host(word: u64) -> u64 {
    let low = word & !HIGH;
    let from_dash = low.wrapping_add(each(0x80 - b'-'));
    let above_9 = low.wrapping_add(each(0x7f - b'9'));
    let not_slash = (low ^ each(b'/')).wrapping_add(each(0x7f));
    // Letters and the range from `-` to `9` are allowed, except for the slash.
    (word & HIGH) | not_letter_or_dash(word) & !(from_dash & !above_9 & not_slash)
}

/// Returns the index of the first matching byte, or `None` if there is none.
#[inline(always)]
pub(super) fn first_hit(text: &[u8], is_hit: impl Fn(u64) -> u64) -> Option<usize> {
    let mut rest = text;
    while let Some((word, tail)) = rest.split_first_chunk() {
        let hits = is_hit(u64::from_le_bytes(*word));
        if hits != 0 {
            return Some(text.len() - rest.len() + first(hits));
        }
        rest = tail;
    }
    let index = first(is_hit(last_word(text, rest)));
    (index < rest.len()).then_some(text.len() - rest.len() + index)
}

/// Returns the last bytes of the text, at most seven, as a word padded with zeros.
#[inline(never)]
fn last_word(text: &[u8], last: &[u8]) -> u64 {
    match text.last_chunk() {
        Some(word) if !last.is_empty() => u64::from_le_bytes(*word) >> (8 * (8 - last.len())),
        _ => last.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// Returns `true` if `hit` is nonzero for at least one word of these bytes. Fewer than eight bytes are padded with `A`.
#[inline(always)]
pub(crate) fn any(bytes: &[u8], hit: impl Fn(u64) -> u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hits = 0;
    for word in words {
        hits |= hit(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        // Checks the last eight bytes, some of them for the second time.
        hits |= match bytes.last_chunk() {
            Some(last) => hit(u64::from_le_bytes(*last)),
            None => hit(short_word(rest)),
        };
    }
    hits != 0
}

/// Returns at most seven bytes as a word padded with `A`.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    bytes.iter().fold(each(b'A'), |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks every byte value at every position, first among bytes that do not match, then followed by copies of
    /// itself.
    fn check(hit: impl Fn(u64) -> u64, is_hit: impl Fn(u8) -> bool) {
        for index in 0..8 {
            for byte in 0..=255 {
                for filler in [b'a', b'Z'] {
                    let mut bytes = [filler; 8];
                    bytes[index] = byte;
                    let hits = hit(u64::from_le_bytes(bytes));
                    assert_eq!(first(hits), if is_hit(byte) { index } else { 8 }, "{bytes:?}");
                    assert_eq!(hits != 0, is_hit(byte));
                }
                let mut bytes = [byte; 8];
                bytes[..index].fill(b'a');
                let hits = hit(u64::from_le_bytes(bytes));
                assert_eq!(first(hits), if is_hit(byte) { index } else { 8 }, "{bytes:?}");
            }
        }
    }

    #[test]
    fn finds_first_match_regardless_of_later_bytes() {
        check(|word| below(word, 0x20), |byte| byte < 0x20);
        check(|word| below(word, 0x21), |byte| byte < 0x21);
        check(|word| equal(word, 0x7f), |byte| byte == 0x7f);
        check(|word| equal(word, b'#'), |byte| byte == b'#');
        check(del_or_high, |byte| byte >= 0x7f);
        check(not_letter_or_dash, |byte| !byte.is_ascii_alphabetic() && byte != b'-');
        check(not_host, |byte| !byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'.');
    }

    #[test]
    fn checks_every_byte_of_every_length() {
        let is_hit = |word| below(word, 0x20);
        for length in 0..20 {
            let mut text = vec![b'a'; length];
            assert!(!any(&text, is_hit) && first_hit(&text, is_hit).is_none());
            for index in 0..length {
                text[index] = 1;
                assert!(any(&text, is_hit), "{index} of {length}");
                assert_eq!(first_hit(&text, is_hit), Some(index), "{length}");
                text[index] = b'a';
            }
        }
    }
}
