//! Division of an operation's output among its tasks: each task writes to a separate part.
//!
//! An operation cuts its items (batch rows, matrix elements) into [`Blocks`], one per task, and states how to find
//! each block's part of an output: [`Rows`] of a matrix, [`Spans`] of unequal numbers of rows, a fixed amount
//! [`PerBlock`], or a workspace [`PerThread`]. [`run_blocks!`] runs a kernel for each block with the block's parts
//! as `&mut [T]`. It is the only place that relies on parts being disjoint; kernels that use it contain no unsafe
//! code.
//!
//! The table rows that a batch touches do not form a range of items. Their kernel (`step_rows`) uses [`Parts`]
//! directly.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use millstream_batch::cache_lines::prefetch_line;

use crate::cpu::Cpu;
use crate::cpu::matrix::CpuMatrix;
#[cfg(target_arch = "x86_64")]
use crate::cpu::team::thread_number;

/// Runs a kernel for each of some [`Blocks`] on all threads of a backend, compiled for the machine's vector width.
/// The kernel is `|items, part| ..` or `|list, items, part| ..`.
macro_rules! run_blocks {
    ($cpu:expr, $blocks:expr, $out:expr, |$items:pat_param, $part:pat_param| $kernel:expr $(,)?) => {
        run_blocks!($cpu, $blocks, $out, |_, $items, $part| $kernel)
    };
    ($cpu:expr, $blocks:expr, $out:expr, |$list:pat_param, $items:pat_param, $part:pat_param| $kernel:expr $(,)?) => {
        $cpu.run_blocks(
            $blocks,
            $out,
            #[inline(always)]
            |$crate::cpu::parts::Block { list: $list, items: $items, .. }, $part| $kernel,
        )
    };
}

/// Runs a kernel, `|row, numbers| ..`, for each of the first `rows` rows of a matrix, `each` of them per task. It
/// writes the row's numbers, which are then rounded to the matrix's format.
macro_rules! run_rows {
    ($cpu:expr, $rows:expr, $each:expr, $matrix:expr, |$row:pat_param, $numbers:pat_param| $kernel:expr $(,)?) => {
        $cpu.run_rows(
            $rows,
            $each,
            $matrix,
            #[inline(always)]
            |$row, $numbers| $kernel,
        )
    };
}

/// One or more equally long lists of items, each cut into blocks. One task processes one block.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    /// Items per list.
    items: usize,
    /// Items per block; the last block of a list may have fewer.
    each: usize,
    lists: usize,
    order: Order,
}

/// The order in which tasks are numbered.
#[derive(Clone, Copy)]
enum Order {
    /// The next block of the same list.
    InLists,
    /// The same block of the next list.
    #[cfg(target_arch = "x86_64")]
    AcrossLists,
}

/// The items of one task.
pub(crate) struct Block {
    /// The index of their list.
    pub(crate) list: usize,
    /// Their indices in the list.
    pub(crate) items: Range<usize>,
    /// The index of the first item in the concatenation of all lists.
    first: usize,
    /// The index of this block among the blocks of all lists.
    number: usize,
}

impl Blocks {
    /// One list of `items` items, in blocks of `each`.
    ///
    /// # Panics
    /// When `each` is 0.
    pub(crate) fn of(items: usize, each: usize) -> Self {
        assert!(each > 0, "items in a block");
        Self { items, each, lists: 1, order: Order::InLists }
    }

    /// `lists` such lists; tasks go through one list after the other.
    pub(crate) fn in_lists(self, lists: usize) -> Self {
        Self { lists, order: Order::InLists, ..self }
    }

