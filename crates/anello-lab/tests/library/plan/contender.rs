//! Built-in contenders and their command lines.

use std::path::Path;

use anello_lab::Contender;
use anello_lab::peers::Serves;

#[test]
fn command_line_quotes_like_a_shell() {
    assert_eq!(
        Contender::new("a", Path::new("/usr/bin/x"), &["--a", "b c", "it's"]).command_line(),
        r"x --a 'b c' 'it'\''s'"
    );
}

#[test]
fn default_contenders_include_twin_of_reference() {
    let all = Contender::default_contenders(Path::new("anello"));
    assert_eq!(all.iter().filter(|contender| contender.twin_of.as_deref() == Some("bare epoll")).count(), 1);
    assert_eq!(all[0].command_line(), "anello echo --driver uring --cores {cores} --addr 127.0.0.1:0");
    assert_eq!(all.len(), 8);
    let http = Contender::http_servers(Path::new("anello"));
    let command =
        "anello http {root} --driver epoll --cores {cores} --keep-alive-timeout 75s --addr 127.0.0.1:0";
    assert_eq!((http[1].command_line().as_str(), http.len()), (command, 2));
    let secure = http[1].clone().under_tls();
    let flags = "--tls-cert {certificate} --tls-key {key}";
    assert_eq!(secure.command_line(), format!("{command} {flags}"));
    assert!(secure.serves_tls() && !http[1].serves_tls());
    assert_eq!(secure.clone().under_tls(), secure, "arguments are added once");
    let without_tls = Contender { takes_tls: false, ..http[1].clone() };
    assert_eq!(without_tls.clone().under_tls(), without_tls);
}

#[test]
fn command_with_root_serves_files() {
    let serves =
        |argument: &str| Contender::new("a", Path::new("x"), &[argument]).serving_by_command().serves;
    assert_eq!(serves("--root={root}"), [Serves::Files]);
    assert_eq!(serves("--cores={cores}"), [Serves::Fixed]);
}
