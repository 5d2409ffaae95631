#!/usr/bin/env python3
"""Trains a small residual network with PyTorch, on random parts of JPEG images.

    python examples/feeds/image_model.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import os
import pathlib
import sys

import millstream as ms
import torch
from millstream.torch import Loader

import synthetic

SIZE, CHANNELS = 32, (8, 16, 32)


def feed(directory, **more):
    image = ms.image("image", SIZE, crop="random_resized", scale=[0.4, 1], flip=True, jitter={"brightness": 0.2},
                     dtype="float32", layout="NCHW", mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])  # fmt: skip
    return ms.Feed(
        train=synthetic.write_images(directory),
        columns={"image": image, "label": ms.tensor("label", "int64")},
        **{"batch_size": 32, "shuffle_rows": 256, "epochs": 3, "seed": 7, **more},
    )


class BasicBlock(torch.nn.Module):
    """Two convolutions beside a shortcut, as in torchvision's resnet18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(outputs)
        self.second = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(outputs)
        self.shortcut = torch.nn.Sequential(
            torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False), torch.nn.BatchNorm2d(outputs)
        )

    def forward(self, x):
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


def network():
    sizes = zip((3, *CHANNELS), CHANNELS)
    blocks = [BasicBlock(inputs, outputs, stride=2) for inputs, outputs in sizes]
    head = torch.nn.Linear(CHANNELS[-1], synthetic.PATTERNS)
    return torch.nn.Sequential(*blocks, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), head)


class Training:
    """A model with its optimizer. The same batches give the same bits."""

    def __init__(self):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(0)
        self.model = self.network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def network(self):
        return network()

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])

    def step(self, batch):
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return f"{loss.item():.9g}"

    def digest(self):
        # With the means and variances of the normalization.
        return synthetic.digest([values.numpy() for values in self.model.state_dict().values()])


def main(training, feed):
    """Trains to the end, from the checkpoint on if there is one."""
    directory = pathlib.Path(sys.argv[1])
    loader = Loader(feed(directory))
    step, path = 0, directory / "checkpoint.pt"
    if path.exists():
        checkpoint = torch.load(path)
        training.model.load_state_dict(checkpoint["model"])
        training.optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]
    for _ in loader.epochs:
        for batch in loader:
            loss = training.step(batch)
            step += 1
            print(f"step {step} loss {loss}", flush=True)
            if step % 5 == 0:
                checkpoint = {
                    "model": training.model.state_dict(),
                    "optimizer": training.optimizer.state_dict(),
                    "data": batch.state_dict(),
                    "step": step,
                }
                torch.save(checkpoint, directory / "new.pt")
                os.replace(directory / "new.pt", path)
    print("model", training.digest())


if __name__ == "__main__":
    main(Training(), feed)
