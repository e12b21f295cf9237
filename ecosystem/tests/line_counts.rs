//! Compares the numbers of lines in the documentation with the files.

use std::fs;
use std::path::Path;

#[test]
fn documented_line_counts_are_those_of_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("../docs/guides/ecosystem.md")).expect("the guide exists");
    let mut programs = 0;
    for row in guide.lines().filter(|line| line.starts_with("| [") && line.contains("ecosystem/anello/")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_start_matches('[').split(']').next().expect("a name");
        for (directory, cell) in [("anello", cells[4]), ("tokio", cells[5])] {
            let count = count_lines(&root.join(format!("{directory}/{name}.rs")));
            assert_eq!(cell, count.to_string(), "lines of {directory}/{name}.rs in docs/guides/ecosystem.md");
        }
        // An adapter is a link, followed by its count.
        for adapter in cells[3].split(", ").filter(|adapter| adapter.starts_with('[')) {
            let (link, count) = adapter.rsplit_once(" (").expect("a count");
            let file = link.rsplit_once("(../../ecosystem/").expect("a link").1.trim_end_matches(')');
            let expected = count_lines(&root.join(file)).to_string();
            assert_eq!(count.trim_end_matches(')'), expected, "lines of {file} in docs/guides/ecosystem.md");
        }
        programs += 1;
    }
    assert_eq!(programs, fs::read_dir(root.join("anello")).expect("the programs").count());
}

/// Counts the lines that are neither blank nor only a comment.
fn count_lines(file: &Path) -> usize {
    let text = fs::read_to_string(file).expect("the file exists");
    text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}
