//! The command list: kernels and products that operations have enqueued, and how they are submitted to the driver.
//!
//! Operations do not launch kernels one by one. They append commands to a list, which is submitted when the host
//! copies to or from the device. Training enqueues the same list at every step, except for some arguments: those of
//! the optimizer or of dropout. A list that is submitted for the second time is therefore captured in a CUDA graph,
//! which the driver launches as a whole; from then on only changed arguments are updated.
//!
//! Kernels can be put aside: in a graph, later commands do not wait for them until a join. This lets ids be sorted
//! during the forward and backward passes.
//!
//! Two lists are equal if they have the same kernels with the same grids, and the same products of the same
//! matrices, in the same order.

use std::collections::VecDeque;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::blas::{Blas, BlasError, Product};
use super::driver::{Context, Executable, Fault, Graph, Lane, Launch, Node, Stream};
use super::fault::GpuError;

/// The most lists kept as graphs, and the most that are remembered until they come again. Sums over ranks cut a step into many lists,
/// which differ for full and last batches, of training and of scoring.
const MOST_GRAPHS: usize = 64;
/// A shorter list is launched command by command.
const LEAST_COMMANDS: usize = 4;

/// The name under which the library's kernels are recorded.
const PRODUCT: &str = "product";

/// A command for the device.
#[derive(Clone, Copy, PartialEq)]
enum Command {
    /// A kernel, the number of 64-bit words in its argument, and its lane.
    Kernel(Launch, usize, Lane),
    Product(Product),
    /// Later commands wait for the commands that were put aside.
    Join,
}

/// A list of commands, with the kernels' arguments concatenated.
#[derive(Default)]
struct List {
    commands: Vec<Command>,
    arguments: Vec<u64>,
}

/// A list and its graph.
struct Known {
    list: List,
    /// The graph's kernel nodes, in the order of the list's kernels.
    nodes: Vec<Node>,
    executable: Executable,
}

/// The device failed to run a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Driver(#[from] Fault),
    #[error(transparent)]
    Blas(#[from] BlasError),
}

impl GpuError for CommandError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver(fault) if fault.is_out_of_memory())
    }
}

/// The pending list, and the lists seen before.
#[derive(Default)]
pub(super) struct Commands {
    list: List,
    known: VecDeque<Known>,
    /// The most recent lists that have no graph yet.
    seen: VecDeque<Vec<Command>>,
    /// The lane of the kernels enqueued next.
    lane: Lane,
}

impl Commands {
    /// Enqueues later kernels in `lane`.
    pub(super) fn take(&mut self, lane: Lane) {
        self.lane = lane;
    }

    /// Makes later commands wait for the commands that were put aside.
    pub(super) fn join(&mut self) {
        let is_aside =
            |command: &&Command| matches!(command, Command::Kernel(_, _, Lane::Aside) | Command::Join);
        if let Some(Command::Kernel(..)) = self.list.commands.iter().rev().find(is_aside) {
            self.list.commands.push(Command::Join);
        }
    }
    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The kernel takes one argument with the layout of `argument`. When the kernel runs, every access that it makes
    /// with that argument is valid.
    pub(super) unsafe fn kernel<A: IntoBytes + Immutable>(
        &mut self,
        context: &Context,
        launch: Launch,
        argument: &A,
    ) {
        const { assert!(size_of::<A>().is_multiple_of(size_of::<u64>()) && align_of::<A>() == align_of::<u64>()) };
        let argument =
            <[u64]>::ref_from_bytes(argument.as_bytes()).expect("the size and alignment asserted above");
        self.list.commands.push(Command::Kernel(launch, argument.len(), self.lane));
        self.list.arguments.extend_from_slice(argument);
        context.fall_behind();
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// The conditions of [`Blas::multiply`] hold when the product runs.
    pub(super) unsafe fn product(&mut self, context: &Context, product: Product) {
        self.list.commands.push(Command::Product(product));
        context.fall_behind();
    }

    /// Whether no command is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.list.commands.is_empty()
    }

    /// Submits all pending commands to the stream.
    pub(super) fn flush(&mut self, stream: &Stream, blas: &Blas) -> Result<(), CommandError> {
        if self.is_empty() {
            return Ok(());
        }
        let done = self.run(stream, blas);
        self.clear(stream);
        done
    }

