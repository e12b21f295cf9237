//! Tables in a form that can be rendered for every output: terminal, Markdown and HTML.

use crate::report::format::cut;

/// Maximum width of a line in the terminal, in columns.
pub const WIDTH: usize = 108;

/// Maximum width of a row name, and of its detail, in the terminal.
const MAX_NAME_WIDTH: usize = 20;

/// Width of a bar in the terminal.
const BAR_WIDTH: usize = 22;

/// A table. The first column contains the names of the rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Title, without markup.
    pub title: String,
    /// Explanation of the symbols in this table; empty if the title is sufficient.
    pub note: String,
    /// Column headings, starting with the heading of the names.
    pub head: Vec<String>,
    /// Rows, in output order.
    pub rows: Vec<TableRow>,
}

/// A row of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TableRow {
    /// Index of the contender that the row describes. `None` if the row does not describe a single contender.
    pub contender: Option<usize>,
    /// Name of the row.
    pub name: String,
    /// Additional text after the name, in a smaller font.
    pub detail: String,
    /// Column values. If there are fewer values than columns, the last value spans the remaining columns.
    pub values: Vec<Value>,
}

/// A value in a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Value {
    /// The value.
    pub text: String,
    /// Additional text in a smaller font, such as an interval.
    pub detail: String,
    /// Additional text that pages show as a tooltip.
    pub hint: String,
    /// Emphasis.
    pub tone: Tone,
    /// Length of a bar in front of the value, as a fraction of the longest bar.
    pub bar: Option<f64>,
    /// Numbers that pages draw as a stacked bar.
    pub parts: Vec<(Tone, usize)>,
    /// Confidence interval that pages draw under the value: lower and upper bound of a ratio.
    pub interval: Option<(f64, f64)>,
}

/// Emphasis of a value. The colour only repeats what the text says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// A figure.
    #[default]
    Plain,
    /// Significantly better.
    Good,
    /// Significantly worse.
    Bad,
    /// No significant difference, or not available.
    Muted,
    /// Too noisy for a verdict.
    Noisy,
    /// Published figure from another machine.
    Other,
    /// A sentence.
    Long,
}

impl Tone {
    /// Returns the CSS class of the tone.
    pub fn class(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some("good"),
            Tone::Bad => Some("bad"),
            Tone::Muted => Some("muted"),
            Tone::Noisy => Some("noisy"),
            Tone::Other => Some("other"),
            Tone::Long => Some("long"),
        }
    }
}

impl TableRow {
    /// Returns a row that describes no contender.
    pub fn new(name: impl Into<String>, values: Vec<Value>) -> TableRow {
        TableRow { name: name.into(), values, ..TableRow::default() }
    }

    /// Returns a row that describes a contender.
    pub fn of_contender(contender: usize, name: impl Into<String>, values: Vec<Value>) -> TableRow {
        TableRow { contender: Some(contender), ..TableRow::new(name, values) }
    }
}

impl Value {
    /// Returns a value without additional text.
    pub fn new(text: impl Into<String>) -> Value {
        Value { text: text.into(), ..Value::default() }
    }

    /// Returns a value with additional text in a smaller font.
    pub fn with_detail(text: impl Into<String>, detail: impl Into<String>) -> Value {
        Value { detail: detail.into(), ..Value::new(text) }
    }

    /// Returns a sentence.
    pub fn long(text: impl Into<String>) -> Value {
        Value::new(text).tone(Tone::Long)
    }

    /// Returns an absent value, with the reason.
    pub fn none(reason: &str) -> Value {
        Value::new(if reason.is_empty() { "–" } else { reason }).tone(Tone::Muted)
    }

    /// Sets the emphasis.
    pub fn tone(self, tone: Tone) -> Value {
        Value { tone, ..self }
    }

    /// Returns `true` if the value is absent or empty.
    pub fn is_none(&self) -> bool {
        self.text.is_empty() || self.text == "–"
    }

