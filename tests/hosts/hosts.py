"""Hosts for tests: network, mount, host-name and process namespaces, joined by a bridge.

    with Hosts(2) as hosts:
        hosts[0].data("/some/folder")           # what it has at DATA; others have others
        process = hosts[0].start(["torchrun", ...])
        hosts[1].kill()                          # as by a power failure
        hosts.boot(1)                            # it comes back, with nothing running
        hosts[1].disconnect()                    # nothing arrives, nobody is told
        hosts[1].impede()                        # little arrives, late

Names are node0, node1, ...; addresses 10.77.0.1, .... All else of the file system is shared, so
that any folder but DATA stands for storage that all hosts mount. Needs root."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time


def available():
    """Why there are none; "": there are."""
    if os.geteuid() != 0:
        return "hosts for tests need root"
    done = subprocess.run(["unshare", "-n", "-m", "-u", "-p", "--fork", "ip", "link", "add",
                           "name", "bridge", "type", "bridge"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no namespaces or bridges here: {done.stderr.strip()}"


class Namespaces:
    """Of one host, or of the switch: held by a process that is number 1 there."""

    def __init__(self, name):
        self.name = name
        self._holder = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "-p", "--fork", "--kill-child", "--mount-proc",
             "--propagation", "private", "sh", "-c",
             f"hostname {name} && ip link set lo up && exec sleep infinity"],
            stderr=subprocess.DEVNULL)
        children = pathlib.Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        end = time.monotonic() + 10
        while True:
            pids = children.read_text().split()
            if pids and pathlib.Path(f"/proc/{pids[0]}/comm").read_text() == "sleep\n":
                break
            assert time.monotonic() < end and self._holder.poll() is None, "no namespaces"
            time.sleep(0.01)
        self.pid = int(pids[0])

    def inside(self, command):
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-p", *map(str, command)]

    def run(self, *command):
        subprocess.run(self.inside(command), check=True)

    def kill(self):
        """All processes in it, at once: the kernel kills them with number 1."""
        if self._holder.poll() is None:  # else the number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._holder.wait()


def address_of(number):
    return f"10.77.0.{number + 1}"


class Host(Namespaces):
    def __init__(self, number, switch, mount_point):
        super().__init__(f"node{number}")
        self.number, self.address = number, address_of(number)
        self._switch, self._port, self._mount_point = switch, f"port{number}", mount_point
        subprocess.run(["ip", "link", "add", self._port, "netns", str(switch.pid), "type", "veth",
                        "peer", "name", "eth0", "netns", str(self.pid)], check=True)
        switch.run("ip", "link", "set", self._port, "master", "bridge", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def data(self, folder):
        """Its own folder, where every host looks for files."""
        self.run("mount", "--bind", folder, self._mount_point)

    def start(self, command, environment=None, **options):
        """A process there, with the address by which others know it."""
        return subprocess.Popen(self.inside(command), env={**os.environ, **(environment or {})},
                                **options)

    def disconnect(self):
        self._switch.run("ip", "link", "set", self._port, "down")

    def connect(self):
        self._switch.run("ip", "link", "set", self._port, "up")

    def impede(self):
        """What it sends is late, lost and out of order; where the kernel has no netem, late
        and lost."""
        add = ["tc", "qdisc", "replace", "dev", "eth0", "root"]
        if subprocess.run(self.inside(add + "netem delay 60ms 40ms reorder 10% loss 2%".split()),
                          stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.run(*add, *"tbf rate 400kbit burst 8kbit latency 200ms".split())

    def relieve(self):
        self.run("tc", "qdisc", "delete", "dev", "eth0", "root")

    def kill(self):
        super().kill()
        # The kernel takes its own time to remove the pair.
        subprocess.run(self._switch.inside(["ip", "link", "delete", self._port]),
                       stderr=subprocess.DEVNULL, check=False)


class Hosts(contextlib.ExitStack):
    """A list of hosts, each killed at the end."""

    def __init__(self, count):
        super().__init__()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data_folder = self.folder / "data"  # DATA of each host
        self.data_folder.mkdir()
        self._switch = Namespaces("switch")
        self.callback(self._switch.kill)
        self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self._switch.run("ip", "link", "set", "bridge", "up")
        self._hosts = []
        for number in range(count):
            self.add()

    def add(self):
        """One more."""
        self._hosts.append(None)
        names = "".join(f"{address_of(i)} node{i}\n" for i in range(len(self)))
        (self.folder / "names").write_text("127.0.0.1 localhost\n" + names)
        return self.boot(len(self) - 1)

    def boot(self, number):
        """Starts it, also one that was killed."""
        host = Host(number, self._switch, self.data_folder)
        self.callback(host.kill)
        self._hosts[number] = host
        host.run("mount", "--bind", self.folder / "names", "/etc/hosts")
        (self.folder / f"pid-{host.name}").write_text(str(host.pid))
        return host

    def login(self, command):
        """The command, made to run on a host beside these, where `enter NAME COMMAND` is what
        ssh is elsewhere."""
        enter = self.folder / "enter"
        if not enter.exists():
            self._switch.run("ip", "address", "add", "10.77.0.254/24", "dev", "bridge")
            enter.write_text('#!/bin/sh\nhost=$1\nshift\nexec nsenter -t "$(cat '
                             f'{self.folder}/pid-$host)" -n -m -u -p sh -c "$*"\n')
            enter.chmod(0o755)
        return ["nsenter", "-t", str(self._switch.pid), "-n", "unshare", "-m", "--propagation",
                "private", "sh", "-c", f'mount --bind {self.folder}/names /etc/hosts; exec "$@"',
                "login", *map(str, command)]

    def __getitem__(self, number):
        return self._hosts[number]

    def __len__(self):
        return len(self._hosts)

    def __iter__(self):
        return iter(self._hosts)
