//! The `[workers]` of a job file: how many processes train the model together.
//!
//! Each worker trains on a part of every batch, so the batch size stays that of the whole step.

use std::fmt;

use globset::GlobBuilder;
use millstream_document::problems::{At, DocumentError, Problem};
use millstream_document::section::Section;
use millstream_document::tree::Value;
use millstream_io::storage::{Directory, is_local};
use millstream_pipeline::spec::DataSpec;
use millstream_trainer::spec::{DeviceSpec, ModelSpec, Precision, TrainingSpec};

use crate::batch::AutoBatchSpec;

/// The largest number of workers on a host.
const MAX_PER_HOST: u32 = 64;

/// The largest number of workers on all hosts.
const MAX_WORKERS: u32 = 4096;

/// The largest number of a GPU.
const MAX_NUMBER: u64 = 1023;

/// The most parts of a batch.
const MAX_PARTS: u32 = 256;

/// How many workers train a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkersSpec {
    /// The number of workers on each host.
    pub per_host: u32,
    /// The fewest workers with which training continues: if devices fail, or on all hosts if there may be several.
    pub min: u32,
    /// The most workers on all hosts; `None` if the job stays on one host.
    pub max: Option<u32>,
    /// Patterns of the names of hosts that add gradients for the workers instead of having some.
    pub reducers: Vec<String>,
    /// The GPUs of the workers; `None` for those from `training.device` on.
    pub devices: Option<Devices>,
    /// Where the job file, or an override, has `devices`; empty without.
    devices_place: String,
    /// The number of parts that every batch is cut into, so that results have the same bits for every number of workers that
    /// divides it; a power of two. `None` for a part per worker.
    pub reproducible: Option<u32>,
    /// The precision in which workers exchange gradients.
    pub gradient_precision: Precision,
    /// How long a worker waits for the others in one exchange of data, in seconds. Then all are restarted.
    pub timeout_seconds: u32,
    /// Seconds between images of the model in the daemon's memory, from which training continues after a worker's death; `None`
    /// to continue from checkpoints.
    pub image_seconds: Option<u32>,
}

/// The GPUs of a job's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// All of the host.
    All,
    /// One for each worker, by rank.
    Chosen(Vec<DeviceName>),
}

/// What names a GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// Its number.
    Number(u32),
    /// `GPU-` and a UUID, as `nvidia-smi -L` prints it.
    Uuid(String),
}

impl WorkersSpec {
    /// Whether the host with this name adds gradients for the workers of others, and has none.
    pub fn reduces_on(&self, host: &str) -> bool {
        self.reducers.iter().any(|pattern| host_pattern(pattern).is_ok_and(|glob| glob.is_match(host)))
    }

    /// The copies of the model from which one of the workers writes checkpoints: one, or two images, of which one is always
    /// complete.
    pub fn model_copies(&self) -> u32 {
        if self.image_seconds.is_some() { 2 } else { 1 }
    }

    /// An error about `devices`, at their position in the job file.
    pub fn devices_error(&self, message: impl Into<String>) -> DocumentError {
        DocumentError {
            problems: vec![Problem { place: self.devices_place.clone(), message: message.into() }],
        }
    }
}

/// What decides whether the name of a host fits a pattern.
fn host_pattern(pattern: &str) -> Result<globset::GlobMatcher, globset::Error> {
    Ok(GlobBuilder::new(pattern).case_insensitive(true).build()?.compile_matcher())
}

impl Devices {
    /// The numbers of the GPUs, by rank, unless that depends on the host.
    pub fn numbers(&self) -> Option<Vec<u32>> {
        let Self::Chosen(names) = self else { return None };
        let number = |name: &DeviceName| match name {
            DeviceName::Number(number) => Some(*number),
            DeviceName::Uuid(_) => None,
        };
        names.iter().map(number).collect()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Uuid(uuid) => write!(f, "\"{uuid}\""),
        }
    }
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self {
            per_host: 1,
            min: 1,
            max: None,
            reducers: Vec::new(),
            devices: None,
            devices_place: String::new(),
            reproducible: None,
            gradient_precision: Precision::Fp32,
            timeout_seconds: 60,
            image_seconds: None,
        }
    }
}

/// The positions of keys, for problems that depend on the rest of the job.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// The key that gives batches several parts.
    parts: At,
    gradient_precision: At,
    max: At,
    reducers: At,
    image_seconds: At,
}

