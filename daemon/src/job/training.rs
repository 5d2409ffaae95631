//! The `[training]` of a job file.

use millstream_trainer::spec::{
    ClipSpec, DecaySpec, LossSpec, ModelSpec, Precision, ScheduleSpec, TrainingSpec,
};

use super::section::Section;

#[derive(Clone, Copy)]
enum Decay {
    Constant,
    Step,
    Exponential,
    Cosine,
    Polynomial,
}

const DECAYS: [(&str, Decay); 5] = [
    ("constant", Decay::Constant),
    ("step", Decay::Step),
    ("exponential", Decay::Exponential),
    ("cosine", Decay::Cosine),
    ("polynomial", Decay::Polynomial),
];

/// Reads how to train `model`; `seed` is the job's.
pub(super) fn read(mut training: Section<'_>, model: &ModelSpec, seed: u64) -> TrainingSpec {
    if model.chooses_in_batches() {
        refuse_what_is_of_labels(&training);
    }
    if let Some(precision) = training.text("precision") {
        match precision.text {
            "fp32" => {}
            "bf16" | "fp16" => {
                let message = format!("precision \"{}\" needs a GPU backend; use \"fp32\"", precision.text);
                training.error_at(precision.at, message);
            }
            other => training.error_at(precision.at, format!("expected \"fp32\", found \"{other}\"")),
        }
    }
    let threads = training.whole_u32("threads", 1..=1_024);
    let schedule = read_schedule(training.section("schedule", "[training.schedule]"));
    let loss = read_loss(training.section("loss", "[training.loss]"));
    let norm = training.constant("clip_norm", true);
    let clip = ClipSpec { norm, value: training.constant("clip_value", true) };
    let micro_batch_rows = training.whole_u32("micro_batch_size", 1..=u32::MAX);
    training.finish();
    let precision = Precision::Fp32;
    TrainingSpec { seed, schedule, loss, clip, micro_batch_rows, precision, threads }
}

/// A two-tower model has a loss of its own, over whole batches.
fn refuse_what_is_of_labels(training: &Section<'_>) {
    let loss = training.entries().find(|(key, ..)| *key == "loss");
    let loss = loss.and_then(|(.., node)| training.as_section(node, "[training.loss]"));
    for (key, at, _) in loss.iter().flat_map(Section::entries) {
        let message = format!(
            "`{key}` is of losses by labels; a two-tower model's is of choosing among a batch's items"
        );
        training.error_at(at, message);
    }
    if training.has("micro_batch_size") {
        let message =
            "a two-tower model chooses among the items of whole batches, which do not pass in parts";
        training.error("micro_batch_size", message);
    }
}

fn read_loss(mut loss: Section<'_>) -> LossSpec {
    loss.choice("kind", &[("bce", ())]);
    let spec = LossSpec::BinaryCrossEntropy {
        label_smoothing: loss.fraction("label_smoothing").unwrap_or(0.0),
        positive_weight: loss.constant("positive_weight", true).unwrap_or(1.0),
        negative_weight: loss.constant("negative_weight", true).unwrap_or(1.0),
    };
    loss.finish();
    spec
}

fn read_schedule(mut schedule: Section<'_>) -> ScheduleSpec {
    let warmup_steps = schedule.whole("warmup_steps", 0..=u64::MAX).unwrap_or(0);
    let decay = match schedule.choice("kind", &DECAYS).unwrap_or(Decay::Constant) {
        Decay::Constant => DecaySpec::Constant,
        Decay::Step => {
            let (every_steps, factor) = read_factor(&mut schedule);
            DecaySpec::Step { every_steps, factor }
        }
        Decay::Exponential => {
            let (every_steps, factor) = read_factor(&mut schedule);
            DecaySpec::Exponential { every_steps, factor }
        }
        Decay::Cosine => {
            DecaySpec::Cosine { steps: read_steps(&mut schedule, "steps"), end: read_end(&mut schedule) }
        }
        Decay::Polynomial => DecaySpec::Polynomial {
            steps: read_steps(&mut schedule, "steps"),
            power: schedule.constant("power", true).unwrap_or(1.0),
            end: read_end(&mut schedule),
        },
    };
    schedule.finish();
    ScheduleSpec { warmup_steps, decay }
}

