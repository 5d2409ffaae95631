//! The life of `millstreamd`: binding the socket, serving, draining.
//!
//! The configuration is resolved before. The socket is bound first, so that a second daemon on it exits before it
//! starts a worker. The service manager is notified once the daemon answers. On SIGTERM or SIGINT, or when a cloud
//! announces that it takes this VM away, jobs take a checkpoint and stop. After a time limit their workers are killed;
//! they then resume from an earlier checkpoint.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio_stream::wrappers::ReceiverStream;

use crate::cgroup::WorkerGroups;
use crate::config::{Config, ServerConfig};
use crate::connections::{Connections, Peer};
use crate::daemon::Daemon;
use crate::feed_socket::FeedSocket;
use crate::notices::{Advice, Cloud, Notice};
use crate::peers::PeerPort;
use crate::priority::{Niceness, yield_to_jobs};
use crate::requests::RequestLimits;
use crate::roles::{Gate, Policy, Roles};
use crate::socket::{ControlSocket, Inherited, SocketFile};
use crate::standard_services::{self, Health};
use crate::web::Web;
use crate::{metrics, service, service_manager};

/// Capacity of the queue of accepted connections.
const ACCEPT_QUEUE: usize = 16;

/// The maximum number of requests of one connection that are being answered. Requests of others wait for them, so that it
/// is low; replies that are streamed, such as a log that is followed, do not count.
const MAX_REQUESTS_PER_CONNECTION: usize = 8;

/// The maximum number of open calls of one connection, streamed replies included.
const MAX_CALLS_PER_CONNECTION: u32 = 64;

/// Time limit for requests in flight at shutdown.
const REQUEST_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the daemon until it receives a stop signal, on the sockets `inherited` from the service manager or on its own. On
/// SIGHUP, `configuration` returns what to change.
///
/// # Errors
/// When it cannot start, or its socket fails.
pub async fn serve(
    config: ServerConfig,
    inherited: Inherited,
    configuration: impl Fn() -> Result<ServerConfig>,
) -> Result<()> {
    let mut stop = StopSignals::new()?;
    let hangups = signal(SignalKind::hangup()).context("listening for signals")?;
    let control = ControlThreads::start()?;
    let socket = {
        // Its events belong to these threads, too.
        let _entered = control.handle.enter();
        match inherited.control {
            Some(listener) => ControlSocket::of_inherited(listener)?,
            None => ControlSocket::bind(&config.socket)?,
        }
    };
    let feed_socket = FeedSocket::open(inherited.feeds, socket.path())?;
    let files = [socket.file().clone(), feed_socket.file().clone()];
    let roles = Arc::new(Roles::new(roles_of(&config, &files)?));
    let metrics_listener = {
        let _entered = control.handle.enter();
        config.metrics_address.map(metrics::http::bind).transpose()?
    };
    let web_listener = {
        let _entered = control.handle.enter();
        config.web_address.map(Web::bind).transpose()?
    };
    let peer_port = config.peers.as_ref().map(PeerPort::bind).transpose()?;
    let worker = config.daemon.worker.clone().in_groups(WorkerGroups::take_over());
    let host_name = peer_port.as_ref().map(|port| port.host_name().clone());
    let daemon = Daemon::start(Config { worker, host_name, ..config.daemon.clone() })?;
    let web = Web::new(daemon.clone())?;
    if let Some(listener) = web_listener {
        let _entered = control.handle.enter();
        web.serve(listener)?;
    }
    if let Some(listener) = metrics_listener {
        // Until the process ends, so that its stop can be watched.
        control.handle.spawn(metrics::http::serve(listener, daemon.clone()));
    }
    if let Some(port) = peer_port {
        daemon.set_peers(port.serve(&daemon, &Handle::current()));
    }
    // This thread has the priority of jobs, which those of feeds inherit.
    let feeds = feed_socket.serve(daemon.feeds().clone(), Arc::clone(&roles));
    let feeds = feeds.context("starting the thread of the socket for feeds")?;
    tracing::info!(socket = %socket.path().display(), "listening");

    let connections = Connections::new();
    let admitted = Arc::clone(&roles);
    let (accepted, incoming) = tokio::sync::mpsc::channel(ACCEPT_QUEUE);
    let (closing, closed) = oneshot::channel::<()>();
    let admitting = daemon.clone();
    let accepting = async move {
        // Dropped after the socket.
        let (_closing, mut socket) = (closing, socket);
        loop {
            let (stream, credentials, role) = socket.accept(&admitted).await?;
            let peer = Peer::new(credentials, &admitting.settings().shared_directories, role);
            let connection = connections.add(stream, peer, role);
            if accepted.send(Ok::<_, std::io::Error>(connection)).await.is_err() {
                return Ok::<_, std::io::Error>(());
            }
        }
    };
    let (end, ended) = oneshot::channel::<()>();
    let (health, health_service) = Health::serving().await;
    let server = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(MAX_REQUESTS_PER_CONNECTION)
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .layer(RequestLimits::new())
        .layer(Gate::new(Arc::clone(&roles), daemon.clone()))
        .add_service(service::server(daemon.clone(), Arc::clone(&roles), web))
        .add_service(health_service)
        .add_service(standard_services::reflection()?)
        .add_service(standard_services::reflection_alpha()?)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async {
            let _ = ended.await;
        });
    let server = control.handle.spawn(server);
    let accepting = control.handle.spawn(accepting);
    let stop_accepting = accepting.abort_handle();

    service_manager::ready(&daemon);
    let result = tokio::select! {
        result = accepting => match result {
            Ok(ended) => ended.context("accepting connections"),
            Err(error) => Err(error).context("accepting connections"),
        },
        () = stop.recv() => Ok(()),
        () = heed_notices(Cloud::of_host(), &daemon) => Ok(()),
        never = reload_on_hangup(hangups, &config, &daemon, (&roles, &files), configuration) => match never {},
        never = service_manager::report_status(&daemon) => match never {},
        never = service_manager::answer_watchdog(&daemon, &control.handle) => match never {},
    };
    stop_accepting.abort();
    // The task has ended, and the socket is gone, once its end of the channel is dropped.
    let _ = closed.await;
    service_manager::stopping(daemon.settings().stop_limit);
    health.stopping().await;
    tracing::info!("stopping; a second signal stops immediately");
    tokio::select! {
        () = daemon.shutdown() => {
            // It removes its socket. A panic is in the log.
            let _ = tokio::task::spawn_blocking(move || feeds.join()).await;
        }
        () = stop.recv() => tracing::warn!("stopped immediately"),
    }
    // Jobs on several hosts need it to leave in order.
    let left = leave_peers(&daemon);
    let _ = end.send(());
    let answered = tokio::time::timeout(REQUEST_DRAIN_TIMEOUT, server);
    let (answered, (), ()) = futures::join!(answered, daemon.flush_traces(), left);
    if answered.is_err() {
        tracing::warn!("requests were still in flight at shutdown");
    }
    result
}

