//! Training in bf16 and fp16: resuming, skipped steps, and divergence.

use super::*;
use millstream_backend::Float;

use crate::model::LossScale;
use crate::spec::LossScaleSpec;

fn low(precision: Precision) -> Session<Cpu> {
    with_tables(precision, Precision::Fp32)
}

/// A session whose embedding tables have a separate precision.
fn with_tables(precision: Precision, embedding_precision: Precision) -> Session<Cpu> {
    // The scale grows within a few steps.
    let loss_scale = LossScaleSpec { growth_interval: 3, ..LossScaleSpec::default() };
    let training = TrainingSpec { precision, embedding_precision, loss_scale, ..training() };
    let mut session = Session::new(cpu(), &model(), &schema(ROWS), &training).unwrap();
    session.select_by(JUDGE);
    session
}

/// The batch of this number, with a number outside the range of fp16.
fn beyond_half(number: u64) -> BatchBuffer {
    let mut buffer = batch(number, &schema(ROWS));
    buffer.as_mut().sections().dense[0] = 1e6;
    buffer
}

/// Like [`run`], with a batch that is skipped before batch 1 of every pass over the feed.
fn run_with_overflows(session: &mut Session<Cpu>, end: u64) {
    let start = session.position().try_into().map_or(0, u64::from_le_bytes);
    for number in start..end {
        if number % 5 == 1 {
            session.train(beyond_half(number - 1).as_ref()).unwrap();
        }
        run(session, number + 1);
    }
}

#[test]
fn resuming_changes_nothing_in_low_precision() {
    const END: u64 = 12;
    let (fp32, bf16, fp16) = (Precision::Fp32, Precision::Bf16, Precision::Fp16);
    for (precision, tables) in
        [(bf16, fp32), (fp16, fp32), (fp32, bf16), (bf16, fp16), (fp16, fp16), (fp16, bf16)]
    {
        let low = |precision| with_tables(precision, tables);
        let directory = tempfile::tempdir().unwrap();
        let run = if precision == Precision::Fp16 { run_with_overflows } else { run::<Cpu> };
        let mut undisturbed = low(precision);
        run(&mut undisturbed, END);
        let (expected, last) = checkpoint(&mut undisturbed, &directory.path().join("undisturbed"));
        let scale = last.manifest.snapshot.loss_scale;
        assert_eq!(scale.map(|scale| scale.skipped_steps), (precision == Precision::Fp16).then_some(3));
        for stop in 0..END {
            let job = directory.path().join(format!("stopped-at-{stop}"));
            let mut first = low(precision);
            run(&mut first, stop);
            let (_, stopped) = checkpoint(&mut first, &job);
            let mut second = low(precision);
            second.restore(&stopped).unwrap();
            assert_eq!(second.loss_scale(), first.loss_scale());
            run(&mut second, END);
            let (found, _) = checkpoint(&mut second, &job);
            assert!(found == expected, "{precision:?} and {tables:?}, stopped before batch {stop}");
        }
    }
}

#[test]
fn a_non_finite_loss_skips_the_step_and_is_not_counted() {
    let mut session = low(Precision::Fp16);
    run(&mut session, 1);
    let before = session.progress();
    let loss = session.train(beyond_half(1).as_ref()).unwrap();
    assert_eq!(loss, LossSum::default());
    assert_eq!(
        session.progress(),
        TrainingProgress { examples: before.examples + u64::from(ROWS), ..before }
    );
    assert_eq!(session.step(), 2);
    let scale = LossScale { scale: 32768.0, good_steps: 0, skipped_steps: 1 };
    assert_eq!(session.loss_scale(), Some(scale));
}

#[test]
fn overflows_at_every_scale_mean_divergence() {
    let mut session = low(Precision::Fp16);
    // From 2^16 to 2^-14 the scale is halved 30 times.
    for step in 1..=31 {
        session.train(beyond_half(0).as_ref()).unwrap();
        assert_eq!(session.step(), step);
    }
    let error = session.train(beyond_half(0).as_ref()).unwrap_err();
    assert!(
        matches!(error, SessionError::Overflow { step: 32, scale } if scale == 2.0_f32.powi(-15)),
        "{error}"
    );
    assert!(error.to_string().contains("training has diverged"));
    let mut copy = session.allocate_copy();
    assert!(session.capture(&mut copy).is_err());
}

