//! Layers, and the interactions of their outputs.

use millstream_backend::{Activation, Backend, Float, GradientMode, MixtureShape, SavedLayer, ops};

use super::close;

use crate::case::{Bench, scalars};

test_on_each!(
    a_layer_goes_forward_and_backward,
    a_gradient_is_masked_by_what_the_input_came_through,
    numbers_are_dropped_as_often_as_asked,
    vectors_meet_in_pairs,
    gates_mix_what_experts_gave,
    vectors_are_made_of_length_1,
);

fn a_layer_goes_forward_and_backward<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let input = bench.matrix(2, 2, &[1.0, 2.0, 3.0, -1.0]);
    let weights = bench.matrix(2, 3, &[1.0, 0.0, 2.0, -1.0, 1.0, 1.0]);
    let bias = bench.matrix(1, 3, &[0.5, -0.5, 0.0]);
    let mut output = backend.matrix(2, 3);
    backend.run(ops::LayerForward {
        rows: 2,
        input: &input,
        weights: &weights,
        bias: Some(&bias),
        activation: Activation::Relu,
        output: &mut output,
    });
    close(&bench.read(&output, 6), &[0.0, 1.5, 4.0, 4.5, 0.0, 5.0]);
    let mut gradient = bench.matrix(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (mut weight_grad, mut bias_grad) = (backend.matrix(2, 3), backend.matrix(1, 3));
    let mut input_grad = backend.matrix(2, 2);
    let layer = SavedLayer {
        input: &input,
        input_activation: Activation::Identity,
        weights: &weights,
        output: &output,
        activation: Activation::Relu,
    };
    let input_grad_wanted = Some(&mut input_grad);
    let bias_grad_wanted = Some(&mut bias_grad);
    backend.run(ops::LayerBackward {
        rows: 2,
        layer: &layer,
        output_grad: &mut gradient,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: bias_grad_wanted,
        input_grad: input_grad_wanted,
    });
    close(&bench.read(&gradient, 6), &[0.0, 2.0, 3.0, 4.0, 0.0, 6.0]);
    close(&bench.read(&bias_grad, 3), &[4.0, 2.0, 9.0]);
    close(&bench.read(&weight_grad, 6), &[12.0, 2.0, 21.0, -4.0, 4.0, 0.0]);
    close(&bench.read(&input_grad, 4), &[6.0, 5.0, 16.0, 2.0]);
}

fn a_gradient_is_masked_by_what_the_input_came_through<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    for float in [Float::F32, Float::Bf16, Float::F16] {
        let mut input = backend.matrix_of(float, 2, 2);
        backend.write_matrix(&mut input, &scalars::<B>(&[1.0, 2.0, 3.0, -1.0]));
        let weights = bench.matrix(2, 3, &[1.0, 0.0, 2.0, -1.0, 1.0, 1.0]);
        let bias = bench.matrix(1, 3, &[0.5, -0.5, 0.0]);
        let mut given = backend.matrix_of(float, 2, 3);
        backend.run(ops::LayerForward {
            rows: 2,
            input: &input,
            weights: &weights,
            bias: Some(&bias),
            activation: Activation::Relu,
            output: &mut given,
        });
        close(&bench.read(&given, 6), &[0.0, 1.5, 4.0, 4.5, 0.0, 5.0]);
        let weights = bench.matrix(3, 1, &[1.0, 2.0, -1.0]);
        let output = backend.matrix(2, 1);
        let mut input_grad = backend.matrix_of(float, 2, 3);
        let mut backward = |given: &B::Matrix| {
            let layer = SavedLayer {
                input: given,
                input_activation: Activation::Relu,
                weights: &weights,
                output: &output,
                activation: Activation::Identity,
            };
            let mut gradient = backend.matrix_of(float, 2, 1);
            backend.write_matrix(&mut gradient, &scalars::<B>(&[1.0, 10.0]));
            let (mut weight_grad, mut bias_grad) = (backend.matrix(3, 1), backend.matrix(1, 1));
            let wanted = (Some(&mut bias_grad), Some(&mut input_grad));
            backend.run(ops::LayerBackward {
                rows: 2,
                layer: &layer,
                output_grad: &mut gradient,
                mode: GradientMode::Write,
                weight_grad: &mut weight_grad,
                bias_grad: wanted.0,
                input_grad: wanted.1,
            });
            (bench.read(&weight_grad, 3), bench.read(&bias_grad, 1), bench.read(&input_grad, 6))
        };
        let (weight_grad, bias_grad, masked) = backward(&given);
        close(&weight_grad, &[45.0, 1.5, 54.0]);
        close(&bias_grad, &[11.0]);
        close(&masked, &[0.0, 2.0, -1.0, 10.0, 0.0, -10.0]);
        backend.write_matrix(&mut given, &scalars::<B>(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0]));
        close(&backward(&given).2, &[1.0, 0.0, 0.0, 0.0, 20.0, -10.0]);
    }
}

