//! What HTTP servers are asked for: the files of a small site, every byte of which is known, and one fixed answer.
//!
//! ```text
//!  hello.txt      13 bytes    Hello, World!
//!  page.html       6 KiB      a page of text
//!  300k.bin      300 KiB      ┐ bytes that follow from a seed and never repeat within reach,
//!  10m.bin        10 MiB      ┘ so that what is lost, doubled or shifted shows
//!  /fixed         13 bytes    Hello, World!, from the memory of servers that have a handler for it; others serve it as a
//!                             file of that name
//! ```
//!
//! A `Site` is a folder with these files. It is made anew for each run, and is removed with it.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::contender::Contender;
use crate::peers::{ROOT, Serves};

/// From so many bytes on an answer is more than a socket takes at once, and is sent as the reader reads it.
const LARGE_BYTES: usize = 64 << 10;

/// The text of the smallest file, and of the fixed answer.
const HELLO: &[u8] = b"Hello, World!";

/// When the files were last changed, in seconds since 1970: long ago (1 January 2026), so that no cache waits for them to
/// grow older, and the same in every run.
const MODIFIED_UNIX_S: u64 = 1_767_225_600;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// 13 bytes of text in a file.
    #[serde(rename = "hello.txt")]
    Hello,
    /// A page of 6 KiB in a file.
    #[serde(rename = "page.html")]
    Page,
    /// A file of 300 KiB.
    #[serde(rename = "300k.bin")]
    Large,
    /// A file of 10 MiB.
    #[serde(rename = "10m.bin")]
    Huge,
    /// The 13 bytes that a handler answers from memory; a file of that name where there is no handler.
    #[serde(rename = "/fixed")]
    Fixed,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 5] = [Target::Hello, Target::Page, Target::Large, Target::Huge, Target::Fixed];

    /// What it is called: a file by its name, the fixed answer by its path.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Target::Hello => "hello.txt",
            Target::Page => "page.html",
            Target::Large => "300k.bin",
            Target::Huge => "10m.bin",
            Target::Fixed => "/fixed",
        }
    }

    /// What a request names: `/hello.txt`.
    #[must_use]
    pub fn path(self) -> String {
        format!("/{}", self.file_name())
    }

    /// Bytes of the body.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Target::Hello | Target::Fixed => HELLO.len(),
            Target::Page => 6 << 10,
            Target::Large => 300 << 10,
            Target::Huge => 10 << 20,
        }
    }

    /// The body. Made when it is first asked for, and kept as long as the process.
    #[must_use]
    pub fn body(self) -> &'static [u8] {
        static BODIES: [OnceLock<Vec<u8>>; Target::ALL.len()] =
            [const { OnceLock::new() }; Target::ALL.len()];
        BODIES[self as usize].get_or_init(|| match self {
            Target::Hello | Target::Fixed => HELLO.to_vec(),
            Target::Page => page(self.bytes()),
            Target::Large | Target::Huge => noise(self.bytes()),
        })
    }

    /// Whether the answer is larger than what a socket takes at once, and is sent as the reader reads it.
    #[must_use]
    pub const fn is_large(self) -> bool {
        self.bytes() >= LARGE_BYTES
    }

    /// The size as people say it: "13 bytes", "6 KiB".
    #[must_use]
    pub fn size_in_words(self) -> String {
        match self.bytes() {
            bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            bytes if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} bytes"),
        }
    }

    fn file_name(self) -> &'static str {
        self.name().trim_start_matches('/')
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What an HTTP server has answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedTargets {
    /// Files, among them one that is called as the fixed answer is.
    pub files: bool,
    /// The fixed answer, by a handler.
    pub fixed: bool,
}

impl SupportedTargets {
    /// What such a list means: everything if it is empty, for then nobody has said anything.
    #[must_use]
    pub fn of(serves: &[Serves]) -> SupportedTargets {
        let has = |what| serves.is_empty() || serves.contains(&what);
        SupportedTargets { files: has(Serves::Files), fixed: has(Serves::Fixed) }
    }

    /// Whether it has an answer.
    #[must_use]
    pub fn has(self, target: Target) -> bool {
        self.files || (self.fixed && target == Target::Fixed)
    }

    /// All that may be asked for, the smallest first.
    #[must_use]
    pub fn targets(self) -> Vec<Target> {
        let mut targets: Vec<Target> = Target::ALL.into_iter().filter(|&target| self.has(target)).collect();
        targets.sort_by_key(|target| target.bytes());
        targets
    }
}

/// A folder with all of the files. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
}