    fn terminal_text(&self, with_details: bool) -> String {
        let detail = if with_details && !self.detail.is_empty() { " " } else { "" };
        let text = format!("{}{detail}{}", self.text, if with_details { &self.detail } else { "" });
        self.bar.map_or(text.clone(), |part| format!("{:<BAR_WIDTH$} {text}", blocks(part)))
    }
}

impl Table {
    /// Returns a table with these column headings.
    pub fn new(title: impl Into<String>, head: &[&str], rows: Vec<TableRow>) -> Table {
        let head = head.iter().map(|heading| (*heading).to_owned()).collect();
        Table { title: title.into(), note: String::new(), head, rows }
    }

    /// Renders the table for a terminal. Columns that do not fit on one line are continued in blocks below.
    pub fn to_text(&self, with_details: bool) -> String {
        let mut text = String::new();
        push_line(&mut text, "");
        wrap(&mut text, "", &self.title);
        if !self.note.is_empty() {
            wrap(&mut text, "", &self.note);
        }
        let names = self.names();
        let heads = self.head.first().into_iter();
        let name_width = heads.chain(&names).map(|name| width(name)).max().unwrap_or(0);
        let values: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.values.iter().map(|value| value.terminal_text(with_details)).collect())
            .collect();
        let columns = self.column_widths(&values, WIDTH - name_width);
        let is_left = |column: usize| {
            self.rows.iter().any(|row| row.values.get(column).is_some_and(|value| value.bar.is_some()))
        };
        let mut next = 0;
        while next < columns.len() || next == 0 {
            let (first, mut taken) = (next, name_width);
            while next < columns.len() && (next == first || taken + columns[next] <= WIDTH) {
                taken += columns[next];
                next += 1;
            }
            let line = |name: &str, values: &[&String]| {
                let mut line = format!("{name:name_width$}");
                for (value, column) in values.iter().zip(first..next) {
                    let width = columns[column] - 2;
                    let value = cut(value, width);
                    line += &if is_left(column) {
                        format!("  {value:<width$}")
                    } else {
                        format!("  {value:>width$}")
                    };
                }
                line
            };
            push_line(
                &mut text,
                &line(
                    self.head.first().map_or("", String::as_str),
                    &self.head[1..].iter().skip(first).collect::<Vec<_>>(),
                ),
            );
            for (name, row) in names.iter().zip(&values) {
                if !self.spans(row) {
                    push_line(&mut text, &line(name, &row.iter().skip(first).collect::<Vec<_>>()));
                } else if first == 0 {
                    push_line(&mut text, &cut(&format!("{name:name_width$}  {}", row.join(" ")), WIDTH));
                }
            }
            if next == first {
                break;
            }
        }
        text
    }

    /// Returns the first column of the rows.
    fn names(&self) -> Vec<String> {
        let has_details = self.rows.iter().any(|row| !row.detail.is_empty());
        let limit = if has_details { MAX_NAME_WIDTH } else { MAX_NAME_WIDTH * 2 };
        let name = |row: &TableRow| match (cut(&row.name, limit), row.detail.as_str()) {
            (name, "") => name,
            (name, detail) => format!("{name:<MAX_NAME_WIDTH$}  {}", cut(detail, MAX_NAME_WIDTH)),
        };
        self.rows.iter().map(name).collect()
    }

    /// Returns `true` if the last value of a row spans the remaining columns.
    fn spans(&self, values: &[String]) -> bool {
        values.len() < self.head.len().saturating_sub(1)
    }

    /// Returns the widths of the columns after the first, each including the gap before it.
    fn column_widths(&self, values: &[Vec<String>], max_width: usize) -> Vec<usize> {
        let width_of = |column: usize| {
            let values = values.iter().filter(|row| !self.spans(row)).filter_map(|row| row.get(column - 1));
            let widest = values.chain([&self.head[column]]).map(|value| width(value)).max().unwrap_or(0);
            (widest + 2).min(max_width)
        };
        (1..self.head.len()).map(width_of).collect()
    }

    /// Renders the rows as a list for a terminal, for tables with sentences.
    pub fn to_list(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            push_line(&mut text, &format!("\n{}", self.title));
        }
        for row in &self.rows {
            let values: Vec<String> = row
                .values
                .iter()
                .filter(|value| !value.is_none())
                .map(|value| value.terminal_text(true))
                .collect();
            wrap(&mut text, "- ", &format!("{}: {}", row.name, values.join("; ")));
        }
        text
    }

    /// Renders the table for a document. Values that are significantly worse are bold.
    pub fn to_markdown(&self) -> String {
        let line = |values: &mut dyn Iterator<Item = String>| {
            let values: Vec<String> = values.map(|value| value.trim().replace('|', "\\|")).collect();
            format!("| {} |\n", values.join(" | "))
        };
        let mut text = format!("\n{}\n\n", self.title);
        if !self.note.is_empty() {
            text += &format!("{}\n\n", self.note);
        }
        text += &line(&mut self.head.iter().cloned());
        text += &format!("|---|{}\n", "---:|".repeat(self.head.len().saturating_sub(1)));
        for row in &self.rows {
            let values = row.values.iter().map(|value| {
                let detail =
                    if value.detail.is_empty() { String::new() } else { format!(" ({})", value.detail) };
                let text =
                    if value.is_none() { String::new() } else { format!("{}{detail}", value.text.trim()) };
                if value.tone == Tone::Bad { format!("**{text}**") } else { text }
            });
            let detail = if row.detail.is_empty() { String::new() } else { format!(" {}", row.detail) };
            text += &line(&mut [format!("{}{detail}", row.name)].into_iter().chain(values));
        }
        text
    }
}

