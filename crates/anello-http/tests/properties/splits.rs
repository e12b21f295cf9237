//! Where bytes may be cut.

/// Texts up to this length are cut at every place.
const SHORT_BYTES: usize = 24;

/// Several ways to cut a text: byte by byte, once at every place if it is short, and at places that are drawn from the text
/// itself, so that the same text is always cut in the same ways.
pub fn split_variants(text: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut split_variants = vec![text.chunks(1).collect()];
    let mut random = Random::of(text);
    if text.len() <= SHORT_BYTES {
        split_variants.extend((1..text.len()).map(|place| cut(text, || place)));
    } else {
        let mut cut_once = || {
            let place = random.below(text.len());
            let mut places = [place, text.len()].into_iter();
            cut(text, || places.next().unwrap_or(text.len()))
        };
        split_variants.extend([cut_once(), cut_once(), cut_once()]);
    }
    for longest in [4, 40] {
        split_variants.push(cut(text, || 1 + random.below(longest)));
    }
    split_variants
}

/// Every way to cut a text once, and byte by byte.
pub fn all_single_splits(text: &[u8]) -> Vec<Vec<&[u8]>> {
    let once = (0..=text.len()).map(|place| vec![&text[..place], &text[place..]]);
    once.chain([text.chunks(1).collect()]).collect()
}

/// Pieces of these lengths, until nothing is left.
fn cut(text: &[u8], mut length: impl FnMut() -> usize) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(length().min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Numbers that hang on a text alone (xorshift on its FNV-1a hash).
struct Random(u64);

impl Random {
    fn of(text: &[u8]) -> Self {
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
