//! The files that HTTP servers serve, in a temporary directory.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::plan::contender::{Contender, ROOT};
use crate::plan::site::Target;
use crate::run::temporary;

/// Temporary directory with all files of the site. Dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    /// Creates the directory. It is readable by all users because some servers change their user ID.
    ///
    /// # Errors
    /// Returns an error with the path if an operation fails.
    pub fn create() -> io::Result<Site> {
        let directory = temporary::create("anello-lab-site-", 0o755)?;
        for target in Target::ALL {
            temporary::write(&directory, target.file_name(), target.body(), 0o644)?;
        }
        Ok(Site { directory })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns the contender with [`ROOT`] in its arguments replaced by the site's directory. Creates the site on first
/// use.
pub(crate) fn with_site(contender: Contender, site: &mut Option<Site>) -> Result<Contender, String> {
    if !contender.uses(ROOT) {
        return Ok(contender);
    }
    if site.is_none() {
        *site = Some(Site::create().map_err(|error| format!("cannot create the files to serve: {error}"))?);
    }
    let directory = site.as_ref().map(|site| site.path().to_string_lossy()).unwrap_or_default();
    Ok(contender.replacing(ROOT, &directory))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn site_has_readable_files_and_is_removed_on_drop() {
        let site = Site::create().unwrap();
        let directory = site.path().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o755);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), Target::ALL.len());
        for target in Target::ALL {
            let path = directory.join(target.path().trim_start_matches('/'));
            assert!(fs::read(&path).unwrap() == target.body(), "{target}");
            assert_eq!(mode(&path), 0o644);
            assert!(fs::metadata(&path).unwrap().modified().unwrap() < SystemTime::now());
        }
        drop(site);
        assert!(!directory.exists());
    }
}
