"""Trains with Lightning on the ranks of a launcher, and writes the rows that each has trained to DIRECTORY.

    torchrun --nproc-per-node 2 lightning_ranks.py DATA DIRECTORY [CHECKPOINT]

Without a CHECKPOINT, saves one after each step.
"""

import json
import os
import pathlib
import sys

import lightning.pytorch as pl
import millstream as ms
import torch
from millstream.lightning import Position
from millstream.torch import Loader


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained = []

    def training_step(self, batch, _):
        assert torch.equal(batch["is_row"], batch.mask)
        self.trained.append(batch["number"][batch["is_row"]].tolist())
        errors = self.layer(batch["number"][:, None] / 100).square().squeeze(1)
        return (errors * batch["is_row"]).mean()

    def configure_optimizers(self):
        _ = self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), 1e-2)


data, directory, checkpoint = sys.argv[1], pathlib.Path(sys.argv[2]), (sys.argv[3:] or [None])[0]
# A batch of 24 of 200 rows: the last one of an epoch is short, and one rank has no row of it.
columns = {"number": ms.tensor("number", "float32")}
feed = ms.Feed(train=data, columns=columns, batch_size=24, shuffle_rows=50, epochs=3, seed=3)
loader, model = Loader(feed, tail="pad", mask="is_row"), Model()
save = pl.callbacks.ModelCheckpoint(directory, filename="{step}", every_n_train_steps=1, save_top_k=-1)
trainer = pl.Trainer(
    max_epochs=3,
    callbacks=[Position(loader)] + ([] if checkpoint else [save]),
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, ckpt_path=checkpoint)
name = f"{'resumed' if checkpoint else 'whole'}-{trainer.global_rank}.json"
(directory / name).write_text(json.dumps(model.trained))
