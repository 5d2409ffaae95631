//! `millstream trials`: the trials of a search.

use std::time::Duration;

use millstream_control::Client;
use millstream_control::proto::{ScoreRequest, Trial, TrialsReply, TrialsRequest};

use crate::arguments::SearchTrials;
use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::plot::{Line, Parallel, parallel_svg};
use crate::table::Table;

/// Significant digits of a parameter in the table.
const DIGITS: usize = 4;

pub(crate) async fn run(arguments: SearchTrials, context: &Context) -> Result<(), Failure> {
    let id = arguments.job.id;
    let request = TrialsRequest { id, best_job: arguments.best };
    let reply = to_daemon(context).await?.trials(request).await?;
    if let Some(path) = arguments.plot {
        std::fs::write(&path, parallel_svg(&picture(&reply)))
            .map_err(|error| Failure::Usage(format!("cannot write {}: {error}", path.display())))?;
        context.screen.note(&format!("wrote {}", path.display()));
    }
    if !arguments.best {
        return context.answer(&reply, || table(&reply));
    }
    match &reply.best_job {
        Some(job) if !context.json => context.print(job),
        Some(_) => context.document(&reply),
        None => Err(Failure::Usage("no trial has been evaluated yet".to_owned())),
    }
}

/// The table of a search's trials, if the job is a search.
pub(super) async fn of_search(client: &mut Client, id: &str) -> Option<String> {
    let request = TrialsRequest { id: id.to_owned(), best_job: false };
    client.trials(request).await.ok().map(|reply| table(&reply))
}

/// If the target of `request` is a search, replaces it with the best trial, and says which one it is.
///
/// # Errors
/// When no trial of the search has been evaluated.
pub(super) async fn choose_best(
    request: &mut ScoreRequest,
    client: &mut Client,
    context: &Context,
) -> Result<(), Failure> {
    let of_target = TrialsRequest { id: request.target.clone(), best_job: false };
    // Any other target is an error here, and the score request reports unknown ones.
    let Ok(TrialsReply { search, metric, trials, .. }) = client.trials(of_target).await else {
        return Ok(());
    };
    // The id of a trial also finds its search.
    if !search.starts_with(&request.target) {
        return Ok(());
    }
    let best = trials.into_iter().find(|trial| trial.is_best);
    let Some(Trial { name, job: Some(job), value: Some(value), .. }) = best else {
        return Err(Failure::Failed(anyhow::anyhow!(
            "search {search}: no trial has been evaluated yet; `millstream trials {search}` shows them"
        )));
    };
    let value = figures::metric(value);
    context.screen.note(&format!("{search} is a search; its best trial is {name} ({job}), {metric} {value}"));
    request.target = job;
    Ok(())
}

fn table(reply: &TrialsReply) -> String {
    let mut titles = vec!["TRIAL", "STATE", ">RUNG", ">EVALS", ">STEPS", ">TIME"];
    let metric = format!(">{}", reply.metric.to_uppercase());
    titles.push(&metric);
    let short: Vec<String> = reply.parameters.iter().map(|key| short(key, &reply.parameters)).collect();
    let keys: Vec<String> = short.iter().map(|key| format!(">{key}")).collect();
    titles.extend(keys.iter().map(String::as_str));
    let mut table = Table::with_titles(&titles);
    for trial in &reply.trials {
        let mark = if trial.is_best { " *" } else { "" };
        let mut cells = vec![
            format!("{}{mark}", trial.name),
            trial.state.clone(),
            trial.rungs.to_string(),
            trial.evaluations.to_string(),
            figures::count(trial.steps),
            figures::duration(Duration::from_secs_f64(trial.seconds.max(0.0))),
            trial.value.map_or_else(|| "-".to_owned(), figures::metric),
        ];
        cells.extend(trial.values.iter().map(|value| rounded(value)));
        table.cells(cells);
    }
    let best = reply.trials.iter().find(|trial| trial.is_best);
    let best = best.map_or_else(String::new, |best| {
        format!("\n* the best; `millstream trials {} --best` prints its job file\n", best.search)
    });
    table.render() + &best
}

