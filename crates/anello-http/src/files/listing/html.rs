//! Directory listing as an HTML page. The page is responsive, has light and dark color schemes, can be used with a
//! keyboard and a screen reader, and loads no scripts, images or web fonts.

use super::super::path::encoded_name;
use super::super::stamp::Timestamp;
use super::entries::{Contents, Entry, Listing};

const STYLE: &str = include_str!("style.css");

/// SVG icons, defined once and referenced by each row.
const SYMBOLS: &str = "<svg width=\"0\" height=\"0\" aria-hidden=\"true\">\
    <symbol id=\"directory\" viewBox=\"0 0 16 16\"><path d=\"M1.5 3.5h4.6l1.6 1.7h6.8v7.3a1 1 0 0 1-1 1h-11a1 1 0 0 1-1-1z\"/>\
    </symbol><symbol id=\"file\" viewBox=\"0 0 16 16\"><path d=\"M3.5 1.5h6l3 3v10h-9zM9.5 1.5v3h3\"/></symbol>\
    <symbol id=\"up\" viewBox=\"0 0 16 16\"><path d=\"M8 13.5v-11M3.5 7 8 2.5 12.5 7\"/></symbol></svg>";

/// `Content-Security-Policy` for the page: allows only the inline style sheet.
///
/// ```
/// use anello_http::Response;
/// use anello_http::files::listing::{CONTENT_SECURITY_POLICY, Listing};
/// use anello_http::files::path::Dotfiles;
/// use anello_http::h1::FieldName;
///
/// let page = Listing::new("music", Dotfiles::Hide, 100).html();
/// let name = FieldName::constant("Content-Security-Policy");
/// let response = Response::html(page).field(name, CONTENT_SECURITY_POLICY.as_bytes());
/// assert!(response.is_ok());
/// ```
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

impl Listing {
    /// Renders the listing as `text/html; charset=utf-8`. Send it with [`CONTENT_SECURITY_POLICY`].
    ///
    /// ```
    /// use anello_http::files::listing::Listing;
    /// use anello_http::files::path::Dotfiles;
    ///
    /// let page = Listing::new("music", Dotfiles::Hide, 100).html();
    /// assert!(page.starts_with("<!DOCTYPE html>"));
    /// assert!(page.contains("<title>Index of /music/</title>"));
    /// ```
    pub fn html(&self) -> String {
        let entries = self.sorted_entries();
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>Index of {}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n{SYMBOLS}\n<main>\n<h1>Index of {}</h1>\n<table>\n<caption>{}</caption>\n\
             <thead>\n<tr><th scope=\"col\">Name</th><th scope=\"col\">Size</th>\
             <th scope=\"col\">Modified<span class=\"clock\"> (UTC)</span></th></tr>\n</thead>\n<tbody>\n",
            escape(&self.full_path()),
            breadcrumbs(&self.path),
            summary(&entries),
        );
        if !self.path.is_empty() {
            page += &row("up", "../", "Parent directory", "<td></td><td></td>");
        }
        page.extend(entries.into_iter().map(entry_row));
        page += "</tbody>\n</table>\n";
        if self.is_truncated {
            let shown = self.entries.len();
            page +=
                &format!("<p role=\"note\">This directory has more entries; only {shown} are listed.</p>\n");
        }
        page + "</main>\n</body>\n</html>\n"
    }
}

fn entry_row(entry: &Entry) -> String {
    let (symbol, slash, size) = match entry.contents {
        Contents::Directory => ("directory", "/", "<td></td>".to_owned()),
        Contents::File { bytes } => {
            ("file", "", format!("<td title=\"{bytes} bytes\">{}</td>", human_size(bytes)))
        }
    };
    let link = format!("{}{slash}", encoded_name(&entry.name));
    // Names can contain characters that change the text direction; `bdi` isolates them.
    let text = format!("<bdi>{}</bdi>{slash}", escape(&entry.name));
    row(symbol, &link, &text, &format!("{size}<td>{}</td>", time_element(entry.modified)))
}

/// Returns a table row. `link`, `text` and `cells` must be escaped HTML.
fn row(symbol: &str, link: &str, text: &str, cells: &str) -> String {
    format!(
        "<tr><th scope=\"row\"><svg class=\"{symbol}\" aria-hidden=\"true\"><use href=\"#{symbol}\"/></svg>\
         <a href=\"{link}\">{text}</a></th>{cells}</tr>\n"
    )
}

/// Returns the path with a link to each parent directory. The links are relative, so they work under any path prefix.
fn breadcrumbs(path: &str) -> String {
    let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
    let link = |up: usize| if up == 0 { "./".to_owned() } else { "../".repeat(up) };
    let root = format!("<a href=\"{}\" aria-label=\"Root directory\">/</a>", link(names.len()));
    let links = names.iter().enumerate().map(|(index, name)| {
        let (up, name) = (names.len() - 1 - index, escape(name));
        let current = if up == 0 { " aria-current=\"page\"" } else { "" };
        format!("<wbr><a href=\"{}\"{current}><bdi>{name}</bdi></a>/", link(up))
    });
    root + &links.collect::<String>()
}

/// Returns a summary, for example "1 directory, 12 files, 3.4 MiB".
fn summary(entries: &[&Entry]) -> String {
    let sizes = entries.iter().filter_map(|entry| match entry.contents {
        Contents::File { bytes } => Some(bytes),
        Contents::Directory => None,
    });
    let (files, bytes) = sizes.fold((0, 0_u64), |(files, sum), bytes| (files + 1, sum.saturating_add(bytes)));
    let directories = match entries.len() - files {
        1 => "1 directory".to_owned(),
        count => format!("{count} directories"),
    };
    let file_summary =
        format!("{files} {}, {}", if files == 1 { "file" } else { "files" }, human_size(bytes));
    match (entries.len() - files, files) {
        (0, 0) => "Empty directory".to_owned(),
        (_, 0) => directories,
        (0, _) => file_summary,
        _ => format!("{directories}, {file_summary}"),
    }
}

/// Returns a `time` element with minute precision. Narrow screens show only the date.
fn time_element(modified: Timestamp) -> String {
    let text = humantime::format_rfc3339_seconds(modified.to_system_time()).to_string();
    let (day, rest) = text.split_once('T').unwrap_or_default();
    let clock = rest.get(..5).unwrap_or_default();
    format!("<time datetime=\"{text}\">{day}<span class=\"clock\"> {clock}</span></time>")
}

/// Formats a size with a binary unit. Values below 10 have one decimal place.
fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // Values of 1023.5 and above would be rounded to 1024.
    while value >= 1023.5 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value < 9.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Escapes text for element content and quoted attributes.
fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}
