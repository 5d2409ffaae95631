"""onnxruntime, ONNX's checker, safetensors and pyarrow read the output of `millstream export` and `predict`.

Every kind of model is trained for some steps and exported. onnxruntime then scores the evaluation data, with ids
computed here from the feature descriptions in the exported file. The scores must match those of `predict`.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_export.py -v
"""

import csv
import gzip
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import safetensors.numpy
import tensorflow as tf
from safetensors import safe_open

from support import MILLSTREAM, WithoutDaemon, millstream

TRAIN_ROWS, ROWS, BATCH, MAX_TAGS, IMAGE = 4096, 1500, 64, 5, 3
TOLERANCE = 1e-6
COLOURS = ["red", "green", "blue", "ünï", "black"]
ZONES = [0, 10, 20]

FEATURES = f"""
age = {{ kind = "numeric", normalize = "zscore", missing = "mean" }}
income = {{ kind = "numeric", normalize = "log1p_zscore", missing = 0 }}
at = {{ kind = "numeric", normalize = "minmax" }}
flat = {{ kind = "numeric", normalize = "zscore" }}
plain = {{ kind = "numeric" }}
image = {{ kind = "vector", size = {IMAGE}, missing = 0.5 }}
colour = {{ kind = "vocabulary", terms = {json.dumps(COLOURS[:4])} }}
seen = {{ kind = "vocabulary", column = "colour" }}
place = {{ kind = "identity", buckets = 50 }}
zone = {{ kind = "bucketized", column = "age", boundaries = {ZONES} }}
by_hash = {{ kind = "hashed", column = "colour", buckets = 20 }}
both = {{ kind = "crossed", columns = ["colour", "place"], buckets = 40 }}
tags = {{ kind = "identity", buckets = 30, multi = true, maximum = {MAX_TAGS} }}
main = {{ kind = "identity", buckets = 30 }}
marks = {{ kind = "identity", buckets = 30, column = "tags", multi = true, maximum = {MAX_TAGS - 1}, weights = "tag_weights" }}
"""
NUMBERS = ["age", "income", "image", "at", "flat", "plain"]
IDS = ["colour", "seen", "place", "zone", "tags"]
HASHED = ["by_hash", "both"]
# Shares its ids with the tags.
SHARING = ["main"]
# The tags with weights, truncated to one less.
MARKS = ["marks"]


def listed(names) -> str:
    return json.dumps(names)


def deep(kind: str, *more: str, pooling="mean", features=NUMBERS + IDS) -> str:
    keys = [f'kind = "{kind}"', f"features = {listed(features)}", "embedding_dim = 8", f'pooling = "{pooling}"']
    return "\n".join([*keys, *more])