/// The last part of a key, or more if another key ends the same.
fn short(key: &str, all: &[String]) -> String {
    let parts: Vec<&str> = key.split('.').collect();
    for from in (0..parts.len()).rev() {
        let end = parts[from..].join(".");
        let same = |other: &&String| **other == end || other.ends_with(&format!(".{end}"));
        if all.iter().filter(same).count() == 1 {
            return end;
        }
    }
    key.to_owned()
}

/// A number with a few digits, any other text as it is.
fn rounded(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if text.contains(['.', 'e']) => {
            let digits: f64 = format!("{number:.*e}", DIGITS - 1).parse().unwrap_or(number);
            digits.to_string()
        }
        _ => text.to_owned(),
    }
}

/// One axis per parameter and one for the metric.
fn picture(reply: &TrialsReply) -> Parallel {
    let axes = reply.parameters.iter().map(|key| short(key, &reply.parameters));
    let line = |trial: &Trial| {
        let value = trial.value.map(figures::metric)?;
        let values = trial.values.iter().cloned().chain([value]).collect();
        Some(Line { values, is_best: trial.is_best, is_faint: trial.state != "finished" })
    };
    Parallel {
        title: format!(
            "{}: {} of {}",
            reply.search,
            reply.metric,
            figures::counted(reply.trials.len() as u64, "trial")
        ),
        axes: axes.chain([reply.metric.clone()]).collect(),
        log: reply.log_scales.iter().copied().chain([false]).collect(),
        is_last_better_high: reply.higher_is_better,
        lines: reply.trials.iter().filter_map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> TrialsReply {
        let trial = |name: &str, rate: &str, value, is_best| Trial {
            search: "a-1".into(),
            name: name.into(),
            state: if is_best { "finished" } else { "stopped" }.into(),
            values: vec![rate.into(), "\"adam\"".into()],
            value,
            evaluations: 9,
            rungs: 2,
            steps: 1_200,
            seconds: 3.0,
            is_best,
            ..Trial::default()
        };
        TrialsReply {
            search: "a-1".into(),
            metric: "auc".into(),
            higher_is_better: true,
            parameters: vec!["model.deep.optimizer.learning_rate".into(), "model.deep.optimizer.kind".into()],
            log_scales: vec![true, false],
            trials: vec![
                trial("a-t00", "0.0123456", Some(0.81), false),
                trial("a-t01", "0.1", Some(0.91), true),
                trial("a-t02", "0.2", None, false),
            ],
            best_job: None,
        }
    }

    #[test]
    fn the_table_marks_the_best_trial() {
        let text = table(&reply());
        assert!(text.starts_with("TRIAL"), "{text}");
        assert!(text.contains("LEARNING_RATE") || text.contains("learning_rate"), "{text}");
        let best: Vec<_> = text.lines().filter(|line| line.contains(" * ")).collect();
        assert!(best.len() == 1 && best[0].starts_with("a-t01 *") && best[0].contains("0.9100"), "{text}");
        assert!(text.contains("0.01235"), "{text}");
        assert!(text.contains("`millstream trials a-1 --best`"), "{text}");
    }

    #[test]
    fn the_picture_has_a_line_of_each_evaluated_trial() {
        let svg = parallel_svg(&picture(&reply()));
        assert!(
            svg.contains(">learning_rate</text>")
                && svg.contains(">kind</text>")
                && svg.contains(">auc</text>")
        );
        assert!(svg.contains("a-1: auc of 3 trials"), "{svg}");
        assert_eq!(svg.matches("class=\"trial\"").count(), 2, "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn keys_are_shortened_as_far_as_they_differ() {
        let all =
            ["model.wide.optimizer.kind", "model.deep.optimizer.kind", "data.batch_size"].map(String::from);
        assert_eq!(short(&all[0], &all), "wide.optimizer.kind");
        assert_eq!(short(&all[2], &all), "batch_size");
    }
}
