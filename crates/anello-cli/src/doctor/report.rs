//! Renders a diagnosis as text with at most 100 columns.

use std::fmt::Write;

use super::examine::{Advice, Check, CheckStatus, Diagnosis};

/// Maximum number of columns of a line.
const WIDTH: usize = 100;

/// Width of the topic column.
const TOPIC_COLUMNS: usize = 20;

/// Maximum width of the value column.
const VALUE_COLUMNS: usize = 26;

/// Returns the report, which ends with a line break.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for section in &diagnosis.sections {
        line(&mut text, section.title);
        let longest = section.checks.iter().map(|check| check.value.chars().count()).max().unwrap_or(0);
        let value_columns = (longest + 2).min(VALUE_COLUMNS);
        section.checks.iter().for_each(|check| render_check(&mut text, check, value_columns));
        line(&mut text, "");
    }
    line(&mut text, "Driver");
    for (index, sentence) in diagnosis.verdict.iter().enumerate() {
        let mark = if index == 0 && diagnosis.works {
            "ok"
        } else if diagnosis.works {
            "  "
        } else {
            "!!"
        };
        wrapped(&mut text, &format!("  {mark}  "), sentence);
    }
    line(&mut text, "");
    if diagnosis.advice.is_empty() {
        line(&mut text, "Nothing to change.");
        return text;
    }
    line(&mut text, "Recommendations");
    for (index, advice) in diagnosis.advice.iter().enumerate() {
        render_advice(&mut text, index + 1, advice);
    }
    text
}

fn render_check(text: &mut String, check: &Check, value_columns: usize) {
    let mark = match check.mark {
        CheckStatus::Ok => "ok",
        CheckStatus::Attention => "!!",
        CheckStatus::Note => "  ",
    };
    let head = format!("  {mark}  {:<TOPIC_COLUMNS$}{:<value_columns$}", check.topic, check.value);
    // A value longer than its column moves the note to the right.
    let head = if check.value.chars().count() >= value_columns { format!("{head}  ") } else { head };
    wrapped(text, &head, &check.note);
}

fn render_advice(text: &mut String, number: usize, advice: &Advice) {
    wrapped(text, &format!("  {number:>2}. "), &advice.text);
    for command in &advice.commands {
        line(text, &format!("          {command}"));
    }
}

/// Writes the words after `head`, wrapped and indented to the end of `head`.
fn wrapped(text: &mut String, head: &str, words: &str) {
    let indent = head.chars().count();
    let mut current = head.to_owned();
    let mut is_start = true;
    for word in words.split_whitespace() {
        let fits = current.chars().count() + 1 + word.chars().count() <= WIDTH;
        if !is_start && !fits {
            line(text, &current);
            current = " ".repeat(indent);
            is_start = true;
        }
        if !is_start {
            current.push(' ');
        }
        current.push_str(word);
        is_start = false;
    }
    line(text, &current);
}

fn line(text: &mut String, content: &str) {
    // Writing to a string cannot fail.
    writeln!(text, "{}", content.trim_end()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::examine::Section;

    #[test]
    fn lines_are_aligned_and_wrapped() {
        let check = |topic: &str, mark, note: &str| Check {
            topic: topic.to_owned(),
            mark,
            value: "value".to_owned(),
            note: note.to_owned(),
        };
        let diagnosis = Diagnosis {
            works: true,
            sections: vec![Section {
                title: "Title",
                checks: vec![
                    check("short", CheckStatus::Ok, ""),
                    check("longer", CheckStatus::Attention, &"word ".repeat(30)),
                ],
            }],
            verdict: vec!["a sentence".to_owned()],
            advice: vec![Advice { text: "do ".repeat(60), commands: vec!["this --now".to_owned()] }],
        };
        let text = render(&diagnosis);
        assert!(
            text.starts_with("Title\n  ok  short               value\n  !!  longer              value"),
            "{text}"
        );
        assert!(text.contains("\n          this --now\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && line.trim_end() == line), "{text}");
        let second = text.lines().nth(3).unwrap();
        assert_eq!(second.find("word"), Some(6 + TOPIC_COLUMNS + "value  ".len()), "{text}");
    }

    #[test]
    fn healthy_host_reports_nothing_to_change() {
        let text = render(&Diagnosis { works: true, ..Diagnosis::default() });
        assert!(text.ends_with("Nothing to change.\n"), "{text}");
    }
}
