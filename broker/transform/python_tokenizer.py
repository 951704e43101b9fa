"""Tokenizes texts and chats with Hugging Face's tokenizers, the rows of a call together.
Its argument: see TokenizeOp; the tokenizer.json, and behind it the files of a chat, lie
at the beginning of the memory."""

import mmap
import time
from array import array

INSTALL = ("tokenize needs Hugging Face's tokenizers, which {} cannot import ({}): pip "
           "install tokenizers into the Python that the broker runs")
TOO_LONG = ("the text has {} tokens, and max_length is {}: give more, or `longer: cut`")


def given_files(options):
    """The tokenizer, the configuration and the template of a chat."""
    chat = options.get("chat") or {"config": 0, "template": 0}
    with mmap.mmap(MEMORY, options["given"] + chat["config"] + chat["template"]) as memory:
        text = memory[:]
    end = options["given"] + chat["config"]
    return text[:options["given"]], text[options["given"]:end], text[end:]


def load(text):
    # Each worker has a process.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        import tokenizers
    except ImportError as error:
        raise Told(INSTALL.format(sys.executable, error)) from None
    version = f"tokenizers {tokenizers.__version__}"
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(text)
    except Exception as error:
        raise Told(f"it is no tokenizer.json that {version} reads: {error}") from None
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        raise Told(f"its model leaves out merges at random (dropout: {dropout}), and a row "
                   "is the same each time: set it to null in a copy of the file")
    return tokenizer, version


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
    tokenizer_json, config, template = given_files(options)
    tokenizer, versions = load(tokenizer_json)
    limit(tokenizer, options)
    chats = None
    if options.get("chat"):
        chats = Chats(options["chat"], config, template)
        versions += f", {chats.versions}"
        bound_memory()
    texts, room, special = (options[key] for key in ("texts", "max_length", "special"))
    code = {"int32": "i", "int64": "q"}[options["dtype"]]
    # Without the offsets of the tokens, which only a chat asks for: 0.7 of the time.
    encode = (tokenizer.encode_batch if chats else
              getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch))
    made = 1 + bool(options["type_ids"]) + (1 + chats.labels if chats else 0)
    numbers_of_row = 2 * texts + 2 * made
    memory = None

    def put(code, values, at, length_at):
        items = array(code, values)
        size = room * items.itemsize
        memory[at:at + size] = items.tobytes().ljust(size, b"\0")
        memory[length_at:length_at + 8] = struct.pack("<q", len(values))

    def given(row):
        parts = [memory[row[2 * i]:row[2 * i] + row[2 * i + 1]].decode()
                 for i in range(texts)]
        return tuple(parts) if texts == 2 else parts[0]

    def run(call, numbers, link):
        nonlocal memory
        memory_bytes, _, _, _, _, *places = numbers
        if memory is None or len(memory) != memory_bytes:
            memory = mmap.mmap(MEMORY, memory_bytes)
        rows = [places[i:i + numbers_of_row] for i in range(0, len(places), numbers_of_row)]
        asked = [given(row) for row in rows]
        began = time.perf_counter_ns()
        spans = [()] * len(rows)
        if chats:
            asked, spans = zip(*map(chats.text_of, asked))
        found = encode(list(asked), add_special_tokens=special)
        masks = [mask_of(each.offsets, of) for each, of in zip(found, spans)] if chats else None
        own_ns = time.perf_counter_ns() - began
        for i, (tokens, row) in enumerate(zip(found, rows)):
            ids = tokens.ids
            if len(ids) > room:
                raise Told(TOO_LONG.format(len(ids), room))
            outputs = iter(row[2 * texts:])
            put(code, ids, next(outputs), next(outputs))
            if options["type_ids"]:
                put(code, tokens.type_ids, next(outputs), next(outputs))
            if chats:
                put("B", masks[i], next(outputs), next(outputs))
            if chats and chats.labels:
                put(code, [token if on else -100 for token, on in zip(ids, masks[i])],
                    next(outputs), next(outputs))
        link.send(answer(call, DONE, struct.pack("<Q", own_ns)))

    return versions.encode(), run


serve(prepare)
