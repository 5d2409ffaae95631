//! Lookups of ids, and the updates of the rows found.

use millstream_backend::{
    Backend, Formula, GradientColumns, GradientMode, IdColumn, Lookup, Pooling, RowGradients, TablePart,
    Update, ops,
};

use millstream_batch::BatchBuffer;

use super::{MOMENTUM, SGD, close, lookups, schema, uploaded, weighted_rows};

use crate::case::{Bench, DRAWS};

test_on_each!(
    ids_are_looked_up_and_pooled,
    ids_count_by_their_weights,
    shares_are_finite_whatever_the_weights,
    the_first_id_that_holds_a_maximum_has_its_gradient,
    maxima_ignore_weights,
    a_row_is_stepped_once_by_all_its_gradients,
    a_row_of_a_shared_table_is_stepped_once_by_the_gradients_of_all_columns,
);

fn ids_are_looked_up_and_pooled<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let colours = [1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0];
    let tables = [
        bench.table((4, 2), &colours, &SGD, [0.0; 2]),
        bench.table((3, 1), &[1.0, 10.0, 5.0], &SGD, [0.0; 2]),
    ];
    let mut out = backend.matrix(3, 4);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups(Pooling::Sum),
        tables: &tables,
        dense: &[1],
        out: &mut out,
        first_column: 0,
        maxima: None,
    });
    let sums = [3.0, 4.0, 20.0, 10.0, 1.0, 2.0, 0.0, 20.0, 3.0, 4.0, 6.0, 30.0];
    close(&bench.read(&out, 12), &sums);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups(Pooling::Mean),
        tables: &tables,
        dense: &[1],
        out: &mut out,
        first_column: 0,
        maxima: None,
    });
    let means = [3.0, 4.0, 10.0, 10.0, 1.0, 2.0, 0.0, 20.0, 3.0, 4.0, 3.0, 30.0];
    close(&bench.read(&out, 12), &means);

    let tables = [
        bench.table((4, 1), &[1.0, 0.0, 2.0, 0.0], &SGD, [0.0; 2]),
        bench.table((3, 1), &[1.0, 10.0, 5.0], &SGD, [0.0; 2]),
    ];
    let dense_weights = bench.matrix(2, 1, &[0.5, 0.25]);
    let bias = bench.matrix(1, 1, &[100.0]);
    let mut out = bench.matrix(3, 1, &[1000.0, 2000.0, 3000.0]);
    let by_sum = lookups(Pooling::Sum);
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &by_sum,
        tables: &tables,
        dense: &[0, 1],
        dense_weights: &dense_weights,
        bias: &bias,
        out: &mut out,
    });
    close(&bench.read(&out, 3), &[1125.0, 2107.0, 3117.0]);
    let gradient = bench.matrix(3, 1, &[1.0, 2.0, 4.0]);
    let (mut weight_grad, mut bias_grad) = (backend.matrix(2, 1), backend.matrix(1, 1));
    backend.run(ops::LinearBackward {
        batch: &batch,
        rows: 0..3,
        dense: &[0, 1],
        out_grad: &gradient,
        mode: GradientMode::Write,
        weight_grad: &mut weight_grad,
        bias_grad: &mut bias_grad,
    });
    close(&bench.read(&weight_grad, 2), &[17.0, 170.0]);
    close(&bench.read(&bias_grad, 1), &[7.0]);
}

fn ids_count_by_their_weights<B: Backend>(backend: &B) {
    // Twice 3 and once 3; nothing; -1 times 1 and four times 5. Divisors ignore weights that are not positive.
    let root = 5.0_f64.sqrt();
    let cases = [
        (Pooling::Sum, [9.0, 0.0, 19.0], [101.0, 0.0, -395.0]),
        (Pooling::Mean, [3.0, 0.0, 5.0], [1.0, 2.0, -95.0]),
        (Pooling::SqrtN, [9.0 / root, 0.0, 5.0], [1.0, 3.0 - 3.0 / root, -95.0]),
    ];
    for (pooling, expected, stepped) in cases {
        let [out, sums, table] = of_tags(backend, &weighted_rows(), pooling);
        close(&out, &expected);
        close(&sums, &expected.map(|pooled| pooled + 0.5));
        close(&table, &stepped);
    }
}

