//! Which bytes may stand where (RFC 9110, section 5; RFC 9112, section 3).
//!
//! Whole texts are looked at eight bytes at a time where that decides most of them.

use super::words::{self, below, equal};

/// Bytes of tokens: methods and names of fields.
const TOKEN: [bool; 256] = letters_digits_and(b"!#$%&'*+-.^_`|~");

/// A class of bytes as a table.
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

/// Whether a method or the name of a field may contain this byte.
pub(super) const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Whether these bytes are a token.
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

/// Whether the value of a field may contain this byte: anything but controls, among which a tab is not counted.
pub(super) const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// Whether these bytes may be the value of a field.
pub(crate) fn is_value(bytes: &[u8]) -> bool {
    // A tab stops the fast way, too; it is rare.
    !words::any(bytes, |word| below(word, 0x20) | equal(word, 0x7f))
        || bytes.iter().copied().all(is_value_byte)
}

/// Whether a request target may contain this byte. RFC 3986 allows fewer, but browsers send `|`, `^`, `{` and the like as
/// they are. What no browser sends is refused: what is not ASCII, and a fragment, which servers differ about.
pub(super) const fn is_target_byte(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~') && byte != b'#'
}

/// Whether a name is this one, which is given in lower case.
pub(super) fn is_name<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    // In tokens this bit sets no two bytes equal but the two cases of a letter.
    let mut differs = 0;
    for index in 0..N {
        differs |= (name[index] | 0x20) ^ lower[index];
    }
    differs == 0
}

/// The same for constants: slower, of any length.
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

/// The elements of a list with commas, without the blanks around them. Quoted text is not looked for: no element that is
/// asked for contains any.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// Without the blanks and tabs at both ends.
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
    fn blanks_around_are_taken_off() {
        assert_eq!(trim(b" \t a b\t "), b"a b");
        assert_eq!(trim(b" \t "), b"");
    }

    #[test]
    fn the_fast_look_agrees_with_the_table_for_every_byte_at_every_place() {
        for length in 1..20 {
            for range in 0..length {
                for byte in 0..=255 {
                    let mut text = vec![b'x'; length];
                    text[range] = byte;
                    assert_eq!(is_value(&text), is_value_byte(byte), "{text:?}");
                }
            }
        }
        assert!(is_value(b"") && is_value(b"a\tb"));
    }

    #[test]
    fn names_differ_in_nothing_but_case() {
        for byte in (0..=255).filter(|&byte| is_token_byte(byte)) {
            for lower in (b'a'..=b'z').chain([b'-']) {
                let equal = byte.eq_ignore_ascii_case(&lower);
                assert_eq!(is_name(&[b'H', byte], &[b'h', lower]), equal, "{byte} {lower}");
            }
        }
        assert!(!is_name(b"hos", b"host") && !is_name(b"hosts", b"host"));
    }

    #[test]
    fn lists_are_split_at_commas() {
        assert_eq!(elements(b" a ,,\tb c,").collect::<Vec<_>>(), [&b"a"[..], b"", b"b c", b""]);
        assert_eq!(elements(b"").collect::<Vec<_>>(), [b""]);
        assert!(is_token(b"X-1") && !is_token(b"") && !is_token(b"a b") && !is_token(b"a:"));
    }
}
