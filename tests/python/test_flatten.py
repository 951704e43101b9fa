"""Packed batches as one sequence, and labels of them, beside Hugging Face's
DataCollatorWithFlattening and its models: the same arrays, and the loss of documents that
no other one touches."""

import itertools
import random

import numpy as np
import penstock
import pytest
from penstock import packing

LENGTH = 32
RANDOM = random.Random(3)
DOCUMENTS = [[1 + (7 * d + i) % 99 for i in range(RANDOM.randint(1, 24))] for d in range(60)]


@pytest.fixture
def batches(attach, tmp_path):
    """Batches of 4 rows, with what `with_` says; the last one may have fewer."""
    def batches_with(*with_):
        (tmp_path / "rows.jsonl").write_text("".join(f'{{"tokens": {each}}}\n'
                                                    for each in DOCUMENTS))
        data = penstock.Dataset.json_lines(tmp_path / "rows.jsonl", {
            "tokens": {"dtype": "int32", "max_length": 24}})
        return attach(data.shuffle(seed=1).batch(4, pack=penstock.pack(LENGTH, with_=with_)))
    return batches_with


ALL = ["position_ids", "document_ids", "seq_lens", "cu_seqlens", "loss_mask", "records"]


def documents_of(batch):
    """The documents of each row."""
    return [[DOCUMENTS[record] for record in row if record >= 0] for row in batch["records"]]


def check(flat, segments, ids, padding):
    """segments: documents and the padding of each row, as (items, is document)."""
    lengths = [len(items) for items, _ in segments]
    ends = [0, *itertools.accumulate(lengths)]
    assert flat["cu_seqlens"].dtype == np.int32 and flat["cu_seqlens"].tolist() == ends
    assert flat["max_length"] == max(lengths) and isinstance(flat["max_length"], int)
    assert flat["tokens"].tolist() == [sum((items for items, _ in segments), [])]
    assert flat["position_ids"].tolist() == [
        [i if real else 0 for items, real in segments for i in range(len(items))]]
    assert flat["loss_mask"].tolist() == [
        [int(real) for items, real in segments for _ in items]]
    numbers, count = [], itertools.count()
    for items, real in segments:
        numbers += [next(count) if real else -1] * len(items)
    assert flat["document_ids"].dtype == np.int32
    assert flat["document_ids"].tolist() == [numbers]
    assert flat["seq_lens"].tolist() == [len(items) for items, real in segments if real]
    assert flat["records"].tolist() == [i for i in ids.ravel().tolist() if i >= 0]
    assert padding or -1 not in numbers


@pytest.mark.parametrize("padding", [True, False])
def test_rows_become_one_sequence(batches, padding):
    padded = 0
    for batch in batches(*ALL):
        segments = []
        for row in documents_of(batch):
            segments += [(items, True) for items in row]
            rest = LENGTH - sum(map(len, row))
            padded += rest
            if padding and rest:
                segments.append(([0] * rest, False))
        flat = packing.flatten(batch, padding=padding)
        check(flat, segments, batch["records"], padding)
        if padding:
            assert np.shares_memory(flat["tokens"], batch["tokens"])
    assert padded > 0


@pytest.mark.parametrize("padding", [True, False])
def test_empty_segments_make_all_batches_alike(batches, padding):
    for batch in batches("seq_lens"):
        rows, documents = batch["seq_lens"].shape
        less, all_ = (packing.flatten(batch, padding=padding, empty=empty)["cu_seqlens"]
                      for empty in (False, True))
        assert all_.shape == (1 + rows * (documents + padding),)
        assert np.unique(all_).tolist() == less.tolist()


def test_the_segments_are_those_of_cu_seqlens(batches):
    for batch in batches("seq_lens", "cu_seqlens"):
        ends = batch["cu_seqlens"][:, 1:] + LENGTH * np.arange(batch.rows)[:, None]
        flat = packing.flatten(batch, empty=True)
        assert np.unique(ends).tolist() == np.unique(flat["cu_seqlens"][1:]).tolist()


def test_a_batch_without_rows(batches):
    batch = next(iter(batches(*ALL)))
    flat = packing.flatten({name: array[:0] for name, array in batch.items()})
    assert flat["tokens"].shape == (1, 0) and flat["max_length"] == 0
    assert flat["cu_seqlens"].tolist() == [0]


@pytest.mark.parametrize("shifted", [False, True])
def test_labels_are_not_of_another_document(batches, shifted):
    batch = next(iter(batches("position_ids", "records", "seq_lens")))
    found = packing.labels(batch["tokens"], batch["position_ids"], shifted=shifted, ignore=-7)
    assert found.dtype == np.int64
    for row, documents in zip(found.tolist(), documents_of(batch)):
        wanted = sum((items[1:] + [-7] if shifted else [-7] + items[1:]
                      for items in documents), [])
        assert row == wanted + [-7] * (LENGTH - len(wanted))