    /// `lists` such lists; tasks take the first block of each list, then the second block of each, and so on.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn across_lists(self, lists: usize) -> Self {
        Self { lists, order: Order::AcrossLists, ..self }
    }

    /// The number of blocks of all lists.
    ///
    /// # Panics
    /// When there are too many to count.
    pub(crate) fn count(&self) -> usize {
        self.lists.checked_mul(self.of_list()).expect("a number of blocks below 2^64")
    }

    /// The number of blocks of a list.
    fn of_list(&self) -> usize {
        self.items.div_ceil(self.each)
    }

    /// The block of task `task`.
    #[inline(always)]
    fn block(&self, task: usize) -> Block {
        let of_list = self.of_list();
        let (list, block) = match self.order {
            Order::InLists => (task / of_list, task % of_list),
            #[cfg(target_arch = "x86_64")]
            Order::AcrossLists => (task % self.lists, task / self.lists),
        };
        let items = block_of(block, self.each, self.items);
        Block { list, first: list * self.items + items.start, items, number: list * of_list + block }
    }
}

/// The items of block `block` of a list, in blocks of `each`; none after the end of the list.
#[inline(always)]
pub(crate) fn block_of(block: usize, each: usize, items: usize) -> Range<usize> {
    let start = block * each;
    start..start + each.min(items.saturating_sub(start))
}

/// Memory with one part for each block.
///
/// # Safety
/// After [`Divide::check`] has returned, parts of different blocks of the same [`Blocks`] must not overlap. For
/// memory divided among threads, parts taken by different threads of a job must not overlap.
pub(crate) unsafe trait Divide: Sync {
    /// A block's part.
    type Part<'a>;

    /// Checks that `blocks` all have a part.
    ///
    /// # Panics
    /// If any of them has none.
    fn check(&self, blocks: &Blocks, threads: usize);

    /// The part of `block`.
    ///
    /// # Safety
    /// [`Divide::check`] has returned for the `Blocks` that `block` belongs to. While the part is alive, this is
    /// not called again for the same block or by the same thread, which is one of the job's. The part does not
    /// outlive `self`.
    unsafe fn part<'a>(&self, block: &Block) -> Self::Part<'a>;
}

/// Consecutive items of `stride` elements each. A stride of 0 gives every block an empty part.
pub(crate) struct Rows<'a, T> {
    numbers: Parts<'a, T>,
    stride: usize,
}

impl<'a, T> Rows<'a, T> {
    pub(crate) fn of(numbers: &'a mut [T], stride: usize) -> Self {
        Self { numbers: Parts::new(numbers), stride }
    }
}

// SAFETY: part `[start, end)` of list `l` is `[(l * items + start) * stride, (l * items + end) * stride)`. Blocks
// of one list have disjoint items below `items`, so parts are disjoint. With a stride above 0 no product overflows,
// because `check` has computed the largest; with a stride of 0 all parts are empty.
unsafe impl<T: Send + 'static> Divide for Rows<'_, T> {
    type Part<'a> = &'a mut [T];

    fn check(&self, blocks: &Blocks, _threads: usize) {
        let needed = blocks.lists.checked_mul(blocks.items).and_then(|items| items.checked_mul(self.stride));
        assert!(needed.is_some_and(|needed| needed <= self.numbers.len), "memory for every block's rows");
    }

    #[inline(always)]
    unsafe fn part<'a>(&self, block: &Block) -> &'a mut [T] {
        let start = block.first * self.stride;
        // SAFETY: the parts are disjoint by the comment on the implementation. The caller takes each block's part
        // once at a time, and for no longer than the borrow.
        unsafe { self.numbers.get(start..start + block.items.len() * self.stride) }
    }
}

/// `len` elements for each block.
pub(crate) struct PerBlock<'a> {
    numbers: Parts<'a, f32>,
    len: usize,
}

impl<'a> PerBlock<'a> {
    pub(crate) fn of(numbers: &'a mut [f32], len: usize) -> Self {
        Self { numbers: Parts::new(numbers), len }
    }
}