/// Appends a line without trailing whitespace.
pub fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Appends a paragraph, wrapped to at most [`WIDTH`] columns. The first line starts with `lead`; the others are
/// indented by its width. Does not break lines at no-break spaces.
pub fn wrap(text: &mut String, lead: &str, paragraph: &str) {
    let indent = width(lead);
    let (mut line, mut is_empty) = (lead.to_owned(), true);
    for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && width(&line) + 1 + width(word) > WIDTH {
            push_line(text, &line);
            (line, is_empty) = (" ".repeat(indent), true);
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    push_line(text, &line);
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Returns a bar, drawn with a resolution of one eighth of a column.
fn blocks(part: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * (BAR_WIDTH * 8) as f64).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_length_is_proportional() {
        assert_eq!(blocks(1.0).chars().count(), BAR_WIDTH);
        assert_eq!(blocks(0.5), "█".repeat(BAR_WIDTH / 2));
        assert_eq!((blocks(0.0).as_str(), blocks(f64::NAN).as_str()), ("", ""));
        assert_eq!(blocks(1.0 / (BAR_WIDTH as f64 * 8.0)), "▏");
    }

    #[test]
    fn wide_table_is_split_into_blocks_and_long_text_is_cut() {
        let table = Table {
            title: "title".to_owned(),
            head: ["name"].into_iter().chain(["a head"; 20]).map(str::to_owned).collect(),
            rows: vec![
                TableRow::new("n".repeat(50), vec![Value::with_detail("1.00", "0.98–1.02"); 20]),
                TableRow::new("absent", vec![Value::long("reason ".repeat(30))]),
            ],
            ..Table::default()
        };
        let text = table.to_text(true);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && line == line.trim_end()), "{text}");
        assert_eq!((text.matches("0.98–1.02").count(), text.matches("a head").count()), (20, 20));
        assert_eq!(text.matches("absent").count(), 1, "{text}");
        assert!(!table.to_text(false).contains("0.98"));
    }

    #[test]
    fn markdown_marks_losses_and_escapes_bars() {
        let values = vec![Value::with_detail("▲ 1.20", "1.10–1.30").tone(Tone::Bad), Value::none("")];
        let rows = vec![TableRow::new("a|b", values)];
        let head = ["peer", "1", "50"].map(str::to_owned).to_vec();
        let table = Table { head, rows, ..Table::default() };
        assert!(
            table
                .to_markdown()
                .ends_with("| peer | 1 | 50 |\n|---|---:|---:|\n| a\\|b | **▲ 1.20 (1.10–1.30)** |  |\n")
        );
    }
}