HIDDEN = "hidden = [16, 8]"
CROSS = ["cross_layers = 2"]
WIDTHS = ['embeddings.place.dim = "auto"', "embeddings.zone.dim = 3"]
SHARED = ['embeddings.marks = { features = ["main", "tags"], pooling = "sqrtn", init = "uniform_by_rows" }']
INTERESTS = 'sequences = [{ history = "tags", target = "main" }]'
MODELS = {
    "linear": f'kind = "linear"\nfeatures = {listed(NUMBERS + IDS)}',
    "linear_of_ids": f'kind = "linear"\nfeatures = {listed(["tags", "place"])}',
    "wide_deep": "\n".join(
        [
            'kind = "wide_deep"',
            f'wide.features = {listed(["colour", "tags", "plain"])}',
            # The numbers in another order, and not all of them.
            f'deep.features = {listed(["plain", "tags", "age", "place", "income"])}',
            "deep.embedding_dim = 4",
            "deep.hidden = [16]",
            'deep.pooling = "sqrtn"',
        ]
    ),
    "mlp": deep("mlp", HIDDEN, pooling="sum"),
    "mlp_of_maxima": deep("mlp", HIDDEN, pooling="max"),
    "mlp_of_normalized_layers": deep("mlp", HIDDEN, 'normalization = "layer"', "dropout = 0.1"),
    "mlp_of_normalized_batches": deep("mlp", HIDDEN, 'normalization = "batch"'),
    "mlp_of_hashes": f'kind = "mlp"\nfeatures = {listed(HASHED)}\nembedding_dim = 4\n{HIDDEN}',
    "mlp_of_numbers": f'kind = "mlp"\nfeatures = {listed(NUMBERS)}\nembedding_dim = 4\n{HIDDEN}',
    "mlp_of_tables": deep("mlp", HIDDEN, *WIDTHS, *SHARED, features=NUMBERS + IDS + SHARING),
    "deepfm_of_a_shared_table": deep("deepfm", HIDDEN, *SHARED, features=SHARING + NUMBERS + IDS),
    "deepfm": deep("deepfm", HIDDEN, pooling="sqrtn"),
    "dcn_full_stacked": deep("dcn_v2", *CROSS, 'structure = "stacked"', HIDDEN),
    "dcn_full_parallel": deep("dcn_v2", *CROSS, 'structure = "parallel"', HIDDEN),
    "dcn_low_rank_stacked": deep("dcn_v2", *CROSS, "cross_rank = 3", 'structure = "stacked"', HIDDEN),
    "dcn_low_rank_parallel": deep("dcn_v2", *CROSS, "cross_rank = 3", 'structure = "parallel"', HIDDEN),
    "dlrm_dot": deep("dlrm", "bottom = [16]", "top = [16]", 'interaction = "dot"'),
    "dlrm_of_a_shared_table": deep("dlrm", *SHARED, 'interaction = "dot"', features=SHARING + NUMBERS + IDS),
    "dlrm_cross": deep("dlrm", "bottom = [16]", "top = [16]", 'interaction = "cross"', *CROSS, "cross_rank = 4"),
    "mlp_of_a_number": deep("mlp", HIDDEN),
    "mlp_of_a_rate": deep("mlp", HIDDEN),
    "din": deep("din", HIDDEN, INTERESTS, 'normalization = "layer"', features=NUMBERS + IDS + SHARING),
    "din_of_linear_attention": deep("din", HIDDEN, INTERESTS, "attention.hidden = []", features=IDS + SHARING),
    "mmoe": deep("mmoe", "experts = 3", "expert = [16, 8]", "tower = [4]", 'normalization = "layer"'),
    "mmoe_of_one_label": deep("mmoe", "experts = 2", "expert = [8]", "tower = []"),
}
# Multi-class models, with each way to compute logits.
OF_CLASSES = {
    "linear_of_classes": f'kind = "linear"\nfeatures = {listed(["plain", "marks", "place", "age"])}',
    "wide_deep_of_classes": MODELS["wide_deep"],
    "mlp_of_classes": MODELS["mlp"],
    "dcn_of_classes": MODELS["dcn_full_parallel"],
    "dlrm_of_classes": MODELS["dlrm_dot"],
}

for pooling in ["sum", "mean", "sqrtn"]:
    MODELS[f"mlp_weighted_{pooling}"] = deep("mlp", HIDDEN, pooling=pooling, features=MARKS + NUMBERS + IDS)
# Weighted marks are pooled by another rule.
MODELS["deepfm_of_maxima"] = deep(
    "deepfm", HIDDEN, 'embeddings.marks.pooling = "sum"', pooling="max", features=MARKS + NUMBERS + IDS
)
MODELS["linear_weighted"] = f'kind = "linear"\nfeatures = {listed(["plain", "marks"])}'
MODELS["deepfm_weighted"] = deep(
    "deepfm", HIDDEN, 'embeddings.marks = { features = ["main", "marks", "tags"] }', features=SHARING + MARKS + NUMBERS + IDS
)

