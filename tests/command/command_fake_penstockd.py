#!/usr/bin/env python3
"""Stands in for penstockd in the tests of the penstock command.

Takes the listening socket by systemd's protocol and answers the control requests
with fixed data. FAKE_PENSTOCKD, a comma-separated list, makes it misbehave; start N
is the Nth process, from 1:

  die        ends with status 7 before it is ready
  die-again  ends with status 9 before it is ready, except in start 1
  die-ready  ends with status 9 once it is ready, except in starts 1 and 9
  explained  each start but 1 says that it knows why the former one died
  takes      each start stores the cursor page of a rank that took a batch
  leaves     ... and removes it again: the rank has left
  keep       stores four descriptors in start 1 and removes one
  stubborn   ignores SIGTERM
  odd        answers with fields of the wrong types
  error      answers with an error
  datasets   has jobs of two datasets
  hang       never answers `index`

If set, FAKE_PENSTOCKD_INSTANCES names a folder: each start writes what it was given into
a file named by its number, before it is ready.
"""
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

MODES = os.environ.get("FAKE_PENSTOCKD", "").split(",")
RECORDS, GLOBAL_BATCH, STEPS = 1003, 64, 16


def replay(arguments):
    """The plan of the stub: sample ids in order, no checksums."""
    world = int(arguments[arguments.index("--world-size") + 1])
    steps = STEPS
    for step in range(steps):
        base = step * GLOBAL_BATCH
        rows = min(GLOBAL_BATCH, RECORDS - base)
        for rank in range(world):
            share = rows // world + (rank < rows % world)
            start = rank * (rows // world) + min(rank, rows % world)
            for row in range(share):
                sys.stdout.buffer.write(
                    struct.pack("=QQIIqII", 0, step, rank, row,
                                base + start + row, 0, 0))


def answer(request):
    if "error" in MODES:
        return {"ok": False, "code": 5, "error": "no such folder"}
    if "odd" in MODES:
        return {"ok": True, "dataset": 5, "records": "many",
                "broker": [1, 2], "jobs": [7, {"job": {}, "ranks": "x"}],
                "datasets": {"name": 1}}
    op = request.get("op")
    if op == "register":
        return {"ok": True, "dataset": "registered-name"}
    if op == "index":
        kind = "stream" if "stream" in request["spec"] else "range"
        spec = {"source": {kind: {}}, "epochs": 2}
        return {"ok": True, "dataset": "numbers", "spec": json.dumps(spec),
                "records": RECORDS, "global_batch": GLOBAL_BATCH,
                "rows_per_epoch": RECORDS,
                "steps_per_epoch": STEPS, "epochs": 2, "memory_bytes": 1 << 20,
                "class_names": ["shirt", "boot"],
                "left_out": "2 other files, like boot/4.png",
                "element_spec": [
                    {"name": "image", "dtype": "uint8", "shape": [8, 8, 3]},
                    {"name": "label", "dtype": "int64", "shape": []}]}
    if op == "datasets":
        return {"ok": True, "datasets": [
            {"name": "registered-name", "source": "range", "records": RECORDS}]}
    if op in ("status", "jobs"):
        datasets = ["d", "e"] if "datasets" in MODES else ["d"]
        return {"ok": True,
                "broker": {"version": "0.1.0", "pid": os.getpid(), "workers": 2,
                           "cpu_s": time.process_time(), "uptime_s": 3725.0},
                "jobs": [{"job": "train", "dataset": dataset, "state": "running",
                          "world_size": 2, "epoch": 1, "epochs": 3, "step": 4,
                          "steps_per_epoch": 16, "rows": 12345,
                          "ranks": [{"rank": 0, "pid": 10, "state": "waiting",
                                     "wait_s": 0.25}]}
                         for dataset in datasets]}
    return {"ok": True, "version": "0.1.0", "pid": os.getpid()}


def serve(connection):
    while True:
        data = connection.recv(1 << 16)
        if not data:
            return
        request = json.loads(data)
        if request.get("op") == "index":
            if "hang" in MODES:
                while connection.recv(1 << 16):  # until the client is gone
                    pass
                return
            for done in (0, 500, 1003):
                connection.send(json.dumps(
                    {"event": "progress", "stage": "indexing", "done": done,
                     "total": 1003}).encode())
        connection.send(json.dumps(answer(request)).encode())


def notify(text, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
               struct.pack(f"={len(fds)}i", *fds))] if fds else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([text.encode()], rights, 0, os.environ["NOTIFY_SOCKET"])


def memfd(text):
    fd = os.memfd_create("fake")
    os.write(fd, text.encode())
    return fd


def write_instance():
    """Tells the test what this start was given; returns its number."""
    state = sys.argv[sys.argv.index("--state-dir") + 1]
    names = os.environ["LISTEN_FDNAMES"].split(":")
    assert names.pop() == "penstock.owner"
    count = int(os.environ["LISTEN_FDS"]) - 1
    instance = {"pid": os.getpid(),
            "names": names,
            "listening": socket.socket(fileno=os.dup(3)).getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN),
            "contents": [os.pread(3 + i, 100, 0).decode()
                         for i in range(1, count)],
            "state": sorted(os.listdir(state))}
    folder = os.environ.get("FAKE_PENSTOCKD_INSTANCES")
    if folder is None:
        return 1
    number = len(os.listdir(folder)) + 1
    with open(os.path.join(state, f"of-instance-{number}"), "w"):
        pass
    part = os.path.join(state, "part")
    with open(part, "w") as file:
        json.dump(instance, file)
    os.rename(part, os.path.join(folder, str(number)))
    return number


def main():
    if "--replay" in sys.argv:
        replay(sys.argv)
        return
    assert int(os.environ["LISTEN_PID"]) == os.getpid()
    number = write_instance()
    if "die" in MODES:
        sys.exit(7)
    if "die-again" in MODES and number > 1:
        sys.exit(9)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in MODES
                  else lambda *_: os._exit(0))
    listener = socket.socket(fileno=3)

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,),
                             daemon=True).start()

    if "keep" in MODES and number == 1:
        for name in ("cursor-b", "cursor-a", "gone", "cursor-c"):
            notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", [memfd(name)])
        notify("FDSTOREREMOVE=1\nFDNAME=gone")
    if "takes" in MODES:
        page = bytearray(4096)
        struct.pack_into("<Q", page, 0, 0x315255434b545350)  # kCursorMagic
        struct.pack_into("<Q", page, 128, 1)  # taken
        cursor = os.memfd_create("cursor")
        os.write(cursor, page)
        notify(f"FDSTORE=1\nFDNAME=cursor-{number}\nFDPOLL=0", [cursor])
        if "leaves" in MODES:
            notify(f"FDSTOREREMOVE=1\nFDNAME=cursor-{number}")
    explained = "explained" in MODES and number > 1
    # Before any answer.
    notify("READY=1\nX_PENSTOCK_EXPLAINED=1" if explained else "READY=1")
    if "die-ready" in MODES and number not in (1, 9):
        sys.exit(9)
    threading.Thread(target=accept, daemon=True).start()
    while True:
        signal.pause()


main()