    /// Like [`Self::flush`], one command at a time; calls `launched` with the name of each kernel and product after
    /// its launch.
    pub(super) fn flush_each(
        &mut self,
        stream: &Stream,
        blas: &Blas,
        launched: impl FnMut(&'static str),
    ) -> Result<(), CommandError> {
        let done = self.list.launch(stream, blas, launched);
        self.clear(stream);
        done
    }

    fn clear(&mut self, stream: &Stream) {
        self.list.commands.clear();
        self.list.arguments.clear();
        stream.context().catch_up();
    }

    fn run(&mut self, stream: &Stream, blas: &Blas) -> Result<(), CommandError> {
        let is_this = |known: &Known| known.list.commands == self.list.commands;
        if let Some(mut known) =
            self.known.iter().position(is_this).and_then(|place| self.known.remove(place))
        {
            let run = known.update_arguments(&self.list.arguments);
            let run = run.and_then(|()| stream.run(&known.executable));
            // The one that was used least recently is dropped first.
            self.known.push_back(known);
            return Ok(run?);
        }
        let commands = &self.list.commands;
        if commands.len() < LEAST_COMMANDS {
            return self.list.launch(stream, blas, |_| ());
        }
        if !self.seen.contains(commands) {
            if self.seen.len() == MOST_GRAPHS {
                self.seen.pop_front();
            }
            self.seen.push_back(commands.clone());
            return self.list.launch(stream, blas, |_| ());
        }
        if self.known.len() == MOST_GRAPHS {
            self.known.pop_front();
        }
        let known = Known::of(&self.list, stream, blas)?;
        stream.run(&known.executable)?;
        self.known.push_back(known);
        Ok(())
    }
}

impl List {
    /// Each command with its argument, which is empty for products and joins.
    fn each(&self) -> impl Iterator<Item = (&Command, &[u64])> {
        let mut rest = self.arguments.as_slice();
        self.commands.iter().map(move |command| {
            let numbers = if let Command::Kernel(_, numbers, _) = command { *numbers } else { 0 };
            let (argument, others) = rest.split_at(numbers);
            rest = others;
            (command, argument)
        })
    }

    /// Launches the commands one by one, in order; calls `launched` with each one's name after its launch.
    fn launch(
        &self,
        stream: &Stream,
        blas: &Blas,
        mut launched: impl FnMut(&'static str),
    ) -> Result<(), CommandError> {
        for (command, argument) in self.each() {
            match command {
                Command::Kernel(launch, ..) => {
                    // SAFETY: the caller of `Commands::kernel` guarantees that the kernel is valid to run with this
                    // argument.
                    unsafe { stream.launch(*launch, argument) }?;
                    launched(launch.kernel.name);
                }
                Command::Product(product) => {
                    // SAFETY: the caller of `Commands::product` guarantees that the matrices are valid device
                    // memory.
                    unsafe { blas.multiply(stream, product) }?;
                    launched(PRODUCT);
                }
                Command::Join => {}
            }
        }
        Ok(())
    }
}

impl Known {
    fn of(list: &List, stream: &Stream, blas: &Blas) -> Result<Self, CommandError> {
        let (mut graph, mut nodes) = (Graph::new(stream.context())?, Vec::new());
        for (command, argument) in list.each() {
            match command {
                Command::Kernel(launch, _, lane) => {
                    // SAFETY: the caller of `Commands::kernel` guarantees that the kernel is valid to run with this
                    // argument.
                    nodes.push(unsafe { graph.add_kernel(*lane, *launch, argument) }?);
                }
                Command::Product(product) => {
                    // SAFETY: the caller of `Commands::product` guarantees that the matrices are valid device
                    // memory.
                    let multiply = || Ok::<_, CommandError>(unsafe { blas.multiply(stream, product) }?);
                    graph.add_graph(&stream.capture(multiply)?)?;
                }
                Command::Join => graph.join(),
            }
        }
        let executable = graph.instantiate()?;
        let list = List { commands: list.commands.clone(), arguments: list.arguments.clone() };
        Ok(Self { list, nodes, executable })
    }