/// Closes the port for peers now; the result is ready when this host has left their directories.
fn leave_peers(daemon: &Daemon) -> impl Future<Output = ()> + use<> {
    let left = daemon.peers().cloned().map(|peers| tokio::spawn(async move { peers.stop().await }));
    async move {
        if let Some(left) = left {
            // A panic is in the log.
            drop(left.await);
        }
    }
}

/// The policy of the configuration, for which the control socket and the one for feeds are opened or closed.
fn roles_of(config: &ServerConfig, sockets: &[SocketFile; 2]) -> Result<Policy> {
    let [control, _] = sockets;
    let policy = Policy::of(&config.daemon.settings.roles, control.group())?;
    sockets.iter().try_for_each(|socket| socket.open_to_all(policy.needs_open_socket()))?;
    Ok(policy)
}

/// Does as the notices of a cloud advise, and returns when one says that this VM ends. Never returns elsewhere.
async fn heed_notices(cloud: Option<Cloud>, daemon: &Daemon) {
    let mut notices = match cloud {
        Some(cloud) => cloud.notices(),
        None => return std::future::pending().await,
    };
    while let Some(Notice { advice, text }) = notices.next().await {
        match advice {
            Advice::Stop => {
                tracing::warn!("{text}");
                return;
            }
            Advice::Save => {
                tracing::warn!("{text}: every job saves a checkpoint and continues");
                daemon.checkpoint_all();
            }
            Advice::Nothing => tracing::info!("{text}"),
        }
    }
}

/// On SIGHUP, applies the configuration's changes that can take effect at once, and logs which cannot. An invalid
/// configuration changes nothing.
async fn reload_on_hangup(
    mut hangups: Signal,
    first: &ServerConfig,
    daemon: &Daemon,
    (roles, sockets): (&Roles, &[SocketFile; 2]),
    configuration: impl Fn() -> Result<ServerConfig>,
) -> Infallible {
    loop {
        hangups.recv().await;
        service_manager::reloading();
        let changed = configuration().and_then(|config| Ok((roles_of(&config, sockets)?, config)));
        match changed {
            Ok((policy, config)) => {
                roles.set(policy);
                for key in config.needs_restart(first) {
                    tracing::warn!(
                        "`{key}` changed in the configuration; it takes effect when the daemon restarts"
                    );
                }
                tracing::info!(settings = ?config.daemon.settings, "reloaded the configuration");
                daemon.configure(config.daemon.settings);
                if let Some(Err(error)) = daemon.peers().map(|peers| peers.reload()) {
                    tracing::error!("the former certificates stay in use: {error:#}");
                }
            }
            Err(error) => tracing::error!("the configuration is not reloaded: {error:#}"),
        }
        service_manager::ready(daemon);
    }
}

/// The threads that answer requests, apart from those of jobs.
struct ControlThreads {
    /// Present until it is dropped, which must not wait for the threads in an async context.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl ControlThreads {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .on_thread_start({
                // The first thread is the one that runs tasks, the others are those of blocking work.
                let started = AtomicBool::new(false);
                move || {
                    let is_first = !started.swap(true, Ordering::Relaxed);
                    yield_to_jobs(if is_first { Niceness::OfOne } else { Niceness::OfSeveral });
                }
            })
            .enable_all()
            .build();
        let runtime = runtime.context("starting the threads of the control socket")?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for ControlThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// SIGTERM and SIGINT.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("listening for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