/// Reads the section. What depends on the rest of the job is checked by [`check`].
pub(super) fn read(top: &mut Section<'_>) -> (WorkersSpec, Places) {
    let usual = WorkersSpec::default();
    let mut section = top.section("workers", "[workers]");
    let decides = ["per_host", "devices"].into_iter().find(|key| section.has(key));
    let parts = section.at_key(decides.unwrap_or("reproducible"));
    let places = Places {
        parts,
        gradient_precision: section.at_key("gradient_precision"),
        max: section.at_key("max"),
        reducers: section.at_key("reducers"),
        image_seconds: section.at_key("image_seconds"),
    };
    let devices = read_devices(&mut section);
    let per_host = read_per_host(&mut section, devices.as_ref()).unwrap_or(usual.per_host);
    let max = section.whole_u32("max", 1..=MAX_WORKERS);
    let min = match max {
        None => read_min(&mut section, per_host, devices.as_ref()).unwrap_or(per_host),
        Some(max) => section.whole_u32("min", 1..=max).unwrap_or(1),
    };
    let spec = WorkersSpec {
        per_host,
        min,
        max,
        reducers: read_reducers(&mut section),
        devices_place: devices.as_ref().map(|_| section.place_of("devices")).unwrap_or_default(),
        devices,
        reproducible: section.whole_u32("reproducible", 1..=MAX_PARTS),
        gradient_precision: section
            .choice("gradient_precision", &Precision::STORAGE.map(|precision| (precision.name(), precision)))
            .unwrap_or_default(),
        timeout_seconds: section.whole_u32("timeout_seconds", 1..=86_400).unwrap_or(usual.timeout_seconds),
        image_seconds: section.whole_u32("image_seconds", 1..=86_400),
    };
    if let Some(parts) = spec.reproducible
        && !(parts.is_power_of_two() && parts.is_multiple_of(spec.per_host))
    {
        let per_host = spec.per_host;
        let expected =
            format!("expected a power of two that is a multiple of `per_host = {per_host}`, found {parts}");
        section.error("reproducible", expected);
    }
    if spec.gradient_precision != Precision::Fp32 && spec.reproducible.is_some() {
        let why = "rounded gradients depend on the number of workers: remove it, or `reproducible`";
        section.error("gradient_precision", why);
    }
    section.finish();
    (spec, places)
}

/// The patterns of hosts that reduce.
fn read_reducers(section: &mut Section<'_>) -> Vec<String> {
    let patterns = section.texts("reducers").unwrap_or_default();
    for pattern in &patterns {
        if let Err(error) = host_pattern(pattern.text) {
            section
                .error_at(pattern.at, format!("expected names of hosts, in which `*` is any text: {error}"));
        }
    }
    patterns.into_iter().map(|pattern| pattern.text.to_owned()).collect()
}

/// The number of workers, which must be that of `devices`.
fn read_per_host(section: &mut Section<'_>, devices: Option<&Devices>) -> Option<u32> {
    let given = section.whole_u32("per_host", 1..=MAX_PER_HOST);
    let Some(Devices::Chosen(names)) = devices else { return given };
    let count = names.len() as u32;
    if let Some(other) = given.filter(|&given| given != count) {
        section.error("per_host", format!("expected {count}, the number of `devices`, found {other}"));
    }
    Some(count)
}

/// The fewest workers, at most `per_host`. For all GPUs of the host, that is checked once their number is known.
fn read_min(section: &mut Section<'_>, per_host: u32, devices: Option<&Devices>) -> Option<u32> {
    let min = section.whole_u32("min", 1..=MAX_PER_HOST)?;
    if min > per_host && devices != Some(&Devices::All) {
        let most = match devices {
            Some(_) => format!("{per_host}, the number of `devices`"),
            None => format!("`per_host = {per_host}`"),
        };
        section.error("min", format!("expected at most {most}, found {min}"));
    }
    Some(min)
}

