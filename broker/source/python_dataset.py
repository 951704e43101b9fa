"""Makes records of a dataset of Python: `dataset[i]`, or what it iterates over.

Its argument: see PythonDatasetSource::Open. What it makes of the samples: the
columns of python_rows.py, of a dataset that a factory gives, or the batches of
python_batches.py, of a pickled one, or of python_iterators.py, of an iterable one; or the
rows of files, of python_parquet.py. As a template it says what the dataset has, and by
"forks" whether processes can be forked from it.

Random numbers: `random`, `numpy.random` and torch's generator of the CPU are
seeded by seed, pass and record. That costs more than a cheap row, so rows are
made without it as long as a generator is not used: if one has been, the
rows since the last answer are made again, and from then on it is seeded for each
row.
"""

import collections
import ctypes
import functools
import gc
import mmap
import pickle
import random
import stat
import time
import typing

CHECK_MEMORY_S = 0.5
MASK = (1 << 64) - 1
MT19937_BYTES = 625 * 4  # the key and the position in it


# ---- the dataset


def open_object(options):
    """The file of a pickled dataset, in the broker's folder for them. It is opened
    first and checked then: names may come to mean other files meanwhile."""
    path = options["object"]
    if not options["object_dir"]:
        raise ImportError("this broker loads no pickled datasets")
    folder = os.open(options["object_dir"], os.O_PATH | os.O_DIRECTORY)
    try:
        if not os.path.samestat(os.stat(os.path.dirname(path)), os.fstat(folder)):
            raise ImportError(f"{path} is not in the broker's folder")
        file = os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW,
                       dir_fd=folder)
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ImportError(f"{path} is not a file")
        check_trusted_status(path, status, options["writable_by"])
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def load_object(path, file):
    """Loads the file that penstock/map_style.py writes. Large arrays stay in the
    file's pages, which all processes share until they write there."""
    with file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    head, at, count = struct.unpack_from("<8sQQ", memory)
    if head != b"PENSTOCK":
        raise ValueError(f"{path} is no object of penstock")
    places = struct.unpack_from(f"<{2 * count}Q", memory, at)
    view = memoryview(memory)
    setting, pickled, *buffers = [view[offset:offset + size] for offset, size in
                                  zip(places[::2], places[1::2])]
    # As where it was pickled: modules and relative paths are found.
    setting = json.loads(bytes(setting))
    sys.path[:0] = [path for path in setting["path"] if path not in sys.path]
    os.chdir(setting["folder"])
    return pickle.loads(pickled, buffers=buffers)


class Opened(typing.NamedTuple):
    """A dataset and what goes with it."""

    dataset: object
    sampler: object = None
    collate_fn: object = None
    batch_size: int = 1  # 0: the sampler gives batches
    worker_init_fn: object = None
    seed: int = 0  # of the job
    on_error: str = "fail"
    # What an iterable dataset has.
    iterable: bool = False
    drop_last: bool = False
    begin: bytes = b""  # a position that a batch came with
    without_rows: object = None  # a function of a batch and its rows

    def begin_worker(self, options):
        """What PyTorch tells the dataset in a worker, before the first sample."""
        index = options["index"]
        if self.iterable and options["processes"] == 0:
            return  # as in the main process
        # A number that is tuned may exceed that of processors.
        count = options["processes"] or max(len(os.sched_getaffinity(0)), index + 1)
        index %= count  # another one takes the place of one that ended
        seed = self.seed + index
        worker = sys.modules.get("torch.utils.data._utils.worker")
        if worker is not None:
            worker._worker_info = worker.WorkerInfo(
                id=index, num_workers=count, seed=seed, dataset=self.dataset)
        import numpy
        Generators(numpy).set_all(seed << 1)
        if self.worker_init_fn is not None:
            self.worker_init_fn(index)

    def collate(self, samples):
        worker = sys.modules.get("torch.utils.data._utils.worker")
        collate = sys.modules.get("torch.utils.data._utils.collate")
        if collate is None or self.collate_fn is not collate.default_collate:
            return self.collate_fn(samples)
        kinds = dict(collate.default_collate_fn_map)
        pictures = sys.modules.get("PIL.Image")
        if pictures is not None:
            kinds[pictures.Image] = stack_pictures
        # In a worker it would make each tensor in a shared memory of its own.
        info, worker._worker_info = worker._worker_info, None
        try:
            return collate.collate(samples, collate_fn_map=kinds)
        finally:
            worker._worker_info = info


def stack_pictures(pictures, *, collate_fn_map=None):
    """Pillow's, as their pixels: PyTorch refuses them."""
    import numpy
    import torch
    arrays = [numpy.array(each) for each in pictures]
    # The bytes of a mask's true are 255.
    return torch.stack([torch.from_numpy(
        each.view("uint8") != 0 if each.dtype == bool else each) for each in arrays])


def open_dataset(options):
    if options["given"]:
        return Opened(Parquet(options))
    if options["object"] is None:
        factory = find_function(options["dataset"], options["python_path"],
                                options["writable_by"])
        return Opened(factory(**options["args"]))
    return Opened(**load_object(options["object"], open_object(options)))


def length_of(dataset):
    length = len(dataset)
    if length < 1:
        raise ValueError(f"{type(dataset).__name__} is empty: its length is {length}")
    return length


def check_map_style(opened):
    dataset = opened.dataset
    kind = type(dataset).__name__
    if opened.iterable or isinstance(dataset, Parquet):
        return
    if not hasattr(type(dataset), "__getitem__"):
        what = ("an iterable dataset has no positions to shuffle: give it to "
                "penstock.torch.DataLoader, or put its rows with penstock.producer"
                if hasattr(dataset, "__iter__") else "wanted a map-style dataset")
        raise TypeError(f"{kind} has no __getitem__: {what}")
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{kind} has no __len__: the order is one of all positions")


