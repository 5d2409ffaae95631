"""Feeds of tokenized documents, packed into sequences. A token is the number of its document and its place there."""

import collections
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream import packing
from millstream.loader import Ragged
from support import ranks

LENGTH = 128
DOCUMENTS = 2_000
# More than the tokens of any document.
PLACES = 4_096
HOWS = ["best_fit", "concatenate"]


def documents(count=DOCUMENTS, length=LENGTH, seed=1):
    """Documents of lognormal lengths: some are empty, some longer than two sequences, some exactly as long as one or two."""
    random = np.random.default_rng(seed)
    lengths = np.exp(random.normal(np.log(length / 4), 1, count)).astype(int)
    lengths[::50] = 0
    lengths[7::100] = random.integers(2 * length + 1, 4 * length, len(lengths[7::100]))
    lengths[8::100], lengths[9::100] = length, 2 * length
    assert lengths.max() < PLACES
    return [(number + 1) * PLACES + np.arange(of, dtype=np.int32) for number, of in enumerate(lengths)]


def write(directory, tokens, files=3, **more):
    """Writes Parquet with the documents in `input_ids`, and further lists."""
    for number, part in enumerate(np.array_split(np.arange(len(tokens)), files)):
        lists = {"input_ids": tokens, **more}
        table = {name: pa.array([of[row] for row in part], pa.list_(pa.int32())) for name, of in lists.items()}
        pq.write_table(pa.table(table), directory / f"part-{number}.parquet", row_group_size=100)
    return str(directory / "part-*.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tokens"), documents())


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return write(tmp_path_factory.mktemp("few"), documents(300), files=2)


def feed(train, how="best_fit", length=LENGTH, columns=None, **more):
    columns = columns or {"tokens": ms.tokens("input_ids")}
    options = {"batch_size": 16, "shuffle_rows": 500, "lanes": 1, "seed": 7, **more}
    return ms.Feed(train=train, columns=columns, pack=ms.pack(length=length, how=how), **options)


def content(batch):
    """The bytes of all columns."""
    parts = {name: value if isinstance(value, Ragged) else [value] for name, value in batch.items()}
    return {name: [(str(part.dtype), part.shape, part.tobytes()) for part in of] for name, of in parts.items()}


def sequences(batch, length=LENGTH, column="tokens", pad=0):
    """The pieces of each sequence, whose boundaries are those of `cu_seqlens`; compares the other columns with it."""
    tokens, segments, positions = batch[column], batch["segment_ids"], batch["positions"]
    offsets, ends = batch["cu_seqlens"]
    assert tokens.shape == segments.shape == positions.shape == (batch.rows, length)
    assert segments.dtype == positions.dtype == ends.dtype == np.int32 and len(offsets) == batch.rows + 1
    found = []
    for row in range(batch.rows):
        of = ends[offsets[row] : offsets[row + 1]]
        lengths, filled = np.diff(of), of[-1]
        assert of[0] == 0 and 0 < filled <= length and (lengths > 0).all()
        padding = np.zeros(length - filled, np.int32)
        numbers = np.repeat(np.arange(1, len(of)), lengths)
        places = np.concatenate([np.arange(of) for of in lengths])
        np.testing.assert_array_equal(segments[row], np.concatenate([numbers, padding]))
        np.testing.assert_array_equal(positions[row], np.concatenate([places, padding]))
        assert (tokens[row, filled:] == pad).all()
        found.append(np.split(tokens[row, :filled].copy(), of[1:-1]))
    return found


def epoch(loader, **more):
    return [sequence for batch in loader for sequence in sequences(batch, **more)]


def cut(tokens, length=LENGTH):
    """The pieces of documents in which `best_fit` packs them."""
    return [of[first : first + length] for of in tokens for first in range(0, len(of), length)]


def counted(pieces):
    return collections.Counter(tuple(piece.tolist()) for piece in pieces)


def pieces_of(found):
    return [piece for sequence in found for piece in sequence]


