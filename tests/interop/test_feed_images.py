"""Images of feeds, beside those of Pillow and TensorFlow."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from PIL import Image
from support import ranks

import millstream as ms
from support import host, memory

WIDTH, HEIGHT = 96, 64


def picture(seed, width=WIDTH, height=HEIGHT):
    """A smooth picture with some noise, as photographs have."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / random.uniform(4, 30) + y / random.uniform(4, 30) + random.uniform(0, 6)) for _ in range(3)]
    levels = 128 + 100 * np.stack(waves, axis=-1) + random.normal(0, 6, (height, width, 3))
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def encoded(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def write(path, images):
    pq.write_table(pa.table({"number": range(len(images)), "image": pa.array(images, pa.binary())}), path)


def feed(path, image, **more):
    columns = {"number": ms.tensor("number", "int64"), "image": image}
    return ms.Feed(train=str(path), columns=columns, **{"batch_size": 4, "shuffle_rows": 16, **more})


def arrays(feed):
    """The image of each row, by number."""
    loader = ms.Loader(feed)
    return {int(n): image.copy() for batch in loader for n, image in zip(batch["number"], batch["image"])}


def pixels(data, mode="RGB"):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


FILES = {
    "JPEG 4:4:4": lambda image: encoded(image, "JPEG", quality=92, subsampling=0),
    "JPEG 4:2:2": lambda image: encoded(image, "JPEG", quality=85, subsampling=1),
    "JPEG 4:2:0": lambda image: encoded(image, "JPEG", quality=70, subsampling=2),
    "JPEG progressive": lambda image: encoded(image, "JPEG", progressive=True),
    "JPEG gray": lambda image: encoded(image.convert("L"), "JPEG"),
    "PNG": lambda image: encoded(image, "PNG"),
    "PNG with opacity": lambda image: encoded(image.convert("RGBA"), "PNG"),
    "PNG gray": lambda image: encoded(image.convert("L"), "PNG"),
    "PNG with palette": lambda image: encoded(image.quantize(64), "PNG"),
    "WebP": lambda image: encoded(image, "WEBP", lossless=True),
    "WebP with opacity": lambda image: encoded(image.convert("RGBA"), "WEBP", lossless=True),
}


def test_pixels_are_those_of_pillow(tmp_path):
    images = [of(picture(seed)) for seed, of in enumerate(FILES.values())]
    write(tmp_path / "images.parquet", images)
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", [HEIGHT, WIDTH])))
    for number, (name, data) in enumerate(zip(FILES, images)):
        np.testing.assert_array_equal(found[number], pixels(data), err_msg=name)
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", [HEIGHT, WIDTH], color="gray")))
    for number, (name, data) in enumerate(zip(FILES, images)):
        gray = found[number][..., 0].astype(int)
        # JPEG has the brightness itself; Pillow computes it from the colours.
        most = 2 if name.startswith("JPEG") else 0
        assert np.abs(gray - pixels(data, "L")).max() <= most, name


def test_lossy_webp_and_cmyk_are_near_those_of_pillow(tmp_path):
    images = [encoded(picture(1), "WEBP", quality=90), encoded(picture(2).convert("CMYK"), "JPEG", quality=95)]
    write(tmp_path / "images.parquet", images)
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", [HEIGHT, WIDTH])))
    for number, data in enumerate(images):
        differences = np.abs(found[number].astype(int) - pixels(data))
        assert differences.mean() < 1 and differences.max() <= 24, (number, differences.max())


def test_jpeg_pixels_are_those_of_tensorflow(tmp_path):
    data = encoded(picture(3), "JPEG", quality=80)
    write(tmp_path / "images.parquet", [data])
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", [HEIGHT, WIDTH])))[0]
    np.testing.assert_array_equal(found, tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy())


@pytest.mark.parametrize("size", [[32, 48], [50, 31], [128, 160]])
def test_resized_images_are_those_of_pillow(tmp_path, size):
    images = [encoded(picture(seed, 61 + 40 * seed, 140 - 20 * seed), "PNG") for seed in range(4)]
    write(tmp_path / "images.parquet", images)
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", size)))
    for number, data in enumerate(images):
        expected = np.asarray(Image.open(io.BytesIO(data)).resize(size[::-1], Image.Resampling.BILINEAR))
        assert np.abs(found[number].astype(int) - expected).max() <= 1


def test_a_centred_part_is_that_of_pillow(tmp_path):
    data = encoded(picture(5, 200, 120), "PNG")
    write(tmp_path / "images.parquet", [data])
    found = arrays(feed(tmp_path / "images.parquet", ms.image("image", 56, crop="center", fraction=0.7)))[0]
    box = (100 - 42, 60 - 42, 100 + 42, 60 + 42)
    expected = Image.open(io.BytesIO(data)).resize((56, 56), Image.Resampling.BILINEAR, box=box)
    assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_values_are_those_of_torchvision(tmp_path, dtype, layout):
    data = encoded(picture(6), "PNG")
    write(tmp_path / "images.parquet", [data])
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    column = ms.image("image", [HEIGHT, WIDTH], mean=mean, std=std, dtype=dtype, layout=layout)
    found = arrays(feed(tmp_path / "images.parquet", column))[0]
    # ToTensor, then Normalize.
    values = (pixels(data).astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)
    expected = values.astype(found.dtype)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found, expected if layout == "NHWC" else expected.transpose(2, 0, 1))


