"""Chats of messages, written by the Jinja template of a model as transformers does, and
which of their characters are of the roles that a model is trained on. Goes before
python_tokenizer.py."""

import difflib
import json
import os
import re
import resource

INSTALL_JINJA = ("chat needs jinja2 {} or later, whose sandbox holds; {} {}: pip install "
                 "--upgrade jinja2 into the Python that the broker runs")
JINJA = (3, 1, 6)
# What a template may take beside what the process has when it starts.
TEMPLATE_BYTES = 2 << 30
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SHAREGPT = {"human": "user", "gpt": "assistant"}
REASONING = ("reasoning_content", "thinking", "reasoning")
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
WAY_OUT = ("which message a token is of cannot be told so: mark what is trained on by "
           "{% generation %} blocks in a copy of the template")


def import_jinja():
    wanted = ".".join(map(str, JINJA))
    try:
        import jinja2
        import jinja2.ext
        import jinja2.meta
        import jinja2.sandbox
    except ImportError as error:
        raise Told(INSTALL_JINJA.format(wanted, sys.executable,
                                        f"cannot import it ({error})")) from None
    found = tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3])
    if found < JINJA:
        raise Told(INSTALL_JINJA.format(wanted, sys.executable,
                                        f"has {jinja2.__version__}"))
    return jinja2


class Spans:
    """Where the text of `generation` blocks is in what is being written."""

    def __init__(self):
        self.written = []
        self.found = []

    def note(self, text):
        begin = sum(map(len, self.written))
        self.found.append((begin, begin + len(text), text))


def environment_of(jinja2, spans):
    """As transformers has it (utils/chat_template_utils.py), without what differs from
    one time to the next."""

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_note"), [], [],
                                          body).set_lineno(line)

        def _note(self, caller):
            text = caller()
            spans.note(text)
            return text

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, args = args[0], args[1:]
            values = dict(*args, **kwargs)
            for name in values:
                Namespace.check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            Namespace.check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(
                    f"a namespace has no attribute {name!r}, which begins with '_'")

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent,
                          separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        raise jinja2.exceptions.TemplateError(
            "it asks for today's date (strftime_now), and a row is the same each time: give "
            "the variable that it takes instead, as `variables: {date_string: 26 Jul 2024}`")

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    del environment.filters["random"], environment.globals["lipsum"]
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now,
                               dict=Dict(), namespace=Namespace)
    return environment


def template_of(config, given):
    """The text of the template: a file of its own, or what tokenizer_config.json has."""
    if given:
        return given
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found
                 if isinstance(each, dict)}
        found = named.get("default")
        if found is None:
            raise Told(f"chat.config: it has templates named {', '.join(map(str, named))} and "
                       "no default: give one as a file of its own, `template`")
    if not isinstance(found, str):
        raise Told("chat.config: it has no chat_template: give the file that has it, "
                   "`template: chat_template.jinja`")
    return found


def special_tokens_of(config):
    """bos_token and its like, as templates know them."""
    found = {}
    for name, token in config.items():
        if isinstance(token, dict):
            token = token.get("content")
        if name.endswith("_token") and isinstance(token, str):
            found[name] = token
    return found


