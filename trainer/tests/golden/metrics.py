"""Writes metrics.json: rows and what scikit-learn says of them.

    python metrics.py            # needs numpy and scikit-learn
"""

import json
import pathlib

import numpy as np
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    mean_squared_error,
    roc_auc_score,
)

CLIP = float(np.finfo(np.float32).eps)


def case(name, scores, labels, weights=None, groups=None):
    scores = np.asarray(scores, np.float32)
    labels = np.asarray(labels, np.float32)
    # Single-precision values, double-precision arithmetic. A label between 0 and 1 is a positive and a
    # negative row that share the weight.
    given = np.ones_like(labels) if weights is None else np.asarray(weights, np.float32)
    both = np.concatenate([scores, scores]).astype(np.float64)
    hard = np.concatenate([np.ones(len(scores), int), np.zeros(len(scores), int)])
    share = np.concatenate([labels, 1 - labels.astype(np.float64)]) * np.concatenate([given, given])
    cross_entropy = log_loss(hard, np.clip(both, CLIP, 1 - CLIP), sample_weight=share)
    mean_label = np.average(hard, weights=share)
    constant = log_loss(hard, np.full(len(hard), mean_label), sample_weight=share)
    squares = mean_squared_error(labels.astype(np.float64), scores.astype(np.float64), sample_weight=given)
    return {
        "name": name,
        "scores": [float(str(x)) for x in scores],
        "labels": [float(str(x)) for x in labels],
        "weights": None if weights is None else [float(str(x)) for x in given],
        "groups": None if groups is None else [int(x) for x in groups],
        "auc": float(roc_auc_score(hard, both, sample_weight=share)),
        "pr_auc": float(average_precision_score(hard, both, sample_weight=share)),
        "log_loss": float(cross_entropy),
        "normalized_entropy": float(cross_entropy / constant),
        "calibration": float(np.average(both, weights=share) / mean_label),
        "rmse": float(np.sqrt(squares)),
        "accuracy": float(accuracy_score(hard, both > 0.5, sample_weight=share)),
        "group_auc": None if groups is None else group_auc(both, hard, share, np.concatenate([groups, groups])),
    }


def group_auc(scores, labels, weights, groups):
    """The mean of the groups' AUCs, each with the group's weight; groups of one class are left out."""
    areas, of_groups = [], []
    for group in np.unique(groups):
        rows = (groups == group) & (weights > 0)
        if len(np.unique(labels[rows])) == 2:
            areas.append(roc_auc_score(labels[rows], scores[rows], sample_weight=weights[rows]))
            of_groups.append(weights[rows].sum())
    return float(np.average(areas, weights=of_groups))


def main():
    random = np.random.default_rng(20)
    rows = 200
    labels = (random.random(rows) < 0.3).astype(np.float32)
    logits = random.normal(size=rows) + labels
    scores = 1 / (1 + np.exp(-logits))
    weights = random.exponential(size=rows)
    cases = [
        case("distinct scores", scores, labels),
        case("tied scores", np.round(scores, 1), labels),
        case("weighted", scores, labels, weights),
        case("weighted and tied", np.round(scores, 1), labels, weights),
        case("labels between 0 and 1", np.round(scores, 2), np.round(random.random(rows), 2), weights),
        case("saturated scores", np.round(scores), labels),
    ]
    groups = (random.exponential(size=rows) * 15).astype(int)
    cases += [
        case("groups", scores, labels, None, groups),
        case("groups, weighted and tied", np.round(scores, 1), labels, weights, groups),
        case("few positives", scores / 100, labels * (random.random(rows) < 0.1), weights),
    ]
    path = pathlib.Path(__file__).with_name("metrics.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
