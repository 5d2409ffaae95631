//! Compares the gradient of every model with respect to every parameter with central differences of its loss,
//! in float64.

use millstream_backend::Reference;

use crate::case::{golden, gradients, tensors_of, write};
use millstream_trainer::schedule::Step;

const STEP: f64 = 1e-5;

#[test]
fn gradients_agree_with_finite_differences() {
    let golden = golden();
    for case in &golden.cases {
        let batch = golden.batch(case, 0);
        let mut model = case.by_descent(Reference, &golden.schema(case));
        let start = tensors_of(&mut model);
        model.train_step(batch.as_ref(), Step::number(1)).expect("a batch of the schema");
        let gradients = gradients(&start, &tensors_of(&mut model));
        let mut moved = start.clone();
        // Running moments of columns are not trained.
        for (name, gradient) in gradients.iter().filter(|(name, _)| case.gradients.contains_key(*name)) {
            let what = format!("{}, {name}", case.name);
            assert!(gradient.iter().any(|&g| g != 0.0), "{what}: an all-zero gradient proves nothing");
            // Some gradients are zero except for rounding: a softmax ignores a constant added to all items of
            // a query.
            let largest = gradient.iter().fold(1e-4_f64, |largest, g| largest.max(g.abs()));
            for (item, gradient) in gradient.iter().enumerate() {
                let mut loss_at = |x| {
                    moved.get_mut(name).expect("the same tensors")[item] = x;
                    write(&mut model, &moved);
                    model.train_step(batch.as_ref(), Step::number(1)).expect("a batch of the schema").mean()
                };
                let at = start[name][item];
                let difference = (loss_at(at + STEP) - loss_at(at - STEP)) / (2.0 * STEP);
                moved.get_mut(name).expect("the same tensors")[item] = at;
                let error = (difference - gradient).abs();
                assert!(error <= 1e-6 * largest, "{what}, item {item}: {gradient}, not {difference}");
            }
        }
    }
}
