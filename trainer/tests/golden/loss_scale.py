"""Writes loss_scale.json: the way of torch.amp.GradScaler's scale under overflows.

Run with any CPU build of torch (made with 2.x): python3 loss_scale.py > loss_scale.json

A parameter of one number gets a gradient that is infinite, NaN or 1 as drawn; the scaler unscales it, takes a step of
Adam or not, and moves its scale. Adam's weight tells which steps it took, and which number each had for it.
"""

import json
import math
import random
import sys

import torch

SETTINGS = [
    dict(initial=65536.0, growth=2.0, growth_interval=2000, backoff=0.5, steps=40, bad=0.3),
    dict(initial=65536.0, growth=2.0, growth_interval=3, backoff=0.5, steps=200, bad=0.2),
    dict(initial=8.0, growth=4.0, growth_interval=5, backoff=0.125, steps=200, bad=0.1),
    # Up to the largest power of two in single precision, which does not grow.
    dict(initial=2.0**120, growth=2.0, growth_interval=1, backoff=0.5, steps=40, bad=0.05),
]


def way(settings, draw):
    steps, bad = settings.pop("steps"), settings.pop("bad")
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    adam = torch.optim.Adam([weight], lr=0.125, betas=(0.875, 0.96875), eps=2.0**-20)
    scaler = torch.amp.GradScaler(
        "cpu", settings["initial"], settings["growth"], settings["backoff"], settings["growth_interval"]
    )
    scaler.scale(torch.tensor(1.0))
    moves = []
    for _ in range(steps):
        scale = scaler.get_scale()
        kind = draw.choice(["infinite", "nan"]) if draw.random() < bad else "good"
        gradient = {"infinite": -math.inf, "nan": math.nan, "good": scale}[kind]
        weight.grad = torch.tensor([gradient])
        scaler.step(adam)
        scaler.update()
        tracker = scaler.state_dict()["_growth_tracker"]
        moves.append(dict(gradient=kind, scale=scaler.get_scale(), good_steps=tracker, weight=weight.item()))
    return dict(settings, moves=moves)


draw = random.Random(7)
json.dump([way(settings, draw) for settings in SETTINGS], sys.stdout, separators=(",", ":"))
print()
