//! Validation of the files that are named in the options, before the server starts.

use std::io;

use super::{Files, Opened};
use crate::files::options::InvalidOption;

impl Files {
    /// Returns an error for each file named in the options
    /// ([`not_found_file`](crate::files::FileOptions::not_found_file),
    /// [`spa_fallback_file`](crate::files::FileOptions::spa_fallback_file)) that cannot be sent. The files are
    /// opened as for a request (`openat2(2)`). A server can start without them and then sends a line of text
    /// instead.
    pub async fn invalid_option_files(&self) -> Vec<InvalidOption> {
        let option_files = [
            ("not-found-file", &self.options.not_found_file),
            ("spa-fallback", &self.options.spa_fallback_file),
        ];
        let mut invalid = Vec::new();
        for (option, path) in option_files {
            let Some(path) = path else { continue };
            if let Err(reason) = check_opened(self.root.find(path).await) {
                invalid.push(InvalidOption::new(option, path, reason));
            }
        }
        invalid
    }
}

fn check_opened(result: io::Result<Opened>) -> Result<(), String> {
    match result {
        Ok(Opened::File { .. }) => Ok(()),
        Ok(Opened::Directory) => Err("it is a directory (specify a file)".to_owned()),
        Ok(Opened::Other) => Err("it is not a regular file (specify a regular file)".to_owned()),
        Err(error) => Err(format!(
            "cannot open the file in the document root: {error} (create it, make it readable for this user, or \
             remove the option)"
        )),
    }
}
