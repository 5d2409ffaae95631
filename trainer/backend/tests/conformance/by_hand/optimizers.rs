//! Optimizer steps.

use millstream_backend::{Backend, Formula, Update, ops};

use super::{SGD, adam, close};

use crate::case::Bench;

test_on_each!(optimizers_do_as_their_papers_say, gradients_are_scaled_cut_and_pulled,);

fn optimizers_do_as_their_papers_say<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let gradient = bench.matrix(1, 1, &[3.0]);
    let scale = bench.matrix(1, 1, &[1.0]);
    let stepped = |formula: Formula, w: f32, state: &[f32]| {
        let mut weight = bench.matrix(1, 1, &[w]);
        let mut states: Vec<B::Matrix> = state.iter().map(|&s| bench.matrix(1, 1, &[s])).collect();
        backend.run(ops::Step {
            update: &formula.into(),
            scale: &scale,
            weights: &mut weight,
            states: &mut states,
            grad: &gradient,
        });
        let states = states.iter().flat_map(|state| bench.read(state, 1));
        bench.read(&weight, 1).into_iter().chain(states).collect::<Vec<_>>()
    };
    close(&stepped(Formula::Sgd { learning_rate: 0.5 }, 2.0, &[]), &[0.5]);
    // a = 16 + 9 = 25; w = 2 - 0.5 * 3 / (5 + 1)
    let adagrad = Formula::Adagrad { learning_rate: 0.5, epsilon: 1.0 };
    close(&stepped(adagrad, 2.0, &[16.0]), &[1.75, 25.0]);
    // m = 0.5 * 4 + 3 = 5; w = 2 - 0.5 * 5, or 2 - 0.5 * (3 + 0.5 * 5)
    let momentum = |nesterov| Formula::Momentum { learning_rate: 0.5, momentum: 0.5, nesterov };
    close(&stepped(momentum(false), 2.0, &[4.0]), &[-0.5, 5.0]);
    close(&stepped(momentum(true), 2.0, &[4.0]), &[-0.75, 5.0]);
    // m = 0.5 * 1 + 0.5 * 3 = 2; v = 0.75 * 9 + 0.25 * 9 = 9; both corrected by the first step's number:
    // w = (2 - 0.5 * decay * 2) - 0.5 * (2 / 0.5) / (3 / 0.5 + 2)
    close(&stepped(adam(0.0), 2.0, &[1.0, 9.0]), &[1.75, 2.0, 9.0]);
    close(&stepped(adam(0.5), 2.0, &[1.0, 9.0]), &[1.25, 2.0, 9.0]);
    // sigma = (5 - 4) / 0.5 = 2; z = 10 + 3 - 2 * 2 = 9; n = 25;
    // w = -(9 - 1) / ((1 + 5) / 0.5 + 4) = -0.5
    let ftrl = |l1| Formula::Ftrl { learning_rate: 0.5, beta: 1.0, l1, l2: 4.0 };
    close(&stepped(ftrl(1.0), 2.0, &[10.0, 16.0]), &[-0.5, 9.0, 25.0]);
    close(&stepped(ftrl(9.0), 2.0, &[10.0, 16.0]), &[0.0, 9.0, 25.0]);
    // z = -16 + 3 + 4 = -9 for a weight of -2
    close(&stepped(ftrl(1.0), -2.0, &[-16.0, 16.0]), &[0.5, -9.0, 25.0]);
}

fn gradients_are_scaled_cut_and_pulled<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let gradient = bench.matrix(1, 4, &[6.0, -8.0, 0.5, 0.0]);
    let mut squares = bench.matrix(1, 1, &[0.0]);
    backend.run(ops::Squares { grad: &gradient, sum: &mut squares });
    close(&bench.read(&squares, 1), &[100.25]);
    let mut scale = bench.matrix(1, 1, &[9.0]);
    backend.run(ops::ClipScale { maximum: 11.0, squares: &squares, scale: &mut scale });
    close(&bench.read(&scale, 1), &[1.0]);
    backend.run(ops::ClipScale { maximum: 100.25_f64.sqrt() / 2.0, squares: &squares, scale: &mut scale });
    close(&bench.read(&scale, 1), &[0.5]);
    // Half of each, clipped to 3.5, and a quarter of the weight.
    let mut weights = bench.matrix(1, 4, &[1.0, -2.0, 4.0, 8.0]);
    let update = Update { formula: SGD, clip: 3.5, l2: 0.25 };
    backend.run(ops::Step {
        update: &update,
        scale: &scale,
        weights: &mut weights,
        states: &mut [],
        grad: &gradient,
    });
    close(&bench.read(&weights, 4), &[1.0 - 3.25, -2.0 + 4.0, 4.0 - 1.25, 8.0 - 2.0]);
    // NaN gradients make NaN weights: clipping does not hide them.
    let gradient = bench.matrix(1, 4, &[f32::NAN; 4]);
    backend.run(ops::Step {
        update: &update,
        scale: &scale,
        weights: &mut weights,
        states: &mut [],
        grad: &gradient,
    });
    assert!(bench.read(&weights, 4).iter().all(|w| w.is_nan()));
}
