//! Paths: whatever is asked for, what is accepted names something below the served folder, and the same thing whoever reads
//! it and however often.

use std::path::{Component, Path};

use anello_http::files::path::{Dotfiles, MAX_NAME_BYTES, MAX_PATH_BYTES, TargetPath, resolve};

/// Bytes that are no text can be no target.
pub fn check(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    for dotfiles in [Dotfiles::Hide, Dotfiles::Serve] {
        let found = resolve(target, dotfiles);
        let shown = target.escape_debug();
        if let Err(refusal) = found {
            assert!(matches!(refusal.status(), 400 | 404), "{shown}: {refusal}");
        }
        let read = found.as_ref().ok().map(|path| Read {
            relative: path.relative().to_owned(),
            is_folder: path.is_directory(),
            query: path.query().map(str::to_owned),
        });
        assert_eq!(read, model(target, dotfiles), "{shown} with {dotfiles:?}");
        if let Ok(path) = found {
            assert_stays_below_root(&path, dotfiles);
            assert_resolves_to_same_path(&path, dotfiles);
            assert_redirects_to_directory(&path, dotfiles);
        }
    }
}

/// What a target means.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    relative: String,
    is_folder: bool,
    query: Option<String>,
}

fn assert_stays_below_root(path: &TargetPath<'_>, dotfiles: Dotfiles) {
    let relative = path.relative();
    assert!(
        Path::new(relative).components().all(|part| matches!(part, Component::Normal(_))),
        "{relative:?}"
    );
    assert!(!relative.contains(['\0', '\\']) && relative.len() <= MAX_PATH_BYTES, "{relative:?}");
    for (index, name) in relative.split('/').enumerate().filter(|_| !relative.is_empty()) {
        assert!(!matches!(name, "" | "." | "..") && name.len() <= MAX_NAME_BYTES, "{relative:?}");
        let may_be_seen = dotfiles == Dotfiles::Serve || index == 0 && name == ".well-known";
        assert!(may_be_seen || !name.starts_with('.'), "{relative:?}");
    }
}

/// What was accepted is accepted again, and is the same.
fn assert_resolves_to_same_path(path: &TargetPath<'_>, dotfiles: Dotfiles) {
    let encoded: String = path.relative().bytes().map(encoded).collect();
    let target = format!("/{encoded}");
    let again = resolve(&target, dotfiles).unwrap_or_else(|refusal| panic!("{target}: {refusal}"));
    assert_eq!(again.relative(), path.relative(), "{target}");
    assert_eq!(again.has_no_extension(), path.has_no_extension(), "{target}");
}

fn encoded(byte: u8) -> String {
    match byte {
        b'/' => "/".to_owned(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    }
}

/// A redirect stays on this server, is a field's value, and leads to the folder of the same path.
fn assert_redirects_to_directory(path: &TargetPath<'_>, dotfiles: Dotfiles) {
    let location = path.redirect_location();
    assert!(location.starts_with('/') && !location.starts_with("//"), "{location:?}");
    assert!(location.bytes().all(|byte| byte.is_ascii_graphic()) && !location.contains('\\'), "{location:?}");
    if path.relative().len() + 2 > MAX_PATH_BYTES {
        // With a slash at its end it is too long.
        return;
    }
    let folder = resolve(&location, dotfiles).unwrap_or_else(|refusal| panic!("{location}: {refusal}"));
    assert_eq!((folder.relative(), folder.is_directory()), (path.relative(), true), "{location}");
    assert_eq!(folder.query().is_some(), path.query().is_some(), "{location}");
    assert_eq!(folder.redirect_location(), location);
}

/// What a target means to a reader that goes step by step; `None` if it is refused.
fn model(target: &str, dotfiles: Dotfiles) -> Option<Read> {
    let path_and_query = if target.starts_with('/') { target } else { after_host(target)? };
    if path_and_query.contains('#') {
        return None;
    }
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (path_and_query, None),
    };
    let path = decoded(path)?;
    let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
    for (index, name) in names.iter().enumerate() {
        let is_hidden = name.starts_with('.') && !(index == 0 && *name == ".well-known");
        let assert_rejected = matches!(*name, "." | "..")
            || name.chars().any(|c| c.is_ascii_control() || c == '\\')
            || name.len() > MAX_NAME_BYTES
            || is_hidden && dotfiles == Dotfiles::Hide;
        if assert_rejected {
            return None;
        }
    }
    let is_folder = path.is_empty() || path.ends_with('/');
    (path.len() <= MAX_PATH_BYTES).then(|| Read { relative: names.join("/"), is_folder, query })
}

fn after_host(target: &str) -> Option<&str> {
    let lower = target.to_ascii_lowercase();
    let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme))?;
    let rest = &target[scheme.len()..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    (end > 0).then(|| &rest[end..])
}

/// Decoded once; `None` if that cannot be, or would make a slash.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push((high * 16 + low) as u8);
        if bytes.last() == Some(&b'/') {
            return None;
        }
    }
    String::from_utf8(bytes).ok()
}
