//! Capabilities: a process started as root keeps only those that its paths require.
//!
//! Serving itself requires none, because ports are bound once, at startup. However, a server started as root may be
//! configured with paths whose permission bits grant access only to other users. If a path is accessible only with
//! `CAP_DAC_READ_SEARCH` or `CAP_DAC_OVERRIDE`, that capability is kept.

use std::fs;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::landlock::AllowedPaths;

const NONE: CapabilitySets = CapabilitySets {
    effective: CapabilitySet::empty(),
    permitted: CapabilitySet::empty(),
    inheritable: CapabilitySet::empty(),
};

/// Drops all capabilities except those that the allowed paths require, for the calling thread and threads that it
/// starts later (`capset(2)`, `PR_CAPBSET_DROP`). Returns the capabilities that were kept.
pub fn drop_all_but_required(allowed_paths: &AllowedPaths) -> Result<CapabilitySet, String> {
    let to_message = |error: Errno| format!("cannot drop capabilities: {error}");
    let current = capabilities(None).map_err(to_message)?;
    if current.permitted.is_empty() && current.inheritable.is_empty() {
        // There are no capabilities to drop, and no_new_privs keeps executed programs from gaining any.
        return Ok(CapabilitySet::empty());
    }
    drop_bounding_set().map_err(to_message)?;
    set_capabilities(None, CapabilitySets { permitted: current.permitted, ..NONE }).map_err(to_message)?;
    let kept = required_capabilities(allowed_paths) & current.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, ..NONE })
        .map_err(to_message)?;
    Ok(kept)
}

/// Drops all capabilities of the calling thread and of threads that it starts later.
pub fn drop_all() -> rustix::io::Result<()> {
    set_capabilities(None, NONE)
}

/// Empties the bounding set, so that executed programs gain no capabilities. Does nothing without `CAP_SETPCAP`,
/// because the process then has no capabilities to drop.
pub fn drop_bounding_set() -> rustix::io::Result<()> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) => remove_capability_from_bounding_set(capability)?,
            Ok(false) => {}
            // This number and all higher numbers are unknown to the kernel.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the capabilities required to use these paths. The calling thread must have no effective capabilities.
fn required_capabilities(allowed_paths: &AllowedPaths) -> CapabilitySet {
    let mut required_capabilities = CapabilitySet::empty();
    if is_denied(&allowed_paths.served, Access::EXEC_OK)
        || allowed_paths.reloaded.iter().any(|file| is_denied(file, Access::READ_OK))
    {
        required_capabilities |= CapabilitySet::DAC_READ_SEARCH;
    }
    let is_file_denied = |file: &Path| is_denied(file, Access::WRITE_OK);
    let is_directory_denied = |file: &Path| {
        file.parent().is_some_and(|directory| is_denied(directory, Access::WRITE_OK | Access::EXEC_OK))
    };
    let is_log_denied = |file: &Path| match fs::symlink_metadata(file) {
        // Log rotation renames only regular files, which are then created again.
        Ok(metadata) if !metadata.is_file() => is_file_denied(file),
        _ => is_file_denied(file) || is_directory_denied(file),
    };
    if allowed_paths.appended.iter().any(|file| is_log_denied(file))
        || allowed_paths.sockets.iter().any(|file| is_directory_denied(file))
    {
        required_capabilities |= CapabilitySet::DAC_OVERRIDE;
    }
    required_capabilities
}

fn is_denied(path: &Path, access: Access) -> bool {
    let path = if path == Path::new("") { Path::new(".") } else { path };
    accessat(CWD, path, access, AtFlags::EACCESS) == Err(Errno::ACCESS)
}
