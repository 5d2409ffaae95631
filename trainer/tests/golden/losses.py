"""Writes losses.json: losses of rows, and their gradients with respect to the logits, as Keras and TensorFlow
compute them in float64.

    python losses.py            # needs tensorflow
"""

import json
import pathlib

import keras
import tensorflow as tf

# Constants of losses are exact in float32, as the jobs' are float32 numbers.
LOGITS = [-30.0, -3.5, -1.0, -0.25, 0.0, 0.125, 0.75, 2.0, 5.0, 30.0]
NUMBERS = [-4.0, -1.0, 0.0, 0.5, 2.25, 7.0]


def huber(delta):
    return lambda labels, x: keras.losses.Huber(delta=delta, reduction="none")(labels[:, None], x[:, None])


def pinball(quantile):
    return lambda labels, x: tf.maximum(quantile * (labels - x), (quantile - 1) * (labels - x))


def poisson(labels, x):
    return 2 * (tf.nn.log_poisson_loss(labels, x) + tf.math.xlogy(labels, labels) - labels)


def focal(gamma, alpha):
    def of_rows(labels, x):
        # Keras clips probabilities, and computes logits from them.
        keras.config.set_epsilon(1e-40)
        balanced = dict(alpha=alpha, apply_class_balancing=True) if alpha else {}
        loss = keras.losses.BinaryFocalCrossentropy(gamma=gamma, reduction="none", **balanced)
        return loss(labels[:, None], tf.sigmoid(x)[:, None])

    return of_rows


# Without a label equal to a logit, where the pinball loss has no derivative.
APART = [number + 0.0625 for number in NUMBERS]
# Probabilities whose distances to 0 and 1 are exact enough in float64.
MODERATE = [logit for logit in LOGITS if abs(logit) < 6]
CASES = [
    (dict(kind="focal", gamma=2.0, alpha=None), focal(2.0, None), [0.0, 1.0], MODERATE),
    (dict(kind="focal", gamma=0.75, alpha=0.25), focal(0.75, 0.25), [0.0, 1.0], MODERATE),
    (dict(kind="huber", delta=1.0), huber(1.0), NUMBERS),
    (dict(kind="huber", delta=0.375), huber(0.375), NUMBERS),
    (dict(kind="quantile", quantile=0.5), pinball(0.5), APART),
    (dict(kind="quantile", quantile=0.9375), pinball(0.9375), APART),
    (dict(kind="poisson"), poisson, [0.0, 0.25, 1.0, 3.0, 250.0]),
]


def case(loss, function, labels, logits=LOGITS):
    rows = [(label, logit) for label in labels for logit in logits]
    y, x = (tf.constant(column, tf.float64) for column in zip(*rows))
    with tf.GradientTape() as tape:
        tape.watch(x)
        losses = function(y, x)
    gradient = tape.gradient(losses, x)
    assert losses.dtype == tf.float64 and losses.shape == y.shape, losses
    columns = dict(labels=y, logits=x, losses=losses, gradient=gradient)
    return dict(loss=loss, **{name: column.numpy().tolist() for name, column in columns.items()})


def main():
    keras.config.set_floatx("float64")
    cases = ",\n".join(json.dumps(case(*given)) for given in CASES)
    pathlib.Path(__file__).with_name("losses.json").write_text(f"[\n{cases}\n]\n")


if __name__ == "__main__":
    main()
