"""Batches of a pickled iterable dataset: those of one iterator of it.

What the template says: {"length": ENDLESS, "features": [one of bytes, with its room],
"iterators": their number, "begin": the size of a position, in the memory}.

A call: the size of the memory, seed, pass, whether the iterator begins, how many
batches it had given before, how many more to pass over, whether to make one then, and
the size of a state of the dataset to begin at, which lies at HEAP. One answer: the
size of the memory, the number of batches passed over, whether the iterator has ended,
offset and size of the batch, and the size of the dataset's state, which follows it.
An ended iterator gives a batch of no rows, if it can. MORE: it is at work.

A batch may lie in the memory as long as the next one is made.

Random numbers are seeded for each batch, so those of a batch do not depend on
whether the ones before it were made, passed over, or left out by a state.
"""

import contextlib
import io
import os
import pickle
import struct
import threading
import time

ENDLESS = 1 << 32  # batches of a pass: more than any has


def appear_as_one_rank():
    """Datasets divide themselves over the ranks they see; these batches are for all
    ranks of the host."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    distributed.GroupMember.WORLD = None
    distributed.get_rank = lambda group=None: 0
    distributed.get_world_size = lambda group=None: 1


def keeps_state(value):
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


class Heartbeat:
    """Says MORE while a batch is made, however long a sample takes: an iterable may
    wait for its data. A process that holds Python's lock all the time is hung."""

    def __init__(self):
        self.lock = threading.Lock()
        self.more = None  # the link and what to send
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            time.sleep(TELL_AFTER_S)
            with self.lock, contextlib.suppress(OSError):  # nobody reads it now
                if self.more:
                    link, more = self.more
                    link.send(more, socket.MSG_DONTWAIT)

    @contextlib.contextmanager
    def of(self, link, call, size):
        more = answer(call, MORE, struct.pack("<6Q", size, 0, 0, 0, 0, 0))
        with self.lock:
            self.more = link, more
        try:
            yield
        finally:
            with self.lock:
                self.more = None


class Iterators:
    """Takes batches from the iterator of this process."""

    def __init__(self, opened, options, growth):
        import numpy
        appear_as_one_rank()
        self.opened = opened
        self.dataset = opened.dataset
        self.index = options["index"]
        self.limit = options["features"][0]["shape"][0]
        self.generators = Generators(numpy)
        self.memory = BatchMemory(numpy)
        self.heartbeat = Heartbeat()
        self.last = (HEAP, 0)  # offset and size of the batch before

    def make(self, call, numbers, link):
        size, seed, number, begins, before, over, makes, state = numbers
        self.memory.follow(size)
        with self.heartbeat.of(link, call, size):
            if begins:
                self.begin(seed, number, self.memory.mapping[HEAP:HEAP + state])
            self.pass_over(before)
            passed = self.pass_over(over)
            batch, kept = None, b""
            samples = self.take() if makes and passed == over else None
            if samples is not None:
                kept = self.state()
                batch = self.collated(samples)
            ended = passed < over or makes and samples is None
            if ended:
                batch = self.without_rows()
        offset, size = HEAP, 0
        if batch is not None:
            offset, size = self.place(batch.bytes + len(kept)), batch.bytes
            batch.pieces.append((size, kept))
            batch.bytes += len(kept)
            self.memory.put(batch, offset)
        link.send(answer(call, DONE, struct.pack(
            "<6Q", self.memory.bytes, passed, ended, offset, size, len(kept))))

    def pass_over(self, count):
        """Returns how many there were."""
        for passed in range(count):
            if self.take() is None:
                return passed
        return count

    def place(self, size):
        """Beside the batch before, which is still being read."""
        offset, before = self.last
        at = HEAP if HEAP + size <= offset else round_up(offset + before, BUFFER_ALIGN)
        self.last = (at, size)
        return at

    def begin(self, seed, number, state):
        self.seed, self.number = seed, number
        self.taken = 0
        self.sample = None  # the last one, in a tuple
        self.ended = False
        self.failed = None
        self.iterator = iter(())
        self.seed_batch()
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        try:
            self.taken, kept, of_iterator, self.sample, ended = (
                pickle.loads(state) if state else (0, None, False, None, False))
            if ended:  # it may begin again when it is asked once more
                self.ended = True
                return
            if kept is not None and not of_iterator:
                self.dataset.load_state_dict(kept)
            self.iterator = iter(self.dataset)
            if of_iterator:
                self.iterator.load_state_dict(kept)
        except Exception as error:
            self.failed = self.failure(error)

    def state(self):
        """With the number of batches, and whether it has ended, where a batch of no
        rows is like the last sample; b"": none is kept."""
        for each in (self.iterator, self.dataset):
            if keeps_state(each):
                return self.pickled((
                    self.taken, None if self.ended else each.state_dict(),
                    each is self.iterator, self.sample if self.ended else None,
                    self.ended))
        return b""

    def pickled(self, state):
        """b"": it cannot be: batches before it are passed over."""
        import cloudpickle
        file = io.BytesIO()
        try:
            cloudpickle.Pickler(file, protocol=5).dump(state)
        except Exception:
            return b""
        return file.getvalue()

    def seed_batch(self):
        self.generators.set_all(
            mix(self.seed, self.number, self.index << 32 | self.taken))

    def take(self):
        """The samples of the next batch, or a Failure; None: there is none."""
        if self.failed is not None:
            failed, self.failed, self.ended = self.failed, None, True
            return failed
        if self.ended:
            return None
        self.seed_batch()
        size = self.opened.batch_size or 1
        samples = []
        try:
            # Not islice, which would call the iterator's __iter__ again.
            while len(samples) < size:
                samples.append(next(self.iterator))
                self.sample = (samples[-1],)
        except StopIteration:
            pass
        except Exception as error:
            failed = self.failure(error)
            self.taken += 1
            return failed
        self.ended = len(samples) < size
        if not samples or self.ended and self.opened.drop_last:
            return None
        self.taken += 1
        return samples

    def failure(self, error):
        return Failure(f"dataset '{type(self.dataset).__name__}': batch "
                       f"{self.taken} of iterator {self.index}: {said(error)}")

    def collated(self, samples):
        """Its pieces."""
        batch = samples
        try:
            if not isinstance(samples, Failure):
                batch = self.opened.collate(samples)
            pieces = BatchPieces(batch)
        except Exception as error:
            pieces = BatchPieces(self.failure(error))
        if pieces.bytes > self.limit:
            raise ValueError(f"a batch has {pieces.bytes} bytes; at most {self.limit} "
                             "are allowed (max_bytes=)")
        return pieces

    def without_rows(self):
        """A batch like the others, of no rows; None: the iterator has had none."""
        if self.sample is None:
            return None
        try:
            return BatchPieces(self.opened.without_rows(
                self.opened.collate(list(self.sample)), 1))
        except Exception as error:
            return BatchPieces(self.failure(error))


def describe_iterators(opened, options):
    # No sample is taken: it may come once.
    if opened.begin:
        os.ftruncate(MEMORY, max(len(opened.begin), os.fstat(MEMORY).st_size))
        mmap.mmap(MEMORY, len(opened.begin))[:] = opened.begin
    limit = round_up(options["max_bytes"] or BATCH_BYTES, mmap.PAGESIZE)
    return {"length": ENDLESS, "structure": {},
            "iterators": max(options["processes"], 1), "begin": len(opened.begin),
            "features": [{"name": "batch", "dtype": "uint8", "shape": [limit],
                          "encoded": False, "room": min(limit, ROOM_BYTES_MIN)}]}
