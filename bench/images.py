#!/usr/bin/env python3
"""Compares images of feeds with other loaders over the same photographs, in turns.

    python3 bench/images.py [--images 4096] [--rounds 5] [--seconds 6] [--only MEASURE...] [--streaming PYTHON]
                            [--directory target/bench/images] [--package target/site] [--pictures /usr/share/backgrounds]

Needs bench/requirements.txt, libjpeg-turbo, the package linked by `python/link target/site target/release`, and photographs (Debian's
mate-backgrounds; those in scikit-image and scikit-learn are added). To measure what the wheel does, build libjpeg-turbo 3 by
`packaging/turbojpeg`, and set MILLSTREAM_TURBOJPEG to the path of target/turbojpeg/libturbojpeg.so.0; with Debian's version 2.1.5,
feeds decode whole images. JPEG images of 500 x 375 are cut from the photographs, at
quality 95. `bench/images_rival.py` describes the rivals; one that is not installed is reported as absent. `--streaming` names a Python
with mosaicml-streaming, which needs an older NumPy.

Prints medians of images/s, with all cores of the machine, of batches of 256 images of 224 x 224, shuffled, each a random part,
half of them mirrored: in levels (uint8, NHWC) and normalized (float32, NCHW). Each measurement runs in a separate process, counts
from the second batch for some seconds, and reads the images again and again; the order alternates. `ranks` are 4 programs with
batches of 64 each. The floor is the decoding alone, of whole images by libjpeg-turbo (simplejpeg) in as many processes as there
are cores; loaders that decode only the part that is needed may exceed it.
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

import images_rival
from images_rival import BATCH, MEAN, POOL, SIZE, STD

WIDTH, HEIGHT, QUALITY = 500, 375, 95
TYPES = ("uint8", "float32")
RANKS = 4
# The time in which ranks take the batches that were ready when the last of them had started.
SETTLE_SECONDS = 3


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
    (directory / "files").mkdir(parents=True)
    for number, image in enumerate(images):
        (directory / "files" / f"{number:05}.jpg").write_bytes(image)
    for part in range(images_rival.FILES):
        labels = range(part, count, images_rival.FILES)
        table = pa.table({"label": list(labels), "image": pa.array([images[label] for label in labels], pa.binary())})
        pq.write_table(table, directory / f"{part}.parquet", row_group_size=64, compression="none")
    print(f"{len(sources)} photographs, {count} images of {sum(map(len, images)) / count:,.0f} bytes", file=sys.stderr)


def rate(batches, seconds: float) -> float:
    """Images/s after the first two batches."""
    rows, taken = 0, 0
    for batch in batches:
        taken += 1
        if taken == 2:
            began = time.perf_counter()
        elif taken > 2:
            rows += len(batch)
            if time.perf_counter() - began > seconds:
                break
    return rows / (time.perf_counter() - began)


def decode_all(paths, seconds: float) -> float:
    import simplejpeg

    images = [path.read_bytes() for path in paths]
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        simplejpeg.decode_jpeg(images[count % len(images)])
        count += 1
    return count / (time.perf_counter() - began)


def floor(arguments) -> float:
    paths, processes = sorted((arguments.directory / "files").iterdir()), os.cpu_count()
    with multiprocessing.Pool(processes) as pool:
        parts = [(paths[number::processes], arguments.seconds) for number in range(processes)]
        return sum(pool.starmap(decode_all, parts, chunksize=1))


def millstream(directory: pathlib.Path, dtype: str, batch: int = BATCH, rank: int = 0, world: int = 1):
    import millstream as ms
    from millstream.torch import Loader

    more = {"layout": "NCHW", "mean": MEAN, "std": STD} if dtype == "float32" else {}
    columns = {
        "label": ms.tensor("label", "int64"),
        "image": ms.image("image", SIZE, crop="random_resized", flip=True, dtype=dtype, **more),
    }
    feed = ms.Feed(
        train=str(directory / "*.parquet"),
        columns=columns,
        batch_size=batch * world,
        shuffle_rows=POOL,
        epochs=1_000,
        memory_budget="4GiB",
    )
    loader = Loader(feed, rank=rank, world=world, tail="drop", run=f"bench {os.getppid()}" if world > 1 else None)
    return (batch["image"] for _ in loader.epochs for batch in loader)


def loader_of(what: str):
    return millstream if what == "millstream" else images_rival.LOADERS[what]


def take_as_rank(what: str, arguments, rank: int, ready, counts) -> None:
    """Counts the images that this rank takes within a window of time that is the same for all."""
    # Workers of a DataLoader fork, as in programs that are started alone.
    multiprocessing.set_start_method("fork", force=True)
    batches = iter(loader_of(what)(arguments.directory, arguments.type, BATCH // RANKS, rank, RANKS))
    next(batches)
    ready.wait()
    began = time.perf_counter() + SETTLE_SECONDS
    for batch in batches:
        now = time.perf_counter()
        if now > began + arguments.seconds:
            # Others still count.
            ready.wait()
            return
        if now > began:
            counts[rank] += len(batch)


def ranks(what: str, arguments) -> float:
    context = multiprocessing.get_context("spawn")
    ready, counts = context.Barrier(RANKS), context.Array("q", RANKS)
    programs = [
        context.Process(target=take_as_rank, args=(what, arguments, rank, ready, counts)) for rank in range(RANKS)
    ]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    assert all(program.exitcode == 0 for program in programs)
    return sum(counts) / arguments.seconds


def one(what: str, arguments) -> float:
    if what == "floor":
        return floor(arguments)
    if what.endswith("_ranks"):
        return ranks(what.removesuffix("_ranks"), arguments)
    return rate(loader_of(what)(arguments.directory, arguments.type), arguments.seconds)


MEASURES = ["floor", "millstream", *images_rival.LOADERS, "millstream_ranks", "dataloader_ranks"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=MEASURES)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/images"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--pictures", type=pathlib.Path, nargs="*", default=[pathlib.Path("/usr/share/backgrounds")])
    parser.add_argument("--streaming", type=pathlib.Path, help="a Python with mosaicml-streaming, simplejpeg and opencv")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--type", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        try:
            print(json.dumps(one(arguments.one, arguments)))
        except ModuleNotFoundError as error:
            if error.name == "millstream":
                raise
            print("null")
        return
    if not arguments.directory.exists():
        make(arguments.directory, arguments.images, arguments.pictures)
    environment = {
        **os.environ,
        "PYTHONPATH": str(arguments.package.resolve()),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }

    def python(what: str):
        return arguments.streaming if what == "streaming" and arguments.streaming else sys.executable

    def measure(what: str, dtype: str) -> float | None:
        command = [python(what), __file__, "--directory", arguments.directory, "--one", what, "--type", dtype]
        command += ["--seconds", str(arguments.seconds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    for what in set(arguments.only) & images_rival.FORMATS.keys():
        command = [python(what), images_rival.__file__, arguments.directory, what]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.images:,} images, {arguments.rounds} rounds, medians")
    for dtype in arguments.types:
        rates = {what: [] for what in arguments.only}
        for number in range(arguments.rounds):
            for what in arguments.only if number % 2 == 0 else reversed(arguments.only):
                rates[what].append(measure(what, dtype))
                print(number, dtype, what, rates[what][-1], file=sys.stderr, flush=True)
        report(dtype, rates)


def report(dtype: str, rates: dict[str, list[float | None]]) -> None:
    medians = {what: statistics.median(of) for what, of in rates.items() if None not in of}
    print(f"\n| {dtype} | images/s | lowest, highest | Millstream is |\n|---|---|---|---|")
    for what, of in rates.items():
        name = what.replace("_", " ")
        if what not in medians:
            print(f"| {name} | absent | | |")
            continue
        ours = medians.get("millstream_ranks" if what.endswith("_ranks") else "millstream")
        times = f"{ours / medians[what]:.2f}x" if ours else ""
        print(f"| {name} | {medians[what]:,.0f} | {min(of):,.0f}, {max(of):,.0f} | {times} |", flush=True)


if __name__ == "__main__":
    main()
