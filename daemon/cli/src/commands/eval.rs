//! `millstream eval`: evaluates a trained model on held-out data.

use std::path::Path;

use millstream_control::proto::{ScoreRequest, TextLayout};

use super::trials;
use crate::arguments::{Fields, Layout, Place, Scored};
use crate::connection::Connection;
use crate::context::Context;
use crate::failure::Failure;
use crate::standard_input::StandardInput;
use crate::table::Table;
use crate::{figures, interrupt};

pub(crate) async fn run(arguments: Scored, context: &Context) -> Result<(), Failure> {
    let place = arguments.place;
    let request = request(arguments)?;
    let evaluate =
        async |connection: &mut Connection, request| Ok(connection.client.evaluate(request).await?);
    let evaluated = with_connection((request, None), place, context, evaluate).await?;
    context.answer(&evaluated, || {
        let mut table = Table::default();
        figures::metric_rows(&mut table, "", &evaluated.metrics);
        table.render()
    })
}

/// Calls `score` with a connection for `request`, until it ends or a signal is received. In both cases the connection is closed: what a
/// daemon in this process has copied from a bucket is removed. The scores are written to `output`, if there is any.
pub(super) async fn with_connection<T>(
    (mut request, output): (ScoreRequest, Option<&Path>),
    place: Place,
    context: &Context,
    score: impl AsyncFnOnce(&mut Connection, ScoreRequest) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let interrupted = interrupt::listen()?;
    let connect = async {
        let input = StandardInput::spooled(&mut request, output).await?;
        Ok((input, Connection::at(place, context).await?))
    };
    let (_input, mut connection) = interrupt::unless(interrupted.clone(), connect).await?;
    let scored = interrupt::unless(interrupted, async {
        trials::choose_best(&mut request, &mut connection.client, context).await?;
        score(&mut connection, request).await
    });
    let scored = scored.await;
    connection.close().await;
    scored
}

/// The score request. Relative paths start in the working directory.
pub(super) fn request(scored: Scored) -> Result<ScoreRequest, Failure> {
    let base = std::env::current_dir()?;
    let Some(base) = base.to_str() else {
        return Err(Failure::Usage(format!("the working directory {} is not UTF-8", base.display())));
    };
    let Scored { target, data, best, place: _, layout } = scored;
    let Layout { fields: Fields { delimiter, columns }, missing, separators, skip_bad_lines } = layout;
    let text = TextLayout {
        delimiter: delimiter.map(char::from).map(String::from).unwrap_or_default(),
        columns: columns.unwrap_or_default(),
        missing,
        separators: separators.into_iter().collect(),
    };
    Ok(ScoreRequest {
        target,
        data,
        base: base.to_owned(),
        best,
        text: Some(text),
        keep: Vec::new(),
        skip_bad_rows: skip_bad_lines,
    })
}
