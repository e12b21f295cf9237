//! Ways to split an input into parts.

/// Inputs up to this length are split at every offset.
const SHORT_BYTES: usize = 24;

/// Returns several ways to split an input: byte by byte, at every offset if the input is short, and at pseudo-random
/// offsets. The offsets are derived from the input, so the result is deterministic.
pub fn split_variants(text: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut split_variants = vec![text.chunks(1).collect()];
    let mut random = Random::from_seed_text(text);
    if text.len() <= SHORT_BYTES {
        split_variants.extend((1..text.len()).map(|length| split(text, || length)));
    } else {
        let mut split_once = || {
            let offset = random.below(text.len());
            let mut lengths = [offset, text.len()].into_iter();
            split(text, || lengths.next().unwrap_or(text.len()))
        };
        split_variants.extend([split_once(), split_once(), split_once()]);
    }
    for max_length in [4, 40] {
        split_variants.push(split(text, || 1 + random.below(max_length)));
    }
    split_variants
}

/// Returns every way to split an input into two parts, and the split into single bytes.
pub fn all_single_splits(text: &[u8]) -> Vec<Vec<&[u8]>> {
    let in_two = (0..=text.len()).map(|offset| vec![&text[..offset], &text[offset..]]);
    in_two.chain([text.chunks(1).collect()]).collect()
}

/// Splits an input into parts of the lengths returned by `length`.
fn split(text: &[u8], mut length: impl FnMut() -> usize) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (part, tail) = rest.split_at(length().min(rest.len()));
        parts.push(part);
        rest = tail;
    }
    parts
}

/// A random number generator (xorshift), seeded with the FNV-1a hash of an input.
struct Random(u64);

impl Random {
    fn from_seed_text(text: &[u8]) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(text.iter().fold(0xcbf2_9ce4_8422_2325, step) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}
