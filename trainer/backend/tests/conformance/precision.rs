//! Operations on 16-bit matrices: results are rounded, and agree with the reference.
//!
//! All backends get the same rounded inputs. The reference sums in fp64; the others sum in fp32, or pairwise with
//! bfloat16 instructions. So a result may be off by the fp32 error of the sum. Where that crosses a rounding
//! boundary, it may be off by one more unit of the format.

use millstream_backend::{
    Activation, Axis, Backend, ColumnSums, Cpu, Device, Float, GradientMode, IdColumn, Lookup, Loss,
    LossScaling, MixtureShape, Normalization, Pooling, Reference, SavedLayer, SavedNormalization, Sequence,
    ops,
};

use crate::case::{Bench, IdsFall, Random, Shapes, cpus, cuda, cuda_of_plain_products};

const LOW: [Float; 2] = [Float::Bf16, Float::F16];

/// The result of an operation, and the format that it was rounded to.
struct Given {
    name: String,
    float: Float,
    numbers: Vec<f64>,
}

/// Runs operations on matrices of one format.
struct Rounded<'a, B: Backend> {
    bench: Bench<'a, B>,
    float: Float,
    random: Random,
    given: Vec<Given>,
}

impl<B: Backend> Rounded<'_, B> {
    fn matrix_of(&mut self, float: Float, rows: usize, columns: usize) -> B::Matrix {
        let numbers = self.random.numbers(rows * columns);
        let numbers: Vec<B::Scalar> = numbers.into_iter().map(scalar::<B>).collect();
        let mut matrix = self.bench.0.matrix_of(float, rows, columns);
        self.bench.0.write_matrix(&mut matrix, &numbers);
        matrix
    }

    /// Random values of the format.
    fn low(&mut self, rows: usize, columns: usize) -> B::Matrix {
        self.matrix_of(self.float, rows, columns)
    }

    /// Random fp32 values.
    fn whole(&mut self, rows: usize, columns: usize) -> B::Matrix {
        self.matrix_of(Float::F32, rows, columns)
    }

    fn give(&mut self, name: &str, float: Float, matrix: &B::Matrix, count: usize) {
        let numbers = self.bench.read(matrix, count);
        self.given.push(Given { name: name.to_owned(), float, numbers });
    }

    /// Records a result that has the format.
    fn give_low(&mut self, name: &str, matrix: &B::Matrix, count: usize) {
        self.give(name, self.float, matrix, count);
    }

    fn layers(&mut self, rows: usize, (inputs, outputs): (usize, usize)) {
        let backend = self.bench.0;
        let (input, weights, bias) =
            (self.low(rows, inputs), self.whole(inputs, outputs), self.whole(1, outputs));
        for activation in [Activation::Identity, Activation::Relu] {
            for float in [self.float, Float::F32] {
                let mut output = backend.matrix_of(float, rows, outputs);
                backend.run(ops::LayerForward {
                    rows,
                    input: &input,
                    weights: &weights,
                    bias: Some(&bias),
                    activation,
                    output: &mut output,
                });
                self.give(&format!("layer {activation:?}"), float, &output, rows * outputs);
                // With an output gradient of the format, and with one that products have to round.
                let output = self.low(rows, outputs);
                let mut output_grad = self.matrix_of(float, rows, outputs);
                let (mut weight_grad, mut bias_grad) = (self.whole(inputs, outputs), self.whole(1, outputs));
                let mut input_grad = self.low(rows, inputs.div_ceil(2));
                let layer = SavedLayer {
                    input: &input,
                    input_activation: Activation::Identity,
                    weights: &weights,
                    output: &output,
                    activation,
                };
                for sum in [GradientMode::Write, GradientMode::Accumulate] {
                    let (bias_grad, input_grad) = (Some(&mut bias_grad), Some(&mut input_grad));
                    backend.run(ops::LayerBackward {
                        rows,
                        layer: &layer,
                        output_grad: &mut output_grad,
                        mode: sum,
                        weight_grad: &mut weight_grad,
                        bias_grad,
                        input_grad,
                    });
                }
                let name = |what| format!("layer {activation:?} gradient of {what}, {float:?}");
                self.give(&name("weights"), Float::F32, &weight_grad, inputs * outputs);
                self.give(&name("bias"), Float::F32, &bias_grad, outputs);
                self.give_low(&name("input"), &input_grad, rows * inputs.div_ceil(2));
                self.give(&name("output"), float, &output_grad, rows * outputs);
            }
        }
    }

    /// A layer and the next one, which masks the gradient by the first one's output, as computed and as overwritten.
    fn layers_in_a_row(&mut self, rows: usize, (inputs, between, outputs): (usize, usize, usize)) {
        let backend = self.bench.0;
        let (input, first, second) =
            (self.low(rows, inputs), self.whole(inputs, between), self.whole(between, outputs));
        let mut given = backend.matrix_of(self.float, rows, between);
        let written = self.random.numbers(rows * between).into_iter().map(scalar::<B>).collect::<Vec<_>>();
        for bias in [None, Some(self.whole(1, between))] {
            backend.run(ops::LayerForward {
                rows,
                input: &input,
                weights: &first,
                bias: bias.as_ref(),
                activation: Activation::Relu,
                output: &mut given,
            });
            self.give_low("first layer", &given, rows * between);
            for sum in [GradientMode::Write, GradientMode::Accumulate] {
                let mut output_grad = self.low(rows, outputs);
                let (mut weight_grad, mut bias_grad) = (self.whole(between, outputs), self.whole(1, outputs));
                let mut given_grad = self.low(rows, between);
                let layer = SavedLayer {
                    input: &given,
                    input_activation: Activation::Relu,
                    weights: &second,
                    // Masked already.
                    output: &self.low(rows, outputs),
                    activation: Activation::Identity,
                };
                let wanted = (Some(&mut bias_grad), Some(&mut given_grad));
                backend.run(ops::LayerBackward {
                    rows,
                    layer: &layer,
                    output_grad: &mut output_grad,
                    mode: sum,
                    weight_grad: &mut weight_grad,
                    bias_grad: wanted.0,
                    input_grad: wanted.1,
                });
                // The computed input may differ from the reference's by rounding.
                if sum == GradientMode::Accumulate {
                    self.give(
                        "second layer gradient of weights",
                        Float::F32,
                        &weight_grad,
                        between * outputs,
                    );
                }
                self.give("second layer gradient of bias", Float::F32, &bias_grad, outputs);
                self.give_low("second layer gradient of input", &given_grad, rows * between);
                backend.write_matrix(&mut given, &written);
            }
        }
    }

    /// Pairwise dot products, individually and summed.
    fn pairs(&mut self, rows: usize, (count, width): (usize, usize)) {
        let (backend, columns) = (self.bench.0, count * width);
        let name = |what| format!("{what} of {count} vectors of {width}");
        let vectors = self.low(rows, columns);
        let (mut logits, logits_grad) = (self.low(rows, 1), self.whole(rows, 1));
        backend.run(ops::FmForward { rows, vectors: &vectors, shape: (count, width), out: &mut logits });
        self.give_low(&name("fm"), &logits, rows);
        let mut vectors_grad = self.low(rows, columns);
        backend.run(ops::FmBackward {
            rows,
            vectors: &vectors,
            shape: (count, width),
            out_grad: &logits_grad,
            vectors_grad: &mut vectors_grad,
        });
        self.give_low(&name("fm gradient of vectors"), &vectors_grad, rows * columns);
        let outputs = width + count * (count - 1) / 2;
        let (mut out, out_grad) = (self.low(rows, outputs), self.low(rows, outputs));
        backend.run(ops::DotForward { rows, vectors: &vectors, width, out: &mut out });
        self.give_low(&name("dot"), &out, rows * outputs);
        backend.run(ops::DotBackward {
            rows,
            vectors: &vectors,
            width,
            out_grad: &out_grad,
            vectors_grad: &mut vectors_grad,
        });
        self.give_low(&name("dot gradient of vectors"), &vectors_grad, rows * columns);
    }

    fn cross(&mut self, rows: usize, columns: usize) {
        let backend = self.bench.0;
        let mut low = || self.low(rows, columns);
        let (first, product, input, output_grad) = (low(), low(), low(), low());
        let (mut output, mut product_grad, mut first_grad) = (low(), low(), low());
        backend.run(ops::CrossForward {
            rows,
            first: &first,
            product: &product,
            input: &input,
            output: &mut output,
        });
        self.give_low("cross", &output, rows * columns);
        backend.run(ops::CrossBackward {
            rows,
            first: &first,
            product: &product,
            output_grad: &output_grad,
            product_grad: &mut product_grad,
            first_grad: &mut first_grad,
        });
        self.give_low("cross gradient of product", &product_grad, rows * columns);
        self.give_low("cross gradient of first", &first_grad, rows * columns);
    }

    /// Attention over three values of five columns; scores are fp32.
    fn attention(&mut self, rows: usize) {
        let backend = self.bench.0;
        let sequence = Sequence { first: 7, target: 1, values: 3, width: 5 };
        let vectors = self.low(rows, 23);
        let (scores, mut pairs) = (self.whole(rows * 3, 1), self.low(rows * 3, 20));
        backend.run(ops::PairForward { rows, sequence, vectors: &vectors, pairs: &mut pairs });
        self.give_low("pairs", &pairs, rows * 3 * 20);
        let (mut out, out_grad) = (self.low(rows, 8), self.low(rows, 8));
        backend.run(ops::AttendForward {
            rows,
            sequence,
            vectors: &vectors,
            scores: &scores,
            out: &mut out,
            first_column: 2,
        });
        self.give_low("attended", &out, rows * 8);
        let mut scores_grad = self.whole(rows * 3, 1);
        backend.run(ops::AttendBackward {
            rows,
            sequence,
            vectors: &vectors,
            out_grad: &out_grad,
            first_column: 2,
            scores_grad: &mut scores_grad,
        });
        self.give("gradient of scores", Float::F32, &scores_grad, rows * 3);
        let (pairs_grad, mut vectors_grad) = (self.low(rows * 3, 20), self.low(rows, 23));
        backend.run(ops::PairBackward {
            rows,
            sequence,
            vectors: &vectors,
            scores: &scores,
            out_grad: &out_grad,
            first_column: 2,
            pairs_grad: &pairs_grad,
            vectors_grad: &mut vectors_grad,
        });
        self.give_low("attention gradient of vectors", &vectors_grad, rows * 23);
    }

    fn mixtures(&mut self, rows: usize, shape: MixtureShape) {
        let (backend, MixtureShape { tasks, experts, width }) = (self.bench.0, shape);
        let (of_gates, of_experts, outputs) = (tasks * experts, experts * width, tasks * width);
        let (logits, given) = (self.low(rows, of_gates), self.low(rows, of_experts));
        let (mut gates, mut output) = (self.low(rows, of_gates), self.low(rows, outputs));
        backend.run(ops::MixtureForward {
            rows,
            shape,
            logits: &logits,
            experts: &given,
            gates: &mut gates,
            output: &mut output,
        });
        self.give_low("gates", &gates, rows * of_gates);
        self.give_low("mixture", &output, rows * outputs);
        let (gates, output_grad) = (self.low(rows, of_gates), self.low(rows, outputs));
        let (mut logits_grad, mut experts_grad) = (self.low(rows, of_gates), self.low(rows, of_experts));
        backend.run(ops::MixtureBackward {
            rows,
            shape,
            gates: &gates,
            experts: &given,
            output_grad: &output_grad,
            logits_grad: &mut logits_grad,
            experts_grad: &mut experts_grad,
        });
        self.give_low("mixture gradient of logits", &logits_grad, rows * of_gates);
        self.give_low("mixture gradient of experts", &experts_grad, rows * of_experts);
    }

    fn vectors(&mut self, rows: usize, columns: usize) {
        let backend = self.bench.0;
        let (input, other) = (self.low(rows, columns), self.low(rows, columns));
        let (mut output, mut products) = (self.low(rows, columns), self.low(rows, 1));
        backend.run(ops::UnitForward { rows, input: &input, output: &mut output });
        self.give_low("unit", &output, rows * columns);
        backend.run(ops::RowProducts { rows, factor: 0.3, left: &input, right: &other, out: &mut products });
        self.give_low("row_products", &products, rows);
    }

    fn columns(&mut self, rows: usize, columns: usize) {
        let backend = self.bench.0;
        let (from, mut to) = (self.whole(rows, columns), self.low(rows, columns));
        backend.run(ops::Add { rows, from: &from, to: &mut to });
        self.give_low("add", &to, rows * columns);
        backend.run(ops::CopyColumns { rows, from: (&from, 0), to: (&mut to, columns - 1), columns: 1 });
        self.give_low("copy_columns", &to, rows * columns);
        backend.run(ops::CopyRows { rows: rows - 1, from: (&from, 0), to: (&mut to, 1) });
        self.give_low("copy_rows", &to, rows * columns);
        backend.run(ops::Dropout { rows: 0..rows, keep: 0.7, key: 3, matrix: &mut to });
        self.give_low("dropout", &to, rows * columns);
        let factor = self.whole(1, 1);
        backend.run(ops::Multiply { rows, factor: &factor, matrix: &mut to });
        self.give_low("multiply", &to, rows * columns);
        let mut out = self.low(rows, 1);
        let logits = self.whole(rows, 1);
        backend.run(ops::Sigmoid { rows, logits: &logits, out: &mut out });
        self.give_low("sigmoid", &out, rows);
    }

    fn normalization(&mut self, rows: usize, columns: usize) {
        let backend = self.bench.0;
        let (input, given, output_grad) =
            (self.low(rows, columns), self.low(rows, columns), self.low(rows, columns));
        let (scale, shift) = (self.whole(1, columns), self.whole(1, columns));
        for axis in [Axis::Row, Axis::Column] {
            let lines = if axis == Axis::Row { (rows, 1) } else { (1, columns) };
            let (mut mean, mut variance) = (self.whole(lines.0, lines.1), self.whole(lines.0, lines.1));
            backend.run(ops::Moments { rows, axis, input: &input, mean: &mut mean, variance: &mut variance });
            let layer =
                Normalization { axis, scale: &scale, shift: &shift, epsilon: 0.125, is_rectified: true };
            let mut output = self.low(rows, columns);
            backend.run(ops::NormalizeForward {
                rows,
                layer: &layer,
                moments: (&mean, &variance),
                input: &input,
                output: &mut output,
            });
            self.give_low(&format!("normalized by {axis:?}"), &output, rows * columns);
            let saved =
                SavedNormalization { input: &input, mean: &mean, variance: &variance, output: &given };
            let (mut scale_grad, mut shift_grad) = (self.whole(1, columns), self.whole(1, columns));
            let mut gradient = self.low(rows, columns);
            backend.run(ops::CopyRows { rows, from: (&output_grad, 0), to: (&mut gradient, 0) });
            let (by, mode) = ((&mut scale_grad, &mut shift_grad), GradientMode::Write);
            backend.run(ops::NormalizeParameters {
                rows,
                layer: &layer,
                saved: &saved,
                grad: &gradient,
                mode,
                scale_grad: by.0,
                shift_grad: by.1,
            });
            let sums = ColumnSums { rows, scale: &scale_grad, shift: &shift_grad };
            backend.run(ops::NormalizeBackward {
                rows,
                layer: &layer,
                saved: &saved,
                grad: &mut gradient,
                columns: (axis == Axis::Column).then_some(sums),
            });
            self.give_low(&format!("normalized by {axis:?}, gradient of input"), &gradient, rows * columns);
        }
    }

    fn lookups(&mut self, shapes: &Shapes) {
        let backend = self.bench.0;
        let buffer = shapes.batch(&mut self.random);
        let mut batch = backend.batch(&shapes.schema());
        backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
        let (rows, lookups, sizes) = (shapes.rows as usize, shapes.lookups(), shapes.tables());
        let none = millstream_backend::Formula::Sgd { learning_rate: 1.0 };
        let table = |random: &mut Random, bench: &Bench<'_, B>, (rows, width): (usize, usize)| {
            bench.table((rows, width), &random.numbers(rows * width), &none, [0.0; 2])
        };
        let tables: Vec<B::Table> =
            sizes.iter().map(|&size| table(&mut self.random, &self.bench, size)).collect();
        let dense: Vec<usize> = (0..shapes.dense).collect();
        let columns = 1 + sizes.iter().map(|size| size.1).sum::<usize>() + dense.len();
        let mut out = self.low(rows, columns);
        backend.run(ops::Gather {
            batch: &batch,
            rows: 0..rows,
            lookups: &lookups,
            tables: &tables,
            dense: &dense,
            out: &mut out,
            first_column: 1,
            maxima: None,
        });
        self.give_low("gather", &out, rows * columns);
        let single = Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 0 };
        let table = table(&mut self.random, &self.bench, (sizes[0].0, 1));
        let (weights, bias, mut out) = (self.whole(dense.len(), 1), self.whole(1, 1), self.low(rows, 1));
        backend.run(ops::LinearForward {
            batch: &batch,
            rows: 0..rows,
            lookups: &[single],
            tables: &[table],
            dense: &dense,
            dense_weights: &weights,
            bias: &bias,
            out: &mut out,
        });
        self.give_low("linear", &out, rows);
        let table = self.bench.table((sizes[0].0, 3), &self.random.numbers(sizes[0].0 * 3), &none, [0.0; 2]);
        let (weights, bias, mut out) = (self.whole(dense.len(), 3), self.whole(1, 3), self.low(rows, 3));
        backend.run(ops::LinearForward {
            batch: &batch,
            rows: 0..rows,
            lookups: &[single],
            tables: &[table],
            dense: &dense,
            dense_weights: &weights,
            bias: &bias,
            out: &mut out,
        });
        self.give_low("linear of three columns", &out, rows * 3);
        let (logits, mut gradient, mut sums) = (self.whole(rows, 1), self.low(rows, 1), self.whole(1, 2));
        backend.run(ops::TaskLoss {
            total: None,
            task: &Loss::SquaredError.into(),
            batch: &batch,
            rows: 0..rows,
            logits: &logits,
            logits_grad: &mut gradient,
            sums: &mut sums,
        });
        self.give_low("loss", &gradient, rows);
        let of_classes = Loss::CrossEntropy { smoothing: 0.25, class_weights: vec![0.5, 3.0, 1.0] };
        let (logits, mut gradient) = (self.whole(rows, 3), self.low(rows, 3));
        backend.run(ops::TaskLoss {
            total: None,
            task: &of_classes.into(),
            batch: &batch,
            rows: 0..rows,
            logits: &logits,
            logits_grad: &mut gradient,
            sums: &mut sums,
        });
        self.give_low("loss of classes", &gradient, rows * 3);
    }
}

