//! Renders a diagnosis as text at most 100 columns wide.

use textwrap::{Options, WordSplitter};

use super::examine::{Check, CheckStatus, Diagnosis};

const WIDTH: usize = 100;
const TOPIC_COLUMNS: usize = 20;
const MAX_VALUE_COLUMNS: usize = 26;

pub fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for section in &diagnosis.sections {
        text += &format!("{}\n", section.title);
        let longest = section.checks.iter().map(|check| check.value.chars().count()).max().unwrap_or(0);
        let value_columns = (longest + 2).min(MAX_VALUE_COLUMNS);
        section.checks.iter().for_each(|check| render_check(&mut text, check, value_columns));
        text.push('\n');
    }
    text += "Driver\n";
    for (index, sentence) in diagnosis.verdict.iter().enumerate() {
        let mark = match (diagnosis.works, index) {
            (true, 0) => "ok",
            (true, _) => "  ",
            (false, _) => "!!",
        };
        wrapped(&mut text, &format!("  {mark}  "), sentence);
    }
    text += if diagnosis.advice.is_empty() { "\nNothing to change.\n" } else { "\nRecommendations\n" };
    for (index, advice) in diagnosis.advice.iter().enumerate() {
        wrapped(&mut text, &format!("  {:>2}. ", index + 1), &advice.text);
        advice.commands.iter().for_each(|command| text += &format!("          {command}\n"));
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
    // A value that is longer than its column moves the note to the right.
    let head = if check.value.chars().count() >= value_columns { format!("{head}  ") } else { head };
    wrapped(text, &head, &check.note);
}

/// Writes the words after `head`, wrapped and indented by the width of `head`.
fn wrapped(text: &mut String, head: &str, words: &str) {
    if words.is_empty() {
        return *text += &format!("{}\n", head.trim_end());
    }
    let indent = " ".repeat(head.chars().count());
    let options = Options::new(WIDTH).initial_indent(head).subsequent_indent(&indent);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    for line in textwrap::wrap(words, options) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::examine::{Advice, Section};

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
        let healthy = render(&Diagnosis { works: true, ..Diagnosis::default() });
        assert!(healthy.ends_with("Nothing to change.\n"), "{healthy}");
    }
}
