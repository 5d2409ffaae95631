//! UCX: the library, a worker with its endpoints, and messages in flight.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};

use super::parameters::{
    API_VERSION, BUSY, ContextParameters, EndpointParameters, IN_PROGRESS, LAST_STATUS, NO_ELEMENT,
    NO_IMMEDIATE_COMPLETION, OK, ReceivedMessage, RequestParameters, Status, WorkerParameters,
};
use crate::collective::interface::InterfaceError;
use crate::collective::memory::Buffer;
use crate::collective::transport::Deadline;
use crate::library::{Handle, Libraries, LibraryError, Name, functions};

functions! {
    /// Functions of libucp.
    struct Functions {
        ucs_status_string: fn(status: Status) -> *const c_char,
        ucs_global_opts_set_value: fn(name: *const c_char, value: *const c_char) -> Status,
        ucp_config_read: fn(prefix: *const c_char, file: *const c_char, config: *mut Handle) -> Status,
        ucp_config_modify: fn(config: Handle, name: *const c_char, value: *const c_char) -> Status,
        ucp_config_release: fn(config: Handle) -> (),
        ucp_init_version: fn(
            major: c_uint,
            minor: c_uint,
            parameters: *const ContextParameters,
            config: Handle,
            context: *mut Handle,
        ) -> Status,
        ucp_cleanup: fn(context: Handle) -> (),
        ucp_worker_create: fn(context: Handle, parameters: *const WorkerParameters, worker: *mut Handle) -> Status,
        ucp_worker_destroy: fn(worker: Handle) -> (),
        ucp_worker_get_address: fn(worker: Handle, address: *mut *mut c_void, bytes: *mut usize) -> Status,
        ucp_worker_release_address: fn(worker: Handle, address: *mut c_void) -> (),
        ucp_worker_get_efd: fn(worker: Handle, descriptor: *mut c_int) -> Status,
        ucp_worker_arm: fn(worker: Handle) -> Status,
        ucp_worker_flush_nbx: fn(worker: Handle, parameters: *const RequestParameters) -> *mut c_void,
        ucp_worker_progress: fn(worker: Handle) -> c_uint,
        ucp_ep_create: fn(worker: Handle, parameters: *const EndpointParameters, endpoint: *mut Handle) -> Status,
        ucp_tag_send_nbx: fn(
            endpoint: Handle,
            data: *const c_void,
            bytes: usize,
            tag: u64,
            parameters: *const RequestParameters,
        ) -> *mut c_void,
        ucp_tag_recv_nbx: fn(
            worker: Handle,
            data: *mut c_void,
            bytes: usize,
            tag: u64,
            tag_mask: u64,
            parameters: *const RequestParameters,
        ) -> *mut c_void,
        ucp_tag_recv_request_test: fn(request: *mut c_void, message: *mut ReceivedMessage) -> Status,
        ucp_request_check_status: fn(request: *mut c_void) -> Status,
        ucp_request_cancel: fn(worker: Handle, request: *mut c_void) -> (),
        ucp_request_free: fn(request: *mut c_void) -> (),
    }
}

const NAME: Name = Name {
    library: "UCX, the library for communication between workers",
    files: &["libucp.so.0"],
    remedy: "for jobs with several workers install package libucx0 (deb) or ucx (rpm), 1.10 or later",
};
/// The first version whose functions take their parameters as structures, in all cases that are used here.
const LEAST_VERSION: i32 = 1_100;

/// A call of UCX failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("UCX: {call}: {reason}")]
pub struct UcxError {
    /// The function.
    pub call: &'static str,
    /// UCX's message.
    pub reason: String,
}