fn read_devices(section: &mut Section<'_>) -> Option<Devices> {
    const SYNTAX: &str = "\"all\", or a list of numbers and UUIDs";
    let node = section.node("devices")?;
    if let Value::Text(text) = &node.value {
        if text == "all" {
            return Some(Devices::All);
        }
        section.error_at(node.at, format!("expected {SYNTAX}, found \"{text}\""));
        return None;
    }
    let items = section.as_list(node, "numbers and UUIDs of GPUs")?;
    if items.len() > MAX_PER_HOST as usize {
        section.error_at(node.at, format!("expected at most {MAX_PER_HOST} GPUs, found {}", items.len()));
    }
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let name = match &item.value {
            Value::Text(text) if text.starts_with("GPU-") => DeviceName::Uuid(text.clone()),
            Value::Text(text) => {
                let expected =
                    "expected a number, or a UUID that begins with \"GPU-\" (nvidia-smi -L prints them)";
                section.error_at(item.at, format!("{expected}, found \"{text}\""));
                return None;
            }
            _ => DeviceName::Number(section.as_whole(item, 0..=MAX_NUMBER)? as u32),
        };
        if names.contains(&name) {
            section.error_at(item.at, format!("GPU {name} is listed twice: each worker needs its own"));
            return None;
        }
        names.push(name);
    }
    (!names.is_empty()).then_some(Devices::Chosen(names))
}

/// Sets the GPUs of the workers. With `devices`, a `training.device` that the file names must be "cuda".
pub(super) fn apply_devices(
    (spec, places): (&WorkersSpec, Places),
    names_device: bool,
    training: &mut TrainingSpec,
    top: &Section<'_>,
) {
    let Some(devices) = &spec.devices else { return };
    if names_device && training.device != DeviceSpec::Cuda(0) {
        let device = training.device;
        let remedy = "remove that key, or set it to \"cuda\"";
        top.error_at(
            places.parts,
            format!("`devices` contradicts `training.device = \"{device}\"`: {remedy}"),
        );
    }
    training.gpus = devices.numbers().unwrap_or_default();
    training.device = DeviceSpec::Cuda(training.gpus.first().copied().unwrap_or(0));
}

/// Sets the precision of gradients. Half precision needs a loss scale.
pub(super) fn apply_gradient_precision(
    (spec, places): (&WorkersSpec, Places),
    training: &mut TrainingSpec,
    top: &Section<'_>,
) {
    training.gradient_precision = spec.gradient_precision;
    if spec.gradient_precision.scales_loss() && !training.precision.scales_loss() {
        let why = "gradients that are not scaled vanish in half precision";
        let remedy = "use \"bf16\", or set `training.precision = \"fp16\"`, which scales them";
        top.error_at(places.gradient_precision, format!("{why}: {remedy}"));
    }
}

/// Reports what keeps a job from training on several hosts, which have nothing in common but buckets.
pub(super) fn check_hosts((spec, places): (&WorkersSpec, Places), job: &HostsUse<'_>, top: &Section<'_>) {
    let Some(max) = spec.max else {
        if !spec.reducers.is_empty() {
            top.error_at(places.reducers, "reducers are other hosts: set `max`, or remove `reducers`");
        }
        return;
    };
    let HostsUse { data, auto, model, search, directories } = *job;
    let refuse = |why: &str| top.error_at(places.max, format!("training on several hosts: {why}"));
    if max < spec.per_host {
        refuse(&format!("expected at least `per_host = {}`, found {max}", spec.per_host));
    }
    if data.lanes < max {
        let lanes = data.lanes;
        refuse(&format!("each worker reads other lanes, but `data.lanes` is {lanes}; raise it to {max}"));
    }
    let (key, rows, least) = match auto {
        None => ("batch_size", data.batch_size, max),
        Some(auto) => ("auto_batch.most", auto.most, auto.least),
    };
    if rows < least {
        refuse(&format!("each worker needs a row of every batch, but `data.{key}` is {rows}"));
    }
    if spec.image_seconds.is_some() {
        let why = "images of the model are of one host; remove it, or `max`";
        top.error_at(places.image_seconds, why);
    }
    if model.uses_batch_normalization() {
        refuse(
            "workers get unequal parts of a batch, which batch normalization cannot use; use `normalization = \"layer\"`",
        );
    }
    if search {
        refuse("a search runs its trials on one host; remove `max`");
    }
    let is_here = |address: &&String| is_local(address).unwrap_or(false);
    if let Some(address) = data.train.iter().chain(&data.eval).find(is_here) {
        refuse(&format!("every host reads the data, so it must be in a bucket; {address:?} is on this host"));
    }
    for (key, directory) in directories {
        if let Some(path) = directory.as_local() {
            let path = path.display();
            refuse(&format!("every host uses `{key}`, so it must be in a bucket; {path} is on this host"));
        }
    }
}

