//! What came from a peer, written so that it can neither end a field nor a line, nor move a terminal's cursor.
//!
//! All that is written is printable ASCII. A field is bounded by what is written of it, so that a buffer's size bounds a
//! line whatever the peer sends; a field that is cut ends in `...`.

/// Most bytes that one byte of a value takes: `\u0000`.
pub(super) const MAX_ESCAPE_BYTES: usize = 6;

/// What stands at the end of a field that was cut. It comes on top of the limit.
pub(super) const TRUNCATION_MARK: &[u8] = b"...";

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends a value for between quotes in the common and the combined format: control bytes, quotes, backslashes and all
/// that is not ASCII as `\xHH`, the way that nginx does it, which programs that look for the closing quote understand.
pub(super) fn push_hex_escaped(value: &[u8], limit_bytes: usize, line: &mut Vec<u8>) {
    if value.len() <= limit_bytes && is_plain(value) {
        return line.extend_from_slice(value);
    }
    let mut room_bytes = limit_bytes;
    for &byte in value {
        let [high, low] = hex(byte);
        let escaped = [b'\\', b'x', high, low];
        let escaped_part = if needs_escape(byte) { &escaped[..] } else { std::slice::from_ref(&byte) };
        if !push_escaped(escaped_part, &mut room_bytes, line) {
            return;
        }
    }
}

/// Appends the inside of a JSON string (RFC 8259, section 7): control characters and all that is not ASCII as `\uHHHH`,
/// bytes that are not UTF-8 as U+FFFD.
pub(super) fn push_json(value: &[u8], limit_bytes: usize, line: &mut Vec<u8>) {
    if value.len() <= limit_bytes && is_plain(value) {
        return line.extend_from_slice(value);
    }
    let mut room_bytes = limit_bytes;
    for chunk in value.utf8_chunks() {
        let replaced = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
        for character in chunk.valid().chars().chain(replaced) {
            let mut escaped = [0; 2 * MAX_ESCAPE_BYTES];
            let length = escape_json(character, &mut escaped);
            if !push_escaped(&escaped[..length], &mut room_bytes, line) {
                return;
            }
        }
    }
}

/// Writes one character for a JSON string and says how many bytes that took.
fn escape_json(character: char, escaped: &mut [u8; 2 * MAX_ESCAPE_BYTES]) -> usize {
    match character {
        '"' | '\\' => {
            escaped[..2].copy_from_slice(&[b'\\', character as u8]);
            2
        }
        ' '..='~' => {
            escaped[0] = character as u8;
            1
        }
        _ => {
            let mut units = [0; 2];
            let units = character.encode_utf16(&mut units);
            for (unit, slot) in units.iter().zip(escaped.chunks_exact_mut(MAX_ESCAPE_BYTES)) {
                let [high, low] = unit.to_be_bytes().map(hex);
                slot.copy_from_slice(&[b'\\', b'u', high[0], high[1], low[0], low[1]]);
            }
            units.len() * MAX_ESCAPE_BYTES
        }
    }
}

/// Appends a piece whole, or the mark of a cut and says false.
fn push_escaped(escaped_part: &[u8], room_bytes: &mut usize, line: &mut Vec<u8>) -> bool {
    if escaped_part.len() > *room_bytes {
        line.extend_from_slice(TRUNCATION_MARK);
        return false;
    }
    *room_bytes -= escaped_part.len();
    line.extend_from_slice(escaped_part);
    true
}

/// Whether a value may be copied as it is, which nearly all may. Looks at eight bytes at a time; the last eight overlap
/// those before, so that no rest is left.
fn is_plain(value: &[u8]) -> bool {
    let Some(last) = value.last_chunk() else {
        return !value.iter().any(|&byte| needs_escape(byte));
    };
    let (words, _) = value.as_chunks();
    let found = words.iter().fold(escape_mask(last), |found, word| found | escape_mask(word));
    found & (EVERY_BYTE * 0x80) == 0
}

/// One in each byte of a word.
const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;

