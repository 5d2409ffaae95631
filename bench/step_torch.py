"""Layers of the PyTorch rivals, from the shared initial weights."""

import numpy as np
import torch
from torch import nn


def stack(first: list[np.ndarray]) -> nn.Sequential:
    """Layers with these weights `[N, M]`, each followed by a ReLU."""
    layers = []
    for weights in first:
        layer = nn.Linear(*weights.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights).T)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)