impl Site {
    /// Makes the folder where temporary files go (`TMPDIR`, else `/tmp`), readable by everybody: some servers take the
    /// rights of another user. The files are written through to the disk (fsync(2)), so that the kernel does not do it
    /// while something is measured.
    ///
    /// # Errors
    /// What could not be written, and where.
    pub fn create() -> io::Result<Site> {
        let parent = std::env::temp_dir();
        let named = |what: &Path, error: io::Error| {
            let text = format!("{}: {error}; set TMPDIR to a folder with room for 11 MiB", what.display());
            io::Error::new(error.kind(), text)
        };
        let folder = tempfile::Builder::new().prefix("anello-lab-site-").tempdir_in(&parent);
        let folder = folder.map_err(|error| named(&parent, error))?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))
            .map_err(|error| named(folder.path(), error))?;
        for target in Target::ALL {
            let path = folder.path().join(target.file_name());
            write(&path, target.body()).map_err(|error| named(&path, error))?;
        }
        Ok(Site { folder })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The contender with the folder of the site in its arguments, where it asks for that; the site is made if nobody has asked
/// before.
pub(crate) fn with_site(contender: &Contender, site: &mut Option<Site>) -> Result<Contender, String> {
    let mut contender = contender.clone();
    if !contender.arguments.iter().any(|argument| argument.contains(ROOT)) {
        return Ok(contender);
    }
    let site = match site {
        Some(site) => site,
        none => none.insert(Site::create().map_err(|error| format!("has nothing to serve: {error}"))?),
    };
    let folder = site.path().to_string_lossy();
    contender.arguments.iter_mut().for_each(|argument| *argument = argument.replace(ROOT, &folder));
    Ok(contender)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_UNIX_S))?;
    file.sync_all()
}

/// A page of exactly so many bytes, with a number in every line.
fn page(bytes: usize) -> Vec<u8> {
    const END: &str = "</body>\n</html>\n";
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>A page</title></head>\n<body>\n",
    );
    for number in 1.. {
        let line =
            format!("<p>Line {number} of a page that is neither small nor large, as most pages are.</p>\n");
        if page.len() + line.len() + END.len() > bytes {
            break;
        }
        page += &line;
    }
    page += &" ".repeat(bytes - page.len() - END.len());
    page += END;
    page.into_bytes()
}

/// The same random bytes every time (xorshift64, whose state is never 0).
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes as u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_has_the_bytes_that_are_told() {
        for target in Target::ALL {
            assert_eq!(target.body().len(), target.bytes(), "{target}");
            assert_eq!(target.is_large(), target.bytes() > 300_000, "{target}");
        }
        assert_eq!(Target::ALL.map(|target| target.bytes()), [13, 6144, 307_200, 10_485_760, 13]);
        let sizes = ["13 bytes", "6 KiB", "300 KiB", "10 MiB", "13 bytes"];
        assert_eq!(Target::ALL.map(Target::size_in_words), sizes);
        let text = String::from_utf8(Target::Page.body().to_vec()).unwrap();
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"), "{text}");
        assert_eq!(Target::Large.body()[..64], noise(307_200)[..64], "the same every time");
        assert_ne!(Target::Large.body()[..64], Target::Huge.body()[..64]);
    }

    #[test]
    fn a_site_has_every_file_for_everybody_and_is_removed() {
        let site = Site::create().unwrap();
        let folder = site.path().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o755);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), Target::ALL.len());
        for target in Target::ALL {
            let path = folder.join(target.path().trim_start_matches('/'));
            assert!(fs::read(&path).unwrap() == target.body(), "{target}");
            assert_eq!(mode(&path), 0o644);
            assert!(fs::metadata(&path).unwrap().modified().unwrap() < SystemTime::now());
        }
        drop(site);
        assert!(!folder.exists());
    }

    #[test]
    fn servers_of_files_serve_the_fixed_answer_as_one_and_others_no_files() {
        let sorted = [Target::Hello, Target::Fixed, Target::Page, Target::Large, Target::Huge];
        for all in [&[][..], &[Serves::Files], &[Serves::Files, Serves::Fixed]] {
            assert_eq!(SupportedTargets::of(all).targets(), sorted, "{all:?}");
        }
        assert_eq!(SupportedTargets::of(&[Serves::Fixed]).targets(), [Target::Fixed]);
        assert_eq!(SupportedTargets::of(&[Serves::Files]), SupportedTargets { files: true, fixed: false });
    }

    #[test]
    fn targets_are_written_by_their_names() {
        for target in Target::ALL {
            let json = serde_json::to_string(&target).unwrap();
            assert_eq!(json, format!("\"{target}\""));
            assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
        }
        assert_eq!(Target::Fixed.path(), "/fixed");
    }
}