fn shares_are_finite_whatever_the_weights<B: Backend>(backend: &B) {
    // Sums and squares beyond the range of fp32, above and below; and rows without a positive weight.
    for weight in [f32::MAX, 1e-45, 0.0, -1.0] {
        let mut buffer = weighted_rows();
        buffer.as_mut().sections().ragged_weights[0].as_mut().expect("weights")[..4].fill(weight);
        let alone = if weight > 0.0 { 1.0 } else { 0.0 };
        let [mean, _, table] = of_tags(backend, &buffer, Pooling::Mean);
        close(&mean, &[3.0 * alone, 0.0, 3.0 * alone]);
        close(&table, &[1.0 - 50.0 * alone, 3.0 - alone, 5.0 - 50.0 * alone]);
        let [root, _, _] = of_tags(backend, &buffer, Pooling::SqrtN);
        close(&root, &[6.0, 0.0, 6.0].map(|sum| sum * alone / 2.0_f64.sqrt()));
    }
}

/// Tags {1, 1}, {}, {0, 2}, in a table of their own and in one that colours 2, 0, 2 share.
fn the_first_id_that_holds_a_maximum_has_its_gradient<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let tags = Lookup { column: IdColumn::Ragged(0), pooling: Pooling::Max, table: 0, first: 0 };
    let colour = Lookup { column: IdColumn::Single(0), first: 2, ..tags };
    // Ids 0 and 2 tie in the first column; the row without tags has a gradient that goes nowhere.
    let weights = [5.0, 1.0, -3.0, 2.0, 5.0, 7.0, 0.5, 0.5];
    let pooled = [-3.0, 2.0, 0.0, 0.0, 5.0, 7.0];
    let colours = [5.0, 7.0, 5.0, 1.0, 5.0, 7.0];
    let gradient = [[10.0, 20.0, 1.0, 2.0], [99.0, 99.0, 3.0, 4.0], [100.0, 200.0, 5.0, 6.0]];
    let alone = [100.0, 0.0, 10.0, 20.0, 0.0, 200.0, 0.0, 0.0];
    let shared = [103.0, 4.0, 10.0, 20.0, 6.0, 208.0, 0.0, 0.0];
    for (lookups, gradients) in [(&[tags][..], alone), (&[tags, colour], shared)] {
        let columns = 2 * lookups.len();
        let mut plan = backend.row_plan(&schema(), &[lookups.iter().map(|lookup| lookup.column).collect()]);
        backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
        let mut tables = [bench.table((4, 2), &weights, &MOMENTUM, [8.0, 0.0])];
        let (mut out, mut maxima) = (backend.matrix(3, columns), backend.maxima(3, 2));
        // Rows are recorded where they are in the batch.
        for rows in [0..1, 1..3] {
            backend.run(ops::Gather {
                batch: &batch,
                rows: rows.clone(),
                lookups,
                tables: &tables,
                dense: &[],
                out: &mut out,
                first_column: 0,
                maxima: Some(&mut maxima),
            });
            let of_rows = rows.clone().flat_map(|row| [&pooled[2 * row..][..2], &colours[2 * row..][..2]]);
            let expected: Vec<f64> = of_rows
                .enumerate()
                .filter(|(part, _)| part % 2 < lookups.len())
                .flat_map(|(_, part)| part.to_vec())
                .collect();
            close(&bench.read(&out, rows.len() * columns), &expected);
        }
        let gradient: Vec<f32> = gradient.iter().flat_map(|row| row[..columns].to_vec()).collect();
        let gradients_of = RowGradients {
            batch: &batch,
            plan: &plan,
            lookups,
            gradient: &bench.matrix(3, columns, &gradient),
            columns: GradientColumns::Apart { first: 0 },
            maxima: Some(&maxima),
        };
        let mut squares = bench.matrix(1, 1, &[0.0]);
        backend.run(ops::RowSquares { gradients: &gradients_of, tables: &tables, sum: &mut squares });
        close(&bench.read(&squares, 1), &[gradients.iter().map(|g| g * g).sum()]);
        backend.run(ops::StepRows {
            update: &MOMENTUM.into(),
            scale: &bench.matrix(1, 1, &[1.0]),
            draws: DRAWS,
            gradients: &gradients_of,
            tables: &mut tables,
        });
        // Momentum moves rows that were looked up, also where they hold no maximum, and no others.
        let touched = |item: usize| item < 6;
        let momentum = |item| if touched(item) { 4.0 + gradients[item] } else { 8.0 };
        let stepped = |item| f64::from(weights[item]) - if touched(item) { momentum(item) } else { 0.0 };
        close(&bench.read_table(&tables[0], TablePart::State(0), 8), &[0, 1, 2, 3, 4, 5, 6, 7].map(momentum));
        close(&bench.read_table(&tables[0], TablePart::Weights, 8), &[0, 1, 2, 3, 4, 5, 6, 7].map(stepped));
    }
}

