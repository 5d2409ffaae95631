#!/usr/bin/env python3
"""Trains a small language model with PyTorch, on packed documents.

    python examples/feeds/language_model.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import os
import pathlib
import sys

import millstream as ms
import torch
from millstream import packing
from millstream.torch import Loader

import synthetic

LENGTH, VOCABULARY, WIDTH = 64, 100, 32


def feed(directory, **more):
    return ms.Feed(
        train=synthetic.write_documents(directory),
        columns={"tokens": ms.tokens("input_ids", eos=2)},
        pack=ms.pack(length=LENGTH),
        **{"batch_size": 8, "shuffle_rows": 200, "lanes": 2, "epochs": 2, "seed": 7, **more},
    )


class Model(torch.nn.Module):
    """Embeddings of tokens and positions, one layer of attention, and a head."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Embedding(LENGTH, WIDTH)
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions, mask):
        x = self.token(tokens) + self.position(positions)  # [B, T, W]
        query, key, value = self.attention(x).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / WIDTH**0.5  # [B, T, T]
        # Padding attends to nothing: its scores are all alike, and finite.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return self.head(x + scores.softmax(dim=-1) @ value)


class Training:
    """A model with its optimizer. The same batches give the same bits."""

    def __init__(self):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def step(self, batch):
        logits = self.model(batch["tokens"], batch["positions"], packing.attention_mask(batch))
        # A token predicts the next one of its piece.
        labels = packing.labels(batch)[:, 1:].long()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return f"{loss.item():.9g}"

    def digest(self):
        return synthetic.digest([weight.detach().numpy() for weight in self.model.parameters()])


def main():
    directory = pathlib.Path(sys.argv[1])
    training, loader = Training(), Loader(feed(directory))
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
    main()
