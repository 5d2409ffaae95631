//! A rank that is attached to a feed.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use millstream_batch::messages::MessageError;
use millstream_batch::{BatchSchema, Column, ColumnKind, Dtype, RingMapping};
use millstream_feed::client::{Attaching, Evaluation as FeedEvaluation, FeedClient, Next};
use millstream_feed::machines::Machine;
use millstream_feed::protocol::{Attach, Attached, ShardRequest, VERSION};
use millstream_feed::state::FeedState;
use millstream_feed::{Error, HostKind};
use pyo3::exceptions::{PyConnectionResetError, PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::Array;
use crate::errors::exception;
use crate::held::Held;
use crate::host::address;

/// How long Python waits without looking for signals, such as Ctrl-C.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// The number of this rank, the number of all ranks, and the number of those on this machine.
type Ranks = (u32, u32, u32);

/// The name of a column, its kind (`tensor`, `ragged` or `raw`), the type of its values, and the shape of a row.
type ColumnTuple = (String, &'static str, &'static str, Vec<u32>);

/// A rank that is attached to a feed.
#[pyclass(module = "millstream._native")]
pub(crate) struct Client {
    /// `None` once it is closed.
    feed: Option<FeedClient>,
    attached: Arc<Attached>,
    slots: Slots,
    /// A batch that arrived together with a signal.
    pending: Option<Batch>,
}

/// One pass over held-out data.
#[pyclass(module = "millstream._native")]
pub(crate) struct Evaluation {
    feed: FeedEvaluation,
    attached: Arc<Attached>,
    slots: Slots,
    pending: Option<Batch>,
}

/// The slots of a ring, and how many of them this process holds.
#[derive(Clone)]
struct Slots {
    count: usize,
    held: Arc<AtomicUsize>,
}

/// A batch. It holds its memory, as does every array of it.
#[pyclass(frozen, module = "millstream._native")]
pub(crate) struct Batch {
    held: Arc<Held>,
    attached: Arc<Attached>,
}

/// A place in a feed.
#[pyclass(frozen, module = "millstream._native")]
pub(crate) struct Position {
    encoded: Vec<u8>,
    attached: Arc<Attached>,
}

#[pymethods]
impl Client {
    /// Connects to the host of `program` and attaches to `feed`, when all ranks of this machine do. `run` is the number of the
    /// feed. `ranks` is rank, world and local world. `state` is JSON. `shard` is set if each of several machines reads a shard: a
    /// `ShardRequest` as JSON.
    #[staticmethod]
    fn attach(
        py: Python<'_>,
        program: &str,
        feed: String,
        run: String,
        ranks: Ranks,
        state: Option<&str>,
        shard: Option<&str>,
    ) -> PyResult<Self> {
        let attach = attach(feed, run, ranks, state, shard)?;
        let address = address(program)?;
        let attaching = py.detach(|| connect(&address, &attach)).map_err(not_attached)?;
        Self::wait(py, attaching)
    }

    /// Attaches to `feed` of the daemon, to which the socket `fd` is connected; takes the descriptor. `run` names the program
    /// and the number of the feed.
    #[staticmethod]
    fn attach_to_daemon(
        py: Python<'_>,
        fd: RawFd,
        feed: String,
        run: String,
        ranks: Ranks,
        state: Option<&str>,
        shard: Option<&str>,
    ) -> PyResult<Self> {
        if fd < 0 {
            return Err(PyValueError::new_err("a descriptor is not negative"));
        }
        // SAFETY: the caller passes the ownership of the descriptor of a socket that nothing else uses.
        let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let attach = attach(feed, run, ranks, state, shard)?;
        let start = || Attaching::start(socket, HostKind::Daemon, &attach);
        let attaching = py.detach(start).map_err(not_attached)?;
        Self::wait(py, attaching)
    }

    /// The next batch; `None` after the last one.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let Self { feed, attached, slots, pending } = self;
        let feed = feed.as_mut().ok_or_else(closed)?;
        next(py, &mut |limit| feed.next(limit), pending, (attached, slots))
    }

    /// Begins a pass over the held-out data `name`, when all ranks do.
    fn evaluate(&mut self, py: Python<'_>, name: &str) -> PyResult<Evaluation> {
        let feed = self.feed.as_mut().ok_or_else(closed)?;
        py.detach(|| feed.request_evaluation(name)).map_err(exception)?;
        loop {
            let begun = py.detach(|| feed.wait_for_evaluation(SIGNAL_CHECK)).map_err(exception)?;
            if let Some(feed) = begun {
                let slots = Slots { count: feed.slots(), held: Arc::default() };
                return Ok(Evaluation { feed, attached: Arc::clone(&self.attached), slots, pending: None });
            }
            py.check_signals()?;
        }
    }

    /// Leaves the feed. Batches stay valid.
    fn close(&mut self) {
        self.feed = None;
    }

    /// A hash that all machines whose ranks train together must have.
    #[getter]
    fn identity(&self) -> PyResult<String> {
        Ok(self.feed.as_ref().ok_or_else(closed)?.attached().identity.clone())
    }

    /// How the hosts of other machines reach this one's, as JSON, if it reads a shard.
    #[getter]
    fn meeting(&self) -> PyResult<Option<String>> {
        let meeting = self.feed.as_ref().ok_or_else(closed)?.attached().meeting.as_ref();
        let json = meeting.map(serde_json::to_string).transpose();
        json.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Sends the host the list of all machines, as JSON.
    fn meet(&self, py: Python<'_>, machines: &str) -> PyResult<()> {
        let machines: Vec<Machine> =
            serde_json::from_str(machines).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let feed = self.feed.as_ref().ok_or_else(closed)?;
        py.detach(|| feed.meet(machines)).map_err(exception)
    }

    /// Epochs of the feed.
    #[getter]
    fn epochs(&self) -> PyResult<u32> {
        Ok(self.feed.as_ref().ok_or_else(closed)?.attached().epochs)
    }

    /// Batches of an epoch, if the files have the number of their rows.
    #[getter]
    fn batches(&self) -> PyResult<Option<u64>> {
        Ok(self.feed.as_ref().ok_or_else(closed)?.attached().batches)
    }

    /// The address and the length of the ring's memory, which is mapped until the client is closed and no batch is left.
    #[getter]
    fn memory(&self) -> PyResult<(usize, usize)> {
        Ok(extent(&self.feed.as_ref().ok_or_else(closed)?.mapping()))
    }

    /// The columns of a batch.
    #[getter]
    fn columns(&self) -> PyResult<Vec<ColumnTuple>> {
        let column = |Column { name, kind }: &Column| {
            let dtype = kind.dtype().name();
            let (kind, shape) = match kind {
                ColumnKind::Fixed { shape, .. } => ("tensor", shape.clone()),
                ColumnKind::Ragged { .. } => ("ragged", Vec::new()),
                ColumnKind::Raw { .. } => ("raw", Vec::new()),
            };
            (name.clone(), kind, dtype, shape)
        };
        Ok(self.feed.as_ref().ok_or_else(closed)?.attached().schema.columns.iter().map(column).collect())
    }
}

impl Client {
    /// Waits until the feed is open.
    fn wait(py: Python<'_>, mut attaching: Attaching) -> PyResult<Self> {
        loop {
            match py.detach(|| attaching.wait(SIGNAL_CHECK)).map_err(not_attached)? {
                Ok(feed) => {
                    let attached = feed.attached();
                    let slots = Slots { count: attached.slots as usize, held: Arc::default() };
                    let attached = Arc::new(attached.clone());
                    return Ok(Self { feed: Some(feed), attached, slots, pending: None });
                }
                Err(waiting) => attaching = waiting,
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Evaluation {
    /// The next batch; `None` after the last one.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let Self { feed, attached, slots, pending } = self;
        next(py, &mut |limit| feed.next(limit), pending, (attached, slots))
    }

    /// A hash that all machines whose ranks evaluate together must have.
    #[getter]
    fn identity(&self) -> String {
        self.feed.identity().to_owned()
    }

    /// The address and the length of the memory of its ring, which is mapped until this value is gone and no batch is left.
    #[getter]
    fn memory(&self) -> (usize, usize) {
        extent(&self.feed.mapping())
    }
}

#[pymethods]
impl Batch {
    /// The epoch, from 0.
    #[getter]
    fn epoch(&self) -> u32 {
        self.held.batch().header().epoch
    }

    /// Its number within the epoch, from 0.
    #[getter]
    fn number(&self) -> u64 {
        self.held.batch().header().batch
    }

    /// Rows of this rank.
    #[getter]
    fn rows(&self) -> u32 {
        self.held.batch().header().rows
    }

    /// The most rows that a batch of this rank has.
    #[getter]
    fn capacity(&self) -> u32 {
        self.schema().rows
    }

    /// Whether it is the last batch of its epoch.
    #[getter]
    fn last(&self) -> bool {
        self.held.batch().header().last
    }

    /// Whether it was copied out of the ring, because the program holds all other slots.
    #[getter]
    fn is_copy(&self) -> bool {
        self.held.is_copy()
    }

    /// The values of a tensor `[rows, shape..]`, or offsets `[rows + 1]` and values. With `padded`, `rows` is the most
    /// that a batch has: further rows are zeros, or have no values.
    fn column(&self, place: usize, padded: bool) -> PyResult<(Option<Array>, Array)> {
        let Some(Column { kind, .. }) = self.schema().columns.get(place) else {
            return Err(PyIndexError::new_err(format!("no column {place}")));
        };
        let (batch, dtype) = (self.held.batch(), kind.dtype());
        let rows = if padded { self.schema().rows as usize } else { batch.rows() };
        let column = batch.column(place);
        let Some(offsets) = column.offsets else {
            let mut shape = vec![rows as i64];
            if let ColumnKind::Fixed { shape: of_row, .. } = kind {
                shape.extend(of_row.iter().map(|&size| i64::from(size)));
            }
            let bytes = &column.values[..shape.iter().product::<i64>() as usize * dtype.bytes()];
            return Ok((None, Array::new(&self.held, bytes, dtype, shape)));
        };
        let offsets = &offsets[..=rows];
        // Whatever the memory holds, the values lie within their section.
        let end = (offsets[rows] as usize).min(column.values.len() / dtype.bytes());
        let values = Array::new(&self.held, &column.values[..end * dtype.bytes()], dtype, vec![end as i64]);
        // No column has more values than an i32 counts, and libraries cannot compute with unsigned ones.
        let offsets = Array::new(&self.held, offsets, Dtype::Int32, vec![offsets.len() as i64]);
        Ok((Some(offsets), values))
    }

    /// The values of a raw column, one per row.
    fn raw<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        if !matches!(self.schema().columns.get(place), Some(Column { kind: ColumnKind::Raw { .. }, .. })) {
            return Err(PyIndexError::new_err(format!("no raw column {place}")));
        }
        let (batch, column) = (self.held.batch(), self.held.batch().column(place));
        let offsets = &column.offsets.unwrap_or_default()[..=batch.rows()];
        let value = |pair: &[u32]| column.values.get(pair[0] as usize..pair[1] as usize).unwrap_or_default();
        Ok(offsets.windows(2).map(|pair| PyBytes::new(py, value(pair))).collect())
    }

    /// The place after this batch. It does not hold the batch.
    #[getter]
    fn position(&self) -> Position {
        Position { encoded: self.held.batch().position().to_vec(), attached: Arc::clone(&self.attached) }
    }
}

#[pymethods]
impl Position {
    /// The state of the feed, as JSON.
    fn state(&self) -> PyResult<String> {
        let state = FeedState::new(&self.encoded, &self.attached);
        serde_json::to_string(&state).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

impl Batch {
    fn schema(&self) -> &BatchSchema {
        self.held.batch().layout().schema()
    }
}

/// Waits for a batch. Other threads of Python run meanwhile, and Ctrl-C ends the wait.
fn next(
    py: Python<'_>,
    wait: &mut (dyn FnMut(Duration) -> Result<Next, Error> + Send),
    pending: &mut Option<Batch>,
    (attached, slots): (&Arc<Attached>, &Slots),
) -> PyResult<Option<Batch>> {
    if let Some(batch) = pending.take() {
        return Ok(Some(batch));
    }
    // One that is ready is taken without a switch of threads.
    let mut next = wait(Duration::ZERO).map_err(exception)?;
    loop {
        match next {
            Next::Batch(lease) => {
                let held = Arc::new(Held::new(lease, slots.count, &slots.held));
                *pending = Some(Batch { held, attached: Arc::clone(attached) });
                // An exception must not lose the batch.
                py.check_signals()?;
                return Ok(pending.take());
            }
            Next::End => return Ok(None),
            Next::NotYet => py.check_signals()?,
        }
        next = py.detach(|| wait(SIGNAL_CHECK)).map_err(exception)?;
    }
}

fn extent(mapping: &RingMapping) -> (usize, usize) {
    let addresses = mapping.addresses();
    (addresses.start.addr(), addresses.end.addr() - addresses.start.addr())
}

/// Connects to the host at `address`, which must be a process of this user, and asks it for a feed.
fn connect(address: &SocketAddr, attach: &Attach) -> Result<Attaching, Error> {
    let socket = UnixStream::connect_addr(address)?;
    let owner = millstream_credentials::peer(&socket)?.uid;
    if owner != rustix::process::getuid().as_raw() {
        return Err(Error::Failed(format!("the address of this program's host belongs to user {owner}")));
    }
    Attaching::start(socket, HostKind::Process, attach)
}

fn attach(
    feed: String,
    run: String,
    ranks: Ranks,
    state: Option<&str>,
    shard: Option<&str>,
) -> PyResult<Attach> {
    let state = state.map(serde_json::from_str).transpose();
    let state = state.map_err(|error| PyValueError::new_err(format!("not a state of a feed: {error}")))?;
    let (rank, world, local_world) = ranks;
    let shard: Result<Option<ShardRequest>, _> = shard.map(serde_json::from_str).transpose();
    let shard =
        shard.map_err(|error| PyValueError::new_err(format!("not a request for a shard: {error}")))?;
    Ok(Attach { version: VERSION, feed, run, rank, world, local_world, state, shard })
}

/// The exception for an error while a rank attaches. A host that ends just then is one of the connection, which can be tried
/// again.
fn not_attached(error: Error) -> PyErr {
    match error {
        Error::HostGone(_) | Error::System(_) | Error::Message(MessageError::Io(_)) => {
            PyConnectionResetError::new_err(error.to_string())
        }
        error => exception(error),
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the feed is closed")
}