    /// Updates the arguments that changed.
    fn update_arguments(&mut self, arguments: &[u64]) -> Result<(), Fault> {
        let mut new = arguments;
        let kernels = self.list.each().filter_map(|(command, argument)| match command {
            Command::Kernel(launch, ..) => Some((*launch, argument)),
            Command::Product(_) | Command::Join => None,
        });
        for ((launch, argument), &node) in kernels.zip(&self.nodes) {
            let (this, others) = new.split_at(argument.len());
            if argument != this {
                // SAFETY: the caller of `Commands::kernel` guarantees that the kernel is valid to run with this
                // argument. `node` was created from `launch`.
                unsafe { self.executable.set(node, launch, this) }?;
            }
            new = others;
        }
        self.list.arguments.copy_from_slice(arguments);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::testing::{alone, calls};
    use crate::{Backend, Cuda, CudaMatrix, Device, ops};

    fn matrix(cuda: &Cuda, numbers: &[f32]) -> CudaMatrix {
        let mut matrix = cuda.matrix(1, numbers.len());
        cuda.write_matrix(&mut matrix, numbers);
        matrix
    }

    #[test]
    fn a_list_that_comes_again_is_a_graph_with_the_arguments_of_now() {
        let (stand_in, cuda) = alone();
        let (from, mut to) = (matrix(&cuda, &[1.0, 2.0, 3.0]), matrix(&cuda, &[0.0; 3]));
        let mut expected = [0.0_f32; 3];
        let mut found = [0.0; 3];
        cuda.read_matrix(&to, &mut found);
        let before = calls(&stand_in, c"cuLaunchKernel");
        for round in 1..=6 {
            for factor in [f64::from(round), 0.5, -2.0, 4.0] {
                cuda.run(ops::Blend { share: 0.5, factor, from: &from, to: &mut to });
                for (expected, from) in expected.iter_mut().zip([1.0, 2.0, 3.0]) {
                    *expected += 0.5 * (factor as f32 * from - *expected);
                }
            }
            cuda.read_matrix(&to, &mut found);
            assert_eq!(found, expected, "round {round}");
        }
        // Four blends and a read, launched one by one in the first round.
        assert_eq!(calls(&stand_in, c"cuLaunchKernel") - before, 5);
        assert_eq!(calls(&stand_in, c"cuGraphLaunch"), 5);
        // From the third round on, only the factor of one of the four blends changes.
        assert_eq!(calls(&stand_in, c"cuGraphExecKernelNodeSetParams_v2"), 4);
    }

    #[test]
    fn what_is_put_aside_is_done_when_it_is_joined() {
        let (stand_in, cuda) = alone();
        let one = matrix(&cuda, &[1.0]);
        let [mut main, mut other, mut sum] = [0.0; 3].map(|number| matrix(&cuda, &[number]));
        let (mut found, mut of_other, mut expected) = ([0.0], 0.0, 0.0);
        for round in 1..=20_u8 {
            cuda.run(ops::Add { rows: 1, from: &one, to: &mut main });
            cuda.aside(|| {
                // Depends on earlier commands.
                cuda.run(ops::Add { rows: 1, from: &main, to: &mut other });
                cuda.run(ops::Add { rows: 1, from: &one, to: &mut other });
            });
            cuda.run(ops::Add { rows: 1, from: &one, to: &mut sum });
            cuda.run(ops::Add { rows: 1, from: &main, to: &mut sum });
            cuda.join();
            cuda.run(ops::Add { rows: 1, from: &other, to: &mut sum });
            of_other += f32::from(round) + 1.0;
            expected += 1.0 + f32::from(round) + of_other;
            cuda.read_matrix(&sum, &mut found);
            assert_eq!(found, [expected], "round {round}");
        }
        // The first list also fills the matrices, so it differs; the second list is the first of its kind.
        assert_eq!(calls(&stand_in, c"cuGraphLaunch"), 18);
    }

    #[test]
    fn memory_that_is_dropped_stays_until_the_list_is_done() {
        let (_stand_in, cuda) = alone();
        let mut to = matrix(&cuda, &[1.0, 1.0]);
        for number in [1.0, 2.0, 3.0] {
            let from = matrix(&cuda, &[number, -number]);
            cuda.run(ops::Add { rows: 1, from: &from, to: &mut to });
            drop(from);
            drop(cuda.matrix(1, 2));
        }
        let mut found = [0.0; 2];
        cuda.read_matrix(&to, &mut found);
        assert_eq!(found, [7.0, -5.0]);
    }
}