# ---- random numbers


def mix(seed, number, record):
    """64 bits that depend on all bits of the three: the finalizer of SplitMix64
    (Steele, Lea and Flood, 2014), once for each."""
    return mix_in(mix_of_pass(seed, number), record)


@functools.lru_cache(maxsize=4)
def mix_of_pass(seed, number):
    return mix_in(mix_in(0, seed), number)


def mix_in(z, each):
    z = (z + each + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Generators:
    """The generators that datasets use without naming them: those of random, NumPy
    and PyTorch. Seeding one takes 1 to 4 us, so only those in `drawn` are."""

    def __init__(self, numpy):
        self.numpy = numpy
        self.seeds = {
            "random": random.seed,
            "numpy": lambda value: numpy.random.seed(value & 0xFFFFFFFF),
            "torch": self.seed_torch}
        self.drawn = {}  # of seeds: of those that the dataset has used

    def torch(self):
        return getattr(sys.modules.get("torch"), "default_generator", None)

    def seed_torch(self, value):
        if self.torch() is not None:
            self.torch().manual_seed(value >> 1)

    def set(self, value):
        for seed in self.drawn.values():
            seed(value)

    def set_all(self, value):
        for seed in self.seeds.values():
            seed(value)

    def begin(self):
        """States to compare with in notice()."""
        if "numpy" not in self.drawn:
            # Drops a second Gaussian number, which numpy_state does not see.
            self.numpy.random.seed(0)
        return self.states()

    def states(self):
        """By name, of those not drawn from so far."""
        states = {}
        if "random" not in self.drawn:
            states["random"] = random.getstate()
        if "numpy" not in self.drawn:
            states["numpy"] = self.numpy_state()
        if "torch" not in self.drawn and self.torch() is not None:
            states["torch"] = self.torch().get_state().numpy().tobytes()
        return states

    def numpy_state(self):
        """0.5 us for NumPy's own generator: get_state takes 60."""
        random_of = getattr(self.numpy.random, "get_bit_generator", None)
        generator = random_of and random_of()  # since NumPy 1.24
        if type(generator) is self.numpy.random.MT19937:
            return ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES)
        return repr(self.numpy.random.get_state(legacy=False))

    def notice(self, before):
        """Adds those whose state is another than before; whether there are any. A
        torch that was imported meanwhile counts as used."""
        now = {name: self.seeds[name] for name, state in self.states().items()
               if before.get(name) != state}
        self.drawn.update(now)
        return bool(now)


def own_bytes():
    """Memory of this process that it shares with no file and no other process."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


class Growth:
    """Whether this process has grown so much that another is to take its place: a
    leak costs a restart now and then instead of the memory of the machine."""

    def __init__(self, name, limit):
        self.name = name
        self.limit = limit
        self.least = None
        self.checked_s = 0

    def exceeded(self):
        now_s = time.monotonic()
        if now_s - self.checked_s < CHECK_MEMORY_S:
            return False
        self.checked_s = now_s
        size = own_bytes()
        self.least = size if self.least is None else min(size, self.least)
        if size - self.least <= self.limit:
            return False
        print(f"penstock: a process of dataset {self.name} has grown from "
              f"{self.least >> 20} to {size >> 20} MiB: another takes its place",
              flush=True)
        return True


def files_and_threads():
    """The open files with a position, and the number of threads. A map keeps a
    descriptor of its file that nothing reads by, so a file that is mapped as often
    as it is open is none of these."""
    files = collections.Counter()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + descriptor)
            if stat.S_ISREG(os.stat(int(descriptor)).st_mode):
                files[path] += 1
        except OSError:  # that of the listing
            pass
    with open("/proc/self/maps") as maps:
        files.subtract(line.rstrip("\n").split(None, 5)[-1] for line in maps)
    return +files, len(os.listdir("/proc/self/task"))


# A template's, for its children.
loaded = None if GIVEN is None else Opened(**GIVEN)


def template(options):
    """Loads the dataset once for all processes, which are forked: modules and
    objects are shared until they are changed. A dataset that opens files or starts
    threads when it is made is made in each process: forked ones would share the
    position of a file, and have no threads."""
    global loaded
    import numpy  # which may start threads
    before = files_and_threads()
    loaded = open_dataset(options)
    check_map_style(loaded)
    describe = describe_of(options, loaded)
    forks = files_and_threads() == before
    described = {"forks": forks}
    if forks:
        gc.collect()
        gc.freeze()  # a collection would write to all of its pages
        described.update(json.loads(in_child(
            lambda: json.dumps(describe(loaded, options)).encode())))
    else:
        described.update(describe(loaded, options))
    return json.dumps(described).encode(), forks


def describe_of(options, opened):
    if options["given"]:
        return lambda opened, options: opened.dataset.describe(options)
    if options["object"] is None:
        return describe_rows
    return describe_iterators if opened.iterable else describe_batches


def prepare(options):
    opened = loaded or open_dataset(options)
    check_map_style(opened)
    if "torch" in sys.modules:  # threads of a pool do not survive a fork
        sys.modules["torch"].set_num_threads(1)
    if options["template"]:  # a program's, which forks
        return json.dumps({"forks": True,
                           **describe_of(options, opened)(opened, options)}
                          ).encode(), None
    growth = Growth(type(opened.dataset).__name__, options["growth_bytes"])
    if options["given"]:
        return b"", ParquetRows(opened.dataset, options, growth).make
    opened.begin_worker(options)
    made = (Rows if options["object"] is None else
            Iterators if opened.iterable else Batches)
    return b"", made(opened, options, growth).make


serve(prepare, template)
