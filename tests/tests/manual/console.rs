//! Runs the `console` blocks of a page in order, as one session of `sh`, in a directory with a copy of `examples/`.
//!
//! A line that starts with `$ ` is a command; it continues on the next line after a `\`. The lines up to the next command
//! are its output, on both streams. In them, `...` stands for any text, and a line `...` for any lines. Without such lines the
//! output may be anything. A command must succeed unless the next one is `echo $?`.
//!
//! A daemon with this session's socket runs on pages that contain [`WITH_A_DAEMON`].

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::Mutex;

use millstream_tests::programs::{Daemon, group, kill, program, wait_until};

use crate::page::{self, Block, Page};

/// A comment of pages whose commands need a daemon.
const WITH_A_DAEMON: &str = "<!-- test: a daemon runs -->";

/// Pages that run at a time.
const WORKERS: usize = 2;

/// Precedes the exit status of a command in the output.
const MARK: &str = "=== exit status ";

/// What happens on a page, in order.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A block is written to a file.
    Write {
        file: String,
        text: String,
    },
    Run(Command),
}

#[derive(Debug, PartialEq, Eq)]
struct Command {
    line: usize,
    text: String,
    /// Expected lines; anything if there are none.
    output: Vec<String>,
}

#[test]
fn commands_print_what_the_manual_shows() {
    let pages = page::all();
    let sessions: Vec<_> = pages.iter().map(|page| (page, steps(page))).collect();
    let sessions =
        sessions.into_iter().filter(|(_, steps)| steps.iter().any(|step| matches!(step, Step::Run(_))));
    let waiting: Mutex<Vec<_>> = Mutex::new(sessions.collect());
    assert!(waiting.lock().unwrap().len() > 3, "pages with commands");
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((page, steps)) = { waiting.lock().unwrap().pop() } {
                    wrong.lock().unwrap().extend(session(page, &steps));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn steps(page: &Page) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in &page.blocks {
        if let Some(file) = block.file() {
            steps.push(Step::Write { file: file.to_owned(), text: block.text.clone() });
        } else if block.language == "console" {
            steps.extend(commands(block).into_iter().map(Step::Run));
        }
    }
    steps
}

/// The commands of a block.
fn commands(block: &Block) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for (nth, line) in block.text.lines().enumerate() {
        let last = commands.last_mut();
        match (line.strip_prefix("$ "), last) {
            (_, Some(last)) if last.output.is_empty() && last.text.ends_with('\\') => {
                last.text.push('\n');
                last.text.push_str(line);
            }
            (Some(text), _) => {
                let line = block.line + nth;
                commands.push(Command { line, text: text.to_owned(), output: Vec::new() });
            }
            (None, Some(last)) => last.output.push(line.to_owned()),
            (None, None) => panic!("line {}: a `console` block starts with `$ `", block.line + nth),
        }
    }
    commands
}

/// Runs the steps; returns what differs from the page.
fn session(page: &Page, steps: &[Step]) -> Vec<String> {
    let place = tempfile::Builder::new().prefix("manual").tempdir().unwrap();
    let (work, around) = (place.path().join("work"), place.path());
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples"), &work.join("examples"));
    let daemon = page.text.contains(WITH_A_DAEMON).then(|| Daemon::start(around));
    fs::write(around.join("script"), script(steps, around)).unwrap();
    let programs = program("millstream").parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let output = File::create(around.join("output")).unwrap();
    let mut sh = Process::new("sh");
    sh.arg(around.join("script")).current_dir(&work).process_group(0);
    sh.env("PATH", path).env("HOME", around).env("TMPDIR", around).env("NO_COLOR", "1");
    sh.env("XDG_RUNTIME_DIR", around).env("XDG_STATE_HOME", around).env_remove("MILLSTREAM_LOG");
    sh.env("MILLSTREAM_SOCKET", around.join("millstreamd.sock"));
    sh.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut sh = sh.spawn().unwrap();
    wait_until(&format!("{} has run", page.path.display()), || sh.try_wait().unwrap().is_some());
    // Commands that the page leaves in the background.
    group(sh.id()).into_iter().for_each(|process| _ = kill(process));
    drop(daemon);
    let printed = fs::read_to_string(around.join("output")).unwrap();
    let differences = compare(steps, &printed);
    differences.into_iter().map(|text| format!("{}:{text}", page.path.display())).collect()
}

