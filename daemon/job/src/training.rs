//! The `[training]` of a job file.

use millstream_trainer::spec::{
    ClipSpec, DecaySpec, DeviceSpec, LossScaleSpec, LossSpec, ModelSpec, Precision, ScheduleSpec, TaskSpec,
    TrainingSpec,
};

use super::error::suggestion;
use super::label::Labels;
use super::section::{ReadKind, Section};

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

/// Reads the section for this `model` and these `labels`; `seed` is the job's.
pub(super) fn read(mut training: Section<'_>, seed: u64, model: &ModelSpec, labels: &Labels) -> TrainingSpec {
    if model.uses_in_batch_softmax() {
        refuse_label_losses(&training);
    }
    let named = |it: Precision| (it.name(), it);
    let precision = training.choice("precision", &Precision::ALL.map(named)).unwrap_or_default();
    let of_tables = training.choice("embedding_precision", &Precision::STORAGE.map(named));
    let embedding_precision = of_tables.unwrap_or_default();
    let loss_scale = read_loss_scale(&mut training, precision);
    let device = read_device(&mut training);
    let threads = training.whole_u32("threads", 1..=1_024);
    let schedule = read_schedule(training.section("schedule", "[training.schedule]"));
    let loss = read_loss(training.section("loss", "[training.loss]"), labels);
    let tasks = read_losses(&mut training, &loss, labels);
    let norm = training.constant("clip_norm", true);
    let clip = ClipSpec { norm, value: training.constant("clip_value", true) };
    let micro_batch_rows = training.whole_u32("micro_batch_size", 1..=u32::MAX);
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

/// Rejects the settings of label losses in a two-tower model, whose loss spans whole batches.
fn refuse_label_losses(training: &Section<'_>) {
    let loss = training.entries().find(|(key, ..)| *key == "loss");
    let loss = loss.and_then(|(.., node)| training.as_section(node, "[training.loss]"));
    for (key, at, _) in loss.iter().flat_map(Section::entries) {
        let message =
            format!("`{key}` applies to losses of labels; a two-tower model's loss is in-batch softmax");
        training.error_at(at, message);
    }
    if training.has("micro_batch_size") {
        training
            .error("micro_batch_size", "a two-tower model needs whole batches: remove `micro_batch_size`");
    }
}

fn read_loss(mut loss: Section<'_>, labels: &Labels) -> LossSpec {
    let spec = read_kind(&mut loss, labels.classes());
    loss.finish();
    spec
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    BinaryCrossEntropy,
    SquaredError,
    CrossEntropy,
}

const KINDS: [(&str, Kind); 3] =
    [("bce", Kind::BinaryCrossEntropy), ("mse", Kind::SquaredError), ("cross_entropy", Kind::CrossEntropy)];

/// The keys of losses, each with the losses that have it.
const KEYS: [(&str, &[Kind]); 4] = [
    ("label_smoothing", &[Kind::BinaryCrossEntropy, Kind::CrossEntropy]),
    ("positive_weight", &[Kind::BinaryCrossEntropy]),
    ("negative_weight", &[Kind::BinaryCrossEntropy]),
    ("class_weights", &[Kind::CrossEntropy]),
];

/// Reads the loss of a label with these `classes`, if any.
fn read_kind(loss: &mut Section<'_>, classes: Option<u32>) -> LossSpec {
    let usual = if classes.is_some() { Kind::CrossEntropy } else { Kind::BinaryCrossEntropy };
    let kind = loss.choice("kind", &KINDS).unwrap_or(usual);
    if kind != Kind::CrossEntropy && classes.is_some() {
        loss.error("kind", "a label of `classes` has the loss \"cross_entropy\"");
    }
    for (key, kinds) in KEYS.iter().filter(|(_, kinds)| !kinds.contains(&kind)) {
        if loss.node(key).is_some() {
            let names = KINDS.iter().filter(|(_, kind)| kinds.contains(kind));
            let names: Vec<_> = names.map(|(name, _)| format!("\"{name}\"")).collect();
            let losses = if names.len() > 1 { "losses" } else { "loss" };
            loss.error(key, format!("`{key}` is for the {losses} {}", names.join(" and ")));
        }
    }
    match kind {
        Kind::BinaryCrossEntropy => LossSpec::BinaryCrossEntropy {
            label_smoothing: loss.fraction("label_smoothing").unwrap_or(0.0),
            positive_weight: loss.constant("positive_weight", true).unwrap_or(1.0),
            negative_weight: loss.constant("negative_weight", true).unwrap_or(1.0),
        },
        Kind::SquaredError => LossSpec::SquaredError,
        Kind::CrossEntropy => {
            let Some(classes) = classes else {
                let message = "the loss \"cross_entropy\" needs the `classes` of one [label]";
                loss.error("kind", message);
                // The remaining keys depend on the loss, so they are not reported as unknown.
                let _ = KEYS.map(|(key, _)| loss.node(key).is_some());
                return LossSpec::default();
            };
            LossSpec::CrossEntropy {
                classes,
                label_smoothing: loss.fraction("label_smoothing").unwrap_or(0.0),
                class_weights: read_class_weights(loss, classes),
            }
        }
    }
}

/// Reads the weight of each class's rows; empty for equal weights.
fn read_class_weights(loss: &mut Section<'_>, classes: u32) -> Vec<f32> {
    let Some(node) = loss.node("class_weights") else { return Vec::new() };
    let Some(items) = loss.as_list(node, "numbers") else { return Vec::new() };
    if items.len() != classes as usize {
        let message = format!("expected a weight for each of {classes} classes, found {}", items.len());
        loss.error_at(node.at, message);
    }
    items.iter().filter_map(|item| loss.as_constant(item, true)).collect()
}

/// Reads the losses of several labels, with `usual` as the default; empty for one unnamed label.
fn read_losses(training: &mut Section<'_>, usual: &LossSpec, labels: &Labels) -> Vec<TaskSpec> {
    if !labels.are_named {
        if training.node("losses").is_some() {
            training
                .error("losses", "`losses` is for several [labels]; for one [label], use [training.loss]");
        }
        return Vec::new();
    }
    let names = labels.names();
    let mut tasks: Vec<TaskSpec> = names.iter().map(|_| usual.clone().into()).collect();
    let losses = training.section("losses", "[training.losses]");
    for (name, at, node) in losses.entries() {
        let Some(place) = names.iter().position(|label| *label == name) else {
            let hint = suggestion(name, names.iter().copied());
            losses.error_at(at, format!("[labels] has no label `{name}`{hint}"));
            continue;
        };
        let Some(mut loss) = losses.as_section(node, format!("[training.losses.{name}]")) else { continue };
        let weight = loss.constant("weight", true).unwrap_or(1.0);
        tasks[place] = TaskSpec { loss: read_kind(&mut loss, None), weight };
        loss.finish();
    }
    tasks
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
