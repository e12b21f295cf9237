//! Scenarios under TLS.

use super::*;
use crate::tls::Cipher;

/// The scenario of HTTP under TLS.
fn https() -> String {
    HTTP.replace("\"http\"", "\"https\"")
}

#[test]
fn https_starts_contenders_with_a_certificate_and_leaves_out_who_takes_none() {
    let text = https().replace("[1, 50]", "[1, 50]\nciphers = [\"aes-256-gcm\", \"aes-128-gcm\"]");
    let text = text.replace("\"10m.bin\"", "\"/fixed\"");
    let cell = "{ target = \"page.html\", connections = 7, reconnect = true }";
    let config = resolve("mine.toml", &format!("{text}cells = [{cell}]\n"), &machine(2)).unwrap();
    assert_eq!(names(&config), ["anello epoll", "nginx", "nginx again"]);
    let flags = "--tls-cert {certificate} --tls-key {key}";
    for contender in &config.contenders {
        assert!(contender.command_line().ends_with(flags), "{}", contender.command_line());
    }
    let scaling = config.scenario.scaling.join("\n");
    assert!(scaling.contains("Left out, since they serve no TLS: hyper."), "{scaling}");
    assert_eq!(config.cells.len(), 2 * 2 * 2 + 1);
    let ciphers: Vec<Cipher> = config.cells.iter().map(|cell| cell.workload.cipher().unwrap()).collect();
    assert_eq!(ciphers.iter().filter(|&&cipher| cipher == Cipher::Aes256Gcm).count(), 4);
    assert_eq!(ciphers.last(), Some(&Cipher::Aes128Gcm), "that of a cell that names none");
    let told = "{ name = \"mine\", command = \"/mine --root {root} --pair {certificate}:{key}\" }";
    let nobody =
        https().replace("\"anello epoll\", \"peers\"", "\"hyper\"").replace("\"10m.bin\"", "\"/fixed\"");
    let error = fault(&nobody);
    assert!(error.contains("mine.toml:7:") && error.contains("nobody is left to compete"), "{error}");
    assert!(error.contains("since they serve no TLS: hyper."), "{error}");
    let own = https().replace("\"peers\"", told);
    let config = resolve("mine.toml", &own, &machine(2)).unwrap();
    assert_eq!(names(&config), ["anello epoll", "anello epoll again", "mine"]);
    assert_eq!(config.contenders[2].command_line(), "mine --root {root} --pair {certificate}:{key}");
}

#[test]
fn what_https_cells_cannot_be_is_pointed_at() {
    for (from, to, expected) in [
        ("[1, 50]", "[1, 50]\nciphers = [\"rc4\"]", "7:12: "),
        ("targets", "# targets", "4:12: give targets with connections"),
        ("[1, 50]", "[1, 50]\nmessage_bytes = [1]", "is for echo, and the protocol is https"),
        ("\"peers\"", "{ name = \"a\", command = \"/a\" }", "write {certificate} and {key}"),
    ] {
        let error = fault(&https().replacen(from, to, 1));
        assert!(error.contains(expected), "{to}: {error}");
    }
    let with = |text: &str, cell: &str| fault(&format!("{text}cells = [{{ connections = 1, {cell} }}]\n"));
    assert!(with(&https(), "pipelining = 2").contains("a cell for https needs a target"));
    let cipher = "target = \"/fixed\", cipher = \"aes-128-gcm\"";
    assert!(with(HTTP, cipher).contains("a cell for http has no cipher: remove it"));
    let plain = HTTP.replace("[1, 50]", "[1, 50]\nciphers = [\"aes-128-gcm\"]");
    assert!(fault(&plain).contains("the key ciphers is for https, and the protocol is http"));
}

#[test]
fn the_preset_of_tls_has_handshakes_and_bulk_by_the_same_ciphers_for_all() {
    let config = resolve("tls", preset("tls").unwrap(), &machine(2)).unwrap();
    let words: Vec<String> = config.cells.iter().map(Cell::to_string).collect();
    for cell in [
        "50 connections, hello.txt, TLS AES-128-GCM",
        "50 connections, 300k.bin, TLS AES-128-GCM",
        "50 connections, 10m.bin, TLS AES-128-GCM",
        "50 connections, hello.txt, TLS AES-128-GCM, a connection per request",
        "50 connections, 10m.bin, TLS AES-256-GCM",
    ] {
        assert!(words.iter().any(|word| word == cell), "{cell}: {words:?}");
    }
    assert_eq!(config.reference, "nginx");
    assert!(config.contenders.iter().all(Contender::serves_tls));
}
