//! Character classes and lists in HTTP messages (RFC 9110, section 5; RFC 9112, section 3).
//!
//! Where possible, text is checked eight bytes at a time.

use super::words::{self, below, equal};

/// Token bytes, as used in methods and field names.
const TOKEN: [bool; 256] = letters_digits_and(b"!#$%&'*+-.^_`|~");

const fn letters_digits_and(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut index = 0;
    while index < others.len() {
        table[others[index] as usize] = true;
        index += 1;
    }
    table
}

/// Returns `true` if a method or a field name can contain this byte.
pub(super) const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

pub(super) const fn is_token(bytes: &[u8]) -> bool {
    let mut index = 0;
    while index < bytes.len() {
        if !is_token_byte(bytes[index]) {
            return false;
        }
        index += 1;
    }
    !bytes.is_empty()
}

/// Returns `true` if a field value can contain this byte: a tab, or any byte that is not a control byte.
pub(super) const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

pub(crate) fn is_value(bytes: &[u8]) -> bool {
    // A tab also fails the fast check, but tabs are rare.
    !words::any(bytes, |word| below(word, 0x20) | equal(word, 0x7f))
        || bytes.iter().copied().all(is_value_byte)
}

/// Returns `true` if a request target can contain this byte.
///
/// RFC 3986 allows fewer bytes, but browsers send `|`, `^`, `{` and others without encoding them. Non-ASCII bytes,
/// which no browser sends, and fragments, which servers handle inconsistently, are rejected.
pub(super) const fn is_target_byte(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~') && byte != b'#'
}

/// Returns `true` if `name` equals `lower`, ignoring case. `lower` must be in lower case.
pub(super) fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    // The bit 0x20 distinguishes the two cases of a letter. Setting it turns no other token byte into a lower-case
    // letter or `-`.
    let mut difference = 0;
    for index in 0..N {
        difference |= (name[index] | 0x20) ^ lower[index];
    }
    difference == 0
}

/// Like [`is_name`], but slower. Can be used in constants and for names of any length.
pub(super) const fn is_same(name: &[u8], lower: &[u8]) -> bool {
    let mut index = 0;
    while index < name.len() && index < lower.len() {
        if name[index].to_ascii_lowercase() != lower[index] {
            return false;
        }
        index += 1;
    }
    name.len() == lower.len()
}

/// Splits a comma-separated list and trims its elements. Quoted strings are not recognized: the elements that callers
/// look for contain none.
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_comparison_ignores_only_case() {
        for byte in (0..=255).filter(|&byte| is_token_byte(byte)) {
            for lower in (b'a'..=b'z').chain([b'-']) {
                let equal = byte.eq_ignore_ascii_case(&lower);
                assert_eq!(is_name(&[b'H', byte], &[b'h', lower]), equal, "{byte} {lower}");
            }
        }
        assert!(!is_name(b"hos", b"host") && !is_name(b"hosts", b"host"));
    }

    #[test]
    fn elements_are_split_at_commas_and_trimmed() {
        assert_eq!((trim(b" \t a b\t "), trim(b" \t ")), (&b"a b"[..], &b""[..]));
        assert_eq!(elements(b" a ,,\tb c,").collect::<Vec<_>>(), [&b"a"[..], b"", b"b c", b""]);
        assert_eq!(elements(b"").collect::<Vec<_>>(), [b""]);
        assert!(is_token(b"X-1") && !is_token(b"") && !is_token(b"a b") && !is_token(b"a:"));
    }
}
