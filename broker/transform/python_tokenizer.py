"""Tokenizes texts with Hugging Face's tokenizers, row by row. Its argument: see
TokenizeOp; the tokenizer.json lies at the beginning of the memory."""

import mmap
import time
from array import array

INSTALL = ("tokenize needs Hugging Face's tokenizers, which {} cannot import ({}): pip "
           "install tokenizers into the Python that the broker runs")
TOO_LONG = ("the text has {} tokens, and max_length is {}: give more, or `longer: cut`")


def load(options):
    # Each worker has a process.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        import tokenizers
    except ImportError as error:
        raise Told(INSTALL.format(sys.executable, error)) from None
    with mmap.mmap(MEMORY, options["given"]) as memory:
        text = memory[:]
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:
        raise Told("it is no tokenizer.json that tokenizers "
                   f"{tokenizers.__version__} reads: {error}") from None
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        raise Told(f"its model leaves out merges at random (dropout: {dropout}), and a row "
                   "is the same each time: set it to null in a copy of the file")
    return tokenizer


def limit(tokenizer, options):
    room = options["max_length"]
    special = options["special"] and tokenizer.num_special_tokens_to_add(
        options["texts"] == 2)
    if special >= room:
        raise Told(f"max_length: {room}, and {special} tokens are special ones: give more")
    kept = tokenizer.truncation or {}
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if options["cuts"]:
        tokenizer.enable_truncation(
            room, strategy=kept.get("strategy", "longest_first"),
            direction=kept.get("direction", "right"))


def prepare(options):
    tokenizer = load(options)
    limit(tokenizer, options)
    texts, room, special = (options[key] for key in ("texts", "max_length", "special"))
    code = {"int32": "i", "int64": "q"}[options["dtype"]]
    size = room * array(code).itemsize
    # Without the offsets of the tokens, which nobody asks for: 0.7 of the time.
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    memory = None

    def put(values, at, length_at):
        memory[at:at + size] = array(code, values).tobytes().ljust(size, b"\0")
        memory[length_at:length_at + 8] = struct.pack("<q", len(values))

    def run(call, numbers, link):
        nonlocal memory
        memory_bytes, _, _, _, _, *places = numbers
        if memory is None or len(memory) != memory_bytes:
            memory = mmap.mmap(MEMORY, memory_bytes)
        given = [memory[places[2 * i]:places[2 * i] + places[2 * i + 1]].decode()
                 for i in range(texts)]
        began = time.perf_counter_ns()
        found, = encode([tuple(given) if texts == 2 else given[0]],
                        add_special_tokens=special)
        own_ns = time.perf_counter_ns() - began
        if len(found) > room:
            raise Told(TOO_LONG.format(len(found), room))
        put(found.ids, *places[2 * texts:2 * texts + 2])
        if options["type_ids"]:
            put(found.type_ids, *places[2 * texts + 2:])
        link.send(answer(call, DONE, struct.pack("<Q", own_ns)))

    return b"", run


serve(prepare)
