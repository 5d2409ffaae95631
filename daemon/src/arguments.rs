//! The arguments of `millstreamd`, from which its manual page is generated as well.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Run training jobs and read their data, driven by `millstream` over a control socket.
#[derive(Parser)]
#[command(
    name = "millstreamd",
    version,
    after_help = "\
Signals: SIGTERM and SIGINT stop it after a checkpoint of every job, a second one at once; SIGHUP reads the configuration
again. MILLSTREAM_LOG=debug logs more."
)]
pub struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Control socket to listen on [default: /run/millstream/millstreamd.sock for root, else below
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory of the job database [default: /var/lib/millstream for root, else below $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Serve metrics for Prometheus over HTTP on this address and port, such as 127.0.0.1:9464, at /metrics [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Serve the web page on this address and port, such as 127.0.0.1:9465 [default: when `millstream web` asks for it]
    #[arg(long, value_name = "ADDRESS")]
    pub web: Option<SocketAddr>,
    /// Format of log lines on standard error; as "text", they go to the systemd journal if standard error is connected to
    /// it
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// A format of log lines.
#[derive(Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}
