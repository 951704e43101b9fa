"""Promise: `tokenize` with `chat` gives the tokens of a chat and the mask of what a model
is trained on that transformers gives of it, and those of a rendering in plain Python,
whatever file it came from, in batches, packed, in buckets, kept or converted; what is
wrong with a chat or a template is told with its way out. Method: every token and every
item of the mask beside both; one test for each thing that can be wrong."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import penstock
import pytest

tokenizers = pytest.importorskip("tokenizers", reason="no tokenizers")
pytest.importorskip("jinja2", reason="no jinja2")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
Dataset = penstock.Dataset
ROOM = 4096  # bytes of a chat
TOKENS = 600
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]"]
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False},
          "pad_token": None, "model_max_length": 64}

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
MISTRAL = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
# As Qwen's that trl has for training.
MARKED = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content is defined and ns.seen > 0 %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
        {%- set ns.seen = ns.seen + 1 %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
# The same with blocks, of which transformers makes a mask.
WITH_BLOCKS = {
    CHATML: CHATML.replace(
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}",
        "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}"),
    LLAMA3: LLAMA3.replace(
        "{{ content }}",
        "{% if message['role'] == 'assistant' %}{% set head = '<|start_header_id|>assistant"
        "<|end_header_id|>\n\n' %}{{ head }}{% generation %}{{ content[head | length:] }}"
        "{% endgeneration %}{% else %}{{ content }}{% endif %}"),
    MISTRAL: MISTRAL.replace(
        "{{- ' ' + message['content'] + eos_token}}",
        "{%- generation %}{{- ' ' + message['content'] + eos_token}}{%- endgeneration %}"),
    MARKED: MARKED,
}
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "marked": MARKED}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    [said("user", "What is 2+2?"), said("assistant", "4")],
    [said("system", "Be brief."), said("user", "Wie heißt du?"),
     said("assistant", "Ich heiße 北京 😀"), said("user", "  <b>no</b>\n\n"),
     said("assistant", "\tyes & \"no\"  ", reasoning="because")],
    [said("user", "a"), said("assistant", "")],
    [said("user", "the quick brown fox " * 9), said("assistant", "jumps 😀😀")],
    [said("user", "only a question")],
    [said("user", "x"), said("assistant", "é" * 30, thinking="hm"), said("user", "y <|im_end|> z"),
     said("assistant", "[INST] w </s>"), said("user", "bye")],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        ["the quick brown fox user assistant system"] * 3,
        tokenizers.trainers.BpeTrainer(
            vocab_size=320, show_progress=False, special_tokens=SPECIAL,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)])  # which no chat gets
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, text in TEMPLATES.items():
        (folder / f"{name}.json").write_text(json.dumps({**CONFIG, "chat_template": text}))
        (folder / f"{name}.jinja").write_text(text)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def encode(files):
    tokenizer = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def chats_in(folder, chats=CHATS, **more):
    """A row of each chat, with its number."""
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps({"id": i, "messages": chat}, ensure_ascii=i % 2 == 0) + "\n"
                            for i, chat in enumerate(chats)))
    return Dataset.json_lines(path, {"id": {"dtype": "int64"},
                                     "messages": {"max_bytes": ROOM, "json": True}}, **more)


def step(files, template="chatml", room=TOKENS, chat=None, **more):
    return penstock.tokenize(files / "tokenizer.json", room, to="input_ids",
                             **{"feature": "messages", **more},
                             chat=penstock.chat(**{"config": files / f"{template}.json",
                                                   **(chat or {})}))


def rows_of(reader, *names):
    """By number, the lists of a row; behind them are zeros."""
    found = {}
    for batch in reader:
        for i, row in enumerate(batch["id"].tolist()):
            lists = []
            for name in names or ("input_ids", "loss_mask"):
                length = batch.lengths(name)[i]
                assert not batch[name][i, length:].any()
                lists.append(batch[name][i, :length].tolist())
            assert len({len(each) for each in lists}) == 1
            found[row] = lists
    return [found[i] for i in sorted(found)]


def in_plain_python(encode, chat, train_on=("assistant",)):
    """Tokens and mask of ChatML, without a template."""
    text, spans = "", []
    for message in chat:
        head = f"<|im_start|>{message['role']}\n"
        begin = len(text) + (len(head) if message["role"] == "assistant" else 0)
        text += f"{head}{message['content']}<|im_end|>\n"
        if message["role"] in train_on:
            spans.append((begin, len(text)))
    found = encode(text)
    return [found.ids, [int(any(begin < end_of and end > begin_of for begin_of, end_of in spans))
                        for begin, end in found.offsets]]


@pytest.mark.parametrize("template", TEMPLATES)
def test_tokens_and_mask_are_those_of_transformers(attach, files, tmp_path, template):
    transformers = pytest.importorskip("transformers", reason="no transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(files / "tokenizer.json"), bos_token="<s>", eos_token="</s>",
        chat_template=TEMPLATES[template])
    blocks = WITH_BLOCKS[TEMPLATES[template]]
    # Theirs lacks the first block of a text that begins with one: none of these does.
    wanted = []
    for chat in CHATS:
        plain = theirs.apply_chat_template(chat, tokenize=True, return_dict=True)
        marked = theirs.apply_chat_template(chat, chat_template=blocks, tokenize=True,
                                            return_dict=True, return_assistant_tokens_mask=True)
        assert plain["input_ids"] == marked["input_ids"]
        wanted.append([marked["input_ids"], marked["assistant_masks"]])
    assert any(1 in mask for _, mask in wanted)
    dataset = chats_in(tmp_path).map(step(files, template)).batch(4)
    assert rows_of(attach(dataset, job=template)) == wanted


def test_tools_and_variables_are_those_of_transformers(attach, files, tmp_path, encode):
    transformers = pytest.importorskip("transformers", reason="no transformers")
    tools = [{"type": "function", "function": {
        "name": "wetter", "description": "größer < \"x\"", "parameters": {"type": "object"}}}]
    calls = [{"type": "function", "function": {"name": "wetter", "arguments": {"at": "Köln"}}}]
    chat = [said("user", "weather?"), {"role": "assistant", "content": None, "tool_calls": calls},
            said("tool", "sun"), said("assistant", "It shines.")]
    template = MARKED.replace(
        "{{- message.content + '<|im_end|>' }}",
        "{{- (message.content if message.content is defined else message.tool_calls | "
        "tojson(indent=2)) + mood + '<|im_end|>' }}")
    (tmp_path / "a.jinja").write_text(template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(files / "tokenizer.json"), bos_token="<s>", chat_template=template)
    made = theirs.apply_chat_template(chat, tools=tools, tokenize=True, return_dict=True,
                                      return_assistant_tokens_mask=True, mood="!")
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": chat, "tools": tools}) + "\n")
    reader = attach(Dataset.text_lines(tmp_path / "a.jsonl", ROOM).map(
        step(files, feature="text", chat={"config": None, "template": tmp_path / "a.jinja",
                                          "variables": {"mood": "!"}})).batch(1))
    batch = reader.next()
    length = batch.lengths("input_ids")[0]
    assert batch["input_ids"][0, :length].tolist() == made["input_ids"]
    assert batch["loss_mask"][0, :length].tolist() == made["assistant_masks"]


@pytest.mark.parametrize("train_on", [["assistant"], ["user"], ["assistant", "system"]], ids=str)
def test_a_chat_is_what_plain_python_makes_of_it(attach, files, tmp_path, encode, train_on):
    chats = [*CHATS, [said("assistant", "how can I help?"), said("user", "so"),
                      said("assistant", "so")]]
    reader = attach(chats_in(tmp_path, chats).shuffle(2).map(
        step(files, chat={"train_on": train_on})).batch(4, last="partial"))
    assert reader.element_spec["input_ids"] == ((TOKENS,), "int32")
    assert reader.element_spec["loss_mask"] == ((TOKENS,), "uint8")
    assert "messages" not in reader.element_spec
    assert rows_of(reader) == [in_plain_python(encode, chat, train_on) for chat in chats]


def test_where_a_chat_may_be(attach, files, tmp_path, encode):
    """A member, a line, and as ShareGPT has it."""
    wanted = [in_plain_python(encode, chat) for chat in CHATS]
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    shared = [[{"from": names[each["role"]], "value": each["content"]} for each in chat]
              for chat in CHATS]
    lines = {
        "lists": [json.dumps(chat) for chat in CHATS],
        "messages": [json.dumps({"x": 1, "messages": chat}) for chat in CHATS],
        "conversations": [json.dumps({"conversations": chat}) for chat in shared],
        "texts": [json.dumps({"messages": json.dumps(chat)}) for chat in CHATS]}
    for name, texts in lines.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(text + "\n" for text in texts))
        if name == "texts":  # of a member that is the JSON of a chat as text
            dataset, feature = Dataset.json_lines(path, {"messages": {"max_bytes": ROOM}}), "messages"
        else:
            dataset, feature = Dataset.text_lines(path, ROOM), "text"
        rows = []
        for batch in attach(dataset.map(step(files, feature=feature)).batch(4), job=name):
            for i, length in enumerate(batch.lengths("input_ids")):
                rows.append([batch["input_ids"][i, :length].tolist(),
                             batch["loss_mask"][i, :length].tolist()])
        assert rows == wanted, name


def test_other_names_of_roles(attach, files, tmp_path, encode):
    chats = [[said("frage", "a"), said("antwort", "b")]]
    reader = attach(chats_in(tmp_path, chats).map(step(files, chat={
        "roles": {"frage": "user", "antwort": "assistant"}})).batch(1))
    assert rows_of(reader) == [in_plain_python(encode, [said("user", "a"), said("assistant", "b")])]


def test_labels_are_tokens_and_minus_100(attach, files, tmp_path, encode):
    reader = attach(chats_in(tmp_path).map(step(files, dtype="int64", chat={
        "mask": "assistant_masks", "labels": "labels"})).batch(4))
    assert reader.element_spec["labels"] == ((TOKENS,), "int64")
    for tokens, mask, labels in rows_of(reader, "input_ids", "assistant_masks", "labels"):
        assert labels == [token if on else -100 for token, on in zip(tokens, mask)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_longer_chat_is_cut_with_its_mask(attach, files, tmp_path, encode, side):
    tokenizer = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.enable_truncation(9, direction=side)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    reader = attach(chats_in(tmp_path).map(penstock.tokenize(
        tmp_path / "tokenizer.json", 16, longer="cut", feature="messages", to="input_ids",
        chat=penstock.chat(files / "chatml.json"))).batch(4))
    part = slice(0, 16) if side == "right" else slice(-16, None)
    assert rows_of(reader) == [[each[part] for each in in_plain_python(encode, chat)]
                               for chat in CHATS]


def many(count=200):
    rng = np.random.default_rng(5)
    return [[said("user", "q" * int(rng.integers(1, 60)) + "?"),
             said("assistant", "ä" * int(rng.integers(0, 50)))] * int(rng.integers(1, 4))
            for _ in range(count)]


def test_chats_are_packed_with_their_masks(attach, files, tmp_path, encode):
    chats = many()
    wanted = [in_plain_python(encode, chat) for chat in chats]
    reader = attach(chats_in(tmp_path, chats).shuffle(3).map(
        step(files, chat={"labels": "labels"}), penstock.drop("id")).batch(
            4, last="partial", pack=penstock.pack(
                1024, feature="input_ids", pad={"labels": -100},
                with_=["records", "seq_lens", "position_ids"])))
    found, filled, rows = {}, 0, 0
    for batch in reader:
        for i in range(batch.valid_rows):
            begin = 0
            for record, length in zip(batch["records"][i].tolist(), batch["seq_lens"][i].tolist()):
                if not length:
                    break
                piece = slice(begin, begin + length)
                tokens, mask, labels = (batch[name][i, piece].tolist()
                                        for name in ("input_ids", "loss_mask", "labels"))
                found[record] = [tokens, mask]
                assert labels == [token if on else -100 for token, on in zip(tokens, mask)]
                assert batch["position_ids"][i, piece].tolist() == list(range(length))
                begin += length
            assert not batch["loss_mask"][i, begin:].any()
            assert (batch["labels"][i, begin:] == -100).all()
            filled += begin
            rows += 1
    assert [found[i] for i in range(len(chats))] == wanted
    assert filled / (1024 * rows) > 0.9


def test_chats_in_buckets(attach, files, tmp_path, encode):
    chats = many(60)
    reader = attach(chats_in(tmp_path, chats).map(step(files)).shuffle(3).batch(
        4, buckets=penstock.buckets("input_ids.length", count=3)))
    rows, widths = {}, set()
    for batch in reader:
        widths.add(batch["input_ids"].shape[1])
        assert batch["loss_mask"].shape == batch["input_ids"].shape
        for i, row in enumerate(batch["id"].tolist()):
            length = batch.lengths("input_ids")[i]
            rows[row] = [batch["input_ids"][i, :length].tolist(),
                         batch["loss_mask"][i, :length].tolist()]
    assert len(widths) > 1
    assert [rows[i] for i in range(len(chats))] == [in_plain_python(encode, c) for c in chats]


@pytest.mark.parametrize("batch", [
    dict(buckets=penstock.buckets("input_ids.length", count=2)),
    dict(pack=penstock.pack(1024, feature="input_ids", with_=["records", "seq_lens"]))],
    ids=["buckets", "pack"])
def test_a_chat_without_a_length_is_left_out(attach, failure, files, tmp_path, encode, batch):
    chats = many(40)
    chats[7], chats[8], chats[30] = [], [{"role": "user"}], "no chat"
    good = [i for i in range(40) if i not in (7, 8, 30)]
    data = chats_in(tmp_path, chats).map(step(files), *(
        [penstock.drop("id")] if "pack" in batch else [])).batch(4, **batch)
    text = failure(data, job="fails")
    assert re.search("chats.jsonl, line (8|9|31): .*leave it out by `on_error: skip`", text), text
    for turn in range(2):  # the second time from the cache
        with pytest.warns(match="3 of 40 records have no 'input_ids.length', the first .*line 8"):
            reader = attach(data.on_error("skip"), job=f"skips-{turn}")
        found = {}
        for rows in reader:
            for i in range(rows.valid_rows):
                records, lengths = (
                    ([rows["id"][i]], [rows.lengths("input_ids")[i]]) if "pack" not in batch
                    else (rows["records"][i], rows["seq_lens"][i]))
                begin = 0
                for record, length in zip(records, lengths):
                    if record >= 0:
                        found[int(record)] = rows["input_ids"][i, begin:begin + length].tolist()
                    begin += length
        assert sorted(found) == good
        assert all(found[i] == in_plain_python(encode, chats[i])[0] for i in good)
        reader.close()


@pytest.mark.parametrize("kept", ["memory", "disk", "snapshot"])
def test_chats_are_kept(files, tmp_path, monkeypatch, encode, kept):
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_PATH", str(tmp_path))
    chats = many(50)
    dataset = chats_in(tmp_path, chats).shuffle(3).map(step(files)).batch(8).repeat(2)
    dataset = (dataset.snapshot(tmp_path / "kept") if kept == "snapshot"
               else dataset.cache(**{kept: "8M"}))
    with penstock.broker(workers=2) as own:
        for _ in range(2):
            with penstock.attach(dataset, job="kept", socket=own.socket, timeout_s=60) as reader:
                found = [rows_of(epoch) for epoch in reader.epochs()]
                assert found == [[in_plain_python(encode, c) for c in chats]] * 2
                status = json.loads(subprocess.run(
                    [PENSTOCK, "status", "--json", "--socket", own.socket],
                    stdout=subprocess.PIPE, check=True).stdout)
                hits, = (each["cache_hits"] for each in status["jobs"] if each["job"] == "kept")
                # A row of the next epoch may come before it is kept.
                assert hits > len(chats) / 2


def test_chats_are_converted(attach, files, tmp_path, encode):
    chats = many(40)
    spec = tmp_path / "chats.yaml"
    spec.write_text(json.dumps(chats_in(tmp_path, chats).map(step(files)).batch(8).to_dict()))
    subprocess.run([PENSTOCK, "convert", str(spec), "--to", "mds", "--out", str(tmp_path / "out")],
                   check=True, stdout=subprocess.PIPE,
                   env={**os.environ, "PENSTOCK_PYTHON": sys.executable})
    found = rows_of(attach(tmp_path / "out/spec.yaml"))
    assert found == [in_plain_python(encode, chat) for chat in chats]


GOOD = json.dumps(CHATS[0])
WRONG = {
    "not-json": ("[{", "not JSON: "),
    "a-number": ("7", "wanted a list of messages, found a number"),
    "an-object": ('{"chat": []}', "an object without messages or conversations"),
    "no-list": ('{"messages": {"role": "user"}}', "wanted a list of messages, found an object"),
    "no-messages": ('{"messages": []}', "there are no messages"),
    "no-message": ('["hello"]', "message 0: wanted an object, found text"),
    "no-role": ('[{"content": "a"}]', "message 0: wanted a role, found none"),
    "a-null-role": ('[{"role": null, "content": "a"}]', "message 0: wanted a role, found none"),
    "role-of-number": ('[{"role": 3, "content": "a"}]', "message 0: wanted a role, found a number"),
    "unknown-role": ('[{"role": "user", "content": "a"}, {"role": "asistant", "content": "b"}]',
                     "message 1: its role 'asistant' is none of assistant, developer, function, "
                     "system, tool, user: `chat: {roles: {asistant: NAME}}` says what it is"),
    "no-content": ('[{"role": "user"}]', "message 0: it has no content"),
    "null-content": ('[{"role": "user", "content": null}]', "message 0: it has no content"),
    "list-content": ('[{"role": "user", "content": [{"type": "text", "text": "a"}]}]',
                     "message 0: its content is a list, and text is wanted"),
    "surrogate": ('[{"role": "user", "content": "\\ud800"}]', "not UTF-8: '\\ud800' is half of a character"),
    "deep": ("[" * 3000 + "]" * 3000, "not JSON: |message 0: wanted an object"),
    "long": (json.dumps([said("user", "xyz" * 400)]), "tokens, and max_length is 600: give more"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_chat_is_an_error_of_its_sample(attach, failure, files, tmp_path,
                                                            encode, wrong):
    line, words = WRONG[wrong]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(each + "\n" for each in (GOOD, line, GOOD)))
    dataset = Dataset.text_lines(path, 8192).map(step(files, feature="text")).batch(3)
    text = failure(dataset, job="fails")
    assert "sample 1" in text and "a.jsonl, line 2" in text, text
    # Pythons differ in how deep a JSON they read.
    assert any(each in text for each in words.split("|")), text
    assert "Traceback" not in text and "Error:" not in text, text
    batch = attach(dataset.on_error("skip"), job="skips").next()
    assert batch.ids.tolist()[:2] == [0, 2] and batch.valid_rows == 2
    ids, mask = in_plain_python(encode, CHATS[0])
    for i in range(2):
        assert batch["input_ids"][i, :len(ids)].tolist() == ids
        assert batch["loss_mask"][i, :len(ids)].tolist() == mask


def test_a_chat_that_is_not_utf_8(attach, failure, files, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD.encode().replace(b"What", b"Wh\xfft") + b"\n")
    text = failure(Dataset.text_lines(tmp_path / "a.jsonl", 512).map(
        step(files, feature="text")).batch(1))
    assert "sample 0" in text and "not UTF-8 at byte 32" in text


TOLD_APART = {
    # The last question has more than it had when it was answered.
    "changes": ("{% for m in messages %}{{ m.role }}{% if loop.last %}!{% endif %}{{ m.content }}"
                "{% endfor %}", "the messages up to number 0, and what asks for an answer, are "
                "written otherwise alone than in the whole chat, from character 4 on"),
    "raises": ("{% if messages[-1].role == 'user' %}{{ raise_exception('wants an answer') }}"
               "{% endif %}{% for m in messages %}{{ m.role + m.content }}{% endfor %}",
               "the messages up to number 0, alone: the template of the chat: wants an answer"),
    "thinks": ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %}<assistant><think>{% endif %}",
               "the messages up to number 0, and what asks for an answer, are written otherwise"),
}


@pytest.mark.parametrize("template", TOLD_APART)
def test_messages_that_cannot_be_told_apart(failure, files, tmp_path, template):
    text, words = TOLD_APART[template]
    (tmp_path / "a.jinja").write_text(text)
    told = failure(chats_in(tmp_path).map(step(files, chat={"template": tmp_path / "a.jinja"}))
                   .batch(1))
    assert words in told and "mark what is trained on by {% generation %} blocks" in told


def test_a_template_that_refuses_a_chat(attach, failure, files, tmp_path):
    chats = [CHATS[0], [said("user", "a"), said("user", "b")], CHATS[0]]
    dataset = chats_in(tmp_path, chats).map(step(files, "mistral")).batch(3)
    assert "sample 1" in failure(dataset, job="fails")
    assert ("the template of the chat: Conversation roles must alternate"
            in failure(dataset, job="again"))
    assert attach(dataset.on_error("skip"), job="skips").next().valid_rows == 2


BLOCKS = "{% macro m(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}"
WRONG_TEMPLATES = {
    "syntax": ("a\n{% for %}", "the template of the chat, line 2: "),
    "tokens": ("{{ bos_token }}{{ eos_token }}", "writes bos_token, eos_token: give the file that "
               "has them, `config: tokenizer_config.json`"),
    "date": ("{{ strftime_now('%Y') }}", "asks for today's date (strftime_now), and a row is the "
             "same each time: give the variable that it takes instead"),
    "random": ("{{ messages | random }}", "No filter named 'random'"),
    "escape": ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__' of 'list' "
               "object is unsafe"),
    "changes": ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
    "undefined": ("{{ nothing.at.all }}", "'nothing' is undefined"),
    "type": ("{{ 1 + 'a' }}", "the template of the chat: TypeError: "),
    "macro": (BLOCKS + "{% for i in messages %}{{ 'x' ~ m(i.content) }}{% endfor %}",
              "a generation block is inside of what it writes elsewhere"),
    "memory": ("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
               "{% endfor %}{{ n.x }}", "the template of the chat: MemoryError"),
}


@pytest.mark.parametrize("wrong", WRONG_TEMPLATES)
def test_what_is_wrong_with_a_template_is_told(failure, files, tmp_path, wrong):
    text, words = WRONG_TEMPLATES[wrong]
    (tmp_path / "a.jinja").write_text(text)
    told = failure(chats_in(tmp_path).map(step(files, chat={
        "config": None, "template": tmp_path / "a.jinja"})).batch(1))
    assert words in told and "map[0]" in told, told


def test_a_template_that_does_not_end(monkeypatch, files, tmp_path, encode):
    (tmp_path / "a.jinja").write_text(
        "{% if messages[0].content == 'a' %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}" + CHATML)
    monkeypatch.setenv("PENSTOCK_PYTHON_TIMEOUT", "2s")
    dataset = chats_in(tmp_path).map(step(files, chat={"template": tmp_path / "a.jinja"})).batch(6)
    with penstock.broker(workers=1) as own:
        with pytest.raises(penstock.Error, match=r"sample 2 .*took longer than 2.0 s"):
            for _ in penstock.attach(dataset, socket=own.socket, timeout_s=60, job="fails"):
                pass
        reader = penstock.attach(dataset.on_error("skip"), socket=own.socket, timeout_s=60)
        rows = rows_of(reader)
    assert rows == [in_plain_python(encode, chat) for i, chat in enumerate(CHATS) if i != 2]


def test_a_role_that_is_mistyped_is_told(failure, files, tmp_path):
    chats = chats_in(tmp_path)
    assert ("chat.train_on: no role 'assitant' is known: assistant? `roles: {assitant: assitant}` "
            "makes it one") in failure(
                chats.map(step(files, chat={"train_on": ["assitant"]})).batch(1))


@pytest.mark.parametrize("config, words", [
    ("{", "chat.config: it is no tokenizer_config.json: "),
    ("[]", "chat.config: it is no tokenizer_config.json: wanted an object"),
    (json.dumps(CONFIG), "chat.config: it has no chat_template: give the file that has it, "
     "`template: chat_template.jinja`"),
    (json.dumps({"chat_template": [{"name": "tool_use", "template": "x"}]}),
     "it has templates named tool_use and no default")])
def test_what_is_wrong_with_a_configuration_is_told(failure, files, tmp_path, config, words):
    (tmp_path / "c.json").write_text(config)
    assert words in failure(chats_in(tmp_path).map(
        step(files, chat={"config": tmp_path / "c.json"})).batch(1))


def test_files_that_are_not_there_or_are_no_text(failure, files, tmp_path):
    data = chats_in(tmp_path)
    assert re.search(r"chat.config: .*gone.json", failure(
        data.map(step(files, chat={"config": tmp_path / "gone.json"})).batch(1), job="gone"))
    (tmp_path / "a.jinja").write_bytes(b"abc\xff")
    assert "chat.template: not UTF-8 at byte 3" in failure(data.map(step(
        files, chat={"template": tmp_path / "a.jinja"})).batch(1), job="binary")


def test_a_template_of_several_is_the_default_and_a_file_goes_before(attach, files, tmp_path,
                                                                     encode):
    (tmp_path / "c.json").write_text(json.dumps({**CONFIG, "chat_template": [
        {"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]}))
    wanted = [in_plain_python(encode, chat) for chat in CHATS]
    data = chats_in(tmp_path)
    assert rows_of(attach(data.map(step(files, chat={"config": tmp_path / "c.json"})).batch(4),
                          job="several")) == wanted
    assert rows_of(attach(data.map(step(files, "llama3", chat={
        "template": files / "chatml.jinja"})).batch(4), job="file")) == wanted


def test_an_old_jinja2_is_told(failure, files, tmp_path):
    modules = tmp_path / "modules"
    (modules / "jinja2").mkdir(parents=True)
    (modules / "jinja2/__init__.py").write_text("__version__ = '3.1.5'\n")
    for name in ("ext", "meta", "sandbox"):
        (modules / f"jinja2/{name}.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules))
        with penstock.broker(workers=1) as own, pytest.raises(
                penstock.InvalidArgument, match="needs jinja2 3.1.6 or later.*has 3.1.5"):
            penstock.attach(chats_in(tmp_path).map(step(files)).batch(1), socket=own.socket)
