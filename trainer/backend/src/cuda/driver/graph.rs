//! CUDA graphs: work that is defined once and launched repeatedly, with updated arguments if needed.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Context, Fault, Functions, Handle, Launch, Object, Stream};

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
    object: Object,
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

/// An instantiated graph.
pub(in crate::cuda) struct Executable {
    // Dropped before the graph.
    object: Object,
    /// Owns the nodes whose arguments are updated.
    _graph: Graph,
}

impl Stream {
    /// Captures the work that `work` submits to this stream in a graph, without running it.
    pub(in crate::cuda) fn capture<E: From<Fault>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mut done = Ok(());
        let record = |functions: &Functions, graph| {
            // SAFETY: the handle is a live stream of this context, and no capture is in progress on it.
            unsafe { functions.cuStreamBeginCapture_v2(self.0.handle, THREAD_LOCAL) }?;
            done = work();
            // SAFETY: the capture was begun above; `graph` is valid for writes during the call.
            unsafe { functions.cuStreamEndCapture(self.0.handle, graph) }
        };
        // SAFETY: `record` writes a graph that belongs to the caller, or null.
        let graph = unsafe { Graph::new_by(self.context(), record) };
        done?;
        Ok(graph?)
    }

    /// Launches a graph.
    pub(in crate::cuda) fn run(&self, graph: &Executable) -> Result<(), Fault> {
        // SAFETY: the graph and the stream are live and belong to this context.
        unsafe { self.0.enter()?.cuGraphLaunch(graph.object.handle, self.0.handle) }
    }
}

impl Graph {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        // SAFETY: `graph` is valid for writes during the call, which writes a graph.
        unsafe { Self::new_by(context, |functions, graph| functions.cuGraphCreate(graph, 0)) }
    }

    /// # Safety
    /// `create` writes the handle of a graph that nothing else destroys, or null.
    unsafe fn new_by(
        context: &Arc<Context>,
        create: impl FnOnce(&Functions, *mut Handle) -> Result<(), Fault>,
    ) -> Result<Self, Fault> {
        // SAFETY: the caller guarantees that the handle is a graph.
        let object = unsafe { Object::new(context, create, |functions| functions.cuGraphDestroy) }?;
        Ok(Self { object, last: None, aside: None, joined: None })
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
        let mut node = Handle::NULL;
        let (functions, (after, count)) = (self.object.enter()?, self.after(lane));
        // SAFETY: the caller guarantees that the argument fits the kernel. `node` is valid for writes during the
        // call, `after` holds `count` nodes of this graph, and the driver copies the parameters before it returns.
        with_node(launch, argument, |kernel| unsafe {
            let (graph, after) = (self.object.handle, after.as_ptr());
            functions.cuGraphAddKernelNode_v2(&raw mut node, graph, after, count, kernel)
        })?;
        self.has_added(lane, Node(node));
        Ok(Node(node))
    }

    /// Makes later nodes of the main lane depend on the nodes put aside so far.
    pub(in crate::cuda) fn join(&mut self) {
        self.joined = self.aside.take().or(self.joined);
    }

    /// Adds another graph to the main lane as a child node.
    pub(in crate::cuda) fn add_graph(&mut self, graph: &Self) -> Result<(), Fault> {
        let mut node = Handle::NULL;
        let (after, count) = self.after(Lane::Main);
        // SAFETY: both graphs are live. `node` is valid for writes during the call, `after` holds `count` nodes of
        // this graph, and the driver copies the child graph.
        unsafe {
            let (functions, graph, child) = (self.object.enter()?, self.object.handle, graph.object.handle);
            functions.cuGraphAddChildGraphNode(&raw mut node, graph, after.as_ptr(), count, child)
        }?;
        self.has_added(Lane::Main, Node(node));
        Ok(())
    }

    /// The dependencies of a lane's next node, and their count.
    fn after(&self, lane: Lane) -> ([Handle; 2], usize) {
        let pieces = match lane {
            Lane::Main => [self.last, self.joined],
            Lane::Aside => [self.aside.or(self.last), None],
        };
        let mut handles = [Handle::NULL; 2];
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
        // SAFETY: the graph is live, and `executable` is valid for writes during the call, which writes an executable
        // graph. The driver completes a launch in flight before it destroys it.
        let object = unsafe {
            let graph = self.object.handle;
            let create = |functions: &Functions, executable| {
                functions.cuGraphInstantiateWithFlags(executable, graph, 0)
            };
            Object::new(&self.object.context, create, |functions| functions.cuGraphExecDestroy)
        }?;
        Ok(Executable { object, _graph: self })
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
        let functions = self.object.enter()?;
        // SAFETY: the caller guarantees that the argument fits the kernel and that `launch` is the node's. The
        // driver copies the parameters before it returns.
        with_node(launch, argument, |kernel| unsafe {
            functions.cuGraphExecKernelNodeSetParams_v2(self.object.handle, node.0, kernel)
        })
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
        library_kernel: Handle::NULL,
        context: Handle::NULL,
    };
    call(&raw const node)
}
