//! `--contender`: contenders that a command line gives.

use std::io;
use std::path::Path;

use anello_lab::{Cell, Contender};

/// Reads `NAME=COMMAND ARGUMENTS`.
pub fn parse_contender(text: &str) -> Result<Contender, String> {
    let wrong = || format!("{text:?} is not a server: write 'tokio=path/to/server --addr 127.0.0.1:0'");
    let (name, command) = text.split_once('=').ok_or_else(wrong)?;
    let mut words = command.split_whitespace();
    let program = words.next().filter(|_| !name.trim().is_empty()).ok_or_else(wrong)?;
    Ok(Contender::new(name.trim(), Path::new(program), &words.collect::<Vec<_>>()))
}

/// The contenders of flags, as these cells want them.
pub fn adapt_to_cells(contenders: &[Contender], cells: &[Cell]) -> io::Result<Vec<Contender>> {
    let is_http = cells.iter().any(|cell| cell.workload.target().is_some());
    let is_secure = cells.iter().any(|cell| cell.workload.cipher().is_some());
    if let Some(plain) = contenders.iter().find(|contender| is_secure && !contender.serves_tls()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} would serve no TLS, which this scenario asks for: write {{certificate}} and {{key}} where its command \
             takes these files",
                plain.name
            ),
        ));
    }
    let given = contenders.iter().cloned();
    Ok(given.map(|contender| if is_http { contender.serving_by_command() } else { contender }).collect())
}

#[cfg(test)]
mod tests {
    use anello_lab::Target;
    use anello_lab::peers::Serves;
    use anello_lab::tls::Cipher;

    use super::*;

    #[test]
    fn a_contender_of_flags_serves_what_the_scenario_asks_for() {
        let plain = parse_contender("a=./a --root {root}").unwrap();
        let secure = parse_contender("b=./b --pem {certificate} {key}").unwrap();
        let target = Target::Hello;
        let cell = Cell::http(target, 1);
        let both = adapt_to_cells(&[plain.clone(), secure.clone()], &[cell]).unwrap();
        assert_eq!(both[0].serves, [Serves::Files]);
        let cipher = Cipher::Aes128Gcm;
        let cells = [Cell { workload: cell.workload.under(cipher), ..cell }];
        let why = adapt_to_cells(&[secure.clone(), plain], &cells).unwrap_err().to_string();
        assert!(why.starts_with("a would serve no TLS") && why.contains("{certificate} and {key}"), "{why}");
        assert_eq!(adapt_to_cells(&[secure], &cells).unwrap().len(), 1);
    }

    #[test]
    fn a_contender_has_a_name_and_a_command() {
        let contender = parse_contender("tokio = ./echo --addr 127.0.0.1:0").unwrap();
        assert_eq!((contender.name.as_str(), contender.program.as_path()), ("tokio", Path::new("./echo")));
        assert_eq!(contender.arguments, ["--addr", "127.0.0.1:0"]);
        for wrong in ["", "tokio", "tokio=", "=./echo"] {
            assert!(parse_contender(wrong).is_err(), "{wrong}");
        }
    }
}