def test_labels_of_small_numbers_and_of_other_shapes():
    tokens = np.array([[1, 2, 3, 4]], np.uint16)
    positions = np.array([[0, 1, 0, 1]])
    assert packing.labels(tokens, positions).tolist() == [[-100, 2, -100, 4]]
    with pytest.raises(ValueError, match=r"tokens have the shape \(1, 4\), position_ids \(1, 3\)"):
        packing.labels(tokens, positions[:, :3])


@pytest.mark.parametrize("shifted", [False, True])
def test_labels_leave_out_what_the_loss_mask_does(attach, tmp_path, shifted):
    # 5 is not in the vocabulary: its document is left out.
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"tokens": {[d] * 9}}}\n'
                                                for d in range(1, 13)))
    data = penstock.Dataset.json_lines(tmp_path / "rows.jsonl", {
        "tokens": {"dtype": "int32", "max_length": 9}}).map(
            penstock.lookup([d for d in range(13) if d != 5], oov_buckets=0, feature="tokens"))
    trained = []
    for batch in attach(data.on_error("skip").batch(2, pack=penstock.pack(
            LENGTH, with_=["position_ids", "loss_mask", "seq_lens"]))):
        for each in (batch, packing.flatten(batch), packing.flatten(batch, padding=False)):
            found = packing.labels(each["tokens"], each["position_ids"], each["loss_mask"],
                                   shifted=shifted)
            without = packing.labels(each["tokens"], each["position_ids"], shifted=shifted)
            items = each["loss_mask"] != 0
            if shifted:
                items[:, :-1], items[:, -1] = items[:, 1:], False
            assert (found == np.where(items, without, -100)).all()
        trained += found[found != -100].tolist()
    # The number that lookup gives each; 8 of 9 items have one before them.
    assert sorted(trained) == sorted(8 * list(range(1, 12)))


@pytest.mark.parametrize("batch, words", [
    ({"tokens": np.zeros((2, 8))}, "no 'seq_lens': add it to `with_` of penstock.pack"),
    ({"seq_lens": np.ones((2, 3), "int32")}, "no list that is packed"),
    ({"seq_lens": np.ones((2, 3), "int32"), "tokens": np.zeros((2, 8)), "n": np.zeros(2)},
     r"'n' has the shape \(2,\), and the batch rows of 8 items: it is no packed list"),
    ({"seq_lens": np.ones((2, 3), "int32"), "n": np.zeros(2)},
     "'n' has the shape .* rows of no items"),
    ({"seq_lens": np.ones((2, 3), "int32"), "tokens": np.zeros((3, 8))}, "no packed list"),
    ({"seq_lens": np.ones((2**10, 3), "int32"),
      "tokens": np.broadcast_to(np.zeros((), "uint8"), (2**10, 2**22))},
     "1024 rows of 4194304 items are more than the 2147483647"),
])
def test_what_is_no_packed_batch_is_told(batch, words):
    with pytest.raises(ValueError, match=words):
        packing.flatten(batch)


# ---- beside transformers


@pytest.fixture
def collator():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers").DataCollatorWithFlattening


def test_tensors_are_those_of_the_collator(batches, collator):
    import torch
    collate = collator(return_flash_attn_kwargs=True, return_seq_idx=True)
    for batch in batches(*ALL):
        wanted = collate([{"input_ids": items} for row in documents_of(batch)
                          for items in row])
        tensors = batch.torch()
        flat = packing.flatten(tensors, padding=False)
        assert all(isinstance(each, torch.Tensor) for name, each in flat.items()
                   if name != "max_length")
        found = {"input_ids": flat["tokens"].long(),
                 "position_ids": flat["position_ids"].long(),
                 "labels": packing.labels(flat["tokens"], flat["position_ids"]),
                 "seq_idx": flat["document_ids"],
                 "cu_seq_lens_q": flat["cu_seqlens"], "cu_seq_lens_k": flat["cu_seqlens"],
                 "max_length_q": flat["max_length"], "max_length_k": flat["max_length"]}
        assert found.keys() == wanted.keys()
        for name, each in wanted.items():
            if isinstance(each, torch.Tensor):
                torch.testing.assert_close(found[name], each, rtol=0, atol=0, msg=name)
            else:
                assert found[name] == each
        kept = packing.flatten(tensors)
        assert kept["tokens"].data_ptr() == tensors["tokens"].data_ptr()


def test_a_model_keeps_documents_apart(batches, collator):
    """The loss of a batch with its padding is that of each document alone."""
    import torch
    import transformers
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, use_cache=False)).eval()  # with a cache it takes no position_ids
    batch = next(iter(batches("position_ids", "seq_lens", "records")))
    flat = packing.flatten(batch.torch())
    with torch.no_grad():
        found = model(input_ids=flat["tokens"], position_ids=flat["position_ids"].long(),
                      labels=packing.labels(flat["tokens"], flat["position_ids"])).loss
        total = count = 0
        for items in sum(documents_of(batch), []):
            ids = torch.tensor([items])
            if len(items) > 1:
                total += model(input_ids=ids, labels=ids).loss * (len(items) - 1)
                count += len(items) - 1
    torch.testing.assert_close(found, total / count)
