//! Targets that cannot be files but can be routes of a single-page application.

use percent_encoding::percent_decode_str;

use super::{Dotfiles, PathError, check_name, escape_digits, split_query};

/// Returns `true` if a target can be a route of a single-page application: its last name has no extension (see
/// [`has_no_extension`](super::TargetPath::has_no_extension)). Names need not be valid file names.
///
/// An application may percent-encode arbitrary text as a name, for example `AC/DC`. A name can therefore contain a
/// slash or a backslash, or be too long for a file. All other errors still apply, also if an encoded slash or
/// backslash is treated as a separator: `/..%2Fetc` and `/.git%5Cconfig` are not routes.
pub(in crate::files) fn may_be_spa_route(target: &str, dotfiles: Dotfiles) -> bool {
    let Ok((encoded, _)) = split_query(target) else { return false };
    if escape_digits(encoded).any(|digits| digits.is_err()) {
        return false;
    }
    let Ok(decoded) = percent_decode_str(encoded).decode_utf8() else { return false };
    let mut names = decoded.split(['/', '\\']).filter(|name| !name.is_empty()).enumerate();
    let names_are_allowed = names.all(|(index, name)| {
        matches!(check_name(name, index == 0, dotfiles), Ok(()) | Err(PathError::TooLong))
    });
    let last = encoded.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
    names_are_allowed && percent_decode_str(last).all(|byte| byte != b'.')
}