/// Why UCX cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenUcxError {
    /// The library is missing or too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library refuses to start.
    #[error(transparent)]
    Call(#[from] UcxError),
    /// The network between hosts cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// This host cannot be told from others.
    #[error("the identity of this host cannot be read: {0}")]
    Host(#[source] std::io::Error),
}

/// The communication resources of a process: UCX's context with one worker, its endpoints and requests.
pub(super) struct Worker {
    functions: Functions,
    context: Handle,
    worker: Handle,
    /// The messages that UCX may still read or write.
    in_flight: Cell<usize>,
    /// Where UCX writes why connections have failed.
    failures: RefCell<Vec<Arc<AtomicI8>>>,
    is_abandoned: bool,
}

/// The transports of a worker.
#[derive(Clone, Copy)]
pub(super) enum Transports<'a> {
    /// Shared memory of System V, which is as fast as that of POSIX, and not limited by the size of `/dev/shm`, which
    /// containers keep small.
    SharedMemory,
    /// TCP over these network interfaces, separated by commas.
    Tcp(&'a str),
}

impl Transports<'_> {
    /// The keys of UCX's configuration with their values. Its environment variables have no influence on these then.
    fn keys(self) -> Vec<(&'static CStr, CString)> {
        match self {
            Self::SharedMemory => vec![(c"TLS", c"sysv".to_owned())],
            Self::Tcp(interfaces) => vec![
                (c"TLS", c"tcp".to_owned()),
                // A name with a zero byte is the name of no interface.
                (c"NET_DEVICES", CString::new(interfaces).unwrap_or_default()),
                // Without copies, the death of a rank may abort another one; see the documentation of the parent module.
                (c"ZCOPY_THRESH", c"inf".to_owned()),
                // A rendezvous without zero-copy uses the two directions of a link one after the other.
                (c"RNDV_THRESH", c"inf".to_owned()),
                // Copies of this size are as fast as none. Before UCX 1.17, keys of a transport have no prefix here, later
                // they have; the other key is ignored.
                (c"TX_SEG_SIZE", c"64kb".to_owned()),
                (c"TCP_TX_SEG_SIZE", c"64kb".to_owned()),
                // Otherwise, connecting to a host that does not answer blocks for minutes.
                (c"CONN_NB", c"y".to_owned()),
                (c"TCP_CONN_NB", c"y".to_owned()),
            ],
        }
    }
}

/// A connection to another worker. It lives as long as the worker.
pub(super) struct Endpoint {
    handle: Handle,
    /// Why the connection has failed; [`OK`] if it has not, or if nobody observes it.
    failure: Arc<AtomicI8>,
}

/// Writes why a connection has failed to `failure`, as [`Worker::connect_observed`] has passed it.
unsafe extern "C" fn note_failure(failure: *mut c_void, _endpoint: Handle, status: Status) {
    // SAFETY: the worker keeps it alive until UCX is closed.
    let failure = unsafe { &*failure.cast::<AtomicI8>() };
    failure.store(status, Ordering::Relaxed);
}

/// A message that UCX reads from or writes to `B`. The buffer is freed only after UCX has reported completion; if nobody
/// asks, it is leaked.
pub(super) struct InFlight<B> {
    request: NonNull<c_void>,
    buffer: ManuallyDrop<B>,
}

// SAFETY: requests are used with their worker, by one thread at a time.
unsafe impl<B: Send> Send for InFlight<B> {}

/// The state of a message.
pub(super) enum Progress<B, R> {
    Open(InFlight<B>),
    Complete(R),
}

impl Worker {
    /// Opens UCX with these transports.
    pub(super) fn open(libraries: &Libraries, transports: Transports<'_>) -> Result<Self, OpenUcxError> {
        let functions = load(libraries)?;
        let mut opened = Self {
            functions,
            context: Handle::NULL,
            worker: Handle::NULL,
            in_flight: Cell::new(0),
            failures: RefCell::default(),
            is_abandoned: false,
        };
        opened.silence()?;
        opened.create_context(transports)?;
        opened.create_worker()?;
        Ok(opened)
    }

