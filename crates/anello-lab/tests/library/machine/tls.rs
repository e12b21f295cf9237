//! The certificate that all TLS servers of a run use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anello_lab::tls::{Cipher, Identity};
use anello_lab::{Cell, Target};

#[test]
fn identity_is_private_and_removed_on_drop() {
    let identity = Identity::make().unwrap();
    let (certificate, key) = (identity.certificate(), identity.key());
    let text = |file: &Path| fs::read_to_string(file).unwrap();
    assert!(text(&certificate).starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(text(&key).starts_with("-----BEGIN PRIVATE KEY-----"));
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    drop(identity);
    assert!(!key.exists() && !certificate.parent().unwrap().exists());
}

#[test]
fn for_cells_creates_identity_only_for_tls_cells() {
    let plain = Cell::http(Target::Hello, 1);
    assert!(Identity::for_cells(&[plain, Cell::echo(1, 1)]).unwrap().is_none());
    let secure = Cell { workload: plain.workload.under(Cipher::Aes256Gcm), ..plain };
    assert!(Identity::for_cells(&[plain, secure]).unwrap().is_some());
}
