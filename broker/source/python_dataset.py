"""Makes records of a map-style dataset of Python: `dataset[i]`.

Its argument: see PythonDatasetSource::Open. As a template it says what the dataset
has, and whether processes can be forked from it:

  {"length": ..., "features": [{"name", "dtype", "shape", "encoded"}, ...],
   "structure": how the features are nested in a sample, "forks": ...}

A structure is one of {"list": [structure, ...]} (lists and tuples), {"namedtuple":
{"class": [module, name], "fields": [name, ...], "list": [structure, ...]}},
{"dict": [[key, structure], ...]}, {"array": feature}, {"bytes": feature}, {"text":
features}, {"raw": features} (bytes of a pickled dataset, which has no map to decode
them) and {"object": features}. Texts, raw bytes and pickled objects have two
features: the bytes, filled with zeros, and their number.

A call: seed, then record and pass of each row. Rows are made in order. An answer
has the number of rows made and the size of the memory; several may come. FAILED
is about the first row that no answer has counted, and ends the call.

The memory: a u64, the index of the row in work; columns of all rows at the
offsets of "columns"; behind them the heap, for `encoded` features, whose columns
hold offset and size.

Random numbers: `random`, `numpy.random` and torch's generator of the CPU are
seeded by seed, pass and record. That costs more than a cheap row, so rows are
made without it as long as a generator is not used: if one has been, the
rows since the last answer are made again, and from then on it is seeded for each
row.
"""

import ctypes
import functools
import gc
import io
import mmap
import pickle
import random
import stat
import time

ANSWER_AFTER_S = 0.002
CHECK_MEMORY_S = 0.5
HEAP_BYTES_MAX = 512 << 20
WIDER = {"uint16": "int32", "uint32": "int64"}
MASK = (1 << 64) - 1
MT19937_BYTES = 625 * 4  # the key and the position in it
FEATURES_MAX = 64  # of a job
NAME_CHARS_MAX = 64


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


class Ordered:
    """The order of a sampler, which is asked once per pass."""

    def __init__(self, sampler, generators):
        self.sampler = sampler
        self.generators = generators
        self.orders = {}

    def index(self, record, number, seed):
        if number not in self.orders:
            while len(self.orders) > 1:  # rows of two passes meet at a seam
                del self.orders[min(self.orders)]
            self.orders[number] = self.order(number, seed)
        return self.orders[number][record]

    def order(self, number, seed):
        value = mix(seed, number, MASK)
        self.generators.set_all(value)
        generator = getattr(self.sampler, "generator", None)
        if hasattr(generator, "manual_seed"):
            generator.manual_seed(value >> 1)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(number)
        order = [int(i) for i in self.sampler]
        if len(order) != len(self.sampler):
            raise ValueError(f"the sampler gave {len(order)} indices; its length is "
                             f"{len(self.sampler)}")
        return order


def open_dataset(options):
    """(dataset, sampler or None, whether samples are pickled, worker_init_fn)"""
    if options["object"] is None:
        factory = find_function(options["dataset"], options["python_path"],
                                options["writable_by"])
        return factory(**options["args"]), None, False, None
    value = load_object(options["object"], open_object(options))
    return [value[name] for name in
            ("dataset", "sampler", "pickled", "worker_init_fn")]


def check_map_style(dataset):
    kind = type(dataset).__name__
    if not hasattr(type(dataset), "__getitem__"):
        what = ("an IterableDataset has no positions to shuffle or resume: put its "
                "rows with penstock.producer" if hasattr(dataset, "__iter__")
                else "wanted a map-style dataset")
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


# ---- what a sample holds


