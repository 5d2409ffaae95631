//! Workers whose parts of a batch have any number of rows, as dealt by lanes: against PyTorch, one worker, and each other.
//! Batches have nine rows of twelve, and passes have room for the rows of equal parts. So a worker with more makes
//! several passes.

use std::num::NonZeroU32;

use millstream_backend::{Cpu, Reference};
use millstream_trainer::model::{ModelError, ModelPlan};
use millstream_trainer::spec::{LossSpec, TrainingSpec};

use crate::case::{cuda_of, golden, several_gpus};
use crate::golden::close;
use crate::workers::{Division, agree_with_pytorch, bits, shared, train, train_divided};

/// Parts that need one pass and up to three, parts without rows, and one part with all rows.
fn divisions() -> [Division; 6] {
    let shards = Division { shards: Some(4), ..Division::uneven(&[1, 7, 0, 1]) };
    [
        Division::uneven(&[7, 0, 2]),
        Division::uneven(&[0, 0, 9]),
        Division::uneven(&[1, 3, 3, 2]),
        Division::uneven(&[2, 7]),
        Division { ranks: 2, ..shards },
        Division { ranks: 1, micro_batch_rows: Some(2), ..shards },
    ]
}

#[test]
fn uneven_workers_agree_with_pytorch_on_the_reference() {
    agree_with_pytorch(divisions(), 1e-12, |_| Reference);
}

#[test]
fn uneven_workers_agree_with_pytorch_on_the_cpu() {
    agree_with_pytorch(divisions(), 1e-5, |_| Cpu::new(Some(1)).expect("a thread"));
}

#[test]
fn uneven_workers_agree_with_pytorch_on_cuda() {
    let Some(_alone) = several_gpus() else { return };
    agree_with_pytorch([divisions()[0], divisions()[3]], 1e-5, cuda_of);
}

/// Each worker passes its rows through the model in the same passes, whatever its threads.
#[test]
fn uneven_workers_repeat_their_bits() {
    let golden = golden();
    let two_towers = golden.cases.iter().filter(|case| case.name == "two towers");
    let mut compared = 0;
    for case in shared(&golden).step_by(5).chain(two_towers) {
        let run = |threads| {
            let backend = |_| Cpu::new(Some(threads)).expect("threads");
            let trained = train(&golden, case, Division::uneven(&[0, 7, 2]), 8, backend);
            trained.iter().map(bits).collect::<Vec<_>>()
        };
        assert!(run(1) == run(2), "{}", case.name);
        compared += 1;
    }
    assert!(compared > 10);
}

#[test]
fn uneven_shards_have_the_same_bits_for_every_number_of_workers() {
    let golden = golden();
    let mut compared = 0;
    for case in shared(&golden).step_by(3) {
        let run = |ranks| {
            let division = Division { ranks, shards: Some(8), ..Division::uneven(&[3, 0, 1, 0, 0, 4, 1, 0]) };
            let backend = |_| Cpu::new(Some(1)).expect("a thread");
            bits(&train(&golden, case, division, 8, backend)[0])
        };
        let one = run(1);
        for ranks in [2, 4, 8] {
            assert!(one == run(ranks), "{}, {ranks} workers", case.name);
        }
        compared += 1;
    }
    assert!(compared > 15);
}

/// A pass accumulates gradients in the order of rows, so its size changes no bit where products do not depend on it.
#[test]
fn the_size_of_passes_changes_no_bit_on_the_reference() {
    let golden = golden();
    for name in ["wide_deep", "dlrm", "mmoe", "dropout"] {
        let case = golden.cases.iter().find(|case| case.name == name).expect("a case");
        let run = |micro_batch_rows| {
            let division = Division { micro_batch_rows, ..Division::uneven(&[2, 7]) };
            bits(&train(&golden, case, division, 8, |_| Reference)[0])
        };
        let usual = run(None);
        assert!([1, 2, 4].into_iter().all(|rows| usual == run(Some(rows))), "{name}");
    }
}

#[test]
fn uneven_workers_compare_lists_as_one_does() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "wide_deep").expect("a case");
    for loss in
        [LossSpec::Listwise { group: "shape".to_owned() }, LossSpec::Pairwise { group: "shape".to_owned() }]
    {
        let schema = golden.schema(case);
        let train = |division: Division| {
            let training = division.apply(TrainingSpec { loss: loss.clone(), ..case.training(1) });
            train_divided(&golden, (case, &schema, &training), division, 8, |_| Reference)
        };
        let one = train(Division::among(1));
        for division in [Division::uneven(&[7, 0, 2]), Division::uneven(&[0, 9])] {
            for of_rank in train(division) {
                close(&format!("{loss:?}, {division:?}"), &of_rank.0, &one[0].0, 1e-12);
                for (name, tensor) in &of_rank.1 {
                    close(&format!("{loss:?}, {division:?}, {name}"), tensor, &one[0].1[name], 1e-12);
                }
            }
        }
    }
}

#[test]
fn batch_normalization_of_uneven_workers_is_refused() {
    let golden = golden();
    let mut refused = 0;
    for case in golden.cases.iter().filter(|case| case.spec().uses_batch_normalization()) {
        let planned = |workers| {
            let workers = NonZeroU32::new(workers);
            let training = TrainingSpec { uneven_parts: true, workers, ..case.training(1) };
            ModelPlan::new(&case.spec(), &golden.schema(case), &training).err()
        };
        assert_eq!(planned(2), Some(ModelError::UnevenNormalized), "{}", case.name);
        assert_eq!(planned(1), None, "{}", case.name);
        refused += 1;
    }
    assert!(refused > 1);
}

/// Activations have room for the rows of equal parts, and batches for all rows.
#[test]
fn uneven_workers_need_less_memory_than_one() {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "mlp").expect("a case");
    let schema = millstream_batch::BatchSchema { rows: 60_000, ..golden.schema(case) };
    let workspace = |ranks, uneven_parts| {
        let workers = NonZeroU32::new(ranks);
        let training = TrainingSpec { uneven_parts, workers, ..case.training(1) };
        ModelPlan::new(&case.spec(), &schema, &training).expect("a plan").workspace_bytes
    };
    let (one, even, uneven) = (workspace(1, false), workspace(8, false), workspace(8, true));
    assert!(even < uneven && uneven < one, "{even}, {uneven}, {one}");
    assert_eq!(workspace(1, true), one);
}
