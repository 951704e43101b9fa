"""Source megatron delivers the samples of Megatron's GPTDataset and BlendedDataset, in
their order, by the published rules (megatron_rules.py); megatron_judge.py compares
with megatron-core itself."""

import json
from pathlib import Path

import megatron_rules as rules
import numpy as np
import penstock
import pytest

FEATURES = ["tokens", "labels", "loss_mask", "position_ids"]


def rows_of(attach, dataset, **options):
    rows = {}
    for batch in attach(dataset, **options):
        for name in batch:
            rows.setdefault(name, []).append(np.array(batch[name]))
    return {name: np.concatenate(each) for name, each in rows.items()}


def check(rows, texts, length, **masks):
    assert len(rows["tokens"]) == len(texts)
    for i, text in enumerate(texts):
        wanted = rules.features(text, length, **masks)
        for name in rows.keys() & wanted.keys():
            np.testing.assert_array_equal(rows[name][i], wanted[name], f"{name} {i}")


def documents_of(seed, count=300, longest=90, vocabulary=1000):
    return rules.random_documents(np.random.default_rng(seed), count, longest, vocabulary)


CONFIGURATIONS = [
    dict(),
    dict(seed=1),
    dict(seed=4294967295, samples=100),
    dict(samples=1000),          # the last pass is shuffled apart
    dict(samples=1230),          # or with the others
    dict(split="969,30,1"),
    dict(split="969,30,1", use="valid", samples=40),
    dict(split="0.5,0.25,0.25", use="test", samples=77),
    dict(extra_token=False),
    dict(extra_token=False, samples=900),
    dict(use="valid", last_partial="pad"),
    dict(use="valid", last_partial="pad", extra_token=False),
    dict(use="valid", split="1,1", last_partial="pad", samples=500),
]


def options_of(**options):
    """As Dataset.megatron takes them."""
    config = {key: options.pop(key) for key in ("extra_token", "last_partial")
              if key in options}
    return {**options, "gpt_config": penstock.gpt_config(**config)} if config else options


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_samples_are_those_of_the_rules(attach, tmp_path, options):
    documents = documents_of(len(str(options)))
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 32, options.get("seed", 1234), options.get("samples"),
                    options.get("split"), options.get("use", "train"),
                    int(options.get("extra_token", True)),
                    options.get("last_partial") == "pad")
    rows = rows_of(attach, penstock.Dataset.megatron(
        tmp_path / "a", 32, features=FEATURES, **options_of(**options)).batch(16))
    assert rows["tokens"].dtype == np.int64 and rows["loss_mask"].dtype == np.float32
    check(rows, [gpt.text(i) for i in range(gpt.size)], 32)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_tokens_of_every_dtype(attach, tmp_path, dtype):
    documents = documents_of(3, vocabulary=120)
    rules.write_dataset(tmp_path / "a", documents, dtype, modes=True)
    gpt = rules.Gpt(documents, 64)
    rows = rows_of(attach, penstock.Dataset.megatron(tmp_path / "a", 64).batch(16))
    assert list(rows) == ["tokens", "labels"]
    check(rows, [gpt.text(i) for i in range(gpt.size)], 64)


def test_masks_and_positions(attach, tmp_path):
    documents = documents_of(4, vocabulary=12)
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 48)
    rows = rows_of(attach, penstock.Dataset.megatron(
        tmp_path / "a", 48, features=FEATURES, vocab_size=12, gpt_config=penstock.gpt_config(
            pad=3, eod_mask_loss=5, reset_position_ids=5)).batch(16))
    check(rows, [gpt.text(i) for i in range(gpt.size)], 48, pad=3, eod=5,
          mask_eod=True, reset=True)


def blend_of(tmp_path, counts):
    """Documents of each dataset, and their prefixes."""
    made = [documents_of(i, count) for i, count in enumerate(counts)]
    for i, documents in enumerate(made):
        rules.write_dataset(tmp_path / f"part{i}", documents)
    return made, [tmp_path / f"part{i}" for i in range(len(made))]


