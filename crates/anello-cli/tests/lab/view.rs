//! Tests for the view of `anello lab run`, on a pseudo-terminal.

use std::fs;

use crate::common::pty::Pty;

/// Starts a short run that writes its reports to `out`.
fn lab(out: &str, arguments: &[&str]) -> Option<Pty> {
    let common = ["lab", "run", "--smoke", "--skip-checks", "--connections", "1", "--out", out];
    Pty::anello("xterm", &[&common, arguments].concat())
}

/// Returns whether the table has a row with medians: a rate, two times and the number of slices.
fn has_medians(text: &str) -> bool {
    text.lines().any(|line| {
        let words: Vec<&str> = line.trim_end_matches('│').split_whitespace().collect();
        let [.., rate, cpu, _, p99, _, slices] = words[..] else { return false };
        let is_number = |word: &str| word.replace(',', "").parse::<f64>().is_ok_and(|number| number > 0.0);
        slices.contains('/') && [rate, cpu, p99].into_iter().all(is_number)
    })
}

#[test]
fn view_shows_medians_and_q_ends_with_report() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let Some(mut pty) = lab(out.to_str().unwrap(), &["--rounds", "1000"]) else { return };
    pty.wait("medians", |pty| has_medians(&pty.text()));
    for expected in ["smoke: ", "slices, ", " left", "measuring ", "load CPU", "p99.9", "medians so far"] {
        assert!(pty.text().contains(expected), "{expected} is missing in\n{}", pty.text());
    }
    assert!(pty.is_view());
    pty.press("q");
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.contains("Resume: "), "{code:?} {text}");
    let mut names = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.ends_with(".html")));
}

#[test]
fn progress_bar_replaces_view() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("reports");
    let Some(mut pty) = lab(out.to_str().unwrap(), &["--rounds", "1000", "--no-tui"]) else { return };
    pty.wait("progress bar", |pty| pty.is_view() || pty.text().contains("1 connection, "));
    assert!(!pty.is_view());
    pty.press("\x03");
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.contains("Resume: "), "{code:?} {text}");
}
