"""Writes models.json: what PyTorch makes of small models and optimizers in float64, over 30 steps each.

Run with any CPU build of torch (made with 2.x): python3 models.py > models.json

Forward passes are written from the papers, over torch's operations; gradients are autograd's. Layers are trained by
torch.optim; so are the rows of tables that a batch touches, as a small dense parameter with the state of those rows,
and the other rows stay as they are. FTRL-Proximal is written from McMahan et al. 2013, Algorithm 1, and row-wise
Adagrad from Mudigere et al. 2022, section 4.1.2, since torch has neither.

Constants of optimizers are exact in float32, as the jobs' are float32 numbers.
"""

import itertools
import json
import math
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(20)

STEPS, BATCHES, ROWS, MAXIMUM = 30, 4, 9, 3
SEED = 1
IDS = {"colour": 6, "shape": 4, "tags": 7, "hue": 7, "marks": 7}
DENSE = ["first", "second"]
ALL = ["colour", "tags", "first", "shape", "second"]

SGD = dict(kind="sgd", learning_rate=0.25)
MOMENTUM = dict(kind="momentum", learning_rate=0.0625, momentum=0.75, nesterov=False)
NESTEROV = dict(kind="momentum", learning_rate=0.0625, momentum=0.75, nesterov=True)
ADAGRAD = dict(kind="adagrad", learning_rate=0.125, initial_accumulator=0.0625, epsilon=2.0**-20)
ROWWISE = dict(kind="rowwise_adagrad", learning_rate=0.125, initial_accumulator=0.0625, epsilon=2.0**-20)
ADAM = dict(kind="adam", learning_rate=0.03125, beta1=0.875, beta2=0.96875, epsilon=2.0**-20)
ADAMW = dict(ADAM, kind="adamw", weight_decay=0.25)
FTRL = dict(kind="ftrl", learning_rate=0.25, beta=0.5, l1=0.03125, l2=0.0625, initial_accumulator=0.125)


def batch():
    """The last row of each batch has no tags, and the first the same tag twice."""
    lengths = torch.randint(0, MAXIMUM + 1, (ROWS,))
    lengths[0], lengths[-1] = 2, 0
    tags = torch.randint(0, IDS["tags"], (int(lengths.sum()),))
    tags[1] = tags[0]
    b = dict(
        labels=torch.randint(0, 2, (ROWS,)).double(),
        weights=torch.randint(1, 5, (ROWS,)) / 2.0,
        # Multiples of 1/64: exact in float32.
        dense=torch.randint(-128, 128, (ROWS, 2)) / 64.0,
        colour=torch.randint(0, IDS["colour"], (ROWS,)),
        shape=torch.randint(0, IDS["shape"], (ROWS,)),
        offsets=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
        tags=tags,
    )
    # Other labels, which follow from the rest: one of two classes, a number that is exact in float32, and one of four
    # classes.
    other, amount = ((b["colour"] + b["shape"]) % 3 == 0).double(), 2 * b["dense"][:, 0] - b["labels"] + 0.5
    return dict(b, other=other, amount=amount, sort=((2 * b["colour"] + b["shape"]) % 4).double())


def with_hues(b):
    """With another feature of the tags' ids."""
    return dict(b, hue=(2 * b["colour"] + b["shape"]) % IDS["hue"])


def with_marks(b):
    """With another feature of as many ids a row as there are tags, each with a weight that is exact in float32. Those of
    the row before the last are not above 0."""
    places, rows = torch.arange(len(b["tags"])), rows_of(b)
    weights = ((5 * places + b["tags"]) % 9 - 2) / 4
    return dict(b, marks=(3 * b["tags"] + 1) % IDS["marks"], mark_weights=torch.where(rows == ROWS - 2, -weights.abs(), weights))


def rows_of(b):
    """The row of each tag."""
    return torch.repeat_interleave(torch.arange(ROWS), b["offsets"].diff())


M32, M64 = 2**32 - 1, 2**64 - 1


