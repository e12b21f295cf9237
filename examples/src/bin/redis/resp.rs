//! Requests of the Redis protocol (RESP 2), and replies to them.

/// Maximum number of arguments of a request, including its name.
const MAX_ARGUMENTS: usize = 1024;

/// Maximum size of a request in bytes. A connection buffers at most this many bytes.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Maximum length of a line that contains a number.
const MAX_NUMBER_BYTES: usize = 16;

/// Maximum length of an inline request, for example one typed in `telnet`.
const MAX_INLINE_BYTES: usize = 4096;

/// Parses the request at the start of `input` and stores its arguments in `arguments`. Returns its length in bytes, or
/// `None` if it is incomplete.
///
/// # Errors
/// Returns a description if the input is not a request, or exceeds a limit.
pub fn parse<'a>(input: &'a [u8], arguments: &mut Vec<&'a [u8]>) -> Result<Option<usize>, &'static str> {
    arguments.clear();
    let Some(first) = input.first() else { return Ok(None) };
    let parsed = if *first == b'*' { parse_array(input, arguments) } else { parse_inline(input, arguments) }?;
    match parsed {
        None if input.len() > MAX_REQUEST_BYTES => Err("request too large"),
        parsed => Ok(parsed),
    }
}

fn parse_inline<'a>(input: &'a [u8], arguments: &mut Vec<&'a [u8]>) -> Result<Option<usize>, &'static str> {
    let Some(length) = input.iter().take(MAX_INLINE_BYTES).position(|byte| *byte == b'\n') else {
        return if input.len() < MAX_INLINE_BYTES { Ok(None) } else { Err("too big inline request") };
    };
    arguments.extend(input[..length].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()));
    Ok(Some(length + 1))
}

fn parse_array<'a>(input: &'a [u8], arguments: &mut Vec<&'a [u8]>) -> Result<Option<usize>, &'static str> {
    let Some((count, mut position)) = parse_number(input, 0)? else { return Ok(None) };
    if count > MAX_ARGUMENTS {
        return Err("invalid multibulk length");
    }
    for _ in 0..count {
        if input.get(position).is_some_and(|byte| *byte != b'$') {
            return Err("expected '$'");
        }
        let Some((length, start)) = parse_number(input, position)? else { return Ok(None) };
        if length > MAX_REQUEST_BYTES {
            return Err("invalid bulk length");
        }
        let end = start + length;
        let Some(line_end) = input.get(end..end + 2) else { return Ok(None) };
        if line_end != b"\r\n" {
            return Err("expected the end of an argument");
        }
        arguments.push(&input[start..end]);
        position = end + 2;
    }
    Ok(Some(position))
}

/// Parses the number in the line at `position`, after its first byte. Returns it with the position of the next line.
fn parse_number(input: &[u8], position: usize) -> Result<Option<(usize, usize)>, &'static str> {
    let line = input.get(position + 1..).unwrap_or_default();
    let mut number = 0;
    for (index, byte) in line.iter().take(MAX_NUMBER_BYTES).enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + u64::from(byte - b'0'),
            b'\r' if index > 0 => {
                return match line.get(index + 1) {
                    Some(b'\n') => {
                        let number = usize::try_from(number).map_err(|_| "invalid length")?;
                        Ok(Some((number, position + 1 + index + 2)))
                    }
                    Some(_) => Err("expected the end of a line"),
                    None => Ok(None),
                };
            }
            _ => return Err("invalid length"),
        }
    }
    if line.len() < MAX_NUMBER_BYTES { Ok(None) } else { Err("invalid length") }
}

pub fn parse_integer(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Replies that are sent together.
#[derive(Default)]
pub struct Replies(pub Vec<u8>);

impl Replies {
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    pub fn error(&mut self, text: &str) {
        self.line(b'-', format!("ERR {text}").as_bytes());
    }

    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    pub fn array(&mut self, length: usize) {
        self.number(b'*', length as i64);
    }

    /// Adds a value, or the reply for a missing one.
    pub fn bulk(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else { return self.0.extend_from_slice(b"$-1\r\n") };
        self.number(b'$', value.len() as i64);
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    /// Adds a line with a number. `write!` would take longer than the rest of a short reply.
    fn number(&mut self, kind: u8, number: i64) {
        let mut digits = [0; 20];
        let (mut start, mut rest) = (digits.len(), number.unsigned_abs());
        loop {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            start -= 1;
            digits[start] = b'-';
        }
        self.line(kind, &digits[start..]);
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.0.push(kind);
        self.0.extend_from_slice(text);
        self.0.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length and arguments of a request.
    type Parsed<'a> = (usize, Vec<&'a [u8]>);

    fn parsed(input: &[u8]) -> Result<Option<Parsed<'_>>, &'static str> {
        let mut arguments = Vec::new();
        let length = parse(input, &mut arguments)?;
        Ok(length.map(|length| (length, arguments)))
    }

    #[test]
    fn request_is_complete_only_at_its_last_byte() {
        let request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n";
        for end in 0..request.len() {
            assert_eq!(parsed(&request[..end]), Ok(None), "{end} bytes");
        }
        let arguments: Vec<&[u8]> = vec![b"SET", b"k", b"a\r\nb"];
        assert_eq!(parsed(request), Ok(Some((request.len(), arguments))));
        let pipelined = [request.as_slice(), b"PING\r\n"].concat();
        assert_eq!(parsed(&pipelined).unwrap().unwrap().0, request.len());
    }

    #[test]
    fn inline_request_is_split_at_spaces() {
        assert_eq!(parsed(b"  GET   k \r\n*"), Ok(Some((12, vec![b"GET".as_slice(), b"k"]))));
        assert_eq!(parsed(b"\r\n"), Ok(Some((2, vec![]))));
        assert_eq!(parsed(b"GET"), Ok(None));
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        let mut replies = Replies::default();
        [0, 7, -10, i64::MAX, i64::MIN].into_iter().for_each(|value| replies.integer(value));
        let expected = format!(":0\r\n:7\r\n:-10\r\n:{}\r\n:{}\r\n", i64::MAX, i64::MIN);
        assert_eq!(replies.0.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
    }

    #[test]
    fn invalid_and_oversized_requests_are_rejected() {
        let invalid: [&[u8]; 8] = [
            b"*x\r\n",
            b"*-1\r\n",
            b"*1025\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n$5000000\r\n",
            b"*1\r\n$1\r\nabc",
            b"*00000000000000000000",
            b"*1\n$1\r\n",
        ];
        for request in invalid {
            assert!(parsed(request).is_err(), "{:?}", request.escape_ascii().to_string());
        }
        assert!(parsed(&[b'a'; MAX_INLINE_BYTES]).is_err());
        let large = [b"*2\r\n$4000000\r\n", vec![b'a'; 4_000_000].as_slice(), b"\r\n$4000000\r\n"].concat();
        assert_eq!(parsed(&large), Ok(None));
        assert!(parsed(&[large, vec![b'a'; 1_000_000]].concat()).is_err());
    }
}
