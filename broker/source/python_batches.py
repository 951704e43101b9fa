"""Batches of a pickled dataset: the samples of a rank's step, collated here.

What the template says: {"length": ..., "features": [one of bytes, with its room]}.

A call: the number of rows, the size of the memory, and whether a process has ended
with these rows: samples are then made one by one. The heap has seed, and record and
pass of each row; SKIPPED in a record: its sample is to blame for the end of a
process, and is not made again. One answer: bytes of the memory, offset
and size of the batch in it (0: none), then of each row without a sample of its own
its index, the record that took its place (NONE: it is left out), and the size of a
text, which follows. MORE, without a batch, says that samples are being made.
FAILED: the batch is too large, or its sampler raised.

The memory: a u64, the index of the row in work (NONE: no single one), then the heap.

A batch: its size, offset and size of a pickle, the numbers of tensors and of other
buffers, the size of what follows the batch, and offsets and sizes of the buffers, all
u64; then those. The pickle names tensors
by persistent ids (number, dtype, shape), and classes of named tuples that no module
has (tuple_class); the other buffers are its own, in their
order (penstock/map_style.py takes it apart). Where a sample that raises ends the
job, the batch has a pickle of 0 bytes and a buffer, the text for the rank to raise.
"""

import io
import mmap
import pickle
import time
import typing

ROOM_BYTES_MIN = 64 << 10
BATCH_BYTES = 256 << 20  # at most, unless max_bytes or the first one says more
BATCH_BYTES_MAX = 1 << 30
MEMORY_BYTES_MAX = 2 << 30  # PythonRecordProcess::kMemoryBytesMax
FAILED_MAX = 1000  # rows of an answer
SKIPPED = 1 << 63
NONE = (1 << 64) - 1
HEAP = 64  # its offset
BUFFER_ALIGN = 64
NOTHING = object()  # no batch; collate_fn may make None
BUFFER_BYTES_MIN = 256  # of a buffer of its own
TEXTS_MAX = 16000  # in an answer
TELL_AFTER_S = 1


def round_up(size, to):
    return -(-size // to) * to


class Ordered:
    """The order of a sampler, which is asked once per pass; if it keeps a state of
    its own, for all passes from the first on. Generators that it has are seeded for
    each pass: they are no state."""

    def __init__(self, opened, generators):
        self.opened = opened
        self.sampler = opened.sampler
        self.generators = generators
        self.orders = {}
        self.begin = None if hasattr(self.sampler, "set_epoch") else self.state()
        self.begin_kept = self.kept if self.begin else []
        self.asked = None  # passes so far, of one with a state

    def indices(self, record, number, seed):
        if number not in self.orders:
            while len(self.orders) > 1:  # rows of two passes meet at a seam
                del self.orders[min(self.orders)]
            self.orders[number] = self.order(number, seed)
        each = self.orders[number][record]
        return each if self.opened.batch_size == 0 else [each]

    def order(self, number, seed):
        if self.asked is None:
            order = self.ask(number, seed)
            if self.begin is None or self.state() == self.begin:
                return order
            self.asked = NONE
        if self.asked > number:
            self.restore()
            self.asked = 0
        while self.asked <= number:
            order = self.ask(self.asked, seed)
            self.asked += 1
        return order

    def ask(self, number, seed):
        value = mix(seed, number, MASK)
        self.generators.set_all(value)
        self.state()
        for i, generator in enumerate(
                each for each in self.kept if hasattr(each, "manual_seed")):
            generator.manual_seed((value >> 1) + i)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(number)
        if self.opened.batch_size == 0:
            order = [list(each) for each in self.sampler]
        else:
            order = list(self.sampler)
        if len(order) != len(self.sampler):
            raise ValueError(f"the sampler gave {len(order)} indices; its length is "
                             f"{len(self.sampler)}")
        return order

    def state(self):
        """Pickled, without the dataset and generators, which go to self.kept; None: it
        cannot be."""
        import cloudpickle
        torch = sys.modules.get("torch")
        others = () if torch is None else (torch.Generator,)
        kept = self.kept = []

        class Pickler(cloudpickle.Pickler):
            def persistent_id(_, value):
                if value is not self.opened.dataset and not isinstance(value, others):
                    return None
                for place, each in enumerate(kept):
                    if each is value:
                        return place
                kept.append(value)
                return len(kept) - 1

        file = io.BytesIO()
        try:
            Pickler(file, protocol=5).dump(getattr(self.sampler, "__dict__", None))
        except Exception:  # it holds an iterator since it was asked
            return None
        return file.getvalue()

    def restore(self):
        kept = self.begin_kept

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number):
                return kept[number]

        vars(self.sampler).clear()
        vars(self.sampler).update(Unpickler(io.BytesIO(self.begin)).load())


