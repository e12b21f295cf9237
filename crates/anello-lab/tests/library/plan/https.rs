//! Tests for scenarios with TLS.

use anello_lab::tls::Cipher;
use anello_lab::{Cell, Contender, preset, resolve};

use super::scenario::{HTTP, machine, names, resolve_error};

/// Returns the HTTP scenario with TLS.
fn https() -> String {
    HTTP.replace("\"http\"", "\"https\"")
}

#[test]
fn https_adds_certificate_and_omits_contenders_without_tls() {
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
    assert!(scaling.contains("Omitted because they do not support TLS: hyper."), "{scaling}");
    assert_eq!(config.cells.len(), 2 * 2 * 2 + 1);
    let ciphers: Vec<Cipher> = config.cells.iter().map(|cell| cell.workload.cipher().unwrap()).collect();
    assert_eq!(ciphers.iter().filter(|&&cipher| cipher == Cipher::Aes256Gcm).count(), 4);
    assert_eq!(ciphers.last(), Some(&Cipher::Aes128Gcm), "default cipher of a cell");
    let inline = "{ name = \"mine\", command = \"/mine --root {root} --pair {certificate}:{key}\" }";
    let without_tls =
        https().replace("\"anello epoll\", \"peers\"", "\"hyper\"").replace("\"10m.bin\"", "\"/fixed\"");
    let error = resolve_error(&without_tls);
    assert!(error.contains("mine.toml:7:") && error.contains("no contenders left"), "{error}");
    assert!(error.contains("because they do not support TLS: hyper."), "{error}");
    let own = https().replace("\"peers\"", inline);
    let config = resolve("mine.toml", &own, &machine(2)).unwrap();
    assert_eq!(names(&config), ["anello epoll", "anello epoll again", "mine"]);
    assert_eq!(config.contenders[2].command_line(), "mine --root {root} --pair {certificate}:{key}");
}

#[test]
fn rejects_invalid_https_cells_with_position() {
    for (from, to, expected) in [
        ("[1, 50]", "[1, 50]\nciphers = [\"rc4\"]", "7:12: "),
        ("targets", "# targets", "4:12: no cells (add targets with connections"),
        ("[1, 50]", "[1, 50]\nmessage_bytes = [1]", "requires protocol echo, not https"),
        ("\"peers\"", "{ name = \"a\", command = \"/a\" }", "use {certificate} and {key}"),
    ] {
        let error = resolve_error(&https().replacen(from, to, 1));
        assert!(error.contains(expected), "{to}: {error}");
    }
    let with =
        |text: &str, cell: &str| resolve_error(&format!("{text}cells = [{{ connections = 1, {cell} }}]\n"));
    assert!(with(&https(), "pipelining = 2").contains("cells with protocol https need a target"));
    let cipher = "target = \"/fixed\", cipher = \"aes-128-gcm\"";
    assert!(with(HTTP, cipher).contains("key cipher is invalid in cells with protocol http (remove it)"));
    let plain = HTTP.replace("[1, 50]", "[1, 50]\nciphers = [\"aes-128-gcm\"]");
    assert!(resolve_error(&plain).contains("key ciphers requires protocol https, not http"));
}

#[test]
fn tls_preset_has_handshake_and_bulk_cells() {
    let config = resolve("tls", preset("tls").unwrap(), &machine(2)).unwrap();
    let cells: Vec<String> = config.cells.iter().map(Cell::to_string).collect();
    for cell in [
        "50 connections, hello.txt, TLS AES-128-GCM",
        "50 connections, 300k.bin, TLS AES-128-GCM",
        "50 connections, 10m.bin, TLS AES-128-GCM",
        "50 connections, hello.txt, TLS AES-128-GCM, a connection per request",
        "50 connections, 10m.bin, TLS AES-256-GCM",
    ] {
        assert!(cells.iter().any(|word| word == cell), "{cell}: {cells:?}");
    }
    assert_eq!(config.reference, "nginx");
    assert!(config.contenders.iter().all(Contender::serves_tls));
}

#[test]
fn ciphers_are_serialized_by_name() {
    for (cipher, name) in [(Cipher::Aes128Gcm, "aes-128-gcm"), (Cipher::Aes256Gcm, "aes-256-gcm")] {
        assert_eq!(serde_json::to_string(&cipher).unwrap(), format!("\"{name}\""));
        assert_eq!(cipher.to_string().to_lowercase(), name);
    }
}
