#!/usr/bin/env python3
"""The rivals of bench/images.py: each reads the same images in the format it is usually given, and decodes them as fast as we know.

    python3 bench/images_rival.py DIRECTORY RIVAL      writes the files of a rival, unless they exist

A loader takes the directory, the type of values, the size of a batch, and its rank of how many; it yields batches without end. Those in
Python, except for `dataloader`, decode by simplejpeg and resize by OpenCV without a filter: that is less work than the others do, and
faster than Pillow, torchvision and OpenCV's INTER_AREA, which filter.
"""

import math
import os
import pathlib
import sys

BATCH, SIZE, POOL, FILES = 256, 224, 1_024, 8
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
AREA, RATIO = (0.08, 1), (3 / 4, 4 / 3)
# Several times the images that any loader reads in a measurement, where it must know an end.
EPOCHS = 100


class Decoder:
    """A random part of an image, resized and mirrored, as an array or tensor."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.random = None

    def __call__(self, encoded: bytes):
        import cv2
        import numpy as np
        import simplejpeg

        if self.random is None:
            # Worker processes have separate numbers.
            cv2.setNumThreads(0)
            self.random = np.random.default_rng()
        image = simplejpeg.decode_jpeg(encoded)
        top, left, height, width = self.part(*image.shape[:2])
        image = image[top : top + height, left : left + width]
        image = cv2.resize(image, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
        if self.random.random() < 0.5:
            image = cv2.flip(image, 1)
        if self.dtype == "uint8":
            return image
        # The value of each level of each channel.
        values = (np.arange(256)[:, None] / 255 - MEAN) / STD
        return cv2.LUT(image, np.float32(values[None])).transpose(2, 0, 1)

    def part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """A random part, as torchvision's RandomResizedCrop chooses it."""
        for _ in range(10):
            area = height * width * self.random.uniform(*AREA)
            ratio = math.exp(self.random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(self.random.integers(height - h + 1)), int(self.random.integers(width - w + 1)), h, w
        return 0, 0, height, width


def again(batches):
    while True:
        yield from batches


def workers(world: int) -> dict[str, object]:
    """Options of a DataLoader for its share of the cores."""
    count = max(1, os.cpu_count() // world)
    return {"num_workers": count, "prefetch_factor": 2, "persistent_workers": True}


class Files:
    """A dataset of PyTorch: the files of images, many times."""

    def __init__(self, directory: pathlib.Path, decode) -> None:
        self.paths = sorted((directory / "files").iterdir())
        self.decode = decode

    def __len__(self) -> int:
        return EPOCHS * len(self.paths)

    def __getitem__(self, number: int):
        return self.decode(self.paths[number % len(self.paths)].read_bytes())


def shuffled(directory: pathlib.Path, decode, batch: int, rank: int, world: int):
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    files = Files(directory, decode)
    sampler = DistributedSampler(files, world, rank)
    return DataLoader(files, batch, sampler=sampler, **workers(world))


def dataloader(directory, dtype, batch=BATCH, rank=0, world=1):
    """PyTorch's, as its users write it: Pillow and torchvision."""
    import io

    import torch
    from PIL import Image
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    if dtype == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose(steps)
    return shuffled(directory, lambda data: transform(Image.open(io.BytesIO(data)).convert("RGB")), batch, rank, world)


def dataloader_tuned(directory, dtype, batch=BATCH, rank=0, world=1):
    return shuffled(directory, Decoder(dtype), batch, rank, world)


def tfdata(directory, dtype):
    """Decodes the part of the image alone."""
    import tensorflow as tf

    def decode(record):
        features = {"label": tf.io.FixedLenFeature([], tf.int64), "image": tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(record, features)["image"]
        shape = tf.io.extract_jpeg_shape(encoded)
        box = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), area_range=AREA, aspect_ratio_range=RATIO, use_image_if_no_bounding_boxes=True
        )
        (top, left, _), (height, width, _) = tf.unstack(box[0]), tf.unstack(box[1])
        part = tf.image.decode_and_crop_jpeg(encoded, tf.stack([top, left, height, width]), channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(part, [SIZE, SIZE], antialias=True))
        if dtype == "float32":
            return tf.transpose((image / 255 - MEAN) / STD, [2, 0, 1])
        return tf.cast(image, tf.uint8)

    files = tf.data.Dataset.list_files(str(directory / "*.tfrecord"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).repeat().shuffle(POOL)
    return records.map(decode, tf.data.AUTOTUNE, deterministic=False).batch(BATCH).prefetch(2)


def dali(directory, dtype):
    """NVIDIA's pipeline, on the CPU. Decodes the part of the image alone."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=os.cpu_count(), device_id=None, prefetch_queue_depth=2)
    def images():
        encoded, _ = fn.readers.file(
            file_root=str(directory), dir_filters=["files"], random_shuffle=True, initial_fill=POOL, read_ahead=True
        )
        part = fn.decoders.image_random_crop(encoded, random_area=AREA, random_aspect_ratio=RATIO)
        resized = fn.resize(part, size=[SIZE, SIZE], interp_type=types.INTERP_TRIANGULAR)
        normalize = (
            {"dtype": types.FLOAT, "output_layout": "CHW", "mean": [255 * m for m in MEAN], "std": [255 * s for s in STD]}
            if dtype == "float32"
            else {"dtype": types.UINT8, "output_layout": "HWC"}
        )
        return fn.crop_mirror_normalize(resized, mirror=fn.random.coin_flip(), **normalize)

    pipeline = images()
    pipeline.build()
    while True:
        (batch,) = pipeline.run()
        yield np.asarray(batch.as_tensor())


def litdata(directory, dtype):
    import litdata as lit

    decode = Decoder(dtype)

    class Images(lit.StreamingDataset):
        def __getitem__(self, index):
            return decode(super().__getitem__(index)["image"])

    images = Images(str(directory / "litdata"), shuffle=True, drop_last=True)
    return again(lit.StreamingDataLoader(images, batch_size=BATCH, **workers(1)))


def streaming(directory, dtype):
    """MosaicML's, of MDS."""
    import streaming as mosaic
    from torch.utils.data import DataLoader

    decode = Decoder(dtype)

    class Images(mosaic.StreamingDataset):
        def __getitem__(self, index):
            return decode(super().__getitem__(index)["image"])

    mosaic.base.util.clean_stale_shared_memory()
    count = len(list((directory / "files").iterdir()))
    images = Images(local=str(directory / "mds"), shuffle=True, batch_size=BATCH, epoch_size=EPOCHS * count)
    return DataLoader(images, BATCH, **workers(1))


def webdataset(directory, dtype):
    import webdataset as wds
    from torch.utils.data import DataLoader

    decode, files = Decoder(dtype), sorted(map(str, directory.glob("*.tar")))
    images = wds.WebDataset(files, shardshuffle=len(files)).repeat().shuffle(POOL)
    return DataLoader(images.map(lambda sample: decode(sample["jpg"])), BATCH, **workers(1))


def grain(directory, dtype):
    """Of ArrayRecord, in worker processes."""
    import absl.flags
    import grain

    # Its worker processes read flags.
    absl.flags.FLAGS([sys.argv[0]])
    source = grain.sources.ArrayRecordDataSource(sorted(map(str, directory.glob("*.arrayrecord"))))
    images = grain.MapDataset.source(source).shuffle(seed=1).repeat().map(Decoder(dtype))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=BATCH)
    batches = images.to_iter_dataset(options).batch(BATCH)
    return batches.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=os.cpu_count()))


