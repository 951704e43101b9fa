"""Makes a Parquet file of what standard input has, on standard output: `penstock convert`
runs it for each shard. A line of JSON: "rows", and "columns" of {"name", "kind", "dtype",
"shape", "bytes"}; behind it, of each column but numbers the ends of its rows as u32, and
its values. What was made is read back and compared."""

import json
import sys


def main():
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        sys.exit(f"Parquet is written with pyarrow, which {sys.executable} cannot import "
                 f"({error}): pip install pyarrow")
    data = memoryview(sys.stdin.buffer.read())
    if not data:  # is there pyarrow?
        return
    at = bytes(data[:1 << 20]).index(b"\n") + 1
    head = json.loads(bytes(data[:at]))
    rows, columns = head["rows"], {}

    def take(size):
        nonlocal at
        at += size
        return pa.py_buffer(data[at - size:at])

    for column in head["columns"]:
        kind, shape, size = column["kind"], column["shape"], column["bytes"]
        ends = None if kind == "values" else take(4 * rows + 4)
        values = take(size)
        if kind in ("text", "file"):
            made = pa.Array.from_buffers(pa.string() if kind == "text" else pa.binary(), rows,
                                         [None, ends, values])
        else:
            is_bool = column["dtype"] == "bool"
            dtype = pa.type_for_alias("uint8" if is_bool else column["dtype"])
            made = pa.Array.from_buffers(dtype, size * 8 // dtype.bit_width, [None, values])
            made = made.cast(pa.bool_()) if is_bool else made
            for side in reversed(shape if kind == "values" else shape[1:]):
                made = pa.FixedSizeListArray.from_arrays(made, side)
            if kind == "list":
                made = pa.ListArray.from_arrays(
                    pa.Array.from_buffers(pa.int32(), rows + 1, [None, ends]), made)
        columns[column["name"]] = made
    table = pa.table(columns)
    table.validate(full=True)
    sink = pa.BufferOutputStream()
    group_bytes = 16 << 20
    pq.write_table(table, sink, row_group_size=max(1, rows * group_bytes // len(data)))
    file = sink.getvalue()
    # As Python's values, where NaN is not itself: its text.
    if not all(a.equals(b) or str(a.to_pylist()) == str(b.to_pylist()) for a, b in zip(
            table.columns, pq.read_table(pa.BufferReader(file)).columns)):
        sys.exit("what pyarrow reads of the file is not what it wrote")
    sys.stdout.buffer.write(file)


main()
