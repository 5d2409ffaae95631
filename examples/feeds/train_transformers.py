#!/usr/bin/env python3
"""Trains a small model with the Trainer of Hugging Face transformers.

    python examples/feeds/train_transformers.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import pathlib
import sys

import millstream as ms
import torch
from millstream.torch import Loader
from millstream.transformers import Trainer
from transformers import TrainingArguments

import synthetic


class Model(torch.nn.Module):
    """Takes the columns of a batch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def forward(self, x, labels):
        logits = self.layers(x)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        if self.training:
            print(f"step {trainer.state.global_step + 1} loss {loss.item():.9g}", flush=True)
        return {"loss": loss, "logits": logits}


directory = pathlib.Path(sys.argv[1])
data = synthetic.write(directory)
feed = ms.Feed(
    train=data,
    eval={"val": data},
    columns={"x": ms.tensor("x", "float32", [8]), "labels": ms.tensor("label", "int64")},
    batch_size=50,
    shuffle_rows=500,
    epochs=4,
    seed=7,
)
torch.manual_seed(0)
model = Model()
arguments = TrainingArguments(
    output_dir=str(directory),
    num_train_epochs=4,
    learning_rate=1e-2,
    save_steps=10,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Loader(feed), eval_dataset="val")
# The Trainer writes this file of a checkpoint last.
complete = [path.parent for path in directory.glob("checkpoint-*/trainer_state.json")]
newest = max(complete, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)
trainer.train(resume_from_checkpoint=newest and str(newest))
print(trainer.evaluate())
print("model", synthetic.digest([weight.detach().numpy() for weight in model.parameters()]))
