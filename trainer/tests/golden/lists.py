"""Writes lists.json: losses of batches whose rows form lists, and their gradients with respect to the logits, as
TensorFlow computes them in float64.

    python lists.py            # needs tensorflow

The softmax is that of TF-Ranking's SoftmaxLoss: the cross-entropy of a list with its labels as targets. The pairs are
those of RankNet.
"""

import json
import pathlib

import numpy
import tensorflow as tf


def listwise(labels, logits, weights):
    """The sum of weighted losses of a list, and of weights."""
    targets = labels * weights
    # Not `softmax_cross_entropy_with_logits`, whose gradient needs targets with a sum of 1.
    return -tf.reduce_sum(targets * tf.nn.log_softmax(logits)), tf.reduce_sum(targets)


def pairwise(labels, logits, weights):
    is_below = tf.cast(labels[None, :] < labels[:, None], tf.float64)
    counts = tf.reduce_sum(is_below, axis=1)
    of_pairs = tf.nn.softplus(logits[None, :] - logits[:, None])
    losses = tf.math.divide_no_nan(tf.reduce_sum(is_below * of_pairs, axis=1), counts)
    has_pairs = tf.cast(counts > 0, tf.float64)
    return tf.reduce_sum(weights * losses), tf.reduce_sum(weights * has_pairs)


def case(kind, function, random):
    rows = int(random.integers(1, 40))
    lists = random.integers(0, 8, rows)
    labels = random.integers(0, 4, rows) / 2.0
    weights = random.integers(0, 5, rows) / 2.0
    # Multiples of 1/64: exact in float32.
    logits = random.integers(-640, 640, rows) / 64.0
    x = tf.constant(logits, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        sums = [tf.constant(0.0, tf.float64)] * 2
        for name in sorted(set(lists)):
            places = numpy.flatnonzero(lists == name)
            found = function(tf.constant(labels[places]), tf.gather(x, places), tf.constant(weights[places]))
            sums = [a + b for a, b in zip(sums, found)]
    gradient = tf.convert_to_tensor(tape.gradient(sums[0], x))
    columns = dict(lists=lists, labels=labels, weights=weights, logits=logits, sums=tf.stack(sums), gradient=gradient)
    return dict(kind=kind, **{name: numpy.array(column).tolist() for name, column in columns.items()})


def main():
    random = numpy.random.default_rng(7)
    kinds = [("listwise", listwise), ("pairwise", pairwise)]
    cases = ",\n".join(json.dumps(case(*kind, random)) for _ in range(12) for kind in kinds)
    pathlib.Path(__file__).with_name("lists.json").write_text(f"[\n{cases}\n]\n")


if __name__ == "__main__":
    main()
