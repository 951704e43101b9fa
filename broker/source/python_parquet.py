"""Rows of Parquet and Arrow files, which pyarrow reads.

A row group of Parquet and a record batch of Arrow are a *group*: what is read at once.
What the template says of the files, beside what it says of a dataset's rows
(python_rows.py):

  {"begin": bytes of the row counts of all groups, u64 each, in the memory, those of a
   file after one more u64: how many groups it has. Where a file is the local copy of an
   object (its time is null), then of each group where each column lies: offset, bytes}

Of such a file only what the broker has fetched is there, the rest reads as zeros: what is
read before any row, and the columns of the groups that are asked for.

Its structure is a list of columns: {"feature", "path" in the schema, "kind", "dtype" and
"shape" in the file, "room", "default"}. The kinds are "array", "items" (a list that
differs in length), "text" and "bytes" (encoded).

Only the columns asked for are decoded. A group of Parquet is decoded as a whole, and the
broker keeps it; of a mapped file of Arrow, rows are selected.
"""

import fcntl
import itertools

GROUPS_BYTES_MAX = 256 << 20
FILES_OPEN_MAX = 64
INSTALL = ("parquet is read with pyarrow, which {} cannot import ({}): pip install pyarrow "
           "into the Python that the broker runs")


class WithoutPandas:
    """pyarrow imports pandas where it is installed, for a second; nothing here uses it.
    None in sys.modules is no way: Cython takes that for the module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)


def import_pyarrow():
    global pa, pc, pq
    sys.meta_path.insert(0, WithoutPandas)
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.ipc
        import pyarrow.parquet as pq
    except ImportError as error:
        raise Told(INSTALL.format(sys.executable, error)) from None


class BadFile(Told):
    """A file that cannot be what it says."""


def wrong_with(error):
    """What pyarrow's error says of a file: as a rule that its bytes are not those that
    were written."""
    text = str(error).strip().rstrip(".: ")
    if (isinstance(error, pa.ArrowNotImplementedError) or getattr(error, "errno", None)
            or "crypt" in text):
        return text
    return f"it is damaged ({text}): copy it again, or write it again"


# ---- what a schema has


def without_extension(kind):
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_binary(kind):
    return (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or
            str(kind) == "binary_view")


def is_text(kind):
    return (pa.types.is_string(kind) or pa.types.is_large_string(kind) or
            str(kind) == "string_view")


def is_list(kind):
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def number_type(kind):
    """The dtype that numbers of it become; None: it is none."""
    types = pa.types
    if types.is_boolean(kind):
        return "bool"
    if types.is_integer(kind):
        return {**WIDER, "uint64": "int64"}.get(str(kind), str(kind))
    if types.is_floating(kind):
        return {"halffloat": "float16", "float": "float32", "double": "float64"}[str(kind)]
    if (types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
            or types.is_duration(kind)):
        return "int64"
    return None


def find_fields(fields, name):
    """The ways to the field of a dotted name: a name may have dots itself."""
    for field in fields:
        if field.name == name:
            yield [field.name], field.type
        elif name.startswith(field.name + "."):
            kind = without_extension(field.type)
            if pa.types.is_struct(kind):
                inner = (kind.field(i) for i in range(kind.num_fields))
                for path, found in find_fields(inner, name[len(field.name) + 1:]):
                    yield [field.name, *path], found


def leaves(fields, before=""):
    for field in fields:
        kind = without_extension(field.type)
        if pa.types.is_struct(kind):
            yield from leaves((kind.field(i) for i in range(kind.num_fields)),
                              f"{before}{field.name}.")
        else:
            yield before + field.name


def described(kind, name):
    """(kind, dtype, sizes) of a column, a size of None being one that a type leaves
    open."""
    whole, sizes = kind, []
    kind = without_extension(kind)
    while is_list(kind) or pa.types.is_fixed_size_list(kind):
        sizes.append(None if is_list(kind) else kind.list_size)
        kind = without_extension(kind.value_type)
    dtype = number_type(kind)
    if dtype is not None:
        return "numbers", dtype, sizes
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return "numbers", "uint8", [*sizes, kind.byte_width]
    if not sizes and (is_text(kind) or is_binary(kind)):
        return ("text" if is_text(kind) else "bytes"), "uint8", []
    way_out = "leave it out of `columns`"
    if pa.types.is_decimal(kind):
        way_out = "cast it to float64 or text in the file"
    elif pa.types.is_struct(kind) and not sizes:
        way_out = f"name its fields ({name}.{kind.field(0).name if kind.num_fields else 'x'})"
    raise BadFile(f"column '{name}' is {whole}; wanted numbers, texts, bytes, times, and "
                  f"lists of numbers: {way_out}")


# ---- files


class File:
    """An open file, and where its groups are."""

    def __init__(self, entry, number=0):
        self.path, self.real, *self.identity = entry
        self.number = number
        try:
            self.descriptor = os.open(self.real, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BadFile(f"{self.path}: {error.strerror}") from None
        try:
            self.check_unchanged()
            self.open()
        except BaseException as error:
            self.close()
            if isinstance(error, (pa.ArrowException, OSError, ValueError)):
                # Its bytes are foreign, so anything may be wrong with them.
                raise BadFile(f"{self.path}: {wrong_with(error)}") from None
            raise

    def close(self):
        os.close(self.descriptor)

    def check_unchanged(self):
        """Names may come to mean other files; only the one that the broker has opened,
        as its user may, is read."""
        status = os.fstat(self.descriptor)
        wanted = len(self.identity) - (self.identity[-1] is None)  # a local copy is written to
        if [status.st_dev, status.st_ino, status.st_size,
                status.st_mtime_ns][:wanted] != self.identity[:wanted]:
            raise BadFile(f"{self.path} has changed since it was opened")

    def open(self):
        name = f"/proc/self/fd/{self.descriptor}"
        size = self.identity[2]
        begin = os.pread(self.descriptor, 8, 0)
        self.parquet = self.batches = None
        if begin[:4] == b"PAR1":
            self.parquet = pq.ParquetFile(
                pa.OSFile(name), thrift_string_size_limit=size,
                thrift_container_size_limit=max(size, 1))
            self.schema = self.parquet.schema_arrow
            metadata = self.parquet.metadata
            self.rows = [metadata.row_group(i).num_rows
                         for i in range(metadata.num_row_groups)]
        elif begin[:6] == b"ARROW1":
            self.map = pa.memory_map(name)
            self.file = pa.ipc.open_file(self.map)
            self.schema = self.file.schema
            self.rows = [self.file.get_batch(i).num_rows
                         for i in range(self.file.num_record_batches)]
        elif begin[:4] == b"\xff\xff\xff\xff":
            before = pa.total_allocated_bytes()
            self.map = pa.memory_map(name)
            with pa.ipc.open_stream(self.map) as stream:
                self.schema = stream.schema
                self.batches = []
                for batch in stream:
                    self.batches.append(batch)
                    if pa.total_allocated_bytes() - before > GROUPS_BYTES_MAX:
                        raise BadFile(
                            f"{self.path} is a compressed stream of Arrow, of which no "
                            "part can be read alone: write it as a file "
                            "(pyarrow.ipc.new_file), or as Parquet")
            self.rows = [batch.num_rows for batch in self.batches]
        else:
            what = "is empty" if size == 0 else f"begins with {begin!r}"
            raise BadFile(f"{self.path} {what}; wanted a file of Parquet (PAR1) or of "
                          "Arrow (ARROW1, or a stream)")
        if any(rows < 0 for rows in self.rows):
            raise BadFile(f"{self.path}: its footer says that a row group has "
                          f"{min(self.rows)} rows")

    def decoded_bytes(self, paths):
        """What columns take when they are decoded; 0: they are mapped."""
        if self.parquet is None:
            return 0
        metadata = self.parquet.metadata
        wanted = {j for path in paths for j in self.leaves_of(path)}
        return sum(metadata.row_group(i).column(j).total_uncompressed_size
                   for i in range(metadata.num_row_groups) for j in wanted)

    def leaves_of(self, path):
        """The numbers of the columns of Parquet that are read for one."""
        metadata, path = self.parquet.metadata, ".".join(path) + "."
        return [j for j in range(metadata.num_columns)
                if (metadata.schema.column(j).path + ".").startswith(path)]

    def places(self, paths):
        """(offset, bytes) of each column of each group in the file, group by group."""
        if self.identity[-1] is not None:
            return [(0, 0)] * (len(self.rows) * len(paths))
        if self.parquet is not None:
            numbers = [self.leaves_of(path) for path in paths]
            groups = map(self.parquet.metadata.row_group, range(len(self.rows)))
            return [self.hull(map(chunk_of, (group.column(j) for j in each)))
                    for group in groups for each in numbers]
        self.map.seek(0)
        begin = self.map.read_buffer(1).address
        batches = self.batches or map(self.file.get_batch, range(len(self.rows)))
        return [self.hull((each.address - begin, each.size)
                          for each in batch.column(path[0]).buffers() if each)
                for batch in batches for path in paths]

    def hull(self, ranges):
        """The range that has all of them; those that are in memory lie nowhere."""
        size = self.identity[2]
        ranges = [(at, at + count) for at, count in ranges if count and 0 <= at < size]
        if not ranges:
            return 0, 0
        begin = min(at for at, _ in ranges)
        return begin, min(max(end for _, end in ranges), size) - begin

    def find(self, name):
        found = list(itertools.islice(find_fields(self.schema, name), 2))
        if not found:
            names = ", ".join(itertools.islice(leaves(self.schema), 64))
            raise BadFile(f"{self.path} has no column '{name}'; it has: {names}")
        if len(found) > 1:
            raise BadFile(f"{self.path} has several columns '{name}': rename one")
        return found[0]

    def read(self, group, columns):
        """The arrays of columns of a group."""
        self.check_unchanged()
        tops = [column["path"][0] for column in columns]
        if self.parquet is not None:
            table = self.parquet.read_row_group(
                group, columns=[".".join(column["path"]) for column in columns],
                use_threads=False)
        elif self.batches is not None:
            table = self.batches[group]
        else:
            table = self.file.get_batch(group)
        if table.num_rows != self.rows[group]:
            raise BadFile(f"row group {group} has {table.num_rows} rows; the footer says "
                          f"{self.rows[group]}")
        return [self.column(table.column(top), column["path"][1:])
                for top, column in zip(tops, columns)]

    def column(self, array, path):
        if isinstance(array, pa.ChunkedArray):
            chunks = [self.column(chunk, path) for chunk in array.chunks]
            if len(chunks) == 1:
                return chunks[0]
            return (pa.concat_arrays(chunks) if chunks
                    else self.column(pa.array([], array.type), path))
        # Offsets and indices are foreign, and what follows trusts them; texts are
        # looked at one by one.
        if is_text(array.type):
            array = array.view(pa.binary() if pa.types.is_string(array.type)
                               else pa.large_binary()
                               ) if "view" not in str(array.type) else array
        array.validate(full=True)
        for name in path:
            array = pc.struct_field(plain_array(array), name)
        array = plain_array(array)
        if is_text(array.type) or is_binary(array.type):
            array = array.cast(pa.large_binary())
        return array


# What old writers left out of a chunk's size: the header of its dictionary (PARQUET-816).
HEADER_BYTES = 100


def chunk_of(column):
    """(offset, bytes) of a column's chunk of Parquet."""
    begin = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < begin:
        begin = column.dictionary_page_offset
    return begin, column.total_compressed_size + HEADER_BYTES