// SAFETY: block `n` has the part `[n * len, (n + 1) * len)`, and blocks have different numbers below
// `Blocks::count`. No product overflows, because `count` and `check` have computed the largest.
unsafe impl Divide for PerBlock<'_> {
    type Part<'a> = &'a mut [f32];

    fn check(&self, blocks: &Blocks, _threads: usize) {
        let needed = blocks.count().checked_mul(self.len);
        assert!(needed.is_some_and(|needed| needed <= self.numbers.len), "memory for every block");
    }

    #[inline(always)]
    unsafe fn part<'a>(&self, block: &Block) -> &'a mut [f32] {
        let start = block.number * self.len;
        // SAFETY: the parts are disjoint by the comment on the implementation. The caller takes each block's part
        // once at a time, and for no longer than the borrow.
        unsafe { self.numbers.get(start..start + self.len) }
    }
}

/// Rows of `stride` elements; block `n` has the rows from `starts[n]` up to `starts[n + 1]`.
pub(crate) struct Spans<'a> {
    numbers: Parts<'a, f32>,
    stride: usize,
    starts: &'a [usize],
}

impl<'a> Spans<'a> {
    pub(crate) fn of(numbers: &'a mut [f32], stride: usize, starts: &'a [usize]) -> Self {
        Self { numbers: Parts::new(numbers), stride, starts }
    }
}

// SAFETY: `check` has verified that `starts` never decreases and computed the end of the last span without
// overflow, so the spans do not overlap. `starts` is borrowed shared, so it has not changed since.
unsafe impl Divide for Spans<'_> {
    type Part<'a> = &'a mut [f32];

    fn check(&self, blocks: &Blocks, _threads: usize) {
        assert!(blocks.count() < self.starts.len(), "one span per block");
        assert!(self.starts.is_sorted(), "spans in order");
        let needed = self.starts.last().and_then(|rows| rows.checked_mul(self.stride));
        assert!(needed.is_some_and(|needed| needed <= self.numbers.len), "memory for every span");
    }

    #[inline(always)]
    unsafe fn part<'a>(&self, block: &Block) -> &'a mut [f32] {
        let [start, end] = [block.number, block.number + 1].map(|number| self.starts[number] * self.stride);
        // SAFETY: the parts are disjoint by the comment on the implementation. The caller takes each block's part
        // once at a time, and for no longer than the borrow.
        unsafe { self.numbers.get(start..end) }
    }
}

/// A workspace of `len` elements for each thread; its contents are unspecified when a task starts.
#[cfg(target_arch = "x86_64")]
pub(crate) struct PerThread<'a> {
    numbers: Parts<'a, f32>,
    len: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> PerThread<'a> {
    pub(crate) fn of(numbers: &'a mut [f32], len: usize) -> Self {
        Self { numbers: Parts::new(numbers), len }
    }
}

// SAFETY: thread `n` takes the part `[n * len, (n + 1) * len)`. `Team::run` guarantees that the threads of a job
// have different numbers below the size of the team, and `check` that the last part is within the memory.
#[cfg(target_arch = "x86_64")]
unsafe impl Divide for PerThread<'_> {
    type Part<'a> = &'a mut [f32];

    fn check(&self, _blocks: &Blocks, threads: usize) {
        let needed = threads.checked_mul(self.len);
        assert!(needed.is_some_and(|needed| needed <= self.numbers.len), "memory for every thread");
    }

    #[inline(always)]
    unsafe fn part<'a>(&self, _block: &Block) -> &'a mut [f32] {
        let start = thread_number() * self.len;
        // SAFETY: the parts are disjoint by the comment on the implementation. The caller guarantees that a thread
        // takes one part at a time, and for no longer than the borrow.
        unsafe { self.numbers.get(start..start + self.len) }
    }
}

// SAFETY: parts of each component do not overlap, because both implement `Divide`.
unsafe impl<A: Divide, B: Divide> Divide for (A, B) {
    type Part<'a> = (A::Part<'a>, B::Part<'a>);

    fn check(&self, blocks: &Blocks, threads: usize) {
        self.0.check(blocks, threads);
        self.1.check(blocks, threads);
    }

