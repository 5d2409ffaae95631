//! Table rows that ranks gather.

use std::sync::Arc;

use millstream_batch::{BatchBuffer, BatchHeader, BatchSchema, IdFeature, SlotLayout};

use super::*;
use crate::cuda::{CudaBatch, CudaMergedRows, CudaRowPlan, CudaTable, rank_rows};
use crate::{
    Formula, GradientColumns, IdColumn, Lookup, PartRows, Pooling, RowGradients, RowSums, TablePart,
    TableShape, Update,
};

/// Rows and columns of each table: rows that no vector load fits, of one number, and of several quads. In fp32, the second and
/// the fourth table are summed as a whole by the GPUs of three ranks; in 16 bits, only the second.
const TABLES: [(u32, usize); 5] = [(3_000, 7), (5, 1), (2_500, 1), (40, 16), (3_000, 16)];
/// The tables of each group.
const GROUPS: [std::ops::Range<usize>; 2] = [0..3, 3..5];
/// The most rows of a rank: more than one tile of the kernels.
const ROWS: u32 = 1_500;

/// The tables of a group.
struct Group {
    lookups: Vec<Lookup>,
    tables: Vec<CudaTable>,
    merged: CudaMergedRows,
}

/// What a rank trains.
struct Model {
    batch: CudaBatch,
    plan: CudaRowPlan,
    gradient: CudaMatrix,
    groups: Vec<Group>,
}

/// The rows of a rank, by group: ids and sums.
type Rows = Vec<(Vec<u32>, Vec<f32>)>;

/// The tables after a step, and the squares of its gradients.
type Stepped = Vec<Vec<f32>>;

fn schema() -> BatchSchema {
    let feature = |(cardinality, width): (u32, usize)| {
        let name = format!("{cardinality} of {width}");
        IdFeature { name, cardinality }
    };
    BatchSchema {
        rows: ROWS,
        labels: Vec::new(),
        weighted: false,
        dense: Vec::new(),
        ids: TABLES.map(feature).to_vec(),
        ragged: Vec::new(),
        columns: Vec::new(),
        position_bytes: 0,
    }
}

