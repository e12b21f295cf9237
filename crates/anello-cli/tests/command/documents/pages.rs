//! Tests for the pages: the table of contents, the links, and the sources of the Rust examples.

use std::fs;

use super::document::{Document, documents, repository};

/// Returns the sources and tests of the package that the tutorial describes.
fn tutorial_sources() -> Vec<String> {
    let mut sources = Vec::new();
    for directory in ["src", "src/bin", "tests", "tests/common"] {
        for entry in fs::read_dir(repository().join("examples/tutorial").join(directory)).expect("directory")
        {
            let path = entry.expect("entry").path();
            if path.is_file() {
                sources.push(fs::read_to_string(path).expect("source"));
            }
        }
    }
    sources
}

#[test]
fn rust_examples_are_doctests_or_parts_of_tutorial() {
    let crates = ["crates/anello/src/lib.rs", "crates/anello-http/src/lib.rs"];
    let sources = crates.map(|path| fs::read_to_string(repository().join(path)).expect("source")).concat();
    let tutorial = tutorial_sources();
    let mut found = 0;
    for document in documents() {
        let (fenced, ..) = document.blocks();
        for block in fenced.iter().filter(|block| block.language.starts_with("rust")) {
            found += 1;
            if document.path.starts_with("docs/tutorial/") {
                let text = block.lines.join("\n");
                let is_part = tutorial.iter().any(|source| source.contains(&text));
                assert!(is_part, "{}: not in any file of examples/tutorial:\n{text}", document.path);
                continue;
            }
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