def batch_pickler(file, tensors, others):
    """A pickler for the rank, which has the classes of the script: those go by name,
    those of functions as cloudpickle knows them again. Bytes of tensors, and of
    other buffers, are added to these."""
    import cloudpickle
    torch = sys.modules.get("torch")

    def buffer(value):
        data = value.raw()
        if data.nbytes < BUFFER_BYTES_MIN:
            return True
        others.append(data)
        return False

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, value):
            if type(value) is type:
                return tuple_class(value)
            if torch is None or type(value) is not torch.Tensor or not (
                    value.device.type == "cpu" and value.layout is torch.strided
                    and not value.requires_grad and not value.is_neg()
                    and not value.is_conj() and not value.is_quantized
                    and not value.is_nested and value.numel() > 0):
                return None
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            tensors.append(memoryview(data))
            return len(tensors) - 1, value.dtype, tuple(value.shape)

        def reducer_override(self, value):
            if torch is not None and type(value) is torch.Tensor and value.is_nested:
                # As it is reduced else, it has a storage of its own.
                return torch.nested.as_nested_tensor, (list(value.unbind()),)
            if isinstance(value, type) and "<locals>" not in value.__qualname__ and (
                    value.__module__ in ("__main__", "__mp_main__")):
                module = sys.modules.setdefault(value.__module__,
                                                sys.modules["__main__"])
                name, _, rest = value.__qualname__.partition(".")
                if not rest:
                    setattr(module, name, value)
                return NotImplemented
            return super().reducer_override(value)

    return Pickler(file, protocol=5, buffer_callback=buffer)


def tuple_class(value):
    """What the rank finds a class of named tuples by that its module does not have
    under its name, as one in a class; None: it does, or the class is no such one."""
    if not issubclass(value, tuple) or not hasattr(value, "_fields") or (
            "<locals>" in value.__qualname__):
        return None
    found = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return None if found is value else (
        value.__module__, value.__qualname__, value._fields)


class Failure(typing.NamedTuple):
    """What the rank gets of a batch in place of it."""

    text: str


class BatchPieces:
    """A batch as it lies in memory: see above."""

    def __init__(self, batch):
        file = io.BytesIO()
        tensors, others = [], []
        if isinstance(batch, Failure):
            others.append(memoryview(batch.text.encode("utf-8", "replace")))
        else:
            batch_pickler(file, tensors, others).dump(batch)
        head = 8 * (6 + 2 * (len(tensors) + len(others)))
        self.pieces = [(head, file.getbuffer())]
        end = head + self.pieces[0][1].nbytes
        for data in tensors + others:
            self.pieces.append((round_up(end, BUFFER_ALIGN), data))
            end = self.pieces[-1][0] + data.nbytes
        self.bytes = end
        numbers = [end, head, self.pieces[0][1].nbytes, len(tensors), len(others), 0]
        for offset, data in self.pieces[1:]:
            numbers += (offset, data.nbytes)
        self.pieces.insert(0, (0, struct.pack(f"<{len(numbers)}Q", *numbers)))


