//! `millstream generate`: writes a click log whose best possible AUC is known.

use millstream_tools::generate::{self, Generated};
use serde_json::json;

use crate::arguments::{Generate, IdForm};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::files::{FileWork, Goal};
use crate::table::Table;

pub(crate) fn run(arguments: Generate, context: &Context) -> Result<(), Failure> {
    let rows = arguments.rows;
    let generator = generate::Generator {
        rows,
        first_row: arguments.first_row,
        seed: arguments.seed,
        ids: match arguments.ids {
            IdForm::Hex => generate::IdForm::Hex,
            IdForm::Integer => generate::IdForm::Integer,
        },
        max_values: arguments.most_values,
        output: arguments.output,
        options: arguments.written.into(),
    };
    let work = FileWork::start(context, "generating")?;
    let goal = Goal { files: None, rows: Some(rows) };
    let generated = work.run(goal, |destination, progress| generator.run(destination, progress))?;
    let best = &generated.best;
    let document = json!({
        "files": generated.files,
        "rows": generated.rows,
        "bytes": generated.bytes,
        "best": {
            "auc": best.auc,
            "expected_auc": best.expected_auc,
            "log_loss": best.log_loss,
            "positives": best.positives,
        },
    });
    context.answer(&document, || describe(&generated))
}

fn describe(Generated { files, rows, bytes, best }: &Generated) -> String {
    let mut table = Table::default();
    let written = match files.as_slice() {
        [file] => file.clone(),
        [first, .., last] => format!("{} files, {first} to {last}", files.len()),
        [] => "none".to_owned(),
    };
    table.row(["files", &written]);
    table.row(["rows", &figures::count(*rows)]);
    table.row(["size", &figures::bytes(*bytes)]);
    table.row(["positives", &figures::percent(best.positives as f64 / *rows as f64)]);
    table.row(["best AUC", &figures::metric(best.auc)]);
    table.row(["best log loss", &figures::metric(best.log_loss)]);
    table.render()
}
