"""The ranks of several hosts compare what must be the same on all of them, once, when
they attach. Brokers of several hosts do not talk to each other; the ranks do, by what
they have (rendezvous.py).

Process 0 hears a digest of each process. Where these differ, it asks one process of each
kind for more, until it knows the first difference, which all are told. What comes from
others is bounded and checked: they may be of another version."""

from __future__ import annotations

import itertools
import hashlib
import json
import os
import re
import socket as sockets
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from penstock import _core, errors
from penstock.rendezvous import VALUE_BYTES, Folder, Missing, Rendezvous, parsed

_WAIT_S = 600.0  # the default of attach's wait_s
_FILES_MOST = 64 ** 5  # the broker tells of 64 shares at once
_KINDS_MOST = 16  # of fingerprints that are looked into


def compare(rendezvous: Rendezvous, core: _core.Reader, broker: str, wait_s: float) -> None:
    """All processes of the job call it. broker: its socket, "" where it is the host's.

    Raises:
      FailedPrecondition: the hosts disagree; with the first difference.
      DeadlineExceeded: some have not come; with their numbers.
    """
    try:
        parts = core.fingerprint("")
        begin = parsed(dict(json.loads(parts)).get("begin"))
        state = json.loads(core.state())
        moved = begin != {name: state[name] for name in ("epoch", "row")}
        value = _hello(digest=_digest(parts), moved=moved, broker=_digest(broker),
                       old=moved or bool(core.replaces))
    except errors.Error as error:  # a broker of another version
        value = _hello(error=str(error))
    if core.replaces and isinstance(rendezvous, Folder):
        # One that was started in a dead one's place: its host has been compared, and
        # nobody meets it, unless all wait for it.
        if rendezvous.number:
            rendezvous.post_and_leave(value)
        return
    _meet(rendezvous, value, wait_s, _first_difference,
          lambda part: core.fingerprint(part).encode())


def excuse(rendezvous: Rendezvous, error: Exception) -> None:
    """This process could not attach: the others need not wait for it."""
    text = f"rank {rendezvous.number} on {sockets.gethostname()} could not attach: {error}"
    try:
        rendezvous.post_and_leave(_hello(error=str(error), left=True) if rendezvous.number else
                                  json.dumps({"end": text[:4000]}).encode())
    except Exception:  # the error of the attach counts
        pass


def agree_on_weights(rendezvous: Rendezvous, core: _core.Reader,
                     weights: Optional[List[float]], wait_s: float) -> Tuple[int, int]:
    """All processes of the job call it, and none takes a batch meanwhile: the row that
    is free on all hosts stays so. Returns the epoch and the row.

    Raises: as of ``set_weights``."""
    try:
        value = _hello(weights=weights, free=core.first_free_row())
    except errors.Error as error:
        value = _hello(error=str(error))
    chosen = parsed(_meet(rendezvous, value, wait_s, _choose_row, None))
    if not (isinstance(chosen, list) and len(chosen) == 3):
        raise errors.FailedPrecondition("weights: process 0 is of another version")
    weights, epoch, row = chosen
    value = _hello()
    try:
        core.set_weights(weights, epoch, row)
    except errors.Error as error:
        value = _hello(error=f"{error}. Where others have changed the weights, begin all ranks at "
                             "a state")
    _meet(rendezvous, value, wait_s, lambda told, ask: "", None)
    return epoch, row


Told = Dict[int, Dict[str, Any]]
Ask = Callable[[str, Sequence[int]], Dict[int, Any]]


class _Disagree(Exception):
    """What all are to be told."""


def _hello(**value: Any) -> bytes:
    value = {"host": sockets.gethostname()[:100], **value}
    if "error" in value:
        value["error"] = value["error"][:2000]
    return json.dumps(value).encode()