fn scalar<B: Backend>(number: f32) -> B::Scalar {
    millstream_backend::Scalar::from_f64(f64::from(number))
}

/// Every operation that rounds, with sizes around the boundaries of blocks and vectors.
fn run<B: Backend>(backend: &B, float: Float) -> Vec<Given> {
    let mut rounded = Rounded { bench: Bench(backend), float, random: Random(5), given: Vec::new() };
    let sizes = [
        (0, (33, 17)),
        (1, (1, 1)),
        (3, (5, 1)),
        (193, (429, 64)),
        (400, (33, 17)),
        (600, (24, 40)),
        (65, (48, 256)),
        (16, (64, 32)),
    ];
    for (rows, layer) in sizes {
        rounded.layers(rows, layer);
        rounded.layers_in_a_row(rows, (layer.1, layer.0, 3));
    }
    for (rows, vectors) in [(3, (2, 1)), (70, (5, 16)), (64, (3, 17))] {
        rounded.pairs(rows, vectors);
        rounded.cross(rows, vectors.0 * vectors.1);
        rounded.attention(rows);
        rounded.columns(rows, vectors.1);
        rounded.normalization(rows, vectors.1);
        rounded.vectors(rows, vectors.0 * vectors.1);
        rounded.mixtures(rows, MixtureShape { tasks: 2, experts: vectors.0, width: vectors.1 });
    }
    // Numbers and widths of vectors that the tensor core variants support, and larger or odd ones.
    for (rows, vectors) in
        [(9, (27, 128)), (6, (32, 16)), (3, (33, 8)), (5, (17, 24)), (4, (8, 40)), (2, (1, 8))]
    {
        rounded.pairs(rows, vectors);
    }
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::SqrtN] {
        rounded.lookups(&Shapes {
            rows: 65,
            capacity: 65,
            dense: 3,
            single: vec![(7, 16), (9, 5)],
            ragged: vec![(11, 8, 4)],
            pooling,
            shared: false,
            weighted: true,
            weighted_ids: pooling == Pooling::Mean,
            ids: IdsFall::Anywhere,
            layer: (1, 1),
        });
    }
    rounded.given
}