/// After how many steps learning rates change, and by what.
fn read_factor(schedule: &mut Section<'_>) -> (u64, f32) {
    let every_steps = read_steps(schedule, "every_steps");
    if !schedule.has("factor") {
        schedule.required("factor", "what learning rates are multiplied by");
    }
    (every_steps, schedule.constant("factor", true).unwrap_or(1.0))
}

fn read_steps(schedule: &mut Section<'_>, key: &'static str) -> u64 {
    let node = schedule.required(key, "a number of steps");
    node.and_then(|node| schedule.as_whole(node, 1..=u64::MAX)).unwrap_or(1)
}

/// What is left of the learning rates at the end.
fn read_end(schedule: &mut Section<'_>) -> f32 {
    let end = schedule.constant("end", false).unwrap_or(0.0);
    if end > 1.0 {
        schedule.error("end", format!("expected a share of the learning rate, from 0 to 1, found {end}"));
    }
    end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use millstream_trainer::spec::{ClipSpec, DecaySpec, LossSpec, ScheduleSpec, TrainingSpec};

    use super::super::Job;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"], eval = ["eval.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" } }
model = { kind = "linear", features = ["age"] }
"#;

    fn read(training: &str) -> Result<TrainingSpec, String> {
        let job = Job::parse(&format!("{JOB}{training}"), Path::new("job.toml"), &[]);
        job.map(|(job, _)| job.training).map_err(|error| error.to_string())
    }

    fn parse(schedule: &str) -> Result<ScheduleSpec, String> {
        read(&format!("training.schedule = {schedule}")).map(|training| training.schedule)
    }

    #[test]
    fn every_key_is_read() {
        let plain = read("").unwrap();
        assert_eq!((plain.loss, plain.clip), (LossSpec::default(), ClipSpec::default()));
        assert_eq!((plain.micro_batch_rows, plain.threads), (None, None));
        let training = read(
            "[training]\nclip_norm = 0.5\nclip_value = 0.25\nmicro_batch_size = 64\nthreads = 3\n\
             loss = { kind = \"bce\", label_smoothing = 0.125, positive_weight = 3, negative_weight = 0.5 }",
        )
        .unwrap();
        assert_eq!(training.clip, ClipSpec { norm: Some(0.5), value: Some(0.25) });
        assert_eq!((training.micro_batch_rows, training.threads), (Some(64), Some(3)));
        let (label_smoothing, positive_weight, negative_weight) = (0.125, 3.0, 0.5);
        let loss = LossSpec::BinaryCrossEntropy { label_smoothing, positive_weight, negative_weight };
        assert_eq!(training.loss, loss);
    }

    #[test]
    fn schedules_are_read() {
        let (every_steps, steps) = (7, 9);
        let cases = [
            ("{}", 0, DecaySpec::Constant),
            ("{ warmup_steps = 3 }", 3, DecaySpec::Constant),
            (
                "{ kind = \"step\", every_steps = 7, factor = 0.5, warmup_steps = 1 }",
                1,
                DecaySpec::Step { every_steps, factor: 0.5 },
            ),
            (
                "{ kind = \"exponential\", every_steps = 7, factor = 0.5 }",
                0,
                DecaySpec::Exponential { every_steps, factor: 0.5 },
            ),
            ("{ kind = \"cosine\", steps = 9 }", 0, DecaySpec::Cosine { steps, end: 0.0 }),
            (
                "{ kind = \"polynomial\", steps = 9, power = 2, end = 0.25 }",
                0,
                DecaySpec::Polynomial { steps, power: 2.0, end: 0.25 },
            ),
        ];
        for (text, warmup_steps, decay) in cases {
            assert_eq!(parse(text), Ok(ScheduleSpec { warmup_steps, decay }), "{text}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let cases = [
            (
                "{ kind = \"cosine\" }",
                "job.toml:6:21: error: [training.schedule] needs `steps`: a number of steps",
            ),
            (
                "{ kind = \"step\", every_steps = 7 }",
                "job.toml:6:21: error: [training.schedule] needs `factor`: what learning rates are multiplied by",
            ),
            (
                "{ kind = \"cosine\", steps = 0 }",
                "job.toml:6:48: error: expected a whole number at least 1, found 0",
            ),
            (
                "{ kind = \"cosine\", steps = 9, end = 2 }",
                "job.toml:6:57: error: expected a share of the learning rate, from 0 to 1, found 2",
            ),
            (
                "{ kind = \"cosine\", steps = 9, power = 2 }",
                "job.toml:6:51: error: unknown key `power` in [training.schedule]",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
