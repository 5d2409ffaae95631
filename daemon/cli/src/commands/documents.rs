//! `millstream completions` and `man-pages`: what a package installs beside the programs, from the definitions of `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::arguments::{Arguments, Completions, ManPages};
use crate::failure::Failure;

/// Prints the completions of a shell.
pub(crate) fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "millstream", &mut text);
    io::stdout().lock().write_all(&text).map_err(anyhow::Error::from)?;
    Ok(())
}

/// Writes the manual pages of both programs and of every command.
pub(crate) fn man_pages(arguments: &ManPages) -> Result<(), Failure> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    write_all(&command, "millstream", directory)?;
    let daemon = millstream_daemon::arguments::Arguments::command();
    write(&daemon, ("millstreamd", "8"), directory)?;
    Ok(())
}

/// Writes the page `name` of a command, and the pages of those below it, whose names are joined by hyphens.
fn write_all(command: &Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    write(command, (name, "1"), directory)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_all(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(())
}

fn write(command: &Command, (name, section): (&str, &str), directory: &Path) -> anyhow::Result<()> {
    let command = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let man = Man::new(command)
        .title(name.to_uppercase())
        .section(section)
        .source(format!("Millstream {}", env!("CARGO_PKG_VERSION")))
        .manual("Millstream Manual");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let path = directory.join(format!("{name}.{section}"));
    fs::write(&path, page).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_text() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(&ManPages { directory: directory.path().to_owned() }).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(page("millstream.1").contains("millstream\\-train(1)"));
        assert!(page("millstream-train.1").contains("millstream train job.toml \\-\\-resume"));
        assert!(page("millstream-bench-ingest.1").contains(".TH"));
        assert!(page("millstreamd.8").contains("SIGHUP"));
        let shown = Arguments::command();
        let shown = shown.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown {
            assert!(page(&format!("millstream-{}.1", command.get_name())).contains(".SH SYNOPSIS"));
        }
        assert!(!directory.path().join("millstream-man-pages.1").exists());
    }
}
