//! Contenders defined on the command line with `--contender`.

use std::io;
use std::path::Path;

use anello_lab::{Cell, Contender};

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

/// Returns the contenders of the command line, configured for the protocol of the cells.
pub fn adapt_to_cells(contenders: &[Contender], cells: &[Cell]) -> io::Result<Vec<Contender>> {
    let is_http = cells.iter().any(|cell| cell.workload.target().is_some());
    let is_secure = cells.iter().any(|cell| cell.workload.cipher().is_some());
    if let Some(plain) = contenders.iter().find(|contender| is_secure && !contender.serves_tls()) {
        return Err(invalid_input(format!(
            "contender {} does not serve TLS, which this scenario requires (add {{certificate}} and {{key}} to its \
             command as the paths of these files)",
            plain.name
        )));
    }
    let contenders = contenders.iter().cloned();
    Ok(contenders.map(|contender| if is_http { contender.serving_by_command() } else { contender }).collect())
}

#[cfg(test)]
mod tests {
    use anello_lab::Target;
    use anello_lab::peers::Serves;
    use anello_lab::tls::Cipher;

    use super::*;

    #[test]
    fn contender_adapts_to_protocol_of_scenario() {
        let plain = parse_contender("a=./a --root {root}").unwrap();
        let secure = parse_contender("b=./b --pem {certificate} {key}").unwrap();
        let target = Target::Hello;
        let cell = Cell::http(target, 1);
        let both = adapt_to_cells(&[plain.clone(), secure.clone()], &[cell]).unwrap();
        assert_eq!(both[0].serves, [Serves::Files]);
        let cipher = Cipher::Aes128Gcm;
        let cells = [Cell { workload: cell.workload.under(cipher), ..cell }];
        let error = adapt_to_cells(&[secure.clone(), plain], &cells).unwrap_err().to_string();
        assert!(error.starts_with("contender a does not serve TLS"), "{error}");
        assert!(error.contains("{certificate} and {key}"), "{error}");
        assert_eq!(adapt_to_cells(&[secure], &cells).unwrap().len(), 1);
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