def mix(z):
    """The finaliser of splitmix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def key_of(seed, name):
    key = mix(seed ^ 0x9E3779B97F4A7C15)
    for byte in name.encode():
        key = mix(key ^ byte)
    return key


def philox(key, counter):
    """Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011: Philox4x32-10."""
    (a, b, c, d), (k, l) = counter, (key & M32, key >> 32)
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ k, second & M32, (first >> 32) ^ d ^ l, first & M32
        k, l = (k + 0x9E3779B9) & M32, (l + 0xBB67AE85) & M32
    return a, b, c, d


def dropped(x, rate, step, layer):
    """What dropout leaves of a layer's output in a step."""
    key, keep = key_of(SEED, f"step {step}") ^ key_of(0, layer), 1 - rate
    word = lambda r, c: philox(key, (r, c // 64 * 16 + c % 16, 0, 0))[c // 16 % 4]
    kept = [[float(word(r, c) < int(keep * 2**32)) for c in range(x.shape[1])] for r in range(x.shape[0])]
    return x * torch.tensor(kept) / keep


FORMATS = {"bf16": (8, -126), "fp16": (11, -14)}


def unit(x, precision):
    """What numbers of the format are multiples of, of the size of each of x; nothing here is near infinity."""
    digits, least = FORMATS[precision]
    return torch.ldexp(torch.ones_like(x), (torch.frexp(x)[1] - 1).clamp(min=least) - (digits - 1))


def nearest(x, precision):
    return torch.where(x == 0, x, torch.round(x / unit(x, precision)) * unit(x, precision))


def drawn(x, precision, table, step, rows):
    """Of the two numbers of the format next to each of x `[rows, columns]`, the one that the table draws in the step."""
    key = key_of(SEED, f"rounding of step {step}") ^ key_of(0, table)
    word = lambda r, c: philox(key, (r, c // 4, 0, 0))[c % 4]
    words = torch.tensor([[float(word(r, c)) for c in range(x.shape[1])] for r in rows.tolist()])
    units = x.abs() / unit(x, precision)
    up = torch.floor((units - units.floor()) * 2.0**32) + words >= 2.0**32
    return torch.where(x == 0, x, x.sign() * (units.floor() + up) * unit(x, precision))


def of_ids(features):
    return [name for name in features if name in IDS]


def of_numbers(features):
    return [name for name in features if name not in IDS]


class Model:
    """A model by its specification: parameters by name, and its logits."""

    def __init__(self, spec, labels, classes=1):
        self.spec, self.kind, self.labels = spec, spec["kind"], labels
        # Logits of a row: one a label, or one a class.
        self.outputs = classes
        # None of it where no step is taken. Both towers have the same.
        self.hidden_layer = spec.get("deep", spec.get("query", spec)).get("hidden_layer", {})
        self.dropout, self.step, self.kept = self.hidden_layer.get("dropout", 0), None, {}
        # Of each table, the features that are looked up in it.
        self.weights, self.optimizers, self.tables = {}, {}, {}
        getattr(self, "make_" + self.kind)(spec)

    def parameter(self, name, shape, optimizer, limit=0.8, table=()):
        self.weights[name] = ((torch.rand(*shape) * 2 - 1) * limit).requires_grad_(True)
        self.optimizers[name] = optimizer
        if table:
            self.tables[name] = table

    # What models are made of.

    def make_linear_part(self, name, features, optimizer):
        columns = [self.outputs] if self.outputs > 1 else []
        for feature in of_ids(features):
            self.parameter(f"{name}.ids.{feature}", (IDS[feature], *columns), optimizer, table=[feature])
        if of_numbers(features):
            self.parameter(f"{name}.dense", (len(of_numbers(features)), *columns), optimizer)
        self.parameter(f"{name}.bias", (self.outputs,), optimizer)

    def make_embedding(self, prefix, features, embedding):
        """Returns how wide all are together."""
        width = 0
        for feature in of_ids(features):
            table = table_of(feature, embedding)
            name, dim = f"{prefix}embedding.{table['name']}", table["dim"]
            if name not in self.weights:
                self.parameter(name, (IDS[feature], dim), embedding["optimizer"], table=table["features"])
            width += dim
        return width

    def make_layers(self, name, widths, optimizer):
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            layer = f"{name}.layer.{number}"
            self.parameter(f"{layer}.weight", (inputs, outputs), optimizer)
            # Of DLRM's bottom, the last layer is not a hidden one either.
            if self.hidden_layer.get("normalization") and number < len(widths) - 2:
                self.parameter(f"{layer}.normalization.scale", (outputs,), optimizer)
                self.parameter(f"{layer}.normalization.shift", (outputs,), optimizer)
                if self.hidden_layer["normalization"] == "batch":
                    self.kept[f"{layer}.normalization.mean"] = torch.zeros(outputs)
                    self.kept[f"{layer}.normalization.variance"] = torch.ones(outputs)
            else:
                self.parameter(f"{layer}.bias", (outputs,), optimizer, limit=0.1)

    def normalized(self, x, layer):
        """torch's own, with its epsilon of 1e-5 and its tenth; running moments move where a step is taken."""
        scale, shift = (self.weights[f"{layer}.normalization.{part}"] for part in ("scale", "shift"))
        if self.hidden_layer["normalization"] == "layer":
            return F.layer_norm(x, x.shape[1:], scale, shift)
        mean, variance = (self.kept[f"{layer}.normalization.{part}"] for part in ("mean", "variance"))
        return F.batch_norm(x, mean, variance, scale, shift, training=self.step is not None)

    def make_cross(self, width, spec, optimizer):
        for number in range(spec["layers"]):
            name, inputs = f"cross.layer.{number}", width
            if spec["rank"]:
                self.parameter(f"{name}.down.weight", (width, spec["rank"]), optimizer)
                inputs = spec["rank"]
            self.parameter(f"{name}.weight", (inputs, width), optimizer)
            self.parameter(f"{name}.bias", (width,), optimizer, limit=0.1)

    def linear_part(self, name, features, b):
        logit = self.weights[f"{name}.bias"]
        for feature in of_ids(features):
            weights = self.weights[f"{name}.ids.{feature}"].reshape(-1, self.outputs)
            logit = logit + self.of_rows(self.looked_up(weights, feature, "sum", b))
        if of_numbers(features):
            logit = logit + numbers(features, b) @ self.weights[f"{name}.dense"]
        return logit

    def looked_up(self, table, feature, pooling, b):
        if feature == "marks":
            return weighted_bag(table[b["marks"]], b["mark_weights"], rows_of(b), pooling)
        if feature != "tags":
            return F.embedding(b[feature], table)
        counts = b["offsets"].diff().clamp(min=1)[:, None]
        pooled = F.embedding_bag(b["tags"], table, b["offsets"], mode="sum", include_last_offset=True)
        return pooled / {"sum": 1, "mean": counts, "sqrtn": counts.sqrt()}[pooling]

    def embedded(self, prefix, features, embedding, b):
        tables = [(table_of(feature, embedding), feature) for feature in of_ids(features)]
        weights = lambda table: self.weights[f"{prefix}embedding.{table['name']}"]
        return [self.looked_up(weights(table), feature, table["pooling"], b) for table, feature in tables]

    def layers(self, name, count, x, last_relu=False):
        for number in range(count):
            layer = f"{name}.layer.{number}"
            x = x @ self.weights[f"{layer}.weight"]
            if f"{layer}.bias" in self.weights:
                x = x + self.weights[f"{layer}.bias"]
            else:
                x = self.normalized(x, layer)
            if number < count - 1 or last_relu:
                x = F.relu(x)
            if number < count - 1 and self.dropout and self.step:
                x = dropped(x, self.dropout, self.step, layer)
        return x

    def of_rows(self, logits):
        return logits if self.outputs > 1 else logits[:, 0]

    def cross(self, spec, x0):
        x = x0
        for number in range(spec["layers"]):
            name = f"cross.layer.{number}"
            inner = x @ self.weights[f"{name}.down.weight"] if spec["rank"] else x
            x = x0 * (inner @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]) + x
        return x

    # The models.

    def make_linear(self, spec):
        self.make_linear_part("linear", spec["features"], spec["optimizer"])

    def logits_linear(self, spec, b):
        return self.linear_part("linear", spec["features"], b)

    def make_deep(self, spec, prefix=""):
        features, embedding = spec["features"], spec["embedding"]
        return self.make_embedding(prefix, features, embedding) + len(of_numbers(features))

    def deep_input(self, spec, b, prefix=""):
        features = spec["features"]
        parts = self.embedded(prefix, features, spec["embedding"], b)
        return torch.cat([*parts, numbers(features, b)], dim=1)

    def make_mlp(self, spec):
        self.make_layers("deep", [self.make_deep(spec), *spec["hidden"], self.outputs], spec["optimizer"])

    def logits_mlp(self, spec, b):
        return self.of_rows(self.layers("deep", len(spec["hidden"]) + 1, self.deep_input(spec, b)))

    def make_wide_deep(self, spec):
        wide, deep = spec["wide"], spec["deep"]
        self.make_linear_part("wide", wide["features"], wide["optimizer"])
        rows = deep.get("embedding_optimizer", deep["optimizer"])
        embedding = dict(dim=deep["embedding_dim"], pooling=deep["pooling"], optimizer=rows)
        embedding["tables"] = deep.get("embeddings", [])
        self.deep = dict(deep, embedding=embedding)
        self.make_layers("deep", [self.make_deep(self.deep, "deep."), *deep["hidden"], self.outputs], deep["optimizer"])

    def logits_wide_deep(self, spec, b):
        x = self.deep_input(self.deep, b, "deep.")
        deep = self.of_rows(self.layers("deep", len(spec["deep"]["hidden"]) + 1, x))
        return deep + self.linear_part("wide", spec["wide"]["features"], b)

    def make_deepfm(self, spec):
        self.make_linear_part("linear", spec["features"], spec["linear_optimizer"])
        self.make_mlp(spec)

    def logits_deepfm(self, spec, b):
        vectors = self.embedded("", spec["features"], spec["embedding"], b)
        pairs = sum((v * w).sum(dim=1) for v, w in itertools.combinations(vectors, 2))
        return self.linear_part("linear", spec["features"], b) + pairs + self.logits_mlp(spec, b)

    def make_dcn_v2(self, spec):
        width = self.make_deep(spec)
        self.make_cross(width, spec["cross"], spec["optimizer"])
        if spec["structure"] == "parallel":
            self.parameter("cross.output.weight", (width, self.outputs), spec["optimizer"])
        self.make_layers("deep", [width, *spec["hidden"], self.outputs], spec["optimizer"])

    def logits_dcn_v2(self, spec, b):
        x, count = self.deep_input(spec, b), len(spec["hidden"]) + 1
        crossed = self.cross(spec["cross"], x)
        if spec["structure"] == "stacked":
            return self.of_rows(self.layers("deep", count, crossed))
        return self.of_rows(self.layers("deep", count, x) + crossed @ self.weights["cross.output.weight"])

    def make_dlrm(self, spec):
        features, embedding, optimizer = spec["features"], spec["embedding"], spec["optimizer"]
        dim, vectors = embedding["dim"], 1 + len(of_ids(features))
        width = self.make_embedding("", features, embedding)
        self.make_layers("bottom", [len(of_numbers(features)), *spec["bottom"], dim], optimizer)
        if spec["interaction"] == "dot":
            outputs = dim + vectors * (vectors - 1) // 2
        else:
            outputs = dim + width
            self.make_cross(outputs, spec["interaction"]["cross"], optimizer)
        self.make_layers("top", [outputs, *spec["top"], self.outputs], optimizer)

    def logits_dlrm(self, spec, b):
        x = self.layers("bottom", len(spec["bottom"]) + 1, numbers(spec["features"], b), last_relu=True)
        vectors = [x, *self.embedded("", spec["features"], spec["embedding"], b)]
        if spec["interaction"] == "dot":
            stacked = torch.stack(vectors, dim=1)
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            rows, columns = torch.tril_indices(len(vectors), len(vectors), offset=-1)
            met = torch.cat([x, products[:, rows, columns]], dim=1)
        else:
            met = self.cross(spec["interaction"]["cross"], torch.cat(vectors, dim=1))
        return self.of_rows(self.layers("top", len(spec["top"]) + 1, met))

    def make_two_tower(self, spec):
        for name in ("query", "item"):
            tower = spec[name]
            widths = [self.make_deep(tower, f"{name}."), *tower["hidden"], spec["dim"]]
            self.make_layers(name, widths, tower["optimizer"])

    def vectors(self, spec, b):
        """Of queries and of items."""
        for name in ("query", "item"):
            x = self.layers(name, len(spec[name]["hidden"]) + 1, self.deep_input(spec[name], b, f"{name}."))
            yield F.normalize(x, eps=1e-6) if spec["normalize"] else x

    def logits_two_tower(self, spec, b):
        queries, items = self.vectors(spec, b)
        return (queries * items).sum(dim=1) / spec["temperature"]

    def loss_two_tower(self, spec, b):
        """The cross-entropy of choosing each row's own item among those of the batch, others of its id left out."""
        queries, items = self.vectors(spec, b)
        scores = queries @ items.T / spec["temperature"]
        if spec["item_id"]:
            ids = b[spec["item_id"]]
            hits = (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool)
            scores = scores.masked_fill(hits, -torch.inf)
        losses = F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")
        weights = b["weights"] * b["labels"]
        return (weights * losses).sum() / weights.sum()

    def logits(self, b):
        return getattr(self, "logits_" + self.kind)(self.spec, b)

    def make_mmoe(self, spec):
        inputs, labels = self.make_deep(spec), self.labels
        for number in range(spec["experts"]):
            self.make_layers(f"expert.{number}", [inputs, *spec["expert"]], spec["optimizer"])
        self.parameter("gate.weight", (inputs, len(labels) * spec["experts"]), spec["optimizer"])
        for label in labels:
            self.make_layers(f"tower.{label}", [spec["expert"][-1], *spec["tower"], 1], spec["optimizer"])

    def logits_mmoe(self, spec, b):
        """Equations 6 and 7 of the paper; one logit for each label."""
        x, count = self.deep_input(spec, b), spec["experts"]
        given = [self.layers(f"expert.{k}", len(spec["expert"]), x, last_relu=True) for k in range(count)]
        logits = []
        for task, label in enumerate(self.labels):
            gate = F.softmax(x @ self.weights["gate.weight"][:, task * count : (task + 1) * count], dim=1)
            mixture = sum(gate[:, k : k + 1] * given[k] for k in range(count))
            logits.append(self.layers(f"tower.{label}", len(spec["tower"]) + 1, mixture)[:, 0])
        return logits

    def scores(self, b, training):
        if self.kind == "two_tower":
            return self.logits(b)
        logits = self.logits(b) if len(self.labels) > 1 else [self.logits(b)]
        if self.outputs > 1:
            # Those of the first class, then those of the next.
            return torch.softmax(logits[0], dim=1).T.flatten()
        tasks = zip(logits, tasks_of(training))
        return torch.cat([logit if task["loss"]["kind"] == "mse" else torch.sigmoid(logit) for logit, task in tasks])

    def loss(self, b, training):
        if self.kind == "two_tower":
            return self.loss_two_tower(self.spec, b)
        logits = self.logits(b) if len(self.labels) > 1 else [self.logits(b)]
        tasks = zip(logits, self.labels, tasks_of(training))
        return sum(task["weight"] * self.task_loss(logit, b[label], b, **task["loss"]) for logit, label, task in tasks)

    def task_loss(
        self,
        logits,
        labels,
        b,
        kind,
        label_smoothing=0.0,
        positive_weight=1.0,
        negative_weight=1.0,
        classes=1,
        class_weights=(),
    ):
        if kind == "mse":
            return (b["weights"] * (logits - labels) ** 2).sum() / b["weights"].sum()
        if kind == "cross_entropy":
            losses = F.cross_entropy(logits, labels.long(), label_smoothing=label_smoothing, reduction="none")
            weights = b["weights"] * torch.tensor(class_weights or [1.0] * classes)[labels.long()]
            return (weights * losses).sum() / weights.sum()
        smooth = labels * (1 - label_smoothing) + label_smoothing / 2
        losses = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none")
        weights = b["weights"] * torch.where(labels == 1, positive_weight, negative_weight)
        return (weights * losses).sum() / weights.sum()


def tasks_of(training):
    """The loss of each label, and its weight."""
    return training.get("tasks", [dict(loss=training.get("loss", dict(kind="bce")), weight=1.0)])


def weighted_bag(embeddings, weights, rows, pooling):
    """TensorFlow's safe_embedding_lookup_sparse: what is divided leaves out what has no weight above 0."""
    if pooling != "sum":
        weights = weights.clamp(min=0)
    total = torch.zeros(ROWS, embeddings.shape[1]).index_add(0, rows, embeddings * weights[:, None])
    if pooling == "sum":
        return total
    divisor = torch.zeros(ROWS).index_add(0, rows, weights if pooling == "mean" else weights**2)
    divisor = divisor if pooling == "mean" else divisor.sqrt()
    return torch.where(divisor[:, None] > 0, total / divisor.where(divisor > 0, torch.ones(()))[:, None], 0.0)


def table_of(feature, embedding):
    """The table that a feature is looked up in."""
    own = dict(name=feature, features=[feature])
    special = next((table for table in embedding.get("tables", []) if feature in table["features"]), own)
    table = dict(pooling=embedding["pooling"], dim=embedding["dim"]) | special
    if table["dim"] == "auto":
        table["dim"] = math.ceil(IDS[feature] ** 0.25)
    return table


def numbers(features, b):
    return b["dense"][:, [DENSE.index(name) for name in of_numbers(features)]]


class Trained:
    """One parameter with the state of its optimizer."""

    # Of each optimizer: our names of its state, and torch's.
    STATES = {
        "sgd": {},
        "momentum": {"momentum": "momentum_buffer"},
        "adagrad": {"accumulator": "sum"},
        "rowwise_adagrad": {"accumulator": None},
        "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
        "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
        "ftrl": {"z": None, "n": None},
    }

    def __init__(self, name, weight, spec, is_table, precision):
        self.name, self.weight, self.spec, self.is_table = name, weight, spec, is_table
        # Of tables of embeddings, where it is not single precision.
        self.precision = precision if "embedding." in name else None
        if self.precision:
            with torch.no_grad():
                weight.copy_(nearest(weight, precision))
        kind, start = spec["kind"], spec.get("initial_accumulator", 0.0)
        self.state = {state: torch.zeros_like(weight) for state in self.STATES[kind]}
        if kind == "adagrad":
            self.state["accumulator"].fill_(start)
        elif kind == "rowwise_adagrad":
            self.state["accumulator"] = torch.full((weight.shape[0],), start)
        elif kind == "ftrl":
            self.state["n"].fill_(start)

    def snapshot(self):
        tensors = {self.name: self.weight}
        tensors.update({f"{self.name}/{state}": tensor for state, tensor in self.state.items()})
        return {name: tensor.detach().flatten().tolist() for name, tensor in tensors.items()}

    @torch.no_grad()
    def step(self, number, touched):
        """Step `number`, from 1; `touched` are the rows of a table that the batch names."""
        rows = touched if self.is_table else slice(None)
        weight, gradient = self.weight[rows].clone(), self.clipped[rows].clone()
        state = {name: tensor[rows].clone() for name, tensor in self.state.items()}
        if self.spec["kind"] == "rowwise_adagrad":
            gradient += self.spec.get("l2", 0.0) * weight
        if self.spec["kind"] == "ftrl":
            weight = ftrl(self.spec, weight, state, gradient)
        elif self.spec["kind"] == "rowwise_adagrad":
            state["accumulator"] += (gradient**2).mean(dim=1)
            root = state["accumulator"].sqrt() + self.spec["epsilon"]
            weight -= self.spec["learning_rate"] * gradient / root[:, None]
        else:
            self.torch_step(number, weight, state, gradient)
        if self.precision:
            weight = drawn(weight, self.precision, self.name, number, touched)
        self.weight[rows] = weight
        for name, tensor in state.items():
            self.state[name][rows] = tensor

    def torch_step(self, number, weight, state, gradient):
        # What we call `l2` is the `weight_decay` of every optimizer of torch's but AdamW.
        spec, rate = self.spec, dict(lr=self.spec["learning_rate"])
        if spec["kind"] != "adamw":
            rate["weight_decay"] = spec.get("l2", 0.0)
        weight.grad = gradient
        if spec["kind"] == "sgd":
            optimizer = torch.optim.SGD([weight], **rate)
        elif spec["kind"] == "momentum":
            optimizer = torch.optim.SGD([weight], momentum=spec["momentum"], nesterov=spec["nesterov"], **rate)
        elif spec["kind"] == "adagrad":
            optimizer = torch.optim.Adagrad([weight], eps=spec["epsilon"], **rate)
        else:
            adam = dict(betas=(spec["beta1"], spec["beta2"]), eps=spec["epsilon"], **rate)
            if spec["kind"] == "adamw":
                optimizer = torch.optim.AdamW([weight], weight_decay=spec["weight_decay"], **adam)
            else:
                optimizer = torch.optim.Adam([weight], **adam)
        names = self.STATES[spec["kind"]]
        kept = {theirs: state[ours] for ours, theirs in names.items()}
        if kept:
            optimizer.state[weight] = dict(kept, step=torch.tensor(float(number - 1)))
        optimizer.step()
        for ours, theirs in names.items():
            state[ours] = optimizer.state[weight][theirs]


def ftrl(spec, weight, state, g):
    z, n, alpha = state["z"], state["n"], spec["learning_rate"]
    sigma = ((n + g * g).sqrt() - n.sqrt()) / alpha
    z += g - sigma * weight
    n += g * g
    next_weight = -(z - z.sign() * spec["l1"]) / ((spec["beta"] + n.sqrt()) / alpha + spec["l2"])
    return torch.where(z.abs() <= spec["l1"], torch.zeros_like(z), next_weight)


def clip(model, norm=None, value=None):
    """The gradients, as a step may see them."""
    gradients = {key: weight.grad.clone() for key, weight in model.weights.items()}
    if norm:
        length = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        gradients = {key: gradient * min(1.0, norm / length.item()) for key, gradient in gradients.items()}
    if value:
        gradients = {key: gradient.clamp(-value, value) for key, gradient in gradients.items()}
    return gradients


def trained(name, spec, training, labels, start=None, blur=lambda weight: weight):
    """A case, from random weights or from those of `start`, on weights that each step finds blurred."""
    model = Model(spec, labels, training.get("loss", {}).get("classes", 1))
    if start:
        with torch.no_grad():
            for key, weight in model.weights.items():
                weight.copy_(start[key].reshape(weight.shape))
    parameters = [
        Trained(key, weight, model.optimizers[key], key in model.tables, training.get("embedding_precision"))
        for key, weight in model.weights.items()
    ]

    def snapshot():
        trained = {key: values for parameter in parameters for key, values in parameter.snapshot().items()}
        return trained | {key: tensor.tolist() for key, tensor in model.kept.items()}

    case = dict(name=name, model=spec, labels=labels, training=training, start=snapshot(), steps=[])
    for step in range(STEPS):
        b = batches[step % BATCHES]
        for weight in model.weights.values():
            weight.grad = None
            weight.data.copy_(blur(weight.data))
        model.step = step + 1
        loss = model.loss(b, training)
        loss.backward()
        if step == 0:
            case["gradients"] = {key: weight.grad.flatten().tolist() for key, weight in model.weights.items()}
        clipped = clip(model, **training.get("clip", {}))
        for parameter in parameters:
            parameter.clipped = clipped[parameter.name]
            touched = [b[feature] for feature in model.tables.get(parameter.name, [])]
            parameter.step(step + 1, torch.cat(touched).unique() if touched else None)
        entry = dict(loss=loss.item())
        if step == STEPS - 1:
            model.step = None
            entry["tensors"] = snapshot()
            # Of any size, where they are no probabilities.
            entry["scores"] = model.scores(b, training).tolist()
        case["steps"].append(entry)
    return case


def sensitivity(case):
    """How far the last state moves where each step finds other weights, by half a unit of float32 at most.

    The most of four such moves, as a share of each tensor's largest number. No float32 can be asked to agree closer.
    """
    generator, last, most = torch.Generator().manual_seed(1), case["steps"][-1]["tensors"], 0.0

    def blur(weight):
        return weight * (1 + 2**-24 * (2 * torch.rand(weight.shape, generator=generator) - 1))

    for _ in range(4):
        start = {key: torch.tensor(numbers) for key, numbers in case["start"].items()}
        # The cases to come start from what they always did.
        with torch.random.fork_rng():
            moved = trained(case["name"], case["model"], case["training"], case["labels"], start, blur)
        for key, found in moved["steps"][-1]["tensors"].items():
            largest = max(1e-3, *(abs(x) for x in last[key]))
            most = max(most, *(abs(x - y) / largest for x, y in zip(found, last[key])))
    return float(f"{most:.2e}")


def embedding(optimizer=ADAGRAD, pooling="mean", dim=3, **more):
    return dict(dim=dim, pooling=pooling, optimizer=optimizer, **more)


def mlp(embedding_optimizer, optimizer, pooling="mean"):
    rows = embedding(embedding_optimizer, pooling)
    return dict(kind="mlp", features=ALL, embedding=rows, hidden=[5, 4], optimizer=optimizer)


def dcn(structure, rank, features=ALL):
    cross = dict(layers=2, rank=rank)
    kind = dict(kind="dcn_v2", features=features, embedding=embedding())
    return dict(kind, cross=cross, structure=structure, hidden=[5], optimizer=ADAGRAD)


def dlrm(interaction):
    kind = dict(kind="dlrm", features=ALL, embedding=embedding(), bottom=[5], interaction=interaction)
    return dict(kind, top=[6, 4], optimizer=ADAGRAD)


def mmoe(expert, tower):
    kind = dict(kind="mmoe", features=ALL, embedding=embedding(), experts=3, expert=expert)
    return dict(kind, tower=tower, optimizer=ADAGRAD)


def two_tower(optimizer, hidden_layer=None, **keys):
    """What is known of both is in both towers."""
    hidden = dict(hidden_layer=hidden_layer) if hidden_layer else {}
    query = dict(mlp(ROWWISE, optimizer), features=["colour", "first", "tags"], **hidden)
    item = dict(mlp(ADAGRAD, optimizer), features=["shape", "second", "tags"], hidden=[4], **hidden)
    return dict(kind="two_tower", query=query, item=item, dim=3, **keys)


WIDE = dict(features=["colour", "shape", "tags", "second"], optimizer=FTRL)
DEEP = dict(features=["colour", "tags", "first", "second"], embedding_dim=3, hidden=[5, 4], pooling="mean")
WIDTHS = [dict(name="colour", features=["colour"], dim="auto"), dict(name="tags", features=["tags"], dim=5, pooling="sum")]
MARKED = ["marks", *ALL]
MARKS = [dict(name="marks", features=["tags", "marks", "hue"])]
SHARED = [dict(name="tints", features=["tags", "hue"], pooling="sqrtn")]
DEEPFM = dict(kind="deepfm", features=ALL, embedding=embedding(), hidden=[5], linear_optimizer=FTRL, optimizer=ADAGRAD)
CASES = {
    "linear": dict(kind="linear", features=ALL, optimizer=ADAGRAD),
    "mlp": mlp(SGD, SGD),
    "wide_deep": dict(kind="wide_deep", wide=WIDE, deep=dict(DEEP, optimizer=ADAGRAD)),
    "deepfm": DEEPFM,
    "deepfm of ids alone": dict(DEEPFM, features=["shape", "colour", "tags"]),
    "dcn_v2, stacked": dcn("stacked", None),
    "dcn_v2, stacked, of rank 2": dcn("stacked", 2),
    "dcn_v2, parallel": dcn("parallel", None),
    "dcn_v2, parallel, of rank 2": dcn("parallel", 2, ["shape", "colour", "tags"]),
    "dlrm": dlrm("dot"),
    "dlrm with cross layers": dlrm(dict(cross=dict(layers=2, rank=4))),
    "momentum": mlp(MOMENTUM, MOMENTUM, "sum"),
    "nesterov": mlp(NESTEROV, NESTEROV, "sqrtn"),
    "adagrad": mlp(ADAGRAD, ADAGRAD, "sqrtn"),
    "row-wise adagrad": mlp(ROWWISE, SGD),
    "adam": mlp(ADAM, ADAM),
    "adamw": mlp(ADAMW, ADAMW),
    "ftrl": mlp(FTRL, FTRL),
    "sgd and row-wise adagrad with l2": mlp(dict(ROWWISE, l2=0.125), dict(SGD, l2=0.0625)),
    "momentum and adam with l2": mlp(dict(ADAM, l2=0.125), dict(MOMENTUM, l2=0.0625)),
    "gradients of a norm": dict(DEEPFM, optimizer=dict(ADAGRAD, l2=0.25)),
    "gradients of a size": mlp(SGD, ADAM),
    "gradients of a norm and a size": dict(kind="linear", features=ALL, optimizer=ADAGRAD),
    "labels smoothed": mlp(ADAGRAD, ADAGRAD),
    "classes weighted": dict(kind="linear", features=ALL, optimizer=FTRL),
    "dropout": dict(mlp(ADAGRAD, ADAGRAD), hidden=[70, 5], hidden_layer=dict(dropout=0.25)),
    "dropout in wide_deep": dict(
        kind="wide_deep", wide=WIDE, deep=dict(DEEP, hidden_layer=dict(dropout=0.5), optimizer=ADAGRAD)
    ),
    "layers normalised": dict(mlp(ADAGRAD, MOMENTUM), hidden_layer=dict(normalization="layer")),
    "batches normalised": dict(mlp(ADAGRAD, SGD), hidden_layer=dict(normalization="batch")),
    "batches normalised in dcn_v2": dict(dcn("parallel", 2), hidden_layer=dict(normalization="batch", dropout=0.25)),
    "layers normalised in dlrm": dict(dlrm("dot"), hidden_layer=dict(normalization="layer", dropout=0.125)),
    "dropout in dlrm": dict(dlrm("dot"), hidden_layer=dict(dropout=0.125)),
    "wide_deep of two optimizers": dict(
        kind="wide_deep", wide=WIDE, deep=dict(DEEP, optimizer=SGD, embedding_optimizer=ROWWISE)
    ),
    "embeddings of several widths": dict(mlp(ADAGRAD, ADAGRAD), embedding=embedding(tables=WIDTHS)),
    "embeddings of several widths in dcn_v2": dict(dcn("stacked", None), embedding=embedding(ADAM, tables=WIDTHS)),
    "embeddings of several widths in dlrm": dict(
        dlrm(dict(cross=dict(layers=2, rank=4))), embedding=embedding(tables=WIDTHS)
    ),
    "a shared table": dict(mlp(ADAM, ADAGRAD), features=["hue", *ALL], embedding=embedding(tables=SHARED)),
    "a shared table in wide_deep": dict(
        kind="wide_deep",
        wide=dict(WIDE, features=["tags", "hue", "first"]),
        deep=dict(DEEP, features=["tags", "colour", "hue"], embeddings=SHARED, optimizer=SGD, embedding_optimizer=ROWWISE),
    ),
    "a shared table in deepfm": dict(DEEPFM, features=[*ALL, "hue"], embedding=embedding(FTRL, tables=SHARED)),
    "a shared table in dlrm": dict(dlrm("dot"), features=["hue", *ALL], embedding=embedding(ROWWISE, tables=SHARED)),
    "two towers": two_tower(ADAGRAD, normalize=False, temperature=1.0, item_id=None),
    "two towers of unit length": two_tower(ADAM, normalize=True, temperature=0.125, item_id="shape"),
    "two towers, normalised": two_tower(
        SGD, dict(normalization="batch", dropout=0.25), normalize=True, temperature=0.5, item_id="colour"
    ),
    "numbers": mlp(ADAGRAD, ADAGRAD),
    "mmoe": mmoe([6, 4], [5]),
    "mmoe of a class and a number": mmoe([4], []),
    "mmoe, layers normalised": dict(mmoe([6, 4], [5]), hidden_layer=dict(normalization="layer", dropout=0.125)),
    "weighted sums": dict(mlp(ADAGRAD, ADAGRAD, "sum"), features=MARKED),
    "weighted means": dict(mlp(SGD, ADAGRAD), features=MARKED),
    "weighted sums over roots": dict(mlp(ROWWISE, SGD, "sqrtn"), features=MARKED),
    "weighted in linear": dict(kind="linear", features=MARKED, optimizer=FTRL),
    "weighted in wide_deep": dict(
        kind="wide_deep",
        wide=dict(WIDE, features=["marks", "tags", "first"]),
        deep=dict(DEEP, features=["tags", "marks", "second"], optimizer=ADAGRAD, embedding_optimizer=ADAM),
    ),
    "weighted in deepfm": dict(DEEPFM, features=MARKED, embedding=embedding(MOMENTUM, "sqrtn")),
    "weighted in a shared table": dict(dlrm("dot"), features=["hue", *MARKED], embedding=embedding(ROWWISE, tables=MARKS)),
    "several classes": mlp(ADAGRAD, ADAGRAD),
    "several classes, smoothed and weighted": dict(
        mlp(ADAGRAD, MOMENTUM), hidden_layer=dict(normalization="layer", dropout=0.125)
    ),
    "several classes in dcn_v2": dcn("parallel", 2),
    "several classes in dlrm": dlrm("dot"),
    "several classes in linear": dict(kind="linear", features=MARKED, optimizer=FTRL),
    "several classes in wide_deep": dict(kind="wide_deep", wide=WIDE, deep=dict(DEEP, optimizer=ADAGRAD)),
    "tables of bfloat16": mlp(SGD, ADAGRAD),
    "tables of half precision": dict(mlp(ADAGRAD, SGD), embedding=embedding(ADAGRAD, dim=6)),
    "tables of bfloat16 by momentum": mlp(MOMENTUM, SGD, "sum"),
    "tables of half precision by nesterov": dict(dcn("stacked", None), embedding=embedding(NESTEROV)),
    "tables of bfloat16 by rowwise_adagrad": dict(
        dlrm("dot"), features=["hue", *MARKED], embedding=embedding(ROWWISE, tables=MARKS)
    ),
    "tables of half precision in wide_deep": dict(
        kind="wide_deep", wide=WIDE, deep=dict(DEEP, optimizer=ADAGRAD, embedding_optimizer=ADAM)
    ),
    "tables of bfloat16 by adamw": mlp(ADAMW, ADAM),
    "tables of half precision in deepfm": dict(DEEPFM, embedding=embedding(FTRL, "sqrtn")),
    "tables of bfloat16 of two towers": two_tower(ADAGRAD, normalize=True, temperature=0.5, item_id="colour"),
}

BCE = dict(kind="bce", label_smoothing=0.0, positive_weight=1.0, negative_weight=1.0)
CLASSES = dict(kind="cross_entropy", classes=4, label_smoothing=0.0, class_weights=[])

# How they are trained, where not as they are.
TRAINING = {
    "gradients of a norm": dict(clip=dict(norm=0.125, value=None)),
    "gradients of a size": dict(clip=dict(norm=None, value=0.015625)),
    "gradients of a norm and a size": dict(clip=dict(norm=0.25, value=0.0625)),
    "labels smoothed": dict(loss=dict(kind="bce", label_smoothing=0.125, positive_weight=1.0, negative_weight=1.0)),
    "classes weighted": dict(loss=dict(kind="bce", label_smoothing=0.25, positive_weight=4.0, negative_weight=0.5)),
    "a shared table": dict(clip=dict(norm=0.125, value=None)),
    "numbers": dict(loss=dict(kind="mse")),
    "mmoe": dict(tasks=[dict(loss=BCE, weight=1.0), dict(loss=dict(BCE, positive_weight=3.0), weight=0.5)]),
    "mmoe of a class and a number": dict(tasks=[dict(loss=BCE, weight=0.75), dict(loss=dict(kind="mse"), weight=0.25)]),
    "mmoe, layers normalised": dict(tasks=[dict(loss=BCE, weight=1.0), dict(loss=BCE, weight=2.0)]),
    "several classes": dict(loss=CLASSES),
    "several classes, smoothed and weighted": dict(
        loss=dict(CLASSES, label_smoothing=0.25, class_weights=[0.5, 1.0, 4.0, 2.0]), clip=dict(norm=0.25, value=None)
    ),
    "several classes in dcn_v2": dict(loss=dict(CLASSES, class_weights=[0.5, 1.0, 4.0, 2.0])),
    "several classes in dlrm": dict(loss=dict(CLASSES, label_smoothing=0.125)),
    "several classes in linear": dict(loss=dict(CLASSES, class_weights=[1.0, 3.0, 1.0, 0.5])),
    "several classes in wide_deep": dict(loss=CLASSES),
    "tables of bfloat16": dict(embedding_precision="bf16"),
    "tables of half precision": dict(embedding_precision="fp16"),
    "tables of bfloat16 by momentum": dict(embedding_precision="bf16", clip=dict(norm=0.125, value=None)),
    "tables of half precision by nesterov": dict(embedding_precision="fp16"),
    "tables of bfloat16 by rowwise_adagrad": dict(embedding_precision="bf16", clip=dict(norm=None, value=0.015625)),
    "tables of half precision in wide_deep": dict(embedding_precision="fp16"),
    "tables of bfloat16 by adamw": dict(embedding_precision="bf16"),
    "tables of half precision in deepfm": dict(embedding_precision="fp16"),
    "tables of bfloat16 of two towers": dict(embedding_precision="bf16"),
}

# What they learn, where not the one label.
LABELS = {
    "numbers": ["amount"],
    "mmoe": ["labels", "other"],
    "mmoe of a class and a number": ["other", "amount"],
    "mmoe, layers normalised": ["labels", "other"],
    "several classes": ["sort"],
    "several classes, smoothed and weighted": ["sort"],
    "several classes in dcn_v2": ["sort"],
    "several classes in dlrm": ["sort"],
    "several classes in linear": ["sort"],
    "several classes in wide_deep": ["sort"],
}

batches = [with_marks(with_hues(batch())) for _ in range(BATCHES)]
golden = dict(
    schema=dict(
        rows=12,
        weighted=True,
        dense=DENSE,
        ids=[dict(name=name, cardinality=IDS[name]) for name in ("colour", "shape", "hue")],
        ragged=[
            dict(name="tags", cardinality=IDS["tags"], maximum=MAXIMUM),
            dict(name="marks", cardinality=IDS["marks"], maximum=MAXIMUM, weighted=True),
        ],
        position_bytes=0,
    ),
    batches=[{name: tensor.flatten().tolist() for name, tensor in b.items()} for b in batches],
    cases=[trained(name, spec, TRAINING.get(name, {}), LABELS.get(name, ["labels"])) for name, spec in CASES.items()],
)
for case in golden["cases"]:
    case["sensitivity"] = sensitivity(case)
json.dump(golden, sys.stdout, indent=None, separators=(",", ":"))
print()
