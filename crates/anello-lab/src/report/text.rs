//! Lines and paragraphs of plain text, none wider than [`WIDTH`].

use std::fmt::Write as _;

/// No line is wider.
pub const WIDTH: usize = 108;

/// Writes a line without the blanks at its end.
pub fn push_line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    writeln!(text, "{}", line.trim_end()).ok();
}

/// Writes a paragraph broken at blanks, its first line led by `lead` and the others indented as far.
pub fn wrap(text: &mut String, lead: &str, paragraph: &str) {
    let indent = lead.chars().count();
    let mut line = lead.to_owned();
    let mut filled = indent;
    // Only at ordinary blanks: the others hold a number and its unit together.
    for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if filled > indent && filled + 1 + length > WIDTH {
            push_line(text, &line);
            line = " ".repeat(indent);
            filled = indent;
        }
        if filled > indent {
            line.push(' ');
            filled += 1;
        }
        line.push_str(word);
        filled += length;
    }
    push_line(text, &line);
}
