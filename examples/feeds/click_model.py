#!/usr/bin/env python3
"""Trains a small DLRM with PyTorch, on numbers and ids of clicks.

    python examples/feeds/click_model.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model. The model is that
of Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (2019).
"""

import millstream as ms
import torch

import image_model
import synthetic

NUMBERS = [f"number{n}" for n in range(synthetic.NUMBERS)]
IDS = [f"id{n}" for n in range(synthetic.IDS)]
WIDTH = 8


def feed(directory, **more):
    columns = {"label": ms.tensor("label", "float32")}
    columns |= {name: ms.tensor(name, "float32") for name in NUMBERS}
    columns |= {name: ms.tensor(name, "int64") for name in IDS}
    arguments = {"batch_size": 64, "shuffle_rows": 512, "epochs": 3, "seed": 7, **more}
    return ms.Feed(train=synthetic.write_clicks(directory), columns=columns, **arguments)


class Dlrm(torch.nn.Module):
    """An MLP of the numbers, an embedding per id, the products of all pairs of these vectors, and an MLP of them."""

    def __init__(self):
        super().__init__()
        vectors = 1 + len(IDS)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(len(NUMBERS), 16), torch.nn.ReLU(), torch.nn.Linear(16, WIDTH))
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(synthetic.ID_VALUES, WIDTH) for _ in IDS)
        pairs = vectors * (vectors - 1) // 2
        self.top = torch.nn.Sequential(torch.nn.Linear(WIDTH + pairs, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))

    def forward(self, batch):
        dense = self.bottom(torch.stack([batch[name] for name in NUMBERS], 1))
        vectors = torch.stack([dense, *(table(batch[name]) for table, name in zip(self.tables, IDS))], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


class Training(image_model.Training):
    """A model with its optimizer. The same batches give the same bits."""

    def network(self):
        return Dlrm()

    def loss(self, batch):
        return torch.nn.functional.binary_cross_entropy_with_logits(self.model(batch), batch["label"])


if __name__ == "__main__":
    image_model.main(Training(), feed)