# Labels other than the default one; and the columns predicted by regression.
CLICKED = '[label]\ncolumn = "clicked"'
LABELS = {
    "mlp_of_a_number": '[label]\ncolumn = "spent"\n[training.loss]\nkind = "mse"',
    "mlp_of_a_rate": '[label]\ncolumn = "visits"\n[training.loss]\nkind = "poisson"',
    "mmoe": """[labels]
clicked = { column = "clicked" }
red = { column = "colour_seen", positive = "red" }
spent = { column = "spent" }
[training.losses]
spent = { kind = "mse", weight = 0.1 }""",
}
NAMES = {"mmoe": ["clicked", "red", "spent"]}
SPENT = {"mlp_of_a_number": "score", "mlp_of_a_rate": "score", "mmoe": "score_spent"}


# The features of each tower.
TOWERS = {"query": ["age", "colour", "tags"], "item": ["tags", "place", "income", "plain"]}
MODELS["two_tower"] = "\n".join(
    [
        'kind = "two_tower"',
        *(f"{name}.features = {listed(features)}" for name, features in TOWERS.items()),
        "dim = 6",
        "temperature = 0.125",
        'item_id = "place"',
        'item.normalization = "batch"',
    ]
)
MODELS["two_tower_of_maxima"] = MODELS["two_tower"] + '\nquery.pooling = "max"'
CLASSES = ["low", "in, between", "high"]
LABELS |= {name: f'[label]\ncolumn = "level"\nclasses = {json.dumps(CLASSES)}' for name in OF_CLASSES}
NAMES |= {name: CLASSES for name in OF_CLASSES}
MODELS["two_tower_of_any_length"] = MODELS["two_tower"].replace("temperature", "normalize = false\ntemperature")


def job(name: str) -> str:
    return f"""name = "{name}"
seed = 5
[data]
train = ["train.parquet"]
eval = ["eval.parquet"]
batch_size = {BATCH}
shuffle_rows = 1024
lanes = 4
{LABELS.get(name, CLICKED)}
[features]{FEATURES}
[model]
{(MODELS | OF_CLASSES)[name]}
[training]
threads = 1
[checkpoint]
directory = "checkpoints"
"""


def table(rows: int, seed: int) -> pa.Table:
    """Rows whose label follows from their columns, including absent values, unknown terms and empty lists."""
    draw = np.random.default_rng(seed)
    age = draw.normal(25, 15, rows)
    income = np.round(draw.lognormal(8, 3, rows)) * draw.choice([1, 1, 1, -1], rows)
    # Times in milliseconds, which as fp32 would be equal for hours.
    at = 1_700_000_000_000 + draw.integers(0, 10_000_000, rows)
    place = draw.integers(0, 50, rows)
    tags = [draw.integers(0, 30, count).tolist() for count in draw.integers(0, MAX_TAGS + 1, rows)]
    colour = draw.integers(0, len(COLOURS), rows)
    weights = [draw.choice([-0.5, 0, 0.25, 1, 3.5], len(row)).tolist() for row in tags]
    odds = age / 20 + place % 7 / 3 + np.array([sum(tag % 3 for tag in row) for row in tags]) / 4 + colour / 3 - 4
    absent = lambda: draw.random(rows) < 0.1
    return pa.table(
        {
            "age": pa.array(age, mask=absent()),
            "income": pa.array(income, mask=absent()),
            "at": at,
            "flat": np.full(rows, 3.5),
            "plain": draw.normal(0, 1, rows).astype(np.float32),
            "image": pa.array(draw.normal(0, 1, (rows, IMAGE)).tolist(), pa.list_(pa.float32(), IMAGE), mask=absent()),
            "colour": pa.array([COLOURS[place] for place in colour], mask=absent()),
            "place": pa.array(place, mask=absent()),
            "tags": tags,
            "tag_weights": pa.array(weights, pa.list_(pa.float64())),
            "colour_seen": [COLOURS[place] for place in colour],
            "spent": odds * 2,
            "visits": np.floor(np.exp(np.minimum(odds / 2, 4))),
            "level": [CLASSES[place] for place in np.digitize(odds, [-1, 2])],
            "main": pa.array(place % 30, mask=place % 7 == 3),
            "clicked": (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64),
        }
    )


