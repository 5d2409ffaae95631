//! The job reference, `examples/job-reference.toml`, is complete and correct.

use super::*;

/// The sample job that documents every key.
const REFERENCE: &str = include_str!("../../../../examples/job-reference.toml");

#[test]
fn the_reference_parses_and_states_the_defaults() {
    let (plain, warnings) = parse(REFERENCE, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, []);
    let is_default =
        |line: &str| line.strip_prefix('#').is_some_and(|rest| rest.starts_with(char::is_alphabetic));
    let all: String = REFERENCE
        .lines()
        .map(|line| if is_default(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") })
        .collect();
    assert!(REFERENCE.lines().filter(|line| is_default(line)).count() > 20);
    let (spelled_out, _) = parse(&all, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Job { text: String::new(), ..spelled_out }, Job { text: String::new(), ..plain });
}

/// The reference with each model that it has only in comments; and with that model's kind and features alone.
fn other_models() -> Vec<(String, String)> {
    let (before, after) = REFERENCE.split_once("\n[model]\n").unwrap();
    let (models, after) = after.split_once("\n[training]\n").unwrap();
    let lines = models.lines().filter_map(|line| line.strip_prefix("#> "));
    let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
    let models = lines.split("[model]\n").skip(1).map(|model| {
        let job = |model: &str| format!("{before}\n[model]\n{model}\n[training]\n{after}");
        let needed = model.lines().filter(|line| {
            line.starts_with("kind = ") || line.contains("features = ") || line.starts_with("sequences = ")
        });
        let bare: String = needed.flat_map(|line| [line, "\n"]).collect();
        // A two-tower model, whose loss spans whole batches.
        let allowed = |job: String| match model.contains("\"two_tower\"") {
            true => job.replace("\nmicro_batch_size = 1024\n", "\n").replace("\nreproducible = 8\n", "\n"),
            false => job,
        };
        (allowed(job(model)), allowed(job(&bare)))
    });
    models.collect()
}

#[test]
fn every_model_of_the_reference_parses_and_states_the_defaults() {
    let models = other_models();
    assert_eq!(models.len(), 8);
    for (text, bare) in models {
        let (job, _) = parse(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (bare, _) = parse(&bare, &[]).unwrap();
        assert_eq!(job.model, bare.model);
    }
}

#[test]
fn the_reference_documents_every_key() {
    let path = Path::new("job.toml");
    let jobs = other_models().into_iter().map(|(text, _)| text).chain([REFERENCE.to_owned()]);
    let known: Vec<Vec<Known>> = jobs
        .map(|text| {
            let problems = Problems::new(path, &text, &[]);
            read_job(&Table::parse(&text, &[], &JOB_FILE, &problems), path, &open_regular_file, &problems);
            problems.all_known()
        })
        .collect();
    assert!(known.iter().all(|known| known.len() > 50), "{known:?}");
    for Known { section, key } in known.into_iter().flatten() {
        let written =
            [format!("\n{key} = "), format!("\n#{key} = "), format!("\n#> {key} = "), format!("`{key}`")];
        let header = format!("[{}{key}", section.map(|path| path + ".").unwrap_or_default());
        let headers = [format!("\n{header}"), format!("\n#> {header}")];
        assert!(
            headers.iter().chain(&written).any(|text| REFERENCE.contains(text)),
            "`{key}` is not in the reference"
        );
    }
}
