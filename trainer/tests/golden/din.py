"""Writes din.json: what NumPy makes of small Deep Interest Networks in float64, over 30 steps each; also
MLPs over maxima of embeddings, whose gradients go to the first id that holds a maximum.

Run beside models.json, whose batches it uses: python3 din.py > din.json

The forward pass is written from Zhou et al., 2018, section 4.3, one row and one value at a time. Gradients are those of
the complex step (Squire and Trapp, "Using Complex Variables to Estimate Derivatives of Real Functions", 1998), which
are exact to the last digits of float64.

Constants of optimizers are exact in float32, as the jobs' are float32 numbers.
"""

import json
import pathlib
import sys

import numpy as np

STEPS, STEP = 30, 1e-40
FILE = json.loads((pathlib.Path(__file__).parent / "models.json").read_text())
BATCHES = [{name: np.array(values) for name, values in batch.items()} for batch in FILE["batches"]]
CARDINALITY = {feature["name"]: feature["cardinality"] for kind in ("ids", "ragged") for feature in FILE["schema"][kind]}
DENSE = FILE["schema"]["dense"]

SGD = dict(kind="sgd", learning_rate=0.25)
ADAGRAD = dict(kind="adagrad", learning_rate=0.125, initial_accumulator=0.0625, epsilon=2.0**-20)
ADAM = dict(kind="adam", learning_rate=0.03125, beta1=0.875, beta2=0.96875, epsilon=2.0**-20)
BCE = dict(kind="bce", label_smoothing=0.0, positive_weight=1.0, negative_weight=1.0)
STATES = {"sgd": [], "adagrad": ["accumulator"], "adam": ["m", "v"]}

HUES = dict(name="hues", features=["hue", "tags"])
TAGS_BY_HUE = [dict(history="tags", target="hue")]


def din(features, attention, hidden, embedding_optimizer, optimizer, tables, sequences=TAGS_BY_HUE):
    embedding = dict(dim=3, pooling="mean", optimizer=embedding_optimizer, tables=tables)
    keys = dict(kind="din", features=features, sequences=sequences, attention=dict(hidden=attention))
    return dict(keys, embedding=embedding, hidden=hidden, optimizer=optimizer)


def mlp_of_maxima(features, hidden, embedding_optimizer, optimizer, tables):
    embedding = dict(dim=3, pooling="max", optimizer=embedding_optimizer, tables=tables)
    return dict(kind="mlp", features=features, embedding=embedding, hidden=hidden, optimizer=optimizer)


# By name: the model, its labels, and how it is trained.
CASES = {
    "din": (din(["tags", "colour", "first", "hue", "second"], [4], [5], ADAM, ADAGRAD, [HUES]), ["labels"], {}),
    "din of histories alone": (din(["hue", "tags"], [], [], SGD, SGD, [HUES]), ["labels"], {}),
    # The weighted marks are pooled, in the same table.
    "din of two labels": (
        din(["marks", "hue", "tags", "shape"], [5, 4], [6], ADAGRAD, ADAM, [dict(HUES, features=["hue", "tags", "marks"], dim=4)]),
        ["labels", "other"],
        dict(tasks=[dict(loss=BCE, weight=1.0), dict(loss=BCE, weight=0.5)], clip=dict(norm=0.25, value=None)),
    ),
    "mlp of maxima": (mlp_of_maxima(["tags", "colour", "first", "second"], [5], ADAM, ADAGRAD, []), ["labels"], {}),
    "mlp of maxima and means": (
        mlp_of_maxima(
            ["marks", "hue", "tags", "shape"], [6], ADAGRAD, SGD, [dict(HUES, dim=4), dict(name="marks", features=["marks"], pooling="mean")]
        ),
        ["labels"],
        dict(clip=dict(norm=0.25, value=None)),
    ),
}


def table_of(spec, feature):
    tables = [table for table in spec["embedding"]["tables"] if feature in table["features"]]
    return tables[0] if tables else dict(name=feature, features=[feature])


def width_of(spec, feature):
    return table_of(spec, feature).get("dim", spec["embedding"]["dim"])


