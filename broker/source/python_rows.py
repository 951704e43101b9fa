"""Rows of a dataset that a factory gives: each sample into columns.

What the template says of the rows:

  {"length": ..., "features": [{"name", "dtype", "shape", "encoded"}, ...],
   "structure": how the features are nested in a sample}

A structure is one of {"list": [structure, ...]} (lists and tuples), {"dict": [[key,
structure], ...]}, {"array": feature}, {"bytes": feature}, {"items": features} of a
list that differs in length, and {"text": features}: the bytes or items, zeros after
them, and how many there are.

A call: seed, then record and pass of each row. Rows are made in order. An answer
has the number of rows made and the size of the memory; several may come. FAILED
is about the first row that no answer has counted, and ends the call.

The memory: a u64, the index of the row in work; columns of all rows at the
offsets of "columns"; behind them the heap, for `encoded` features, whose columns
hold offset and size.
"""

import functools
import mmap
import time

ANSWER_AFTER_S = 0.002
HEAP_BYTES_MAX = 512 << 20
WIDER = {"uint16": "int32", "uint32": "int64"}
FEATURES_MAX = 64  # of a job
NAME_CHARS_MAX = 64
FIRST_MAX = 100  # samples that are looked at for a list that is not empty


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


class Description:
    """Features and structure of a sample, from the first one."""

    def __init__(self, numpy, options):
        self.numpy = numpy
        self.max_bytes = options["max_bytes"]
        self.max_length = dict(options["max_length"])
        self.names = options["names"]
        self.features = []
        self.sure = True  # no list is empty, which does not say of what

    def feature(self, name, dtype, shape, encoded=False):
        """Keys with dots or of other types may give a name twice: "a.b_" follows."""
        if len(self.features) == FEATURES_MAX:
            raise ValueError(
                f"a sample has more than {FEATURES_MAX} arrays, numbers and texts (a "
                "text counts twice): stack them in fewer arrays")
        while any(each["name"] == name for each in self.features):
            name += "_"
        if not name or len(name.encode()) > NAME_CHARS_MAX:
            raise ValueError(f"feature '{name[:80]}': wanted a name of 1 to "
                             f"{NAME_CHARS_MAX} characters")
        self.features.append({"name": name, "dtype": dtype,
                              "shape": list(shape), "encoded": encoded})
        return name

    def of(self, value):
        structure = self.of_sample(value)
        if self.max_length:
            name, = list(self.max_length)[:1]
            raise ValueError(f"max_length: a sample has no array {name!r}; it has "
                             + ", ".join(each["name"] for each in self.features))
        return structure

    def of_sample(self, value):
        if not self.names:
            return self.node(value, "")
        if not isinstance(value, (tuple, list)) or len(value) != len(self.names):
            raise TypeError(f"`names` has {len(self.names)} names; a sample is "
                            f"{kind_of(value)}")
        return {"list": [self.node(each, name)
                         for each, name in zip(value, self.names)]}

    def node(self, value, path):
        inner = path + "." if path else ""
        if path in self.max_length:
            return self.leaf(value, path)
        if isinstance(value, (tuple, list)):
            names = getattr(value, "_fields", range(len(value)))
            return {"list": [self.node(each, f"{inner}{name}")
                             for name, each in zip(names, value)]}
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            for key in value.keys():
                if not isinstance(key, (str, int, float, bool, type(None))):
                    raise TypeError(f"{where(path)}: the key {key!r} is no text or "
                                    "number")
            return {"dict": [[key, self.node(value[key], f"{inner}{key}")]
                             for key in value.keys()]}
        return self.leaf(value, path or "value")

    def leaf(self, value, name):
        room = self.max_length.pop(name, None)
        if room is not None:
            return self.items(value, name, room)
        if isinstance(value, str):
            # Without a bound some times the room that the first sample takes.
            size = len(value.encode("utf-8", "replace"))
            size = self.max_bytes or max(1024, 1 << (4 * size - 1).bit_length())
            return {"text": [self.feature(name, "uint8", [size]),
                             self.feature(name + "_bytes", "int64", [])]}
        if isinstance(value, (bytes, bytearray, memoryview)):
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

    def items(self, value, name, room):
        """A list that differs in length: as an array of that many, and how many."""
        if isinstance(value, (tuple, list)):
            value = self.numpy.asarray(value)
        self.sure &= tuple(getattr(value, "shape", ())) != (0,)
        if len(getattr(value, "shape", ())) == 0:
            raise TypeError(f"{where(name)} is {kind_of(value)}; max_length is for "
                            "arrays and lists")
        described = self.leaf(value, name)
        self.features[-1]["shape"][0] = room
        length = self.feature(name + ".length", "int64", [])
        if length != name + ".length":
            raise ValueError(f"{where(name)}: a sample has a '{name}.length' of its own, "
                             "which is how its length is called")
        return {"items": [described["array"], length]}


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

    def __init__(self, numpy, memory, options):
        self.numpy = numpy
        self.memory = memory
        self.cuts = options["cuts"]
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
        self.write = self.write_of(options["structure"], "")

    def write_of(self, node, path):
        """A function of row and sample (or part of one) that writes it."""
        (kind, inner), = node.items()
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
            {"text": self.text, "bytes": self.raw, "items": self.items}[kind], inner)

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
        data = value.encode("utf-8", "surrogatepass")
        name, name_of_size = names
        size = len(data)
        columns = self.memory.columns
        column = columns[name][row]
        if size > len(column):
            if not self.cuts:
                raise ValueError(f"{where(name)} has {size} bytes; at most "
                                 f"{len(column)} fit (max_bytes=..., or longer=\"cut\")")
            size = len(column)
            while size > 0 and data[size] & 0xc0 == 0x80:  # within a character
                size -= 1
            data = data[:size]
        column[:size] = self.numpy.frombuffer(data, self.numpy.uint8)
        column[size:] = 0
        columns[name_of_size][row] = size

    def items(self, names, row, value):
        name, name_of_length = names
        column = self.memory.columns[name][row]
        value = self.array_of(name, value)
        shape = value.shape
        if shape == (0,):  # an empty list does not say of what
            value = self.numpy.empty((0, *column.shape[1:]), column.dtype)
        elif shape[1:] != column.shape[1:] or not shape:
            raise ValueError(f"{where(name)} has shape {list(shape)}; the first sample "
                             f"has {['n', *column.shape[1:]]}".replace("'n'", "n"))
        length = len(value)
        if length > len(column):
            if not self.cuts:
                raise ValueError(f"{where(name)} has {length} items; at most "
                                 f"{len(column)} fit (max_length=..., or "
                                 "longer=\"cut\")")
            length = len(column)
            value = value[:length]
        self.fill(name, value, column[:length])
        column[length:] = 0
        self.memory.columns[name_of_length][row] = length

    def raw(self, name, row, value):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"{where(name)} is {kind_of(value)}; the first sample has "
                            "bytes there")
        self.memory.put(name, row, value)

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
        value = self.array_of(name, value)
        if value.shape != column.shape[1:]:
            raise ValueError(f"{where(name)} has shape {list(value.shape)}; the first "
                             f"sample has {list(column.shape[1:])}. Where it differs, "
                             f"max_length={{{name!r}: ...}} is the room for it")
        self.fill(name, value, column[row:row + 1].reshape(value.shape))

    def array_of(self, name, value):
        if is_tensor(value):
            if (str(value.dtype) == "torch.bfloat16") != (name in self.bfloat16):
                raise TypeError(f"{where(name)} is of {value.dtype}; the first "
                                "sample has another dtype there")
            return tensor_array(value)
        if isinstance(value, (str, bytes)) or value is None:
            raise TypeError(f"{where(name)} is {kind_of(value)}; the first sample "
                            "has an array or a number there")
        return self.numpy.asarray(value)

    def fill(self, name, value, to):
        """Writes an array into memory of its shape."""
        if value.dtype.kind == "b":  # Pillow's masks have bytes of 255 for true
            value = value.view(self.numpy.uint8) != 0
        if value.dtype == to.dtype:
            to[...] = value
        elif not self.numpy.can_cast(value.dtype, to.dtype, "same_kind"):
            raise TypeError(f"{where(name)} is {value.dtype}; the first sample has "
                            f"{to.dtype} there")
        else:
            copy_into(self.numpy, name, value, to)


