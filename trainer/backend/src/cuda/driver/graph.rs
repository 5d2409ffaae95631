//! CUDA graphs: work that is defined once and launched repeatedly, with updated arguments if needed.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Context, Fault, Handle, Launch, Stream};

/// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: unsafe API calls are prohibited on the capturing thread only.
const THREAD_LOCAL: c_int = 1;

/// CUDA_KERNEL_NODE_PARAMS, version 2.
#[repr(C)]
pub(super) struct KernelNode {
    kernel: Handle,
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    /// Used if `kernel` is null.
    library_kernel: Handle,
    context: Handle,
}

/// A graph of two lanes; each node of a lane runs after the previous node of that lane.
pub(in crate::cuda) struct Graph {
    context: Arc<Context>,
    handle: Handle,
    /// The last node of the main lane.
    last: Option<Node>,
    /// The last node put aside since the last join.
    aside: Option<Node>,
    /// What the next node of the main lane depends on in addition to `last`.
    joined: Option<Node>,
}

/// The lane of a graph, which determines a node's dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cuda) enum Lane {
    /// The main lane.
    #[default]
    Main,
    /// A lane that starts after the main lane's current last node and runs concurrently with later nodes there.
    Aside,
}

/// A node of a graph.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Node(Handle);

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Node {}
// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Graph {}

/// An instantiated graph.
pub(in crate::cuda) struct Executable {
    /// Owns the nodes whose arguments are updated.
    graph: Graph,
    handle: Handle,
}

// SAFETY: the handle is only passed to driver functions, which may be called from any thread.
unsafe impl Send for Executable {}

impl Stream {
    /// Captures the work that `work` submits to this stream in a graph, without running it.
    pub(in crate::cuda) fn capture<E: From<Fault>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let functions = self.context.enter()?;
        // SAFETY: `self.handle` is a live stream of this context, and no capture is in progress on it.
        let status = unsafe { (functions.cuStreamBeginCapture_v2)(self.handle, THREAD_LOCAL) };
        self.context.check("cuStreamBeginCapture", status)?;
        let done = work();
        let mut handle = ptr::null_mut();
        // SAFETY: the capture was begun above; `handle` is valid for writes during the call.
        let status = unsafe { (functions.cuStreamEndCapture)(self.handle, &raw mut handle) };
        let graph = Graph::of(&self.context, handle);
        done?;
        self.context.check("cuStreamEndCapture", status)?;
        Ok(graph)
    }

    /// Launches a graph.
    pub(in crate::cuda) fn run(&self, graph: &Executable) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: the graph and the stream are live and belong to this context.
        let status = unsafe { (functions.cuGraphLaunch)(graph.handle, self.handle) };
        self.context.check("cuGraphLaunch", status)
    }
}