class BatchMemory:
    """The memory of a worker and its process."""

    def __init__(self, numpy):
        self.numpy = numpy
        self.bytes = 0

    def follow(self, size):
        """It has become so large."""
        if size != self.bytes:
            self.mapping = mmap.mmap(MEMORY, size)
            self.in_work = self.numpy.frombuffer(self.mapping, "<u8", 1)
            self.bytes = size

    def asked(self, rows):
        return self.numpy.frombuffer(
            self.mapping, "<u8", 1 + 2 * rows, HEAP).tolist()

    def put(self, batch, at=HEAP):
        """Writes it over what was asked for; returns its offset."""
        end = at + batch.bytes
        if end > self.bytes:
            if end > MEMORY_BYTES_MAX:
                raise ValueError(f"the memory of a process has room for {MEMORY_BYTES_MAX} "
                                 f"bytes of batches; {end} are wanted")
            size = min(round_up(end + end // 2, mmap.PAGESIZE), MEMORY_BYTES_MAX)
            os.ftruncate(MEMORY, size)
            in_work = int(self.in_work[0])
            self.follow(size)
            self.in_work[0] = in_work
        for offset, data in batch.pieces:
            self.mapping[at + offset:at + offset + len(data)] = data
        return at


class Batches:
    """Makes the batches of calls."""

    def __init__(self, opened, options, growth):
        import numpy
        self.opened = opened
        self.growth = growth
        self.dataset = opened.dataset
        self.limit = options["features"][0]["shape"][0]
        self.generators = Generators(numpy)
        self.ordered = None if opened.sampler is None else Ordered(opened, self.generators)
        self.memory = BatchMemory(numpy)
        self.fetches = getattr(self.dataset, "__getitems__", None)

    def make(self, call, numbers, link):
        count, size, self.careful = numbers
        self.memory.follow(size)
        seed, *rest = self.memory.asked(count)
        rows = list(zip(rest[::2], rest[1::2]))
        made, failed = self.made(seed, rows, lambda: link.send(
            answer(call, MORE, struct.pack("<3Q", self.memory.bytes, 0, 0))))
        offset, size = 0, 0
        if made is not NOTHING:
            try:
                pieces = BatchPieces(made)
            except Exception as error:  # it cannot be pickled
                pieces = BatchPieces(self.failure(rows[0][0], said(error)))
            if pieces.bytes > self.limit:
                raise ValueError(f"a batch has {pieces.bytes} bytes; at most "
                                 f"{self.limit} are allowed (max_bytes=)")
            offset, size = self.memory.put(pieces), pieces.bytes
        if len(failed) > FAILED_MAX:
            raise ValueError(f"{len(failed)} samples of one batch cannot be made; the "
                             f"first: {min(failed.items())[1][1].decode()}")
        body = struct.pack("<3Q", self.memory.bytes, offset, size)
        left = TEXTS_MAX
        for row, (other, text) in sorted(failed.items()):
            text = text[:left]
            left -= len(text)
            body += struct.pack("<3Q", row, other, len(text)) + text
        link.send(answer(call, LAST if self.growth.exceeded() else DONE, body))

    def made(self, seed, rows, tell):
        """(the batch; NOTHING: it has no samples, failed rows)."""
        while True:
            self.memory.in_work[0] = NONE
            if self.ordered is not None:
                indices = [self.ordered.indices(record & ~SKIPPED, number, seed)
                           for record, number in rows]
            else:
                indices = [[record & ~SKIPPED] for record, _ in rows]
            # After the sampler, which may have used them.
            states = self.generators.begin()
            samples, failed = self.samples(seed, rows, indices, tell)
            self.memory.in_work[0] = NONE
            batch = NOTHING
            if failed and self.opened.on_error == "fail":
                (row, (_, text)), = failed.items()
                batch, failed = self.failure(rows[row][0], text.decode()), {}
            elif not failed or samples:
                self.seed(mix(seed, *reversed(rows[0])) ^ 1)
                try:
                    batch = self.opened.collate(samples)
                except BaseException as error:
                    batch = self.failure(rows[0][0], said(error))
            if not self.generators.notice(states):
                return batch, failed

    def failure(self, record, text):
        name = type(self.dataset).__name__
        return Failure(
            f"dataset '{name}': sample {record & ~SKIPPED}: {text.rstrip('.')}; set `on_error` to "
            "`skip` or `substitute` to go on without such samples")

    def seed(self, value):
        if self.generators.drawn:
            self.generators.set(value & MASK)

    def samples(self, seed, rows, indices, tell):
        """(samples of all rows, {row: (the record in its place, why)}). indices:
        those of each row; a row of a batch sampler has several."""
        samples = self.fetched(indices)
        if samples is not None:
            return samples, {}
        made, failed = [], {}  # made: lists of samples, by row
        told_s = time.monotonic()
        for row, ((record, number), of_record) in enumerate(zip(rows, indices)):
            self.memory.in_work[0] = row
            if time.monotonic() - told_s > TELL_AFTER_S:
                tell()
                told_s = time.monotonic()
            of_row = []
            try:
                if record & SKIPPED:
                    raise Told("its process has ended, twice at this sample")
                for place, each in enumerate(of_record):
                    self.seed(mix(seed, number, record) + place)
                    of_row.append(self.dataset[each])
            except BaseException as error:
                # A sampler's index is not the sample's place in the epoch.
                which = "" if self.ordered is None or record & SKIPPED else (
                    f"of index {of_record[len(of_row)]!r}: ")
                of_row = []
                failed[row] = (NONE, (which + said(error)).encode("utf-8", "replace"))
                if self.opened.on_error == "fail":
                    break
            made.append(of_row)
        if self.opened.on_error == "substitute":
            self.substitute(rows, made, failed)
        return [sample for of_row in made for sample in of_row], failed

    def substitute(self, rows, made, failed):
        """By the next row of the batch that has a sample."""
        for row in list(failed):
            for step in range(1, len(rows)):
                other = (row + step) % len(rows)
                if other not in failed:
                    made[row] = made[other]
                    failed[row] = (rows[other][0], failed[row][1])
                    break

    def fetched(self, indices):
        """All samples at once, where the dataset can; None: one by one."""
        if self.fetches is None or self.generators.drawn or self.careful:
            return None
        flat = [index for of_record in indices for index in of_record]
        try:
            samples = self.fetches(flat)
            return samples if len(samples) == len(flat) else None
        except BaseException:
            return None  # of one row; which one is found one by one


def describe_batches(opened, options):
    opened.begin_worker(options)
    sampler = opened.sampler
    length = length_of(opened.dataset if sampler is None else sampler)
    size, rows = 0, opened.batch_size
    try:
        index = 0 if sampler is None else next(iter(sampler))
        if rows == 0:
            index, rows = index[0], len(index)
        size = BatchPieces(opened.collate([opened.dataset[index]])).bytes
    except BaseException:  # it is told when its batch is made
        pass
    room = round_up(max(2 * rows * size, ROOM_BYTES_MIN), mmap.PAGESIZE)
    limit = options["max_bytes"] or max(16 * room, BATCH_BYTES)
    limit = round_up(min(limit, BATCH_BYTES_MAX), mmap.PAGESIZE)
    return {"length": length, "structure": {},
            "features": [{"name": "batch", "dtype": "uint8", "shape": [limit],
                          "encoded": False, "room": min(room, limit)}]}
