//! `millstreamd`: the daemon behind its control socket.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use millstream_daemon::arguments::{Arguments, LogFormat};
use millstream_daemon::config::{ConfigFile, Surroundings};
use millstream_daemon::journal::Journal;
use millstream_daemon::{server, socket};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

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
    log(arguments.log_format);
    let line = ConfigFile {
        socket: arguments.socket,
        state_directory: arguments.state,
        metrics_address: arguments.metrics,
        web_address: arguments.web,
        ..ConfigFile::default()
    };
    let configuration = || {
        let file = arguments.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        file.overridden_by(line.clone()).resolve(&Surroundings::of_process())
    };
    let config = configuration()?;
    let inherited = socket::inherited()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the daemon's threads")?;
    let served = runtime.block_on(server::serve(config, inherited, configuration));
    // No job waits for the remaining blocking reads.
    runtime.shutdown_background();
    served
}

fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("MILLSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A closed log must not stop the daemon, and reporting the error would fail the same way.
    let lines = fmt::layer().log_internal_errors(false).with_writer(std::io::stderr);
    let lines = match (format, Journal::of_stderr()) {
        (LogFormat::Text, Some(journal)) => journal.boxed(),
        (LogFormat::Text, None) => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        (LogFormat::Json, _) => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
}
