"""Writes schedules.json: the factors that PyTorch's learning-rate schedulers give over 60 steps.

Run with any build of torch (made with 2.x): python3 schedules.py > schedules.json
"""

import json
import sys

import torch
from torch.optim import lr_scheduler

STEPS = 60


def decay(optimizer, spec):
    kind = spec["kind"]
    if kind == "constant":
        return lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if kind == "step":
        return lr_scheduler.StepLR(optimizer, step_size=spec["every_steps"], gamma=spec["factor"])
    if kind == "exponential":
        return lr_scheduler.ExponentialLR(optimizer, gamma=spec["factor"] ** (1 / spec["every_steps"]))
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=spec["steps"], eta_min=spec["end"])
    return lr_scheduler.PolynomialLR(optimizer, total_iters=spec["steps"], power=spec["power"])


def factors(spec):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    warmup = spec["warmup_steps"]
    if warmup:
        rising = lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
        parts = [rising, decay(optimizer, spec["decay"])]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[warmup])
    else:
        scheduler = decay(optimizer, spec["decay"])
    found = []
    for step in range(STEPS):
        # Past its end torch's cosine rises again.
        is_past = spec["decay"]["kind"] == "cosine" and step - warmup > spec["decay"]["steps"]
        found.append(spec["decay"]["end"] if is_past else optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


SCHEDULES = [
    dict(warmup_steps=0, decay=dict(kind="constant")),
    dict(warmup_steps=7, decay=dict(kind="constant")),
    dict(warmup_steps=0, decay=dict(kind="step", every_steps=9, factor=0.5)),
    dict(warmup_steps=5, decay=dict(kind="step", every_steps=9, factor=0.5)),
    dict(warmup_steps=0, decay=dict(kind="exponential", every_steps=10, factor=0.25)),
    dict(warmup_steps=0, decay=dict(kind="cosine", steps=40, end=0.125)),
    dict(warmup_steps=10, decay=dict(kind="cosine", steps=40, end=0.0)),
    dict(warmup_steps=0, decay=dict(kind="polynomial", steps=50, power=2.0, end=0.0)),
    dict(warmup_steps=4, decay=dict(kind="polynomial", steps=50, power=1.0, end=0.0)),
]
json.dump([dict(schedule=spec, factors=factors(spec)) for spec in SCHEDULES], sys.stdout, separators=(",", ":"))
print()
