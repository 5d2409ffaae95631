//! `millstream`: the command line.

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod connection;
mod context;
mod doctor;
mod failure;
mod figures;
mod files;
mod gpu_use;
mod interrupt;
mod job_file;
mod plot;
mod printable;
mod profile;
mod progress;
mod screen;
mod standard_input;
mod statistics;
mod table;
mod target;
mod top;
mod unfinished;
mod workers;

use std::ffi::OsStr;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use arguments::Arguments;
use context::Context;
use screen::Screen;

fn main() -> ExitCode {
    // A daemon hosted in this program starts its workers from the same binary, so check for that first.
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(millstream_worker::ARGUMENT)) {
        return millstream_worker::main();
    }
    let arguments = Arguments::of_process();
    millstream_batch::allocator::return_large_blocks_to_os();
    millstream_format::parquet::quiet_decoder_panics();
    let screen = Screen::new();
    log_to(&screen);
    let context = Context::new(&arguments.global, screen);
    let result = commands::run(arguments.command, &context);
    failure::report(result, &context)
}

/// The default log filter. Events of jobs are off, because the commands print them.
const LOG_FILTER: &str = "warn,millstream_daemon::supervisor=off,millstream_daemon::daemon=off";

/// Sends logs to the screen, above any progress bar.
fn log_to(screen: &Screen) {
    let filter = EnvFilter::try_from_env("MILLSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let screen = screen.clone();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || screen.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .init();
}
