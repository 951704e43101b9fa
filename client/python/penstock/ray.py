"""Makers in a Ray cluster: nodes without GPUs make rows for trainers on nodes with GPUs.

    with penstock.ray.makers(min=1, max=8, cpus_per_maker=16) as makers:

        def train(config):
            makers.join()  # this node's broker, which the makers help
            for images, labels in penstock.torch.DataLoader("train.yaml"): ...

        ray.train.torch.TorchTrainer(train, scaling_config=...).fit()

A maker is an actor with a broker and ``penstock link serve``. Ray places it, starts it
elsewhere when its node dies, and may add a node for it. How many there are follows from
what the training nodes' brokers say: rows that all makers are too few for, and rows that
they have made. No batch waits for any of this: what no maker makes in time, the training
node makes."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket as sockets
import subprocess
import sys
import time
import traceback
from typing import Any, Dict, List, Mapping, Optional, Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from penstock.errors import InvalidArgument
from penstock.private_broker import _COMMAND, Broker
from penstock.reader import index, seconds, text

_KEPT: Dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1}
_MAKERS_MOST = 256  # of a link
_ANSWER_S = 2.0  # for an actor, which may be starting
_LOOKS_TO_GROW, _LOOKS_TO_SHRINK = 2, 12
_BUSY = 0.7  # makers that have so much to do are not too many


class Makers:
    """The makers of a program; made by ``penstock.ray.makers``. Tasks and actors may have
    it, as a function that TorchTrainer runs does."""

    def __init__(self, pool: Any):
        self._pool = pool

    def join(self) -> str:
        """Starts this node's broker, unless it is there, with a link to the makers, and
        sets PENSTOCK_SOCKET, by which ``attach`` finds it. All ranks of the node call it.
        The broker ends with the program that called ``makers``. Returns its socket."""
        node = ray.get_runtime_context().get_node_id()
        os.environ["PENSTOCK_SOCKET"] = ray.get(self._pool.join.remote(node))
        return os.environ["PENSTOCK_SOCKET"]

    def status(self) -> Dict[str, Any]:
        """At the last look: ``target``: makers wanted; ``addresses``: makers running;
        ``rows_wanted``: rows beyond what they can make; ``rows_per_s`` that they make;
        ``nodes`` that have joined."""
        return dict(ray.get(self._pool.status.remote()))

    def stop(self) -> None:
        """Ends the makers, and the brokers that ``join`` started."""
        ray.kill(self._pool)  # which owns the others

    def __enter__(self) -> Makers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def makers(*, min: int = 1, max: int = 8, cpus_per_maker: int = 4,
           placement: Optional[Mapping[str, Any]] = None,
           broker: Optional[Mapping[str, Any]] = None, socket: Optional[str] = None,
           serve: Sequence[str] = (), certificates: Optional[str] = None,
           every_s: float = 5.0) -> Makers:
    """Starts makers, which end with this program, ``stop`` or the ``with`` block.

    Args:
      min, max: how many, 256 at most. With a min of 0 the first one starts when rows are wanted.
      cpus_per_maker: processors of each, best all of a node; Ray counts them.
      placement: further options of the actors, such as resources={"makers": 1}. None:
        Ray's own choice, nodes without GPUs first.
      broker: arguments of ``penstock.broker`` for all brokers that this starts, such as
        python_path, without which makers run no functions.
      socket: that of a broker which runs on each training node anyway, such as
        "/run/penstock/penstock.sock". None: ``join`` starts one.
      serve: further arguments of ``penstock link serve``, such as ("--map", "/mnt=/data")
        where makers have the files at another path.
      certificates: a folder on each node with cert.pem, key.pem and ca.pem; a maker's
        has the node's address as a name. None: a token that this makes, and rows that
        cross the network in the clear.
      every_s: how often the brokers are asked.

    Raises:
      InvalidArgument: an argument.
    """
    if index("max", max, 1, _MAKERS_MOST) < index("min", min, 0):
        raise InvalidArgument(f"max: {max} is less than min, {min}")
    actor = {**(placement or {}), **_KEPT,
             "num_cpus": index("cpus_per_maker", cpus_per_maker, 1)}
    link = {"token": secrets.token_hex(32), "serve": list(serve),
            "certificates": text("certificates", certificates)}
    # Without this program's node there is no program.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    pool = ray.remote(num_cpus=0, scheduling_strategy=here, **_KEPT)(_Pool).remote(
        _Size(min, max), actor, dict(broker or {}), text("socket", socket), link)
    pool.tend.remote(seconds("every_s", every_s))
    return Makers(pool)


class _Size:
    """How many makers there should be."""

    def __init__(self, least: int, most: int):
        self.number, self._least, self._most = least, least, most
        self._hungry = self._idle = 0
        self._of_one = 0.0  # rows/s that a maker can make

    def look(self, there: int, wanted: int, rows_per_s: float) -> None:
        """there: makers that run; wanted: rows that they are too few for."""
        self._of_one = max(0 if wanted else self._of_one, rows_per_s / max(there, 1))
        enough = rows_per_s < _BUSY * (self.number - 1) * self._of_one or not rows_per_s
        self._hungry = self._hungry + 1 if wanted and there >= self.number else 0
        self._idle = self._idle + 1 if enough and not wanted else 0
        if self._hungry >= _LOOKS_TO_GROW:
            self.number = min(self.number + max(self.number // 2, 1), self._most)
            self._hungry = 0
        elif self._idle >= _LOOKS_TO_SHRINK:
            self.number = max(self.number - 1, self._least)
            self._idle = 0


class _Asked:
    """An actor that has one call at a time to answer."""

    def __init__(self, actor: Any):
        self.actor = actor
        self.address: Optional[str] = None
        self._call: Optional[asyncio.Future[Any]] = None

    async def ask(self, method: Any, *arguments: Any) -> Any:
        """None: it has not answered yet. RayError: it is gone."""
        self._call = self._call or asyncio.ensure_future(method.remote(*arguments))
        done, _ = await asyncio.wait([self._call], timeout=_ANSWER_S)
        if done:
            self._call = None
        return done.pop().result() if done else None


class _Pool:
    """Has as many makers as there should be, and tells the training nodes of them."""

    def __init__(self, size: _Size, actor: Dict[str, Any], *of_host: Any):
        self._size, self._actor, self._of_host = size, actor, of_host
        self._makers: List[_Asked] = []
        self._hosts: Dict[str, _Asked] = {}  # by node
        self._rows: Dict[Any, int] = {}  # by node and maker, at the last look
        self._status: Dict[str, Any] = {}
        self._looked = time.monotonic()

    async def join(self, node: str) -> str:
        if node not in self._hosts:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            host = ray.remote(num_cpus=0, scheduling_strategy=there, **_KEPT)(_Host)
            self._hosts[node] = _Asked(host.remote(*self._of_host))
        return str(await self._hosts[node].actor.path.remote())

    async def status(self) -> Dict[str, Any]:
        return self._status

    async def tend(self, every_s: float) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # the next look may do better
                traceback.print_exc()
            await asyncio.sleep(every_s)

    async def _look(self) -> None:
        broker, _, link = self._of_host
        while len(self._makers) < self._size.number:
            self._makers.append(_Asked(ray.remote(**self._actor)(_Maker).remote(
                self._actor["num_cpus"], broker, link)))
        self._makers.sort(key=lambda maker: maker.address is None)
        while len(self._makers) > self._size.number:
            ray.kill(self._makers.pop().actor)
        await asyncio.gather(*map(self._find, list(self._makers)))
        addresses = [maker.address for maker in self._makers if maker.address]
        told = await asyncio.gather(*[self._tell(node, addresses) for node in list(self._hosts)])
        rows = {key: count for each in told for key, count in each["rows"].items()}
        made = sum(max(count - self._rows.get(key, count), 0) for key, count in rows.items())
        self._rows, before, self._looked = rows, self._looked, time.monotonic()
        rate, wanted = made / (self._looked - before), sum(each["wanted"] for each in told)
        self._size.look(len(addresses), wanted, rate)
        self._status = {"target": self._size.number, "addresses": addresses,
                        "rows_wanted": wanted, "rows_per_s": rate, "nodes": list(self._hosts)}

    async def _find(self, maker: _Asked) -> None:
        try:
            maker.address = await maker.ask(maker.actor.address)
        except ray.exceptions.RayError as error:  # it cannot start; the next look has another
            print(f"penstock: a maker did not start: {error}", file=sys.stderr)
            self._makers.remove(maker)

    async def _tell(self, node: str, addresses: List[str]) -> Dict[str, Any]:
        told = None
        try:
            told = await self._hosts[node].ask(self._hosts[node].actor.look, addresses)
        except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError):
            del self._hosts[node]  # a node that is gone does not come back by this name
        except ray.exceptions.RayError as error:  # its broker lives as long as its actor does
            print(f"penstock: node {node} does not answer: {error}", file=sys.stderr)
        told = told or {"wanted": 0, "rows": {}}
        return {**told, "rows": {(node, key): count for key, count in told["rows"].items()}}


class _Link:
    """A ``penstock link`` that ends with this process. Its token and its makers are files
    without a name, of which nothing stays behind."""

    def __init__(self, options: Mapping[str, Any]):
        self._files = [os.memfd_create("penstock token"), os.memfd_create("penstock makers")]
        os.write(self._files[0], options["token"].encode())
        self._process: Optional[subprocess.Popen[bytes]] = None
        folder = options["certificates"]
        self._trust = ([f"--token-file=/proc/self/fd/{self._files[0]}"] if folder is None else
                       [f"--{name}={folder}/{name}.pem" for name in ("cert", "key", "ca")])

    def name(self, addresses: Sequence[str]) -> str:
        """Where the link finds these."""
        os.pwrite(self._files[1], "\n".join(addresses).ljust(1 << 14, "\n").encode(), 0)
        return f"file:/proc/self/fd/{self._files[1]}"

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *arguments: str) -> None:
        # Ray kills an actor, not what it has started. PR_SET_PDEATHSIG: 1.
        program = (f"import ctypes, os, sys; ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d}); "
                   "os.execv(sys.argv[1], sys.argv[1:])")
        self._process = subprocess.Popen([sys.executable, "-c", program, _COMMAND, "link",
                                          *arguments, *self._trust], pass_fds=self._files)


class _Maker:
    def __init__(self, cpus: int, broker: Mapping[str, Any], link: Mapping[str, Any]):
        self._processors = _own_processors(cpus)
        self._broker = Broker(**{**broker, "workers": cpus})
        self._serve, self._link, self._port = link["serve"], _Link(link), 0

    def address(self) -> str:
        if not self._link.runs():
            with sockets.create_server(("", 0)) as free:
                self._port = free.getsockname()[1]
            self._link.start("serve", "--socket", self._broker.socket, "--listen",
                             f":{self._port}", *self._serve)
        host = ray.util.get_node_ip_address()
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"


class _Host:
    """A training node's broker, and the link to the makers beside it."""

    def __init__(self, broker: Mapping[str, Any], socket: Optional[str],
                 link: Mapping[str, Any]):
        if socket is None:
            self._broker = Broker(**broker)
            socket = self._broker.socket
        self._path, self._link = socket, _Link(link)

    def path(self) -> str:
        return self._path

    def look(self, addresses: Sequence[str]) -> Optional[Dict[str, Any]]:
        """The rows that the jobs here want, and those that each maker has made. None: the
        broker does not say; it may be starting again."""
        remote = self._link.name(addresses)
        if not self._link.runs():
            self._link.start("use", "--socket", self._path, "--remote", remote)
        try:
            status = json.loads(subprocess.run(
                [_COMMAND, "status", "--json", "--socket", self._path], check=True,
                stdout=subprocess.PIPE, timeout=30).stdout)
        except subprocess.SubprocessError:
            return None
        return {"wanted": sum(job["remote_rows"]["rows_wanted"] for job in status["jobs"]
                              if "remote_rows" in job),
                "rows": {maker["maker"]: maker["rows"] for maker in status.get("makers", ())}}


def _own_processors(count: int) -> List[sockets.socket]:
    """Keeps this process, and its broker, to processors that no other maker of the node
    has: Ray counts them and numbers none. They are others' once the sockets are closed."""
    own: Dict[int, sockets.socket] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        mark = sockets.socket(sockets.AF_UNIX)
        try:
            mark.bind(f"\0penstock-ray-cpu-{cpu}")
        except OSError:
            continue
        own[cpu] = mark
        if len(own) == count:
            os.sched_setaffinity(0, own)
            return list(own.values())
    return []
