#!/usr/bin/env python3
"""Promise: under a real systemd, with the restart, the reload and the descriptor store
of the shipped unit, ranks survive deaths of the broker, even one that takes a rank
along, and `systemctl restart` and `reload`; a file with a mistake fails the reload only.

Method: `systemd --user` in its own mount namespace runs penstockd.service without
its sandbox and its user (a user manager has none). Three ranks of one job log what
they take; the service is killed four times. However slow the machine is, the rank
that is killed has not ended: all wait for the test before their last batches. Exit
status 77: this machine lets no user manager run.

Usage: systemd_restart_test.py BUILD
"""

import collections
import configparser
import glob
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SKIP = 77
BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
RANKS, RECORDS, EPOCHS, BATCH = 3, 3000, 2, 12
# Each rank takes this many batches before the test is done with killing.
BEFORE_GO = EPOCHS * RECORDS // BATCH - 50
# The unit's settings of restarts.
KEPT = ("Type", "Restart", "RestartSec", "FileDescriptorStoreMax", "OOMPolicy",
        "LimitNOFILE")


def in_own_namespace():
    """Marks /run as a machine booted by systemd, which systemd checks."""
    if os.environ.get("PENSTOCK_OWN_RUN") == "1":
        return
    unshare = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: no mount namespace may be made here")
        sys.exit(SKIP)
    os.execvp("unshare", [
        *unshare, "env", "PENSTOCK_OWN_RUN=1", "sh", "-c",
        'mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec "$@"',
        "sh", sys.executable, *sys.argv])