@pytest.mark.parametrize("split", [None, "8,1,1"])
@pytest.mark.parametrize("weights", [[0.7, 0.2, 0.1], [30, 50, 70.5]])
def test_a_blend_with_weights(attach, tmp_path, weights, split):
    made, prefixes = blend_of(tmp_path, [100, 200, 50])
    shares = rules.normalized(weights)
    gpts = [rules.Gpt(documents, 32, samples=rules.share(weight, 1000, 0.005), split=split)
            for documents, weight in zip(made, shares)]
    size = sum(rules.share(weight, 1000) for weight in shares)
    parts, samples = rules.blended(shares, size)
    rows = rows_of(attach, penstock.Dataset.megatron(
        list(zip(weights, prefixes)), 32, samples=1000, split=split,
        features=["tokens", "labels", "dataset_id"]).batch(16))
    check(rows, [gpts[p].text(s) for p, s in zip(parts, samples)], 32)
    np.testing.assert_array_equal(rows["dataset_id"], parts)


@pytest.mark.parametrize("split", [None, "8,1,1"])
def test_one_prefix_with_a_weight(attach, tmp_path, split):
    """With a `split` it is a blend, of a part with a surplus: other shuffles."""
    (documents,), prefixes = blend_of(tmp_path, [100])
    asked = 1000 if split is None else rules.share(1.0, 1000, 0.005)
    gpt = rules.Gpt(documents, 32, samples=asked, split=split)
    rows = rows_of(attach, penstock.Dataset.megatron(
        [(5, prefixes[0])], 32, samples=1000, split=split).batch(16))
    check(rows, [gpt.text(i) for i in range(gpt.size if split is None else 1000)], 32)


@pytest.mark.parametrize("samples", [None, 100, 10**6])
def test_a_blend_without_weights(attach, tmp_path, samples):
    made, prefixes = blend_of(tmp_path, [100, 200, 50, 10])
    gpts = [rules.Gpt(documents, 32) for documents in made]
    sizes = [gpt.size for gpt in gpts]
    parts, numbers = (rules.blended_all(sizes) if samples is None else
                      rules.blended(sizes, min(samples, sum(sizes))))
    rows = rows_of(attach, penstock.Dataset.megatron(prefixes, 32, samples=samples).batch(9))
    check(rows, [gpts[p].text(s) for p, s in zip(parts, numbers)], 32)


# ---- what Megatron has left

def leave_cache(folder, prefix, gpt, samples, matrix, split="train", **changed):
    folder.mkdir(exist_ok=True)
    base = folder / f"0f-GPTDataset-{split}-"
    description = {"class": "GPTDataset", "dataset_path": str(prefix),
                   "num_samples": samples, "index_split": split, "random_seed": 1234,
                   "sequence_length": gpt.length, "split": None, "split_matrix": matrix,
                   "tokenizer": {"class": "Null"}, **changed}
    Path(f"{base}description.txt").write_text(json.dumps(description, indent=4))
    np.save(f"{base}document_index.npy", gpt.documents)
    np.save(f"{base}sample_index.npy", gpt.begins())
    np.save(f"{base}shuffle_index.npy", gpt.shuffled)
    return base, description


@pytest.mark.parametrize("samples", [None, 700])
@pytest.mark.parametrize("extra_token", [True, False])
def test_the_indices_of_a_cache_are_taken(attach, tmp_path, samples, extra_token):
    documents = documents_of(7)
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 32, samples=samples, extra=int(extra_token))
    gpt.shuffled[[3, 8]] = gpt.shuffled[[8, 3]]  # as no seed shuffles
    leave_cache(tmp_path / "cache", tmp_path / "a", gpt, samples, None)
    rows = rows_of(attach, penstock.Dataset.megatron(
        tmp_path / "a", 32, samples=samples, cache=tmp_path / "cache",
        gpt_config=penstock.gpt_config(extra_token=extra_token)).batch(16))
    check(rows, [gpt.text(i) for i in range(gpt.size)], 32)


