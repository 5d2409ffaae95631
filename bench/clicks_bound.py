#!/usr/bin/env python3
"""Bounds the AUC that a model can reach on the clicks of `generate` with a given number of rows.

    python bench/clicks_bound.py [--rows 10000000] [--most-values 100000]

An id's weight can be estimated only from the rows that contain it. Given the family of the planted model (`CATEGORIES`
in pipeline/tools/src/generate/clicks.rs: normal weights of known deviation), the best estimate from `n` rows has the variance
`1 / (1 / deviation^2 + n I)`, where `I`, the mean of p (1 - p), is the information of a row (normal approximation of
the posterior). Counts and pairs have few ids and count as known. The script draws scores with such errors, and labels
from the true scores: no learner avoids the resulting loss of AUC, and a learner that does not know the deviations or the
irrelevant columns loses more. Prints the mean over several draws of the planted weights.
"""

import argparse

import numpy as np

# Distinct values, Zipf exponent, share missing and weight of each column that has one.
CATEGORIES = [
    (1460, 1.25, 0.0, 0.3), (583, 1.15, 0.0, 0.25), (10_131_227, 1.1, 0.03, 0.2), (24, 0.8, 0.12, 0.3), (12_517, 1.05, 0.0, 0.2),
    (3, 0.5, 0.0, 0.25), (5683, 1.05, 0.0, 0.25), (3194, 1.05, 0.0, 0.2), (27, 0.9, 0.0, 0.35), (5_461_306, 1.1, 0.03, 0.15),
    (10, 0.8, 0.0, 0.35), (5652, 1.1, 0.0, 0.2), (4, 0.7, 0.44, 0.2), (15, 0.9, 0.0, 0.15), (286_181, 1.2, 0.03, 0.15),
    (105, 1.2, 0.44, 0.15),
]
COUNTS = [0.45, 0.2, 0.3, 0.25, 0.4, 0.15, 0.2]
PAIRS = [0.5, 0.4, 0.4]
FACTORS, BIAS = 2, -1.45
# The mean of p (1 - p) over the rows.
INFORMATION = 0.155
SCORED, DRAWS = 1_000_000, 8


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    ranks = np.flatnonzero(positive[np.argsort(scores, kind="stable")]) + 1
    count = len(ranks)
    return (ranks.sum() - count * (count + 1) / 2) / (count * (len(scores) - count))


def draw(rows: int, most_values: int, random: np.random.Generator) -> tuple[float, float]:
    """The AUCs of the planted model and of its best estimate."""
    known = BIAS + random.normal(size=SCORED) * sum(weight**2 for weight in COUNTS) ** 0.5
    for weight in PAIRS:
        first, second = random.normal(size=(2, FACTORS, SCORED))
        known += weight / FACTORS**0.5 * (first * second).sum(axis=0)
    error = np.zeros(SCORED)
    for values, exponent, missing, weight in CATEGORIES:
        shares = np.arange(1, min(values, most_values) + 1) ** -exponent
        shares /= shares.sum()
        variance = 1 / (1 / weight**2 + INFORMATION * rows * (1 - missing) * shares)
        ids = np.minimum(np.searchsorted(shares.cumsum(), random.random(SCORED)), len(shares) - 1)
        known += (random.normal(size=len(shares)) * np.sqrt(weight**2 - variance))[ids]
        error += (random.normal(size=len(shares)) * np.sqrt(variance))[ids]
    truth = known + error
    positive = random.random(SCORED) < 1 / (1 + np.exp(-truth))
    return auc(truth, positive), auc(known, positive)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--most-values", type=int, default=100_000)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    found = np.array([draw(options.rows, options.most_values, random) for _ in range(DRAWS)])
    below = found[:, 0] - found[:, 1]
    print(f"planted AUC {found[:, 0].mean():.4f}; the best estimate is {below.mean():.5f} below it ({below.min():.5f} to {below.max():.5f})")


if __name__ == "__main__":
    main()
