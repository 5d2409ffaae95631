//! `init`: a new user's first command writes a job file that `check` accepts and that trains well.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};
use millstream_tests::shell::Shell;
use millstream_tests::table::Table;

const ROWS: usize = 3_000;

/// The AUC that the job of examples/census must exceed without a change by hand.
const CENSUS_AUC: f64 = 0.915;

#[test]
fn the_census_data_trains_well_without_a_change() {
    let place = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/census/data");
    let shell = Shell::new(place.path());
    let init = shell.run(&["init", data.to_str().unwrap(), "--output", "census.toml"]).with_code(0);
    assert!(
        init.stdout.contains("label: income = >50K (") && init.stdout.contains("next:"),
        "{}",
        init.stdout
    );
    let text = fs::read_to_string(place.path().join("census.toml")).unwrap();
    for part in ["positive = \">50K\"", "missing = [\"?\"]", "adult-test.parquet\"]", "age_bucket"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let _ = shell.run(&["check", "census.toml"]).with_code(0);
    let outcome = shell.run(&["train", "census.toml", "--json"]).with_code(0).json();
    let auc = outcome["eval"]["auc"].as_f64().unwrap();
    assert!(auc > CENSUS_AUC, "{auc}");

    let again = shell.run(&["init", data.to_str().unwrap(), "--output", "census.toml"]).with_code(2).stderr;
    assert!(again.contains("census.toml exists; --force replaces it"), "{again}");
    let printed = shell.run(&["init", data.to_str().unwrap()]).with_code(0).stdout;
    assert!(printed.contains("[model]"), "{printed}");
}

#[test]
fn unusual_columns_are_left_out_and_named() {
    let place = tempfile::tempdir().unwrap();
    let texts = |of: &dyn Fn(usize) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..ROWS).map(of)))
    };
    let clicked: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| row % 3 % 2)));
    let moments = TimestampMicrosecondArray::from_iter_values(0..ROWS as i64).with_timezone("UTC");
    let nothing: ArrayRef = Arc::new(Float64Array::from(vec![None; ROWS]));
    let seconds: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..ROWS as i64).map(|row| 1_790_000_000 + 61 * row)));
    let weight: ArrayRef =
        Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| 0.5 + (row % 9) as f64 / 4.0)));
    Table::of(vec![
        ("clicked", clicked),
        ("odd name, \"quoted\"", texts(&|row| format!("v{}", row % 50))),
        ("\u{e9}t\u{e9}", texts(&|row| format!("\u{e9}{}", row % 5))),
        ("at", Arc::new(moments)),
        ("nothing", nothing),
        ("seconds", seconds),
        ("weight", weight),
        ("note", texts(&|row| format!("note {row}"))),
        ("constant", texts(&|_| "x\ny".to_owned())),
    ])
    .write_parquet(&place.path().join("clicks.parquet"));
    let shell = Shell::new(place.path());
    let init = shell.run(&["init", "clicks.parquet", "-o", "job.toml", "--json"]).with_code(0).json();
    assert_eq!((&init["label"], &init["features"]), (&"clicked".into(), &2.into()));
    assert_eq!(
        init["left_out"],
        serde_json::json!(["at", "nothing", "seconds", "weight", "note", "constant"])
    );
    let outcome = shell.run(&["train", "job.toml", "--set", "data.epochs=1", "--json"]).with_code(0).json();
    let held_out = outcome["eval"]["examples"].as_u64().unwrap();
    assert!((400..800).contains(&held_out), "a fifth of the rows is held out: {outcome:#}");
    let text = fs::read_to_string(place.path().join("job.toml")).unwrap();
    let enabled = text.replace("\n#weight = ", "\nweight = ");
    assert_ne!(enabled, text);
    fs::write(place.path().join("weighted.toml"), enabled).unwrap();
    let weighted = ["train", "weighted.toml", "--set", "data.epochs=1", "--json"];
    let weighted = shell.run(&weighted).with_code(0).json();
    assert_ne!(weighted["eval"]["log_loss"], outcome["eval"]["log_loss"], "the weights count");

    fs::write(place.path().join("a.csv"), "age,income\n39,1\n").unwrap();
    let text = shell.run(&["init", "a.csv"]).with_code(2).stderr;
    assert!(text.contains("millstream convert 'a.csv' data.parquet"), "{text}");
    let label = shell.run(&["init", "clicks.parquet", "--label", "click"]).with_code(2).stderr;
    assert!(label.contains("no column `click`; there are `clicked`"), "{label}");
}

/// A file as spreadsheets write it where the comma is the decimal mark, with a line that is cut off.
#[test]
fn each_message_on_the_way_from_a_spreadsheet_leads_to_the_next_command() {
    let place = tempfile::tempdir().unwrap();
    let line = |row: usize| {
        let (price, bought) = (f64::from((row * 7919 % 9000) as u32) / 100.0, ["nein", "ja"][row % 7 / 6]);
        format!("K{row:05};{};{}\r\n", format!("{price:.2}").replace('.', ","), bought)
    };
    let lines: String = (0..ROWS).map(line).collect();
    fs::write(place.path().join("orders.csv"), format!("order;price;bought\r\n{lines}K9;1,0\r\n")).unwrap();
    let shell = Shell::new(place.path());
    let refused = shell.run(&["convert", "orders.csv", "orders.parquet"]).with_code(1).stderr;
    assert!(refused.contains("line 3002") && refused.contains("--skip-bad-lines skips"), "{refused}");
    let convert = ["convert", "orders.csv", "orders.parquet", "--skip-bad-lines"];
    let converted = shell.run(&convert).with_code(0);
    assert_eq!(converted.stdout, "wrote 3,000 rows to orders.parquet\n");
    assert!(converted.stderr.contains("1 bad line was skipped"), "{}", converted.stderr);
    let none = shell.run(&["init", "orders.parquet"]).with_code(1).stderr;
    assert!(none.contains("millstream convert --type 'price=number:,'"), "{none}");
    let _ = shell.run(&[&convert[..], &["--type", "price=number:,"]].concat()).with_code(0);
    let init = shell.run(&["init", "orders.parquet", "-o", "job.toml"]).with_code(0);
    assert!(init.stdout.contains("label: bought = ja ("), "{}", init.stdout);
    assert!(init.stdout.contains("\nleft out: order (the file says why)\n"), "{}", init.stdout);
    let text = fs::read_to_string(place.path().join("job.toml")).unwrap();
    assert!(text.contains("price = { kind = \"numeric\""), "{text}");
}