def padding(found, length=LENGTH):
    return 1 - sum(map(len, pieces_of(found))) / (length * len(found))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("how", HOWS)
def test_each_token_occurs_once_per_epoch(data, how, lanes):
    loader = ms.Loader(feed(data, how, lanes=lanes, epochs=2))
    with pytest.raises(TypeError, match="number of batches is not known"):
        len(loader)
    assert loader.columns["tokens"].dtype == "int32"
    orders = []
    for number in loader.epochs:
        found = []
        for batch in loader:
            assert batch.epoch == number and batch["tokens"].dtype == np.int32
            found += sequences(batch)
        tokens = np.concatenate(pieces_of(found))
        np.testing.assert_array_equal(np.sort(tokens), np.concatenate(documents()))
        # A piece has the tokens of one document, in their order, and no boundary lies between tokens that belong together.
        for sequence in found:
            joined = np.concatenate(sequence)
            borders = np.flatnonzero(np.diff(joined) != 1) + 1
            np.testing.assert_array_equal(borders, np.cumsum([len(piece) for piece in sequence])[:-1])
        orders.append(tokens)
        full = sum(sum(map(len, sequence)) == LENGTH for sequence in found)
        if how == "best_fit":
            assert counted(pieces_of(found)) == counted(cut(documents()))
            assert padding(found) < (0.01 if lanes == 1 else 0.02)
        else:
            windows = DOCUMENTS * lanes / 500 + lanes
            assert len(found) - full <= windows
    assert (orders[0] != orders[1]).any()


def best_fit(lengths, length):
    """Best-fit decreasing: the tokens in each sequence."""
    filled = []
    for of in sorted(lengths, reverse=True):
        fitting = [place for place, tokens in enumerate(filled) if tokens + of <= length]
        if fitting:
            filled[max(fitting, key=lambda place: filled[place])] += of
        else:
            filled.append(of)
    return filled


def assert_best_fit(found, length):
    """Asserts that best-fit decreasing makes these sequences, whichever it chooses of pieces and of sequences that are equal."""
    waiting = [sorted(map(len, sequence)) for sequence in found]
    space = [length] * len(waiting)
    for of in sorted((of for lengths in waiting for of in lengths), reverse=True):
        begun = [place for place, left in enumerate(space) if of <= left < length]
        least = min((space[place] for place in begun), default=length)
        chosen = [place for place, left in enumerate(space) if left == least and waiting[place][-1:] == [of]]
        assert chosen, f"a piece of {of} tokens is not in a sequence with a space of {least}"
        # It is filled until no such piece fits any more.
        place = max(chosen, key=lambda place: waiting[place].count(of))
        space[place] -= waiting[place].pop()


def test_a_window_is_packed_by_best_fit_decreasing(few):
    found = epoch(ms.Loader(feed(few, shuffle_rows=1_000)))
    pieces = pieces_of(found)
    assert counted(pieces) == counted(cut(documents(300)))
    assert sorted(sum(map(len, sequence)) for sequence in found) == sorted(best_fit(map(len, pieces), LENGTH))
    assert_best_fit(found, LENGTH)
    # That fails for sequences that are not best.
    with pytest.raises(AssertionError, match="is not in a sequence"):
        assert_best_fit([[piece] for piece in pieces], LENGTH)


