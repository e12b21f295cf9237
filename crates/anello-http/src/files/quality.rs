//! Lists with quality values (RFC 9110, section 12.4.2), for example `br, gzip;q=0.8, *;q=0`.

use super::fields::FieldLines;
use crate::h1::trim;

/// Quality value in thousandths: 0 means "not acceptable", 1000 is the highest preference.
pub type Quality = u16;

/// Returns the members of a list, without parameters, and their weights. Empty members and members with a malformed
/// weight are skipped, because their meaning is unknown.
pub fn weighted<'a>(lines: &FieldLines<'a>) -> impl Iterator<Item = (&'a [u8], Quality)> {
    lines.iter().flat_map(|line| line.split(|&byte| byte == b',')).filter_map(|member| {
        let mut parts = member.split(|&byte| byte == b';').map(trim);
        let token = parts.next().filter(|token| !token.is_empty())?;
        let weight = parts.find_map(|parameter| match parameter {
            [b'q' | b'Q', b'=', weight @ ..] => Some(parse(weight)),
            _ => None,
        });
        // A member without a weight has the highest preference.
        Some((token, weight.unwrap_or(Some(1000))?))
    })
}

/// Parses `0` or `1` with up to three decimals. Returns `None` for other input and values above 1.
fn parse(weight: &[u8]) -> Option<Quality> {
    let (integer, decimals) = match weight {
        [integer @ (b'0' | b'1')] => (integer, &[][..]),
        [integer @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (integer, decimals),
        _ => return None,
    };
    let mut quality = Quality::from(integer - b'0') * 1000;
    let mut unit = 100;
    for decimal in decimals {
        quality += decimal.is_ascii_digit().then(|| Quality::from(decimal - b'0'))? * unit;
        unit /= 10;
    }
    (quality <= 1000).then_some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighted_text(lines: &[&'static str]) -> Vec<(&'static str, Quality)> {
        let lines: FieldLines<'static> = lines.iter().map(|line| line.as_bytes()).collect();
        let text = |(token, quality)| (std::str::from_utf8(token).unwrap(), quality);
        weighted(&lines).map(text).collect()
    }

    #[test]
    fn members_have_their_weights() {
        assert_eq!(
            weighted_text(&["br, gzip;q=0.8 ,*;q=0", "a;Q=1.000;b=c, d ; x=y ; q=0.05,e;q=1."]),
            [("br", 1000), ("gzip", 800), ("*", 0), ("a", 1000), ("d", 50), ("e", 1000)]
        );
    }

    #[test]
    fn malformed_members_are_skipped() {
        let malformed = "a;q=,b;q=2,c;q=1.001,d;q=0.0001,e;q=-1,f;q=.5,g;q=0,5,h;q=0.x,;q=1,, ,i;q=0.5 x";
        assert_eq!(weighted_text(&[malformed]), [("g", 0), ("5", 1000)]);
        assert!(weighted_text(&[]).is_empty() && weighted_text(&[""]).is_empty());
    }
}
