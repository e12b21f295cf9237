//! Output files of `anello load`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anello_load::LoadConfig;

use crate::common::error::{Context, usage_error};

/// An output file. Its errors contain its path.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
}

/// Creates the output files of one load, of which no two may be the same file.
#[derive(Debug, Default)]
pub struct OutputFiles {
    /// Device and number of each regular file.
    created: Vec<(u64, u64)>,
}

impl OutputFiles {
    /// Creates a file, or empties it if it exists. `{shard}` in its name is replaced with the index of the shard.
    pub fn create(&mut self, path: &Path, load: &LoadConfig) -> io::Result<OutputFile> {
        let index = load.shard.as_ref().map_or(0, |shard| shard.index);
        let path = match path.to_str() {
            Some(name) => PathBuf::from(name.replace("{shard}", &index.to_string())),
            None => path.to_owned(),
        };
        let file = self.open(&path).context(format_args!("cannot write {}", path.display()))?;
        Ok(OutputFile { path, file })
    }

    fn open(&mut self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() {
            let identity = (metadata.dev(), metadata.ino());
            if self.created.contains(&identity) {
                return Err(usage_error("another output has the same file (use a file for each output)"));
            }
            self.created.push(identity);
            file.set_len(0)?;
        }
        Ok(file)
    }
}

impl OutputFile {
    fn add_path<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.context(format_args!("cannot write {}", self.path.display()))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        self.add_path(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.add_path(flushed)
    }
}