impl Graph {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for writes during the call.
        context.check("cuGraphCreate", unsafe { (functions.cuGraphCreate)(&raw mut handle, 0) })?;
        Ok(Self::of(context, handle))
    }

    fn of(context: &Arc<Context>, handle: Handle) -> Self {
        Self { context: Arc::clone(context), handle, last: None, aside: None, joined: None }
    }

    /// Adds a kernel node to a lane.
    ///
    /// # Safety
    /// The kernel takes one argument with the layout of `argument`. Whenever the graph runs, every access that the
    /// kernel makes with that argument is valid.
    pub(in crate::cuda) unsafe fn add_kernel(
        &mut self,
        lane: Lane,
        launch: Launch,
        argument: &[u64],
    ) -> Result<Node, Fault> {
        let functions = self.context.enter()?;
        let mut node = ptr::null_mut();
        let (after, count) = self.after(lane);
        // SAFETY: the caller guarantees that the argument fits the kernel. `node` is valid for writes during the
        // call, `after` holds `count` nodes of this graph, and the driver copies the parameters before it returns.
        let status = with_node(launch, argument, |kernel| unsafe {
            (functions.cuGraphAddKernelNode_v2)(&raw mut node, self.handle, after.as_ptr(), count, kernel)
        });
        self.context.check("cuGraphAddKernelNode", status)?;
        self.has_added(lane, Node(node));
        Ok(Node(node))
    }

    /// Makes later nodes of the main lane depend on the nodes put aside so far.
    pub(in crate::cuda) fn join(&mut self) {
        self.joined = self.aside.take().or(self.joined);
    }

    /// Adds another graph to the main lane as a child node.
    pub(in crate::cuda) fn add_graph(&mut self, graph: &Self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        let mut node = ptr::null_mut();
        let (after, count) = self.after(Lane::Main);
        // SAFETY: both graphs are live. `node` is valid for writes during the call, `after` holds `count` nodes of
        // this graph, and the driver copies the child graph.
        let status = unsafe {
            let after = after.as_ptr();
            (functions.cuGraphAddChildGraphNode)(&raw mut node, self.handle, after, count, graph.handle)
        };
        self.context.check("cuGraphAddChildGraphNode", status)?;
        self.has_added(Lane::Main, Node(node));
        Ok(())
    }

    /// The dependencies of a lane's next node, and their count.
    fn after(&self, lane: Lane) -> ([Handle; 2], usize) {
        let pieces = match lane {
            Lane::Main => [self.last, self.joined],
            Lane::Aside => [self.aside.or(self.last), None],
        };
        let mut handles = [ptr::null_mut(); 2];
        let mut count = 0;
        for Node(handle) in pieces.into_iter().flatten() {
            handles[count] = handle;
            count += 1;
        }
        (handles, count)
    }

    fn has_added(&mut self, lane: Lane, node: Node) {
        match lane {
            Lane::Main => (self.last, self.joined) = (Some(node), None),
            Lane::Aside => self.aside = Some(node),
        }
    }

    pub(in crate::cuda) fn instantiate(self) -> Result<Executable, Fault> {
        let functions = self.context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for writes during the call.
        let status = unsafe { (functions.cuGraphInstantiateWithFlags)(&raw mut handle, self.handle, 0) };
        self.context.check("cuGraphInstantiate", status)?;
        Ok(Executable { graph: self, handle })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let (false, Ok(functions)) = (self.handle.is_null(), self.context.enter()) {
            // SAFETY: created once, destroyed once.
            unsafe { (functions.cuGraphDestroy)(self.handle) };
        }
    }
}

impl Executable {
    /// Sets the argument of a kernel node, from the next launch on.
    ///
    /// # Safety
    /// The conditions of [`Graph::add_kernel`]; `node` was created from `launch`.
    pub(in crate::cuda) unsafe fn set(
        &self,
        node: Node,
        launch: Launch,
        argument: &[u64],
    ) -> Result<(), Fault> {
        let functions = self.graph.context.enter()?;
        // SAFETY: the caller guarantees that the argument fits the kernel and that `launch` is the node's. The
        // driver copies the parameters before it returns.
        let status = with_node(launch, argument, |kernel| unsafe {
            (functions.cuGraphExecKernelNodeSetParams_v2)(self.handle, node.0, kernel)
        });
        self.graph.context.check("cuGraphExecKernelNodeSetParams", status)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Ok(functions) = self.graph.context.enter() {
            // SAFETY: created once, destroyed once; the driver completes a launch in flight.
            unsafe { (functions.cuGraphExecDestroy)(self.handle) };
        }
    }
}

/// Calls `call` with the parameters of a kernel node.
fn with_node<R>(launch: Launch, argument: &[u64], call: impl FnOnce(*const KernelNode) -> R) -> R {
    let mut parameters = [argument.as_ptr().cast_mut().cast::<c_void>()];
    let Launch { kernel, blocks: [x, y], threads } = launch;
    let node = KernelNode {
        kernel: kernel.handle,
        blocks: [x, y, 1],
        threads: [threads, 1, 1],
        shared_bytes: 0,
        parameters: parameters.as_mut_ptr(),
        extra: ptr::null_mut(),
        library_kernel: ptr::null_mut(),
        context: ptr::null_mut(),
    };
    call(&raw const node)
}