def shapes(spec, labels):
    """The shape and the optimizer of each parameter, and the features of each table."""
    found, tables = {}, {}

    def layers(name, widths):
        for number, shape in enumerate(zip(widths, widths[1:])):
            found[f"{name}.layer.{number}.weight"] = (shape, spec["optimizer"])
            found[f"{name}.layer.{number}.bias"] = (shape[1:], spec["optimizer"])

    inputs = 0
    for feature in spec["features"]:
        if feature in DENSE:
            inputs += 1
            continue
        name, width = "embedding." + table_of(spec, feature)["name"], width_of(spec, feature)
        found[name] = ((CARDINALITY[feature], width), spec["embedding"]["optimizer"])
        tables.setdefault(name, []).append(feature)
        inputs += width
    for sequence in spec.get("sequences", []):
        history = sequence["history"]
        layers(f"attention.{history}", [4 * width_of(spec, history), *spec["attention"]["hidden"], 1])
    layers("deep", [inputs, *spec["hidden"], len(labels)])
    return found, tables


def mlp(weights, name, count, x):
    for number in range(count):
        x = x @ weights[f"{name}.layer.{number}.weight"] + weights[f"{name}.layer.{number}.bias"]
        if number < count - 1:
            x = np.where(x.real > 0, x, 0)
    return x


def values_of(b, feature, row):
    """The ids of a row, and their weights; marks are beside the tags."""
    if feature not in ("tags", "marks"):
        return b[feature][row : row + 1], np.ones(1)
    place = slice(b["offsets"][row], b["offsets"][row + 1])
    return b[feature][place], b["mark_weights"][place] if feature == "marks" else np.ones(place.stop - place.start)


def pooled(table, ids, weights, pooling):
    """The maximum of each column, of the first id that holds it; or the weighted mean, where weights that are not above 0
    do not count."""
    if pooling == "max" and len(ids) > 0:
        return np.take_along_axis(table[ids], table[ids].real.argmax(axis=0)[None], axis=0)[0]
    weights = np.maximum(weights, 0)
    return (weights[:, None] * table[ids]).sum(axis=0) / (weights.sum() if weights.sum() > 0 else 1)


def logits(spec, weights, b, row):
    table = lambda feature: weights["embedding." + table_of(spec, feature)["name"]]
    pooling = lambda feature: table_of(spec, feature).get("pooling", spec["embedding"]["pooling"])
    sequences = spec.get("sequences", [])
    histories = [sequence["history"] for sequence in sequences]
    ids = [feature for feature in spec["features"] if feature not in DENSE and feature not in histories]
    parts = [pooled(table(feature), *values_of(b, feature, row), pooling(feature)) for feature in ids]
    for sequence in sequences:
        history, target = sequence["history"], table(sequence["target"])[b[sequence["target"]][row]]
        total = np.zeros(len(target), dtype=target.dtype)
        for value in values_of(b, history, row)[0]:
            e = table(history)[value]
            pair = np.concatenate([e, target, e - target, e * target])
            total = total + mlp(weights, f"attention.{history}", len(spec["attention"]["hidden"]) + 1, pair)[0] * e
        parts.append(total)
    dense = b["dense"].reshape(-1, len(DENSE))[row]
    parts.append(np.array([dense[DENSE.index(feature)] for feature in spec["features"] if feature in DENSE]))
    return mlp(weights, "deep", len(spec["hidden"]) + 1, np.concatenate(parts))


def all_logits(spec, weights, b):
    """Labels by rows."""
    return np.array([logits(spec, weights, b, row) for row in range(len(b["labels"]))]).T


def softplus(x):
    return np.where(x.real > 0, x + np.log1p(np.exp(np.where(x.real > 0, -x, 0))), np.log1p(np.exp(np.where(x.real > 0, 0, x))))


def loss(spec, weights, b, labels, training):
    tasks = training.get("tasks", [dict(weight=1.0)])
    found = all_logits(spec, weights, b)
    losses = [(b["weights"] * (softplus(x) - b[label] * x)).sum() for x, label in zip(found, labels)]
    return sum(task["weight"] * x for task, x in zip(tasks, losses)) / b["weights"].sum()


def gradients(spec, weights, b, labels, training):
    moved, found = {name: weight.astype(complex) for name, weight in weights.items()}, {}
    for name, weight in moved.items():
        found[name] = np.zeros(weight.shape)
        for place in np.ndindex(weight.shape):
            weight[place] += 1j * STEP
            found[name][place] = loss(spec, moved, b, labels, training).imag / STEP
            weight[place] = weight[place].real
    return found


