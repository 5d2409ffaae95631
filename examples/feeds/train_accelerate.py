#!/usr/bin/env python3
"""Trains a small model with Accelerate.

    python examples/feeds/train_accelerate.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import os
import pathlib
import shutil
import sys

import millstream as ms
import torch
from accelerate import Accelerator
from millstream.torch import Loader

import synthetic

directory = pathlib.Path(sys.argv[1])
feed = ms.Feed(
    train=synthetic.write(directory),
    columns={"x": ms.tensor("x", "float32", [8]), "label": ms.tensor("label", "int64")},
    batch_size=50,
    shuffle_rows=500,
    epochs=4,
    seed=7,
)
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
# Not prepared: it places batches on the device and deals them to the ranks by itself.
loader = Loader(feed, device=accelerator.device, tail="drop")
accelerator.register_for_checkpointing(loader)
step = 0
if complete := list(directory.glob("step-*")):
    newest = max(complete, key=lambda path: int(path.name.removeprefix("step-")))
    accelerator.load_state(newest)
    step = int(newest.name.removeprefix("step-"))

for _ in loader.epochs:
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        accelerator.print(f"step {step} loss {loss.item():.9g}", flush=True)
        if step % 10 == 0:
            accelerator.save_state(directory / "new")
            if accelerator.is_main_process:
                # Under its final name only when it is complete.
                os.rename(directory / "new", directory / f"step-{step}")
                shutil.rmtree(directory / f"step-{step - 20}", ignore_errors=True)
            accelerator.wait_for_everyone()
weights = accelerator.unwrap_model(model).parameters()
accelerator.print("model", synthetic.digest([weight.detach().cpu().numpy() for weight in weights]))
accelerator.end_training()