/// The spacing of the format's numbers at `x`.
fn unit(float: Float, x: f64) -> f64 {
    let (digits, least_exponent) = match float {
        Float::F32 => return 0.0,
        Float::Bf16 => (8, -126),
        Float::F16 => (11, -14),
    };
    2.0_f64.powi((x.abs().log2().floor() as i32).max(least_exponent) - (digits - 1))
}

#[test]
fn the_cpu_rounds_as_the_reference_does() {
    for (float, cpu) in LOW.into_iter().flat_map(|float| cpus(2).map(|cpu| (float, cpu))) {
        rounds_as_the_reference_does(&cpu, float);
    }
}

#[test]
fn cuda_rounds_as_the_reference_does() {
    let cuda = cuda();
    LOW.into_iter().for_each(|float| rounds_as_the_reference_does(&cuda, float));
}

/// On the emulator only: the name has no `cuda`, so the tests on a GPU do not select it.
#[test]
fn plain_products_round_as_the_reference_does() {
    let cuda = cuda_of_plain_products();
    LOW.into_iter().for_each(|float| rounds_as_the_reference_does(&cuda, float));
}

fn rounds_as_the_reference_does<B: Backend>(backend: &B, float: Float) {
    let (expected, found) = (run(&Reference, float), run(backend, float));
    assert!(expected.len() > 100 && expected.len() == found.len());
    let (mut numbers, mut off) = (0, 0);
    for (expected, found) in expected.iter().zip(&found) {
        let name = format!("{}, {float:?}", expected.name);
        assert_eq!((&expected.name, expected.numbers.len()), (&found.name, found.numbers.len()));
        let largest = expected.numbers.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
        for (item, (&expected, &number)) in expected.numbers.iter().zip(&found.numbers).enumerate() {
            let rounded = f64::from(found.float.round(number as f32));
            assert_eq!(rounded.to_bits(), number.to_bits(), "{name}, item {item}: {number} is of the format");
            let bound = unit(found.float, expected) + 1e-5 * largest;
            let is_close = (expected - number).abs() <= bound;
            assert!(is_close, "{name}, item {item}: {number}, not {expected}");
            numbers += 1;
            off += usize::from(found.float != Float::F32 && expected != number);
        }
    }
    // Few sums are so close to a rounding boundary that their error matters.
    assert!(off * 100 < numbers, "{off} of {numbers} numbers of {float:?} differ");
}

