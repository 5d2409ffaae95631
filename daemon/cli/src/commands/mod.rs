//! The commands, one per file.

mod audit;
mod bench;
mod cancel;
pub(crate) mod check;
mod checkpoint;
mod convert;
mod dataset;
mod doctor;
mod documents;
mod eval;
mod explain;
mod export;
mod feeds;
mod generate;
mod history;
mod init;
mod inspect;
mod lineage;
mod list;
mod logs;
mod metrics;
mod peers;
mod predict;
mod profile;
mod remove;
mod rerun;
mod resume;
mod show;
mod submit;
mod train;
mod trials;
mod wait;
mod web;

pub(crate) use history::plot_of;

use tokio::runtime::Runtime;

use crate::arguments::{Bench, Command, Dataset};
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::top;

/// Runs a command.
pub(crate) fn run(command: Command, context: &Context) -> Result<(), Failure> {
    if !cleans_up(&command) {
        interrupt::end_at_once()?;
    }
    match command {
        Command::Init(arguments) => init::run(arguments, context),
        Command::Train(arguments) => on_runtime(train::run(arguments, context)),
        Command::Check(arguments) => check::run(&arguments, context),
        Command::Doctor(arguments) => doctor::run(&arguments, context),
        Command::Submit(arguments) => on_runtime(submit::run(arguments, context)),
        Command::List(arguments) => on_runtime(list::run(arguments, context)),
        Command::Wait(arguments) => on_runtime(wait::wait(arguments, context)),
        Command::Watch(arguments) => on_runtime(wait::watch(arguments, context)),
        Command::Show(arguments) => on_runtime(show::run(arguments, context)),
        Command::Explain(arguments) => on_runtime(explain::run(arguments, context)),
        Command::Profile(arguments) => on_runtime(profile::run(arguments, context)),
        Command::History(arguments) => on_runtime(history::run(arguments, context)),
        Command::Trials(arguments) => on_runtime(trials::run(arguments, context)),
        Command::Logs(arguments) => on_runtime(logs::run(arguments, context)),
        Command::Cancel(arguments) => on_runtime(cancel::run(arguments, context)),
        Command::Pause(arguments) => on_runtime(cancel::pause(arguments, context)),
        Command::Resume(arguments) => on_runtime(resume::run(arguments, context)),
        Command::Remove(arguments) => on_runtime(remove::run(arguments, context)),
        Command::Checkpoint(arguments) => on_runtime(checkpoint::run(arguments, context)),
        Command::Top(arguments) => on_runtime(top::run(arguments, context)),
        Command::Lineage(arguments) => lineage::run(&arguments, context),
        Command::Rerun(arguments) => on_runtime(rerun::run(arguments, context)),
        Command::Web(arguments) => on_runtime(web::run(arguments, context)),
        Command::Audit(arguments) => on_runtime(audit::run(arguments, context)),
        Command::Peers(arguments) => peers::run(arguments, context),
        Command::Feeds => on_runtime(feeds::run(context)),
        Command::Metrics(arguments) => on_runtime(metrics::run(arguments, context)),
        Command::Eval(arguments) => on_runtime(eval::run(arguments, context)),
        Command::Export(arguments) => export::run(&arguments, context),
        Command::Inspect(arguments) => inspect::run(arguments, context),
        Command::Convert(arguments) => convert::run(arguments, context),
        Command::Generate(arguments) => generate::run(arguments, context),
        Command::Dataset(command) => dataset::run(command, context),
        Command::Bench(Bench::Ingest(arguments)) => bench::ingest(&arguments, context),
        Command::Predict(arguments) => on_runtime(predict::run(arguments, context)),
        Command::Completions(arguments) => documents::completions(&arguments),
        Command::ManPages(arguments) => documents::man_pages(&arguments),
    }
}

/// Whether the command handles signals itself, because it must clean up files, a job or the terminal.
fn cleans_up(command: &Command) -> bool {
    use Command as C;
    match command {
        C::Train(_) | C::Check(_) | C::Profile(_) | C::Eval(_) | C::Export(_) | C::Predict(_) => true,
        C::Top(_) => true,
        C::Lineage(_) | C::Init(_) | C::Inspect(_) | C::Convert(_) | C::Generate(_) => true,
        C::Dataset(command) => matches!(command, Dataset::Register(_)),
        C::Doctor(_) | C::Submit(_) | C::List(_) | C::Wait(_) | C::Watch(_) | C::Show(_) => false,
        C::Feeds | C::Explain(_) | C::History(_) | C::Trials(_) | C::Completions(_) | C::ManPages(_) => false,
        C::Logs(_)
        | C::Cancel(_)
        | C::Pause(_)
        | C::Resume(_)
        | C::Remove(_)
        | C::Checkpoint(_)
        | C::Audit(_)
        | C::Metrics(_)
        | C::Peers(_)
        | C::Web(_)
        | C::Rerun(_)
        | C::Bench(_) => false,
    }
}

fn on_runtime(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = Runtime::new()?;
    let result = runtime.block_on(work);
    // Reads in flight may remain; nothing needs their results.
    runtime.shutdown_background();
    result
}