    #[inline(always)]
    unsafe fn part<'a>(&self, block: &Block) -> Self::Part<'a> {
        // SAFETY: the caller upholds the contract of `Divide::part`, which is the same for both components.
        unsafe { (self.0.part(block), self.1.part(block)) }
    }
}

impl Cpu {
    /// Runs `kernel` with each of `blocks` and its parts of `out`. Called by [`run_blocks!`] only, which inlines
    /// the kernel.
    ///
    /// # Panics
    /// If `out` has no part for one of the blocks, or if `kernel` panics.
    #[inline(always)]
    pub(crate) fn run_blocks<D: Divide>(
        &self,
        blocks: Blocks,
        out: D,
        kernel: impl for<'a> Fn(Block, D::Part<'a>) + Sync,
    ) {
        out.check(&blocks, self.threads());
        run!(self, blocks.count(), |task| {
            let block = blocks.block(task);
            // SAFETY: `out` has been checked. The team runs each task once, so no other task takes the part of this
            // block. The part lives no longer than this call of the kernel, which cannot take another because it
            // has no access to `out`.
            let part = unsafe { out.part(&block) };
            kernel(block, part);
        });
    }

    /// Runs `kernel` with each of the first `rows` rows of `matrix`. Called by [`run_rows!`] only, which inlines the
    /// kernel.
    #[inline(always)]
    pub(crate) fn run_rows(
        &self,
        rows: usize,
        each: usize,
        matrix: &mut CpuMatrix,
        kernel: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let (float, stride, columns) = (matrix.float(), matrix.stride(), matrix.columns());
        run_blocks!(self, Blocks::of(rows, each), matrix.by_rows(), |block, out| {
            for (row, out) in block.zip(out.chunks_exact_mut(stride.max(1))) {
                kernel(row, &mut out[..columns]);
                float.round_all(&mut out[..columns]);
            }
        });
    }
}

/// An exclusively borrowed slice whose disjoint parts are used by concurrent tasks.
pub(crate) struct Parts<'a, T> {
    start: NonNull<T>,
    len: usize,
    exclusive: PhantomData<&'a mut [T]>,
}

