//! Structures and constants of UCX's header `ucp/api/ucp.h`.
//!
//! Each structure says in its first field which others are valid, so that versions of UCX with more or fewer fields agree.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::library::Handle;

/// The version of the header that these declarations follow: major, minor.
pub(super) const API_VERSION: (c_uint, c_uint) = (1, 10);

/// A status, an enumeration that C packs into a byte.
pub(super) type Status = i8;

/// Success.
pub(super) const OK: Status = 0;
/// A request has not completed.
pub(super) const IN_PROGRESS: Status = 1;
/// Events are waiting.
pub(super) const BUSY: Status = -15;
/// A configuration has no such key.
pub(super) const NO_ELEMENT: Status = -12;
/// The lowest status: a larger pointer is a status, not a request.
pub(super) const LAST_STATUS: isize = -100;

const FEATURE_TAG: u64 = 1 << 0;
const FEATURE_WAKEUP: u64 = 1 << 4;
/// Calls from several threads, one at a time.
const THREAD_MODE_SERIALIZED: c_int = 1;
/// Endpoints report failures of their peers.
const ERROR_MODE_PEER: c_int = 1;
/// A request is returned even for an operation that completes at once.
pub(super) const NO_IMMEDIATE_COMPLETION: u32 = 1 << 16;

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct ContextParameters {
    fields: u64,
    features: u64,
    request_bytes: usize,
    request_init: *const c_void,
    request_cleanup: *const c_void,
    tag_sender_mask: u64,
    shares_workers: c_int,
    endpoints: usize,
    processes_per_node: usize,
    name: *const c_char,
}

impl ContextParameters {
    /// Tagged messages, and an event descriptor to wait with.
    pub(super) fn tagged_messages() -> Self {
        Self {
            fields: 1 << 0,
            features: FEATURE_TAG | FEATURE_WAKEUP,
            request_bytes: 0,
            request_init: ptr::null(),
            request_cleanup: ptr::null(),
            tag_sender_mask: 0,
            shares_workers: 0,
            endpoints: 0,
            processes_per_node: 0,
            name: ptr::null(),
        }
    }
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParameters {
    fields: u64,
    thread_mode: c_int,
    cpus: [u64; 16],
    events: c_uint,
    user_data: *mut c_void,
    event_descriptor: c_int,
    flags: u64,
    name: *const c_char,
    message_alignment: usize,
    client: u64,
}

impl WorkerParameters {
    /// A worker that threads use one after another.
    pub(super) fn serialized() -> Self {
        Self {
            fields: 1 << 0,
            thread_mode: THREAD_MODE_SERIALIZED,
            cpus: [0; 16],
            events: 0,
            user_data: ptr::null_mut(),
            event_descriptor: 0,
            flags: 0,
            name: ptr::null(),
            message_alignment: 0,
            client: 0,
        }
    }
}

/// `ucs_sock_addr_t`.
#[repr(C)]
struct SocketAddress {
    address: *const c_void,
    bytes: u32,
}

impl SocketAddress {
    const NONE: Self = Self { address: ptr::null(), bytes: 0 };
}

/// `ucp_err_handler_cb_t`: the endpoint's argument, the endpoint, what has happened.
pub(super) type ErrorHandler = unsafe extern "C" fn(*mut c_void, Handle, Status);

/// `ucp_ep_params_t`.
#[repr(C)]
pub(super) struct EndpointParameters {
    fields: u64,
    address: *const c_void,
    error_mode: c_int,
    error_handler: Option<ErrorHandler>,
    error_argument: *mut c_void,
    user_data: *mut c_void,
    flags: c_uint,
    socket_address: SocketAddress,
    connection_request: *mut c_void,
    name: *const c_char,
    local_socket_address: SocketAddress,
}

impl EndpointParameters {
    /// To the worker with this address, without error handling by UCX.
    pub(super) fn to(address: &[u8]) -> Self {
        Self {
            fields: 1 << 0,
            address: address.as_ptr().cast(),
            error_mode: 0,
            error_handler: None,
            error_argument: ptr::null_mut(),
            user_data: ptr::null_mut(),
            flags: 0,
            socket_address: SocketAddress::NONE,
            connection_request: ptr::null_mut(),
            name: ptr::null(),
            local_socket_address: SocketAddress::NONE,
        }
    }

    /// To the worker with this address. UCX calls `handler` with `argument` when the connection fails.
    pub(super) fn observed(address: &[u8], handler: ErrorHandler, argument: *mut c_void) -> Self {
        Self {
            fields: 1 << 0 | 1 << 1 | 1 << 2,
            error_mode: ERROR_MODE_PEER,
            error_handler: Some(handler),
            error_argument: argument,
            ..Self::to(address)
        }
    }
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(super) struct RequestParameters {
    attributes: u32,
    flags: u32,
    request: *mut c_void,
    callback: *const c_void,
    datatype: u64,
    user_data: *mut c_void,
    reply: *mut c_void,
    memory_type: c_int,
    receive_info: *mut c_void,
    memory: *mut c_void,
}

impl RequestParameters {
    /// Bytes, with these flags among the attributes.
    pub(super) fn bytes(attributes: u32) -> Self {
        Self {
            attributes,
            flags: 0,
            request: ptr::null_mut(),
            callback: ptr::null(),
            datatype: 0,
            user_data: ptr::null_mut(),
            reply: ptr::null_mut(),
            memory_type: 0,
            receive_info: ptr::null_mut(),
            memory: ptr::null_mut(),
        }
    }
}

/// `ucp_tag_recv_info_t`.
#[derive(Default)]
#[repr(C)]
pub(super) struct ReceivedMessage {
    pub(super) tag: u64,
    pub(super) bytes: usize,
}

// As the header of UCX 1.13 lays them out.
const _: () = {
    assert!(size_of::<ContextParameters>() == 80);
    assert!(size_of::<WorkerParameters>() == 200 && offset_of!(WorkerParameters, events) == 144);
    assert!(size_of::<EndpointParameters>() == 104 && offset_of!(EndpointParameters, error_mode) == 16);
    assert!(offset_of!(EndpointParameters, local_socket_address) == 88);
    assert!(size_of::<RequestParameters>() == 72 && offset_of!(RequestParameters, receive_info) == 56);
    assert!(size_of::<ReceivedMessage>() == 16);
};