fn numbers_are_dropped_as_often_as_asked<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let (rows, columns) = (100, 130);
    let dropped = |key, first| {
        let mut matrix = bench.matrix(rows, columns, &vec![3.0; rows * columns]);
        backend.run(ops::Dropout { rows: first..first + rows, keep: 0.75, key, matrix: &mut matrix });
        bench.read(&matrix, rows * columns)
    };
    let first = dropped(1, 0);
    assert!(first.iter().all(|&x| x == 0.0 || (x - 4.0).abs() < 1e-6));
    let share = first.iter().filter(|&&x| x != 0.0).count() as f64 / first.len() as f64;
    // Four standard deviations.
    assert!((share - 0.75).abs() < 4.0 * (0.75 * 0.25 / first.len() as f64).sqrt(), "{share}");
    assert_eq!(first, dropped(1, 0));
    assert_ne!(first, dropped(2, 0));
    // A row's mask does not depend on the pass's first row.
    assert_eq!(first[columns * 40..], dropped(1, 40)[..columns * 60]);
}

fn vectors_meet_in_pairs<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let vectors = bench.matrix(1, 6, &[1.0, 2.0, 3.0, -1.0, 0.0, 4.0]);
    let mut out = bench.matrix(1, 1, &[100.0]);
    backend.run(ops::FmForward { rows: 1, vectors: &vectors, shape: (3, 2), out: &mut out });
    close(&bench.read(&out, 1), &[105.0]);
    let mut vectors_grad = bench.matrix(1, 6, &[100.0; 6]);
    backend.run(ops::FmBackward {
        rows: 1,
        vectors: &vectors,
        shape: (3, 2),
        out_grad: &bench.matrix(1, 1, &[2.0]),
        vectors_grad: &mut vectors_grad,
    });
    close(&bench.read(&vectors_grad, 6), &[106.0, 106.0, 102.0, 112.0, 108.0, 102.0]);
    let mut out = backend.matrix(1, 5);
    backend.run(ops::DotForward { rows: 1, vectors: &vectors, width: 2, out: &mut out });
    close(&bench.read(&out, 5), &[1.0, 2.0, 1.0, 8.0, -4.0]);
    let gradient = bench.matrix(1, 5, &[10.0, 20.0, 1.0, 2.0, 4.0]);
    backend.run(ops::DotBackward {
        rows: 1,
        vectors: &vectors,
        width: 2,
        out_grad: &gradient,
        vectors_grad: &mut vectors_grad,
    });
    close(&bench.read(&vectors_grad, 6), &[13.0, 27.0, 1.0, 18.0, 14.0, 0.0]);
}

/// Two tasks over two experts of two columns: gates of 1/2, and of 3/4 and 1/4.
fn gates_mix_what_experts_gave<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let shape = MixtureShape { tasks: 2, experts: 2, width: 2 };
    let logits = bench.matrix(1, 4, &[5.0, 5.0, 3.0_f64.ln() as f32, 0.0]);
    let experts = bench.matrix(1, 4, &[1.0, 2.0, 5.0, -2.0]);
    let (mut gates, mut output) = (backend.matrix(1, 4), backend.matrix(1, 4));
    backend.run(ops::MixtureForward {
        rows: 1,
        shape,
        logits: &logits,
        experts: &experts,
        gates: &mut gates,
        output: &mut output,
    });
    close(&bench.read(&gates, 4), &[0.5, 0.5, 0.75, 0.25]);
    close(&bench.read(&output, 4), &[3.0, 0.0, 2.0, 1.0]);
    let output_grad = bench.matrix(1, 4, &[1.0, 0.0, 0.0, 4.0]);
    let (mut logits_grad, mut experts_grad) = (backend.matrix(1, 4), backend.matrix(1, 4));
    backend.run(ops::MixtureBackward {
        rows: 1,
        shape,
        gates: &gates,
        experts: &experts,
        output_grad: &output_grad,
        logits_grad: &mut logits_grad,
        experts_grad: &mut experts_grad,
    });
    // Products of 1 and 5 around their mean of 3; of 8 and -8 around their mean of 4.
    close(&bench.read(&logits_grad, 4), &[-1.0, 1.0, 3.0, -3.0]);
    close(&bench.read(&experts_grad, 4), &[0.5, 3.0, 0.5, 1.0]);
}

fn vectors_are_made_of_length_1<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let input = bench.matrix(3, 2, &[3.0, 4.0, 0.0, 0.0, 6e-7, -8e-7]);
    let mut output = backend.matrix(3, 2);
    backend.run(ops::UnitForward { rows: 3, input: &input, output: &mut output });
    close(&bench.read(&output, 6), &[0.6, 0.8, 0.0, 0.0, 0.6, -0.8]);
    let mut gradient = bench.matrix(2, 2, &[1.0, 0.0, 1e-6, 2e-6]);
    backend.run(ops::UnitBackward { rows: 2, input: &input, grad: &mut gradient });
    close(&bench.read(&gradient, 4), &[0.64 / 5.0, -0.48 / 5.0, 1.0, 2.0]);
    let mut products = bench.matrix(3, 1, &[7.0; 3]);
    backend.run(ops::RowProducts { rows: 2, factor: 2.0, left: &input, right: &output, out: &mut products });
    close(&bench.read(&products, 3), &[10.0, 0.0, 7.0]);
}