class Chats:
    def __init__(self, options, config, template):
        jinja2 = import_jinja()
        self.error = jinja2.exceptions.TemplateError
        self.versions = f"jinja2 {jinja2.__version__}"
        self.train_on = set(options["train_on"])
        self.labels = options["labels"]
        self.roles = {**SHAREGPT, **options["roles"]}
        known = {*ROLES, *self.roles.values()}
        for role in sorted(self.train_on - known):
            if alike := difflib.get_close_matches(role, sorted(known), 1):
                raise Told(f"chat.train_on: no role '{role}' is known: {alike[0]}? `roles: "
                           f"{{{role}: {role}}}` makes it one")
        self.known = known | self.train_on
        try:
            config = json.loads(config) if config else {}
            if not isinstance(config, dict):
                raise ValueError("wanted an object")
        except (ValueError, RecursionError) as error:
            raise Told(f"chat.config: it is no tokenizer_config.json: {error}") from None
        try:
            template = template.decode()
        except UnicodeDecodeError as error:
            raise Told(f"chat.template: not UTF-8 at byte {error.start}") from None
        text = template_of(config, template)
        self.spans = Spans()
        environment = environment_of(jinja2, self.spans)
        self.variables = {**special_tokens_of(config), "tools": None, "documents": None,
                          **options["variables"]}
        try:
            self.template = environment.from_string(text)
            names = jinja2.meta.find_undeclared_variables(environment.parse(text))
        except (self.error, RecursionError) as error:
            line = getattr(error, "lineno", None)
            raise Told("the template of the chat{}: {}".format(
                f", line {line}" if line else "", said_by(error))) from None
        lacking = sorted(name for name in names - set(self.variables)
                         if name.endswith("_token"))
        if lacking and not config:
            raise Told(f"the template of the chat writes {', '.join(lacking)}: give the file "
                       "that has them, `config: tokenizer_config.json`")
        self.marks = bool(GENERATION.search(text)) and self.train_on == {"assistant"}

    # ---- the messages

    def messages_of(self, text):
        """The messages, as templates want them, and what else the chat has."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Told(f"not JSON: {error}") from None
        more = {}
        if isinstance(given, dict):
            name = next((name for name in ("messages", "conversations") if name in given), None)
            if name is None:
                raise Told("an object without messages or conversations")
            if isinstance(given.get("tools"), list):
                more["tools"] = given["tools"]
            given = given[name]
        if not isinstance(given, list):
            raise Told(f"wanted a list of messages, found {kind_of(given)}")
        if not given:
            raise Told("there are no messages")
        return [self.message_of(i, each) for i, each in enumerate(given)], more

    def message_of(self, i, given):
        if not isinstance(given, dict):
            raise Told(f"message {i}: wanted an object, found {kind_of(given)}")
        # Templates take what is missing as such, and null as text.
        message = {key: value for key, value in given.items() if value is not None}
        if "role" not in message and "from" in message:
            message["role"] = message.pop("from")
            if "value" in message:
                message["content"] = message.pop("value")
        role = message.get("role")
        if not isinstance(role, str):
            raise Told(f"message {i}: wanted a role, found "
                       f"{kind_of(role) if 'role' in message else 'none'}")
        role = message["role"] = self.roles.get(role, role)
        if role not in self.known:
            raise Told(f"message {i}: its role '{role}' is none of "
                       f"{', '.join(sorted(self.known))}: `chat: {{roles: {{{role}: NAME}}}}` "
                       "says what it is")
        content = message.get("content")
        if content is None and "tool_calls" not in message:
            raise Told(f"message {i}: it has no content")
        if content is not None and not isinstance(content, str):
            raise Told(f"message {i}: its content is {kind_of(content)}, and text is wanted")
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        return message

    # ---- its text

    def write(self, messages, more, prompt=False):
        """The text of messages; its `generation` blocks are in self.spans."""
        self.spans.__init__()
        try:
            for part in self.template.generate(messages=messages,
                                               add_generation_prompt=prompt,
                                               **{**self.variables, **more}):
                self.spans.written.append(part)
        except (self.error, ArithmeticError, AttributeError, LookupError, MemoryError,
                RecursionError, TypeError, ValueError) as error:
            raise Told(f"the template of the chat: {said_by(error)}") from None
        return "".join(self.spans.written)

    def text_of(self, given):
        """The text of a chat, and where in it, in order, what a model is trained on
        begins and ends."""
        messages, more = self.messages_of(given)
        text = self.write(messages, more)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Told(f"not UTF-8: {text[error.start]!r} is half of a character") from None
        if self.marks:
            return text, self.marked(text)
        return text, list(self.told_apart(messages, more, text))

    def marked(self, text):
        spans = []
        for begin, end, block in self.spans.found:
            if text[begin:end] != block:
                raise Told("the template of the chat: a generation block is inside of what it "
                           "writes elsewhere, a macro or a `set`: put it where it is written")
            if spans and begin < spans[-1][1]:
                continue  # inside of another
            spans.append((begin, end))
        return spans

    def told_apart(self, messages, more, text):
        """A message is what the messages up to it add to those before. An answer begins
        behind what asks for it, also the first message of a chat."""
        for i, message in enumerate(messages):
            role = message["role"]
            if role not in self.train_on:
                continue
            if i:
                begin = self.prefix(messages[:i], more, text, role == "assistant")
            else:
                begin = self.head(messages, more, text) if role == "assistant" else 0
            end = len(text)
            if i + 1 < len(messages):
                end = self.prefix(messages[:i + 1], more, text, False)
            if end < begin:
                raise Told(f"message {i}: the template of the chat asks for an answer by more "
                           f"than it writes of this one; {WAY_OUT}")
            yield begin, end

    def head(self, messages, more, text):
        """The end of what asks for an answer, where that is the chat's first message."""
        one = self.write(messages[:1], more)
        asked = self.write(messages[:1], more, True)
        asks = asked[len(one):] if asked.startswith(one) else ""
        at = text.find(asks)
        if at < 0:
            raise Told(f"message 0: what asks for an answer, {asks[:40]!r}, is not in the text "
                       f"of the chat; {WAY_OUT}")
        return at + len(asks)

    def prefix(self, messages, more, text, prompt):
        up_to = f"the messages up to number {len(messages) - 1}"
        try:
            begin = self.write(messages, more, prompt)
        except Told as error:
            raise Told(f"{up_to}, alone: {error}; {WAY_OUT}") from None
        if not text.startswith(begin):
            at = len(os.path.commonprefix([text, begin]))
            raise Told(f"{up_to}{', and what asks for an answer,' if prompt else ''} are written "
                       f"otherwise alone than in the whole chat, from character {at} on: "
                       f"{begin[at:at + 40]!r}, there {text[at:at + 40]!r}; {WAY_OUT}")
        return len(begin)


def mask_of(offsets, spans):
    """1 for each token that has a character of a span."""
    mask = bytearray(len(offsets))
    at = 0
    for i, (begin, end) in enumerate(offsets):
        while at < len(spans) and begin >= spans[at][1]:
            at += 1
        if at == len(spans):
            break
        if end > spans[at][0]:
            mask[i] = 1
    return mask


def kind_of(value):
    return {dict: "an object", list: "a list", str: "text", bool: "true or false",
            type(None): "null"}.get(type(value), "a number")


def said_by(error):
    name = type(error).__name__
    return str(error) if name.startswith("Template") and str(error) else f"{name}: {error}"


def bound_memory():
    """A template that writes without end is an error of its chat."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + TEMPLATE_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