def _meet(rendezvous: Rendezvous, value: bytes, wait_s: float, decide: Callable[[Told, Ask], str],
          answer: Optional[Callable[[str], bytes]]) -> bytes:
    """What process 0 decides by the values of all. decide: of process 0; it may ask some
    for more, which answer gives."""
    wait_s = wait_s or _WAIT_S
    rendezvous.until = time.monotonic() + wait_s
    # Process 0 tells the others who has not come; they wait a little longer.
    if rendezvous.number:
        rendezvous.until += min(10.0, 1 + wait_s / 10)

    def ask(what: str, of: Sequence[int]) -> Dict[int, Any]:
        own = answered(what) if 0 in of else b""
        rendezvous.broadcast(json.dumps({"ask": what, "of": list(of)}).encode())
        return {each: parsed(told) for each, told in rendezvous.gather(own, of).items()}

    def answered(what: str) -> bytes:
        try:
            return answer(what) if answer else b""
        except (errors.Error, ValueError) as error:  # ValueError: a name with a NUL
            return json.dumps({"error": str(error)[:2000]}).encode()

    everybody = range(rendezvous.size)
    if rendezvous.number:
        try:
            rendezvous.gather(value, everybody)
            for _ in range(32):
                told = rendezvous.broadcast(b"")
                step = parsed(told)
                if not isinstance(step, dict) or not ({"end", "ask"} & set(step)):
                    break
                if "end" in step:
                    if step["end"]:
                        rendezvous.settle()
                        raise _error_of(str(step["end"]), step.get("late") is True)
                    return json.dumps(step.get("result")).encode()
                of = step.get("of")
                of = of if isinstance(of, list) else []
                asked = rendezvous.number in of
                rendezvous.gather(answered(str(step["ask"])) if asked else b"", of)
            raise errors.FailedPrecondition("the ranks compare their hosts, and process 0 is of "
                                            "another version")
        except Missing:
            raise errors.DeadlineExceeded(
                f"rank 0 did not answer within {wait_s:.0f} s (wait_s) while the hosts were "
                "being compared: it has not attached, or has died") from None
    text, late, result = "", False, None
    there = set(everybody)

    def end() -> None:
        rendezvous.until = max(rendezvous.until, time.monotonic() + 5)
        rendezvous.broadcast(json.dumps({"end": text, "late": late, "result": result}).encode())
        if text:
            rendezvous.settle(sorted(there))

    try:
        told_all = rendezvous.gather(value, everybody)
        hellos = {each: _checked(each, told) for each, told in told_all.items()}
        there -= {each for each, hello in hellos.items() if hello.get("left")}
        for each, hello in hellos.items():
            if hello.get("error"):
                raise _Disagree(f"rank {each} on {hello['host']}: {hello['error']}")
        result = decide(hellos, ask)
    except Missing as error:
        late = True
        there -= set(error.missing)
        text = (f"while comparing hosts, no answer from {ranks_text(error.missing)} within "
                f"{wait_s:.0f} s (wait_s): they have not come to this attach, or have died; each "
                "rank of the job has to attach to the same dataset, in the same order")
    except _Disagree as difference:
        text = str(difference)
    except Exception as error:
        text = f"rank 0 on {sockets.gethostname()} could not compare hosts: {error}"[:4000]
        try:
            end()
        except Exception:  # the first one counts
            pass
        raise
    end()
    if text:
        raise _error_of(text, late)
    return json.dumps(result).encode()


def _error_of(text: str, late: bool) -> errors.Error:
    return (errors.DeadlineExceeded if late else errors.FailedPrecondition)(text)


def _first_difference(hellos: Told, ask: Ask) -> str:
    """Nothing, if all agree."""
    kinds: Dict[str, List[int]] = {}
    for each, hello in hellos.items():
        kinds.setdefault(str(hello.get("digest"))[:64], []).append(each)
    if len(kinds) > 1:
        members = {of[0]: of for of in list(kinds.values())[:_KINDS_MOST]}
        raise _Disagree(_explain(members, hellos, ask))
    of_broker: Dict[Tuple[str, str], List[int]] = {}
    for each, hello in hellos.items():
        of_broker.setdefault((hello["host"], str(hello.get("broker"))), []).append(each)
    moved = [each for each, hello in hellos.items() if hello.get("moved") is True]
    new = [each for of in of_broker.values() for each in of
           if not any(hellos[other].get("old") is True for other in of)]
    if moved and new:
        raise _Disagree(
            f"the job goes on from an earlier launch on {hosts_text(moved, hellos)}, and begins on "
            f"{hosts_text(new, hellos)}: rows would be lost or come twice. Begin all ranks at a "
            "state of a checkpoint (`state`), or give the job another name (`job`)")
    return ""