def is_tensor(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_picture(value):
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def tensor_array(value):
    """A dense tensor as an array; bfloat16 as the int16 of its bits."""
    torch = sys.modules["torch"]
    value = value.detach()
    if value.layout is not torch.strided:
        raise TypeError("a tensor is sparse; wanted a dense one")
    if value.dtype is torch.bfloat16:
        return value.cpu().contiguous().view(torch.int16).numpy()
    return value.cpu().numpy()


def where(path):
    return f"feature '{path}'" if path else "the sample"


def kind_of(value):
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    shape = getattr(value, "shape", None)
    return kind.replace("builtins.", "") + (
        "" if shape is None else f" of shape {list(shape)}")


class SamplePickler(pickle.Pickler):
    """Classes of the script are pickled by their names: the rank has them."""

    def reducer_override(self, value):
        if isinstance(value, type) and value.__module__ in ("__main__", "__mp_main__"):
            module = sys.modules.setdefault(value.__module__, sys.modules["__main__"])
            setattr(module, value.__qualname__, value)
        return NotImplemented


def pickled_sample(value):
    file = io.BytesIO()
    SamplePickler(file, protocol=5).dump(value)
    return file.getvalue()


class Description:
    """Features and structure of a sample, from the first one."""

    def __init__(self, numpy, max_bytes, names, of_object):
        self.numpy = numpy
        self.of_object = of_object
        self.max_bytes = max_bytes
        self.names = names
        self.features = []

    def feature(self, name, dtype, shape, encoded=False):
        """Keys with dots or of other types may give a name twice: "a.b_" follows."""
        if len(self.features) == FEATURES_MAX:
            raise ValueError(
                f"a sample has more than {FEATURES_MAX} arrays, numbers and texts (a "
                "text counts twice): stack them in fewer arrays" + (
                    ", or give a collate_fn of your own: it gets samples as they are"
                    if self.of_object else ""))
        while any(each["name"] == name for each in self.features):
            name += "_"
        if not name or len(name.encode()) > NAME_CHARS_MAX:
            raise ValueError(f"feature '{name[:80]}': wanted a name of 1 to "
                             f"{NAME_CHARS_MAX} characters")
        self.features.append({"name": name, "dtype": dtype,
                              "shape": list(shape), "encoded": encoded})
        return name

    def bounded(self, kind, name, size):
        # Without a bound some times the room that the first sample takes.
        size = self.max_bytes or max(1024, 1 << (4 * size - 1).bit_length())
        return {kind: [self.feature(name, "uint8", [size]),
                       self.feature(name + "_bytes", "int64", [])]}

    def of(self, value, pickled):
        if pickled:
            return self.bounded("object", "sample",
                                len(pickled_sample(value)))
        if not self.names:
            return self.node(value, "")
        if not isinstance(value, (tuple, list)) or len(value) != len(self.names):
            raise TypeError(f"`names` has {len(self.names)} names; a sample is "
                            f"{kind_of(value)}")
        return {"list": [self.node(each, name)
                         for each, name in zip(value, self.names)]}

    def node(self, value, path):
        inner = path + "." if path else ""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind = type(value)
            return {"namedtuple": {
                "class": [kind.__module__, kind.__qualname__],
                "fields": value._fields,
                "list": [self.node(each, inner + name)
                         for name, each in zip(value._fields, value)]}}
        if isinstance(value, (tuple, list)):
            return {"list": [self.node(each, f"{inner}{i}")
                             for i, each in enumerate(value)]}
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            for key in value.keys():
                if not isinstance(key, (str, int, float, bool, type(None))):
                    raise TypeError(f"{where(path)}: the key {key!r} is no text or "
                                    "number")
            return {"dict": [[key, self.node(value[key], f"{inner}{key}")]
                             for key in value.keys()]}
        return self.leaf(value, path or "value")

    def leaf(self, value, name):
        if isinstance(value, str):
            return self.bounded("text", name, len(value.encode("utf-8", "replace")))
        if isinstance(value, (bytes, bytearray, memoryview)):
            if self.of_object:
                return self.bounded("raw", name, memoryview(value).nbytes)
            self.feature(name, "uint8", [], encoded=True)
            return {"bytes": name}
        if is_tensor(value) and str(value.dtype) == "torch.bfloat16":
            return {"array": self.feature(name, "bfloat16", value.shape)}
        if is_tensor(value):
            value = tensor_array(value)
        elif not is_picture(value) and not isinstance(
                value, (bool, int, float, self.numpy.ndarray, self.numpy.generic)):
            raise TypeError(f"{where(name)} is {kind_of(value)}; wanted arrays, "
                            "tensors, pictures, numbers, texts, bytes, and lists, "
                            "tuples and dicts of them")
        array = self.numpy.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise TypeError(f"{where(name)} has dtype {array.dtype}: " + (
                "give it as pairs of real numbers (torch.view_as_real, "
                "array.view('float32'))" if array.dtype.kind == "c"
                else "give it as int64 (array.astype('int64'))"
                if array.dtype.kind in "mM"
                else "wanted numbers, or a list of texts"))
        dtype = WIDER.get(array.dtype.name, array.dtype.name)
        return {"array": self.feature(name, dtype, array.shape)}


# ---- rows


class Memory:
    """The memory that rows lie in: columns, then a heap."""

    def __init__(self, numpy, options):
        self.numpy = numpy
        self.bytes = options["memory_bytes"]
        self.heap = options["heap"]
        self.rows = options["rows"]
        self.places = list(zip(options["features"], options["columns"]))
        self.used = self.heap
        self.map()

    def map(self):
        self.mapping = mmap.mmap(MEMORY, self.bytes)
        self.in_work = self.numpy.frombuffer(self.mapping, "<u8", 1)
        self.columns = {}
        for feature, offset in self.places:
            shape, dtype = ([2], "<u8") if feature["encoded"] else (
                feature["shape"], feature["dtype"])
            dtype = self.numpy.dtype("int16" if dtype == "bfloat16" else dtype)
            values = self.rows
            for n in shape:
                values *= n
            self.columns[feature["name"]] = self.numpy.frombuffer(
                self.mapping, dtype, values, offset).reshape([self.rows, *shape])

    def put(self, name, row, data):
        """Bytes of any number, into the heap."""
        size = memoryview(data).nbytes
        end = self.used + size
        if end - self.heap > HEAP_BYTES_MAX:
            raise ValueError(f"{where(name)} has {size} bytes; rows that are made at "
                             f"once have at most {HEAP_BYTES_MAX}")
        if end > self.bytes:
            page = mmap.PAGESIZE
            self.bytes = (end + end // 2 + page - 1) // page * page
            os.ftruncate(MEMORY, self.bytes)
            self.map()
        self.mapping[self.used:end] = data
        self.columns[name][row] = (self.used, size)
        self.used = (end + 63) // 64 * 64


class Writer:
    """Writes samples of one structure into the rows of a memory."""

    def __init__(self, numpy, memory, structure):
        self.numpy = numpy
        self.memory = memory
        self.bfloat16 = {feature["name"] for feature, _ in memory.places
                         if feature["dtype"] == "bfloat16"}
        # Those whose arrays need nothing but a copy: a bfloat16 is an int16 here,
        # and a bool may have other bytes than 0 and 1.
        self.plain = {feature["name"] for feature, _ in memory.places
                      if feature["dtype"] not in ("bfloat16", "bool")}
        # Types of numbers that need no array to be looked at.
        self.numbers = {
            feature["name"]: {"int64": int, "float64": float}[feature["dtype"]]
            for feature, _ in memory.places
            if not feature["shape"] and feature["dtype"] in ("int64", "float64")}
        self.write = self.write_of(structure, "")

    def write_of(self, node, path):
        """A function of row and sample (or part of one) that writes it."""
        (kind, inner), = node.items()
        if kind == "namedtuple":
            kind, inner = "list", inner["list"]
        below = path + "." if path else ""
        if kind == "array":
            return functools.partial(self.array, inner)
        if kind == "list":
            return functools.partial(self.sequence, path, [
                self.write_of(each, f"{below}{i}") for i, each in enumerate(inner)])
        if kind == "dict":
            return functools.partial(self.mapping, path, [
                (key, self.write_of(each, f"{below}{key}")) for key, each in inner])
        return functools.partial(
            {"text": self.text, "bytes": self.raw, "raw": self.raw,
             "object": self.pickled}[kind], inner)

    def sequence(self, path, parts, row, value):
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            raise TypeError(f"{where(path)} is {kind_of(value)}; the first sample has "
                            f"a list or tuple of {len(parts)} there")
        for write, part in zip(parts, value):
            write(row, part)

    def mapping(self, path, parts, row, value):
        if not hasattr(value, "keys") or len(value.keys()) != len(parts) or any(
                key not in value for key, _ in parts):
            keys = (f"the keys {sorted(map(str, value.keys()))}"
                    if hasattr(value, "keys") else kind_of(value))
            raise TypeError(f"{where(path)} has {keys}; the first sample has the keys "
                            f"{sorted(str(key) for key, _ in parts)} there")
        for key, write in parts:
            write(row, value[key])

    def text(self, names, row, value):
        if not isinstance(value, str):
            raise TypeError(f"{where(names[0])} is {kind_of(value)}; the first sample "
                            "has a text there")
        self.bounded(names, row, value.encode("utf-8", "surrogatepass"))

    def raw(self, names, row, value):
        """Into the heap, or a column and its size."""
        alone = isinstance(names, str)
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"{where(names if alone else names[0])} is "
                            f"{kind_of(value)}; the first sample has bytes there")
        if alone:
            self.memory.put(names, row, value)
        else:
            self.bounded(names, row, value)

    def pickled(self, names, row, value):
        self.bounded(names, row, pickled_sample(value))

    def bounded(self, names, row, data):
        name, name_of_size = names
        size = len(data)
        columns = self.memory.columns
        column = columns[name][row]
        if size > len(column):
            raise ValueError(f"{where(name)} has {size} bytes; at most "
                             f"{len(column)} fit (max_bytes=...)")
        column[:size] = self.numpy.frombuffer(data, self.numpy.uint8)
        column[size:] = 0
        columns[name_of_size][row] = size

    def array(self, name, row, value):
        column = self.memory.columns[name]
        if (type(value) is self.numpy.ndarray and value.dtype == column.dtype and
                value.shape == column.shape[1:] and name in self.plain):
            column[row] = value
            return
        if type(value) is self.numbers.get(name):
            try:
                column[row] = value
                return
            except OverflowError:
                pass  # what follows names the feature
        if is_tensor(value):
            if (str(value.dtype) == "torch.bfloat16") != (name in self.bfloat16):
                raise TypeError(f"{where(name)} is of {value.dtype}; the first "
                                "sample has another dtype there")
            value = tensor_array(value)
        elif isinstance(value, (str, bytes)) or value is None:
            raise TypeError(f"{where(name)} is {kind_of(value)}; the first sample "
                            "has an array or a number there")
        else:
            value = self.numpy.asarray(value)
        if value.dtype.kind == "b":  # Pillow's masks have bytes of 255 for true
            value = value.view(self.numpy.uint8) != 0
        if value.shape != column.shape[1:]:
            raise ValueError(f"{where(name)} has shape {list(value.shape)}; the "
                             f"first sample has {list(column.shape[1:])}")
        if value.dtype == column.dtype:
            column[row] = value
        elif not self.numpy.can_cast(value.dtype, column.dtype, "same_kind"):
            raise TypeError(f"{where(name)} is {value.dtype}; the first sample has "
                            f"{column.dtype} there")
        else:
            copy_into(self.numpy, name, value,
                      column[row:row + 1].reshape(value.shape))


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


class Rows:
    """Makes the rows of calls."""

    def __init__(self, numpy, dataset, sampler, memory, writer, growth):
        self.growth = growth
        self.dataset = dataset
        self.generators = Generators(numpy)
        self.ordered = sampler and Ordered(sampler, self.generators)
        self.memory = memory
        self.writer = writer
        self.fetches = getattr(dataset, "__getitems__", None)

    def make(self, call, numbers, link):
        seed, *rest = numbers
        rows = [(record, number, self.index(record, number, seed))
                for record, number in zip(rest[::2], rest[1::2])]
        count = len(rows)
        self.memory.used = self.memory.heap
        sent = 0  # rows that answers have counted
        while sent < count:
            # After the sampler, which may have used them.
            states = self.generators.begin()
            self.memory.in_work[0] = sent
            fetched = self.fetch(rows[sent:])
            row = first = sent
            sent_s = time.monotonic()
            error = None
            while row < count:
                self.memory.in_work[0] = row
                record, number, index = rows[row]
                try:
                    if self.generators.drawn:
                        self.generators.set(mix(seed, number, record))
                    self.writer.write(row, fetched[row - first]
                                      if fetched is not None
                                      else self.dataset[index])
                    row += 1
                except BaseException as raised:
                    error = raised
                ends = row == count or error is not None
                if not ends and time.monotonic() - sent_s < ANSWER_AFTER_S:
                    continue
                if self.generators.notice(states):
                    break  # makes the rows since `sent` again
                if row > sent:
                    sent = row
                    body = struct.pack("<QQ", sent, self.memory.bytes)
                    state = MORE if row < count else (
                        LAST if self.growth.exceeded() else DONE)
                    link.send(answer(call, state, body))
                if error is not None:
                    link.send(failure(call, error))
                    return
                sent_s = time.monotonic()

    def index(self, record, number, seed):
        if self.ordered is None:
            return record
        return self.ordered.index(record, number, seed)

    def fetch(self, rows):
        """All of the rows at once, where the dataset can; None: one by one."""
        if self.fetches is None or self.generators.drawn:
            return None
        try:
            fetched = self.fetches([index for _, _, index in rows])
        except BaseException:
            return None  # of one row; which one is found one by one
        return fetched if len(fetched) == len(rows) else None


def describe(dataset, sampler, pickled, _, options):
    import numpy
    length = len(dataset if sampler is None else sampler)
    if length < 1:
        raise ValueError(f"{type(dataset).__name__} is empty: its length is {length}")
    description = Description(numpy, options["max_bytes"], options["names"],
                              options["object"] is not None)
    index = 0 if sampler is None else int(next(iter(sampler)))
    structure = description.of(dataset[index], pickled)
    return {"length": length, "features": description.features,
            "structure": structure}


def files_and_threads():
    """The open files with a position, and the number of threads."""
    files = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + descriptor)
            if stat.S_ISREG(os.stat(int(descriptor)).st_mode):
                files.add((descriptor, path))
        except OSError:  # that of the listing
            pass
    return files, len(os.listdir("/proc/self/task"))


loaded = None  # a template's, for its children


def template(options):
    """Loads the dataset once for all processes, which are forked: modules and
    objects are shared until they are changed. A dataset that opens files or starts
    threads when it is made is made in each process: forked ones would share the
    position of a file, and have no threads."""
    global loaded
    import numpy  # which may start threads
    before = files_and_threads()
    loaded = open_dataset(options)
    check_map_style(loaded[0])
    forks = files_and_threads() == before
    described = {"forks": forks}
    if forks:
        gc.collect()
        gc.freeze()  # a collection would write to all of its pages
        described.update(json.loads(in_child(
            lambda: json.dumps(describe(*loaded, options)).encode())))
    else:
        described.update(describe(*loaded, options))
    return json.dumps(described).encode(), forks


def prepare(options):
    import numpy
    dataset, sampler, pickled, init = loaded or open_dataset(options)
    check_map_style(dataset)
    if init is not None:
        init(options["index"])
    memory = Memory(numpy, options)
    writer = Writer(numpy, memory, options["structure"])
    growth = Growth(type(dataset).__name__, options["growth_bytes"])
    return b"", Rows(numpy, dataset, sampler, memory, writer, growth).make


serve(prepare, template)