    /// Keeps UCX from logging to standard output, which is a program's own. Its errors are returned. The variable that users of
    /// UCX know sets another level.
    fn silence(&self) -> Result<(), UcxError> {
        if std::env::var_os("UCX_LOG_LEVEL").is_some() {
            return Ok(());
        }
        // SAFETY: both strings are zero-terminated.
        let set =
            unsafe { (self.functions.ucs_global_opts_set_value)(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr()) };
        self.check("ucs_global_opts_set_value", set)
    }

    fn create_context(&mut self, transports: Transports<'_>) -> Result<(), UcxError> {
        let mut config = Handle::NULL;
        // SAFETY: `config` is valid for writes.
        let read = unsafe { (self.functions.ucp_config_read)(ptr::null(), ptr::null(), &raw mut config) };
        self.check("ucp_config_read", read)?;
        let created = self.configure(config, transports).and_then(|()| {
            let parameters = ContextParameters::tagged_messages();
            let (major, minor) = API_VERSION;
            let (parameters, context) = (&raw const parameters, &raw mut self.context);
            // SAFETY: the parameters and the configuration are valid, and the context is valid for writes.
            let status =
                unsafe { (self.functions.ucp_init_version)(major, minor, parameters, config, context) };
            self.check("ucp_init_version", status)
        });
        // SAFETY: the configuration is released once, after its last use.
        unsafe { (self.functions.ucp_config_release)(config) };
        created
    }

    fn configure(&self, config: Handle, transports: Transports<'_>) -> Result<(), UcxError> {
        for (key, value) in transports.keys() {
            // SAFETY: the configuration is valid, and the strings are zero-terminated.
            let set = unsafe { (self.functions.ucp_config_modify)(config, key.as_ptr(), value.as_ptr()) };
            // Before version 1.12, the configurations of transports cannot be set.
            if set != NO_ELEMENT {
                self.check("ucp_config_modify", set)?;
            }
        }
        Ok(())
    }

    fn create_worker(&mut self) -> Result<(), UcxError> {
        let parameters = WorkerParameters::serialized();
        // SAFETY: the context exists, and the worker is valid for writes.
        let created = unsafe {
            (self.functions.ucp_worker_create)(self.context, &raw const parameters, &raw mut self.worker)
        };
        self.check("ucp_worker_create", created)
    }

    /// The address that other workers connect to.
    pub(super) fn address(&self) -> Result<Vec<u8>, UcxError> {
        let (mut address, mut bytes) = (ptr::null_mut(), 0);
        // SAFETY: both results are valid for writes; the address has `bytes` bytes until it is released, once.
        unsafe {
            let got = (self.functions.ucp_worker_get_address)(self.worker, &raw mut address, &raw mut bytes);
            self.check("ucp_worker_get_address", got)?;
            let copy = std::slice::from_raw_parts(address.cast::<u8>(), bytes).to_vec();
            (self.functions.ucp_worker_release_address)(self.worker, address);
            Ok(copy)
        }
    }

    /// Connects to the worker with this address, which must be one that [`Worker::address`] has returned there.
    pub(super) fn connect(&self, address: &[u8]) -> Result<Endpoint, UcxError> {
        self.create_endpoint(&EndpointParameters::to(address), Arc::default())
    }

    /// As [`Worker::connect`]; UCX then reports when the connection fails.
    pub(super) fn connect_observed(&self, address: &[u8]) -> Result<Endpoint, UcxError> {
        let failure = Arc::<AtomicI8>::default();
        self.failures.borrow_mut().push(failure.clone());
        let argument = Arc::as_ptr(&failure).cast_mut().cast();
        self.create_endpoint(&EndpointParameters::observed(address, note_failure, argument), failure)
    }

    fn create_endpoint(
        &self,
        parameters: &EndpointParameters,
        failure: Arc<AtomicI8>,
    ) -> Result<Endpoint, UcxError> {
        let mut handle = Handle::NULL;
        // SAFETY: the address and `handle` are valid during the call.
        let created = unsafe { (self.functions.ucp_ep_create)(self.worker, parameters, &raw mut handle) };
        self.check("ucp_ep_create", created)?;
        Ok(Endpoint { handle, failure })
    }