// SAFETY: `Parts` only hands out `&mut [T]`, disjoint by the contract of `get`, which may cross threads if `T:
// Send`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: `Parts` is an exclusive borrow, which may cross threads if `T: Send`.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { start: NonNull::from(&mut *slice).cast(), len: slice.len(), exclusive: PhantomData }
    }

    /// The slice of `len` items at `start`.
    ///
    /// # Safety
    /// The memory holds `len` initialized items, and nothing but the result uses it for `'a`.
    pub(crate) unsafe fn from_raw(start: NonNull<T>, len: usize) -> Self {
        Self { start, len, exclusive: PhantomData }
    }

    /// Returns one part.
    ///
    /// # Safety
    /// No two parts that are alive at the same time overlap, and no part outlives the borrow of the slice, `'a`.
    ///
    /// # Panics
    /// If the range is not within the slice.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
    pub(crate) unsafe fn get<'part>(&self, range: Range<usize>) -> &'part mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part within the whole");
        // SAFETY: the range is within the slice by the assertion. The caller guarantees that parts are disjoint and
        // do not outlive the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Parts<'_, f32> {
    /// Prefetches the cache line of item `index`, if the item exists.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize) {
        if index < self.len {
            prefetch_line(self.start.as_ptr().wrapping_add(index));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Checks that each of the blocks' items is written once, by the block that it belongs to.
    #[test]
    fn every_item_is_in_one_block() {
        for threads in [1, 3] {
            let cpu = Cpu::new(Some(threads)).unwrap();
            for (items, each, lists, stride) in
                [(10, 3, 1, 2), (7, 7, 2, 1), (5, 2, 3, 4), (0, 4, 2, 3), (1, 9, 1, 1)]
            {
                let len = items * lists * stride;
                let blocks = Blocks::of(items, each).in_lists(lists);
                let check = |blocks: Blocks| {
                    let (mut numbers, mut counts) = (vec![0.0_f32; len], vec![0.0_f32; blocks.count()]);
                    let out = (Rows::of(&mut numbers, stride), PerBlock::of(&mut counts, 1));
                    run_blocks!(cpu, blocks, out, |list, items, (rows, count)| {
                        count[0] += items.len() as f32;
                        for (item, row) in items.zip(rows.chunks_exact_mut(stride)) {
                            row.iter_mut().for_each(|number| *number += (list * 1000 + item + 1) as f32);
                        }
                    });
                    for (place, &number) in numbers.iter().enumerate() {
                        let (list, item) = (place / stride / items, place / stride % items);
                        assert_eq!(number, (list * 1000 + item + 1) as f32);
                    }
                    assert_eq!(counts.iter().sum::<f32>(), (items * lists) as f32);
                };
                check(blocks);
                #[cfg(target_arch = "x86_64")]
                check(Blocks::of(items, each).across_lists(lists));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn threads_have_memory_of_their_own() {
        let cpu = Cpu::new(Some(3)).unwrap();
        let (mut of_threads, mut sums) = (vec![0.0; 3 * 4], vec![0.0; 100]);
        let out = (PerThread::of(&mut of_threads, 4), Rows::of(&mut sums, 1));
        run_blocks!(cpu, Blocks::of(100, 1), out, |items, (room, sum)| {
            room.fill(items.start as f32);
            std::thread::yield_now();
            sum[0] = room.iter().sum();
        });
        assert!(sums.iter().zip(0..).all(|(&sum, item)| sum == 4.0 * item as f32));
    }

    #[test]
    fn a_stride_of_0_gives_empty_parts() {
        let cpu = Cpu::new(Some(1)).unwrap();
        run_blocks!(cpu, Blocks::of(10, 3), Rows::<f32>::of(&mut [], 0), |_, row| assert!(row.is_empty()));
    }

    #[test]
    fn spans_are_the_blocks_own() {
        let cpu = Cpu::new(Some(2)).unwrap();
        let mut numbers = [0.0; 12];
        let spans = Spans::of(&mut numbers, 2, &[0, 1, 1, 5, 6]);
        run_blocks!(cpu, Blocks::of(4, 1), spans, |block, span| span.fill(block.start as f32));
        assert_eq!(numbers, [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    #[should_panic(expected = "spans in order")]
    fn spans_that_overlap_are_refused() {
        let cpu = Cpu::new(Some(1)).unwrap();
        let mut numbers = [0.0; 12];
        run_blocks!(cpu, Blocks::of(2, 1), Spans::of(&mut numbers, 2, &[0, 5, 4]), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "memory for every block's rows")]
    fn memory_of_too_few_rows_is_refused() {
        let cpu = Cpu::new(Some(1)).unwrap();
        run_blocks!(cpu, Blocks::of(4, 2), Rows::of(&mut [0.0_f32; 7], 2), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "memory for every block's rows")]
    fn strides_that_wrap_around_are_refused() {
        let cpu = Cpu::new(Some(1)).unwrap();
        run_blocks!(cpu, Blocks::of(4, 2), Rows::of(&mut [0.0_f32; 7], 1 << 62), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "memory for every block")]
    fn memory_for_too_few_blocks_is_refused() {
        let cpu = Cpu::new(Some(1)).unwrap();
        run_blocks!(cpu, Blocks::of(4, 2).in_lists(2), PerBlock::of(&mut [0.0; 11], 3), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "within the whole")]
    fn a_part_past_the_end_is_refused() {
        let mut items = [0.0; 4];
        let parts = Parts::new(&mut items);
        // SAFETY: no other part exists.
        let _ = unsafe { parts.get(2..5) };
    }
}
