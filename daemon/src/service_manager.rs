//! What a service manager such as systemd hears of the daemon: readiness, a line about its jobs, liveness, reloads and the
//! stop (sd_notify(3)). Without a service manager, nothing is sent.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::runtime::Handle;

use crate::daemon::Daemon;

/// The interval between looks at the jobs. A line that has not changed is not sent again.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Time that the end of the process takes beyond its jobs.
const EXIT_TIME: Duration = Duration::from_secs(10);

/// The daemon answers requests.
pub(crate) fn ready(daemon: &Daemon) {
    let status = daemon.status();
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The daemon reads its configuration again.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify the service manager"),
    }
}

/// The daemon stops its jobs, for at most `limit`.
pub(crate) fn stopping(limit: Duration) {
    let micros = u32::try_from((limit + EXIT_TIME).as_micros()).unwrap_or(u32::MAX);
    let status = format!("stopping: jobs take a checkpoint, for at most {} s", limit.as_secs());
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros), NotifyState::Status(&status)]);
}

/// Keeps the line about the jobs up to date.
pub(crate) async fn report_status(daemon: &Daemon) -> Infallible {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return std::future::pending().await;
    }
    let mut last = daemon.status();
    loop {
        tokio::time::sleep(STATUS_INTERVAL).await;
        let status = daemon.status();
        if status != last {
            notify(&[NotifyState::Status(&status)]);
            last = status;
        }
    }
}

/// Sends signs of life, if the service manager expects them: after the threads that answer requests and those that work for
/// the daemon have answered. If they hang, the service manager restarts the daemon.
pub(crate) async fn answer_watchdog(daemon: &Daemon, control: &Handle) -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(period / 2);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answers = control.spawn(async {}).await.is_ok() && daemon.answers().await;
        if answers {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