def id_of(feature: dict, value) -> int:
    """The id of a value, from the feature's description in an exported file; -1 for an absent value."""
    if value is None:
        return -1
    match feature["kind"]:
        case "vocabulary":
            terms = feature["terms"]
            # A single bucket, which holds all unknown terms.
            assert feature["oov_buckets"] == 1
            return terms.index(value) if value in terms else len(terms)
        case "identity":
            return value
        case "bucketized":
            return sum(boundary <= value for boundary in feature["boundaries"])
    raise AssertionError(feature)


def hashes_of(feature: dict, columns: list) -> list:
    """The ids of a hashed or crossed feature's rows, computed by TensorFlow; -1 where a value is absent."""
    texts = [tf.constant(["" if value is None else str(value) for value in column]) for column in columns]
    if feature["kind"] == "hashed":
        ids = tf.strings.to_hash_bucket_fast(texts[0], feature["buckets"])
    else:
        ids = tf.sparse.cross_hashed([text[:, None] for text in texts], num_buckets=feature["buckets"]).values
    return [-1 if None in row else id for *row, id in zip(*columns, ids.numpy().tolist())]


def input_of(feature: dict, data: pa.Table) -> np.ndarray:
    """The model input of a feature for the rows of `data`."""
    columns = [data[column].to_pylist() for column in feature["columns"]]
    if feature["kind"] in ["hashed", "crossed"]:
        return np.array(hashes_of(feature, columns), dtype=np.int64)[:, None]
    (values,) = columns
    if feature["kind"] == "numeric":
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)[:, None]
    if feature["kind"] == "vector":
        return np.array([[np.nan] * feature["size"] if value is None else value for value in values], dtype=np.float64)
    if feature["maximum"] is None:
        return np.array([id_of(feature, value) for value in values], dtype=np.int64)[:, None]
    values = [row[: feature["maximum"]] for row in values]
    width = max(len(row) for row in values)
    padded = [[id_of(feature, value) for value in row] + [-1] * (width - len(row)) for row in values]
    return np.array(padded, dtype=np.int64)


def weights_of(feature: dict, data: pa.Table) -> np.ndarray:
    """The model input of a feature's weights, with NaN as padding."""
    rows = [row[: feature["maximum"]] for row in data[feature["weights"]].to_pylist()]
    width = max(map(len, rows))
    return np.array([row + [np.nan] * (width - len(row)) for row in rows], dtype=np.float32)


def inputs_of(session: onnxruntime.InferenceSession, features: list, data: pa.Table) -> dict:
    """All model inputs for the rows of `data`."""
    inputs = {feature["name"]: input_of(feature, data) for feature in features}
    for feature in features:
        if feature["weights"]:
            inputs[feature["name"] + "_weights"] = weights_of(feature, data)
    assert {port.name for port in session.get_inputs()} == set(inputs)
    return inputs


