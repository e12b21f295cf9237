//! Tables in a form that can be rendered for every output: terminal, Markdown and HTML.

use crate::report::format::cut;

/// Maximum width of a line in the terminal, in columns.
pub const WIDTH: usize = 108;

/// Maximum width of a row name, and of its detail, in the terminal.
const MAX_NAME_WIDTH: usize = 20;

const BAR_WIDTH: usize = 22;

/// A table. The first column contains the names of the rows.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub title: String,
    /// Explanation of the symbols in this table; empty if the title is sufficient.
    pub note: String,
    /// Column headings, starting with that of the name column.
    pub head: Vec<String>,
    pub rows: Vec<TableRow>,
}

#[derive(Debug, Clone, Default)]
pub struct TableRow {
    /// Index of the contender that the row describes. `None` if the row does not describe a single contender.
    pub contender: Option<usize>,
    pub name: String,
    /// Additional text after the name, in a smaller font.
    pub detail: String,
    /// Column values. If there are fewer values than columns, the last value spans the remaining columns.
    pub values: Vec<Value>,
}

#[derive(Debug, Clone, Default)]
pub struct Value {
    pub text: String,
    /// Additional text in a smaller font, such as an interval.
    pub detail: String,
    /// Additional text that pages show as a tooltip.
    pub hint: String,
    pub tone: Tone,
    /// Length of a bar in front of the value, as a fraction of the longest bar.
    pub bar: Option<f64>,
    /// Numbers that pages draw as a stacked bar.
    pub parts: Vec<(Tone, usize)>,
    /// Lower and upper bounds of a ratio. Pages draw the interval below the value.
    pub interval: Option<(f64, f64)>,
}

/// Emphasis of a value. The colour only repeats what the text says.
#[derive(Debug, Clone, Copy, Default, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    /// There is no significant difference, or the value is not available.
    Muted,
    Noisy,
    /// Published figure from another machine.
    Other,
    Long,
}

impl Tone {
    pub fn class(self) -> Option<&'static str> {
        (self != Tone::Plain).then(|| self.into())
    }
}

impl TableRow {
    pub fn new(name: impl Into<String>, values: Vec<Value>) -> TableRow {
        TableRow { name: name.into(), values, ..TableRow::default() }
    }

    pub fn of_contender(contender: usize, name: impl Into<String>, values: Vec<Value>) -> TableRow {
        TableRow { contender: Some(contender), ..TableRow::new(name, values) }
    }
}

impl Value {
    pub fn new(text: impl Into<String>) -> Value {
        Value { text: text.into(), ..Value::default() }
    }

    pub fn with_detail(text: impl Into<String>, detail: impl Into<String>) -> Value {
        Value { detail: detail.into(), ..Value::new(text) }
    }

    pub fn long(text: impl Into<String>) -> Value {
        Value::new(text).tone(Tone::Long)
    }

    /// Returns an absent value, which is shown as the reason, or as a dash if the reason is empty.
    pub fn none(reason: &str) -> Value {
        Value::new(if reason.is_empty() { "–" } else { reason }).tone(Tone::Muted)
    }

    pub fn absent() -> Value {
        Value::none("")
    }

    pub fn tone(self, tone: Tone) -> Value {
        Value { tone, ..self }
    }

    pub fn is_none(&self) -> bool {
        self.text.is_empty() || self.text == "–"
    }

    fn terminal_text(&self, with_details: bool) -> String {
        let bar = self.bar.map(|part| format!("{:<BAR_WIDTH$} ", blocks(part))).unwrap_or_default();
        match self.detail.as_str() {
            detail if with_details && !detail.is_empty() => format!("{bar}{} {detail}", self.text),
            _ => format!("{bar}{}", self.text),
        }
    }
}

impl Table {
    pub fn new(title: impl Into<String>, head: &[&str], rows: Vec<TableRow>) -> Table {
        let head = head.iter().map(|heading| (*heading).to_owned()).collect();
        Table { title: title.into(), note: String::new(), head, rows }
    }