def plain_array(array):
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


class Parquet:
    """The rows of all files."""

    def __init__(self, options):
        import_pyarrow()
        import numpy
        self.numpy = numpy
        self.entries = given_files(options)
        self.open_files = collections.OrderedDict()
        if options["template"]:
            self.scanned = self.scan(options["wanted"], options["places"])

    def file(self, number):
        found = self.open_files.pop(number, None) or File(self.entries[number], number)
        self.open_files[number] = found
        while len(self.open_files) > FILES_OPEN_MAX:
            self.open_files.popitem(last=False)[1].close()
        return found

    def scan(self, names, with_places):
        """Looks at all files: (columns, as (name, path, what it is), row counts of the
        groups of each file, if wanted the places of these columns)."""
        wanted, counts, places, self.decoded_bytes = None, [], [], 0
        for number in range(len(self.entries)):
            file = File(self.entries[number], number)
            try:
                if not names:
                    names = list(leaves(file.schema))
                    if not names:
                        raise BadFile(f"{file.path} has no columns")
                found = []
                for name in names:
                    path, kind = file.find(name)
                    try:
                        found.append((name, path, described(kind, name)))
                    except BadFile as error:
                        raise BadFile(f"{file.path}: {error}") from None
                for mine, first in zip(found, wanted or found):
                    if mine != first:
                        raise BadFile(
                            f"{file.path}: column '{mine[0]}' is {text_of(mine[2])}; that "
                            f"of {self.entries[0][0]} is {text_of(first[2])}")
                wanted = wanted or found
                counts.append(file.rows)
                paths = [path for _, path, _ in found]
                self.decoded_bytes += file.decoded_bytes(paths)
                if with_places:
                    places += file.places(paths)
            finally:
                file.close()
        self.set_groups(counts)
        if not self.ends.size or not self.ends[-1]:
            raise BadFile(f"{self.entries[0][0]}: no rows" + (
                f", in none of {len(self.entries)} files" if len(self.entries) > 1 else ""))
        return wanted, counts, places

    def set_groups(self, counts):
        numpy = self.numpy
        self.places = [(number, group) for number, rows in enumerate(counts)
                       for group in range(len(rows))]
        flat = [rows for of_file in counts for rows in of_file]
        if sum(flat) > 1 << 53:
            raise BadFile(f"{sum(flat)} rows, which is more than 2^53")
        self.ends = numpy.cumsum(numpy.array(flat, numpy.int64))

    def describe(self, options):
        scanned, counts, places = self.scanned
        description = Description(self.numpy, options)
        rooms, defaults = dict(options["max_length"]), dict(options["default"])
        columns = []
        if options.get("places_only"):
            description.feature("places", "int64", [])
            scanned, rooms, defaults = [], {}, {}
        for name, path, (kind, dtype, sizes) in scanned:
            column = {"name": name, "path": path, "kind": kind, "dtype": dtype,
                      "room": rooms.pop(name, None), "default": defaults.pop(name, None)}
            self.describe_column(description, column, sizes)
            columns.append(column)
        for option, left in (("max_length", rooms), ("default", defaults)):
            for name in left:
                raise BadFile(f"{option}: there is no column '{name}'; there are: "
                              + ", ".join(each[0] for each in scanned))
        # u64 each: of each file how many groups it has, then their rows; then the places.
        told = self.numpy.array([number for rows in counts for number in (len(rows), *rows)] +
                                [number for place in places for number in place],
                                "<u8").tobytes()
        os.ftruncate(MEMORY, max(len(told), os.fstat(MEMORY).st_size))
        mmap.mmap(MEMORY, len(told))[:] = told
        return {"length": int(self.ends[-1]), "features": description.features,
                "structure": columns, "begin": len(told),
                "decoded_bytes": max(0, self.decoded_bytes)}

    def describe_column(self, description, column, sizes):
        name, kind, room = column["name"], column["kind"], column["room"]
        shape = list(sizes)
        if kind == "numbers" and (None in shape[1:] or shape[:1] == [None] and not room):
            shape = self.sizes_of_first(column, sizes)
        if kind == "numbers" and room:
            if sizes[:1] != [None]:
                raise BadFile(f"max_length: column '{name}' has the shape {sizes}, which "
                              "does not differ in length")
            column.update(kind="items", shape=shape[1:], names=[name, name + ".length"])
            shape[0] = room
        elif kind == "numbers":
            column.update(kind="array", shape=shape, names=[name])
        elif kind == "bytes" and room:
            column.update(kind="items", shape=[], names=[name, name + ".length"])
            shape = [room]
        elif kind == "bytes":
            column.update(names=[name])
        else:
            if room:
                raise BadFile(f"max_length: column '{name}' is text: max_bytes is its room")
            size = description.max_bytes
            if not size:
                longest = max(map(len, self.first_values(column, [])), default=0)
                size = max(1024, 1 << (4 * longest - 1).bit_length())
            column.update(names=[name, name + "_bytes"])
            shape = [size]
        made = [description.feature(name, column["dtype"], shape, kind == "bytes" and not room)]
        if len(column["names"]) > 1:
            made.append(description.feature(column["names"][1], "int64", []))
        if made != column["names"]:
            raise BadFile(f"two features are named '{name}': rename a column")
        self.check_default(column, shape)

    def check_default(self, column, shape):
        value, kind = column["default"], column["kind"]
        if value is None:
            return
        wanted = {"array": "a number", "items": "[]", "text": "a text"}.get(kind)
        fits = (isinstance(value, (int, float)) if kind == "array" else
                value == [] if kind == "items" else
                kind == "text" and isinstance(value, str)
                and len(value.encode("utf-8", "replace")) <= shape[0])
        try:
            if fits and kind == "array":
                fits = self.numpy.array(value).astype(column["dtype"]) == value
        except (OverflowError, ValueError):
            fits = False
        if not fits:
            raise BadFile(f"default: column '{column['name']}' " + (
                f"wants {wanted} that fits" if wanted
                else "is a picture, which has no default"))

    def first_values(self, column, sizes):
        """Of the first rows, as Python has them: those that are not null."""
        at = int(self.numpy.searchsorted(self.ends, 0, "right"))
        number, group = self.places[at]
        try:
            array, = self.file(number).read(group, [column])
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadFile(f"{self.entries[number][0]}, row group {group}: "
                          f"{wrong_with(error)}") from None
        return [each for each in array[:FIRST_MAX].to_pylist() if each is not None]

    def sizes_of_first(self, column, sizes):
        """Where a type leaves sizes open, the first rows say them."""
        def fill(value, sizes):
            if not sizes:
                return []
            if value is None or len(value) == 0:
                return None if len(sizes) > 1 or value is None else [0]
            inner = next(filter(None, (fill(each, sizes[1:]) for each in value)), None)
            return [len(value), *(inner or [])] if inner or len(sizes) == 1 else None
        found = next(filter(None, (fill(value, sizes)
                                   for value in self.first_values(column, sizes))), None)
        if found is None or 0 in found:
            raise BadFile(
                f"column '{column['name']}' is of lists, and its first {FIRST_MAX} rows do "
                f"not say how long they are: give max_length: {{{column['name']}: ...}}")
        return found


