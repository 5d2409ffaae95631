#!/usr/bin/env python3
"""Compares images of feeds with PyTorch's DataLoader and tf.data over the same photographs, in turns.

    python3 bench/images.py [--images 4096] [--rounds 5] [--directory target/bench/images] [--package target/site]
                            [--pictures /usr/share/backgrounds]

Needs bench/requirements.txt, libturbojpeg0, the package linked by `python/link target/site target/release`, and photographs (Debian's
mate-backgrounds; those in scikit-image and scikit-learn are added). Each measurement runs in a
separate process; the order alternates. JPEG images of 500 x 375 are cut from the photographs, at quality 95.

Prints medians of images/s, with all cores of the machine, of batches of 256 images of 224 x 224, shuffled, each a random part,
half of them mirrored: in levels (uint8, NHWC) and normalized (float32, NCHW). The floor is the decoding alone, of whole images by
libjpeg-turbo (simplejpeg) in as many processes as there are cores.
"""

import argparse
import io
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import time

BATCH, SIZE, POOL = 256, 224, 1_024
WIDTH, HEIGHT, QUALITY = 500, 375, 95
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TYPES = ("uint8", "float32")


def photographs(directories):
    import numpy as np
    from PIL import Image

    paths = [path for directory in directories for path in sorted(directory.rglob("*"))]
    for name in ("skimage", "sklearn"):
        spec = __import__("importlib.util").util.find_spec(name)
        paths += sorted(pathlib.Path(spec.origin).parent.rglob("*.jp*g")) if spec else []
    for path in paths:
        if path.suffix.lower() in (".jpg", ".jpeg", ".png") and path.is_file() and not path.is_symlink():
            image = Image.open(path)
            if image.width >= WIDTH and image.height >= HEIGHT:
                yield np.asarray(image.convert("RGB"))


def make(directory: pathlib.Path, count: int, pictures) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf
    from PIL import Image

    sources, random, images = list(photographs(pictures)), np.random.default_rng(1), []
    assert len(sources) >= 8, "too few photographs: install mate-backgrounds, or name others with --pictures"
    for number in range(count):
        source = sources[number % len(sources)]
        factor = random.uniform(1, min(source.shape[1] / WIDTH, source.shape[0] / HEIGHT, 4))
        width, height = int(WIDTH * factor), int(HEIGHT * factor)
        left = random.integers(0, source.shape[1] - width + 1)
        top = random.integers(0, source.shape[0] - height + 1)
        part = Image.fromarray(source[top : top + height, left : left + width]).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        part.save(file, "JPEG", quality=QUALITY)
        images.append(file.getvalue())
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "files").mkdir(exist_ok=True)
    for number, image in enumerate(images):
        (directory / "files" / f"{number:05}.jpg").write_bytes(image)
    for part in range(8):
        rows = images[part::8]
        labels = list(range(part, count, 8))
        table = pa.table({"label": labels, "image": pa.array(rows, pa.binary())})
        pq.write_table(table, directory / f"{part}.parquet", row_group_size=64, compression="none")
        with tf.io.TFRecordWriter(str(directory / f"{part}.tfrecord")) as writer:
            for label, image in zip(labels, rows):
                features = {
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    print(f"{len(sources)} photographs, {count} images of {sum(map(len, images)) / count:,.0f} bytes", file=sys.stderr)


def rate(batches) -> float:
    """Images/s after the first two batches."""
    rows, taken = 0, 0
    for batch in batches:
        taken += 1
        if taken == 2:
            began = time.perf_counter()
        elif taken > 2:
            rows += len(batch)
    return rows / (time.perf_counter() - began)


def decode_all(paths):
    import simplejpeg

    for path in paths:
        simplejpeg.decode_jpeg(path.read_bytes())


def floor(directory: pathlib.Path, dtype: str) -> float:
    paths = sorted((directory / "files").iterdir())
    processes = [multiprocessing.Process(target=decode_all, args=(paths[n :: os.cpu_count()],)) for n in range(os.cpu_count())]
    began = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return len(paths) / (time.perf_counter() - began)


def millstream(directory: pathlib.Path, dtype: str, kind: str = "tfrecord") -> float:
    import millstream as ms
    from millstream.torch import Loader

    more = {"layout": "NCHW", "mean": MEAN, "std": STD} if dtype == "float32" else {}
    columns = {
        "label": ms.tensor("label", "int64"),
        "image": ms.image("image", SIZE, crop="random_resized", flip=True, dtype=dtype, **more),
    }
    feed = ms.Feed(
        train=str(directory / f"*.{kind}"), columns=columns, batch_size=BATCH, shuffle_rows=POOL, epochs=2, memory_budget="4GiB"
    )
    loader = Loader(feed)
    return rate(batch["image"] for _ in loader.epochs for batch in loader)


def dataloader(directory: pathlib.Path, dtype: str) -> float:
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    if dtype == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose(steps)

    class Images(torch.utils.data.Dataset):
        paths = sorted((directory / "files").iterdir())

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, number):
            return transform(Image.open(self.paths[number]).convert("RGB"))

    loader = torch.utils.data.DataLoader(Images(), BATCH, shuffle=True, num_workers=os.cpu_count(), prefetch_factor=2)
    return rate(loader)


def tfdata(directory: pathlib.Path, dtype: str) -> float:
    import tensorflow as tf

    def decode(record):
        features = {"label": tf.io.FixedLenFeature([], tf.int64), "image": tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(record, features)["image"]
        shape = tf.io.extract_jpeg_shape(encoded)
        box = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), area_range=(0.08, 1), aspect_ratio_range=(3 / 4, 4 / 3), use_image_if_no_bounding_boxes=True
        )
        (top, left, _), (height, width, _) = tf.unstack(box[0]), tf.unstack(box[1])
        part = tf.image.decode_and_crop_jpeg(encoded, tf.stack([top, left, height, width]), channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(part, [SIZE, SIZE], antialias=True))
        if dtype == "float32":
            return tf.transpose((image / 255 - MEAN) / STD, [2, 0, 1])
        return tf.cast(image, tf.uint8)

    files = tf.data.Dataset.list_files(str(directory / "*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).shuffle(POOL)
    return rate(records.map(decode, tf.data.AUTOTUNE, deterministic=False).batch(BATCH).prefetch(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/images"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--pictures", type=pathlib.Path, nargs="*", default=[pathlib.Path("/usr/share/backgrounds")])
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, dtype = arguments.one
        print(json.dumps(globals()[what](arguments.directory, dtype)))
        return
    if not (arguments.directory / "7.tfrecord").exists():
        make(arguments.directory, arguments.images, arguments.pictures)

    def measure(what: str, dtype: str) -> float:
        command = [sys.executable, __file__, "--directory", arguments.directory, "--one", what, dtype]
        environment = {**os.environ, "PYTHONPATH": str(arguments.package.resolve()), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.images:,} images, {arguments.rounds} rounds, medians\n")
    print("| type | floor | Millstream, images/s | DataLoader | tf.data |\n|---|---|---|---|---|")
    for dtype in TYPES:
        rates = {what: [] for what in ("floor", "millstream", "dataloader", "tfdata")}
        for _ in range(arguments.rounds):
            for what, of in rates.items():
                of.append(measure(what, dtype))
        least, ours, *others = (statistics.median(of) for of in rates.values())
        cells = " | ".join(f"{other:,.0f} ({ours / other:.1f}x)" for other in others)
        print(f"| {dtype} | {least:,.0f} | {ours:,.0f} ({ours / least:.0%} of the floor) | {cells} |", flush=True)


if __name__ == "__main__":
    main()