    /// Renders the table for a terminal. Columns that do not fit on one line follow in further blocks below.
    pub fn to_text(&self, with_details: bool) -> String {
        let mut text = "\n".to_owned();
        wrap(&mut text, "", &self.title);
        if !self.note.is_empty() {
            wrap(&mut text, "", &self.note);
        }
        let (name_head, heads) = self.head.split_first().expect("a table has a column of names");
        let names = self.names();
        let name_width = names.iter().chain([name_head]).map(|name| width(name)).max().unwrap_or(0);
        let text_of = |value: &Value| value.terminal_text(with_details);
        let rows = self.rows.iter().map(|row| row.values.iter().map(text_of).collect());
        let rows: Vec<Vec<String>> = rows.collect();
        // In these rows, the last value spans the remaining columns.
        let spans = |row: &[String]| row.len() < heads.len();
        let column_width = |(column, head): (usize, &String)| {
            let values = rows.iter().filter(|row| !spans(row)).map(|row| &row[column]);
            let widest = values.chain([head]).map(|value| width(value)).max().unwrap_or(0);
            (widest + 2).min(WIDTH - name_width)
        };
        let widths: Vec<usize> = heads.iter().enumerate().map(column_width).collect();
        let has_bars = |column: usize| {
            self.rows.iter().any(|row| row.values.get(column).is_some_and(|value| value.bar.is_some()))
        };
        let mut first = 0;
        loop {
            let mut taken = name_width;
            let fits = |column: &usize| {
                taken += widths[*column];
                *column == first || taken <= WIDTH
            };
            let block = first..first + (first..widths.len()).take_while(fits).count();
            let line = |name: &str, values: &[String]| {
                let mut line = format!("{name:name_width$}");
                for (value, column) in values[first..].iter().zip(block.clone()) {
                    let width = widths[column] - 2;
                    let value = cut(value, width);
                    line += &if has_bars(column) {
                        format!("  {value:<width$}")
                    } else {
                        format!("  {value:>width$}")
                    };
                }
                line
            };
            push_line(&mut text, &line(name_head, heads));
            for (name, row) in names.iter().zip(&rows) {
                if !spans(row) {
                    push_line(&mut text, &line(name, row));
                } else if first == 0 {
                    push_line(&mut text, &cut(&format!("{name:name_width$}  {}", row.join(" ")), WIDTH));
                }
            }
            first = block.end;
            if first == widths.len() {
                return text;
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let has_details = self.rows.iter().any(|row| !row.detail.is_empty());
        let limit = if has_details { MAX_NAME_WIDTH } else { MAX_NAME_WIDTH * 2 };
        let name = |row: &TableRow| match (cut(&row.name, limit), row.detail.as_str()) {
            (name, "") => name,
            (name, detail) => format!("{name:<MAX_NAME_WIDTH$}  {}", cut(detail, MAX_NAME_WIDTH)),
        };
        self.rows.iter().map(name).collect()
    }

    /// Renders the rows as a list for a terminal. Intended for tables that contain sentences.
    pub fn to_list(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut text = format!("\n{}\n", self.title);
        for row in &self.rows {
            let values = row.values.iter().filter(|value| !value.is_none());
            let values: Vec<String> = values.map(|value| value.terminal_text(true)).collect();
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
                let text = match (value.is_none(), value.detail.as_str()) {
                    (true, _) => String::new(),
                    (_, "") => value.text.trim().to_owned(),
                    (_, detail) => format!("{} ({detail})", value.text.trim()),
                };
                if value.tone == Tone::Bad { format!("**{text}**") } else { text }
            });
            text += &line(&mut [format!("{} {}", row.name, row.detail)].into_iter().chain(values));
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
    let (mut line, mut separator) = (lead.to_owned(), "");
    for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
        if !separator.is_empty() && width(&line) + 1 + width(word) > WIDTH {
            push_line(text, &line);
            (line, separator) = (" ".repeat(width(lead)), "");
        }
        line += separator;
        line += word;
        separator = " ";
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
        let rows = vec![
            TableRow::new("n".repeat(50), vec![Value::with_detail("1.00", "0.98–1.02"); 20]),
            TableRow::new("absent", vec![Value::long("reason ".repeat(30))]),
        ];
        let table = Table::new("title", &[&["name"][..], &["a head"; 20]].concat(), rows);
        let text = table.to_text(true);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && line == line.trim_end()), "{text}");
        assert_eq!((text.matches("0.98–1.02").count(), text.matches("a head").count()), (20, 20));
        assert_eq!(text.matches("absent").count(), 1, "{text}");
        assert!(!table.to_text(false).contains("0.98"));
    }
}
