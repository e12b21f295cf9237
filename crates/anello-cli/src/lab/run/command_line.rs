//! Command lines that repeat or resume a run, for the reports.

use std::path::Path;

use anello_lab::Contender;
use anello_lab::contender::shell_quote;

use super::flags::RunArguments;

/// Returns the command line that repeats this run, without its output files.
pub fn repeat_command(mut words: impl Iterator<Item = String>) -> String {
    let mut command = "anello".to_owned();
    while let Some(word) = words.next() {
        if ["--out", "--json"].contains(&word.as_str()) {
            words.next();
        } else if !["--out=", "--json="].iter().any(|flag| word.starts_with(flag)) {
            command += &format!(" {}", shell_quote(&word));
        }
    }
    command
}

/// Returns the command line that resumes an interrupted run, including the flags that its JSON does not contain.
pub fn resume_command(arguments: &RunArguments, json: &Path) -> String {
    let mut flags = vec![("--resume", json.to_string_lossy())];
    for Contender { name, program, arguments, .. } in &arguments.contender {
        let words = [program.display().to_string()].into_iter().chain(arguments.iter().cloned());
        flags.push(("--contender", format!("{name}={}", words.collect::<Vec<_>>().join(" ")).into()));
    }
    flags.extend(arguments.peers.directory.as_ref().map(|peers| ("--peers", peers.to_string_lossy())));
    flags.push(("--out", arguments.out.to_string_lossy()));
    let flags = flags.iter().map(|(flag, value)| format!(" {flag} {}", shell_quote(value)));
    let copy = if arguments.copy_programs { " --copy-programs" } else { "" };
    "anello lab run".to_owned() + &flags.collect::<String>() + copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::run::flags::parse_run;

    #[test]
    fn repeat_command_omits_output_files() {
        let words = "--seed 3 --out=c --json d.json.gz --json=e --contender".split(' ');
        let words = ["lab", "run", "--out", "a b"].into_iter().chain(words).chain(["x=y z", "it's"]);
        let command = repeat_command(words.map(str::to_owned));
        assert_eq!(command, r"anello lab run --seed 3 --contender 'x=y z' 'it'\''s'");
    }

    #[test]
    fn resume_command_keeps_flags_missing_from_json() {
        let command = |words| resume_command(&parse_run(words), Path::new("a b/lab-1.json"));
        assert_eq!(command(&[]), "anello lab run --resume 'a b/lab-1.json' --out anello-lab");
        let copied = command(&["--server-host", "h", "--copy-programs"]);
        assert_eq!(copied, "anello lab run --resume 'a b/lab-1.json' --out anello-lab --copy-programs");
        let other =
            ["--contender", "x = ./x  --cores {cores}", "--contender=y=y", "--peers", "p", "--out", "a b"];
        let flags = "--contender 'x=./x --cores {cores}' --contender y=y --peers p --out 'a b'";
        assert_eq!(command(&other), format!("anello lab run --resume 'a b/lab-1.json' {flags}"));
    }
}
