"""Megatron's datasets by their published rules, in NumPy and slowly: a stream of
documents, windows of it, shuffled by RandomState. Written beside the C++, not after
it: samples are slices of the stream here, walks over documents there."""

import itertools
import re
import struct

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6,
         "float32": 7, "uint16": 8}


def write_dataset(prefix, documents, dtype="uint16", modes=False):
    """PREFIX.bin and PREFIX.idx, a sequence each document."""
    dtype = np.dtype(dtype)
    lengths = np.array([len(each) for each in documents], "<i4")
    ends = np.cumsum(lengths, dtype="<i8") * dtype.itemsize
    with open(f"{prefix}.bin", "wb") as file:
        for each in documents:
            file.write(np.asarray(each, dtype).tobytes())
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype.name],
                                                len(lengths), len(lengths) + 1))
        file.write(lengths.tobytes())
        file.write(np.concatenate([[0], ends[:-1]]).astype("<i8").tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
        if modes:
            file.write(np.zeros(len(lengths), "i1").tobytes())


def random_documents(rng, count, longest, vocabulary, empty=0.05):
    lengths = rng.integers(1, longest + 1, count)
    lengths[rng.random(count) < empty] = 0
    return [rng.integers(0, vocabulary, length) for length in lengths]


def split_matrix(split):
    shares = [float(each) for each in re.findall(r"[.0-9]+", split)]
    shares = np.array(shares + [0.0] * (3 - len(shares)))
    ends = list(itertools.accumulate((shares / shares.sum()).tolist(), initial=0))
    return [None if end <= begin else (begin, end)
            for begin, end in zip(ends, ends[1:])]


class Gpt:
    """A GPTDataset: its arrays, and the text of its samples."""

    def __init__(self, documents, length, seed=1234, samples=None, split=None,
                 use="train", extra=1, pads_last=False):
        begin, end = (0.0, 1.0) if split is None else split_matrix(split)[
            ("train", "valid", "test").index(use)]
        ids = np.arange(int(round(begin * float(len(documents)))),
                        int(round(end * float(len(documents)))), dtype=np.int32)
        tokens = sum(len(documents[i]) for i in ids)
        wanted = 0 if samples is None else samples * length + extra
        passes = max(1, -(-wanted // tokens))
        self.length, self.extra = length, extra
        spent = passes * tokens - extra
        self.size = (int(np.ceil(np.float32(spent) / np.float32(length))) if pads_last
                     else spent // length)
        first = self.size
        if passes > 1:
            before = ((passes - 1) * tokens - extra) // length
            if samples - before < int(0.80 * ((tokens - extra) // length)):
                first = before
        random = np.random.RandomState(seed)

        def shuffled(array):
            random.shuffle(array)
            return array

        if first == self.size:
            self.documents = shuffled(np.tile(ids, passes))
        else:
            self.documents = np.concatenate(
                [shuffled(np.tile(ids, passes - 1)), shuffled(ids.copy())])
        self.shuffled = np.concatenate(
            [shuffled(np.arange(first, dtype=np.uint32)),
             shuffled(np.arange(first, self.size, dtype=np.uint32))])
        self.stream = np.concatenate([documents[i] for i in self.documents]).astype(int)
        self.ends = np.cumsum([len(documents[i]) for i in self.documents])

    def text(self, i):
        """The tokens of a sample, with the last label; shorter at the end of valid."""
        begin = int(self.shuffled[i]) * self.length
        return self.stream[begin:begin + self.length + self.extra]

    def begins(self):
        """The sample index: the document that has the last token of the sample before,
        and what a sample begins behind in it."""
        places = np.minimum(np.arange(self.size + 1) * self.length,
                            len(self.stream) - self.extra)
        document = np.searchsorted(self.ends, places + self.extra - 1, side="right")
        before = np.concatenate([[0], self.ends])[document]
        begins = np.stack([document, places - before], axis=1)
        begins[0] = 0
        return begins.astype(np.int32)


def randperm(size, seed):
    """torch.randperm of a CPU generator with this seed."""
    draws = np.random.RandomState(seed).randint(0, 2**32, size, np.uint32).tolist()
    numbers = list(range(size))
    for i in range(size - 1):
        at = i + draws[i] % (size - i)
        numbers[i], numbers[at] = numbers[at], numbers[i]
    return numbers


def features(text, length, pad=-1, eod=None, mask_eod=False, reset=False):
    """What GPTDataset makes of a sample's text."""
    text = np.concatenate([text, np.full(length + 1 - len(text), pad)])
    tokens, labels = text[:-1].copy(), text[1:].copy()
    mask = np.ones(length, np.float32)
    if mask_eod:
        mask[tokens == eod] = 0
    positions = np.arange(length)
    if reset:
        starts = np.zeros(length, int)
        after = np.flatnonzero(tokens == eod) + 1
        starts[after[after < length]] = after[after < length]
        positions = positions - np.maximum.accumulate(starts)
    mask[labels == pad] = 0
    tokens[tokens == pad] = 0
    labels[labels == pad] = 0
    return {"tokens": tokens, "labels": labels, "loss_mask": mask,
            "position_ids": positions}


def normalized(weights):
    weights = np.array(weights, np.float64)
    return weights / np.sum(weights)


def share(weight, samples, surplus=0.0):
    return int(np.ceil(np.ceil(samples * weight) * (1 + surplus)))


def blended(weights, size):
    """The dataset index and the dataset sample index of so many samples."""
    return _blend(normalized(weights), size, None)


def blended_all(sizes):
    return _blend(np.array(sizes) / float(sum(sizes)), sum(sizes), sizes)


def _blend(weights, size, sizes):
    taken = np.zeros(len(weights))
    parts, samples = np.empty(size, np.int16), np.empty(size, np.int64)
    for row in range(size):
        behind = weights * max(float(row), 1.0) - taken
        if sizes is not None:
            behind[taken == sizes] = -np.inf
        part = int(np.argmax(behind))
        parts[row], samples[row] = part, taken[part]
        taken[part] += 1
    return parts, samples
