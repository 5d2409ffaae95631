"""Layers of the rivals that are PyTorch's, from the weights that all begin with."""

import numpy as np
import torch
from torch import nn


def stack(first: list[np.ndarray]) -> nn.Sequential:
    """Layers of these weights `[N, M]`, a ReLU behind each."""
    layers = []
    for weights in first:
        layer = nn.Linear(*weights.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights).T)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)
