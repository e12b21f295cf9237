//! Whether the files that options name can be sent, looked at before anybody asks for them.

use std::io;

use super::{Files, Opened};
use crate::files::options::InvalidOption;

impl Files {
    /// The files that options name ([`not_found_file`](crate::files::FileOptions::not_found_file),
    /// [`spa_fallback_file`](crate::files::FileOptions::spa_fallback_file)) and that cannot be sent now. They are opened as
    /// for a request (`openat2(2)`). A server starts without them, too, and sends a line of text instead.
    pub async fn invalid_option_files(&self) -> Vec<InvalidOption> {
        let option_files = [
            ("not-found-file", &self.options.not_found_file),
            ("spa-fallback", &self.options.spa_fallback_file),
        ];
        let mut invalid = Vec::new();
        for (option, path) in option_files {
            let Some(path) = path else { continue };
            if let Err(why) = check_opened(self.root.find(path).await) {
                invalid.push(InvalidOption::new(option, path, why));
            }
        }
        invalid
    }
}

fn check_opened(found: io::Result<Opened>) -> Result<(), String> {
    match found {
        Ok(Opened::File { .. }) => Ok(()),
        Ok(Opened::Directory) => Err("it is a folder: name a file".to_owned()),
        Ok(Opened::Other) => Err("it is no regular file, and so is never sent: name another".to_owned()),
        Err(error) => Err(format!(
            "it cannot be opened in the served folder: {error}: make it there, readable for this user, or leave the \
             option out"
        )),
    }
}
