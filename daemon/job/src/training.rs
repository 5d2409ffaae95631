//! The `[training]` of a job file.

use millstream_document::section::{ReadKind, Section};
use millstream_trainer::spec::{
    ClipSpec, DecaySpec, DeviceSpec, LossScaleSpec, ModelSpec, Precision, ScheduleSpec, TrainingSpec,
};

use super::groups::Groups;
use super::label::Labels;
use super::loss;

const DECAYS: [(&str, ReadKind<DecaySpec>); 5] = [
    ("constant", |_| DecaySpec::Constant),
    ("step", |schedule| {
        let (every_steps, factor) = read_factor(schedule);
        DecaySpec::Step { every_steps, factor }
    }),
    ("exponential", |schedule| {
        let (every_steps, factor) = read_factor(schedule);
        DecaySpec::Exponential { every_steps, factor }
    }),
    ("cosine", |schedule| DecaySpec::Cosine {
        steps: read_steps(schedule, "steps"),
        end: read_end(schedule),
    }),
    ("polynomial", |schedule| DecaySpec::Polynomial {
        steps: read_steps(schedule, "steps"),
        power: schedule.constant("power", true).unwrap_or(1.0),
        end: read_end(schedule),
    }),
];

/// Reads the section for this `model` and these `labels`; `seed` is the job's, and `groups` are the features that may
/// group rows.
pub(super) fn read(
    mut training: Section<'_>,
    seed: u64,
    model: &ModelSpec,
    labels: &Labels,
    groups: Groups<'_>,
) -> TrainingSpec {
    if model.uses_in_batch_loss() {
        loss::refuse(&training);
    }
    let named = |it: Precision| (it.name(), it);
    let precision = training.choice("precision", &Precision::ALL.map(named)).unwrap_or_default();
    let of_tables = training.choice("embedding_precision", &Precision::STORAGE.map(named));
    let embedding_precision = of_tables.unwrap_or_default();
    let loss_scale = read_loss_scale(&mut training, precision);
    let device = read_device(&mut training);
    let threads = training.whole_u32("threads", 1..=1_024);
    let schedule = read_schedule(training.section("schedule", "[training.schedule]"));
    let loss = loss::read(training.section("loss", "[training.loss]"), labels, groups);
    let tasks = loss::read_of_labels(&mut training, &loss, labels, groups);
    let norm = training.constant("clip_norm", true);
    let clip = ClipSpec { norm, value: training.constant("clip_value", true) };
    let micro_batch_rows = training.whole_u32("micro_batch_size", 1..=u32::MAX);
    if loss.group().is_some() && micro_batch_rows.is_some() {
        let message = format!("the loss \"{}\" needs whole batches: remove `micro_batch_size`", loss.kind());
        training.error("micro_batch_size", message);
    }
    training.finish();
    TrainingSpec {
        seed,
        schedule,
        loss,
        tasks,
        clip,
        micro_batch_rows,
        precision,
        embedding_precision,
        loss_scale,
        threads,
        device,
        gpus: Vec::new(),
        workers: None,
        shards: None,
        uneven_parts: false,
        gradient_precision: Precision::Fp32,
        through_hosts: false,
    }
}

fn read_device(training: &mut Section<'_>) -> DeviceSpec {
    let Some(text) = training.text("device") else { return DeviceSpec::default() };
    text.text.parse().unwrap_or_else(|()| {
        training.error_at(text.at, format!("expected {}, found \"{}\"", DeviceSpec::SYNTAX, text.text));
        DeviceSpec::default()
    })
}

/// Reads the loss scaling of half precision.
fn read_loss_scale(training: &mut Section<'_>, precision: Precision) -> LossScaleSpec {
    if training.has("loss_scale") && !precision.scales_loss() {
        let message =
            "only `precision = \"fp16\"` scales the loss: other formats have the range of single precision";
        training.error("loss_scale", message.to_owned());
    }
    let mut scale = training.section("loss_scale", "[training.loss_scale]");
    let usual = LossScaleSpec::default();
    let growth = scale.constant("growth", true).unwrap_or(usual.growth);
    if growth < 1.0 {
        scale.error("growth", format!("expected a number of at least 1, found {growth}"));
    }
    let backoff = scale.constant("backoff", true).unwrap_or(usual.backoff);
    if backoff >= 1.0 {
        scale.error("backoff", format!("expected a number above 0 and below 1, found {backoff}"));
    }
    let initial = scale.constant("initial", true).unwrap_or(usual.initial);
    // The device counts it in single precision.
    let interval = scale.whole_u32("growth_interval", 1..=1 << 24);
    scale.finish();
    LossScaleSpec { initial, growth, growth_interval: interval.unwrap_or(usual.growth_interval), backoff }
}

fn read_schedule(mut schedule: Section<'_>) -> ScheduleSpec {
    let warmup_steps = schedule.whole("warmup_steps", 0..=u64::MAX).unwrap_or(0);
    let decay = schedule.choice("kind", &DECAYS);
    let decay = decay.map_or(DecaySpec::Constant, |read| read(&mut schedule));
    schedule.finish();
    ScheduleSpec { warmup_steps, decay }
}