/// fp32: a factor with 13 significant bits keeps 11 if tf32 is allowed, and all of them otherwise.
#[test]
fn cuda_takes_factors_of_11_digits_where_it_may() {
    const SIZE: usize = 64;
    let cuda = cuda();
    let bench = Bench(&cuda);
    let whole = 1.0 + 2.0_f32.powi(-12);
    let identity: Vec<f32> = (0..SIZE * SIZE).map(|at| f32::from(u8::from(at / SIZE == at % SIZE))).collect();
    let (input, weights) =
        (bench.matrix(SIZE, SIZE, &[whole; SIZE * SIZE]), bench.matrix(SIZE, SIZE, &identity));
    let mut output = cuda.matrix(SIZE, SIZE);
    for (is_allowed, expected) in [(false, whole), (true, 1.0), (false, whole)] {
        cuda.allow_tf32(is_allowed);
        cuda.run(ops::LayerForward {
            rows: SIZE,
            input: &input,
            weights: &weights,
            bias: None,
            activation: Activation::Identity,
            output: &mut output,
        });
        let found = bench.read(&output, SIZE * SIZE);
        assert!(found.iter().all(|&number| number == f64::from(expected)), "{is_allowed}: {}", found[0]);
    }
}

#[test]
fn threads_change_no_bit_of_fewer_digits() {
    for float in LOW {
        let bits = |threads| -> Vec<u64> {
            let given = cpus(threads).into_iter().flat_map(|cpu| run(&cpu, float));
            given.flat_map(|given| given.numbers).map(f64::to_bits).collect()
        };
        let one = bits(1);
        assert!(one == bits(2) && one == bits(3), "{float:?}");
    }
}

