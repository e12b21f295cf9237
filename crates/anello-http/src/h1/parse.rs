//! Parser for complete and valid heads, which handles nearly all requests.
//!
//! It checks eight bytes at a time ([`words`](super::words)). If anything is invalid or uncommon, it returns `None`,
//! and the [`Scanner`](super::scanner::Scanner) checks the same bytes one by one to determine the rejection. The parser
//! must therefore accept nothing that the scanner rejects; tests compare the two.
//!
//! httparse uses the same technique but accepts more input, such as bare line feeds, so its result would need a second
//! check. It also needs 50% more instructions for a request with four fields. The tests use it as an independent
//! parser.

use super::fields::{FieldRange, Fields};
use super::framing::FramingFields;
use super::head::{Parts, Repetition};
use super::rejection::Rejection;
use super::syntax::{is_token_byte, is_value_byte, trim};
use super::target;
use super::types::{Limits, MAX_METHOD_BYTES, Method, Version};
use super::words::{below, del_or_high, equal, first_hit, not_letter_or_dash};

const LINE_TAIL_BYTES: usize = b" HTTP/1.1\r\n".len();

/// Parses the head at the start of `input` into `head` and returns its length. Returns `None` if the head is incomplete
/// or not known to be valid; the contents of `head` are then unspecified.
///
/// Clients often send the same fields again, and `head` still contains the fields of the previous request. If the new
/// fields are identical byte for byte, only the request line is parsed; if that is identical too, nothing is.
pub(super) fn parse(input: &[u8], limits: &Limits, head: &mut Parts) -> Result<Option<usize>, Rejection> {
    let input = &input[..input.len().min(limits.max_head_bytes)];
    if let Some(bytes) = head.find_same(input, limits) {
        head.repetition = Repetition::All;
        return Ok(Some(bytes));
    }
    head.uri = None;
    let Some((line, version)) = request_line(input) else { return Ok(None) };
    if line.bytes - 2 > limits.max_request_line_bytes {
        return Ok(None);
    }
    let (text, section) = input.split_at(line.bytes);
    let section_bytes = if head.has_same_fields(section, version, limits) {
        head.repetition = Repetition::Fields;
        head.section_bytes as usize
    } else {
        head.clear();
        head.repetition = Repetition::Nothing;
        head.version = version;
        let mut framing_fields = FramingFields::default();
        let Some(bytes) = fields(section, limits.max_fields, &mut head.fields, &mut framing_fields) else {
            return Ok(None);
        };
        head.fields.bytes.extend_from_slice(&section[..bytes]);
        head.section_bytes = bytes as u32;
        decide_framing(&framing_fields, limits, head)?;
        bytes
    };
    head.method = Method::of(&text[..line.method_end]);
    (head.method_end, head.target_end) = (line.method_end as u32, line.target_end as u32);
    head.fields.bytes.truncate(section_bytes);
    head.fields.bytes.extend_from_slice(text);
    let (form, host) = target::form(head.method, &text[line.method_end + 1..line.target_end])?;
    head.form = form;
    let target_start = head.method_end + 1;
    (head.host_start, head.host_end) = match host.end {
        0 => (0, 0),
        end => (target_start + host.start, target_start + end),
    };
    Ok(Some(line.bytes + section_bytes))
}

struct Line {
    method_end: usize,
    target_end: usize,
    /// Includes the line ending.
    bytes: usize,
}

