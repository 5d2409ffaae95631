//! Help of every command.

use millstream_tests::shell::Shell;

#[test]
fn every_command_has_help_with_an_example() {
    let shell = Shell::new(&std::env::temp_dir());
    let mut seen = Vec::new();
    let mut waiting: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let mut line: Vec<&str> = path.iter().map(String::as_str).collect();
        line.push("--help");
        let help = shell.run(&line).with_code(0).stdout;
        let command = ["millstream"].into_iter().chain(path.iter().map(String::as_str));
        let command = command.collect::<Vec<_>>().join(" ");
        let below = commands(&help);
        // A command with subcommands leaves the examples to them.
        if below.is_empty() {
            let examples = help.split_once("Examples:").map(|(_, examples)| examples).unwrap_or_default();
            assert!(
                examples.contains(&format!("  {command}")) || examples.contains(&format!("$({command}")),
                "{help}"
            );
            seen.push(command);
        } else {
            waiting.extend(below.into_iter().map(|name| [path.clone(), vec![name]].concat()));
        }
    }
    let wanted = [
        "audit",
        "bench ingest",
        "cancel",
        "check",
        "checkpoint",
        "completions",
        "convert",
        "dataset diff",
        "dataset list",
        "dataset register",
        "dataset rollback",
        "dataset show",
        "dataset stats",
        "doctor",
        "eval",
        "explain",
        "export",
        "feeds",
        "generate",
        "history",
        "init",
        "inspect",
        "lineage",
        "list",
        "logs",
        "metrics",
        "pause",
        "peers init-ca",
        "peers issue",
        "peers revoke",
        "predict",
        "profile",
        "remove",
        "rerun",
        "resume",
        "show",
        "submit",
        "top",
        "train",
        "trials",
        "wait",
        "watch",
        "web",
    ];
    seen.sort();
    assert_eq!(seen, wanted.map(|name| format!("millstream {name}")));
}

#[test]
fn the_version_is_printed() {
    let shell = Shell::new(&std::env::temp_dir());
    let version = shell.run(&["--version"]).with_code(0).stdout;
    assert_eq!(version.trim(), concat!("millstream ", env!("CARGO_PKG_VERSION")));
}

/// The subcommands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}
