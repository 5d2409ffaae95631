#!/usr/bin/env python3
"""Trains a small model with PyTorch.

    python examples/feeds/train_torch.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import os
import pathlib
import sys

import millstream as ms
import torch
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
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = Loader(feed, device=device)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step, path = 0, directory / "checkpoint.pt"
if path.exists():
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    loader.load_state_dict(checkpoint["data"])
    step = checkpoint["step"]

for _ in loader.epochs:
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {step} loss {loss.item():.9g}", flush=True)
        if step % 10 == 0:
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "data": batch.state_dict(),
                "step": step,
            }
            torch.save(checkpoint, directory / "new.pt")
            os.replace(directory / "new.pt", path)
print("model", synthetic.digest([weight.detach().cpu().numpy() for weight in model.parameters()]))
