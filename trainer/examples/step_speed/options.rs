//! The command line.

use std::error::Error;
use std::io::{BufRead, stdin};
use std::num::ParseIntError;
use std::path::PathBuf;

use millstream_trainer::spec::{DeviceSpec, Pooling, Precision};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    WideDeep,
    Din,
    Dlrm,
    /// DLRM-DCNv2 of MLPerf Training.
    Mlperf,
}

/// Whether operations are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Record {
    No,
    Off,
    On,
}

/// The command line.
pub(crate) struct Options {
    pub(crate) kind: Kind,
    /// Rows of each table; ignored for MLPerf.
    pub(crate) ids: u32,
    /// The divisor of the rows of MLPerf's tables.
    pub(crate) part: u32,
    pub(crate) dim: u32,
    /// Values per row of each feature of Wide & Deep and DLRM.
    pub(crate) values: u32,
    /// How embeddings of several values are pooled; attention does not pool.
    pub(crate) pooling: Pooling,
    /// Widths of the layers except the last.
    pub(crate) hidden: Vec<u32>,
    /// Widths of DLRM's bottom layers.
    pub(crate) bottom: Vec<u32>,
    pub(crate) batch: u32,
    /// Examples in all batches together, so that small batches touch as many rows of the tables as large
    /// ones.
    pub(crate) examples: u32,
    pub(crate) threads: u32,
    pub(crate) seconds: f64,
    pub(crate) runs: usize,
    pub(crate) json: bool,
    pub(crate) wait: bool,
    pub(crate) losses: usize,
    pub(crate) rates: bool,
    pub(crate) operations: bool,
    /// The factor of the size of the matrices that measure the device.
    pub(crate) roof: usize,
    pub(crate) device: DeviceSpec,
    pub(crate) libraries: Option<PathBuf>,
    /// The cache directory of compiled kernels.
    pub(crate) cache: Option<PathBuf>,
    pub(crate) record: Record,
    pub(crate) without_tiles: bool,
    pub(crate) precision: Precision,
    /// The storage precision of embedding tables.
    pub(crate) tables: Precision,
    /// The precision in which workers exchange gradients.
    pub(crate) gradients: Precision,
    /// The number of workers, and which one this process is.
    pub(crate) workers: u32,
    pub(crate) rank: u32,
    /// The directory in which workers exchange their addresses.
    pub(crate) meet: PathBuf,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self::default();
        while let Some(key) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{key}` needs a value"));
            match key.as_str() {
                "--model" => options.kind = kind(&value()?)?,
                "--ids" => options.ids = value()?.parse()?,
                "--part" => options.part = value()?.parse()?,
                "--dim" => options.dim = value()?.parse()?,
                "--values" => options.values = value()?.parse()?,
                "--pooling" => options.pooling = pooling(&value()?)?,
                "--hidden" => options.hidden = layers(&value()?)?,
                "--bottom" => options.bottom = layers(&value()?)?,
                "--batch" => options.batch = value()?.parse()?,
                "--examples" => options.examples = value()?.parse()?,
                "--threads" => options.threads = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--runs" => options.runs = value()?.parse()?,
                "--losses" => options.losses = value()?.parse()?,
                "--precision" => options.precision = precision(&key, &value()?, &Precision::ALL)?,
                "--tables" => options.tables = precision(&key, &value()?, &Precision::STORAGE)?,
                "--gradients" => options.gradients = precision(&key, &value()?, &Precision::STORAGE)?,
                "--json" => options.json = true,
                "--wait" => options.wait = true,
                "--rates" => options.rates = true,
                "--operations" => options.operations = true,
                "--roof" => options.roof = value()?.parse()?,
                "--workers" => options.workers = value()?.parse()?,
                "--rank" => options.rank = value()?.parse()?,
                "--meet" => options.meet = value()?.into(),
                "--without-tiles" => options.without_tiles = true,
                "--record" => options.record = record(&value()?)?,
                "--device" => options.device = device(&value()?)?,
                "--libraries" => options.libraries = Some(value()?.into()),
                "--cache" => options.cache = Some(value()?.into()),
                _ => return Err(format!("unknown argument `{key}`").into()),
            }
        }
        let counts = [options.batch, options.examples, options.ids, options.part, options.values];
        if options.rank >= options.workers {
            return Err(format!("`--rank {}` of `--workers {}`", options.rank, options.workers).into());
        }
        if counts.contains(&0) || options.runs == 0 || options.roof == 0 {
            return Err(
                "`--batch`, `--examples`, `--ids`, `--part`, `--values`, `--runs` and `--roof` must be at least 1"
                    .into(),
            );
        }
        Ok(options)
    }

    /// Calls `run` for each run; with `--wait`, after a line of standard input.
    pub(crate) fn each_run(
        &self,
        mut run: impl FnMut() -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        if self.wait {
            stdin().lock().lines().try_for_each(|line| line.map_err(Into::into).and_then(|_| run()))
        } else {
            (0..self.runs).try_for_each(|_| run())
        }
    }

    /// Bytes of an embedding weight.
    pub(crate) fn weight_bytes(&self) -> usize {
        match (self.device, self.tables) {
            (DeviceSpec::Cpu, _) | (_, Precision::Fp32) => size_of::<f32>(),
            _ => size_of::<u16>(),
        }
    }

    /// Widths of the layers that end in the logit.
    pub(crate) fn top(&self) -> Vec<u32> {
        [&self.hidden[..], &[1]].concat()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::WideDeep,
            ids: 100_000,
            part: 8,
            dim: 16,
            values: 1,
            pooling: Pooling::Sum,
            hidden: vec![256, 128, 64],
            bottom: vec![64],
            batch: 4096,
            examples: 24 * 4096,
            threads: std::thread::available_parallelism().map_or(1, usize::from) as u32,
            seconds: 1.0,
            runs: 5,
            json: false,
            wait: false,
            losses: 0,
            rates: false,
            operations: false,
            roof: 1,
            device: DeviceSpec::Cpu,
            libraries: None,
            cache: None,
            record: Record::No,
            without_tiles: false,
            precision: Precision::Fp32,
            tables: Precision::Fp32,
            gradients: Precision::Fp32,
            workers: 1,
            rank: 0,
            meet: PathBuf::new(),
        }
    }
}

fn kind(name: &str) -> Result<Kind, String> {
    match name {
        "wide_deep" => Ok(Kind::WideDeep),
        "din" => Ok(Kind::Din),
        "dlrm" => Ok(Kind::Dlrm),
        "mlperf" => Ok(Kind::Mlperf),
        _ => Err(format!("`--model` is `{name}`; expected `wide_deep`, `dlrm` or `mlperf`")),
    }
}

fn pooling(name: &str) -> Result<Pooling, String> {
    match name {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        "sqrtn" => Ok(Pooling::SqrtN),
        "max" => Ok(Pooling::Max),
        _ => Err(format!("`--pooling` is `{name}`; expected `sum`, `mean`, `sqrtn` or `max`")),
    }
}

fn record(name: &str) -> Result<Record, String> {
    match name {
        "no" => Ok(Record::No),
        "off" => Ok(Record::Off),
        "on" => Ok(Record::On),
        _ => Err(format!("`--record` is `{name}`; expected `no`, `off` or `on`")),
    }
}

fn layers(widths: &str) -> Result<Vec<u32>, ParseIntError> {
    widths.split(',').map(str::parse).collect()
}

fn device(name: &str) -> Result<DeviceSpec, String> {
    name.parse().map_err(|()| format!("`--device` is `{name}`; expected {}", DeviceSpec::SYNTAX))
}

fn precision(key: &str, name: &str, all: &[Precision]) -> Result<Precision, String> {
    let found = all.iter().find(|precision| precision.name() == name);
    let names: Vec<_> = all.iter().map(|precision| format!("`{}`", precision.name())).collect();
    found.copied().ok_or_else(|| format!("`{key}` is `{name}`; expected one of {}", names.join(", ")))
}