class Export(WithoutDaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        pq.write_table(table(TRAIN_ROWS, 1), cls.scratch / "train.parquet")
        cls.data = table(ROWS, 2)
        pq.write_table(cls.data, cls.scratch / "eval.parquet")
        cls.checkpoints = {}
        for name in MODELS | OF_CLASSES:
            file = cls.scratch / f"{name}.toml"
            file.write_text(job(name))
            cls.checkpoints[name] = millstream("train", file)["checkpoint"]

    def predicted(self, name: str, column="score") -> np.ndarray:
        output = self.scratch / f"{name}.parquet"
        assert millstream("predict", self.checkpoints[name], "--output", output)["rows"] == ROWS
        table = pq.read_table(output)
        columns = [f"score_{label}" for label in NAMES.get(name, [])] or ["score"]
        self.assertEqual(table.column_names, columns + ["class"] * (name in OF_CLASSES))
        return table[column].to_numpy()

    def exported(self, name: str, *options):
        """An onnxruntime session of an exported model, its inputs, and the export's report."""
        output = self.scratch / f"{name}{len(options)}.onnx"
        report = millstream("export", self.checkpoints[name], "--output", output, *options)
        onnx.checker.check_model(str(output), full_check=True)
        session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
        features = json.loads(session.get_modelmeta().custom_metadata_map["millstream.features"])
        return session, inputs_of(session, features, self.data), report

    def test_onnxruntime_matches_predict(self):
        self.assertEqual(len(MODELS), 34)
        for name in MODELS:
            with self.subTest(name):
                session, inputs, report = self.exported(name)
                columns = [f"score_{label}" for label in NAMES.get(name, [])] or ["score"]
                for column in columns:
                    (score,) = session.run([column], inputs)
                    expected = self.predicted(name, column)
                    self.assertEqual(score.shape, (ROWS,))
                    self.assertGreater(expected.std(), 0.02, "scores differ between rows")
                    off = np.abs(score - expected).max()
                    print(f"{name}, {column}: off by {off:.1e} at most")
                    if SPENT.get(name) == column or name.startswith("two_tower"):
                        # Without a sigmoid, which scales errors down by at least a factor of 4.
                        self.assertLessEqual(off, 4 * TOLERANCE * max(1, np.abs(expected).max()))
                        continue
                    self.assertLessEqual(off, TOLERANCE)
                    (logit,) = session.run([column.replace("score", "logit")], inputs)
                    np.testing.assert_allclose(1 / (1 + np.exp(-logit)), score, atol=1e-6)
                logits = [column.replace("score", "logit") for column in columns if column != SPENT.get(name)]
                if name.startswith("two_tower"):
                    logits = []
                self.assertEqual({port.name for port in session.get_outputs()}, {*columns, *logits})
                kinds = {port.name: (port.type, port.shape) for port in session.get_inputs()}
                for port in report["inputs"]:
                    self.assertEqual(kinds[port["name"]], (f"tensor({port['type']})", port["shape"]))

    def test_onnxruntime_matches_predict_for_classes(self):
        self.assertEqual(len(OF_CLASSES), 5)
        for name in OF_CLASSES:
            with self.subTest(name):
                session, inputs, report = self.exported(name)
                self.assertEqual([port["shape"] for port in report["outputs"]], [["rows", 3]] * 2)
                score, logit = session.run(["score", "logit"], inputs)
                expected = np.stack([self.predicted(name, f"score_{label}") for label in CLASSES], axis=1)
                off = np.abs(score - expected).max()
                print(f"{name}: off by {off:.1e} at most")
                self.assertLessEqual(off, TOLERANCE)
                self.assertGreater(expected.std(axis=0).max(), 0.02, "scores differ between rows")
                odds = np.exp(logit - logit.max(axis=1, keepdims=True))
                np.testing.assert_allclose(odds / odds.sum(axis=1, keepdims=True), score, atol=1e-6)
                self.assertEqual(json.loads(session.get_modelmeta().custom_metadata_map["millstream.classes"]), CLASSES)
                likeliest = [CLASSES[place] for place in expected.argmax(axis=1)]
                self.assertEqual(list(self.predicted(name, "class")), likeliest)

    def test_the_dot_product_of_the_towers_vectors_is_the_score(self):
        for name in ["two_tower", "two_tower_of_any_length"]:
            vectors = {}
            for part, features in TOWERS.items():
                with self.subTest(name, part=part):
                    output = self.scratch / f"{name}.{part}.onnx"
                    report = millstream("export", self.checkpoints[name], "--part", part, "--output", output)
                    onnx.checker.check_model(str(output), full_check=True)
                    session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
                    about = session.get_modelmeta().custom_metadata_map
                    self.assertEqual((about["millstream.part"], report["part"]), (part, part))
                    described = json.loads(about["millstream.features"])
                    self.assertEqual({feature["name"] for feature in described}, set(features))
                    self.assertEqual([port["shape"] for port in report["outputs"]], [["rows", 6]])
                    (vectors[part],) = session.run(["vector"], inputs_of(session, described, self.data))

                    output = self.scratch / f"{name}.{part}.safetensors"
                    report = millstream("export", self.checkpoints[name], "--part", part, "--output", output)
                    kept = safetensors.numpy.load_file(output)
                    self.assertTrue(kept and all(key.startswith(f"{part}.") for key in kept))
                    self.assertEqual(report["parameters"], sum(numbers.size for numbers in kept.values()))
            if name == "two_tower":
                for part in vectors.values():
                    np.testing.assert_allclose(np.linalg.norm(part, axis=1), 1, atol=1e-6)
            products = (vectors["query"] * vectors["item"]).sum(axis=1) / 0.125
            expected = self.predicted(name)
            np.testing.assert_allclose(products, expected, atol=TOLERANCE * max(1, np.abs(expected).max()))

    def test_any_number_of_rows_can_be_scored(self):
        for name in ["wide_deep", "deepfm", "dcn_low_rank_parallel", "dlrm_dot"]:
            session, inputs, _ = self.exported(name)
            (whole,) = session.run(["score"], inputs)
            for rows in [0, 1, 7]:
                with self.subTest(name, rows=rows):
                    (part,) = session.run(["score"], {key: value[:rows] for key, value in inputs.items()})
                    self.assertEqual(part.shape, (rows,))
                    np.testing.assert_allclose(part, whole[:rows], atol=TOLERANCE)
            # More padding does not change scores, and zero columns are equivalent to no id.
            wider = dict(inputs, tags=np.pad(inputs["tags"], ((0, 0), (0, 3)), constant_values=-1))
            np.testing.assert_allclose(session.run(["score"], wider)[0], whole, atol=TOLERANCE)
            none = dict(inputs, tags=np.full((ROWS, 1), -1))
            empty = dict(inputs, tags=np.zeros((ROWS, 0), dtype=np.int64))
            np.testing.assert_array_equal(session.run(["score"], none), session.run(["score"], empty))

    def test_absent_values_have_an_id_and_absent_required_numbers_have_no_score(self):
        session, inputs, _ = self.exported("mlp")
        last = {"colour": 5, "place": 50, "zone": 4}
        for name, cardinality in last.items():
            self.assertIn(-1, inputs[name])
            inputs[name] = np.where(inputs[name] < 0, cardinality, inputs[name])
        (score,) = session.run(["score"], inputs)
        np.testing.assert_allclose(score, self.predicted("mlp"), atol=TOLERANCE)
        (score,) = session.run(["score"], dict(inputs, plain=np.full((ROWS, 1), np.nan)))
        self.assertTrue(np.isnan(score).all())

    def test_parameters_may_be_stored_beside_the_graph(self):
        session, inputs, report = self.exported("mlp", "--external-data")
        self.assertEqual(report["external_data"], report["output"] + ".data")
        self.assertGreater(os.path.getsize(report["external_data"]), 1000)
        (score,) = session.run(["score"], inputs)
        np.testing.assert_allclose(score, self.predicted("mlp"), atol=TOLERANCE)
        whole, _, report = self.exported("mlp")
        self.assertIsNone(report["external_data"])
        np.testing.assert_array_equal(whole.run(["score"], inputs)[0], score)

    def test_safetensors_are_the_checkpoints_parameters(self):
        for name in MODELS:
            with self.subTest(name):
                output = self.scratch / f"{name}.safetensors"
                report = millstream("export", self.checkpoints[name], "--output", output)
                found = safetensors.numpy.load_file(output)
                kept = safetensors.numpy.load_file(pathlib.Path(self.checkpoints[name]) / "model.safetensors")
                self.assertEqual(found.keys(), kept.keys())
                for key, numbers in kept.items():
                    self.assertEqual(numbers.dtype, np.float32)
                    np.testing.assert_array_equal(found[key], numbers)
                self.assertEqual(report["parameters"], sum(numbers.size for numbers in kept.values()))
                with safe_open(output, framework="numpy") as file:
                    about = file.metadata()
                self.assertEqual(about["millstream.job"], name)
                self.assertEqual(int(about["millstream.step"]), TRAIN_ROWS // BATCH)
                self.assertEqual(json.loads(about["millstream.model"])["kind"], about["millstream.kind"])
                self.assertIn(about["millstream.kind"], MODELS[name])
                described = {feature["name"] for feature in json.loads(about["millstream.features"])}
                self.assertEqual(described, {feature for feature in NUMBERS + IDS + HASHED + SHARING + MARKS if f'"{feature}"' in MODELS[name]})

    def test_scores_do_not_depend_on_the_format(self):
        target = self.checkpoints["mlp"]
        expected = self.predicted("mlp")
        self.assertEqual(expected.dtype, np.float32)

        def written(name, *options):
            output = self.scratch / name
            report = millstream("predict", target, "--output", output, *options)
            self.assertEqual((report["rows"], report["output"]), (ROWS, str(output)))
            return output

        def same(table):
            self.assertEqual(table.column_names, ["score"])
            np.testing.assert_array_equal(table["score"].to_numpy().astype(np.float32), expected)

        same(pq.read_table(written("scores.parquet")))
        same(pq.read_table(written("scores", "--format", "parquet")))
        same(pa.csv.read_csv(written("scores.csv")))
        same(pa.csv.read_csv(written("scores.csv.gz")))
        same(pa.csv.read_csv(written("scores.txt", "--format", "csv")))
        same(pa.json.read_json(written("scores.jsonl")))
        same(pa.json.read_json(written("scores2.csv", "--format", "jsonl")))
        with gzip.open(self.scratch / "scores.csv.gz", "rt") as file:
            self.assertEqual(len(list(csv.DictReader(file))), ROWS)
        pipe = [MILLSTREAM, "predict", target, "--format", "jsonl"]
        lines = subprocess.run(pipe, capture_output=True, check=True, text=True).stdout.splitlines()
        np.testing.assert_array_equal(np.float32([json.loads(line)["score"] for line in lines]), expected)

    def test_invalid_requests_fail_and_leave_no_files(self):
        target = self.checkpoints["mlp"]
        before = set(self.scratch.rglob("*"))
        for arguments, status, says in [
            (["export", "nothing", "--output", self.scratch / "a.onnx"], 1, "neither a job nor a checkpoint"),
            (["export", self.scratch, "--output", self.scratch / "a.onnx"], 1, "has no checkpoint"),
            (["export", target, "--output", self.scratch / "a.bin"], 2, "a.bin: unknown extension"),
            (["export", target, "--output", self.scratch / "a", "--format", "pmml"], 2, "safetensors"),
            (["export", target, "--output", self.scratch / "a.safetensors", "--external-data"], 2, "only to ONNX"),
            (["export", target, "--output", self.scratch / "a.onnx", "--part", "item"], 1, "has no item tower"),
            (["export", target, "--output", self.scratch / "no/a.onnx"], 1, "no/a.onnx: No such file"),
            (["predict", target, "--output", "/dev/full/a.csv"], 1, "writing /dev/full/a.csv"),
            (["predict", target, "--output", self.scratch / "a.parquet.gz"], 2, "compressed internally"),
            (["predict", target, "--format", "xls", "--output", self.scratch / "a"], 2, "parquet"),
        ]:
            with self.subTest(arguments):
                self.assertIn(says, millstream(*arguments, expect=status))
        piped = subprocess.run([MILLSTREAM, "predict", target, "--format", "parquet"], capture_output=True, text=True)
        self.assertEqual((piped.returncode, piped.stdout), (2, ""))
        self.assertEqual(set(self.scratch.rglob("*")), before)

    def test_an_interrupted_prediction_leaves_no_file(self):
        many = self.scratch / "many"
        many.mkdir()
        for part in range(40):
            pq.write_table(pa.concat_tables([self.data] * 40), many / f"{part}.parquet")
        output = many / "scores.parquet"
        line = [MILLSTREAM, "predict", self.checkpoints["mlp"], f"{many}/*.parquet", "--output", output]
        running = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while not (started := list(many.glob("scores*"))) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertNotIn(output, started)
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, stderr)
        self.assertEqual(list(many.glob("scores*")), [])


if __name__ == "__main__":
    unittest.main()