def text_of(described):
    kind, dtype, sizes = described
    if kind != "numbers":
        return {"text": "text", "bytes": "bytes"}[kind]
    return dtype + "".join(f"[{'n' if size is None else size}]" for size in sizes)


def given_files(options):
    memory = mmap.mmap(MEMORY, options["given"], access=mmap.ACCESS_READ)
    return json.loads(memory[:options["given"]])


# ---- groups


def dense(numpy, array, dtype, shape):
    """(values [n, *shape], which of the n are null, or have a null or another size in
    them; None: none)."""
    array = plain_array(array)
    count = len(array)
    bad = None
    if array.null_count:
        bad = ~array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_binary(array.type):
        width = shape[-1]
        data = numpy.frombuffer(array.buffers()[1] or b"", numpy.uint8)
        begin = array.offset * width
        return data[begin:begin + count * width].reshape(count, width), bad
    if not shape:
        kind = array.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)
                or pa.types.is_boolean(kind)):
            array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        if bad is not None:
            array = pc.fill_null(array, pa.scalar(0, array.type)
                                 if not pa.types.is_floating(array.type)
                                 else pa.scalar(numpy.dtype(dtype).type(0), array.type))
        if str(array.type) == "uint64":
            array = array.cast(pa.int64())
        values = array.to_numpy(zero_copy_only=False)
        return values.astype(dtype, copy=False), bad
    size, *inner = shape
    if is_list(array.type):
        offsets = numpy.asarray(array.offsets.to_numpy())
        begins, lengths = offsets[:-1], numpy.diff(offsets)
        good = lengths == size
        if bad is not None:
            good &= ~bad
        items = array.values
    else:
        begins = (numpy.arange(count) + array.offset) * size
        good = numpy.ones(count, bool) if bad is None else ~bad
        items = array.values
    if good.all() and (count == 0 or begins[-1] + size - begins[0] == count * size):
        items = items.slice(int(begins[0]) if count else 0, count * size)
    else:
        places = (begins[good][:, None] + numpy.arange(size)).ravel()
        items = items.take(pa.array(places))
    values, bad_items = dense(numpy, items, dtype, inner)
    values = values.reshape(-1, size, *inner)
    if not good.all():
        spread = numpy.zeros((count, size, *inner), values.dtype)
        spread[good] = values
        values = spread
    bad = None if good.all() else ~good
    if bad_items is not None and bad_items.any():
        bad = numpy.zeros(count, bool) if bad is None else bad
        bad[numpy.flatnonzero(good)[bad_items.reshape(-1, size).any(1)]] = True
    return values, bad


