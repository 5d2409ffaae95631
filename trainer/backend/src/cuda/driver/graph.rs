//! Work as a graph: given to the driver once and run again and again, with other arguments if need be.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Context, Fault, Handle, Launch, Stream};

/// What of a thread's calls a capture forbids: CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
const THREAD_LOCAL: c_int = 1;

/// CUDA_KERNEL_NODE_PARAMS of version 2.
#[repr(C)]
pub(super) struct KernelNode {
    kernel: Handle,
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    /// Where there is no `kernel`.
    library_kernel: Handle,
    context: Handle,
}

/// Work in two lanes, each piece after the one before in its lane.
pub(in crate::cuda) struct Graph {
    context: Arc<Context>,
    handle: Handle,
    /// The last pieces: of the main lane, and of the other since it was joined.
    last: Option<Node>,
    aside: Option<Node>,
    /// What the main lane's next piece waits for besides.
    joined: Option<Node>,
}

/// Which of a graph's pieces come one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cuda) enum Lane {
    /// The main one.
    #[default]
    Main,
    /// One that begins after what is in the main lane, and is done beside what follows there.
    Aside,
}

/// A piece of a graph.
#[derive(Clone, Copy)]
pub(in crate::cuda) struct Node(Handle);

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Send for Graph {}

/// A graph that can be run.
pub(in crate::cuda) struct Executable {
    /// By whose nodes it is told of new arguments.
    graph: Graph,
    handle: Handle,
}

// SAFETY: as above.
unsafe impl Send for Executable {}

impl Stream {
    /// What `work` asks of this stream, as a graph, and not done.
    pub(in crate::cuda) fn capture<E: From<Fault>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let functions = self.context.enter()?;
        // SAFETY: a stream of this context that nothing is captured from.
        let status = unsafe { (functions.cuStreamBeginCapture_v2)(self.handle, THREAD_LOCAL) };
        self.context.check("cuStreamBeginCapture", status)?;
        let done = work();
        let mut handle = ptr::null_mut();
        // SAFETY: begun above; `handle` is written.
        let status = unsafe { (functions.cuStreamEndCapture)(self.handle, &raw mut handle) };
        let graph = Graph::of(&self.context, handle);
        done?;
        self.context.check("cuStreamEndCapture", status)?;
        Ok(graph)
    }

    /// Runs a graph.
    pub(in crate::cuda) fn run(&self, graph: &Executable) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        // SAFETY: both are of this context.
        let status = unsafe { (functions.cuGraphLaunch)(graph.handle, self.handle) };
        self.context.check("cuGraphLaunch", status)
    }
}

impl Graph {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let functions = context.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is written.
        context.check("cuGraphCreate", unsafe { (functions.cuGraphCreate)(&raw mut handle, 0) })?;
        Ok(Self::of(context, handle))
    }

    fn of(context: &Arc<Context>, handle: Handle) -> Self {
        Self { context: Arc::clone(context), handle, last: None, aside: None, joined: None }
    }

    /// Adds a run of a kernel to a lane.
    ///
    /// # Safety
    /// The kernel takes one argument, which is laid out as `argument` is, and does with it what is sound.
    pub(in crate::cuda) unsafe fn add_kernel(
        &mut self,
        lane: Lane,
        launch: Launch,
        argument: &[u64],
    ) -> Result<Node, Fault> {
        let functions = self.context.enter()?;
        let mut node = ptr::null_mut();
        let (after, count) = self.after(lane);
        // SAFETY: by the caller's promise; `node` is written, and what is read is copied.
        let status = with_node(launch, argument, |kernel| unsafe {
            (functions.cuGraphAddKernelNode_v2)(&raw mut node, self.handle, after.as_ptr(), count, kernel)
        });
        self.context.check("cuGraphAddKernelNode", status)?;
        self.has_added(lane, Node(node));
        Ok(Node(node))
    }

    /// What is added to the main lane from here on comes after what is in the other, too.
    pub(in crate::cuda) fn join(&mut self) {
        self.joined = self.aside.take().or(self.joined);
    }

    /// Adds all of another graph to the main lane.
    pub(in crate::cuda) fn add_graph(&mut self, graph: &Self) -> Result<(), Fault> {
        let functions = self.context.enter()?;
        let mut node = ptr::null_mut();
        let (after, count) = self.after(Lane::Main);
        // SAFETY: both graphs are there; `node` is written, and the other graph is copied.
        let status = unsafe {
            let after = after.as_ptr();
            (functions.cuGraphAddChildGraphNode)(&raw mut node, self.handle, after, count, graph.handle)
        };
        self.context.check("cuGraphAddChildGraphNode", status)?;
        self.has_added(Lane::Main, Node(node));
        Ok(())
    }

    /// What a lane's next piece comes after, and how many those are.
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
        // SAFETY: `handle` is written.
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
    /// From the next run on, a kernel of the graph takes `argument`.
    ///
    /// # Safety
    /// As of [`Graph::add_kernel`]; `launch` is that of the node.
    pub(in crate::cuda) unsafe fn set(
        &self,
        node: Node,
        launch: Launch,
        argument: &[u64],
    ) -> Result<(), Fault> {
        let functions = self.graph.context.enter()?;
        // SAFETY: by the caller's promise; what is read is copied.
        let status = with_node(launch, argument, |kernel| unsafe {
            (functions.cuGraphExecKernelNodeSetParams_v2)(self.handle, node.0, kernel)
        });
        self.graph.context.check("cuGraphExecKernelNodeSetParams", status)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Ok(functions) = self.graph.context.enter() {
            // SAFETY: created once, destroyed once; a run that is under way ends.
            unsafe { (functions.cuGraphExecDestroy)(self.handle) };
        }
    }
}

/// Calls `call` with what the driver reads of a run of a kernel.
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
