"""Generates fingerprint64.json from TensorFlow's results.

    pip install tensorflow-cpu
    python fingerprint64.py > fingerprint64.json

Each input is given in hexadecimal, because it may contain arbitrary bytes.
"""

import json
import random

import tensorflow as tf

BUCKETS = [1, 2, 1000, 4_294_967_295]
LENGTHS = list(range(0, 132)) + [191, 192, 193, 255, 256, 257, 1000, 4096]
WORDS = ["", "a", "Private", "Self-emp-not-inc", "?", "0", "-1", "9223372036854775807", "68fd1e64", "Zürich", "日本"]


def main():
    rng = random.Random(20260101)
    values = [bytes(rng.randrange(256) for _ in range(n)) for n in LENGTHS] + [w.encode() for w in WORDS]
    tensor = tf.constant(values)
    # No operation returns all 64 bits, so they are reconstructed from the residues of two coprime bucket counts.
    wide = [2**62 - 57, 2**62 - 87]
    residues = {n: tf.strings.to_hash_bucket_fast(tensor, n).numpy().tolist() for n in BUCKETS + wide}
    single = [
        {
            "hex": value.hex(),
            "buckets": {str(n): residues[n][i] for n in BUCKETS},
            "fingerprint": str(chinese(wide, [residues[n][i] for n in wide])),
        }
        for i, value in enumerate(values)
    ]

    crossed = []
    for width in (1, 2, 3, 4):
        for _ in range(12):
            row = [bytes(rng.randrange(97, 123) for _ in range(rng.choice([0, 1, 3, 7, 8, 20, 40, 90]))) for _ in range(width)]
            inputs = [tf.constant([[v]]) for v in row]
            crossed.append({
                "hex": [v.hex() for v in row],
                "buckets": {str(n): int(tf.sparse.cross_hashed(inputs, n).values[0]) for n in BUCKETS},
            })
    lists = [[b"a", b"b", b"c"], [b"x"], [b"1", b"22"]]
    product = tf.sparse.cross_hashed([tf.sparse.from_dense([values]) for values in lists], 1000)
    integers = [0, 1, -1, 42, 2**63 - 1, -(2**63)]
    print(json.dumps({
        "tensorflow": tf.__version__,
        "single": single,
        "crossed": crossed,
        "product": {"hex": [[v.hex() for v in values] for values in lists], "buckets": 1000, "ids": product.values.numpy().tolist()},
        "integers": [
            {"value": str(v), "bucket": b}
            for v, b in zip(integers, tf.strings.to_hash_bucket_fast(tf.as_string(tf.constant(integers, tf.int64)), 1_000_003).numpy().tolist())
        ],
    }, indent=1))


def chinese(moduli, residues):
    """The unique number below 2^64 with these residues."""
    (m, n), (a, b) = moduli, residues
    number = a + m * (((b - a) * pow(m, -1, n)) % n)
    assert 0 <= number < 2**64, number
    return number


main()