/// Bf16 has the range of fp32, so a loss that is not finite is not caused by the format.
#[test]
fn a_non_finite_loss_in_bf16_means_divergence() {
    let mut session = low(Precision::Bf16);
    let mut buffer = batch(0, &schema(ROWS));
    buffer.as_mut().sections().dense[0] = f32::MAX;
    let error = session.train(buffer.as_ref()).unwrap_err();
    assert!(matches!(error, SessionError::NotFinite { step: 1, .. }), "{error}");
}

#[test]
fn a_checkpoint_is_resumed_and_scored_in_its_precision() {
    let directory = tempfile::tempdir().unwrap();
    let mut trained = low(Precision::Bf16);
    run(&mut trained, 3);
    let (_, checkpoint) = checkpoint(&mut trained, directory.path());
    let refused = session(cpu()).restore(&checkpoint).unwrap_err().to_string();
    assert!(refused.ends_with(": precision is \"bf16\" in the checkpoint and \"fp32\" here"), "{refused}");
    let scores =
        |scorer: &mut Scorer<Cpu>| scorer.predict(batch(3, &schema(ROWS)).as_ref()).unwrap().to_vec();
    let mut opened = Scorer::open(cpu(), &schema(ROWS), &checkpoint).unwrap();
    assert_eq!(scores(&mut opened), scores(&mut trained.scorer));
}

/// Checkpoints contain 16-bit weights exactly.
#[test]
fn a_checkpoint_with_16_bit_tables_is_resumed_and_scored_exactly() {
    for (tables, float) in [(Precision::Bf16, Float::Bf16), (Precision::Fp16, Float::F16)] {
        let directory = tempfile::tempdir().unwrap();
        let mut trained = with_tables(Precision::Fp32, tables);
        run(&mut trained, 3);
        let (_, checkpoint) = checkpoint(&mut trained, directory.path());
        let refused = session(cpu()).restore(&checkpoint).unwrap_err().to_string();
        let expected =
            format!(": embedding_precision is \"{}\" in the checkpoint and \"fp32\" here", tables.name());
        assert!(refused.ends_with(&expected), "{refused}");
        let (mut of_tables, mut others) = (0, 0);
        let mut gone_on = with_tables(Precision::Fp32, tables);
        gone_on.restore(&checkpoint).unwrap();
        assert_eq!(weights(&mut gone_on), weights(&mut trained));
        for (name, numbers) in weights(&mut trained) {
            let is_rounded = numbers.iter().all(|&number| float.round(number).to_bits() == number.to_bits());
            let is_table = name.contains("embedding.");
            assert!(is_rounded || !is_table, "{name}");
            of_tables += usize::from(is_table);
            others += usize::from(!is_rounded);
        }
        assert!(of_tables > 0 && others > 0);
        let scores =
            |scorer: &mut Scorer<Cpu>| scorer.predict(batch(3, &schema(ROWS)).as_ref()).unwrap().to_vec();
        let mut opened = Scorer::open(cpu(), &schema(ROWS), &checkpoint).unwrap();
        assert_eq!(scores(&mut opened), scores(&mut trained.scorer));
    }
}

/// Parameters by name.
fn weights(session: &mut Session<Cpu>) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    let read: Result<(), ()> = session.read_parameters(|tensor, numbers| {
        all.push((tensor.name.clone(), numbers.to_vec()));
        Ok(())
    });
    read.unwrap();
    all
}

#[test]
fn skipped_steps_do_not_change_tables() {
    let mut session = with_tables(Precision::Fp16, Precision::Bf16);
    run(&mut session, 2);
    let before = weights(&mut session);
    session.train(beyond_half(1).as_ref()).unwrap();
    assert_eq!(session.loss_scale().map(|scale| scale.skipped_steps), Some(1));
    assert_eq!(weights(&mut session), before);
    run(&mut session, 3);
    assert_ne!(weights(&mut session), before);
}
