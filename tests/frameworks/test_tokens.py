"""Packed documents with real PyTorch and transformers: masks, labels, and models that train on them."""

import pathlib
import sys

import millstream as ms
import millstream.torch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from millstream import packing
from millstream.loader import Ragged
from support import check_kills, run

DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "examples" / "feeds"
PROGRAM = DIRECTORY / "language_model.py"
sys.path.insert(0, str(DIRECTORY))

import language_model


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory for the documents of the example, which are written at their first use."""
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(PROGRAM, tmp_path_factory.mktemp("undisturbed"))


def test_losses_are_those_of_the_same_batches_by_hand(data, undisturbed):
    losses, model = undisturbed
    loader, batches = ms.Loader(language_model.feed(data)), []
    for _ in loader.epochs:
        for batch in loader:
            batches.append({name: batch[name].copy() for name in ("tokens", "segment_ids", "positions")})
    assert len(batches) == len(losses) > 50
    training = language_model.Training()
    by_hand = [training.step({name: torch.from_numpy(array) for name, array in batch.items()}) for batch in batches]
    assert by_hand == list(losses.values())
    assert training.digest() == model
    # It learns, so losses depend on the order of the batches.
    assert float(by_hand[-1]) < 0.8 * float(by_hand[0])


def test_killed_programs_train_the_model_of_an_undisturbed_run(undisturbed, tmp_path):
    check_kills(PROGRAM, tmp_path, undisturbed, saves=5)


def test_masks_and_labels_are_those_of_plain_loops(data):
    of = language_model.feed(data, batch_size=4, epochs=1)
    padded = 0
    for batch, _ in zip(millstream.torch.Loader(of, tail="pad"), range(5)):
        segments, positions = batch["segment_ids"], batch["positions"]
        for causal in (True, False):
            mask = packing.attention_mask(batch, causal=causal)
            assert isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
            assert torch.equal(mask, plain_mask(segments, causal))
        labels = packing.labels(batch, ignore=-7)
        for row, place in np.ndindex(*labels.shape):
            inner = segments[row, place] != 0 and positions[row, place] != 0
            assert labels[row, place] == (batch["tokens"][row, place] if inner else -7)
        padded += int((segments == 0).sum())
    assert padded > 0


def plain_mask(segments, causal):
    batch, length = segments.shape
    mask = torch.zeros(batch, length, length, dtype=torch.bool)
    for row, ids in enumerate(segments.tolist()):
        for query in range(length):
            for key in range(query + 1 if causal else length):
                mask[row, query, key] = ids[query] == ids[key] != 0
    return mask


def model_of(kind, attention):
    """A tiny model of transformers, with random weights."""
    import transformers

    torch.manual_seed(0)
    vocabulary, length = language_model.VOCABULARY, language_model.LENGTH
    common = {"vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": attention}
    # Weights so large that what a token attends to shows in the loss.
    common["initializer_range"] = 0.3
    if kind == "gpt2":
        sizes = {"n_positions": length, "n_embd": 32, "n_layer": 2, "n_head": 2}
        config = transformers.GPT2Config(**common, **sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        return transformers.GPT2LMHeadModel(config).eval()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**common, **sizes, num_key_value_heads=2, max_position_embeddings=length)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_of_transformers_see_each_piece_alone(data, kind, attention):
    import transformers

    if kind == "gpt2" and int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("GPT-2 of older transformers accepts masks over the tokens only, not over pairs of them")
    model = model_of(kind, attention)
    loader = millstream.torch.Loader(language_model.feed(data, batch_size=4))
    pieces = padded = 0
    for batch, _ in zip(loader, range(4)):
        tokens, mask = batch["tokens"].long(), packing.attention_mask(batch)[:, None]  # [B, 1, T, T]
        arguments = {"input_ids": tokens, "labels": packing.labels(batch).long(), "position_ids": batch["positions"].long()}
        model.zero_grad()
        packed = model(**arguments, attention_mask=of_kind(mask, attention))
        packed.loss.backward()
        assert packed.loss.isfinite() and all(of.grad.isfinite().all() for of in model.parameters())
        with torch.no_grad():
            alone, predicted = piece_by_piece(model, batch, packed.logits)
            causal = model(**arguments, attention_mask=of_kind(torch.ones_like(mask).tril(), attention))
        torch.testing.assert_close(packed.loss.detach(), alone / predicted, rtol=1e-5, atol=1e-5)
        # With a causal mask alone, pieces see those before them.
        assert (causal.logits - packed.logits).abs().max() > 0.1
        pieces += int(batch["segment_ids"].amax(dim=1).sum())
        padded += int((batch["segment_ids"] == 0).sum())
    assert pieces > 30 and padded > 0


def of_kind(mask, attention):
    """The mask as this implementation of attention uses it: eager attention adds it to the scores.

    So must that of PyTorch 2.4, which yields NaN where a token attends to nothing, as padding does.
    """
    if attention == "sdpa" and not torch.__version__.startswith("2.4."):
        return mask
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


def piece_by_piece(model, batch, logits):
    """The sum of the losses of all tokens that are predicted, each piece alone, and the number of these tokens."""
    assert isinstance(batch["cu_seqlens"], Ragged)
    offsets, ends = batch["cu_seqlens"]
    total, predicted = torch.zeros(()), 0
    for row in range(batch.rows):
        of = ends[offsets[row] : offsets[row + 1]].tolist()
        for first, end in zip(of, of[1:]):
            piece = batch["tokens"][row : row + 1, first:end].long()
            alone = model(input_ids=piece, labels=piece)
            torch.testing.assert_close(logits[row, first:end], alone.logits[0], rtol=1e-4, atol=1e-4)
            if end - first > 1:
                total += alone.loss * (end - first - 1)
                predicted += end - first - 1
    return total, predicted


def texts():
    """Paragraphs of the manual, and texts that tokenizers disagree on."""
    manual = pathlib.Path(ms.__file__).resolve().parents[2] / "docs"
    assert manual.is_dir(), "the package is linked from the repository"
    paragraphs = [part for page in sorted(manual.rglob("*.md")) for part in page.read_text("utf-8").split("\n\n")]
    return [
        *paragraphs, "", " ", "\n\n  \t", "don't we'll I'M", "naïve café ﬁn", "漢字とカナ", "🙂👩‍👩‍👧 x", "a\u0301 e\u0301",
        "1234567890 12,345.67", "x" * 3_000, "\u00a0non-breaking\u2028line", "<|end|> inside <|end|>",
    ]  # fmt: skip


def trained(kind, corpus):
    """A tokenizer that Hugging Face's library has trained."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    special = ["<|end|>"]
    if kind == "byte BPE":
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer(vocab_size=2_000, special_tokens=special)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "split BPE":
        # The pattern of recent models, with a look-ahead.
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer(vocab_size=2_000, special_tokens=special)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=1_000, special_tokens=[*special, "<unk>"], unk_token="<unk>")
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=1_000, special_tokens=[*special, "[UNK]"])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["byte BPE", "split BPE", "unigram", "word pieces"])
def test_texts_have_the_tokens_of_hugging_face(tmp_path, kind):
    corpus = texts()
    tokenizer = trained(kind, corpus)
    path = tmp_path / "tokenizer.json"
    tokenizer.enable_truncation(5)
    tokenizer.save(str(path))
    tokenizer.no_truncation()
    pq.write_table(pa.table({"text": corpus}), tmp_path / "train.parquet")
    of = ms.Feed(
        train=str(tmp_path / "train.parquet"), columns={"tokens": ms.tokens("text", tokenizer=path)}, seed=1,
        pack=ms.pack(1 << 16), batch_size=4, shuffle_rows=100_000, lanes=1,
    )  # fmt: skip
    found = []
    for batch in ms.Loader(of):
        offsets, ends = batch["cu_seqlens"]
        for row in range(batch.rows):
            of_row = ends[offsets[row] : offsets[row + 1]]
            found += [tuple(piece) for piece in np.split(batch["tokens"][row, : of_row[-1]], of_row[1:-1])]
    expected = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in corpus]
    assert sorted(found) == sorted(of for of in expected if of)
