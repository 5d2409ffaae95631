"""Trains with Lightning, resumes from each of several checkpoints, and compares the rows with those of the feed.

    python lightning_resumes.py PACKAGE DATA DIRECTORY        PACKAGE: lightning or pytorch_lightning
"""

import itertools
import pathlib
import sys

package, data, directory = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
if package == "pytorch_lightning":
    # As if it were not installed.
    sys.modules["lightning"] = None

import millstream as ms
import torch
from millstream.lightning import Position
from millstream.torch import Loader

if package == "lightning":
    import lightning.pytorch as pl
else:
    import pytorch_lightning as pl

BATCHES, EPOCHS = 10, 3


class Model(pl.LightningModule):
    def __init__(self, asks_for_steps: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.asks_for_steps = asks_for_steps
        self.trained = []

    def training_step(self, batch, _):
        self.trained.append(batch["number"].tolist())
        return self.layer(batch["number"][:, None] / 100).square().mean()

    def configure_optimizers(self):
        if self.asks_for_steps:
            _ = self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), 1e-2)


def fit(feed: ms.Feed, asks_for_steps: bool, path=None, **options):
    loader, model = Loader(feed), Model(asks_for_steps)
    save = pl.callbacks.ModelCheckpoint(directory, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_epochs=EPOCHS, callbacks=[Position(loader)] + [save] * (path is None), **quiet, **options)
    trainer.fit(model, loader, ckpt_path=path)
    loader.close()
    return model.trained


# With a filter, the number of batches is not known.
for has_length, asks_for_steps in itertools.product((True, False), (False, True)):
    feed = ms.Feed(
        train=data,
        columns={"number": ms.tensor("number", "float32")},
        batch_size=20,
        shuffle_rows=50,
        epochs=EPOCHS,
        seed=3,
        **({} if has_length else {"filter": [{"column": "number", "op": ">=", "value": 0}]}),
    )
    loader = ms.Loader(feed)
    expected = [batch["number"].tolist() for _ in loader.epochs for batch in loader]
    assert len(expected) == BATCHES * EPOCHS
    # Lightning estimates the steps of a loader without a length only if there are `max_steps`.
    limit = {} if has_length else {"max_steps": BATCHES * EPOCHS}
    whole = fit(feed, asks_for_steps, **limit)
    assert whole == expected, (has_length, asks_for_steps)
    for step in (1, 6, 9, 10, 11, 19, 20, 25, 29):
        rest = fit(feed, asks_for_steps, directory / f"step={step}.ckpt", **limit)
        assert rest == expected[step:], (has_length, asks_for_steps, step)
    print(f"{package} {pl.__version__}: length {has_length}, asks for steps {asks_for_steps}: resumed 9 times")
    for path in directory.glob("*.ckpt"):
        path.unlink()