def test_a_cache_of_another_configuration_is_named(attach, tmp_path):
    documents = documents_of(7)
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 32)
    base, _ = leave_cache(tmp_path / "cache", tmp_path / "a", gpt, None, None)

    def fails(error, message, **options):
        with pytest.raises(error, match=message):
            attach(penstock.Dataset.megatron(
                tmp_path / "a", options.pop("length", 32), cache=tmp_path / "cache",
                **options).batch(1), job=f"fails{len(str(options))}{message[:9]}")

    fails(penstock.NotFound, "the nearest, .*0f-GPTDataset-train-description.txt, has "
          "`random_seed` 1234, where 7 is wanted; leave `cache` out", seed=7)
    fails(penstock.NotFound, "`num_samples` null, where 10 is wanted", samples=10)
    fails(penstock.NotFound, r"`split_matrix` null, where \[\[0, 0.5\], \[0.5, 1\], null\]",
          split="1,1")
    # The description does not tell this.
    leave_cache(tmp_path / "cache", tmp_path / "a", rules.Gpt(documents, 32, extra=0), None,
                None)
    fails(penstock.DataLoss, "sample_index.npy: sample [0-9]* begins at token .*; wanted token")
    np.save(f"{base}sample_index.npy", gpt.begins()[:, ::-1])
    fails(penstock.DataLoss, "sample_index.npy: sample 1 begins at token .* of the order")
    np.save(f"{base}sample_index.npy", gpt.begins())
    np.save(f"{base}shuffle_index.npy", gpt.shuffled[:-1])
    fails(penstock.DataLoss, rf"shuffle_index.npy: it has {gpt.size - 1} entries; samples "
          rf"are {gpt.size} by this")
    gpt.shuffled[5] = gpt.size
    np.save(f"{base}shuffle_index.npy", gpt.shuffled)
    fails(penstock.DataLoss, rf"shuffle_index.npy: entry 5 is {gpt.size}; the file is damaged")
    np.save(f"{base}document_index.npy", gpt.documents.astype(float))
    fails(penstock.DataLoss, r"document_index.npy: float64 \[300\]; wanted int32 \[n\]")


@pytest.mark.parametrize("samples, name, damage, message", [
    (None, "shuffle_index", lambda array: array.fill(0), "each of [0-9]* numbers once"),
    (None, "shuffle_index", lambda array: array[3:5].fill(7), "each of [0-9]* numbers once"),
    (None, "document_index", lambda array: array.fill(0), "each of 100 numbers once"),
    (900, "document_index", lambda array: array[-3:].fill(0), "each of 100 numbers 6 times")])
def test_a_cache_that_a_crash_has_cut_is_refused(attach, tmp_path, samples, name, damage, message):
    # Documents of one length, so that samples lie in them whatever their order is.
    documents = [np.full(50, i, np.uint16) for i in range(100)]
    rules.write_dataset(tmp_path / "a", documents)
    base, _ = leave_cache(tmp_path / "cache", tmp_path / "a",
                          rules.Gpt(documents, 32, samples=samples), samples, None)
    array = np.load(f"{base}{name}.npy")
    damage(array)
    np.save(f"{base}{name}.npy", array)
    with pytest.raises(penstock.DataLoss, match=f"{name}.npy: it does not have {message}; delete"):
        attach(penstock.Dataset.megatron(tmp_path / "a", 32, samples=samples,
                                         cache=tmp_path / "cache").batch(1))


