"""Writes `plain/` and `zstd/`, shards of MDS: python mds.py, with mosaicml-streaming 0.13.0.

`rows` says what is in them; the test of the formats of feeds reads it too.
"""

import pathlib

TEXTS = ["one", "", "é\n", "four", "five " * 40]


def rows(image):
    """The rows. `image` makes an image from a number."""
    import numpy as np

    for number in range(60):
        yield {
            "number": number - 30,
            "small": np.int8(-number),
            "large": np.uint64(2**64 - 1 - number),
            "half": np.float16(number / 8),
            "single": np.float32(number / 3),
            "double": np.float64(number / 3),
            "digits": 10**30 + number,
            "text": TEXTS[number % 5],
            "blob": bytes([number, 255, 0]),
            "info": {"label": number % 7, "tags": [f"t{tag}" for tag in range(number % 3)]},
            "fixed": np.arange(6, dtype=np.int32).reshape(2, 3) * number,
            "tokens": np.arange(1 + number % 4, dtype=np.uint16) + number,
            "any": np.full((1 + number % 2, 2), number / 7, np.float32),
            "image": image(number),
        }


COLUMNS = {
    "number": "int",
    "small": "int8",
    "large": "uint64",
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "digits": "str_int",
    "text": "str",
    "blob": "bytes",
    "info": "json",
    "fixed": "ndarray:int32:2,3",
    "tokens": "ndarray:uint16",
    "any": "ndarray",
    "image": "png",
}


def image(number):
    from PIL import Image

    return Image.new("RGB", (6, 4), (number, 2 * number, 3 * number))


if __name__ == "__main__":
    from streaming import MDSWriter

    for name, compression, limit in [("plain", None, 12_000), ("zstd", "zstd", None)]:
        out = pathlib.Path(__file__).with_name(name)
        with MDSWriter(out=str(out), columns=COLUMNS, compression=compression, size_limit=limit) as writer:
            for row in rows(image):
                writer.write(row)
        (out / "index.json").unlink()
