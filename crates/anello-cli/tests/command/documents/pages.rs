//! Tests for the pages: the table of contents, the links, and the sources of the Rust examples.

use std::collections::BTreeMap;
use std::fs;

use super::document::{Document, documents, repository};

const TUTORIAL: &str = "docs/tutorial/";

/// The package that the tutorial describes is compiled and tested. A reader who copies every block has the same files.
#[test]
fn blocks_of_tutorial_are_whole_files() {
    let is_source = |name: &str| {
        (name.starts_with("src/") || name.starts_with("tests/"))
            && name.ends_with(".rs")
            && !name.contains(' ')
    };
    let mut files = BTreeMap::<String, Vec<String>>::new();
    let mut chapters = documents();
    chapters.retain(|document| document.path.starts_with(TUTORIAL));
    chapters.sort_by(|one, other| one.path.cmp(&other.path));
    for document in &chapters {
        let (mut file, mut block) = (None, None);
        for line in document.text.lines() {
            match (line.strip_prefix("```"), &mut block) {
                (Some(language), None) => block = Some((language, Vec::new())),
                (Some(_), Some((language, lines))) => {
                    if *language == "rust" {
                        let file =
                            file.clone().unwrap_or_else(|| panic!("{}: a block of no file", document.path));
                        files.entry(file).or_default().push(lines.join("\n"));
                    }
                    block = None;
                }
                (None, Some((_, lines))) => lines.push(line),
                (None, None) => {
                    let names = line.split('`').skip(1).step_by(2);
                    // Modules are added to `src/lib.rs` in the text.
                    for module in names.clone().filter(|name| name.starts_with("pub mod ")) {
                        files.entry("src/lib.rs".to_owned()).or_default().push(module.to_owned());
                    }
                    file = names.filter(|name| is_source(name)).last().map(str::to_owned).or(file);
                }
            }
        }
    }
    for (file, blocks) in files {
        let source = repository().join("examples/tutorial").join(&file);
        let source = fs::read_to_string(&source).unwrap_or_else(|error| panic!("{file}: {error}"));
        if file == "src/lib.rs" {
            let mut lines: Vec<_> =
                blocks.iter().flat_map(|block| block.lines()).filter(|line| !line.is_empty()).collect();
            lines.sort_unstable();
            let mut expected: Vec<_> = source.lines().filter(|line| !line.is_empty()).collect();
            expected.sort_unstable();
            assert_eq!(lines, expected, "the modules in the tutorial");
        } else {
            assert_eq!(blocks.join("\n\n") + "\n", source, "{file} in the tutorial");
        }
    }
}

#[test]
fn rust_examples_of_all_other_pages_are_doctests() {
    let crates = ["crates/anello/src/lib.rs", "crates/anello-http/src/lib.rs"];
    let sources = crates.map(|path| fs::read_to_string(repository().join(path)).expect("source")).concat();
    let mut found = 0;
    let pages = documents().into_iter().filter(|document| !document.path.starts_with(TUTORIAL));
    for document in pages {
        let (fenced, ..) = document.blocks();
        for block in fenced.iter().filter(|block| block.language.starts_with("rust")) {
            found += 1;
            let is_compiled = ["rust", "rust,no_run"].contains(&block.language.as_str());
            assert!(is_compiled, "{}: a block of type {:?} is not compiled", document.path, block.language);
            let included = sources.contains(&format!("include_str!(\"../../../{}\")", document.path));
            assert!(included, "{}: not included in any of {crates:?} as a doctest", document.path);
        }
    }
    assert!(found >= 2, "only {found} examples found");
}

/// Returns the anchor that a heading has in rendered Markdown.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[test]
fn contents_list_each_page_once() {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md")).expect("docs/SUMMARY.md");
    for document in documents() {
        if let Some(page) = document.path.strip_prefix("docs/").filter(|page| *page != "SUMMARY.md") {
            let count = summary.matches(&format!("]({page})")).count();
            assert_eq!(count, 1, "docs/SUMMARY.md must list {page} once, so that the book contains it");
        }
    }
}

#[test]
fn links_refer_to_existing_files_and_headings() {
    let root = repository();
    let (mut checked, mut broken) = (0, Vec::new());
    let mut documents = documents();
    let mut paths = vec!["CHANGELOG.md".to_owned(), "results/README.md".to_owned()];
    for entry in fs::read_dir(root.join("crates")).expect("directory") {
        paths.push(format!("crates/{}/README.md", entry.expect("entry").file_name().display()));
    }
    // A crate that is not published needs no README.md.
    paths.retain(|path| root.join(path).exists());
    documents.extend(
        paths
            .into_iter()
            .map(|path| Document { text: fs::read_to_string(root.join(&path)).expect("document"), path }),
    );
    for document in documents {
        let (.., text) = document.blocks();
        let directory = root.join(&document.path).parent().expect("directory").to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            checked += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { root.join(&document.path) } else { directory.join(file) };
            let has_heading = || {
                let target = fs::read_to_string(&path).unwrap_or_default();
                target
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading)
            };
            if !path.exists() || (!heading.is_empty() && !has_heading()) {
                broken.push(format!("{}: {link}", document.path));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(checked >= 60, "only {checked} links found");
}
