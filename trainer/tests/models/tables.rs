//! Tables of 16 bits: the effect of many small steps.

use millstream_backend::{Backend, Cpu, Float};
use millstream_trainer::model::Model;
use millstream_trainer::schedule::Step;
use millstream_trainer::spec::{Precision, TrainingSpec};

use crate::case::{Case, Golden, Tensors, golden, tensors_of, write};

/// Number of steps, and a learning rate at which hardly any step changes a weight by half a unit in the last
/// place.
const STEPS: usize = 400;
const RATE: f64 = 1.0 / 1024.0;
const SEEDS: u64 = 64;

/// The embeddings after the steps. `change` is applied to all tensors after each step.
fn after<B: Backend>(
    golden: &Golden,
    case: &Case,
    model: &mut Model<B>,
    change: impl Fn(&mut Tensors) -> bool,
) -> Vec<f64> {
    for number in 0..STEPS {
        let step = Step::number(number as u64 + 1);
        model.train_step(golden.batch(case, number).as_ref(), step).expect("a batch of the schema");
        let mut tensors = tensors_of(model);
        if change(&mut tensors) {
            write(model, &tensors);
        }
    }
    embeddings(&tensors_of(model))
}

fn is_embedding(name: &str) -> bool {
    name.starts_with("embedding.")
}

fn embeddings(tensors: &Tensors) -> Vec<f64> {
    tensors.iter().filter(|(name, _)| is_embedding(name)).flat_map(|(_, numbers)| numbers.clone()).collect()
}

/// The distance that embeddings move, relative to fp32: with stochastic rounding, averaged over seeds, and
/// with rounding to nearest.
fn relative_distances(precision: Precision, float: Float) -> [f64; 2] {
    let golden = golden();
    let case = golden.cases.iter().find(|case| case.name == "tables of bfloat16").expect("an MLP");
    let model = |embedding_precision, seed| {
        let training = TrainingSpec { embedding_precision, ..case.training(seed) };
        let backend = Cpu::new(Some(1)).expect("a thread");
        let mut model = case.by_descent_of(RATE, backend, &golden.schema(case), &training);
        let mut start = tensors_of(&mut model);
        round(&mut start, float);
        write(&mut model, &start);
        model
    };
    let start = embeddings(&tensors_of(&mut model(Precision::Fp32, 0)));
    let way =
        |end: Vec<f64>| -> Vec<f64> { end.iter().zip(&start).map(|(end, start)| end - start).collect() };
    let whole = way(after(&golden, case, &mut model(Precision::Fp32, 0), |_| false));
    let along = |way: Vec<f64>| {
        let product: f64 = way.iter().zip(&whole).map(|(x, y)| x * y).sum();
        product / whole.iter().map(|x| x * x).sum::<f64>()
    };
    let drawn = |seed| along(way(after(&golden, case, &mut model(precision, seed), |_| false)));
    let mean = (0..SEEDS).map(drawn).sum::<f64>() / SEEDS as f64;
    let nearest = after(&golden, case, &mut model(Precision::Fp32, 0), |tensors| round(tensors, float));
    [mean, along(way(nearest))]
}

/// Rounds embeddings to nearest.
fn round(tensors: &mut Tensors, float: Float) -> bool {
    for (_, numbers) in tensors.iter_mut().filter(|(name, _)| is_embedding(name)) {
        numbers.iter_mut().for_each(|number| *number = float.round(*number as f32).into());
    }
    true
}

#[test]
fn small_steps_are_kept_by_stochastic_rounding_and_lost_by_rounding_to_nearest() {
    for (precision, float, most) in [(Precision::Bf16, Float::Bf16, 0.1), (Precision::Fp16, Float::F16, 0.5)]
    {
        let [drawn, nearest] = relative_distances(precision, float);
        assert!((drawn - 1.0).abs() < 0.05, "{precision:?}: {drawn} of the distance");
        assert!(nearest < most, "{precision:?}: {nearest} of the distance by rounding to nearest");
    }
}
