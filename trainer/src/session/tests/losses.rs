//! Sessions with losses other than the usual one.

use super::*;
use crate::session::Scorer;

/// Trains on a feed's batches, and returns the scores of one of them.
fn scores(loss: LossSpec, batches: u64) -> Vec<f32> {
    let (schema, training) = (schema(ROWS), TrainingSpec { loss, ..training() });
    let mut session = Session::new(cpu(), &model(), &schema, &training).unwrap();
    for number in 0..batches {
        session.train(batch(number, &schema).as_ref()).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let (_, trained) = checkpoint(&mut session, directory.path());
    let mut scorer = Scorer::open(cpu(), &schema, &trained).unwrap();
    scorer.predict(batch(3, &schema).as_ref()).unwrap().to_vec()
}

#[test]
fn the_score_of_a_poisson_loss_is_the_rate() {
    // Equal weights at first.
    let (logits, rates) = (scores(LossSpec::SquaredError, 0), scores(LossSpec::Poisson, 0));
    assert!(logits.iter().any(|logit| logit.abs() > 0.01), "{logits:?}");
    for (logit, rate) in logits.iter().zip(&rates) {
        assert!((logit.exp() / rate - 1.0).abs() < 1e-6, "e^{logit} is not {rate}");
    }
    // Half of the labels are 1, so the mean rate moves from 1 to a half.
    let mean = |scores: Vec<f32>| scores.iter().sum::<f32>() / scores.len() as f32;
    let trained = mean(scores(LossSpec::Poisson, 100));
    assert!((0.3..0.7).contains(&trained), "{} to {trained}", mean(rates));
}
