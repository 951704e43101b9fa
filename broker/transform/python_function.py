"""Calls one function of a dataset's `map`, row by row. Its argument: see
PythonFunction."""

import inspect
import mmap
import time


def takes_rng(function):
    try:
        return "rng" in inspect.signature(function).parameters
    except ValueError:  # a compiled one that does not say
        return False


class Rows:
    """The memory, and the arrays of the row that is in it."""

    def __init__(self, numpy, inputs, outputs):
        self.numpy = numpy
        self.inputs = [(f["name"], None if f["encoded"] else f["shape"],
                        dtype_of(numpy, f["dtype"])) for f in inputs]
        self.outputs = [(f["name"], f["shape"], dtype_of(numpy, f["dtype"]))
                        for f in outputs]
        # Its only feature is True or False, which it may return without a name.
        self.is_predicate = [(shape, dtype.kind) for _, shape, dtype
                             in self.outputs] == [([], "b")]
        self.memory = None
        self.places = None
        self.row = {}
        self.results = {}

    def array(self, offset, size, shape, dtype):
        flat = self.numpy.frombuffer(self.memory, dtype,
                                     size // dtype.itemsize, offset)
        return flat if shape is None else flat.reshape(shape)

    def look(self, memory_bytes, places):
        """places: offset and bytes of each input, offset of each output."""
        if self.memory is None or len(self.memory) != memory_bytes:
            self.memory = mmap.mmap(MEMORY, memory_bytes)
        elif places == self.places:
            return
        self.places = places
        places = iter(places)
        self.row = {name: self.array(next(places), next(places), shape, dtype)
                    for name, shape, dtype in self.inputs}
        self.results = {}
        for name, shape, dtype in self.outputs:
            size = dtype.itemsize
            for n in shape:
                size *= n
            self.results[name] = self.array(next(places), size, shape, dtype)

    def views(self):
        """New ones for each row: a function can change the shape of an array."""
        return {name: array.view() for name, array in self.row.items()}

    def take(self, result):
        if not isinstance(result, dict) and not hasattr(result, "keys"):
            if not self.is_predicate:
                raise TypeError(f"it returned {type(result).__name__}; wanted a "
                                f"mapping of {', '.join(self.results)}")
            if not isinstance(result, (bool, self.numpy.bool_)):
                raise TypeError(f"it returned {type(result).__name__}; wanted "
                                "True or False")
            result = {name: result for name in self.results}
        if set(result.keys()) != set(self.results):
            raise KeyError(f"it returned {', '.join(map(str, result))}; wanted "
                           f"{', '.join(self.results)}: its input's, unless "
                           "`features` of the step name others")
        for name, place in self.results.items():
            value = self.numpy.asarray(result[name])
            if value.shape != place.shape:
                raise ValueError(f"feature '{name}': it returned shape "
                                 f"{list(value.shape)}; wanted "
                                 f"{list(place.shape)}")
            copy_into(self.numpy, name, value, place)


def random_generator(numpy, seed, epoch, sample, step):
    """Philox4x64-10 with key (seed, step) at counter (0, sample, epoch, 0): the
    same for a row wherever and whenever it is made."""
    return numpy.random.Generator(numpy.random.Philox(
        key=[seed, step], counter=[0, sample, epoch, 0]))


def prepare(options):
    import numpy
    function = find_function(options["function"], options["python_path"],
                             options["writable_by"])
    rows = Rows(numpy, options["inputs"], options["outputs"])
    draws = takes_rng(function)

    def run(call, numbers, link):
        memory_bytes, seed, epoch, sample, step, *places = numbers
        rows.look(memory_bytes, places)
        row = rows.views()
        began = time.perf_counter_ns()
        if draws:
            result = function(row, rng=random_generator(
                numpy, seed, epoch, sample, step))
        else:
            result = function(row)
        own_ns = time.perf_counter_ns() - began
        rows.take(result)
        link.send(answer(call, DONE, struct.pack("<Q", own_ns)))

    return b"", run


serve(prepare)
