//! Queries and responses of the Domain Name System (RFC 1035).

use std::net::IpAddr;

const HEADER_BYTES: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_ANY: u16 = 255;
const CLASS_INTERNET: u16 = 1;
const TIME_TO_LIVE_S: u32 = 60;

const NO_ERROR: u8 = 0;
const FORMAT_ERROR: u8 = 1;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;
const REFUSED: u8 = 5;

/// The question of a query.
struct Question<'a> {
    /// Name in lower case, without a dot at the end.
    name: String,
    record_type: u16,
    class: u16,
    /// The question as received.
    bytes: &'a [u8],
}

/// Writes the response to a query. `find` returns the addresses of a name, or `None` if the name does not exist. Returns
/// `false` if there is no response, because the packet is not a query.
pub fn respond(
    packet: &[u8],
    find: impl FnOnce(&str) -> Option<Vec<IpAddr>>,
    response: &mut Vec<u8>,
) -> bool {
    response.clear();
    let Some(header) = packet.first_chunk::<HEADER_BYTES>() else { return false };
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return false;
    }
    let (opcode, question_count) = (header[2] >> 3 & 0xf, u16::from_be_bytes([header[4], header[5]]));
    let question = (question_count == 1).then(|| parse_question(&packet[HEADER_BYTES..])).flatten();
    let (code, addresses) = match &question {
        _ if opcode != 0 => (NOT_IMPLEMENTED, Vec::new()),
        None => (FORMAT_ERROR, Vec::new()),
        Some(question) if question.class != CLASS_INTERNET => (REFUSED, Vec::new()),
        Some(question) => match find(&question.name) {
            Some(addresses) => (NO_ERROR, addresses),
            None => (NO_SUCH_NAME, Vec::new()),
        },
    };
    let wanted = question.as_ref().map_or(0, |question| question.record_type);
    let answers: Vec<IpAddr> = addresses
        .into_iter()
        .filter(|address| wanted == TYPE_ANY || wanted == record_type(address))
        .collect();
    response.extend_from_slice(&header[..2]);
    // A response, authoritative, with the opcode and the "recursion desired" flag of the query.
    response.push(0x84 | header[2] & 0x79);
    response.push(code);
    response.extend_from_slice(&u16::from(question.is_some()).to_be_bytes());
    response.extend_from_slice(&(answers.len() as u16).to_be_bytes());
    response.extend_from_slice(&[0; 4]);
    response.extend_from_slice(question.map_or(&[], |question| question.bytes));
    for address in answers {
        // A pointer to the name in the question.
        response.extend_from_slice(&(0xc000 | HEADER_BYTES as u16).to_be_bytes());
        response.extend_from_slice(&record_type(&address).to_be_bytes());
        response.extend_from_slice(&CLASS_INTERNET.to_be_bytes());
        response.extend_from_slice(&TIME_TO_LIVE_S.to_be_bytes());
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        response.extend_from_slice(&(octets.len() as u16).to_be_bytes());
        response.extend_from_slice(&octets);
    }
    true
}

fn record_type(address: &IpAddr) -> u16 {
    if address.is_ipv4() { TYPE_A } else { TYPE_AAAA }
}

/// Returns `None` if the question is invalid. A question contains no pointers, because no name precedes it.
fn parse_question(bytes: &[u8]) -> Option<Question<'_>> {
    let (mut name, mut position) = (String::new(), 0);
    loop {
        let length = usize::from(*bytes.get(position)?);
        position += 1;
        if length == 0 {
            break;
        }
        let label = bytes.get(position..position + length).filter(|_| length < 64)?;
        position += length;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&label.escape_ascii().to_string().to_ascii_lowercase());
    }
    let fields: &[u8; 4] = bytes.get(position..)?.first_chunk()?;
    // The name, including the length of its last label, has at most 255 bytes.
    (position <= 255).then(|| Question {
        name,
        record_type: u16::from_be_bytes([fields[0], fields[1]]),
        class: u16::from_be_bytes([fields[2], fields[3]]),
        bytes: &bytes[..position + 4],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03WWW\x07example\x03com\0\0\x01\0\x01";

    fn response_to(packet: &[u8]) -> Option<Vec<u8>> {
        let mut response = Vec::new();
        let find = |name: &str| (name == "www.example.com").then(|| vec!["192.0.2.1".parse().unwrap()]);
        respond(packet, find, &mut response).then_some(response)
    }

    #[test]
    fn address_is_found_regardless_of_case() {
        let mut expected = b"\x12\x34\x85\0\0\x01\0\x01\0\0\0\0".to_vec();
        expected.extend_from_slice(&QUERY[HEADER_BYTES..]);
        expected.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
        assert_eq!(response_to(QUERY), Some(expected));
    }

    #[test]
    fn other_types_have_no_answer_and_other_names_do_not_exist() {
        let mut query = QUERY.to_vec();
        let type_position = query.len() - 3;
        query[type_position] = TYPE_AAAA as u8;
        let response = response_to(&query).expect("a response");
        assert_eq!((response[3], &response[6..8]), (NO_ERROR, [0, 0].as_slice()));
        query[13] = b'X';
        assert_eq!(response_to(&query).expect("a response")[3], NO_SUCH_NAME);
    }

    #[test]
    fn truncated_and_changed_queries_do_not_panic() {
        for end in 0..QUERY.len() {
            let response = response_to(&QUERY[..end]);
            assert_eq!(response.map(|response| response[3]), (end >= HEADER_BYTES).then_some(FORMAT_ERROR));
        }
        for position in 0..QUERY.len() {
            for value in 0..=255 {
                let mut query = QUERY.to_vec();
                query[position] = value;
                response_to(&query);
            }
        }
    }
}