def _explain(members: Dict[int, List[int]], hellos: Told, ask: Ask) -> str:
    """members: of one process of each kind, all of them."""
    def each_on(values: Mapping[int, str]) -> str:
        alike: Dict[str, List[int]] = {}
        for one, value in values.items():
            alike.setdefault(value, []).extend(members[one])
        return "; ".join(f"{value} on {hosts_text(of, hellos)}" for value, of in alike.items())

    asked = list(members)
    parts = {each: _parts(told) for each, told in ask("", asked).items()}
    names = list(dict.fromkeys(itertools.chain(*parts.values())))
    name = next((name for name in names if len({parts[each].get(name) for each in asked}) > 1), None)
    if name is None:
        return ("the hosts' fingerprints differ, and they do not say where: install the same "
                "version of penstock on all hosts")
    if name == "data":
        difference = _file_difference(asked, ask, each_on)
    else:
        texts = {each: parts[each].get(name, "nothing") for each in asked}
        if any(text.startswith("#") for text in texts.values()):
            texts = {each: str(told.get("text") if isinstance(told, dict) else told)
                     for each, told in ask(name, asked).items()}
        path, texts = _where(texts)
        difference = f"{name}{path}: {each_on(texts)}"
    return f"the hosts disagree. {difference}. {_WAY_OUT.get(name, _SPEC_WAY_OUT)}"


_SPEC_WAY_OUT = ("Give all ranks the same spec and options, or attach with `agree=False` where "
                 "they are to differ")
_WAY_OUT = {
    "penstock": "Install the same version on all hosts",
    "layout": "Install the same version on all hosts",
    "data": "Give all hosts the same files, or attach with `agree=False` where they are to differ",
    "records": "Give all hosts the same files",
    "files of map and select": "Give all hosts the same files",
    "begin": "Give all ranks the state of the same checkpoint",
    "owed": "Give all ranks the state of the same checkpoint",
    "weights": "Give all ranks the state of the same checkpoint"}


