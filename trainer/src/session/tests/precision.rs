//! Training in bfloat16 and half precision: going on from checkpoints, steps that are skipped, and divergence.

use super::*;
use millstream_backend::Float;

use crate::model::LossScale;
use crate::spec::LossScaleSpec;

fn low(precision: Precision) -> Session<Cpu> {
    with_tables(precision, Precision::Fp32)
}

/// With tables of embeddings in a precision of their own.
fn with_tables(precision: Precision, embedding_precision: Precision) -> Session<Cpu> {
    // So that the scale grows within a few steps.
    let loss_scale = LossScaleSpec { growth_interval: 3, ..LossScaleSpec::default() };
    let training = TrainingSpec { precision, embedding_precision, loss_scale, ..training() };
    let mut session = Session::new(cpu(), &model(), &schema(ROWS), &training).unwrap();
    session.select_by(JUDGE);
    session
}

/// The batch of this number, with a number that half precision has not.
fn beyond_half(number: u64) -> BatchBuffer {
    let mut buffer = batch(number, &schema(ROWS));
    buffer.as_mut().sections().dense[0] = 1e6;
    buffer
}

/// As [`run`], with a batch that is skipped before batch 1 of every pass over the feed.
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
        let (expected, last) = checkpoint(&undisturbed, &directory.path().join("undisturbed"));
        let scale = last.manifest.snapshot.loss_scale;
        assert_eq!(scale.map(|scale| scale.skipped_steps), (precision == Precision::Fp16).then_some(3));
        for stop in 0..END {
            let job = directory.path().join(format!("stopped-at-{stop}"));
            let mut first = low(precision);
            run(&mut first, stop);
            let (_, stopped) = checkpoint(&first, &job);
            let mut second = low(precision);
            second.restore(&stopped).unwrap();
            assert_eq!(second.loss_scale(), first.loss_scale());
            run(&mut second, END);
            let (found, _) = checkpoint(&second, &job);
            assert!(found == expected, "{precision:?} and {tables:?}, stopped before batch {stop}");
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_skips_the_step_and_counts_for_nothing() {
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
fn overflows_at_every_scale_are_divergence() {
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
    assert!(session.capture(&mut session.allocate_copy()).is_err());
}

/// Bfloat16 has the range of single precision, where a loss that is not finite is no accident of the format.
#[test]
fn in_bfloat16_a_loss_that_is_not_finite_is_divergence() {
    let mut session = low(Precision::Bf16);
    let mut buffer = batch(0, &schema(ROWS));
    buffer.as_mut().sections().dense[0] = f32::MAX;
    let error = session.train(buffer.as_ref()).unwrap_err();
    assert!(matches!(error, SessionError::NotFinite { step: 1, .. }), "{error}");
}

#[test]
fn a_checkpoint_is_gone_on_from_and_scored_in_its_own_precision() {
    let directory = tempfile::tempdir().unwrap();
    let mut trained = low(Precision::Bf16);
    run(&mut trained, 3);
    let (_, checkpoint) = checkpoint(&trained, directory.path());
    let refused = session(cpu()).restore(&checkpoint).unwrap_err().to_string();
    assert!(refused.ends_with(": precision is \"bf16\" in the checkpoint and \"fp32\" here"), "{refused}");
    let scores =
        |scorer: &mut Scorer<Cpu>| scorer.predict(batch(3, &schema(ROWS)).as_ref()).unwrap().to_vec();
    let mut opened = Scorer::open(cpu(), &schema(ROWS), &checkpoint).unwrap();
    assert_eq!(scores(&mut opened), scores(&mut trained.scorer));
}

/// Weights of 16 bits are in checkpoints as they are.
#[test]
fn a_checkpoint_of_tables_of_16_bits_is_gone_on_from_in_their_precision_and_scored_as_it_is() {
    for (tables, float) in [(Precision::Bf16, Float::Bf16), (Precision::Fp16, Float::F16)] {
        let directory = tempfile::tempdir().unwrap();
        let mut trained = with_tables(Precision::Fp32, tables);
        run(&mut trained, 3);
        let (_, checkpoint) = checkpoint(&trained, directory.path());
        let refused = session(cpu()).restore(&checkpoint).unwrap_err().to_string();
        let expected =
            format!(": embedding_precision is \"{}\" in the checkpoint and \"fp32\" here", tables.name());
        assert!(refused.ends_with(&expected), "{refused}");
        let (mut of_tables, mut others) = (0, 0);
        let mut gone_on = with_tables(Precision::Fp32, tables);
        gone_on.restore(&checkpoint).unwrap();
        assert_eq!(weights(&gone_on), weights(&trained));
        for (name, numbers) in weights(&trained) {
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
fn weights(session: &Session<Cpu>) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    let read: Result<(), ()> = session.read_parameters(|tensor, numbers| {
        all.push((tensor.name.clone(), numbers.to_vec()));
        Ok(())
    });
    read.unwrap();
    all
}

#[test]
fn skipped_steps_leave_tables_as_they_are() {
    let mut session = with_tables(Precision::Fp16, Precision::Bf16);
    run(&mut session, 2);
    let before = weights(&session);
    session.train(beyond_half(1).as_ref()).unwrap();
    assert_eq!(session.loss_scale().map(|scale| scale.skipped_steps), Some(1));
    assert_eq!(weights(&session), before);
    run(&mut session, 3);
    assert_ne!(weights(&session), before);
}
