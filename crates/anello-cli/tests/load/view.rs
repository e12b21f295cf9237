//! Tests for the view of `anello load`, on a pseudo-terminal.

use std::net::TcpListener;

use anello_test::{echo, tcp_server};
use rustix::process::Signal;

use crate::common::pty::Pty;

/// Starts a load with two connections, which would run for two minutes.
fn load(term: &str, arguments: &[&str]) -> Option<Pty> {
    let server = tcp_server(echo).to_string();
    let common = ["load", "tcp", &server, "-c", "2", "-d", "2m", "--interval", "50ms"];
    Pty::anello(term, &[&common, arguments].concat())
}

/// Returns whether the table of percentiles contains a number for the last interval and for the total.
fn has_percentiles(pty: &Pty) -> bool {
    let text = pty.text();
    let row = text.lines().find_map(|line| line.split("p99.9").nth(1)).unwrap_or_default().to_owned();
    row.split_whitespace().filter(|word| word.parse::<f64>().is_ok()).count() >= 2
}

#[test]
fn view_shows_figures_and_q_ends_with_report() {
    let Some(mut pty) = load("xterm-256color", &[]) else { return };
    pty.wait("percentiles", has_percentiles);
    assert!(pty.is_view());
    pty.wait("rate", |pty| {
        let text = pty.text();
        let mut values =
            text.lines().filter_map(|line| line.split("│requests/s ").nth(1)?.split_whitespace().next());
        values.any(|rate| rate.replace(',', "").parse::<u64>().is_ok_and(|rate| rate > 0))
    });
    for expected in ["measuring: ", "closed loop", "2 of 2", "load CPU", "errors: 0", "histogram"] {
        assert!(pty.text().contains(expected), "{expected} is missing in\n{}", pty.text());
    }
    pty.resize(12, 40);
    pty.wait("small view", |pty| {
        let text = pty.text();
        text.contains("connections") && !text.contains("histogram") && text.contains("q end")
    });
    pty.resize(30, 100);
    pty.wait("large view", |pty| pty.text().contains("histogram"));
    pty.press("q");
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.contains("interrupted") && text.contains("errors        none"), "{text}");
}

#[test]
fn space_pauses_open_loop() {
    let Some(mut pty) = load("xterm", &["--rate", "1000"]) else { return };
    pty.wait("percentiles", has_percentiles);
    assert!(!pty.text().contains("paused"), "{}", pty.text());
    pty.press(" ");
    pty.wait("pause", |pty| pty.text().contains("PAUSED") && pty.text().contains("paused"));
    pty.press(" ");
    pty.wait("resumption", |pty| !pty.text().contains("PAUSED"));
    // The chart still shows the pause.
    assert!(pty.text().contains("paused"), "{}", pty.text());
    pty.press("q");
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.contains("pauses  ") && text.contains("s in total"), "{text}");
}

#[test]
fn closed_loop_is_not_paused() {
    let Some(mut pty) = load("xterm", &[]) else { return };
    pty.wait("footer", |pty| pty.text().contains("a closed loop cannot be paused"));
    pty.press(" \x1b[A");
    pty.wait("percentiles", has_percentiles);
    pty.press("\x03");
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.contains("interrupted") && !text.contains("pauses  "), "{text}");
}

#[test]
fn signals_restore_terminal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let Some(mut pty) = load("xterm", &["--rate", "1000"]) else { return };
        pty.wait("percentiles", has_percentiles);
        pty.signal(signal);
        let (code, text) = pty.end();
        assert!(code == Some(0) && text.contains("interrupted"), "{signal:?}: {code:?} {text}");
    }
}

#[test]
fn second_signal_restores_terminal() {
    // A server that never replies, so that the end of the load takes half a second.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let arguments = ["load", "tcp", &address, "-c", "1", "-d", "10m", "--timeout", "1h"];
    let Some(mut pty) = Pty::anello("xterm", &arguments) else { return };
    pty.wait("view", |pty| pty.text().contains("measuring"));
    pty.press("q");
    pty.wait("end", |pty| pty.text().contains("ending; Ctrl-C exits"));
    pty.signal(Signal::INT);
    // If the signal came late, the report was printed instead.
    let (code, text) = pty.end();
    assert!(code == Some(130) || (code == Some(1) && text.contains("interrupted")), "{code:?} {text}");
}

#[test]
fn errors_restore_terminal() {
    // The output fails after the view has appeared.
    let Some(pty) = load("xterm", &["--csv", "/dev/full"]) else { return };
    let (code, text) = pty.end();
    assert!(code == Some(1) && text.contains("No space left on device"), "{code:?} {text}");
}

#[test]
fn progress_line_replaces_view() {
    for (flag, report) in [("--no-tui", "errors        none"), ("--json", "\"knee\": null")] {
        let Some(mut pty) = load("xterm", &[flag]) else { return };
        pty.wait("progress line", |pty| pty.text().contains(" requests/s, p50 ") || pty.is_view());
        assert!(!pty.is_view());
        pty.signal(Signal::INT);
        let (code, text) = pty.end();
        assert!(code == Some(0) && text.contains(report), "{code:?} {text}");
    }
}

#[test]
fn dumb_terminal_has_no_view() {
    let server = tcp_server(echo).to_string();
    let Some(mut pty) = Pty::anello("dumb", &["load", "tcp", &server, "-c", "2", "-d", "200ms"]) else {
        return;
    };
    while pty.read() {}
    assert!(!pty.has_shown_view);
    let (code, text) = pty.end();
    assert!(code == Some(0) && text.starts_with("server        "), "{code:?} {text}");
}
