//! The documents of the repository, and their code blocks.

use std::fs;
use std::path::{Path, PathBuf};

/// A document, with its path in the repository.
pub struct Document {
    pub path: String,
    pub text: String,
}

/// A code block: its language and its lines. The language of an indented block is empty.
#[derive(Default)]
pub struct Block {
    pub language: String,
    pub lines: Vec<String>,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("repository")
}

/// Returns the documents. The changelog and the commands in `results` are omitted, because they refer to earlier
/// versions.
pub fn documents() -> Vec<Document> {
    let root = repository();
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "peers/README.md"];
    let mut paths: Vec<PathBuf> = top.iter().map(|name| root.join(name)).collect();
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| Document {
        text: fs::read_to_string(&path).expect("document"),
        path: path.strip_prefix(&root).expect("path in the repository").display().to_string(),
    };
    paths.into_iter().map(read).collect()
}

impl Document {
    /// Returns the fenced code blocks, the indented code blocks, and the text without the fenced blocks.
    pub fn blocks(&self) -> (Vec<Block>, Vec<Block>, String) {
        let (mut fenced, mut indented, mut text) = (Vec::new(), Vec::new(), String::new());
        let mut open: Option<Block> = None;
        let mut follows_blank = true;
        for line in self.text.lines() {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (Some(_), Some(_)) => fenced.extend(open.take()),
                (Some(block), None) => block.lines.push(line.to_owned()),
                (None, Some(language)) => {
                    open = Some(Block { language: language.to_owned(), lines: Vec::new() });
                }
                (None, None) => {
                    if let Some(code) = line.strip_prefix("    ") {
                        if follows_blank {
                            indented.push(Block::default());
                        }
                        if let Some(block) = indented.last_mut() {
                            block.lines.push(code.to_owned());
                        }
                    }
                    follows_blank = line.trim().is_empty();
                    text += line;
                    text.push('\n');
                }
            }
        }
        assert!(open.is_none(), "{}: unterminated code block", self.path);
        (fenced, indented, text)
    }

    pub fn blocks_in(&self, language: &str) -> Vec<String> {
        let (fenced, ..) = self.blocks();
        let blocks = fenced.iter().filter(|block| block.language == language);
        blocks.map(|block| block.lines.join("\n")).collect()
    }

    /// Returns the code spans of the text.
    pub fn spans(&self) -> Vec<String> {
        let (.., text) = self.blocks();
        text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
    }
}