def test_a_window_is_concatenated_without_gaps(few):
    found = epoch(ms.Loader(feed(few, "concatenate", shuffle_rows=1_000)))
    total = sum(map(len, documents(300)))
    assert len(found) == -(-total // LENGTH)
    assert sorted(sum(map(len, sequence)) for sequence in found) == sorted([LENGTH] * (total // LENGTH) + [total % LENGTH])
    # Each piece is a whole document but for the first and the last of a sequence.
    lengths = list(map(len, documents(300)))
    for sequence in found:
        for piece in sequence[1:-1]:
            assert piece[0] % PLACES == 0 and len(piece) == lengths[piece[0] // PLACES - 1]


@pytest.mark.parametrize("how", HOWS)
def test_what_follows_a_state_is_equal(few, how):
    options = {"shuffle_rows": 64, "lanes": 2, "batch_size": 8, "epochs": 2}
    whole = ms.Loader(feed(few, how, **options))
    batches = [(batch.epoch, batch.state_dict(), content(batch)) for _ in whole.epochs for batch in whole]
    places = [place for place, (of, _, _) in enumerate(batches) if of == 0]
    assert 10 < len(places) < len(batches)
    for place in places:
        again = ms.Loader(feed(few, how, **options))
        again.load_state_dict(json.loads(json.dumps(batches[place][1])))
        rest = [content(batch) for _ in again.epochs for batch in again]
        assert rest == [of for _, _, of in batches[place + 1 :]], place
        again.close()


def padded(loader):
    """The sequences of each batch, after a look at the rows that are padding."""
    found = []
    for batch in loader:
        rows, (offsets, ends) = batch.rows, batch["cu_seqlens"]
        assert batch["tokens"].shape == (batch.place.capacity, LENGTH) and batch.mask.sum() == rows
        assert len(offsets) == batch.place.capacity + 1
        # Whether such a row has a 0 or nothing, it has no piece.
        assert not ends[offsets[rows] :].any()
        for name in ("tokens", "segment_ids", "positions"):
            assert not batch[name][rows:].any()
        columns = {name: batch[name][:rows].copy() for name in ("tokens", "segment_ids", "positions")}
        lengths = [ends[offsets[row] : offsets[row + 1]].tolist() for row in range(rows)]
        found.append((columns, lengths))
    return found


@pytest.mark.parametrize("how", HOWS)
def test_ranks_share_the_batches_of_one(few, how):
    options = {"shuffle_rows": 100, "lanes": 2, "epochs": 2}
    # With a short last batch in the first epoch.
    sequences = len(epoch(ms.Loader(feed(few, how, **options))))
    size = next(size for size in (8, 12, 16) if sequences % size)
    of = feed(few, how, batch_size=size, **options)
    whole = ranks(of, 1, padded)[0]
    assert len(whole) > 10 and len(whole[-1][1]) == sequences % size
    for world, local_world in ((2, 2), (4, 4), (4, 2)):
        seen = ranks(of, world, padded, local_world=local_world)
        assert {len(taken) for taken in seen} == {len(whole)}
        for step, (columns, lengths) in enumerate(whole):
            for name, expected in columns.items():
                np.testing.assert_array_equal(np.concatenate([taken[step][0][name] for taken in seen]), expected)
            assert [of for taken in seen for of in taken[step][1]] == lengths


def masks(tokens):
    return [of % 2 for of in tokens]


TWO = {"tokens": ("input_ids", "int32", 1, 2, 9), "loss_mask": ("mask", "uint8", 0, 1, 0)}


def two():
    return {
        name: ms.tokens(column, dtype, bos=bos, eos=eos, pad=pad) for name, (column, dtype, bos, eos, pad) in TWO.items()
    }


def test_columns_of_a_document_are_packed_alike_and_marked(tmp_path):
    tokens = documents(300)
    # Of these, an empty one is its marks, and one of exactly a sequence is cut.
    marked = [np.concatenate([[1], of, [2]]) for of in tokens]
    marked_masks = [np.concatenate([[0], of, [1]]) for of in masks(tokens)]
    train = write(tmp_path, tokens, mask=masks(tokens))
    assert {len(of) for of in marked} >= {2, LENGTH + 2}
    for how in HOWS:
        found = []
        for batch in ms.Loader(feed(train, how, columns=two())):
            assert batch["loss_mask"].dtype == np.uint8
            sides = sequences(batch, pad=9), sequences(batch, column="loss_mask")
            found += [np.stack(both) for both in zip(*map(pieces_of, sides), strict=True)]
        if how == "best_fit":
            expected = [np.stack(both) for both in zip(cut(marked), cut(marked_masks), strict=True)]
            assert collections.Counter(map(bytes_of, found)) == collections.Counter(map(bytes_of, expected))
        else:
            pairs = np.concatenate(found, axis=1)
            expected = np.stack([np.concatenate(marked), np.concatenate(marked_masks)])
            np.testing.assert_array_equal(by_columns(pairs), by_columns(expected))


def bytes_of(array):
    return array.astype(np.int64).tobytes()


def by_columns(pairs):
    return pairs[:, np.lexsort(pairs)]


def test_columns_of_different_lengths_are_a_bad_record_with_an_address(tmp_path):
    tokens = documents(50)
    mask = masks(tokens)
    mask[13] = mask[13][:-1]
    train = write(tmp_path, tokens, files=1, mask=mask)
    with pytest.raises(ms.FeedError, match=r"part-0\.parquet.*record 13\b"):
        list(ms.Loader(feed(train, columns=two())))
    found = epoch(ms.Loader(feed(train, columns=two(), on_bad_record="skip")), pad=9)
    expected = [np.concatenate([[1], of, [2]]) for number, of in enumerate(tokens) if number != 13]
    assert counted(pieces_of(found)) == counted(cut(expected))


def test_documents_are_truncated_to_a_maximum(few):
    columns = {"tokens": ms.tokens("input_ids", maximum=50)}
    found = epoch(ms.Loader(feed(few, columns=columns)))
    assert counted(pieces_of(found)) == counted(cut([of[:50] for of in documents(300)]))


def write_forms(directory, tokens):
    """Writes the documents in all forms; returns the files and the column of each."""
    import tensorflow as tf

    def feature(**kind):
        return tf.train.Feature(**kind)

    with tf.io.TFRecordWriter(str(directory / "train.tfrecord")) as lists:
        with tf.io.TFRecordWriter(str(directory / "stored.tfrecord")) as stored:
            for of in tokens:
                ids = {"input_ids": feature(int64_list=tf.train.Int64List(value=of))}
                lists.write(tf.train.Example(features=tf.train.Features(feature=ids)).SerializeToString())
                value = of.astype("<u2").tobytes()
                ids = {"input_ids": feature(bytes_list=tf.train.BytesList(value=[value]))}
                stored.write(tf.train.Example(features=tf.train.Features(feature=ids)).SerializeToString())
    with open(directory / "train.jsonl", "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"input_ids": of.tolist()}) + "\n" for of in tokens)
    columns = {
        "lists": [of.tolist() for of in tokens],
        "uint16": [of.astype("<u2").tobytes() for of in tokens],
        "uint32": [of.astype("<u4").tobytes() for of in tokens],
    }
    pq.write_table(pa.table(columns), directory / "train.parquet")
    return {
        "Parquet": ("train.parquet", ms.tokens("lists", eos=2)),
        "Parquet, uint16": ("train.parquet", ms.tokens("uint16", stored="uint16", eos=2)),
        "Parquet, uint32": ("train.parquet", ms.tokens("uint32", stored="uint32", eos=2)),
        "TFRecord": ("train.tfrecord", ms.tokens("input_ids", eos=2)),
        "TFRecord, uint16": ("stored.tfrecord", ms.tokens("input_ids", stored="uint16", eos=2)),
        "JSON lines": ("train.jsonl", ms.tokens("input_ids", eos=2)),
    }


def test_all_forms_of_documents_give_equal_batches(tmp_path):
    random = np.random.default_rng(3)
    # Tokens of 16 bits without a sign. One document is empty.
    tokens = [random.integers(3, 1 << 16, of) for of in random.integers(1, 300, 200)]
    tokens[20] = tokens[20][:0]
    forms = write_forms(tmp_path, tokens)
    marked = [np.append(of, 2) for of in tokens]
    batches = {}
    for form, (name, column) in forms.items():
        path = str(tmp_path / name)
        loader = ms.Loader(feed(path, columns={"tokens": column}, eval={"same": path}, shuffle_rows=64))
        batches[form] = [content(batch) for batch in loader], [content(batch) for batch in loader.evaluate("same")]
        if form == "Parquet":
            found = [sequence for batch in loader.evaluate("same") for sequence in sequences(batch)]
            assert counted(pieces_of(found)) == counted(cut(marked))
    for form, of in batches.items():
        assert of == batches["Parquet"], form
    assert len(of[0]) > 10 and len(of[1]) > 10


def test_bytes_that_are_no_tokens_are_bad_records(tmp_path):
    pq.write_table(pa.table({"input_ids": [b"\1\0\2\0", b"\1\0\2"]}), tmp_path / "odd.parquet")
    with pytest.raises(ms.FeedError, match=r"odd\.parquet.*record 1\b"):
        list(ms.Loader(feed(str(tmp_path / "odd.parquet"), columns={"tokens": ms.tokens("input_ids", stored="uint16")})))
    pq.write_table(pa.table({"input_ids": [[1, 2], [3, 1 << 40]]}), tmp_path / "large.parquet")
    with pytest.raises(ms.FeedError, match=r"large\.parquet.*record 1\b"):
        list(ms.Loader(feed(str(tmp_path / "large.parquet"))))


def test_a_feed_of_toml_is_that_of_its_arguments(few, tmp_path):
    text = (
        f"seed = 7\n[data]\ntrain = {json.dumps(few)}\nbatch_size = 16\nshuffle_rows = 500\nlanes = 1\n"
        '[columns]\ntokens = { kind = "tokens", column = "input_ids", dtype = "int32", eos = 2 }\n'
        '[pack]\nlength = 128\nhow = "concatenate"\n'
    )
    (tmp_path / "feed.toml").write_text(text)
    of = feed(few, "concatenate", columns={"tokens": ms.tokens("input_ids", eos=2)})
    batches = [[content(batch) for batch in ms.Loader(each)] for each in (ms.Feed.from_toml(tmp_path / "feed.toml"), of)]
    assert batches[0] == batches[1] and batches[0]


def label():
    return {"label": ms.tensor("label", "int32")}


def tokens_of(name="tokens", **more):
    return {name: ms.tokens(name, **more)}


def packed(columns, **more):
    return {"columns": columns, "pack": ms.pack(**{"length": LENGTH, **more})}


# By name: the arguments of a feed, and parts of the message.
MISTAKES = {
    "no window": (lambda: {**packed(tokens_of()), "shuffle_rows": 0}, ["data.shuffle_rows: "]),
    "a column of another kind": (lambda: packed(label() | tokens_of()), ["columns.label", "tokens"]),
    "an end in one column alone": (lambda: packed(tokens_of("a", eos=2) | tokens_of("b")), ["columns.", "eos"]),
    "a beginning in one column alone": (lambda: packed(tokens_of("a") | tokens_of("b", bos=1)), ["columns.", "bos"]),
    "nothing to pack": (lambda: packed(label()), ["pack", "tokens"]),
    "not packed": (lambda: {"columns": tokens_of()}, ["tokens", "pack"]),
    "no length": (lambda: packed(tokens_of(), length=0), ["pack.length: "]),
    "an unknown way": (lambda: packed(tokens_of(), how="best-fit"), ["pack.how: ", "best_fit"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained(mistake):
    arguments, parts = MISTAKES[mistake]
    with pytest.raises(ms.SpecError) as error:
        ms.Feed(train="x", **{"batch_size": 8, "shuffle_rows": 64, **arguments()})
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize("how", HOWS)
def test_held_out_documents_are_packed_in_their_order(data, few, how):
    loader = ms.Loader(feed(data, how, eval={"val": few}, shuffle_rows=100, lanes=2))
    iterator = iter(loader)
    before = [content(next(iterator)) for _ in range(2)]
    found = [[sequence for batch in loader.evaluate("val") for sequence in sequences(batch)] for _ in range(2)]
    after = [content(batch) for batch in iterator]
    tokens = [np.concatenate(pieces_of(each)) for each in found]
    np.testing.assert_array_equal(*tokens)
    expected = np.concatenate(documents(300))
    if how == "best_fit":
        assert counted(pieces_of(found[0])) == counted(cut(documents(300)))
    else:
        np.testing.assert_array_equal(tokens[0], expected)
    # Training continues where it was.
    assert before + after == [content(batch) for batch in ms.Loader(feed(data, how, shuffle_rows=100, lanes=2))]


def loader_of(framework):
    if framework == "jax":
        import millstream.jax

        return millstream.jax.Loader
    return ms.Loader


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_masks_and_labels_are_those_of_plain_loops(tmp_path, framework):
    train = write(tmp_path, documents(60, length=20), files=1)
    padded = 0
    for batch in loader_of(framework)(feed(train, length=20, batch_size=4), tail="pad"):
        for causal in (True, False):
            mask = packing.attention_mask(batch, causal=causal)
            assert type(mask) is type(batch["tokens"]) and mask.dtype == bool
            np.testing.assert_array_equal(np.asarray(mask), plain_mask(np.asarray(batch["segment_ids"]), causal))
        np.testing.assert_array_equal(np.asarray(packing.attention_mask(batch)), packing.attention_mask(batch, causal=True))
        for ignore in (-100, -1):
            labels = packing.labels(batch, column="tokens", ignore=ignore)
            assert type(labels) is type(batch["tokens"])
            expected = plain_labels(*(np.asarray(batch[name]) for name in ("tokens", "segment_ids", "positions")), ignore)
            np.testing.assert_array_equal(np.asarray(labels), expected)
        assert (np.asarray(packing.labels(batch))[:, 0] == -100).all()
        padded += int((np.asarray(batch["segment_ids"]) == 0).sum())
    assert padded > 0


def plain_mask(segments, causal):
    batch, length = segments.shape
    mask = np.zeros((batch, length, length), bool)
    for row in range(batch):
        for query in range(length):
            for key in range(query + 1 if causal else length):
                mask[row, query, key] = segments[row, query] == segments[row, key] != 0
    return mask


def plain_labels(tokens, segments, positions, ignore):
    labels = np.full(tokens.shape, ignore)
    for row, place in np.ndindex(*tokens.shape):
        if segments[row, place] != 0 and positions[row, place] != 0:
            labels[row, place] = tokens[row, place]
    return labels


def word_tokenizer(words):
    """A tokenizer of words between white space; others are token 0."""
    vocabulary = {"[UNK]": 0} | {word: number for number, word in enumerate(words, 1)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip


def test_texts_are_tokenized(tmp_path):
    words, tokens = [f"word{number}" for number in range(40)], documents(100)
    numbers = [of % 42 for of in tokens]
    # Words 41 and 0 are unknown.
    texts = [" ".join(f"word{number - 1}" for number in of) for of in numbers]
    expected = [np.where(of > 40, 0, of).astype(np.int32) for of in numbers]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(word_tokenizer(words)))
    pq.write_table(pa.table({"text": texts, "ids": [of.tolist() for of in expected]}), tmp_path / "train.parquet")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def batches(name, column):
        of = feed(str(tmp_path / name), columns={"tokens": column})
        return [content(batch) for batch in ms.Loader(of)]

    by_ids = batches("train.parquet", ms.tokens("ids", eos=41))
    for name in ("train.parquet", "train.jsonl"):
        assert batches(name, ms.tokens("text", tokenizer=path, eos=41)) == by_ids

    def of_tokenizer():
        return ms.Loader(feed(str(tmp_path / "train.parquet"), columns={"tokens": ms.tokens("text", tokenizer=path)}))

    state = next(iter(of_tokenizer())).state_dict()
    path.write_text(json.dumps(word_tokenizer(words[::-1])))
    with pytest.raises(ms.FeedError, match="the packing"):
        resumed = of_tokenizer()
        resumed.load_state_dict(state)
        next(iter(resumed))
    path.write_text("{}")
    with pytest.raises(ms.FeedError, match=r"tokenizer\.json: no tokenizer"):
        next(iter(of_tokenizer()))
    path.unlink()
    with pytest.raises(ms.FeedError, match=r"tokenizer\.json"):
        next(iter(of_tokenizer()))
