//! Addresses that no file can have, and a page of an application can.

use percent_encoding::percent_decode_str;

use super::{Dotfiles, PathError, check_name, digits, split};

/// Whether a target may be the address of a page that a script makes up in the browser: its last name has no extension, as
/// in [`has_no_extension`](super::TargetPath::has_no_extension), and its names may be those of no file.
///
/// A script encodes what it has a page of, such as `AC/DC`, so a name may have a slash or a backslash in it, or be too
/// long. What is refused for another reason stays so, also where such a slash is taken for one between names: whoever asks
/// for `/..%2Fetc` or `/.git%5Cconfig` means no page.
pub(in crate::files) fn may_be_spa_route(target: &str, dotfiles: Dotfiles) -> bool {
    let Ok((encoded, _)) = split(target) else { return false };
    if digits(encoded).any(|digits| digits.is_err()) {
        return false;
    }
    let Ok(decoded) = percent_decode_str(encoded).decode_utf8() else { return false };
    let mut names = decoded.split(['/', '\\']).filter(|name| !name.is_empty()).enumerate();
    let is_accessible = names.all(|(index, name)| {
        matches!(check_name(name, index == 0, dotfiles), Ok(()) | Err(PathError::TooLong))
    });
    let last = encoded.rsplit('/').find(|name| !name.is_empty()).unwrap_or_default();
    is_accessible && percent_decode_str(last).all(|byte| byte != b'.')
}