def _file_difference(asked: Sequence[int], ask: Ask,
                     each_on: Callable[[Mapping[int, str]], str]) -> str:
    first, count = 0, _FILES_MOST
    while True:
        told = ask(f"files {first} {count}", asked)
        files = {each: _files(told.get(each)) for each in asked}
        i = next((i for i, row in enumerate(itertools.zip_longest(
            *(files[each][1] for each in asked))) if len(set(row)) > 1), None)
        if i is None:
            return ("data: the files have the same names and sizes, and other records in them: "
                    "some have the same size and another content")
        if count <= 64:
            break
        count = max(count // 64, 1)
        first += i * count
    found = {each: entries[i] if i < len(entries) else None
             for each, (_, entries) in files.items()}
    totals = {each: f"{total} files" for each, (total, _) in files.items()}
    counts = f" ({each_on(totals)})" if len(set(totals.values())) > 1 else ""
    names = sorted({entry[0] for entry in found.values() if entry})
    if len(names) == 1 and None not in found.values():
        return "data: the file {!r} has {}".format(
            names[0], each_on({each: f"{entry[1]} bytes" for each, entry in found.items()
                               if entry}))
    have = {each: "there" for each, entry in found.items() if entry and entry[0] == names[0]}
    lack = {each: "missing" for each in asked if each not in have}
    # The first name that some lack, where the lists are sorted.
    if all(list(entries) == sorted(entries) for _, entries in files.values()):
        return f"data: the file {names[0]!r} is {each_on({**have, **lack})}{counts}"
    return (f"data: file {first + i} of the list is "
            + each_on({each: repr(entry[0]) if entry else "missing"
                       for each, entry in found.items()}) + counts)


def _where(texts: Dict[int, str]) -> Tuple[str, Dict[int, str]]:
    """The path of the first value that differs in these texts of JSON, and the values."""
    values = {each: parsed(text.encode()) for each, text in texts.items()}
    path = ""
    while True:
        kinds = {type(value) for value in values.values()}
        keys: Iterator[Any] = iter(())
        if kinds == {dict}:
            keys = iter(dict.fromkeys(itertools.chain(*values.values())))
        elif kinds == {list}:
            keys = iter(range(max(map(len, values.values()))))
        for key in keys:
            inner = {each: (value[key] if key in value else None) if isinstance(value, dict)
                     else value[key] if key < len(value) else None
                     for each, value in values.items()}
            if len({json.dumps(value) for value in inner.values()}) > 1:
                values, path = inner, path + (f"[{key}]" if isinstance(key, int) else f".{key}")
                break
        else:
            # A text that is no JSON has been left as it is.
            shown = {each: json.dumps(value) if value is not None or path else texts[each]
                     for each, value in values.items()}
            return path, {each: text if len(text) <= 100 else text[:100] + "…"
                          for each, text in shown.items()}


def _choose_row(hellos: Told, ask: Ask) -> Any:
    proposed: Dict[str, int] = {}
    free = []
    for each, hello in hellos.items():
        weights, row = hello.get("weights"), hello.get("free", [])
        if weights is not None and not _numbers(weights):
            raise _Disagree(f"weights: rank {each} proposes what are no weights")
        if not (_numbers(row) and len(row) == 2
                and all(isinstance(i, int) and 0 <= i < 1 << 63 for i in row)):
            raise _Disagree(f"weights: rank {each} is of another version")
        if weights is not None:
            proposed.setdefault(json.dumps(weights), each)
        free.append(row)
    if len(proposed) != 1:
        raise _Disagree("weights: " + (
            "no rank proposes any: one at least gives them" if not proposed else
            "; ".join(f"rank {each} proposes {weights[:200]}"
                      for weights, each in itertools.islice(proposed.items(), 4))))
    return [json.loads(next(iter(proposed))), *max(free)]


# ---- values of others, who may be of another version

def _checked(number: int, value: Any) -> Dict[str, Any]:
    hello = parsed(value)
    if not isinstance(hello, dict) or not isinstance(hello.get("host"), str):
        raise _Disagree(f"rank {number} says what is no fingerprint ({len(value or b'')} bytes): "
                        "it is of another version of penstock, or another program uses its "
                        "store, run id or tag")
    hello["host"] = _printable(hello["host"][:100])
    if "error" in hello:
        hello["error"] = _printable(str(hello["error"])[:2000])
    return hello


def _parts(told: Any) -> Dict[str, str]:
    if isinstance(told, dict):
        raise _Disagree("the hosts disagree, and one cannot say where: "
                        f"{_printable(str(told.get('error'))[:500])}")
    if not isinstance(told, list):
        return {}
    return {_printable(str(part[0])[:100]): _printable(str(part[1])[:200])
            for part in told[:100] if isinstance(part, list) and len(part) == 2}


def _files(told: Any) -> Tuple[int, List[Any]]:
    """How many in all, and digests or (name, bytes)."""
    told = told if isinstance(told, dict) else {}
    if "names" in told and isinstance(told["names"], list):
        entries: List[Any] = [(_printable(str(entry[0])[:1000]), str(entry[1])[:20])
                              for entry in told["names"][:64]
                              if isinstance(entry, list) and len(entry) == 2]
    else:
        digests = told.get("digests")
        entries = [str(each)[:64] for each in digests[:64]] if isinstance(digests, list) else []
    total = told.get("files")
    return total if isinstance(total, int) else 0, entries


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 65_536 and all(
        isinstance(each, (int, float)) and not isinstance(each, bool)
        and abs(each) <= sys.float_info.max for each in value)  # not NaN


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ---- for people

def ranks_text(numbers: Sequence[int]) -> str:
    """ "rank 3", "ranks 0 to 7 and 16" """
    numbers = sorted(numbers)
    runs: List[List[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][1:] = [each]
        else:
            runs.append([each])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(texts) > 8:
        texts = texts[:8] + [f"{len(texts) - 8} more"]
    joined = ", ".join(texts[:-1]) + " and " + texts[-1] if len(texts) > 1 else texts[0]
    return ("rank " if len(numbers) == 1 else "ranks ") + joined


def hosts_text(numbers: Sequence[int], hellos: Told) -> str:
    """ "a (ranks 0 to 7) and b (ranks 8 to 15)" """
    of_host: Dict[str, List[int]] = {}
    for each in numbers:
        of_host.setdefault(hellos[each]["host"], []).append(each)
    texts = [f"{host} ({ranks_text(of)})" for host, of in of_host.items()]
    if len(texts) > 8:
        texts = texts[:8] + [f"{len(texts) - 8} more hosts"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def name_of(options: Mapping[str, Any]) -> str:
    """The dataset's name, also where attaching fails; "": not known."""
    text = options.get("spec")
    path = options.get("dataset") or os.fsencode(os.environ.get("PENSTOCK_DATASET", ""))
    if text is None and path:
        if b"/" not in path and not path.endswith((b".yaml", b".yml", b".json")):
            return os.fsdecode(path)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(VALUE_BYTES)
        except OSError:
            return ""
    found = re.search(r"""(?:^|[{,\n])\s*["']?dataset["']?\s*:\s*["']?([\w.-]+)""", text or "")
    return found[1] if found else ""