def test_a_blend_of_a_cache(attach, tmp_path):
    made, prefixes = blend_of(tmp_path, [100, 200])
    weights = rules.normalized([3, 7])
    asked = [rules.share(weight, 500, 0.005) for weight in weights]
    size = sum(rules.share(weight, 500) for weight in weights)
    gpts, descriptions = [], []
    for i, documents in enumerate(made):
        gpts.append(rules.Gpt(documents, 32, samples=asked[i]))
        base, description = leave_cache(tmp_path / "cache", prefixes[i], gpts[i], asked[i],
                                        None)
        for each in (tmp_path / "cache").glob("0f-*"):  # a hash of its own
            each.rename(str(each).replace("0f-", f"{i}0-"))
        descriptions.append(description)
    parts, samples = rules.blended(weights, size)
    parts[[0, 1]] = parts[[1, 0]]  # as no weights blend
    base = tmp_path / "cache" / "ab-BlendedDataset-train-"
    Path(f"{base}description.txt").write_text(json.dumps({
        "class": "BlendedDataset", "datasets": descriptions, "split": "train",
        "weights": rules.normalized(weights).tolist(), "size": size}))
    np.save(f"{base}dataset_index.npy", parts)
    np.save(f"{base}dataset_sample_index.npy", samples)
    dataset = penstock.Dataset.megatron(list(zip([3, 7], prefixes)), 32, samples=500,
                                        cache=tmp_path / "cache").batch(16)
    rows = rows_of(attach, dataset)
    check(rows, [gpts[p].text(s) for p, s in zip(parts, samples)], 32)
    samples[7] = gpts[parts[7]].size
    np.save(f"{base}dataset_sample_index.npy", samples)
    with pytest.raises(penstock.DataLoss, match="dataset_sample_index.npy: entry 7 is"):
        attach(dataset, job="damaged")


# ---- orders and states

def test_windows_in_penstocks_order(attach, tmp_path):
    documents = documents_of(9)
    rules.write_dataset(tmp_path / "a", documents)
    stream = np.concatenate(documents)
    windows = penstock.Dataset.megatron(tmp_path / "a", 32, order="penstock")
    rows = rows_of(attach, windows.batch(16))
    texts = [stream[at:at + 33] for at in range(0, len(stream) - 32, 32)]
    check(rows, texts, 32)
    shuffled = rows_of(attach, windows.shuffle(seed=3).batch(16), job="shuffled")
    assert sorted(shuffled["tokens"].tolist()) == sorted(rows["tokens"].tolist())
    assert shuffled["tokens"].tolist() != rows["tokens"].tolist()


def test_consumed_samples_is_the_row_of_a_state(attach_all, tmp_path):
    """Ranks take what Megatron's sampler `single` gives theirs."""
    documents = documents_of(11)
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 32, samples=400)
    dataset = penstock.Dataset.megatron(tmp_path / "a", 32, samples=400).batch(
        per_rank=4, last="drop")
    readers = attach_all(dataset, 2, "resumed", state={"epoch": 0, "row": 120})
    steps = 0
    for consumed, batches in zip(range(120, gpt.size, 8), zip(*readers)):
        for rank, batch in enumerate(batches):
            first = consumed + 4 * rank
            check(batch, [gpt.text(i) for i in range(first, first + 4)], 32)
        steps += 1
    assert steps == (gpt.size - 120) // 8


