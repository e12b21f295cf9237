//! Contenders defined on the command line with `--contender`.

use std::io;
use std::path::Path;

use anello_lab::{Contender, LabConfig};

use crate::common::error::invalid_input;

/// Parses `NAME=COMMAND ARGUMENTS`.
pub fn parse_contender(text: &str) -> Result<Contender, String> {
    let invalid =
        || format!("invalid contender {text:?} (expected 'tokio=path/to/server --addr 127.0.0.1:0')");
    let (name, command) = text.split_once('=').ok_or_else(invalid)?;
    let mut words = command.split_whitespace();
    let program = words.next().filter(|_| !name.trim().is_empty()).ok_or_else(invalid)?;
    Ok(Contender::new(name.trim(), Path::new(program), &words.collect::<Vec<_>>()))
}

/// Adds the contenders from the command line, configured for the cells' protocol.
pub fn add_contenders(config: &mut LabConfig, contenders: &[Contender]) -> io::Result<()> {
    config.add_contenders(contenders).map_err(|name| {
        invalid_input(format!(
            "contender {name} does not serve TLS, which this scenario requires (add {{certificate}} and {{key}} to its \
             command as the paths of these files)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_contender_is_rejected_if_cells_use_tls() {
        let mut config = LabConfig::preset("tls", "anello".into()).unwrap();
        let error =
            add_contenders(&mut config, &[parse_contender("a=./a").unwrap()]).unwrap_err().to_string();
        assert!(error.starts_with("contender a does not serve TLS"), "{error}");
        assert!(error.contains("{certificate} and {key}"), "{error}");
    }

    #[test]
    fn contender_requires_name_and_command() {
        let contender = parse_contender("tokio = ./echo --addr 127.0.0.1:0").unwrap();
        assert_eq!((contender.name.as_str(), contender.program.as_path()), ("tokio", Path::new("./echo")));
        assert_eq!(contender.arguments, ["--addr", "127.0.0.1:0"]);
        for invalid in ["", "tokio", "tokio=", "=./echo"] {
            assert!(parse_contender(invalid).is_err(), "{invalid}");
        }
    }
}
