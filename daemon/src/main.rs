//! `millstreamd`: the daemon behind its control socket.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use millstream_daemon::config::{ConfigFile, Surroundings};
use millstream_daemon::server;
use tracing_subscriber::EnvFilter;

/// Runs training jobs and feeds them; driven by `millstream` over its control socket.
#[derive(Parser)]
#[command(name = "millstreamd", version)]
struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Control socket to listen on [default: /run/millstream/millstreamd.sock for root, else below
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory of the job database [default: /var/lib/millstream for root, else below $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Format of log lines on standard error
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(millstream_worker::ARGUMENT)) {
        return millstream_worker::main();
    }
    millstream_batch::allocator::return_large_blocks_to_os();
    millstream_format::parquet::quiet_decoder_panics();
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    log_to_stderr(arguments.log_format);
    let file = arguments.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
    let line =
        ConfigFile { socket: arguments.socket, state_directory: arguments.state, ..ConfigFile::default() };
    let config = file.overridden_by(line).resolve(&Surroundings::of_process())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the daemon's threads")?;
    let served = runtime.block_on(server::serve(&config));
    // No job waits for the remaining blocking reads.
    runtime.shutdown_background();
    served
}

fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_env("MILLSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A closed log must not stop the daemon, and reporting the error would fail the same way.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}
