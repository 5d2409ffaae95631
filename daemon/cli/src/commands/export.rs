//! `millstream export`: exports a trained model.
//!
//! The daemon only reports where the job's checkpoints are. This process reads the checkpoint and writes the file, so
//! a model of many gigabytes never passes through the daemon's memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use millstream_control::{Client, ClientError};
use millstream_daemon::export::Exportable;
use millstream_trainer::export::onnx::{OnnxModel, Port};
use millstream_trainer::export::{ExportError, Tower};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::arguments::{Export, ModelFormat, ModelPart};
use crate::context::Context;
use crate::failure::Failure;
use crate::table::Table;
use crate::unfinished::Unfinished;
use crate::{figures, interrupt};

/// Bytes written between two checks for Ctrl-C.
const INTERRUPT_CHECK_BYTES: usize = 8 << 20;

/// The files written and the interface of the model.
struct Written {
    /// The file of external data, if any.
    data: Option<PathBuf>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// A file whose writes fail after Ctrl-C.
struct InterruptibleFile {
    file: Unfinished,
    interrupted: watch::Receiver<bool>,
}

pub(crate) fn run(arguments: &Export, context: &Context) -> Result<(), Failure> {
    let Export { target, output, format, best, part, external_data } = arguments;
    let format = format.map_or_else(|| by_name(output), Ok)?;
    if *external_data && format != ModelFormat::Onnx {
        return Err(Failure::Usage("--external-data applies only to ONNX".to_owned()));
    }
    let runtime = Runtime::new()?;
    let interrupted = interrupt::listen_on(&runtime)?;
    let directory = runtime.block_on(interrupt::unless(interrupted.clone(), locate(target, context)))?;
    let tower = part.map(|part| match part {
        ModelPart::Query => Tower::Query,
        ModelPart::Item => Tower::Item,
    });
    let model = Exportable::open(&directory, *best, tower)?;
    if *interrupted.borrow() {
        return Err(interrupted_error().into());
    }
    let create = |path: &Path| {
        Unfinished::create(path).map(|file| InterruptibleFile { file, interrupted: interrupted.clone() })
    };
    let written = match format {
        ModelFormat::Safetensors => {
            let mut file = create(output)?;
            model.write_safetensors(&mut file).map_err(|error| located(error, output))?;
            file.file.keep()?;
            Written { data: None, inputs: Vec::new(), outputs: Vec::new() }
        }
        ModelFormat::Onnx => {
            let onnx = model.onnx().map_err(anyhow::Error::from)?;
            let data = (*external_data || !onnx.is_embeddable()).then(|| external_data_path(output));
            write_onnx(&onnx, output, data.as_deref(), create)?;
            Written { data, inputs: onnx.inputs(), outputs: onnx.outputs() }
        }
    };
    if !model.left_out().is_empty() {
        let names = model.left_out().join(", ");
        context.screen.warning(&format!("the file omits vocabularies that are too long: {names}"));
    }
    context.answer(&document(&model, output, format, &written), || text(&model, output, &written))
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
        onnx.write(&mut file).map_err(|error| located(error, output))?;
        return file.file.keep();
    };
    let Some(name) = data.file_name().and_then(|name| name.to_str()) else {
        return Err(Failure::Usage(format!("{}: the name of external data must be UTF-8", data.display())));
    };
    let mut numbers = create(data)?;
    onnx.write_external(&mut file, name, &mut numbers).map_err(|error| located(error, data))?;
    // The graph last: if it exists, so do its parameters.
    numbers.file.keep()?;
    file.file.keep()
}

/// The checkpoint directory of a job, or `target` itself if it is a directory.
async fn locate(target: &str, context: &Context) -> Result<PathBuf, Failure> {
    let known = match context.socket() {
        Some(socket) => match Client::connect(socket).await {
            Ok(mut client) => Some(client.show(target).await),
            Err(ClientError::NoDaemon { .. }) => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
    let message = match known {
        Some(Ok(job)) if job.checkpoint.is_none() => format!("job {target} has no checkpoint yet"),
        Some(Ok(job)) => return Ok(job.directory.into()),
        None | Some(Err(ClientError::NotFound(_))) if Path::new(target).is_dir() => {
            return Ok(std::env::current_dir()?.join(target));
        }
        None => format!("`{target}` is neither a job nor a checkpoint's directory"),
        // No job has this id, or several share the prefix.
        Some(Err(ClientError::NotFound(message))) => {
            format!("{message}, and no directory has that name")
        }
        Some(Err(error)) => return Err(error.into()),
    };
    Err(Failure::Failed(anyhow::anyhow!(message)))
}

fn by_name(output: &Path) -> Result<ModelFormat, Failure> {
    // The formats have the names of the extensions.
    let extension = output.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ModelFormat::from_str(extension, false).map_err(|_| {
        let output = output.display();
        Failure::Usage(format!("{output}: unknown extension; use .onnx or .safetensors, or set --format"))
    })
}

/// The name of the external data of `output`.
fn external_data_path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

fn document(model: &Exportable, output: &Path, format: ModelFormat, written: &Written) -> Value {
    // A dimension is a number, or a name if it is free.
    let size = |size: &String| size.parse::<u64>().map_or_else(|_| json!(size), |size| json!(size));
    let port = |Port { name, kind, shape, about }: &Port| {
        let shape: Vec<Value> = shape.iter().map(size).collect();
        json!({ "name": name, "type": kind, "shape": shape, "description": about })
    };
    let ports = |ports: &[Port]| ports.iter().map(port).collect::<Vec<_>>();
    let format = format.to_possible_value().map(|format| format.get_name().to_owned());
    json!({
        "output": output,
        "external_data": written.data,
        "format": format,
        "checkpoint": model.checkpoint(),
        "model": model.trained().kind(),
        "part": model.trained().tower().map(Tower::name),
        "step": model.trained().snapshot.step,
        "parameters": model.trained().numbers(),
        "inputs": ports(&written.inputs),
        "outputs": ports(&written.outputs),
    })
}

fn text(model: &Exportable, output: &Path, written: &Written) -> String {
    let mut lines = format!(
        "{}: {}{} after step {}, {} parameters\n",
        output.display(),
        model.trained().tower().map(|tower| format!("the {} tower of ", tower.name())).unwrap_or_default(),
        model.trained().kind(),
        figures::count(model.trained().snapshot.step),
        figures::count(model.trained().numbers()),
    );
    if let Some(data) = &written.data {
        lines += &format!("{}: its parameters; keep both files together\n", data.display());
    }
    let mut table = Table::default();
    for (label, ports) in [("input", &written.inputs), ("output", &written.outputs)] {
        for Port { name, kind, shape, about } in ports {
            table.row([label, name, &format!("{kind} [{}]", shape.join(", ")), about]);
        }
    }
    lines + &table.render()
}

fn located(error: ExportError, path: &Path) -> Failure {
    let error = anyhow::Error::from(error);
    Failure::Failed(error.context(format!("writing {}", path.display())))
}

fn interrupted_error() -> anyhow::Error {
    anyhow::anyhow!("interrupted")
}

impl Write for InterruptibleFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if *self.interrupted.borrow() {
            return Err(io::Error::other(interrupted_error()));
        }
        self.file.writer.write(&bytes[..bytes.len().min(INTERRUPT_CHECK_BYTES)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.writer.flush()
    }
}
