#!/usr/bin/env python3
"""Trains a small model with Lightning.

    python examples/feeds/train_lightning.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import pathlib
import sys

import millstream as ms
import torch
from millstream.lightning import Position
from millstream.torch import Loader

import synthetic

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.layers(batch["x"]), batch["label"])
        print(f"step {self.global_step + 1} loss {loss.item():.9g}", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


directory = pathlib.Path(sys.argv[1])
feed = ms.Feed(
    train=synthetic.write(directory),
    columns={"x": ms.tensor("x", "float32", [8]), "label": ms.tensor("label", "int64")},
    batch_size=50,
    shuffle_rows=500,
    epochs=4,
    seed=7,
)
loader = Loader(feed)
pl.seed_everything(0)
model = Model()
checkpoints = pl.callbacks.ModelCheckpoint(directory / "checkpoints", save_last=True, every_n_train_steps=10)
trainer = pl.Trainer(
    max_epochs=4,
    callbacks=[Position(loader), checkpoints],
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = directory / "checkpoints" / "last.ckpt"
trainer.fit(model, loader, ckpt_path=last if last.exists() else None)
print("model", synthetic.digest([weight.detach().numpy() for weight in model.parameters()]))
