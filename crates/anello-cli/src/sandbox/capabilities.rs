//! Capabilities: a process that was started as root keeps those alone that its paths need.
//!
//! Nothing that serving does takes one: ports are bound before, and no port is bound again. But root may have been given paths
//! whose permission bits let only others in. Where one can be used only by `CAP_DAC_READ_SEARCH` or `CAP_DAC_OVERRIDE`, that
//! capability stays.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::AllowedPaths;

const NONE: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Gives up all capabilities of the calling thread, and of those that it starts, but those that these paths need, which are
/// returned (`capset(2)`, `PR_CAPBSET_DROP`).
pub fn drop_all_but_required(allowed_paths: &AllowedPaths) -> Result<CapabilitySet, String> {
    let refused = |error: Errno| format!("capabilities could not be dropped: {error}");
    let before = capabilities(None).map_err(refused)?;
    if before.permitted.is_empty() && before.inheritable.is_empty() {
        // None to give up, and new ones only by programs that are executed, which gain none (no_new_privs).
        return Ok(CapabilitySet::empty());
    }
    drop_bounding_set().map_err(refused)?;
    set_capabilities(None, CapabilitySets { permitted: before.permitted, ..NONE }).map_err(refused)?;
    let kept = required_capabilities(allowed_paths) & before.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, ..NONE }).map_err(refused)?;
    Ok(kept)
}

/// Gives up all capabilities of the calling thread, and of those that it starts.
pub fn drop_all() -> rustix::io::Result<()> {
    set_capabilities(None, NONE)
}

/// Lets no program that is executed have any. Does nothing in a process that may not do that: it has no capability to lose.
pub fn drop_bounding_set() -> rustix::io::Result<()> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // The kernel knows no further ones.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What a thread without effective capabilities lacks to use these paths.
fn required_capabilities(allowed_paths: &AllowedPaths) -> CapabilitySet {
    let mut required_capabilities = CapabilitySet::empty();
    let reads = allowed_paths.reloaded.iter().map(|file| (file.as_path(), Access::READ_OK));
    if reads
        .chain([(allowed_paths.served.as_path(), Access::EXEC_OK)])
        .any(|(path, access)| is_denied(path, access))
    {
        required_capabilities |= CapabilitySet::DAC_READ_SEARCH;
    }
    let is_file_denied = |file: &Path| is_denied(file, Access::WRITE_OK);
    let is_folder_denied = |file: &Path| {
        file.parent().is_some_and(|folder| is_denied(folder, Access::WRITE_OK | Access::EXEC_OK))
    };
    let is_log_denied = |file: &Path| match fs::symlink_metadata(file) {
        // What is no file is not renamed, and so not created again.
        Ok(found) if !found.is_file() => is_file_denied(file),
        _ => is_file_denied(file) || is_folder_denied(file),
    };
    if allowed_paths.appended.iter().any(|file| is_log_denied(file))
        || allowed_paths.sockets.iter().any(|file| is_folder_denied(file))
    {
        required_capabilities |= CapabilitySet::DAC_OVERRIDE;
    }
    required_capabilities
}

fn is_denied(path: &Path, access: Access) -> bool {
    let path = if path == Path::new("") { Path::new(".") } else { path };
    accessat(CWD, path, access, AtFlags::EACCESS) == Err(Errno::ACCESS)
}