def datasets(directory, dtype):
    """Hugging Face's, of Parquet, which it keeps as Arrow files."""
    import datasets as hf
    from torch.utils.data import DataLoader

    decode = Decoder(dtype)
    images = hf.load_from_disk(str(directory / "arrow"))
    images = images.with_transform(lambda rows: {"image": [decode(image) for image in rows["image"]]}, columns=["image"])
    loader = DataLoader(images, BATCH, shuffle=True, **workers(1))
    return (batch["image"] for batch in again(loader))


LOADERS = {
    loader.__name__: loader
    for loader in (dataloader, dataloader_tuned, tfdata, dali, grain, webdataset, litdata, streaming, datasets)
}


def images_of(directory: pathlib.Path, part: int | None = None) -> list[tuple[int, bytes]]:
    """The label and the bytes of each image, or of those of one file of several."""
    paths = sorted((directory / "files").iterdir())
    return [(label, path.read_bytes()) for label, path in enumerate(paths) if part in (None, label % FILES)]


def write_tfrecord(directory: pathlib.Path) -> None:
    import tensorflow as tf

    for part in range(FILES):
        with tf.io.TFRecordWriter(str(directory / f"{part}.tfrecord")) as writer:
            for label, image in images_of(directory, part):
                features = {
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def write_tar(directory: pathlib.Path) -> None:
    import webdataset as wds

    for part in range(FILES):
        with wds.TarWriter(str(directory / f"{part}.tar")) as archive:
            for label, image in images_of(directory, part):
                archive.write({"__key__": f"{label:05}", "jpg": image, "cls": label})


def write_arrayrecord(directory: pathlib.Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for part in range(FILES):
        # One record a group, as Grain reads them at random.
        writer = ArrayRecordWriter(str(directory / f"{part}.arrayrecord"), "group_size:1,uncompressed")
        for _, image in images_of(directory, part):
            writer.write(image)
        writer.close()


def write_litdata(directory: pathlib.Path) -> None:
    import litdata as lit

    images = images_of(directory)
    lit.optimize(labelled, images, str(directory / "litdata"), chunk_bytes="64MB", num_workers=1)


def labelled(image: tuple[int, bytes]) -> dict[str, object]:
    return {"label": image[0], "image": image[1]}


def write_mds(directory: pathlib.Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(directory / "mds"), columns={"label": "int", "image": "bytes"}) as writer:
        for image in images_of(directory):
            writer.write(labelled(image))


def write_arrow(directory: pathlib.Path) -> None:
    import datasets as hf

    files = sorted(map(str, directory.glob("*.parquet")))
    table = hf.load_dataset("parquet", data_files=files, split="train", cache_dir=str(directory / "hf"))
    table.save_to_disk(str(directory / "arrow"))


# By rival: what shows that its files exist, and the function that writes them. The others read those of bench/images.py.
FORMATS = {
    "tfdata": (f"{FILES - 1}.tfrecord", write_tfrecord),
    "webdataset": (f"{FILES - 1}.tar", write_tar),
    "grain": (f"{FILES - 1}.arrayrecord", write_arrayrecord),
    "litdata": ("litdata/index.json", write_litdata),
    "streaming": ("mds/index.json", write_mds),
    "datasets": ("arrow/dataset_info.json", write_arrow),
}


def main() -> None:
    directory, rival = pathlib.Path(sys.argv[1]), sys.argv[2]
    written, write = FORMATS[rival]
    if not (directory / written).exists():
        try:
            write(directory)
        except ModuleNotFoundError as error:
            print(f"{rival}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
