//! `millstream export`: exports a trained model.
//!
//! The daemon only reports where the job's checkpoints are. This process reads the checkpoint and writes the file, so
//! a model of many gigabytes never passes through the daemon's memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use millstream_daemon::copies::Copies;
use millstream_daemon::export::Exportable;
use millstream_daemon::export::transforms::Language;
use millstream_io::storage::{Stores, is_address};
use millstream_tools::output::{Destination, Staged};
use millstream_trainer::export::Tower;
use millstream_trainer::export::onnx::{OnnxModel, Port};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::arguments::{Export, ModelFormat, ModelPart};
use crate::context::Context;
use crate::failure::Failure;
use crate::table::Table;
use crate::unfinished::Unfinished;
use crate::{figures, interrupt, target};

/// Bytes written between two checks for Ctrl-C.
const INTERRUPT_CHECK_BYTES: usize = 8 << 20;

/// The model's file, and the interface of the model.
struct Written {
    output: PathBuf,
    format: ModelFormat,
    /// The file of external data, if any.
    data: Option<PathBuf>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// A file whose writes fail after Ctrl-C. It gets its name only when it is complete.
struct InterruptibleFile {
    file: OutputFile,
    interrupted: watch::Receiver<bool>,
}

/// Where a file is written.
enum OutputFile {
    Local(Unfinished),
    InBucket(Box<Staged>),
}

impl OutputFile {
    fn create(path: &Path, destination: &Destination) -> Result<Self, Failure> {
        let address = path.to_str().filter(|path| is_address(path));
        match address {
            None => Unfinished::create(path).map(Self::Local),
            Some(address) => {
                let staged = Staged::create(address, destination).map_err(anyhow::Error::from)?;
                Ok(Self::InBucket(Box::new(staged)))
            }
        }
    }

