//! Properties of request target resolution: every accepted target stays below the document root, and the result agrees
//! with a simple reference implementation.

use std::path::{Component, Path};

use anello_http::files::path::{Dotfiles, MAX_NAME_BYTES, MAX_PATH_BYTES, TargetPath, resolve};

/// Checks the properties for an input. Input that is not UTF-8 is ignored, because it cannot be a target.
pub fn check(data: &[u8]) {
    let Ok(target) = std::str::from_utf8(data) else { return };
    for dotfiles in [Dotfiles::Hide, Dotfiles::Serve] {
        let result = resolve(target, dotfiles);
        let escaped = target.escape_debug();
        if let Err(error) = result {
            assert!(matches!(error.status(), 400 | 404), "{escaped}: {error}");
        }
        let resolved = result.as_ref().ok().map(|path| Resolved {
            relative: path.relative().to_owned(),
            is_directory: path.is_directory(),
            query: path.query().map(str::to_owned),
        });
        assert_eq!(resolved, resolve_by_model(target, dotfiles), "{escaped} with {dotfiles:?}");
        if let Ok(path) = result {
            assert_stays_below_root(&path, dotfiles);
            assert_resolves_to_same_path(&path, dotfiles);
            assert_redirects_to_directory(&path, dotfiles);
        }
    }
}

/// A resolved target.
#[derive(Debug, PartialEq, Eq)]
struct Resolved {
    relative: String,
    is_directory: bool,
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
        let is_dot_allowed = dotfiles == Dotfiles::Serve || index == 0 && name == ".well-known";
        assert!(is_dot_allowed || !name.starts_with('.'), "{relative:?}");
    }
}

/// Checks that the percent-encoded relative path resolves to the same path.
fn assert_resolves_to_same_path(path: &TargetPath<'_>, dotfiles: Dotfiles) {
    let encoded: String = path.relative().bytes().map(percent_encode).collect();
    let target = format!("/{encoded}");
    let resolved_path = resolve(&target, dotfiles).unwrap_or_else(|error| panic!("{target}: {error}"));
    assert_eq!(resolved_path.relative(), path.relative(), "{target}");
    assert_eq!(resolved_path.has_no_extension(), path.has_no_extension(), "{target}");
}

fn percent_encode(byte: u8) -> String {
    match byte {
        b'/' => "/".to_owned(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    }
}

/// Checks that a redirect stays on this server, is a valid field value, and leads to the directory with the same path.
fn assert_redirects_to_directory(path: &TargetPath<'_>, dotfiles: Dotfiles) {
    let location = path.redirect_location();
    assert!(location.starts_with('/') && !location.starts_with("//"), "{location:?}");
    assert!(location.bytes().all(|byte| byte.is_ascii_graphic()) && !location.contains('\\'), "{location:?}");
    if path.relative().len() + 2 > MAX_PATH_BYTES {
        // The path with a slash appended exceeds the limit.
        return;
    }
    let directory = resolve(&location, dotfiles).unwrap_or_else(|error| panic!("{location}: {error}"));
    assert_eq!((directory.relative(), directory.is_directory()), (path.relative(), true), "{location}");
    assert_eq!(directory.query().is_some(), path.query().is_some(), "{location}");
    assert_eq!(directory.redirect_location(), location);
}

/// Reference implementation, which resolves a target step by step. Returns `None` if the target is rejected.
fn resolve_by_model(target: &str, dotfiles: Dotfiles) -> Option<Resolved> {
    let path_and_query = if target.starts_with('/') { target } else { after_host(target)? };
    if path_and_query.contains('#') {
        return None;
    }
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (path_and_query, None),
    };
    let path = percent_decode(path)?;
    let names: Vec<_> = path.split('/').filter(|name| !name.is_empty()).collect();
    for (index, name) in names.iter().enumerate() {
        let is_hidden = name.starts_with('.') && !(index == 0 && *name == ".well-known");
        let is_rejected = matches!(*name, "." | "..")
            || name.chars().any(|c| c.is_ascii_control() || c == '\\')
            || name.len() > MAX_NAME_BYTES
            || is_hidden && dotfiles == Dotfiles::Hide;
        if is_rejected {
            return None;
        }
    }
    let is_directory = path.is_empty() || path.ends_with('/');
    (path.len() <= MAX_PATH_BYTES).then(|| Resolved { relative: names.join("/"), is_directory, query })
}

/// Returns the part after the authority in a target in absolute form.
fn after_host(target: &str) -> Option<&str> {
    let lower = target.to_ascii_lowercase();
    let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme))?;
    let rest = &target[scheme.len()..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    (end > 0).then(|| &rest[end..])
}

/// Percent-decodes a path. Returns `None` if the encoding is invalid, the result is not UTF-8, or a slash is encoded.
fn percent_decode(path: &str) -> Option<String> {
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
