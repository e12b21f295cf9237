//! Escaping of peer-controlled values, so that a value cannot terminate a field or a line, or send control sequences to
//! a terminal.
//!
//! The output is printable ASCII. The size limit of a field applies to the escaped text, so line length is bounded
//! regardless of the input. A truncated field ends in `...`.

use crate::h1::words::{HIGH, any, each};

/// Maximum number of output bytes per input byte, as in `\u0000`.
pub(super) const MAX_ESCAPE_BYTES: usize = 6;
/// Suffix of a truncated field. Not counted in the size limit.
pub(super) const TRUNCATION_MARK: &[u8] = b"...";

/// Appends a value to be enclosed in quotes in the common and combined formats. Escapes control bytes, quotes,
/// backslashes and non-ASCII bytes as `\xHH`, as nginx does, so that log parsers find the closing quote.
pub(super) fn push_hex_escaped(value: &[u8], max_bytes: usize, line: &mut Vec<u8>) {
    if value.len() <= max_bytes && is_plain(value) {
        return line.extend_from_slice(value);
    }
    let end = line.len().saturating_add(max_bytes);
    for &byte in value {
        let start = line.len();
        if needs_escape(byte) {
            let [high, low] = hex(byte);
            line.extend_from_slice(&[b'\\', b'x', high, low]);
        } else {
            line.push(byte);
        }
        if truncate_beyond(end, start, line) {
            return;
        }
    }
}

/// Appends a value to be enclosed in quotes as a JSON string (RFC 8259, section 7). Escapes control and non-ASCII
/// characters as `\uHHHH`, and replaces invalid UTF-8 with U+FFFD.
pub(super) fn push_json(value: &[u8], max_bytes: usize, line: &mut Vec<u8>) {
    if value.len() <= max_bytes && is_plain(value) {
        return line.extend_from_slice(value);
    }
    let end = line.len().saturating_add(max_bytes);
    for chunk in value.utf8_chunks() {
        let replaced = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for character in chunk.valid().chars().chain(replaced) {
            let start = line.len();
            push_json_character(character, line);
            if truncate_beyond(end, start, line) {
                return;
            }
        }
    }
}

fn push_json_character(character: char, line: &mut Vec<u8>) {
    match character {
        '"' | '\\' => line.extend_from_slice(&[b'\\', character as u8]),
        ' '..='~' => line.push(character as u8),
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let [high, low] = unit.to_be_bytes().map(hex);
                line.extend_from_slice(&[b'\\', b'u', high[0], high[1], low[0], low[1]]);
            }
        }
    }
}

/// If the character at `start` extends beyond `end`, replaces it with the truncation mark and returns `true`.
fn truncate_beyond(end: usize, start: usize, line: &mut Vec<u8>) -> bool {
    if line.len() <= end {
        return false;
    }
    line.truncate(start);
    line.extend_from_slice(TRUNCATION_MARK);
    true
}

/// Returns `true` if a value needs no escapes, which is the common case.
fn is_plain(value: &[u8]) -> bool {
    // For each word, the highest bit of at least one byte is set if and only if at least one byte needs an escape. The
    // result does not identify the byte, because carries and borrows can change the result for the next byte. A
    // non-ASCII byte is detected by the first term (`word`). For an ASCII byte, each of the other terms sets the
    // highest bit if the byte is in the range that the term checks.
    !any(value, |word| {
        let delete = word.wrapping_add(each(0x01));
        // XOR swaps 0x20 and 0x22 (the quote). Control bytes and the quote are then below 0x21.
        let control_or_quote = (word ^ each(0x02)).wrapping_sub(each(0x21));
        let backslash = (word ^ each(b'\\')).wrapping_sub(each(0x01));
        (word | delete | control_or_quote | backslash) & HIGH
    })
}

fn needs_escape(byte: u8) -> bool {
    !(b' '..=b'~').contains(&byte) || byte == b'"' || byte == b'\\'
}

fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_plain_checks_every_byte_at_every_position() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for position in 0..length {
                    // Neighboring bytes that need no escape. Their values differ by 1 from those that do, so a carry
                    // would change the result.
                    for neighbor in [b' ', b'!', b'#', b'[', b']', b'~'] {
                        let mut value = vec![neighbor; length];
                        value[position] = byte;
                        assert_eq!(is_plain(&value), !needs_escape(byte), "{value:?}");
                    }
                }
            }
        }
        assert!(is_plain(b""));
    }
}