def sampler(total, consumed, micro, rank, ranks, sharding):
    """One pass of MegatronPretrainingRandomSampler."""
    batch = micro * ranks
    active = total - total % batch
    epoch, done = divmod(consumed, active)
    if sharding:
        bucket = total // batch * micro
        order = rules.randperm(bucket, epoch)
        mine = [rank * bucket + x for x in order[done // ranks:]]
    else:
        order = rules.randperm(total // micro * micro, epoch)
        mine = order[done:][rank::ranks]
    return [mine[i:i + micro] for i in range(0, len(mine) - micro + 1, micro)]


def test_permutations_are_those_of_torch():
    torch = pytest.importorskip("torch")
    for size, seed in ((1, 0), (10, 1), (1000, 5), (100_003, 77)):
        generator = torch.Generator()
        generator.manual_seed(seed)
        assert rules.randperm(size, seed) == torch.randperm(
            size, generator=generator).tolist()


@pytest.mark.parametrize("order", ["cyclic", "cyclic_unsharded"])
@pytest.mark.parametrize("micro, ranks", [(4, 2), (3, 3), (1, 1), (2, 1)])
def test_the_sampler_cyclic(attach_all, tmp_path, order, micro, ranks):
    """As --dataloader-type cyclic, without --no-data-sharding and with it."""
    documents = documents_of(12, count=120)
    rules.write_dataset(tmp_path / "a", documents)
    gpt = rules.Gpt(documents, 32, samples=100)
    batch = micro * ranks
    active = gpt.size - gpt.size % batch
    dataset = penstock.Dataset.megatron(tmp_path / "a", 32, samples=100, order=order).batch(
        per_rank=micro).repeat(3)
    readers = attach_all(dataset, ranks, "cyclic")
    state = readers[0].state_dict()

    def check_from(readers, consumed, steps, ranks_of_order=ranks):
        for step, batches in zip(range(steps), zip(*readers)):
            row = (consumed + step * batch) % active
            epoch_begin = consumed + step * batch - row
            # As the sampler that begins here, and as the one of the epoch.
            for rank, got in enumerate(batches):
                wanted = sampler(gpt.size, epoch_begin + row, micro, rank, ranks,
                                 order == "cyclic")[0]
                again = sampler(gpt.size, epoch_begin, micro, rank, ranks,
                                order == "cyclic")[row // batch]
                assert wanted == again
                check(got, [gpt.text(i) for i in wanted], 32)

    steps = active // batch
    assert readers[0].steps_per_epoch == steps
    check_from(readers, 0, 2 * steps + 3)
    # consumed_samples is the row of a state.
    for consumed in (2 * batch, active + 3 * batch):
        epoch, row = divmod(consumed, active)
        check_from(attach_all(dataset, ranks, f"resumed-{consumed}",
                              state={**state, "epoch": epoch, "row": row}),
                   consumed, 2)


def test_cyclic_goes_on_with_other_ranks(attach_all, tmp_path):
    """The sequence of the ranks that the job began with, unlike Megatron's."""
    rules.write_dataset(tmp_path / "a", documents_of(12, count=120))
    dataset = penstock.Dataset.megatron(tmp_path / "a", 32, order="cyclic").batch(
        per_rank=4).repeat(2)

    def rows(readers, steps):
        return np.concatenate([np.array(batch["tokens"]) for _, batches in
                               zip(range(steps), zip(*readers)) for batch in batches])

    readers = attach_all(dataset, 2, "two")
    rows(readers, 3)
    state = readers[0].state_dict()
    assert state["shards"] == {"count": 2, "batch": 8}
    wanted = rows(readers, 6)
    for ranks in (1, 3):
        got = rows(attach_all(dataset, ranks, f"with-{ranks}", state=state), 12 // ranks)
        np.testing.assert_array_equal(got, wanted)


def test_a_spec_files_prefixes_are_found_from_its_folder(tmp_path):
    (tmp_path / "train.yaml").write_text(
        "source: {megatron: {blend: [[0.7, a], [0.3, /b]], sequence_length: 8, "
        "samples: 9, cache: c}}")
    source = json.loads(penstock.Dataset.from_file(tmp_path / "train.yaml").to_json())
    assert source["source"]["megatron"]["blend"] == [[0.7, f"{tmp_path}/a"], [0.3, "/b"]]
    assert source["source"]["megatron"]["cache"] == f"{tmp_path}/c"


@pytest.mark.parametrize("prefix, options, message", [
    ([(0.5, "a"), "b"], {}, r"blend\[1\]: give each prefix a weight, or none"),
    ([(0.5, "a"), (0, "b")], dict(samples=9), r"blend\[1\]: weight 0: leave the dataset out"),
    ([(0.5, "a"), (-1, "b")], dict(samples=9), r"blend\[1\]\[0\]: wanted a number from 0"),
    ([(0.5, "a"), (0.5, "b")], {}, "samples: is missing: how many samples the weights divide"),
    (["a", "b"], dict(order="penstock"), "blend: with `order: penstock`, make a `mix`"),
    ("a", dict(order="penstock", seed=7), "seed: `order: penstock` has one pass"),
    ("a", dict(split="0,0"), "split: wanted one to three numbers for train, valid and test"),
    ("a", dict(split="9,,.1.1"), "split: wanted one to three numbers"),
    ("a", dict(gpt_config={"last_partial": "pad"}),
     "gpt_config.last_partial: Megatron pads only that of `use: valid`"),
    ("a", dict(features=["tokens", "tokens"]), "features: a feature comes twice"),
    ("a", dict(seed=2**32), "seed: wanted a whole number from 0 to 4294967295"),
    ("a", dict(order="cyclic"), "order: goes by Megatron's micro batch: give"),
])
def test_a_spec_that_cannot_be_is_an_error_of_its_key(attach, prefix, options, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        attach(penstock.Dataset.megatron(prefix, 8, **options).batch(1), job="wrong")


@pytest.mark.parametrize("method", ["best_fit", "split"])
def test_without_a_length_rows_are_documents_to_pack(attach, tmp_path, method):
    documents = documents_of(8)
    rules.write_dataset(tmp_path / "a", documents)
    data = penstock.Dataset.megatron(tmp_path / "a")
    rows = rows_of(attach, data.batch(16), job="documents")
    assert rows["tokens.length"].tolist() == [len(each) for each in documents]
    for row, document in zip(rows["tokens"], documents):
        assert row.tolist() == [*document, *[0] * (len(row) - len(document))]
    rows = rows_of(attach, data.shuffle(seed=2).batch(4, pack=penstock.pack(
        128, method=method, with_=["seq_lens", "records"])), job="packed")
    found = {}
    for tokens, lengths, records in zip(rows["tokens"], rows["seq_lens"], rows["records"]):
        at = 0
        for length, record in zip(lengths, records):
            found.setdefault(record, []).append(tokens[at:at + length].tolist())
            at += length
        assert not tokens[at:].any()
    found.pop(-1)
    # Rows are shuffled, so the pieces of a document that is cut come in any order.
    for record, document in enumerate(documents):
        pieces = found.get(record, [])
        assert list(document) in [sum(pieces, []), sum(pieces[::-1], [])]
        assert len(pieces) <= (1 if method == "best_fit" else 2)
    assert method == "split" or rows["seq_lens"].sum() / rows["tokens"].size > 0.97
    part = penstock.Dataset.megatron(tmp_path / "a", split="9,1", use="valid")
    assert len(rows_of(attach, part.batch(7), job="valid")["tokens"]) == 30


@pytest.mark.parametrize("prefix, options", [
    ("a", dict(samples=9)), ("a", dict(order="penstock")), ("a", dict(seed=1)),
    ("a", dict(features=["tokens"])), (["a", "b"], {}), ("a", dict(cache="c")),
    ("a", dict(gpt_config={"pad": 1}))], ids=str)
def test_documents_have_nothing_of_samples(attach, prefix, options):
    with pytest.raises(penstock.InvalidArgument, match="is of samples: give their `seq"):
        attach(penstock.Dataset.megatron(prefix, **options).batch(1), job="wrong")


def test_a_part_that_a_blend_takes_too_often_wants_a_surplus(attach, tmp_path):
    """Rounding up makes 25 samples of 10, half of them of the first part, which has 6."""
    rules.write_dataset(tmp_path / "a", [range(20)])
    parts = [(weight, tmp_path / "a") for weight in [0.5] + 20 * [0.025]]
    with pytest.raises(penstock.InvalidArgument, match=r"blend\[0\]: 1[23] samples are taken, "
                                                       r"but .*/a has 6; a larger `surplus`"):
        attach(penstock.Dataset.megatron(parts, 19, samples=10).batch(1), job="few")
    rows = rows_of(attach, penstock.Dataset.megatron(
        parts, 19, samples=10, gpt_config=penstock.gpt_config(surplus=1.5)).batch(1))
    assert len(rows["tokens"]) == 25
