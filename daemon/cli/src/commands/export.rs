//! `millstream export`: a trained model for other programs.
//!
//! The daemon is asked where a job is; the checkpoint is read here, and the file written here, so that a model of
//! many gigabytes is in nobody's memory but this command's.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use millstream_control::{Client, ClientError};
use millstream_daemon::export::Exportable;
use millstream_daemon::trainer::export::onnx::{OnnxModel, Port};
use millstream_daemon::trainer::export::{ExportError, Tower};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::arguments::{Export, ModelFormat, ModelPart};
use crate::context::Context;
use crate::failure::Failure;
use crate::table::Table;
use crate::unfinished::Unfinished;
use crate::{figures, interrupt};

/// Bytes written between two looks at whether it is to be called off.
const BYTES_BETWEEN_LOOKS: usize = 8 << 20;

/// What was written.
struct Written {
    /// The file of external data, if there is one.
    data: Option<PathBuf>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// A file that refuses more once the command is called off.
struct Watched<'a, F> {
    file: Unfinished,
    is_interrupted: &'a F,
}

pub(crate) fn run(arguments: &Export, context: &Context) -> Result<(), Failure> {
    let Export { target, output, format, best, part, external_data } = arguments;
    let format = format.map_or_else(|| by_name(output), Ok)?;
    if *external_data && format != ModelFormat::Onnx {
        return Err(Failure::Usage("--external-data is for ONNX".to_owned()));
    }
    let runtime = Runtime::new()?;
    let interrupted = interrupt::listen_on(&runtime)?;
    let directory = runtime.block_on(interrupt::unless(interrupted.clone(), locate(target, context)))?;
    let is_interrupted = || *interrupted.borrow();
    let tower = part.map(|part| match part {
        ModelPart::Query => Tower::Query,
        ModelPart::Item => Tower::Item,
    });
    let model = Exportable::open(&directory, *best, tower)?;
    if is_interrupted() {
        return Err(called_off().into());
    }
    let create = |path: &Path| {
        Ok::<_, Failure>(Watched { file: Unfinished::create(path)?, is_interrupted: &is_interrupted })
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
            let data = (*external_data || !onnx.is_embeddable()).then(|| beside(output));
            write_onnx(&onnx, output, data.as_deref(), create)?;
            Written { data, inputs: onnx.inputs(), outputs: onnx.outputs() }
        }
    };
    if !model.left_out().is_empty() {
        let names = model.left_out().join(", ");
        context.screen.warning(&format!("vocabularies too long to be told in the file: {names}"));
    }
    context.answer(&document(&model, output, format, &written), || text(&model, output, &written))
}

/// Writes the graph, and its numbers into `data` if they go there.
fn write_onnx<'a, F: Fn() -> bool + 'a>(
    onnx: &OnnxModel,
    output: &Path,
    data: Option<&Path>,
    create: impl Fn(&Path) -> Result<Watched<'a, F>, Failure>,
) -> Result<(), Failure> {
    let mut file = create(output)?;
    let Some(data) = data else {
        onnx.write(&mut file).map_err(|error| located(error, output))?;
        return file.file.keep();
    };
    let Some(name) = data.file_name().and_then(|name| name.to_str()) else {
        return Err(Failure::Usage(format!("{}: external data needs a name that is UTF-8", data.display())));
    };
    let mut numbers = create(data)?;
    onnx.write_external(&mut file, name, &mut numbers).map_err(|error| located(error, data))?;
    // The graph last: where it is, its numbers are.
    numbers.file.keep()?;
    file.file.keep()
}

/// Where a job's checkpoints are, or a directory that is no job's id.
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
        Some(Ok(job)) if job.checkpoint.is_empty() => format!("job {target} has no checkpoint yet"),
        Some(Ok(job)) => return Ok(job.directory.into()),
        None | Some(Err(ClientError::NotFound(_))) if Path::new(target).is_dir() => {
            return Ok(std::env::current_dir()?.join(target));
        }
        None => format!("`{target}` is neither a job nor a checkpoint's directory"),
        // There is none of this id, or there are several that begin so.
        Some(Err(ClientError::NotFound(message))) => {
            format!("{message}; nor is there a directory of that name")
        }
        Some(Err(error)) => return Err(error.into()),
    };
    Err(Failure::Failed(anyhow::anyhow!(message)))
}

fn by_name(output: &Path) -> Result<ModelFormat, Failure> {
    match output.extension().and_then(|extension| extension.to_str()) {
        Some("onnx") => Ok(ModelFormat::Onnx),
        Some("safetensors") => Ok(ModelFormat::Safetensors),
        _ => Err(Failure::Usage(format!(
            "{}: its name does not say what to write; end it in .onnx or .safetensors, or give --format",
            output.display()
        ))),
    }
}

/// The file of external data that belongs to `output`.
fn beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

fn document(model: &Exportable, output: &Path, format: ModelFormat, written: &Written) -> Value {
    // A dimension is a number, or a name where it is free.
    let size = |size: &String| size.parse::<u64>().map_or_else(|_| json!(size), |size| json!(size));
    let port = |Port { name, kind, shape, about }: &Port| {
        let shape: Vec<Value> = shape.iter().map(size).collect();
        json!({ "name": name, "type": kind, "shape": shape, "description": about })
    };
    let ports = |ports: &[Port]| ports.iter().map(port).collect::<Vec<_>>();
    let format = match format {
        ModelFormat::Onnx => "onnx",
        ModelFormat::Safetensors => "safetensors",
    };
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
        lines += &format!("{}: its numbers, to be kept beside it\n", data.display());
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

fn called_off() -> anyhow::Error {
    anyhow::anyhow!("interrupted")
}

impl<F: Fn() -> bool> Write for Watched<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.is_interrupted)() {
            return Err(io::Error::other(called_off()));
        }
        self.file.writer.write(&bytes[..bytes.len().min(BYTES_BETWEEN_LOOKS)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.writer.flush()
    }
}
