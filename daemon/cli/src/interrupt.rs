//! Handling of Ctrl-C.
//!
//! Commands that write files or own a job listen for SIGINT and SIGTERM and clean up ([`listen`]); all others end
//! immediately ([`end_at_once`]). Both install a handler: a shell starts background processes with SIGINT ignored, and
//! without a handler a command that waits for storage would never end.
//!
//! A command that a signal ended has the exit status that shells give to it: 128 and the signal's number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use millstream_io::storage::Stores;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Failure;

/// The number of the signal that was received first; 0 before.
static RECEIVED: AtomicU8 = AtomicU8::new(0);

/// The exit status of a command that a signal ended; `None` if none was received.
pub(crate) fn exit_status() -> Option<u8> {
    let signal = RECEIVED.load(Ordering::Relaxed);
    (signal > 0).then_some(128 + signal)
}

/// Makes SIGINT and SIGTERM end this process, even if it was started with them ignored.
pub(crate) fn end_at_once() -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, Arc::new(AtomicBool::new(true)))?;
    }
    Ok(())
}

/// Listens for SIGINT and SIGTERM. The first sets the receiver to true; the second ends the process.
pub(crate) fn listen() -> Result<watch::Receiver<bool>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        for is_second in [false, true] {
            let signal = tokio::select! {
                _ = interrupt.recv() => SIGINT,
                _ = terminate.recv() => SIGTERM,
            };
            if is_second {
                // Workers of a daemon hosted here die with this process.
                std::process::exit(128 + signal);
            }
            RECEIVED.store(signal as u8, Ordering::Relaxed);
            sender.send_replace(true);
        }
    });
    Ok(receiver)
}

/// Like [`listen`], for a thread outside `runtime`.
pub(crate) fn listen_on(runtime: &Runtime) -> Result<watch::Receiver<bool>, Failure> {
    let _guard = runtime.enter();
    listen()
}

/// The error of a command that a signal has ended.
pub(crate) fn error() -> anyhow::Error {
    anyhow::anyhow!("interrupted")
}

/// From now on, a signal ends the process at once.
pub(crate) fn exit_on(runtime: &Runtime, mut interrupted: watch::Receiver<bool>) {
    runtime.spawn(async move {
        let is_interrupted = interrupted.wait_for(|&interrupted| interrupted).await.is_ok();
        if let Some(status) = exit_status().filter(|_| is_interrupted) {
            std::process::exit(status.into());
        }
    });
}

/// Like [`listen_on`]; a signal also ends all requests of `stores`.
pub(crate) fn cancelling(runtime: &Runtime, stores: &Stores) -> Result<watch::Receiver<bool>, Failure> {
    let interrupted = listen_on(runtime)?;
    let (mut waiting, stores) = (interrupted.clone(), stores.clone());
    runtime.spawn(async move {
        // An error means that nobody listens any more.
        if waiting.wait_for(|&interrupted| interrupted).await.is_ok() {
            stores.cancel();
        }
    });
    Ok(interrupted)
}

/// Runs `work` until a signal is received, which drops it and thereby deletes its unfinished files.
pub(crate) async fn unless<T>(
    mut interrupted: watch::Receiver<bool>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        result = work => result,
        _ = interrupted.wait_for(|&interrupted| interrupted) => {
            Err(Failure::Failed(error()))
        }
    }
}