/// What a job uses that several hosts may not have in common.
#[derive(Clone, Copy)]
pub(super) struct HostsUse<'a> {
    pub(super) data: &'a DataSpec,
    pub(super) auto: Option<AutoBatchSpec>,
    pub(super) model: &'a ModelSpec,
    /// Whether it is a search.
    pub(super) search: bool,
    /// The directories that it uses, by their keys.
    pub(super) directories: &'a [(&'static str, &'a Directory)],
}

/// Reports why parts of batches cannot train the job, at the position of `per_host`, or of `reproducible` if there is one
/// worker.
pub(super) fn check(
    (spec, places): (&WorkersSpec, Places),
    (data, auto): (&DataSpec, Option<AutoBatchSpec>),
    (model, training): (&ModelSpec, &TrainingSpec),
    top: &Section<'_>,
) {
    let &WorkersSpec { per_host, reproducible, .. } = spec;
    let (parts, what, alone) = match reproducible {
        None if per_host == 1 => return,
        None => (per_host, "workers", "set `per_host = 1`"),
        Some(parts) => (parts, "parts of each batch", "train without `reproducible`"),
    };
    let refuse = |why: String| top.error_at(places.parts, format!("{parts} {what}: {why}"));
    let (key, most) = match auto {
        Some(auto) => ("auto_batch.most", auto.most),
        None => ("batch_size", data.batch_size),
    };
    if most < parts {
        refuse(format!("each needs a row of every batch, but `data.{key}` is {most}; raise it or {alone}"));
    }
    if reproducible.is_none() {
        return;
    }
    if model.uses_in_batch_loss() {
        refuse(format!("the loss of a \"two_tower\" model compares all rows of a batch; {alone}"));
    }
    if model.uses_batch_normalization() {
        refuse(format!(
            "batch normalization depends on all rows of a batch; use `normalization = \"layer\"`, or {alone}"
        ));
    }
    let of_tasks = training.tasks.iter().map(|task| &task.loss);
    if let Some(loss) = std::iter::once(&training.loss).chain(of_tasks).find(|loss| loss.group().is_some()) {
        let kind = loss.kind();
        refuse(format!("the loss \"{kind}\" compares the rows of a list; use another loss, or {alone}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::num::NonZeroU32;
    use std::path::Path;

    use millstream_trainer::spec::{DeviceSpec, Precision};

    use super::{DeviceName, Devices, WorkersSpec};
    use crate::Job;

    const JOB: &str = r#"name = "clicks"
data = { train = ["train.parquet"], eval = ["eval.parquet"] }
label = { column = "clicked" }
features = { age = { kind = "numeric" }, list = { kind = "hashed", buckets = 10 } }
model = { kind = "mlp", features = ["age", "list"], hidden = [4], optimizer = { kind = "adam" } }
"#;

    fn read(set: &[&str]) -> Result<Job, String> {
        let set: Vec<String> = set.iter().map(|&text| text.to_owned()).collect();
        let job = Job::parse(JOB, Path::new("job.toml"), &set);
        job.map(|(job, _)| job).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let plain = read(&[]).unwrap();
        assert_eq!((plain.workers, plain.training.ranks()), (WorkersSpec::default(), 1));
        let set =
            ["workers.per_host=4", "workers.min=3", "workers.timeout_seconds=5", "workers.image_seconds=30"];
        let several = read(&set).unwrap();
        let wanted = WorkersSpec {
            per_host: 4,
            min: 3,
            max: None,
            timeout_seconds: 5,
            image_seconds: Some(30),
            ..WorkersSpec::default()
        };
        assert_eq!(several.workers, wanted);
        assert_eq!((wanted.model_copies(), WorkersSpec::default().model_copies()), (2, 1));
        let rounded = read(&["workers.per_host=2", "workers.gradient_precision=bf16"]).unwrap();
        let gradients = rounded.training.gradient_precision;
        assert_eq!((gradients, rounded.workers.gradient_precision), (Precision::Bf16, Precision::Bf16));
        let parts = |set| read(&[set, "workers.reproducible=8"]).unwrap().training.parts();
        assert_eq!([parts("workers.per_host=2"), parts("workers.per_host=8")], [8, 8]);
        for (per_host, parts) in [(1, 6), (3, 6), (4, 2)] {
            let set = [format!("workers.per_host={per_host}"), format!("workers.reproducible={parts}")];
            let error = read(&set.each_ref().map(String::as_str)).unwrap_err();
            let expected = format!("expected a power of two that is a multiple of `per_host = {per_host}`");
            assert!(error.contains(&format!("{expected}, found {parts}")), "{error}");
        }
        assert_eq!((several.training.ranks(), several.data.batch_size), (4, plain.data.batch_size));
        for set in ["workers.per_host=0", "workers.per_host=65"] {
            let error = read(&[set]).unwrap_err();
            assert!(error.contains("expected a whole number from 1 to 64, found"), "{error}");
        }
        let error = read(&["workers.timeout_seconds=0"]).unwrap_err();
        assert!(error.contains("expected a whole number from 1 to 86400, found 0"), "{error}");
        let error = read(&["workers.per_hosts=2"]).unwrap_err();
        assert!(error.contains("unknown key `per_hosts` in [workers]; did you mean `per_host`?"), "{error}");
    }

    #[test]
    fn gradients_in_half_precision_are_scaled_and_none_are_rounded_if_bits_must_not_change() {
        let half = "workers.gradient_precision=fp16";
        let error = read(&[half]).unwrap_err();
        assert!(error.contains("use \"bf16\", or set `training.precision = \"fp16\"`"), "{error}");
        assert!(error.starts_with("--set workers.gradient_precision"), "{error}");
        read(&[half, "training.precision=fp16"]).unwrap();
        let error = read(&["workers.gradient_precision=bf16", "workers.reproducible=2"]).unwrap_err();
        assert!(error.contains("rounded gradients depend on the number of workers"), "{error}");
        let error = read(&["workers.gradient_precision=tf32"]).unwrap_err();
        assert!(error.contains("expected \"fp32\", \"bf16\" or \"fp16\""), "{error}");
    }

    #[test]
    fn the_fewest_workers_are_at_most_all() {
        let min = |set: &[&str]| read(set).map(|job| job.workers.min);
        assert_eq!((min(&[]), min(&["workers.min=1"])), (Ok(1), Ok(1)));
        assert_eq!(min(&["workers.per_host=4"]), Ok(4), "by default, all have to work");
        assert_eq!(min(&["workers.per_host=4", "workers.min=2"]), Ok(2));
        assert_eq!(min(&["workers.devices=[3, 0, 2]"]), Ok(3));
        // The host decides how many these are.
        assert_eq!(min(&["workers.devices=all", "workers.min=7"]), Ok(7));
        let cases = [
            (vec!["workers.min=2"], "expected at most `per_host = 1`, found 2"),
            (vec!["workers.per_host=4", "workers.min=5"], "expected at most `per_host = 4`, found 5"),
            (
                vec!["workers.devices=[3, 0]", "workers.min=3"],
                "expected at most 2, the number of `devices`, found 3",
            ),
            (vec!["workers.min=0"], "expected a whole number from 1 to 64, found 0"),
        ];
        for (set, why) in cases {
            let error = min(&set).unwrap_err();
            assert!(error.contains(why), "{set:?}: {error}");
        }
        let text = format!("{JOB}\n[workers]\nper_host = 2\nmin = 3\n");
        let error = Job::parse(&text, Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("job.toml:9:7: error: expected at most `per_host = 2`, found 3"),
            "{error}"
        );
    }

    #[test]
    fn devices_are_numbers_uuids_or_all_of_the_host() {
        let chosen = read(&["workers.devices=[3, 0, 2]"]).unwrap();
        assert_eq!((chosen.workers.per_host, &chosen.training.gpus[..]), (3, &[3, 0, 2][..]));
        assert_eq!((chosen.training.ranks(), chosen.training.device), (3, DeviceSpec::Cuda(3)));
        read(&["workers.devices=[1, 0]", "workers.per_host=2", "training.device=cuda"]).unwrap();

        // The host decides which numbers these are.
        let named = read(&["workers.devices=[\"GPU-a\", 1]"]).unwrap();
        let names = vec![DeviceName::Uuid("GPU-a".into()), DeviceName::Number(1)];
        assert_eq!((named.workers.devices, named.workers.per_host), (Some(Devices::Chosen(names)), 2));
        assert_eq!((named.training.gpus.len(), named.training.device), (0, DeviceSpec::Cuda(0)));
        assert_eq!(read(&["workers.devices=all"]).unwrap().workers.devices, Some(Devices::All));
        assert_eq!(read(&["workers.devices=[]"]).unwrap().workers, WorkersSpec::default());
        assert_eq!(read(&[]).unwrap().fingerprint(), chosen.fingerprint());
        let many = format!("workers.devices={:?}", (0..65).collect::<Vec<u32>>());
        assert!(read(&[&many]).unwrap_err().contains("expected at most 64 GPUs, found 65"));
    }

    #[test]
    fn mistakes_in_devices_are_reported() {
        let cases = [
            (
                vec!["workers.devices=some"],
                "expected \"all\", or a list of numbers and UUIDs, found \"some\"",
            ),
            (vec!["workers.devices=3"], "expected a list of numbers and UUIDs of GPUs, found"),
            (vec!["workers.devices=[0, 1, 0]"], "GPU 0 is listed twice"),
            (vec!["workers.devices=[0, -1]"], "expected a whole number from 0 to 1023, found -1"),
            (vec!["workers.devices=[\"0\"]"], "expected a number, or a UUID that begins with \"GPU-\""),
            (
                vec!["workers.devices=[0, 1]", "workers.per_host=3"],
                "expected 2, the number of `devices`, found 3",
            ),
            (
                vec!["workers.devices=[0, 1]", "training.device=cpu"],
                "`devices` contradicts `training.device = \"cpu\"`: remove that key",
            ),
        ];
        for (set, why) in cases {
            let error = read(&set).unwrap_err();
            assert!(error.contains(why), "{set:?}: {error}");
        }
    }

    #[test]
    fn an_error_of_devices_has_their_position() {
        let text = format!("{JOB}\n[workers]\ndevices = [7]\n");
        let error = |set: &[String]| {
            let (job, _) = Job::parse(&text, Path::new("job.toml"), set).unwrap();
            job.workers.devices_error("this host has no GPU 7").to_string()
        };
        assert_eq!(error(&[]), "job.toml:8:11: error: this host has no GPU 7");
        let set = ["workers.devices=[7]".to_owned()];
        assert_eq!(error(&set), "--set workers.devices=[7]: error: this host has no GPU 7");
    }

    #[test]
    fn the_number_of_workers_is_not_part_of_the_result() {
        let (one, four) = (read(&[]).unwrap(), read(&["workers.per_host=4", "workers.min=2"]).unwrap());
        assert_eq!(one.fingerprint(), four.fingerprint());
        assert_eq!(four.differences(&one), [""; 0]);
    }

    #[test]
    fn what_parts_of_batches_cannot_train_is_refused() {
        let cases = [
            (vec!["data.batch_size=3"], true, "each needs a row of every batch, but `data.batch_size` is 3"),
            (vec!["model.normalization=batch"], false, "batch normalization depends on all rows of a batch"),
            (
                vec!["training.loss={ kind = \"listwise\", group = \"list\" }"],
                false,
                "the loss \"listwise\" compares the rows of a list",
            ),
        ];
        for (mut set, of_workers, why) in cases {
            read(&set).unwrap();
            set.push("workers.per_host=4");
            match read(&set) {
                Err(error) if of_workers => {
                    assert!(error.contains(&format!("error: 4 workers: {why}")), "{error}");
                }
                read => assert!(!of_workers && read.is_ok(), "{why}"),
            }
            set.pop();
            set.push("workers.reproducible=4");
            let error = read(&set).unwrap_err();
            assert!(error.contains(&format!("error: 4 parts of each batch: {why}")), "{error}");
        }
        read(&["data.batch_size=4", "workers.per_host=4"]).unwrap();
    }

    #[test]
    fn an_automatic_batch_size_begins_with_a_row_for_each_part() {
        let size = |set: &str| {
            let job = read(&["data.batch_size=auto", set]).unwrap();
            assert_eq!(job.auto_batch.unwrap().least, job.data.batch_size);
            job.data.batch_size
        };
        assert_eq!((size("workers.per_host=3"), size("workers.per_host=33")), (16, 64));
        assert_eq!(size("workers.reproducible=128"), 128);
        let set = ["data.batch_size=auto", "data.auto_batch.most=32", "workers.per_host=33"];
        let error = read(&set).unwrap_err();
        assert!(
            error.contains("33 workers: each needs a row of every batch, but `data.auto_batch.most` is 32")
        );
    }

    #[test]
    fn reducers_are_hosts_whose_names_fit() {
        let job = read_in_bucket(&["workers.reducers=[\"sum-*.internal\", \"big\"]"]).unwrap();
        for (host, reduces) in [
            ("sum-1.internal", true),
            ("SUM-2.internal", true),
            ("big", true),
            ("big-1", false),
            ("sum-1", false),
        ] {
            assert_eq!(job.workers.reduces_on(host), reduces, "{host}");
        }
        assert!(!read_in_bucket(&[]).unwrap().workers.reduces_on("big"));
        let error = read_in_bucket(&["workers.reducers=[\"sum-[\"]"]).unwrap_err();
        assert!(error.contains("expected names of hosts, in which `*` is any text: "), "{error}");
        let error = read(&["workers.reducers=[\"big\"]"]).unwrap_err();
        assert!(error.contains("reducers are other hosts: set `max`, or remove `reducers`"), "{error}");
        for (reducers, on_devices) in [("[]", true), ("[\"big\"]", false)] {
            let reducers = format!("workers.reducers={reducers}");
            let mut training = read_in_bucket(&[&reducers, "training.device=cuda"]).unwrap().training;
            training.workers = NonZeroU32::new(2);
            assert_eq!(training.may_sum_on_devices(), on_devices, "{reducers}");
        }
    }

    #[test]
    fn a_mistake_is_reported_at_the_number_of_workers() {
        let text = format!(
            "{JOB}\n[workers]\nper_host = 4\nreproducible = 4\n[training]\nloss.kind = \"pairwise\"\nloss.group = \"list\"\n"
        );
        let error = Job::parse(&text, Path::new("job.toml"), &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("job.toml:8:12: error: 4 parts of each batch: the loss \"pairwise\""),
            "{error}"
        );
    }

    /// A job whose data and checkpoints are in a bucket.
    fn read_in_bucket(set: &[&str]) -> Result<Job, String> {
        let places = [
            "data.train=[\"gs://b/train.parquet\"]",
            "data.eval=[\"gs://b/eval.parquet\"]",
            "checkpoint.directory=gs://b/runs",
            "workers.max=8",
        ];
        read(&[&places[..], set].concat())
    }

    #[test]
    fn several_hosts_have_only_buckets_in_common() {
        let job = read_in_bucket(&["workers.per_host=2"]).unwrap();
        assert_eq!((job.workers.max, job.workers.min, job.workers.per_host), (Some(8), 1, 2));
        assert!(job.training.uneven_parts && job.training.ranks() == 2);
        assert_eq!(read_in_bucket(&["workers.min=8"]).unwrap().workers.min, 8);
        assert!(!read(&[]).unwrap().training.uneven_parts);
        let automatic = ["data.batch_size=auto", "workers.max=20", "data.lanes=20"];
        assert_eq!(read_in_bucket(&automatic).unwrap().auto_batch.unwrap().least, 32);
        let error = read_in_bucket(&[&automatic[..], &["data.auto_batch.most=30"]].concat()).unwrap_err();
        assert!(error.contains("`data.auto_batch.most` is 30"), "{error}");
        let on_gpus = read_in_bucket(&["workers.devices=[1, 3]"]).unwrap();
        assert_eq!((on_gpus.workers.per_host, &on_gpus.training.gpus[..]), (2, &[1, 3][..]));
        for (set, problem) in [
            ("workers.min=9", "min"),
            ("workers.per_host=9", "expected at least `per_host = 9`, found 8"),
            ("data.lanes=7", "`data.lanes` is 7; raise it to 8"),
            ("data.batch_size=7", "`data.batch_size` is 7"),
            ("workers.image_seconds=5", "images of the model are of one host"),
            ("model.normalization=batch", "batch normalization cannot use"),
            ("data.train=[\"train.parquet\"]", "\"train.parquet\" is on this host"),
            ("checkpoint.directory=runs", "every host uses `checkpoint.directory`"),
            ("tensorboard.directory=logs", "every host uses `tensorboard.directory`"),
        ] {
            let error = read_in_bucket(&[set]).unwrap_err();
            assert!(error.contains(problem), "{set}: {error}");
        }
    }
}
