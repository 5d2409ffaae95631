"""Writes precision.json: what PyTorch makes of models in bfloat16 and half precision, over 30 steps each.

Run with any CPU build of torch (made with 2.x), beside models.json: python3 precision.py > precision.json

Batches, specifications and starting weights are those of models.json. All is computed in float64 and rounded where the
policy of trainer/src/spec/precision.rs says so, forward and backward, to the nearest, ties to even: so what is
compared is where numbers are rounded, and to what. In half precision the loss is scaled by a constant 1024, and
gradients by parameters are divided by it.
"""

import json
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)

STEPS, SCALE = 30, 1024.0
FORMATS = {"bf16": (8, -126), "fp16": (11, -14)}
CASES = ["wide_deep", "dlrm"]
IDS, DENSE = ("colour", "shape", "tags"), ("first", "second")


def rounded(x, precision):
    """The nearest multiple of the unit of x's binade; nothing here is near infinity."""
    digits, least = FORMATS[precision]
    exponent = (torch.frexp(x)[1] - 1).clamp(min=least)
    unit = torch.ldexp(torch.ones_like(x), exponent - (digits - 1))
    result = torch.round(x / unit) * unit
    return torch.where(x == 0, x, result)


class Activation(torch.autograd.Function):
    """A number that is stored, as is the gradient by it."""

    @staticmethod
    def forward(context, x, precision):
        context.precision = precision
        return rounded(x, precision)

    @staticmethod
    def backward(context, gradient):
        return rounded(gradient, context.precision), None


class Factor(torch.autograd.Function):
    """A weight on its way into a product; the gradient by it is kept whole."""

    @staticmethod
    def forward(context, x, precision):
        return rounded(x, precision)

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Sum(torch.autograd.Function):
    """A product that is kept whole, of which the gradient is rounded on its way into other products."""

    @staticmethod
    def forward(context, x, precision):
        context.precision = precision
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return rounded(gradient, context.precision), None


class Net:
    def __init__(self, spec, start, precision):
        self.spec, self.precision = spec, precision
        self.weights = {name: torch.tensor(values) for name, values in start.items() if "/" not in name}

    def stored(self, x):
        return Activation.apply(x, self.precision)

    def looked_up(self, name, feature, width, pooling, b):
        table = self.weights[name].view(-1, width)
        if feature != "tags":
            return F.embedding(b[feature], table)
        pooled = F.embedding_bag(b["tags"], table, b["offsets"], mode="sum", include_last_offset=True)
        counts = b["offsets"].diff().clamp(min=1)[:, None]
        return pooled / {"sum": 1, "mean": counts, "sqrtn": counts.sqrt()}[pooling]

    def layers(self, name, widths, x, last_relu):
        for number, width in enumerate(widths):
            weight = self.weights[f"{name}.layer.{number}.weight"].view(x.shape[1], width)
            product = x @ Factor.apply(weight, self.precision)
            bias = self.weights[f"{name}.layer.{number}.bias"]
            if number < len(widths) - 1 or last_relu:
                x = self.stored(F.relu(product + Factor.apply(bias, self.precision)))
            else:
                x = Sum.apply(product, self.precision) + bias
        return x

    def wide_deep(self, b):
        wide, deep = self.spec["wide"], self.spec["deep"]
        vectors = [
            self.looked_up(f"deep.embedding.{f}", f, deep["embedding_dim"], deep["pooling"], b)
            for f in deep["features"] if f in IDS
        ]
        x = self.stored(torch.cat([*vectors, numbers(deep["features"], b)], dim=1))
        logit = self.layers("deep", [*deep["hidden"], 1], x, False)[:, 0] + self.weights["wide.bias"]
        for f in wide["features"]:
            if f in IDS:
                logit = logit + self.looked_up(f"wide.ids.{f}", f, 1, "sum", b)[:, 0]
        if any(f in DENSE for f in wide["features"]):
            logit = logit + numbers(wide["features"], b) @ self.weights["wide.dense"]
        return logit

    def dlrm(self, b):
        spec, dim = self.spec, self.spec["embedding"]["dim"]
        x = self.stored(numbers(spec["features"], b))
        x = self.layers("bottom", [*spec["bottom"], dim], x, True)
        vectors = [
            self.stored(self.looked_up(f"embedding.{f}", f, dim, spec["embedding"]["pooling"], b))
            for f in spec["features"] if f in IDS
        ]
        # The gradient by all of a row's vectors is summed before it is rounded.
        stacked = self.stored(torch.stack([x, *vectors], dim=1))
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], offset=-1)
        met = self.stored(torch.cat([stacked[:, 0], products[:, rows, columns]], dim=1))
        return self.layers("top", [*spec["top"], 1], met, False)[:, 0]

    def loss(self, b):
        losses = F.binary_cross_entropy_with_logits(getattr(self, self.spec["kind"])(b), b["labels"], reduction="none")
        return (b["weights"] * losses).sum() / b["weights"].sum()


def numbers(features, b):
    return b["dense"].view(-1, len(DENSE))[:, [DENSE.index(f) for f in features if f in DENSE]]


def trained(case, batches, precision):
    """Plain descent of rate 1/4: what differs by rounding is not blown up by an optimizer."""
    net, losses = Net(case["model"], case["start"], precision), []
    scale = SCALE if precision == "fp16" else 1.0
    for step in range(STEPS):
        for weight in net.weights.values():
            weight.requires_grad_(True).grad = None
        loss = net.loss(batches[step % len(batches)])
        (loss * scale).backward()
        losses.append(loss.item())
        with torch.no_grad():
            net.weights = {name: weight - 0.25 * weight.grad / scale for name, weight in net.weights.items()}
    tensors = {name: weight.detach().flatten().tolist() for name, weight in net.weights.items()}
    return dict(case=case["name"], precision=precision, losses=losses, tensors=tensors)


def main():
    with open("models.json") as file:
        golden = json.load(file)
    batches = [{name: torch.tensor(values) for name, values in b.items()} for b in golden["batches"]]
    for b in batches:
        b["offsets"] = b["offsets"].long()
        b["tags"] = b["tags"].long()
    cases = [case for case in golden["cases"] if case["name"] in CASES]
    assert len(cases) == len(CASES), [case["name"] for case in golden["cases"]]
    results = [trained(case, batches, precision) for case in cases for precision in FORMATS]
    json.dump(dict(loss_scale=SCALE, learning_rate=0.25, cases=results), sys.stdout, separators=(",", ":"))
    print()


main()
