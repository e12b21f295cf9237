//! Latency histograms: bounds, exact addition and encoding as text.
//!
//! A histogram is stored in the *V2 compressed* encoding of HdrHistogram, as base64: a cookie, a length, and zlib data
//! that contains a second cookie, a length, the layout, and the counts. The counts are ZigZag LEB128 numbers; a
//! negative number stands for a run of zeros.

use std::io::Read;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// Maximum latency that the histograms can record, in nanoseconds: one day, which is the maximum timeout.
const MAX_LATENCY_NS: u64 = 86_400_000_000_000;

/// Cookies at the start of an encoded histogram. The flag 0x10 denotes counts of variable length.
const V2_COOKIE: u32 = 0x1c84_9303 | 0x10;
const V2_COMPRESSED_COOKIE: u32 = 0x1c84_9304 | 0x10;
/// Cookies of older encodings, with the bits that specify the size of a count cleared.
const OLD_COOKIES: [u32; 4] = [0x1c84_9301, 0x1c84_9302, 0x1c84_9308, 0x1c84_9309];

/// Size of the header of an encoded histogram: cookie, length, offset, digits, lowest value, highest value, ratio.
const HEADER_BYTES: usize = 40;
/// Sufficient for the finest layout, which has 6 million counts of at most 9 bytes each.
const MAX_ENCODED_BYTES: u64 = 64 << 20;

/// Returns an empty histogram with the bounds of all latency histograms: 1 ns to one day, with three significant
/// digits. Longer latencies are recorded as one day.
pub fn latency_histogram() -> Histogram<u64> {
    // Copying a histogram is faster than filling its counts with zeros one by one, as it is done without optimization.
    static EMPTY: LazyLock<Histogram<u64>> = LazyLock::new(|| {
        Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are valid constants")
    });
    EMPTY.clone()
}

/// Adds `other` to `sum` bucket by bucket. If their layouts (lowest discernible value and number of significant digits)
/// differ, `sum` is converted to the coarser one. Each bucket of the finer layout lies within a single bucket of the
/// coarser layout, so each value is counted in the bucket in which it would have been recorded directly, and the order
/// of additions does not matter.
pub(crate) fn add_histogram(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    if sum.low() < other.low() || sum.sigfig() > other.sigfig() {
        let (low, high) = (sum.low().max(other.low()), sum.high().max(other.high()));
        // The bounds are valid because both inputs are valid: `high` is at least twice the `low` of either input, and
        // the input that provides `low` has at least as many significant digits as the result.
        let mut coarser = Histogram::new_with_bounds(low, high, sum.sigfig().min(other.sigfig()))
            .expect("the coarser layout of two valid histograms is valid");
        append(&mut coarser, sum);
        *sum = coarser;
    }
    append(sum, other);
}

/// Adds `other` to `sum`, whose layout must not be finer than that of `other`.
fn append(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    let auto_resize = sum.is_auto_resize();
    sum.auto(true);
    sum.add(other).expect("an auto-resizing histogram accepts any value");
    sum.auto(auto_resize);
}

/// Encodes a histogram as text.
pub(crate) fn encode(histogram: &Histogram<u64>) -> String {
    let mut encoded = Vec::new();
    let written = V2DeflateSerializer::new().serialize(histogram, &mut encoded);
    written.expect("a histogram with bounds of 64 bits fits into a vector");
    BASE64.encode(encoded)
}

/// Decodes a histogram. Returns a description of the problem if the text is not a valid histogram in V2 encoding. The
/// text is untrusted: lengths in it are checked before memory is allocated.
pub(crate) fn decode(text: &str) -> Result<Histogram<u64>, String> {
    let bytes = BASE64.decode(text).map_err(|error| format!("invalid base64: {error}"))?;
    let plain = match read_cookie(&bytes)? {
        V2_COMPRESSED_COOKIE => inflate(&bytes)?,
        _ => bytes,
    };
    check(&plain)?;
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut plain.as_slice())
        .map_err(|error| format!("cannot decode the histogram: {error}"))?;
    let mut counts = histogram.iter_recorded().map(|value| value.count_at_value());
    let total = counts.try_fold(0u64, u64::checked_add);
    total.map(|_| histogram).ok_or_else(|| "invalid histogram: sum of counts out of range".to_owned())
}

/// Reads the cookie, which identifies the encoding, and checks that it is supported.
fn read_cookie(bytes: &[u8]) -> Result<u32, String> {
    let cookie = read_u32(bytes, 0).ok_or("histogram truncated")?;
    match cookie {
        V2_COOKIE | V2_COMPRESSED_COOKIE => Ok(cookie),
        _ if OLD_COOKIES.contains(&(cookie & !0xf0)) => {
            Err("unsupported histogram encoding: older than V2 (HIST…)".to_owned())
        }
        0x0c72_124e..=0x0c72_124f => {
            Err("unsupported histogram of floating-point values (expected integers)".to_owned())
        }
        _ => Err(format!("not a histogram: unknown cookie {cookie:#010x}")),
    }
}

fn inflate(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let declared = read_u32(bytes, 4).ok_or("histogram truncated")?;
    let (compressed, found) = (&bytes[8..], bytes.len() - 8);
    if usize::try_from(declared).ok() != Some(found) {
        return Err(format!("invalid histogram: header declares {declared} compressed bytes, found {found}"));
    }
    let mut plain = Vec::new();
    let read = ZlibDecoder::new(compressed).take(MAX_ENCODED_BYTES + 1).read_to_end(&mut plain);
    read.map_err(|error| format!("cannot decompress the histogram: {error}"))?;
    match read_cookie(&plain)? {
        V2_COOKIE => Ok(plain),
        _ => Err("invalid histogram: compressed twice".to_owned()),
    }
}

/// Checks a decompressed histogram, because the decoder trusts the lengths and numbers in it.
fn check(plain: &[u8]) -> Result<(), String> {
    let (Some(counts), Some(declared)) = (plain.get(HEADER_BYTES..), read_u32(plain, 4)) else {
        return Err("histogram truncated in its header".to_owned());
    };
    let found = counts.len();
    if usize::try_from(declared).ok() != Some(found) || found as u64 > MAX_ENCODED_BYTES {
        return Err(format!("invalid histogram: header declares {declared} bytes of counts, found {found}"));
    }
    // Each count is encoded in up to nine bytes. In all but the ninth, the high bit is set if more bytes follow.
    let mut rest = counts;
    while !rest.is_empty() {
        if rest.starts_with(&[0xff; 9]) {
            // These bytes encode -2^63, which the decoder cannot negate without overflow.
            return Err("invalid histogram: too many counts".to_owned());
        }
        let length = 1 + rest.iter().take(8).take_while(|&byte| byte & 0x80 != 0).count();
        rest = rest.get(length..).ok_or("histogram truncated in the middle of a count")?;
    }
    Ok(())
}

/// Reads a big-endian number.
fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}