class UserSystemd:
    """A systemd --user with the two units."""

    def __init__(self, folder):
        self.folder = folder
        units = folder / "config/systemd/user"
        units.mkdir(parents=True)
        self.socket = folder / "penstock.sock"
        (units / "penstockd.socket").write_text(
            f"[Socket]\nListenSequentialPacket={self.socket}\n")
        text = (SOURCE / "systemd/penstockd.service").read_text(encoding="utf-8")
        shipped = configparser.ConfigParser(strict=False)
        shipped.optionxform = str
        shipped.read_string(text)
        kept = {key: value for key, value in shipped["Service"].items() if key in KEPT}
        assert kept["FileDescriptorStoreMax"] and kept["Restart"], kept
        (folder / "state").mkdir()
        self.config = folder / "penstockd.yaml"
        self.configure("")
        # Several lines of one key.
        commands = [
            line.replace("/usr/bin/penstockd", f"{BUILD}/broker/penstockd").replace(
                "/etc/penstock/penstockd.yaml", str(self.config))
            for line in text.splitlines() if line.startswith("Exec")]
        assert len(commands) == 3, commands
        (units / "penstockd.service").write_text(
            "[Unit]\nRequires=penstockd.socket\nAfter=penstockd.socket\n"
            + "".join(f"{key}={value}\n" for key, value in shipped["Unit"].items()
                      if key.startswith("StartLimit"))
            + "[Service]\n"
            + "".join(f"{key}={value}\n" for key, value in kept.items())
            + "\n".join(commands) + "\n")
        self.environment = {
            **os.environ, "XDG_RUNTIME_DIR": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"), "SYSTEMD_LOG_TARGET": "console"}
        self.environment.pop("NOTIFY_SOCKET", None)
        self.log = open(folder / "systemd.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["/lib/systemd/systemd", "--user"], env=self.environment, stdout=self.log,
            stderr=self.log, start_new_session=True)

    def configure(self, keys):
        self.config.write_text(f"state_dir: {self.folder}/state\n{keys}")

    def control(self, *arguments):
        return subprocess.run(["systemctl", "--user", *arguments], env=self.environment,
                              capture_output=True, text=True, timeout=60, check=False)

    def start(self):
        """False: no manager can run here."""
        for _ in range(100):
            if self.process.poll() is not None:
                return False
            if self.control("is-system-running").stdout.strip() in ("running", "degraded"):
                started = self.control("start", "penstockd.service")
                assert started.returncode == 0, started.stderr
                return True
            time.sleep(0.05)
        return False

    def show(self, name):
        return int(self.control("show", "--value", "-p", name, "penstockd").stdout)

    def pid(self):
        return self.show("MainPID")

    def stop_broker(self):
        """It lives on and does nothing."""
        while (pid := self.pid()) == 0:  # it is being restarted
            time.sleep(0.02)
        os.kill(pid, signal.SIGSTOP)

    def reload(self, keys):
        """Whether systemctl says that it went well. The process stays."""
        before = self.pid()
        self.configure(keys)
        done = self.control("reload", "penstockd.service")
        assert self.control("is-active", "penstockd").stdout == "active\n", keys
        assert self.pid() == before
        return done.returncode == 0

    def restart(self):
        before = self.pid()
        done = self.control("restart", "penstockd.service")
        assert done.returncode == 0, done.stderr
        assert self.pid() not in (0, before)

    def kill_broker(self):
        before = self.show("NRestarts")
        self.control("kill", "-s", "KILL", "penstockd")
        give_up = time.monotonic() + 30
        while self.show("NRestarts") == before and time.monotonic() < give_up:
            time.sleep(0.02)
        assert self.show("NRestarts") > before, "systemd did not restart it"

    def end_in_order(self):
        state = (self.folder / "state").stat()
        in_memory = f"/dev/shm/penstock-{state.st_dev:x}-{state.st_ino:x}-*"
        assert glob.glob(in_memory)
        done = self.control("stop", "penstockd.service")
        assert done.returncode == 0, done.stderr
        assert not glob.glob(in_memory), "its folder in memory is still there"

    def stop(self):
        self.control("exit")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def start_rank(systemd, folder, rank, restart):
    return subprocess.Popen([
        BUILD / "tests/crash/soak", "rank", "--kind", "split", "--delivery", "split",
        "--on-rank-death", "wait", "--ranks", str(RANKS), "--records", str(RECORDS),
        "--batch", str(BATCH), "--epochs", str(EPOCHS), "--hold", "2", "--job", "kept",
        "--socket", systemd.socket, "--folder", folder, "--rank", str(rank),
        "--restart", str(restart), "--seed", "1", "--pace-us", "15000",
        "--wait-after", str(BEFORE_GO)])


def check(folder):
    """Each sample of each epoch comes at least once, and at most once unmarked."""
    unmarked = collections.defaultdict(list)
    seen = set()
    for log in folder.glob("rank-*"):
        # A rank that is killed while it writes leaves a part of a line.
        for line in log.read_text(encoding="utf-8").split("\n")[:-1]:
            fields = line.split()
            if fields[0] != "T":
                assert fields[0] not in "XF", line
                continue
            number, epoch, redelivered = fields[2], int(fields[3]), fields[5] == "1"
            for sample in fields[7:]:
                seen.add((epoch, int(sample)))
                if not redelivered:
                    unmarked[(epoch, int(sample))].append(f"{log.name} batch {number}")
    assert len(seen) == EPOCHS * RECORDS, len(seen)
    twice = {each: takes for each, takes in unmarked.items() if len(takes) > 1}
    assert not twice, f"{len(twice)} came twice unmarked, by (epoch, sample): {twice}"


def wait_for(ranks):
    for rank, process in ranks.items():
        assert process.wait(90) == 0, f"rank {rank}: {process.returncode}"


def run(systemd, folder):
    ranks = {rank: start_rank(systemd, folder, rank, 0) for rank in range(RANKS)}
    for _ in range(3):
        time.sleep(0.7)
        systemd.kill_broker()
    kept = systemd.show("NFileDescriptorStore")
    assert kept >= 2 * RANKS, f"systemd keeps {kept} descriptors"
    # No broker sees it: the page that systemd kept shows which batches it had.
    systemd.stop_broker()
    ranks[2].kill()
    status = ranks[2].wait()
    assert status == -signal.SIGKILL, f"rank 2 had ended by itself: {status}"
    systemd.kill_broker()
    ranks[2] = start_rank(systemd, folder, 2, 1)
    (folder / "go").touch()
    wait_for(ranks)
    check(folder)
    give_up = time.monotonic() + 30
    while systemd.show("NFileDescriptorStore") > 0 and time.monotonic() < give_up:
        time.sleep(0.1)
    assert systemd.show("NFileDescriptorStore") == 0, "descriptors stay"
    print(f"killed four times, {kept} descriptors kept; {EPOCHS * RECORDS} samples, each once")


def reload_and_restart(systemd, folder):
    """As an administrator does, and an upgrade."""
    (folder / "go").touch()
    ranks = {rank: start_rank(systemd, folder, rank, 0) for rank in range(RANKS)}
    time.sleep(0.7)
    assert systemd.reload("workers: 2\n")
    assert not systemd.reload("wrokers: 3\n"), "a mistake"
    systemd.configure("")
    systemd.restart()
    wait_for(ranks)
    check(folder)
    print(f"reloaded and restarted; {EPOCHS * RECORDS} samples, each once")


def main():
    in_own_namespace()
    with tempfile.TemporaryDirectory() as name:
        systemd = UserSystemd(pathlib.Path(name))
        folders = [pathlib.Path(name) / each for each in ("killed", "restarted")]
        for folder in folders:
            folder.mkdir()
        try:
            if not systemd.start():
                print("skipped: no systemd user manager runs here:")
                print((systemd.folder / "systemd.log").read_text(encoding="utf-8"))
                return SKIP
            run(systemd, folders[0])
            reload_and_restart(systemd, folders[1])
            systemd.end_in_order()
        finally:
            systemd.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