/// Reads when learning rates change, and by how much.
fn read_factor(schedule: &mut Section<'_>) -> (u64, f32) {
    let every_steps = read_steps(schedule, "every_steps");
    if !schedule.has("factor") {
        schedule.required("factor", "the factor of the learning rates");
    }
    (every_steps, schedule.constant("factor", true).unwrap_or(1.0))
}

fn read_steps(schedule: &mut Section<'_>, key: &'static str) -> u64 {
    let node = schedule.required(key, "a number of steps");
    node.and_then(|node| schedule.as_whole(node, 1..=u64::MAX)).unwrap_or(1)
}

/// Reads the final fraction of the learning rates.
fn read_end(schedule: &mut Section<'_>) -> f32 {
    let end = schedule.constant("end", false).unwrap_or(0.0);
    if end > 1.0 {
        schedule.error("end", format!("expected a fraction of the learning rate, from 0 to 1, found {end}"));
    }
    end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use millstream_trainer::spec::{
        ClipSpec, DecaySpec, DeviceSpec, LossScaleSpec, LossSpec, Precision, ScheduleSpec, TrainingSpec,
    };

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
    fn devices_are_read() {
        assert_eq!(read("").unwrap().device, DeviceSpec::Cpu);
        for (text, device) in
            [("cpu", DeviceSpec::Cpu), ("cuda", DeviceSpec::Cuda(0)), ("cuda:7", DeviceSpec::Cuda(7))]
        {
            let training = read(&format!("training.device = \"{text}\"")).unwrap();
            assert_eq!(training.device, device);
            let written = read(&format!("training.device = \"{device}\"")).unwrap();
            assert_eq!(written.device, device, "as it is written");
        }
        for text in ["gpu", "cuda:", "cuda:-1", "cuda:x", ""] {
            let error = read(&format!("training.device = \"{text}\"")).unwrap_err();
            let expected = "6:19: error: expected \"cpu\", \"cuda\", or \"cuda:N\" for GPU number N, found";
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn precisions_are_read() {
        let plain = read("").unwrap();
        assert_eq!((plain.precision, plain.loss_scale), (Precision::Fp32, LossScaleSpec::default()));
        assert_eq!(read("training.precision = \"bf16\"").unwrap().precision, Precision::Bf16);
        let training = read(
            "[training]\nprecision = \"fp16\"\n\
             loss_scale = { initial = 1024, growth = 4, growth_interval = 100, backoff = 0.25 }",
        )
        .unwrap();
        let loss_scale = LossScaleSpec { initial: 1024.0, growth: 4.0, growth_interval: 100, backoff: 0.25 };
        assert_eq!((training.precision, training.loss_scale), (Precision::Fp16, loss_scale));
        assert_eq!(
            (plain.embedding_precision, training.embedding_precision),
            (Precision::Fp32, Precision::Fp32)
        );
        let tables = read("[training]\nembedding_precision = \"bf16\"").unwrap();
        assert_eq!((tables.precision, tables.embedding_precision), (Precision::Fp32, Precision::Bf16));
        let mistakes = [
            (
                "precision = \"fp8\"",
                "7:13: error: expected \"fp32\", \"tf32\", \"bf16\" or \"fp16\", found \"fp8\"",
            ),
            (
                "embedding_precision = \"int8\"",
                "7:23: error: expected \"fp32\", \"bf16\" or \"fp16\", found \"int8\"",
            ),
            (
                "precision = \"bf16\"\nloss_scale.initial = 2",
                "8:1: error: only `precision = \"fp16\"` scales the loss: other formats have the range of single \
                 precision",
            ),
            (
                "precision = \"fp16\"\nloss_scale.growth = 0.5",
                "8:21: error: expected a number of at least 1, found 0.5",
            ),
            (
                "precision = \"fp16\"\nloss_scale.backoff = 1",
                "8:22: error: expected a number above 0 and below 1, found 1",
            ),
            (
                "precision = \"fp16\"\nloss_scale.growth_interval = 0",
                "8:30: error: expected a whole number from 1 to 16777216, found 0",
            ),
        ];
        for (text, expected) in mistakes {
            assert_eq!(read(&format!("[training]\n{text}")).unwrap_err(), format!("job.toml:{expected}"));
        }
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
    fn mistakes_are_reported_with_their_position() {
        let cases = [
            (
                "{ kind = \"cosine\" }",
                "job.toml:6:21: error: [training.schedule] needs `steps`: a number of steps",
            ),
            (
                "{ kind = \"step\", every_steps = 7 }",
                "job.toml:6:21: error: [training.schedule] needs `factor`: the factor of the learning rates",
            ),
            (
                "{ kind = \"cosine\", steps = 0 }",
                "job.toml:6:48: error: expected a whole number at least 1, found 0",
            ),
            (
                "{ kind = \"cosine\", steps = 9, end = 2 }",
                "job.toml:6:57: error: expected a fraction of the learning rate, from 0 to 1, found 2",
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
