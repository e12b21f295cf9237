//! `anello lab open`: shows a report in the browser.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anello::net::TcpListener;
use anello::signal::{SignalKind, Signals};
use anello_http::h1::Method;
use anello_http::{Request, Response, Server};
use bytes::Bytes;

use crate::common::boxed_handler::boxed_handler;
use crate::common::error::{Context, invalid_input};
use crate::common::output::show;

/// Show a report in the browser: serve the HTML page on the loopback interface until Ctrl-C.
///
/// Prints the URL, and opens it with xdg-open if that program is installed. Only the page itself is served.
#[derive(clap::Args)]
pub struct OpenArguments {
    /// HTML report; by default, the last report in the directory of the reports.
    #[arg(value_name = "REPORT")]
    report: Option<PathBuf>,
    /// Directory in which anello lab run has written the reports.
    #[arg(long, value_name = "DIRECTORY", default_value = "anello-lab", conflicts_with = "report")]
    out: PathBuf,
    /// Only print the URL.
    #[arg(long)]
    no_browser: bool,
}

pub fn run(arguments: &OpenArguments) -> io::Result<ExitCode> {
    let path = arguments.report.clone().map_or_else(|| last_report(&arguments.out), Ok)?;
    let page = Bytes::from(fs::read(&path).context(format_args!("cannot read {}", path.display()))?);
    anello::Runtime::new()?.block_on(async {
        let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
        let server = Server::builder().build();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let url = format!("http://{}/", listener.local_addr()?);
        let handler = boxed_handler(Box::new(move |request: &Request| {
            let is_page = request.path() == "/" && matches!(request.method(), Method::Get | Method::Head);
            if is_page { Response::html(page.clone()) } else { Response::new(404) }
        }));
        let accepting = server.serve(listener, handler);
        show(&format!("{}: {url} (Ctrl-C ends the server)\n", path.display()))?;
        if !arguments.no_browser {
            open_browser(&url);
        }
        signals.recv().await?;
        accepting.abort();
        server.abort_connections();
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the last report in a directory. The file names contain the start times of the runs.
fn last_report(directory: &Path) -> io::Result<PathBuf> {
    let entries = fs::read_dir(directory).context(format_args!("cannot read {}", directory.display()))?;
    let is_report = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("lab-") && name.ends_with(".html")
    };
    let reports = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_report);
    reports.max().ok_or_else(|| {
        invalid_input(format!("no report in {} (start anello lab run, or name a file)", directory.display()))
    })
}

/// Opens the URL with xdg-open, which runs on its own. The URL is printed in any case, so a failure is not an error.
fn open_browser(url: &str) {
    let mut command = Command::new("xdg-open");
    let started = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = started {
        tracing::debug!(%error, "cannot run xdg-open");
    }
}