class Rows:
    """Makes the rows of calls."""

    def __init__(self, opened, options, growth):
        import numpy
        self.growth = growth
        self.dataset = opened.dataset
        self.generators = Generators(numpy)
        self.memory = Memory(numpy, options)
        self.writer = Writer(numpy, self.memory, options)
        self.fetches = getattr(self.dataset, "__getitems__", None)

    def make(self, call, numbers, link):
        seed, *rest = numbers
        rows = list(zip(rest[::2], rest[1::2]))
        count = len(rows)
        self.memory.used = self.memory.heap
        sent = 0  # rows that answers have counted
        while sent < count:
            states = self.generators.begin()
            self.memory.in_work[0] = sent
            fetched = self.fetch(rows[sent:])
            row = first = sent
            sent_s = time.monotonic()
            error = None
            while row < count:
                self.memory.in_work[0] = row
                record, number = rows[row]
                try:
                    if self.generators.drawn:
                        self.generators.set(mix(seed, number, record))
                    self.writer.write(row, fetched[row - first]
                                      if fetched is not None
                                      else self.dataset[record])
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

    def fetch(self, rows):
        """All of the rows at once, where the dataset can; None: one by one."""
        if self.fetches is None or self.generators.drawn:
            return None
        try:
            fetched = self.fetches([record for record, _ in rows])
        except BaseException:
            return None  # of one row; which one is found one by one
        return fetched if len(fetched) == len(rows) else None


def describe_rows(opened, options):
    import numpy
    dataset = opened.dataset
    opened.begin_worker(options)
    length = length_of(dataset)
    for i in range(FIRST_MAX):
        description = Description(numpy, options)
        structure = description.of(dataset[i])
        if description.sure or i + 1 == length:
            break
    return {"length": length, "features": description.features,
            "structure": structure}