class Column:
    """The values of a column as a table has them (broker/source/parquet_table.h):
    states: of each row, whether it has a value (None: all have); offsets: in items, of
    what differs in length; values."""

    VALUE, NULL, OTHER_SHAPE, EMPTY = range(4)

    def __init__(self, numpy, column, array):
        self.numpy = numpy
        kind, default = column["kind"], column["default"]
        null = bad = self.offsets = None
        if kind == "text" and default is not None and array.null_count:
            array = array.fill_null(default.encode("utf-8", "replace"))
        if array.null_count:
            null = ~array.is_valid().to_numpy(zero_copy_only=False)
        if kind == "array":
            self.values, bad = dense(numpy, array, column["dtype"], column["shape"])
            if null is not None and default is not None:
                self.values = self.values.copy()
                self.values[null] = default
                null, bad = None, None if bad is None else bad & ~null
        elif is_binary(array.type):
            buffers = array.buffers()
            offsets = numpy.frombuffer(buffers[1] or bytes(8), numpy.int64)[
                array.offset:array.offset + len(array) + 1]
            self.values = numpy.frombuffer(buffers[2] or b"", numpy.uint8)[
                offsets[0]:offsets[-1]]
            self.offsets = offsets - offsets[0]
        else:
            offsets = array.offsets.to_numpy().astype(numpy.int64)
            self.values, bad_items = dense(
                numpy, array.values.slice(offsets[0], offsets[-1] - offsets[0]),
                column["dtype"], column["shape"])
            self.offsets = offsets - offsets[0]
            if bad_items is not None:
                before = numpy.concatenate([[0], bad_items.cumsum()])
                bad = before[self.offsets[1:]] > before[self.offsets[:-1]]
        self.states = None
        if null is not None or bad is not None:
            self.states = numpy.full(len(array), self.VALUE, numpy.uint8)
        if bad is not None:
            self.states[bad] = self.OTHER_SHAPE
        if null is not None:
            self.states[null] = self.EMPTY if default == [] else self.NULL


