//! gzip compression of stored results.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// Maximum size of decompressed text, in bytes. Protects against decompression bombs.
const MAX_TEXT_BYTES: u64 = 1 << 30;

const MAGIC: &[u8] = &[0x1f, 0x8b];

pub fn compress(text: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

pub fn decompress(bytes: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(bytes).take(MAX_TEXT_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a text file, which may be compressed.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = fs::read(path)?;
    if bytes.starts_with(MAGIC) {
        return decompress(&bytes);
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
