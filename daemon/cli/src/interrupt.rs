//! Ctrl-C.
//!
//! Commands that write files or own a job listen for SIGINT and SIGTERM and clean up ([`listen`]); all others end at
//! once ([`end_at_once`]). Both install a handler, because a process that a script starts in the background inherits
//! an ignored SIGINT, and without a handler a command that waits for storage would then never end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Failure;

/// Lets SIGINT and SIGTERM end this process, even where it inherited that they are ignored.
pub(crate) fn end_at_once() -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, Arc::new(AtomicBool::new(true)))?;
    }
    Ok(())
}

/// Listens for SIGINT and SIGTERM. The first is told through the receiver; the second ends the process.
pub(crate) fn listen() -> Result<watch::Receiver<bool>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (asked, receiver) = watch::channel(false);
    tokio::spawn(async move {
        for asked_before in [false, true] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if asked_before {
                // Workers of a daemon hosted here die with this process.
                std::process::exit(1);
            }
            asked.send_replace(true);
        }
    });
    Ok(receiver)
}

/// As [`listen`], from a thread outside of `runtime`.
pub(crate) fn listen_on(runtime: &Runtime) -> Result<watch::Receiver<bool>, Failure> {
    let _inside = runtime.enter();
    listen()
}

/// Runs `work` unless a signal comes first: then drops it, and with it its unfinished files.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    unless(listen()?, work).await
}

/// As [`unless_interrupted`], for a command that listens already.
pub(crate) async fn unless<T>(
    mut interrupted: watch::Receiver<bool>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        result = work => result,
        _ = interrupted.wait_for(|&interrupted| interrupted) => {
            Err(Failure::Failed(anyhow::anyhow!("interrupted")))
        }
    }
}