    /// Gives the complete file its name.
    fn keep(self) -> Result<(), Failure> {
        match self {
            Self::Local(file) => file.keep(),
            Self::InBucket(mut file) => {
                file.seal().map_err(anyhow::Error::from)?;
                Ok(file.commit().map_err(anyhow::Error::from)?)
            }
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Local(file) => &mut file.writer,
            Self::InBucket(file) => file,
        }
    }
}

pub(crate) fn run(arguments: &Export, context: &Context) -> Result<(), Failure> {
    let Export { target, output, format, transforms, best, part, external_data } = arguments;
    let format = output.as_ref().map(|output| format.map_or_else(|| by_name(output), Ok)).transpose()?;
    if *external_data && format != Some(ModelFormat::Onnx) {
        return Err(Failure::Usage("--external-data applies only to ONNX".to_owned()));
    }
    let languages: Vec<Language> = transforms.iter().map(|path| language(path)).collect::<Result<_, _>>()?;
    let runtime = Runtime::new()?;
    let stores = Stores::default();
    let interrupted = interrupt::cancelling(&runtime, &stores)?;
    let directory =
        runtime.block_on(interrupt::unless(interrupted.clone(), target::with_checkpoint(target, context)))?;
    let tower = part.map(|part| match part {
        ModelPart::Query => Tower::Query,
        ModelPart::Item => Tower::Item,
    });
    let copies = Copies::new(stores.clone(), runtime.handle().clone());
    let destination = Destination { stores, runtime: runtime.handle().clone() };
    let model = Exportable::open(&directory, *best, tower, &copies);
    let model = if *interrupted.borrow() { Err(interrupt::error()) } else { model }?;
    let create = |path: &Path| {
        let file = OutputFile::create(path, &destination)?;
        Ok(InterruptibleFile { file, interrupted: interrupted.clone() })
    };
    let mut sources = Vec::with_capacity(transforms.len());
    for (path, language) in transforms.iter().zip(languages) {
        let mut file = create(path)?;
        model.write_transforms(language, &mut file).map_err(|error| located(error.into(), path))?;
        sources.push(file);
    }
    let written = match output.as_ref().zip(format) {
        Some((output, format)) => Some(write_model(&model, output, format, *external_data, create)?),
        None => None,
    };
    sources.into_iter().try_for_each(|source| source.file.keep())?;
    if written.is_some() && !model.left_out().is_empty() {
        let names = model.left_out().join(", ");
        context.screen.warning(&format!("the file omits vocabularies that are too long: {names}"));
    }
    let document = document(&model, written.as_ref(), transforms);
    context.answer(&document, || text(&model, written.as_ref(), transforms))
}

/// Writes the model, with its parameters beside it if `is_external` or if they are too large.
fn write_model(
    model: &Exportable,
    output: &Path,
    format: ModelFormat,
    is_external: bool,
    create: impl Fn(&Path) -> Result<InterruptibleFile, Failure>,
) -> Result<Written, Failure> {
    let (data, inputs, outputs) = match format {
        ModelFormat::Safetensors => {
            let mut file = create(output)?;
            model.write_safetensors(&mut file).map_err(|error| located(error.into(), output))?;
            file.file.keep()?;
            (None, Vec::new(), Vec::new())
        }
        ModelFormat::Onnx => {
            let onnx = model.onnx().map_err(anyhow::Error::from)?;
            let data = (is_external || !onnx.is_embeddable()).then(|| external_data_path(output));
            write_onnx(&onnx, output, data.as_deref(), create)?;
            (data, onnx.inputs(), onnx.outputs())
        }
    };
    Ok(Written { output: output.to_owned(), format, data, inputs, outputs })
}

/// Writes the graph, and its parameters to `data` if they are external.
fn write_onnx(
    onnx: &OnnxModel,
    output: &Path,
    data: Option<&Path>,
    create: impl Fn(&Path) -> Result<InterruptibleFile, Failure>,
) -> Result<(), Failure> {
    let mut file = create(output)?;
    let Some(data) = data else {
        onnx.write(&mut file).map_err(|error| located(error.into(), output))?;
        return file.file.keep();
    };
    let Some(name) = data.file_name().and_then(|name| name.to_str()) else {
        return Err(Failure::Usage(format!("{}: the name of external data must be UTF-8", data.display())));
    };
    let mut numbers = create(data)?;
    onnx.write_external(&mut file, name, &mut numbers).map_err(|error| located(error.into(), data))?;
    // The graph last: if it exists, so do its parameters.
    numbers.file.keep()?;
    file.file.keep()
}

fn by_name(output: &Path) -> Result<ModelFormat, Failure> {
    // The formats have the names of the extensions.
    let extension = output.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ModelFormat::from_str(extension, false).map_err(|_| {
        let output = output.display();
        Failure::Usage(format!("{output}: unknown extension; use .onnx or .safetensors, or set --format"))
    })
}

/// The language of a file of features.
fn language(path: &Path) -> Result<Language, Failure> {
    Language::of(path).ok_or_else(|| {
        let path = path.display();
        Failure::Usage(format!("{path}: unknown extension; features are exported as .py or .h"))
    })
}

/// The name of the external data of `output`.
fn external_data_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

fn document(model: &Exportable, written: Option<&Written>, transforms: &[PathBuf]) -> Value {
    // A dimension is a number, or a name if it is free.
    let size = |size: &String| size.parse::<u64>().map_or_else(|_| json!(size), |size| json!(size));
    let port = |Port { name, kind, shape, about }: &Port| {
        let shape: Vec<Value> = shape.iter().map(size).collect();
        json!({ "name": name, "type": kind, "shape": shape, "description": about })
    };
    let ports = |ports: &[Port]| ports.iter().map(port).collect::<Vec<_>>();
    let format = written.and_then(|written| written.format.to_possible_value());
    json!({
        "output": written.map(|written| &written.output),
        "external_data": written.and_then(|written| written.data.as_ref()),
        "format": format.map(|format| format.get_name().to_owned()),
        "transforms": transforms,
        "checkpoint": model.checkpoint(),
        "model": model.trained().kind(),
        "part": model.trained().tower().map(Tower::name),
        "step": model.trained().snapshot.step,
        "parameters": model.trained().numbers(),
        "inputs": written.map_or_else(Vec::new, |written| ports(&written.inputs)),
        "outputs": written.map_or_else(Vec::new, |written| ports(&written.outputs)),
    })
}

fn text(model: &Exportable, written: Option<&Written>, transforms: &[PathBuf]) -> String {
    let exported = format!(
        "{}{} after step {}",
        model.trained().tower().map(|tower| format!("the {} tower of ", tower.name())).unwrap_or_default(),
        model.trained().kind(),
        figures::count(model.trained().snapshot.step),
    );
    let mut lines = String::new();
    for path in transforms {
        lines += &format!("{}: the features of {exported}\n", path.display());
    }
    let Some(Written { output, data, inputs, outputs, .. }) = written else { return lines };
    let parameters = figures::count(model.trained().numbers());
    lines += &format!("{}: {exported}, {parameters} parameters\n", output.display());
    if let Some(data) = data {
        lines += &format!("{}: its parameters; keep both files together\n", data.display());
    }
    let mut table = Table::default();
    for (label, ports) in [("input", inputs), ("output", outputs)] {
        for Port { name, kind, shape, about } in ports {
            table.row([label, name, &format!("{kind} [{}]", shape.join(", ")), about]);
        }
    }
    lines + &table.render()
}

fn located(error: anyhow::Error, path: &Path) -> Failure {
    Failure::Failed(error.context(format!("writing {}", path.display())))
}

impl Write for InterruptibleFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if *self.interrupted.borrow() {
            return Err(io::Error::other(interrupt::error()));
        }
        self.file.writer().write(&bytes[..bytes.len().min(INTERRUPT_CHECK_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.writer().flush()
    }
}
