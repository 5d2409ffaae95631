//! Steps that are submitted before earlier ones have completed.

use millstream_backend::{Backend, BatchError, Cpu};
use millstream_batch::BatchBuffer;
use millstream_trainer::loss::LossSum;
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;

use crate::case::{Case, Golden, cuda, golden, tensors_of};

/// Steps of a test.
const STEPS: usize = 6;

fn new<B: Backend>(backend: B, golden: &Golden, case: &Case) -> Model<B> {
    Model::new(backend, &case.spec(), &golden.schema(case), &case.training(7)).expect("a model of the schema")
}

fn begin<B: Backend>(model: &mut Model<B>, batch: &BatchBuffer, step: usize) {
    model.submit_step(batch.as_ref(), Step::number(step as u64 + 1)).expect("a batch of the schema");
}

#[test]
fn steps_in_flight_on_cuda_equal_single_steps() {
    steps_in_flight_equal_single_steps(cuda);
}

#[test]
fn steps_in_flight_on_the_cpu_equal_single_steps() {
    steps_in_flight_equal_single_steps(|| Cpu::new(Some(2)).expect("threads"));
}

fn steps_in_flight_equal_single_steps<B: Backend>(backend: impl Fn() -> B) {
    let golden = golden();
    for case in &golden.cases {
        let mut one_by_one = new(backend(), &golden, case);
        let losses: Vec<LossSum> = (0..STEPS)
            .map(|number| {
                let batch = golden.batch(case, number);
                let step = Step::number(number as u64 + 1);
                one_by_one.train_step(batch.as_ref(), step).expect("a batch of the schema")
            })
            .collect();
        let mut ahead = new(backend(), &golden, case);
        let mut ended = Vec::new();
        for number in 0..STEPS {
            begin(&mut ahead, &golden.batch(case, number), number);
            while ahead.steps_in_flight() > ahead.steps_ahead() {
                ended.push(ahead.finish_step().expect("a good batch"));
            }
        }
        assert_eq!(ahead.steps_in_flight(), B::STEPS_AHEAD, "{}", case.name);
        while ahead.steps_in_flight() > 0 {
            ended.push(ahead.finish_step().expect("a good batch"));
        }
        assert_eq!(ended, losses, "{}", case.name);
        assert!(tensors_of(&mut ahead) == tensors_of(&mut one_by_one), "{}", case.name);
    }
}

/// The GPU reports a bad batch after later steps were submitted: none of them is taken.
#[test]
fn a_bad_batch_cancels_all_steps_submitted_after_it() {
    let golden = golden();
    for case in &golden.cases {
        let mut with = new(cuda(), &golden, case);
        let mut without = new(cuda(), &golden, case);
        begin(&mut with, &golden.batch(case, 0), 0);
        begin(&mut with, &bad(&golden, case), 1);
        begin(&mut with, &golden.batch(case, 2), 2);
        with.finish_step().expect("a good batch");
        let error = with.finish_step().expect_err("a bad batch");
        assert!(
            matches!(&error, BatchError::IdOutOfRange { row: 1, id: u32::MAX, .. }),
            "{}: {error}",
            case.name
        );
        assert_eq!(with.steps_in_flight(), 0, "{}", case.name);
        without.train_step(golden.batch(case, 0).as_ref(), Step::number(1)).expect("a good batch");
        assert!(tensors_of(&mut with) == tensors_of(&mut without), "{}", case.name);
        for model in [&mut with, &mut without] {
            model.train_step(golden.batch(case, 1).as_ref(), Step::number(2)).expect("a good batch");
        }
        assert!(tensors_of(&mut with) == tensors_of(&mut without), "{}", case.name);
    }
}

/// A batch with an id that is out of range.
fn bad(golden: &Golden, case: &Case) -> BatchBuffer {
    let mut batch = golden.batch(case, 1);
    batch.as_mut().sections().ids[1] = u32::MAX;
    batch
}
