//! The other workers of a job: how they meet, and how the loss of one is recognised.

use std::time::Duration;

use anyhow::{Error, Result, bail};
use millstream_backend::collective::{
    Alone, CollectiveError, Communicator, ConnectError, HostListener, OpenUcxError, Recorder, Reducer,
};
use millstream_trainer::session::SessionError;

use crate::device;
use crate::link::Link;
use crate::protocol::{FromWorker, ReduceRole, ToWorker, TrainRole};

/// Time limit for all workers to connect, once all are listening.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects this worker to the others of its job, whose addresses the daemon passes on. A worker that only exchanges gradients
/// with itself needs no others. Also returns the step after which no checkpoint is to be restored, if there is one.
///
/// # Errors
/// When UCX or the network between hosts cannot be used, or a worker does not connect in time.
pub(crate) fn connect(role: &TrainRole, link: &mut Link) -> Result<(Communicator, Option<u64>)> {
    let limit = Duration::from_secs(role.timeout_seconds.into());
    if role.training.ranks() == 1 {
        return Ok((Communicator::new(Alone, limit, None)?, role.newest_step));
    }
    let listener = HostListener::open(&device::ucx_libraries(), role.network.as_deref()).map_err(explain)?;
    let world = meet(&listener, link)?;
    let addresses = (&world.addresses[..], world.reducers);
    let host = listener.connect(role.rank as usize, addresses, CONNECT_TIMEOUT)?;
    Ok((Communicator::new(host, limit, Some(world.recorder))?, world.newest_step))
}

/// Adds gradients for the workers of a job until all have left.
///
/// # Errors
/// As of [`connect`]; or if a worker ends without notice, or does not take part in a sum in time.
pub(crate) fn reduce(role: &ReduceRole, link: &mut Link) -> Result<FromWorker> {
    let limit = Duration::from_secs(role.timeout_seconds.into());
    let listener = HostListener::open(&device::ucx_libraries(), Some(&role.network)).map_err(explain)?;
    let world = meet(&listener, link)?;
    let addresses = (&world.addresses[..], world.reducers);
    let transport = listener.connect_reducer(role.number as usize, addresses, CONNECT_TIMEOUT)?;
    Reducer::new(transport, limit, Some(world.recorder)).run()?;
    Ok(FromWorker::Stopped)
}

/// What the daemon sends a worker once all of them are listening.
struct World {
    addresses: Vec<Vec<u8>>,
    reducers: usize,
    newest_step: Option<u64>,
    recorder: Recorder,
}

/// Reports that this worker is listening, and waits until all are.
fn meet(listener: &HostListener, link: &mut Link) -> Result<World> {
    link.send(&FromWorker::Listening { address: listener.address().to_vec() })?;
    let Some(ToWorker::Connect { addresses, reducers, newest_step }) = link.receive()? else {
        bail!("the daemon did not send the addresses of the other workers");
    };
    Ok(World { addresses, reducers: reducers as usize, newest_step, recorder: link.receive_record()? })
}

/// The error, with the key that names the interface.
fn explain(error: OpenUcxError) -> Error {
    match error {
        OpenUcxError::Interface(_) => {
            Error::new(error).context("peers.data_interface of the daemon's configuration")
        }
        error => error.into(),
    }
}

/// Whether a worker has ended with `error` because it lost another one: in a collective operation, or while connecting, when
/// UCX does not find the memory of one that has just died. One that has restored another state is as good as lost.
pub(crate) fn is_peer_lost(error: &Error) -> bool {
    error.chain().any(|cause| {
        let in_session = matches!(
            cause.downcast_ref(),
            Some(SessionError::Collective(_) | SessionError::OtherState { .. })
        );
        let of_peer = |error: &ConnectError| {
            matches!(error, ConnectError::Ucx(_) | ConnectError::Process { .. } | ConnectError::Exchange(_))
        };
        let in_reducer = cause.is::<CollectiveError>();
        in_session || in_reducer || cause.downcast_ref().is_some_and(of_peer)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn an_interface_that_cannot_be_used_is_an_error_of_the_configuration() {
        let Err(error) = HostListener::open(&device::ucx_libraries(), Some("lo,no-such")) else {
            panic!("opened")
        };
        let error = explain(error);
        assert!(!is_peer_lost(&error));
        let message = format!("{error:#}");
        let expected = "peers.data_interface of the daemon's configuration: network interface no-such: this host has none";
        assert!(message.starts_with(expected), "{message}");
    }

    #[test]
    fn a_failed_collective_operation_is_a_lost_worker() {
        let lost = SessionError::from(CollectiveError::Panicked);
        assert!(is_peer_lost(&Error::from(lost)));
        assert!(is_peer_lost(&Error::from(CollectiveError::Panicked)));
        let lost = Err::<(), _>(ConnectError::from(CollectiveError::Panicked)).context("connecting");
        assert!(lost.is_err_and(|error| is_peer_lost(&error)));
        assert!(!is_peer_lost(&ConnectError::Address { rank: 1, bytes: 4 }.into()));
        assert!(!is_peer_lost(&anyhow!("the disk is full")));
    }
}