/// A number that looks random.
fn mixed(seed: u64) -> u64 {
    (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

fn shape_of((rows, width): (u32, usize)) -> TableShape {
    TableShape { rows: rows as usize, width, float: Float::F32, key: 0, states: 0, row_states: 0 }
}

/// Whether the GPUs of so many ranks sum the table as a whole.
fn is_summed(table: usize, ranks: usize, float: Float) -> bool {
    let rows = PartRows { parts: ranks, ids: &[], even_ids: &[], are_gathered: true, float };
    rank_rows::is_summed(&shape_of(TABLES[table]), ROWS as usize, rows)
}

impl Model {
    /// Its rows travel as `float`.
    fn new(cuda: &Cuda, ranks: usize, float: Float) -> Self {
        let columns: usize = TABLES.iter().map(|(_, width)| width).sum();
        let group = |tables: std::ops::Range<usize>| {
            let first = |table: usize| TABLES[..table].iter().map(|(_, width)| width).sum();
            let lookup = |(number, table): (usize, usize)| Lookup {
                column: IdColumn::Single(table),
                pooling: Pooling::Sum,
                table: number,
                first: first(table),
            };
            let shapes: Vec<TableShape> = TABLES[tables.clone()].iter().copied().map(shape_of).collect();
            let ids = vec![ROWS as usize; shapes.len()];
            let rows = PartRows { parts: ranks, ids: &ids, even_ids: &ids, are_gathered: true, float };
            Group {
                lookups: tables.enumerate().map(lookup).collect(),
                tables: shapes.iter().map(|&shape| cuda.table(shape)).collect(),
                merged: cuda.merged_rows(&shapes, rows),
            }
        };
        let of_table = |table| vec![IdColumn::Single(table)];
        Self {
            batch: cuda.batch(&schema()),
            plan: cuda.row_plan(&schema(), &[0, 1, 2, 3, 4].map(of_table)),
            gradient: cuda.matrix(ROWS as usize, columns),
            groups: GROUPS.map(group).into(),
        }
    }

    /// Takes a batch of `rows` rows and gradients that differ in size, so that their order decides the bits of sums.
    fn take(&mut self, cuda: &Cuda, rows: u32, seed: u64) {
        let mut buffer = BatchBuffer::new(Arc::new(SlotLayout::of(&schema()).unwrap()));
        let mut slot = buffer.as_mut();
        slot.set_header(&BatchHeader::train(rows));
        let ids = slot.sections().ids;
        for (place, id) in ids.iter_mut().enumerate() {
            *id = (mixed(seed * 99_991 + place as u64) % u64::from(TABLES[place / ROWS as usize].0)) as u32;
        }
        cuda.upload(buffer.as_ref(), &mut self.batch).unwrap();
        let number = |place: u64| {
            let bits = mixed(seed * 77_777 + place);
            (bits % 2_001) as f32 / 7.0 * 10_f32.powi((bits >> 32) as i32 % 5) - 100.0
        };
        let numbers = 0..(self.gradient.rows() * self.gradient.columns()) as u64;
        cuda.write_matrix(&mut self.gradient, &numbers.map(number).collect::<Vec<f32>>());
        cuda.run(ops::PlanRows { batch: &self.batch, plan: &mut self.plan });
    }

    /// Calls `use_rows` with the gradients of each group.
    fn for_each(&mut self, mut use_rows: impl FnMut(&RowGradients<'_, Cuda>, &mut Group)) {
        let Self { batch, plan, gradient, groups } = self;
        for group in groups {
            let lookups = group.lookups.clone();
            let columns = GradientColumns::Apart { first: 0 };
            use_rows(
                &RowGradients { batch, plan, lookups: &lookups, gradient, columns, maxima: None },
                group,
            );
        }
    }

    /// The rows by way of the host.
    fn rows(&mut self, cuda: &Cuda) -> Rows {
        let mut rows = Vec::new();
        self.for_each(|gradients, group| {
            let mut sums = RowSums::default();
            cuda.sum_rows(gradients, &group.tables, &mut sums);
            rows.push((sums.ids.to_vec(), sums.rows.to_vec()));
        });
        rows
    }

    fn pack(&mut self, cuda: &Cuda, peers: &CudaPeers) {
        self.for_each(|gradients, group| {
            cuda.pack_rows(peers, gradients, &group.tables, &mut group.merged);
        });
    }

    fn counts(&mut self, cuda: &Cuda, peers: &CudaPeers) -> Vec<u32> {
        cuda.packed_counts(peers, |count| self.groups.iter_mut().for_each(|group| count(&mut group.merged)))
    }

    fn merge(&mut self, cuda: &Cuda, peers: &CudaPeers, counts: &[&[u32]]) -> bool {
        let merge = |merge: &mut dyn FnMut(&mut CudaMergedRows)| {
            self.groups.iter_mut().for_each(|group| merge(&mut group.merged));
        };
        cuda.merge_over_ranks(peers, counts, merge)
    }

    /// Gathers and merges the rows of all ranks of `communicator`.
    fn gather(&mut self, cuda: &Cuda, peers: &CudaPeers, communicator: &Communicator) {
        self.pack(cuda, peers);
        let counts = self.counts(cuda, peers);
        let counts = communicator.gather(Buffer::from(&counts[..])).join().unwrap();
        let counts: Vec<&[u32]> = counts.iter().map(|counts| &counts[..]).collect();
        assert!(self.merge(cuda, peers, &counts));
    }

    /// Steps the tables by the merged rows.
    fn step(&mut self, cuda: &Cuda) -> Stepped {
        let mut scale = cuda.matrix(1, 1);
        cuda.write_matrix(&mut scale, &[0.25]);
        let update = &Update::from(Formula::Sgd { learning_rate: 1.0 });
        let mut stepped = Vec::new();
        for Group { tables, merged, .. } in &mut self.groups {
            let (mut squares, mut numbers) = (cuda.matrix(1, 1), vec![0.0]);
            cuda.run(ops::MergedRowSquares { rows: merged, tables, sum: &mut squares });
            cuda.read_matrix(&squares, &mut numbers);
            stepped.push(numbers);
            cuda.run(ops::StepMergedRows { update, scale: &scale, draws: 0, rows: merged, tables });
            for table in tables {
                let mut weights = vec![0.0; table.shape().rows * table.shape().width];
                cuda.read_table(table, TablePart::Weights, 0, &mut weights);
                stepped.push(weights);
            }
        }
        stepped
    }
}

#[test]
fn small_tables_are_summed_as_a_whole() {
    let summed = |ranks, float| [0, 1, 2, 3, 4].map(|table| is_summed(table, ranks, float));
    assert_eq!(summed(3, Float::F32), [false, true, false, true, false]);
    assert_eq!(summed(3, Float::Bf16), [false, true, false, false, false]);
    assert_eq!(summed(2, Float::F32), [false; 5]);
    assert_eq!(summed(64, Float::F32), [true; 5]);
    let is_summed = |rows, ids, are_gathered| {
        let rows_of_parts = PartRows { parts: 64, ids: &[], even_ids: &[], are_gathered, float: Float::F32 };
        rank_rows::is_summed(&shape_of((rows, 127)), ids, rows_of_parts)
    };
    assert!(is_summed(32_768, 1 << 20, true), "16 MiB");
    assert!(
        !is_summed(32_769, 1 << 20, true) && !is_summed(32_768, 3, true) && !is_summed(9, 1 << 20, false)
    );
}

/// Ranks of unequal numbers of rows, without rows, and with other numbers in each step. The order of sums of whole tables is
/// NCCL's.
#[test]
fn gathered_rows_have_the_bits_of_rows_by_way_of_the_host() {
    [Float::F32, Float::Bf16, Float::F16].into_iter().for_each(gather_as);
}

/// Gathered rows that travel as `float` are rounded once.
fn gather_as(float: Float) {
    let steps = [[ROWS, 0, 37], [0, 0, 0], [1, 900, 0], [700, 701, 702], [3, 0, ROWS], [0, 5, 0]];
    let of_ranks: Vec<Vec<(Rows, Stepped)>> = world(3, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        let mut model = Model::new(&rank.cuda, 3, float);
        let number = rank.communicator.rank();
        let step = |(step, rows): (usize, [u32; 3])| {
            model.take(&rank.cuda, rows[number], (10 * step + number) as u64);
            let own = model.rows(&rank.cuda);
            model.gather(&rank.cuda, &peers, &rank.communicator);
            (own, model.step(&rank.cuda))
        };
        steps.into_iter().enumerate().map(step).collect()
    });
    let (_stand_in, cuda) = alone();
    let mut model = Model::new(&cuda, 3, float);
    for step in 0..steps.len() {
        for (group, tables) in model.groups.iter_mut().enumerate() {
            let part = |of_rank: &Vec<(Rows, Stepped)>| {
                let (ids, rows) = &of_rank[step].0[group];
                RowSums {
                    ids: ids[..].into(),
                    rows: travelled(rows, ids, GROUPS[group].clone(), float)[..].into(),
                }
            };
            assert!(cuda.merge_rows(of_ranks.iter().map(part).collect(), &mut tables.merged));
        }
        let expected = model.step(&cuda);
        // As `Model::step` returns them: squares, then tables.
        let tables = GROUPS.into_iter().flat_map(|tables| std::iter::once(None).chain(tables.map(Some)));
        let has_bits: Vec<bool> =
            tables.map(|table| table.is_some_and(|table| !is_summed(table, 3, float))).collect();
        assert_eq!(has_bits.len(), expected.len());
        for (rank, of_rank) in of_ranks.iter().enumerate() {
            for (number, (found, expected)) in of_rank[step].1.iter().zip(&expected).enumerate() {
                let at = format!("{float:?}, rank {rank}, step {step}, {number}");
                assert!(bits(found) == bits(&of_ranks[0][step].1[number]), "{at}: other bits than rank 0");
                let largest = expected.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                // In fp16, some are infinite, and differences of these no numbers.
                let is_close = |(found, expected): (&f32, &f32)| {
                    (found - expected).abs() <= 1e-5 * largest || expected.is_nan() && found.is_nan()
                };
                let agree = match has_bits[number] {
                    true => bits(found) == bits(expected),
                    false => found.iter().zip(expected).all(|pair| pair.0 == pair.1 || is_close(pair)),
                };
                assert!(agree, "{at}");
            }
        }
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// The rows of a group's tables as other ranks get them: rounded, except of tables that are summed as a whole.
fn travelled(rows: &[f32], ids: &[u32], tables: std::ops::Range<usize>, float: Float) -> Vec<f32> {
    let mut rest = rows;
    let of_table = |(&count, table): (&u32, usize)| {
        let of_table;
        (of_table, rest) = rest.split_at(count as usize * TABLES[table].1);
        let format = if is_summed(table, 3, float) { Float::F32 } else { float };
        of_table.iter().map(move |&x| format.round(x)).collect::<Vec<_>>()
    };
    ids.iter().zip(tables).flat_map(of_table).collect()
}

#[test]
fn counts_of_other_tables_are_refused() {
    world(1, LIMIT, |rank| {
        let peers = rank.connect().unwrap();
        let mut model = Model::new(&rank.cuda, 1, Float::F32);
        model.take(&rank.cuda, 9, 1);
        model.pack(&rank.cuda, &peers);
        let counts = model.counts(&rank.cuda, &peers);
        assert!(counts.len() == TABLES.len());
        assert!(counts.iter().zip(TABLES).all(|(count, (rows, _))| (1..=rows.min(9)).contains(count)));
        let [first, second, third, fourth, fifth] = counts[..] else { panic!("{counts:?}") };
        let sums = peers.sums.load(Ordering::Relaxed);
        for wrong in [
            &[&[first, second, third][..]][..],
            &[&[first, second, third, fourth]],
            &[&[first, second, third, fourth, fifth, 0]],
            &[&[first, 6, third, fourth, fifth]],
            &[&[ROWS + 1, second, third, fourth, fifth]],
            &[&[first, second, third, 41, fifth]],
            &[&counts, &counts],
            &[],
        ] {
            assert!(!model.merge(&rank.cuda, &peers, wrong), "{wrong:?}");
        }
        assert_eq!(peers.sums.load(Ordering::Relaxed), sums, "nothing was gathered");
        assert!(model.merge(&rank.cuda, &peers, &[&counts]));
        rank.cuda.finish();
    });
}

#[test]
fn failed_gathers_are_named() {
    let failure = |fault: &(dyn Fn(&Rank) + Sync)| {
        world(3, SHORT, |rank| {
            let peers = rank.connect().unwrap();
            let mut model = Model::new(&rank.cuda, 3, Float::F32);
            model.take(&rank.cuda, 4, rank.communicator.rank() as u64);
            fault(&rank);
            raised(|| {
                model.gather(&rank.cuda, &peers, &rank.communicator);
                // The host waits for the device, and thereby for the other rank.
                model.step(&rank.cuda);
            })
        })
    };
    // After the sum of small tables, the third operation.
    let name = "gather of rows on GPUs, number 4: ";
    let silent = |nth| {
        failure(&|rank| {
            if rank.communicator.rank() == 1 {
                fail_nccl(&rank.stand_in, c"silent", nth, 1);
            }
        })
    };
    for (nth, name) in [(1, "sum on GPUs, number 3: "), (2, name)] {
        let (late, errors) = (format!("{name}a rank did not complete it within 2 s"), silent(nth));
        assert!(errors.iter().all(|error| error.starts_with(&late)), "{errors:?}");
    }
    for (function, nth) in [(c"ncclBroadcast", 1), (c"ncclGroupEnd", 2)] {
        let failed = failure(&|rank| fail_nccl(&rank.stand_in, function, nth, REMOTE_ERROR));
        let part =
            format!("{name}{} of NVIDIA's collectives library (NCCL) failed", function.to_str().unwrap());
        assert!(failed.iter().all(|error| error.starts_with(&part)), "{failed:?}");
    }
}