/// A script that runs the commands, each followed by a line with its exit status.
fn script(steps: &[Step], around: &Path) -> String {
    let mut script = String::new();
    for (nth, step) in steps.iter().enumerate() {
        match step {
            Step::Write { file, text } => {
                let source = around.join(format!("file-{nth}"));
                fs::write(&source, text).unwrap();
                writeln!(script, "cp {} {file}", source.display()).unwrap();
            }
            // The status is that of the command for the next one, too.
            Step::Run(Command { text, .. }) => {
                writeln!(script, "{text}\nstatus=$?; printf '\\n{MARK}%d\\n' $status; (exit $status)")
                    .unwrap();
            }
        }
    }
    script
}

/// Compares what was printed with the page.
fn compare(steps: &[Step], printed: &str) -> Vec<String> {
    let commands: Vec<&Command> = steps
        .iter()
        .filter_map(|step| if let Step::Run(command) = step { Some(command) } else { None })
        .collect();
    let mut lines = printed.lines();
    let mut differences = Vec::new();
    for (nth, command) in commands.iter().enumerate() {
        let mut output = Vec::new();
        let status = loop {
            match lines.next() {
                Some(line) => match line.strip_prefix(MARK) {
                    Some(status) => break status.to_owned(),
                    None => output.push(line.trim_end()),
                },
                None => break "that of a shell that ended early".to_owned(),
            }
        };
        // An empty line precedes the mark.
        if output.last() == Some(&"") {
            output.pop();
        }
        let is_looked_at = commands.get(nth + 1).is_some_and(|next| next.text == "echo $?");
        let expected: Vec<&str> = command.output.iter().map(|line| line.trim_end()).collect();
        let matches = expected.is_empty() || lines_match(&expected, &output);
        if !matches || status != "0" && !is_looked_at {
            let Command { line, text, .. } = command;
            let (wanted, found) = (expected.join("\n  "), output.join("\n  "));
            differences.push(format!(
                "{line}: $ {text}\nexit status {status}; expected:\n  {wanted}\nprinted:\n  {found}\n"
            ));
        }
    }
    differences
}

fn lines_match(expected: &[&str], output: &[&str]) -> bool {
    match (expected, output) {
        ([], output) => output.is_empty(),
        (["...", rest @ ..], _) => (0..=output.len()).any(|skipped| lines_match(rest, &output[skipped..])),
        ([pattern, rest @ ..], [line, others @ ..]) => {
            line_matches(pattern, line) && lines_match(rest, others)
        }
        ([_, ..], []) => false,
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    match pattern.split_once("...") {
        None => pattern == line,
        Some((before, after)) => line.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| line_matches(after, &rest[at..]))
        }),
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            // Runs of someone who tried the examples here.
            true if entry.file_name() == "checkpoints" => {}
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn run(line: usize, text: &str, output: &[&str]) -> Command {
    Command { line, text: text.to_owned(), output: output.iter().map(|&line| line.to_owned()).collect() }
}

#[test]
fn commands_are_separated_from_their_output() {
    let text = "$ a \\\n    b\nc\n\nd\n$ e\n".to_owned();
    let block = Block { language: "console".to_owned(), marks: Vec::new(), line: 7, text };
    assert_eq!(commands(&block), [run(7, "a \\\n    b", &["c", "", "d"]), run(12, "e", &[])]);
}

#[test]
fn output_is_compared_loosely() {
    for (expected, output, wanted) in [
        ("a ... c", "a b c", true),
        ("a ... c", "a b d", false),
        ("a...", "a", true),
        ("...\nb", "x\ny\nb", true),
        ("...\nb", "x\nb\ny", false),
        ("a\n...", "a", true),
        ("a", "a\nb", false),
    ] {
        let lines = |text: &'static str| text.lines().collect::<Vec<_>>();
        assert_eq!(lines_match(&lines(expected), &lines(output)), wanted, "{expected:?} {output:?}");
    }
}

#[test]
fn a_difference_and_a_failure_are_reported() {
    let steps = ["a", "b", "echo $?", "c"].map(|text| Step::Run(run(1, text, &["x"])));
    let all = |last: &str| format!("x\n\n{MARK}0\nx\n\n{MARK}2\nx\n\n{MARK}0\n{last}");
    assert_eq!(compare(&steps, &all(&format!("x\n\n{MARK}0\n"))), [""; 0]);
    for last in [format!("y\n\n{MARK}0\n"), format!("x\n\n{MARK}1\n"), "x\n".to_owned()] {
        assert_eq!(compare(&steps, &all(&last)).len(), 1, "{last}");
    }
}