    /// Why the connection of an endpoint has failed, if it has.
    pub(super) fn failure(&self, endpoint: &Endpoint) -> Option<UcxError> {
        self.check("connection", endpoint.failure.load(Ordering::Relaxed)).err()
    }

    /// Starts to send a message. `endpoint` is one of this worker's.
    pub(super) fn send(
        &self,
        endpoint: &Endpoint,
        data: Arc<Buffer>,
        tag: u64,
    ) -> Result<Progress<Arc<Buffer>, ()>, UcxError> {
        let parameters = RequestParameters::bytes(0);
        // SAFETY: the endpoint lives as long as the worker. The data stays valid and unchanged until completion: it is
        // shared, and kept in flight.
        let request = unsafe {
            let start = data.as_ptr().cast();
            (self.functions.ucp_tag_send_nbx)(endpoint.handle, start, data.len(), tag, &raw const parameters)
        };
        match NonNull::new(request) {
            None => Ok(Progress::Complete(())),
            Some(request) => Ok(Progress::Open(self.start("ucp_tag_send_nbx", request, data)?)),
        }
    }

    /// Starts to receive the message with this tag, of at most the buffer's size.
    pub(super) fn receive(&self, mut buffer: Buffer, tag: u64) -> Result<InFlight<Buffer>, UcxError> {
        // A receive that completes at once would not report the message's size.
        let parameters = RequestParameters::bytes(NO_IMMEDIATE_COMPLETION);
        // SAFETY: the buffer is valid for writes until completion: it is owned, and kept in flight.
        let request = unsafe {
            let (start, bytes) = (buffer.as_mut_ptr().cast(), buffer.len());
            let parameters = &raw const parameters;
            (self.functions.ucp_tag_recv_nbx)(self.worker, start, bytes, tag, u64::MAX, parameters)
        };
        match NonNull::new(request) {
            Some(request) => self.start("ucp_tag_recv_nbx", request, buffer),
            None => {
                Err(UcxError { call: "ucp_tag_recv_nbx", reason: "it has returned no request".to_owned() })
            }
        }
    }

    /// Whether a message has been sent.
    pub(super) fn sent(&self, message: InFlight<Arc<Buffer>>) -> Result<Progress<Arc<Buffer>, ()>, UcxError> {
        // SAFETY: the request has not been freed.
        let status = unsafe { (self.functions.ucp_request_check_status)(message.request.as_ptr()) };
        if status == IN_PROGRESS {
            return Ok(Progress::Open(message));
        }
        drop(self.end(message));
        self.check("ucp_tag_send_nbx", status)?;
        Ok(Progress::Complete(()))
    }

    /// Whether a message has been received: the buffer, and the message's size.
    pub(super) fn received(
        &self,
        message: InFlight<Buffer>,
    ) -> Result<Progress<Buffer, (Buffer, usize)>, UcxError> {
        let mut info = ReceivedMessage::default();
        // SAFETY: the request is one of a receive and has not been freed; `info` is valid for writes.
        let status =
            unsafe { (self.functions.ucp_tag_recv_request_test)(message.request.as_ptr(), &raw mut info) };
        if status == IN_PROGRESS {
            return Ok(Progress::Open(message));
        }
        let buffer = self.end(message);
        self.check("ucp_tag_recv_nbx", status)?;
        Ok(Progress::Complete((buffer, info.bytes)))
    }

    /// Gives up a message that has not arrived. It completes with an error.
    pub(super) fn cancel(&self, message: &InFlight<Buffer>) {
        // SAFETY: the request is one of this worker, and has not been freed.
        unsafe { (self.functions.ucp_request_cancel)(self.worker, message.request.as_ptr()) };
    }