class SealedMemory:
    """A memory that is written once, and sealed."""

    ALIGN = 64

    def __init__(self):
        self.descriptor = os.memfd_create("penstock rows",
                                          os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.bytes = self.ALIGN  # nothing lies at 0

    def add(self, array):
        """Where it lies; 0: there is none."""
        if array is None:
            return 0
        begin = self.bytes
        view = memoryview(array.reshape(-1).view("uint8"))
        while view:
            wrote = os.pwrite(self.descriptor, view, self.bytes)
            self.bytes += wrote
            view = view[wrote:]
        self.bytes += -self.bytes % self.ALIGN
        return begin

    def seal(self):
        os.ftruncate(self.descriptor, self.bytes)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK |
                    fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)


class ParquetRows:
    """Answers calls: GROUP, a file and a group of it, or ROWS, and a file, a group and a
    row of it for each. The answer comes with a memory and has the number of its rows, the size of the
    process's memory, that of this one, and of each column where its states, offsets and
    values lie, and the bytes of its values."""

    GROUP, ROWS = range(2)

    def __init__(self, dataset, options, growth):
        self.dataset = dataset
        self.numpy = dataset.numpy
        self.columns = options["structure"]
        self.bytes_of_memory = options["memory_bytes"]
        self.growth = growth
        self.groups = collections.OrderedDict()  # of mapped files, the last used last
        self.bytes = 0

    def read(self, at):
        number, group = at
        return self.dataset.file(number).read(group, self.columns)

    def kept(self, at):
        """The arrays of a mapped group, which are looked at once."""
        found = self.groups.pop(at, None)
        if found is None:
            found = self.read(at)
            self.bytes += sum(each.nbytes for each in found)
        self.groups[at] = found
        while self.bytes > GROUPS_BYTES_MAX and len(self.groups) > 1:
            _, gone = self.groups.popitem(last=False)
            self.bytes -= sum(each.nbytes for each in gone)
        return found

    def rows_of(self, numbers):
        """The arrays of rows, in their order."""
        numpy = self.numpy
        rows = numpy.array(numbers, numpy.int64).reshape(-1, 3)
        order = numpy.lexsort(rows[:, 1::-1].T)
        sorted_rows = rows[order]
        begins = numpy.flatnonzero((numpy.diff(sorted_rows[:, :2], axis=0) != 0).any(1)) + 1
        parts = [[array.take(pa.array(part[:, 2])) for array in
                  self.kept(tuple(part[0, :2].tolist()))]
                 for part in numpy.split(sorted_rows, begins)]
        arrays = [part[0] if len(part) == 1 else pa.concat_arrays(part)
                  for part in zip(*parts)]
        if (order[:-1] < order[1:]).all():
            return arrays
        back = pa.array(numpy.argsort(order))
        return [array.take(back) for array in arrays]

    def make(self, call, numbers, link):
        asked, *numbers = numbers
        try:
            arrays = (self.read(numbers) if asked == self.GROUP
                      else self.rows_of(numbers))
            columns = [Column(self.numpy, column, array)
                       for column, array in zip(self.columns, arrays)]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Told(wrong_with(error)) from None
        memory = SealedMemory()
        try:
            places = []
            for each in columns:
                values = self.numpy.ascontiguousarray(each.values)
                places += [memory.add(each.states), memory.add(each.offsets),
                           memory.add(values), values.nbytes]
            memory.seal()
            body = struct.pack(f"<{3 + len(places)}Q", len(arrays[0]), self.bytes_of_memory,
                               memory.bytes, *places)
            state = LAST if self.growth.exceeded() else DONE
            link.sendmsg([answer(call, state, body)],
                         [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                           struct.pack("i", memory.descriptor))])
        finally:
            os.close(memory.descriptor)