def step(spec, weight, state, g, number):
    """The next weights; changes the state."""
    if spec["kind"] == "sgd":
        return weight - spec["learning_rate"] * g
    if spec["kind"] == "adagrad":
        state["accumulator"] += g**2
        return weight - spec["learning_rate"] * g / (np.sqrt(state["accumulator"]) + spec["epsilon"])
    beta1, beta2 = spec["beta1"], spec["beta2"]
    state["m"][:] = beta1 * state["m"] + (1 - beta1) * g
    state["v"][:] = beta2 * state["v"] + (1 - beta2) * g**2
    m, v = state["m"] / (1 - beta1**number), state["v"] / (1 - beta2**number)
    return weight - spec["learning_rate"] * m / (np.sqrt(v) + spec["epsilon"])


def trained(name, case, start=None, blur=lambda weight: weight):
    """A case, from random weights or from those of `start`, on weights that each step finds blurred."""
    spec, labels, training = case
    random = np.random.default_rng(sum(name.encode()))
    parameters, tables = shapes(spec, labels)
    # Weights that are exact in float32.
    drawn = lambda shape, limit: np.round(random.uniform(-limit, limit, shape) * 2**16) / 2**16
    weights = start or {
        key: drawn(shape, 0.1 if key.endswith(".bias") else 0.8) for key, (shape, _) in parameters.items()
    }
    state = {
        key: {part: np.full(weights[key].shape, optimizer.get("initial_accumulator", 0.0)) for part in STATES[optimizer["kind"]]}
        for key, (_, optimizer) in parameters.items()
    }

    def snapshot():
        found = {key: weight.flatten().tolist() for key, weight in weights.items()}
        states = {f"{key}/{part}": x.flatten().tolist() for key, parts in state.items() for part, x in parts.items()}
        return found | states

    case = dict(name=name, model=spec, labels=labels, training=training, start=snapshot(), steps=[])
    for number in range(1, STEPS + 1):
        b = BATCHES[(number - 1) % len(BATCHES)]
        weights = {key: blur(weight) for key, weight in weights.items()}
        entry = dict(loss=float(loss(spec, weights, b, labels, training).real))
        found = gradients(spec, weights, b, labels, training)
        if number == 1:
            case["gradients"] = {key: g.flatten().tolist() for key, g in found.items()}
        if norm := training.get("clip", {}).get("norm"):
            length = np.sqrt(sum((g**2).sum() for g in found.values()))
            found = {key: g * min(1.0, norm / length) for key, g in found.items()}
        for key, (_, optimizer) in parameters.items():
            rows = slice(None)
            if key in tables:
                ids = [np.concatenate([values_of(b, feature, row)[0] for row in range(len(b["labels"]))]) for feature in tables[key]]
                rows = np.unique(np.concatenate(ids))
            of_rows = {part: x[rows] for part, x in state[key].items()}
            weights[key] = weights[key].copy()
            weights[key][rows] = step(optimizer, weights[key][rows], of_rows, found[key][rows], number)
            for part, x in of_rows.items():
                state[key][part][rows] = x
        if number == STEPS:
            entry["tensors"] = snapshot()
            entry["scores"] = (1 / (1 + np.exp(-all_logits(spec, weights, b).flatten()))).tolist()
        case["steps"].append(entry)
    return case


def sensitivity(case, given):
    """As in models.py."""
    random, last, most = np.random.default_rng(1), case["steps"][-1]["tensors"], 0.0
    parameters, _ = shapes(given[0], given[1])
    for _ in range(4):
        start = {key: np.array(case["start"][key]).reshape(shape) for key, (shape, _) in parameters.items()}
        moved = trained(case["name"], given, start, lambda weight: weight * (1 + 2**-24 * random.uniform(-1, 1, weight.shape)))
        for key, found in moved["steps"][-1]["tensors"].items():
            largest = max(1e-3, *(abs(x) for x in last[key]))
            most = max(most, *(abs(x - y) / largest for x, y in zip(found, last[key])))
    return float(f"{most:.2e}")


cases = [trained(name, case) for name, case in CASES.items()]
for case in cases:
    case["sensitivity"] = sensitivity(case, CASES[case["name"]])
json.dump(cases, sys.stdout, indent=None, separators=(",", ":"))
print()
