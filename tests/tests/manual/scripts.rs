//! Commands that no test can run: those for `systemctl`, for a cloud, for a user's own files.
//!
//! `sh` blocks must parse. In them, and in code within a line, each command of `millstream` and each flag must be in its help.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use millstream_tests::programs::program;

use crate::page::{self, Page};

const PROGRAMS: [&str; 2] = ["millstream", "millstreamd"];

/// The help texts of commands, by their words.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, Option<String>>);

#[test]
fn sh_blocks_parse() {
    let mut seen = 0;
    for page in page::all() {
        for block in page.blocks.iter().filter(|block| block.language == "sh") {
            let mut sh =
                Command::new("sh").arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            sh.stdin.take().unwrap().write_all(block.text.as_bytes()).unwrap();
            let output = sh.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:{}: {errors}", page.path.display(), block.line);
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} blocks were found");
}

#[test]
fn commands_and_flags_exist() {
    let mut helps = Helps::default();
    let mut seen = 0;
    let mut wrong = Vec::new();
    for page in page::all() {
        for (line, text) in texts(&page) {
            for command in commands(&text) {
                seen += 1;
                if let Err(reason) = helps.check(&command) {
                    wrong.push(format!("{}:{line}: {}: {reason}", page.path.display(), command.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "only {seen} commands were found");
}

/// The texts of a page in which commands are looked for, with their lines.
fn texts(page: &Page) -> Vec<(usize, String)> {
    let codes = page.codes.iter().map(|code| (code.line, code.text.clone()));
    let blocks = page.blocks.iter().filter(|block| ["console", "sh"].contains(&block.language.as_str()));
    codes.chain(blocks.map(|block| (block.line, block.text.clone()))).collect()
}

/// The commands of `millstream` and `millstreamd` in a text: the program, then the words after it.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let mut found: Vec<Vec<String>> = Vec::new();
    let simple = text.lines().flat_map(|line| line.split(['|', ';', '&', '(', ')', '>', '<']));
    for part in simple {
        let words = part.split_whitespace().map(|word| word.trim_matches(['"', '\'', '`']).to_owned());
        let words: Vec<String> = words.skip_while(|word| precedes_a_command(word)).collect();
        let is_ours = words.first().is_some_and(|word| PROGRAMS.contains(&word.rsplit('/').next().unwrap()));
        let says_something = |words: &[String]| {
            words.len() > 1 && words[1].starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
        };
        if is_ours && says_something(&words) {
            found.push(words);
        }
    }
    found
}

/// Whether the name of a command follows this word.
fn precedes_a_command(word: &str) -> bool {
    ["$", "!", "sudo", "if", "then", "until", "while", "do"].contains(&word) || word.contains('=')
}

impl Helps {
    /// Checks the command's name and flags.
    fn check(&mut self, words: &[String]) -> Result<(), String> {
        let mut path = vec![words[0].rsplit('/').next().unwrap().to_owned()];
        if path[0] == "millstream" {
            let has_subcommands = |word: &String| ["bench", "dataset", "peers"].contains(&word.as_str());
            let names = if words.get(1).is_some_and(has_subcommands) { 2 } else { 1 };
            path.extend(words[1..].iter().take_while(|word| !word.starts_with('-')).take(names).cloned());
        }
        let help = self.of(&path).ok_or("no such command")?;
        for word in words.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
            let flag = word.split('=').next().unwrap();
            let is_number = flag[1..].starts_with(|c: char| c.is_ascii_digit());
            let defined = |defined: &str| defined.trim_end_matches(',') == flag;
            let listed = help
                .lines()
                .any(|line| line.trim_start().starts_with('-') && line.split_whitespace().any(defined));
            if !listed && !is_number {
                return Err(format!("no flag `{flag}`"));
            }
        }
        Ok(())
    }

    fn of(&mut self, path: &[String]) -> Option<&str> {
        let help = self.0.entry(path.to_owned()).or_insert_with(|| {
            let output = Command::new(program(&path[0])).args(&path[1..]).arg("--help").output().unwrap();
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        });
        help.as_deref()
    }
}

#[test]
fn commands_are_found_and_checked() {
    let text = "id=$(millstream submit job.toml --priority -3) && sudo /usr/bin/millstream \\\n  watch --jsn\nmillstream: x\nsystemctl status millstreamd -p";
    let found = commands(text);
    assert_eq!(found.len(), 2, "{found:?}");
    let mut helps = Helps::default();
    assert_eq!(helps.check(&found[0]), Ok(()));
    assert_eq!(helps.check(&found[1]), Err("no flag `--jsn`".to_owned()));
    for (text, wanted) in [
        ("millstream bench ingest job.toml --epochs 2", Ok(())),
        ("millstream bench outgest", Err("no such command".to_owned())),
        ("millstream peers issue --ca x y", Ok(())),
        ("millstream peers --measure --seconds 3", Ok(())),
        ("millstream list -n 0", Ok(())),
        ("millstreamd --config x --metrics y", Ok(())),
        ("millstreamd --sockets", Err("no flag `--sockets`".to_owned())),
    ] {
        assert_eq!(helps.check(&commands(text)[0]), wanted, "{text}");
    }
}