/// A word in which the highest bit of some byte is set if, and only if, some byte needs an escape: which one it is cannot
/// be told, as sums and differences carry over to the next byte. Where the highest bit of a byte was set before, it stays
/// in the first term. Else it gets set by what is not in the range of each term.
fn escape_mask(word: &[u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(*word);
    let delete = word.wrapping_add(EVERY_BYTE);
    // Exchanges the places of 0x20 and 0x22, of which the second is the quote: all that is to be found lies below 0x21.
    let control_or_quote = (word ^ (EVERY_BYTE * 0x02)).wrapping_sub(EVERY_BYTE * 0x21);
    let backslash = (word ^ (EVERY_BYTE * u64::from(b'\\'))).wrapping_sub(EVERY_BYTE);
    word | delete | control_or_quote | backslash
}

fn needs_escape(byte: u8) -> bool {
    !(b' '..=b'~').contains(&byte) || byte == b'"' || byte == b'\\'
}

fn hex(byte: u8) -> [u8; 2] {
    [HEX_DIGITS[usize::from(byte >> 4)], HEX_DIGITS[usize::from(byte & 15)]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex_escaped(value: &[u8], limit_bytes: usize) -> String {
        let mut line = Vec::new();
        push_hex_escaped(value, limit_bytes, &mut line);
        String::from_utf8(line).unwrap()
    }

    fn json(value: &[u8], limit_bytes: usize) -> String {
        let mut line = Vec::new();
        push_json(value, limit_bytes, &mut line);
        String::from_utf8(line).unwrap()
    }

    /// The bytes that a value of the combined format stands for.
    fn hex_unescaped(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            if first == b'\\' {
                assert_eq!(after[0], b'x');
                bytes.push(u8::from_str_radix(std::str::from_utf8(&after[1..3]).unwrap(), 16).unwrap());
                rest = &after[3..];
            } else {
                bytes.push(first);
            }
        }
        bytes
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        let plain = b" !#$%&'()*+,-./09:;<=>?@AZ[]^_`az{|}~";
        assert_eq!(hex_escaped(plain, 100).as_bytes(), plain);
        assert_eq!(json(plain, 100).as_bytes(), plain);
    }

    #[test]
    fn every_byte_is_found_at_every_place() {
        for byte in 0..=u8::MAX {
            for length in 1..20 {
                for slot in 0..length {
                    // Neighbours at both ends of what is plain, which carries would reach.
                    for neighbour in [b' ', b'!', b'#', b'[', b']', b'~'] {
                        let mut value = vec![neighbour; length];
                        value[slot] = byte;
                        assert_eq!(is_plain(&value), !needs_escape(byte), "{value:?}");
                    }
                }
            }
        }
        assert!(is_plain(b""));
    }

    #[test]
    fn what_could_end_a_field_or_a_line_is_escaped() {
        assert_eq!(
            hex_escaped(b"a\"b\\c\r\n\x00\x1b\x7f\xc3\xa4", 100),
            r"a\x22b\x5cc\x0d\x0a\x00\x1b\x7f\xc3\xa4"
        );
        assert_eq!(
            json("a\"b\\c\r\n\0\u{1b}\u{7f}ä\u{2028}🦀".as_bytes(), 100),
            r#"a\"b\\c\u000d\u000a\u0000\u001b\u007f\u00e4\u2028\ud83e\udd80"#
        );
        assert_eq!(json(b"a\xff\xc3z", 100), r"a\ufffd\ufffdz");
    }

    #[test]
    fn a_field_is_cut_between_characters() {
        assert_eq!(hex_escaped(b"abcdef", 6), "abcdef");
        assert_eq!(hex_escaped(b"abcdefg", 6), "abcdef...");
        assert_eq!(hex_escaped(b"abc\ndef", 6), "abc...");
        assert_eq!(json(b"ab\ncdef", 8), r"ab\u000a...");
        assert_eq!(json("🦀".as_bytes(), 11), "...");
        assert_eq!(json("🦀".as_bytes(), 12), r"\ud83e\udd80");
        assert_eq!(hex_escaped(b"", 0), "");
    }

    proptest! {
        #[test]
        fn hexed_values_stand_for_the_same_bytes(value: Vec<u8>) {
            let text = hex_escaped(&value, usize::MAX);
            prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"'), "{text:?}");
            prop_assert_eq!(hex_unescaped(&text), value);
        }

        #[test]
        fn json_values_stand_for_the_same_text(value: Vec<u8>, text: String) {
            for value in [&value[..], text.as_bytes()] {
                let quoted = format!("\"{}\"", json(value, usize::MAX));
                prop_assert!(quoted.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{quoted:?}");
                let parsed: String = serde_json::from_str(&quoted).unwrap();
                prop_assert_eq!(&parsed, &String::from_utf8_lossy(value));
            }
        }

        #[test]
        fn no_field_is_longer_than_its_limit(value: Vec<u8>, limit_bytes in 0usize..100) {
            let longest_bytes = limit_bytes + TRUNCATION_MARK.len();
            for text in [hex_escaped(&value, limit_bytes), json(&value, limit_bytes)] {
                prop_assert!(text.len() <= longest_bytes, "{text:?}");
                prop_assert!(text.len() <= value.len() * MAX_ESCAPE_BYTES || text.ends_with("..."), "{text:?}");
            }
            let quoted = format!("\"{}\"", json(&value, limit_bytes));
            prop_assert!(serde_json::from_str::<String>(&quoted).is_ok(), "{quoted}");
        }
    }
}