#[inline]
fn request_line(input: &[u8]) -> Option<(Line, Version)> {
    let method_end = if input.starts_with(b"GET ") { 3 } else { method_end(input)? };
    let target = input.get(method_end + 1..)?;
    let is_hit = |word| below(word, b' ' + 1) | equal(word, b'#') | del_or_high(word);
    let target_bytes = first_hit(target, is_hit)?;
    let (_, tail) = target.split_at_checked(target_bytes)?;
    let version_start = u64::from_le_bytes(*tail.first_chunk()?);
    let version = match tail.get(8..LINE_TAIL_BYTES)? {
        b"1\r\n" if version_start == u64::from_le_bytes(*b" HTTP/1.") => Version::Http11,
        b"0\r\n" if version_start == u64::from_le_bytes(*b" HTTP/1.") => Version::Http10,
        // A higher minor version is processed as the highest one that this server implements (RFC 9110, section 2.5).
        [b'2'..=b'9', b'\r', b'\n'] if version_start == u64::from_le_bytes(*b" HTTP/1.") => Version::Http11,
        _ => return None,
    };
    let target_end = method_end + 1 + target_bytes;
    (target_bytes > 0)
        .then_some((Line { method_end, target_end, bytes: target_end + LINE_TAIL_BYTES }, version))
}

fn method_end(input: &[u8]) -> Option<usize> {
    let end = input.iter().take(MAX_METHOD_BYTES + 1).position(|&byte| !is_token_byte(byte))?;
    (end > 0 && input[end] == b' ').then_some(end)
}

/// Parses the fields and the empty line after them. Returns their length.
#[inline(never)]
fn fields(
    section: &[u8],
    limit: usize,
    fields: &mut Fields,
    framing_fields: &mut FramingFields,
) -> Option<usize> {
    let mut rest = section;
    let mut index = 0;
    loop {
        let line_start = (section.len() - rest.len()) as u32;
        let (name, tail) = split_name(rest)?;
        let value = match tail {
            // Nearly all fields have exactly one space after the colon.
            [b':', b' ', value @ ..] => value,
            [b':', value @ ..] => value,
            [b'\r', b'\n', body @ ..] if name.is_empty() => return Some(section.len() - body.len()),
            _ => return None,
        };
        if name.is_empty() || index == limit {
            return None;
        }
        let (value, next) = split_line(value)?;
        let value_start = (value.as_ptr().addr() - section.as_ptr().addr()) as u32;
        framing_fields.record(index as u32, name, value);
        let name = line_start..line_start + name.len() as u32;
        fields.push(FieldRange { name, value: value_start..value_start + value.len() as u32 });
        index += 1;
        rest = next;
    }
}

/// Splits a line into the name at its start, which may be empty, and the rest.
#[inline]
fn split_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = first_hit(text, not_letter_or_dash)?;
    let tail = text.get(length..)?;
    if let [byte, ..] = tail
        && is_token_byte(*byte)
    {
        return split_uncommon_name(text);
    }
    Some((&text[..length], tail))
}

/// Like [`split_name`], but byte by byte, for names with digits, dots and other characters.
#[cold]
fn split_uncommon_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    text.split_at_checked(text.iter().position(|&byte| !is_token_byte(byte))?)
}

/// Splits `text`, which starts with a value, into the value without surrounding whitespace and the next line.
#[inline]
fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = first_hit(text, |word| below(word, b' ') | equal(word, 0x7f))?;
    let value = text.get(..length)?;
    let [b'\r', b'\n', next @ ..] = &text[length..] else { return split_uncommon_line(text) };
    match value {
        [b' ', ..] | [.., b' '] => Some((trim(value), next)),
        _ => Some((value, next)),
    }
}

/// Like [`split_line`], but byte by byte, for values with tabs.
#[cold]
fn split_uncommon_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (value, tail) = text.split_at_checked(text.iter().position(|&byte| !is_value_byte(byte))?)?;
    let [b'\r', b'\n', next @ ..] = tail else { return None };
    Some((trim(value), next))
}

/// Decides the framing once all fields are known, so that a rejection does not depend on their order.
fn decide_framing(fields: &FramingFields, limits: &Limits, head: &mut Parts) -> Result<(), Rejection> {
    let decision = fields.decide(head.version, limits.max_body_bytes)?;
    head.host = fields.host;
    if head.host.and_then(|host| head.fields.get(host)).is_some_and(|host| !target::is_host(host)) {
        return Err(Rejection::bad("invalid Host field (expected a host with an optional port)"));
    }
    head.decision = decision;
    Ok(())
}