    /// Hands all messages to the system, until the deadline. Those of failed connections are dropped.
    pub(super) fn flush(&self, deadline: Deadline) {
        let parameters = RequestParameters::bytes(0);
        // SAFETY: the worker exists.
        let request = unsafe { (self.functions.ucp_worker_flush_nbx)(self.worker, &raw const parameters) };
        let Some(request) = NonNull::new(request) else { return };
        // An error is that of a connection.
        let Ok(mut flush) = self.start("ucp_worker_flush_nbx", request, Arc::default()) else { return };
        while !deadline.left().is_zero() {
            self.progress();
            match self.sent(flush) {
                Ok(Progress::Open(open)) => flush = open,
                Ok(Progress::Complete(())) | Err(_) => return,
            }
        }
    }

    /// Makes this worker leak UCX's objects when it is dropped: they may be in any state.
    pub(super) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Advances all messages. Returns whether anything has happened.
    pub(super) fn progress(&self) -> bool {
        // SAFETY: the worker exists.
        unsafe { (self.functions.ucp_worker_progress)(self.worker) != 0 }
    }

    /// Prepares for sleep: returns whether [`Worker::events`] will become readable with the next event. Otherwise some are
    /// waiting for progress.
    pub(super) fn arm(&self) -> Result<bool, UcxError> {
        // SAFETY: the worker exists.
        match unsafe { (self.functions.ucp_worker_arm)(self.worker) } {
            BUSY => Ok(false),
            status => self.check("ucp_worker_arm", status).map(|()| true),
        }
    }

    /// The descriptor to wait on.
    pub(super) fn events(&self) -> Result<BorrowedFd<'_>, UcxError> {
        let mut descriptor = -1;
        // SAFETY: `descriptor` is valid for writes.
        let got = unsafe { (self.functions.ucp_worker_get_efd)(self.worker, &raw mut descriptor) };
        self.check("ucp_worker_get_efd", got)?;
        // SAFETY: the worker keeps its descriptor open as long as it exists.
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    fn start<B>(
        &self,
        call: &'static str,
        request: NonNull<c_void>,
        buffer: B,
    ) -> Result<InFlight<B>, UcxError> {
        let status = request.as_ptr() as isize;
        if (LAST_STATUS..0).contains(&status) {
            self.check(call, status as Status)?;
        }
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(InFlight { request, buffer: ManuallyDrop::new(buffer) })
    }

    /// Frees the request of a message that UCX has completed.
    fn end<B>(&self, message: InFlight<B>) -> B {
        // SAFETY: the request is complete, and freed once: `message` is gone.
        unsafe { (self.functions.ucp_request_free)(message.request.as_ptr()) };
        self.in_flight.set(self.in_flight.get() - 1);
        ManuallyDrop::into_inner(message.buffer)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), UcxError> {
        if status == OK {
            return Ok(());
        }
        // SAFETY: UCX has a zero-terminated text for every status, which lives as long as the library.
        let reason = unsafe { CStr::from_ptr((self.functions.ucs_status_string)(status)) };
        Err(UcxError { call, reason: reason.to_string_lossy().into_owned() })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Messages in flight have leaked their buffers: UCX, and other processes through it, may still access them. So its
        // objects are leaked as well. The process is to end soon, since a communicator has failed.
        if self.is_abandoned || self.in_flight.get() > 0 {
            self.failures.take().leak();
            return;
        }
        // SAFETY: both exist if they are not null, and are destroyed once, the worker first. Its endpoints end with it.
        unsafe {
            if !self.worker.is_null() {
                (self.functions.ucp_worker_destroy)(self.worker);
            }
            if !self.context.is_null() {
                (self.functions.ucp_cleanup)(self.context);
            }
        }
    }
}

/// Loads the library and checks its version.
fn load(libraries: &Libraries) -> Result<Functions, LibraryError> {
    let library = libraries.open(&NAME)?;
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the function pointer has the signature of ucp.h; the numbers are valid for writes during the call.
    unsafe {
        let get: unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint) =
            library.function("ucp_get_version")?;
        get(&raw mut major, &raw mut minor, &raw mut release);
    }
    library.check_version(1000 * major as c_int + 10 * minor as c_int, LEAST_VERSION)?;
    Functions::load(library)
}