fn maxima_ignore_weights<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let buffer = weighted_rows();
    let schema = buffer.as_ref().layout().schema().clone();
    let mut batch = backend.batch(&schema);
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let column = IdColumn::Ragged(0);
    let lookups = [Lookup { column, pooling: Pooling::Max, table: 0, first: 0 }];
    let mut tables = [bench.table((3, 1), &[1.0, 3.0, -5.0], &SGD, [0.0; 2])];
    let (mut out, mut maxima) = (backend.matrix(3, 1), backend.maxima(3, 1));
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &tables,
        dense: &[],
        out: &mut out,
        first_column: 0,
        maxima: Some(&mut maxima),
    });
    close(&bench.read(&out, 3), &[3.0, 0.0, 1.0]);
    let mut plan = backend.row_plan(&schema, &[vec![column]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    let gradients = RowGradients {
        batch: &batch,
        plan: &plan,
        lookups: &lookups,
        gradient: &bench.matrix(3, 1, &[1.0, 10.0, 100.0]),
        columns: GradientColumns::Shared,
        maxima: Some(&maxima),
    };
    backend.run(ops::StepRows {
        update: &SGD.into(),
        scale: &bench.matrix(1, 1, &[1.0]),
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    close(&bench.read_table(&tables[0], TablePart::Weights, 3), &[-99.0, 2.0, -5.0]);
}

/// For each row of `buffer`: the pooled lookup in a table `[3, 1]`, and the output of a linear model of it. Also
/// the table after a step with gradients 1, 10 and 100.
fn of_tags<B: Backend>(backend: &B, buffer: &BatchBuffer, pooling: Pooling) -> [Vec<f64>; 3] {
    let bench = Bench(backend);
    let schema = buffer.as_ref().layout().schema().clone();
    let mut batch = backend.batch(&schema);
    backend.upload(buffer.as_ref(), &mut batch).expect("a batch of the schema");
    let column = IdColumn::Ragged(0);
    let lookups = [Lookup { column, pooling, table: 0, first: 0 }];
    let mut tables = vec![bench.table((3, 1), &[1.0, 3.0, 5.0], &SGD, [0.0, 0.0])];
    let (mut out, mut sums) = (backend.matrix(3, 1), bench.matrix(3, 1, &[0.0; 3]));
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &tables,
        dense: &[],
        out: &mut out,
        first_column: 0,
        maxima: None,
    });
    let (none, bias) = (backend.matrix(0, 1), bench.matrix(1, 1, &[0.5]));
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &tables,
        dense: &[],
        dense_weights: &none,
        bias: &bias,
        out: &mut sums,
    });
    let mut plan = backend.row_plan(&schema, &[vec![column]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    let gradient = bench.matrix(3, 1, &[1.0, 10.0, 100.0]);
    let columns = GradientColumns::Shared;
    let gradients = RowGradients {
        batch: &batch,
        plan: &plan,
        lookups: &lookups,
        gradient: &gradient,
        columns,
        maxima: None,
    };
    let update = Update { formula: SGD, clip: f64::INFINITY, l2: 0.0 };
    backend.run(ops::StepRows {
        update: &update,
        scale: &bench.matrix(1, 1, &[1.0]),
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    [bench.read(&out, 3), bench.read(&sums, 3), bench.read_table(&tables[0], TablePart::Weights, 3)]
}

fn a_row_is_stepped_once_by_all_its_gradients<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let mut plan = backend.row_plan(&schema(), &[vec![IdColumn::Single(0)], vec![IdColumn::Ragged(0)]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    // Per row: two columns for the colour, one for the tags.
    let gradient = bench.matrix(3, 3, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]);
    let columns = GradientColumns::Apart { first: 0 };
    let colour = &lookups(Pooling::Sum)[..1];
    let gradients = RowGradients::<B> {
        batch: &batch,
        plan: &plan,
        lookups: colour,
        gradient: &gradient,
        columns,
        maxima: None,
    };
    let scale = bench.matrix(1, 1, &[1.0]);
    for (pooling, tags) in [(Pooling::Sum, [-256.0, -8.0, -256.0]), (Pooling::Mean, [-128.0, -4.0, -128.0])] {
        let mut tables =
            [bench.table((4, 2), &[0.0; 8], &SGD, [0.0; 2]), bench.table((3, 1), &[0.0; 3], &SGD, [0.0; 2])];
        let lookups = lookups(pooling);
        let all = RowGradients { lookups: &lookups, ..gradients };
        backend.run(ops::StepRows {
            update: &SGD.into(),
            scale: &scale,
            draws: DRAWS,
            gradients: &all,
            tables: &mut tables,
        });
        let colours = bench.read_table(&tables[0], TablePart::Weights, 8);
        close(&colours, &[-8.0, -16.0, 0.0, 0.0, -65.0, -130.0, 0.0, 0.0]);
        close(&bench.read_table(&tables[1], TablePart::Weights, 3), &tags);
    }
    // Adagrad accumulates the square of the sum, not the sum of squares.
    let formula = Formula::Adagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = [bench.table((4, 2), &[0.0; 8], &formula, [0.0; 2])];
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &scale,
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    let accumulators = bench.read_table(&tables[0], TablePart::State(0), 8);
    close(&accumulators, &[64.0, 256.0, 0.0, 0.0, 4225.0, 16900.0, 0.0, 0.0]);
    let weights = bench.read_table(&tables[0], TablePart::Weights, 8);
    close(&weights, &[-1.0, -1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0]);
    // Row-wise Adagrad accumulates the mean of the squares.
    let formula = Formula::RowWiseAdagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = [bench.table((4, 2), &[0.0; 8], &formula, [0.0; 2])];
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &scale,
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    let accumulators = bench.read_table(&tables[0], TablePart::RowState(0), 4);
    close(&accumulators, &[160.0, 0.0, 10562.5, 0.0]);
    let (first, third) = (160.0_f64.sqrt(), 10562.5_f64.sqrt());
    let weights = bench.read_table(&tables[0], TablePart::Weights, 8);
    close(&weights, &[-8.0 / first, -16.0 / first, 0.0, 0.0, -65.0 / third, -130.0 / third, 0.0, 0.0]);
    // The norm does the same: 8, 16, 65, 130 squared.
    let mut squares = bench.matrix(1, 1, &[5.0]);
    backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
    close(&bench.read(&squares, 1), &[5.0 + 64.0 + 256.0 + 4225.0 + 16900.0]);
}

fn a_row_of_a_shared_table_is_stepped_once_by_the_gradients_of_all_columns<B: Backend>(backend: &B) {
    let bench = Bench(backend);
    let batch = uploaded(backend);
    let mut plan = backend.row_plan(&schema(), &[vec![IdColumn::Single(0), IdColumn::Ragged(0)]]);
    backend.run(ops::PlanRows { batch: &batch, plan: &mut plan });
    // The tags' columns precede the colour's.
    let colour = Lookup { column: IdColumn::Single(0), pooling: Pooling::Sum, table: 0, first: 1 };
    let tags = Lookup { column: IdColumn::Ragged(0), pooling: Pooling::Mean, first: 0, ..colour };
    let lookups = [colour, tags];
    let table = |weights: &[f32], formula| [bench.table((4, 1), weights, formula, [0.0; 2])];
    let mut out = backend.matrix(3, 3);
    let looked_up = table(&[1.0, 10.0, 5.0, 7.0], &SGD);
    backend.run(ops::Gather {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &looked_up,
        dense: &[1],
        out: &mut out,
        first_column: 0,
        maxima: None,
    });
    close(&bench.read(&out, 9), &[10.0, 5.0, 10.0, 0.0, 1.0, 20.0, 3.0, 5.0, 30.0]);
    let (dense_weights, bias) = (backend.matrix(0, 1), backend.matrix(1, 1));
    let mut out = backend.matrix(3, 1);
    backend.run(ops::LinearForward {
        batch: &batch,
        rows: 0..3,
        lookups: &lookups,
        tables: &looked_up,
        dense: &[],
        dense_weights: &dense_weights,
        bias: &bias,
        out: &mut out,
    });
    close(&bench.read(&out, 3), &[15.0, 1.0, 8.0]);

    let gradient = bench.matrix(3, 2, &[2.0, 1.0, 8.0, 4.0, 32.0, 16.0]);
    let columns = GradientColumns::Apart { first: 0 };
    let gradients = RowGradients::<B> {
        batch: &batch,
        plan: &plan,
        lookups: &lookups,
        gradient: &gradient,
        columns,
        maxima: None,
    };
    // Adagrad accumulates the square of the sum: of 4 and 32 / 2; of 2; of 1, 16 and 32 / 2.
    let formula = Formula::Adagrad { learning_rate: 1.0, epsilon: 0.0 };
    let mut tables = table(&[0.0; 4], &formula);
    backend.run(ops::StepRows {
        update: &formula.into(),
        scale: &bench.matrix(1, 1, &[1.0]),
        draws: DRAWS,
        gradients: &gradients,
        tables: &mut tables,
    });
    close(&bench.read_table(&tables[0], TablePart::State(0), 4), &[400.0, 4.0, 1089.0, 0.0]);
    close(&bench.read_table(&tables[0], TablePart::Weights, 4), &[-1.0, -1.0, -1.0, 0.0]);
    let mut squares = bench.matrix(1, 1, &[5.0]);
    backend.run(ops::RowSquares { gradients: &gradients, tables: &tables, sum: &mut squares });
    close(&bench.read(&squares, 1), &[5.0 + 400.0 + 4.0 + 1089.0]);
}