/// The evolution of a loss scale, as in PyTorch's GradScaler; `golden/loss_scale.py` has longer sequences.
fn a_loss_scale_moves<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let rule = LossScaling { growth: 2.0, growth_interval: 2, backoff: 0.25 };
    let (mut state, mut scale) = (bench.matrix(1, 3, &[64.0, 0.0, 0.0]), bench.matrix(1, 1, &[1.0]));
    let mut step = |squares: f32, maximum: Option<f64>| {
        let squares = bench.matrix(1, 1, &[squares]);
        backend.run(ops::Unscale {
            rule: &rule,
            maximum,
            squares: &squares,
            state: &mut state,
            scale: &mut scale,
        });
        (bench.read(&scale, 1)[0], bench.read(&state, 3))
    };
    assert_eq!(step(1.0, None), (1.0 / 64.0, vec![64.0, 1.0, 0.0]));
    assert_eq!(step(f32::INFINITY, None), (0.0, vec![16.0, 0.0, 1.0]));
    // Gradients with a norm of 64 / 16 = 4, clipped to 1.
    assert_eq!(step(4096.0, Some(1.0)), (0.25 / 16.0, vec![16.0, 1.0, 1.0]));
    assert_eq!(step(4096.0, Some(4.0)), (1.0 / 16.0, vec![32.0, 0.0, 1.0]));
    assert_eq!(step(f32::NAN, Some(4.0)), (0.0, vec![8.0, 0.0, 2.0]));
}

#[test]
fn a_loss_scale_moves_on_each() {
    a_loss_scale_moves(&cuda());
    a_loss_scale_moves(&Cpu::new(Some(1)).expect("a thread"));
    a_loss_scale_moves(&Reference);
}