def test_random_parts_differ_by_epoch_and_come_back_with_a_state(tmp_path):
    write(tmp_path / "images.parquet", [encoded(picture(seed), "JPEG") for seed in range(32)])
    jitter = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    column = ms.image("image", 40, crop="random_resized", flip=True, jitter=jitter)
    of = feed(tmp_path / "images.parquet", column, epochs=2, shuffle_rows=16, seed=3)
    loader = ms.Loader(of)
    epochs = []
    for _ in loader.epochs:
        epochs.append({int(n): image.copy() for batch in loader for n, image in zip(batch["number"], batch["image"])})
    assert len(epochs[0]) == len(epochs[1]) == 32
    assert all((epochs[0][n] != epochs[1][n]).any() for n in range(32))

    first = ms.Loader(of)
    batches = iter(first)
    state = [next(batches) for _ in range(3)][-1].state_dict()
    again = ms.Loader(of)
    again.load_state_dict(state)
    rest = {int(n): image.copy() for batch in again for n, image in zip(batch["number"], batch["image"])}
    assert len(rest) == 32 - 3 * 4
    for number, image in rest.items():
        np.testing.assert_array_equal(image, epochs[0][number])


def test_ranks_of_several_machines_have_the_images_of_those_of_one(tmp_path):
    write(tmp_path / "images.parquet", [encoded(picture(seed), "JPEG") for seed in range(32)])
    column = ms.image("image", 40, crop="random_resized", flip=True)
    of = feed(tmp_path / "images.parquet", column, batch_size=8, seed=3)

    def see(loader):
        return [(batch["number"].copy(), batch["image"].copy()) for batch in loader]

    one, two = (ranks(of, 4, see, local_world=here) for here in (4, 2))
    assert all(len(steps) == 4 for steps in one)
    for of_one, of_two in zip(one, two):
        for (numbers, images), (same_numbers, same_images) in zip(of_one, of_two, strict=True):
            np.testing.assert_array_equal(same_numbers, numbers)
            np.testing.assert_array_equal(same_images, images)


def test_evaluations_have_nothing_random(tmp_path):
    write(tmp_path / "images.parquet", [encoded(picture(seed, 80, 80), "PNG") for seed in range(6)])
    column = ms.image("image", 35, crop="random_resized", flip=True, jitter={"hue": 0.5})
    path = tmp_path / "images.parquet"
    loader = ms.Loader(feed(path, column, eval={"val": str(path)}))
    held_out = loader.evaluate("val")
    found = {int(n): image.copy() for batch in held_out for n, image in zip(batch["number"], batch["image"])}
    assert sorted(found) == list(range(6))
    for number, image in found.items():
        # 0.875 of 80 pixels.
        expected = picture(number, 80, 80).resize((35, 35), Image.Resampling.BILINEAR, box=(5, 5, 75, 75))
        assert np.abs(image.astype(int) - np.asarray(expected)).max() <= 1


def test_fast_decoding_is_near_the_exact_one(tmp_path):
    write(tmp_path / "images.parquet", [encoded(picture(seed, 640, 480), "JPEG", quality=95) for seed in range(3)])
    exact, fast = (
        arrays(feed(tmp_path / "images.parquet", ms.image("image", [60, 80], decode=decode)))
        for decode in ["exact", "fast"]
    )
    for number in exact:
        differences = np.abs(exact[number].astype(int) - fast[number])
        assert 0 < differences.mean() < 6, differences.mean()


def test_one_percent_of_broken_images_is_counted(tmp_path):
    """Invalid JPEG leaks, kills the pipeline (DALI 4740, 4076)."""
    whole = [encoded(picture(seed), "JPEG") for seed in range(10)]
    images = [whole[n % 10] for n in range(600)]
    for place, number in enumerate(range(50, 600, 100)):
        images[number] = [b"", b"no image", whole[0][:200], whole[1][: len(whole[1]) // 2]][place % 4]
    write(tmp_path / "images.parquet", images)
    column = ms.image("image", [HEIGHT, WIDTH])
    with pytest.raises(ms.FeedError, match=r"images\.parquet.*record 50\b.*`image`"):
        arrays(feed(tmp_path / "images.parquet", column))
    found = arrays(feed(tmp_path / "images.parquet", column, on_bad_record="skip", max_bad_records=6))
    # Those that are no images are skipped; damaged ones, whose rows are drawn by then, are zeros.
    broken = [number for number, image in found.items() if not image.any()]
    assert sorted(broken) == [250, 350] and set(range(600)) - set(found) == {50, 150, 450, 550}
    with pytest.raises(ms.FeedError, match="more than 5 bad records"):
        arrays(feed(tmp_path / "images.parquet", column, on_bad_record="skip", max_bad_records=5))


def test_broken_images_leak_no_memory(tmp_path):
    """DALI 4740: memory grows with each invalid JPEG."""
    whole = [encoded(picture(seed, 320, 240), "JPEG") for seed in range(10)]
    images = [whole[n % 10] for n in range(300)]
    for number in range(5, 300, 10):
        images[number] = [b"no image", whole[0][: len(whole[0]) // 2], whole[1][:200]][number % 3]
    write(tmp_path / "images.parquet", images)
    column = ms.image("image", [HEIGHT, WIDTH])
    of = feed(tmp_path / "images.parquet", column, batch_size=50, epochs=8, on_bad_record="skip", max_bad_records=10_000)
    loader, after, broken = ms.Loader(of), [], 0
    for _ in loader.epochs:
        broken += sum(not image.any() for batch in loader for image in batch["image"])
        after.append(memory(host()))
    assert broken > 0 and len(after) == 8
    assert max(after[3:]) < after[2] + (4 << 20), after
