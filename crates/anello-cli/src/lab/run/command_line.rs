//! Command lines in reports that repeat or resume a run.

use std::path::Path;

use super::flags::RunArguments;

/// Returns the command line that repeats this run, without its `--out`.
pub fn repeat_command(words: impl Iterator<Item = String>) -> String {
    let mut command = "anello".to_owned();
    let mut words = words;
    while let Some(word) = words.next() {
        if word == "--out" {
            words.next();
        } else if !word.starts_with("--out=") {
            append_argument(&mut command, &word);
        }
    }
    command
}

/// Returns the command line that resumes an interrupted run: its JSON, and the flags that the JSON does not contain.
pub fn resume_command(arguments: &RunArguments, json: &Path) -> String {
    let mut command = "anello lab run".to_owned();
    let mut add = |flag: &str, value: &str| {
        append_argument(&mut command, flag);
        append_argument(&mut command, value);
    };
    add("--resume", &json.to_string_lossy());
    for contender in &arguments.contender {
        let mut definition = format!("{}={}", contender.name, contender.program.display());
        contender.arguments.iter().for_each(|argument| definition += &format!(" {argument}"));
        add("--contender", &definition);
    }
    if let Some(peers) = &arguments.peers {
        add("--peers", &peers.to_string_lossy());
    }
    add("--out", &arguments.out.to_string_lossy());
    command
}

/// Appends an argument to a command line, quoted if a shell requires it.
fn append_argument(command: &mut String, argument: &str) {
    let needs_quotes =
        argument.is_empty() || argument.contains(|c: char| c.is_whitespace() || "'\"\\$;&|<>*?".contains(c));
    command.push(' ');
    if needs_quotes {
        *command += &format!("'{}'", argument.replace('\'', r"'\''"));
    } else {
        command.push_str(argument);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_command_omits_out() {
        let words = ["lab", "run", "--out", "a b", "--seed", "3", "--out=c", "--contender", "x=y z", "it's"];
        let command = repeat_command(words.iter().map(|&word| word.to_owned()));
        assert_eq!(command, r"anello lab run --seed 3 --contender 'x=y z' 'it'\''s'");
    }

    #[test]
    fn resume_command_keeps_flags_missing_from_json() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: RunArguments,
        }
        let command = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from([&["run"][..], words].concat()).unwrap();
            resume_command(&line.run, Path::new("a b/lab-1.json"))
        };
        assert_eq!(command(&[]), "anello lab run --resume 'a b/lab-1.json' --out anello-lab");
        let other =
            ["--contender", "x = ./x  --cores {cores}", "--contender=y=y", "--peers", "p", "--out", "a b"];
        assert_eq!(
            command(&other),
            "anello lab run --resume 'a b/lab-1.json' --contender 'x=./x --cores {cores}' --contender y=y --peers p --out 'a b'"
        );
    }
}
