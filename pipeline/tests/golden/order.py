"""Writes golden/order/: the same records with their features in the orders of several writers.

    pip install tensorflow-cpu==2.21.0; python pipeline/tests/golden/order.py

* `cpp.tfrecord`: by TensorFlow's C++ protobuf (`order.cc`, needs g++); another order in each record.
* `python.tfrecord`: by Python's protobuf (upb).
* `java.tfrecord`: in the order of the schema, without absent features, as Spark's writer in Java.
* `random.tfrecord`: in random order.

The test `example_order.rs` computes the values again and compares all of them.
"""

import os
import pathlib
import random
import subprocess

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

HERE = pathlib.Path(__file__).parent
ROWS, COLUMNS = 100, 12


def features(row: int) -> dict:
    present = (column for column in range(COLUMNS) if (row * 7 + column * 5) % 10 >= 3)
    return {f"{'nn' * column}_{column}": feature(row, column) for column in present}


def feature(row: int, column: int):
    values = [(row + at) * 1000003 % (1 << 20) - column for at in range(row % 4 if column == 9 else 1)]
    if column % 3 == 0:
        # Without values the list is not even set, as in C++.
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values)) if values else tf.train.Feature()
    if column % 3 == 1:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value / 4 for value in values]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"%d" % value for value in values]))


def ordered(row: int, shuffle: bool) -> bytes:
    """A record in the order of the schema or in random order: messages are merged by concatenation."""
    entries = list(features(row).items())
    if shuffle:
        random.shuffle(entries)
    entries = b"".join(tf.train.Features(feature=dict([entry])).SerializeToString() for entry in entries)
    whole = tf.train.Example(features=tf.train.Features.FromString(entries)).SerializeToString()
    head = whole[: len(whole) - len(entries)]
    return head + entries


def main() -> None:
    random.seed(1)
    directory = HERE / "order"
    directory.mkdir(exist_ok=True)
    writers = {
        "python": lambda row: tf.train.Example(features=tf.train.Features(feature=features(row))).SerializeToString(),
        "java": lambda row: ordered(row, shuffle=False),
        "random": lambda row: ordered(row, shuffle=True),
    }
    for name, record in writers.items():
        with tf.io.TFRecordWriter(str(directory / f"{name}.tfrecord")) as writer:
            for row in range(ROWS):
                writer.write(record(row))

    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    library = f"-Wl,-rpath,{tf.sysconfig.get_lib()}"
    program = directory / "order"
    subprocess.run(["g++", "-O1", HERE / "order.cc", *flags, library, "-o", program], check=True)
    subprocess.run([program, directory / "cpp.tfrecord"], check=True)
    program.unlink()
    for path in sorted(directory.iterdir()):
        for row, record in enumerate(tf.data.TFRecordDataset([str(path)])):
            assert dict(tf.train.Example.FromString(record.numpy()).features.feature) == features(row), (path, row)


if __name__ == "__main__":
    main()
