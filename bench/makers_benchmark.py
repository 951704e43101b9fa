#!/usr/bin/env python3
"""Question: what do other hosts that make rows (`penstock link`) add to a job's rate, and
what do the links cost?

Method: brokers of this machine stand for hosts. The training one has 1 worker, each of
the others --workers; a row is a Python function that sleeps, so that processors do not
limit. After --warm-s seconds one rank takes batches for --seconds.

  rate   rows of 1,000 bytes that sleep for 20 ms, with 0, 1, 2, 4 makers; the sum of what
         each host makes alone is 1
  cost   rows of 150,528 bytes that sleep for 4 ms, one maker: CPU seconds a GB of rows
         received, of both links and both brokers (their processes of Python are others),
         plain and with TLS

Isolation: one run at a time, private brokers. Limits: hosts share processors and loopback,
so with many makers these do limit; a rank does nothing but take batches.

    pip install ./client/python
    bench/makers_benchmark.py
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time

try:
    import penstock
except ImportError as error:
    sys.exit(f"{error}: pip install ./client/python, and run this with that Python")

COMMAND = os.path.join(os.path.dirname(penstock.__file__), "bin", "penstock")
FUNCTION = """
import time
import numpy as np

PICTURE = np.arange({bytes}, dtype=np.uint8)


def slow(row):
    time.sleep({seconds})
    return {{"picture": PICTURE}}
"""


def spec_of(folder, row_bytes, seconds):
    (folder / "slow.py").write_text(FUNCTION.format(bytes=row_bytes, seconds=seconds))
    spec = folder / "slow.yaml"
    spec.write_text(json.dumps({
        "dataset": "slow", "source": {"range": 100_000_000},
        "map": [{"python": {"function": "slow:slow", "features": {
            "picture": {"dtype": "uint8", "shape": [row_bytes]}}}}],
        "batch": {"size": 16}}))
    return spec


def certificates(folder):
    """Options of a link that shows a certificate."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl("req", *key, "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
    openssl("x509", "-req", "-in", "host.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "host.pem", "-extfile", "names")
    return ("--cert", str(folder / "host.pem"), "--key", str(folder / "host.key"),
            "--ca", str(folder / "ca.pem"))


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pid_of(broker):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
        connected.connect(broker.socket)
        return struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                        12))[0]


@contextlib.contextmanager
def link(*arguments):
    process = subprocess.Popen([COMMAND, "link", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def status(broker):
    return json.loads(subprocess.run([COMMAND, "status", "--json", "--socket", broker.socket],
                                     check=True, stdout=subprocess.PIPE).stdout)


def run(arguments, folder, spec, makers, security=()):
    """(rows a second, CPU seconds a GB by process, status of the rows of makers)"""
    with contextlib.ExitStack() as stack:
        training = stack.enter_context(penstock.broker(workers=1, python_path=[folder]))
        processes, at = {"training broker": pid_of(training)}, []
        for _ in range(makers):
            maker = stack.enter_context(
                penstock.broker(workers=arguments.workers, python_path=[folder]))
            serving = stack.enter_context(link("serve", "--socket", maker.socket,
                                               "--listen", "127.0.0.1:0", *security))
            at.append(serving.stderr.readline().rsplit(maxsplit=1)[1])
            processes |= {"serve": serving.pid, "maker's broker": pid_of(maker)}
        if makers:
            using = stack.enter_context(link("use", "--socket", training.socket, "--remote",
                                             ",".join(at), *security))
            processes["use"] = using.pid
        reader = stack.enter_context(penstock.attach(spec, socket=training.socket, job="slow"))
        rows, taking = 0, iter(reader)

        def take(seconds):
            nonlocal rows
            begun = time.monotonic()
            while time.monotonic() < begun + seconds:
                rows += next(taking).valid_rows
            return time.monotonic() - begun
        take(arguments.warm_s)
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        said = [each["bytes"] for each in status(training).get("makers", [])]
        rows = 0
        passed = take(arguments.seconds)
        after = status(training)
        gb = (sum(each["bytes"] for each in after.get("makers", [])) - sum(said)) / 1e9
        cost = {name: (cpu_s(pid) - before[name]) / gb for name, pid in processes.items()} \
            if gb else {}
        return rows / passed, cost, after["jobs"][0].get("remote_rows")


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description=__doc__)
    parser.add_argument("question", nargs="*", default=["rate", "cost"])
    parser.add_argument("--makers", default="0,1,2,4")
    parser.add_argument("--workers", type=int, default=4, help="of each maker")
    parser.add_argument("--warm-s", type=float, default=8)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--verbose", action="store_true", help="what status says, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if "rate" in arguments.question:
            spec = spec_of(folder, 1000, 0.02)
            alone = None
            for makers in map(int, arguments.makers.split(",")):
                rate, _, said = run(arguments, folder, spec, makers)
                alone = alone or rate
                sum_of_all = alone * (1 + makers * arguments.workers)
                print(f"{makers} makers: {rate:.0f} rows/s, {rate / sum_of_all:.2f}", flush=True)
                if arguments.verbose:
                    print(json.dumps(said))
        if "cost" in arguments.question:
            spec = spec_of(folder, 150_528, 0.004)
            for kind, security in (("plain", ()), ("TLS", certificates(folder))):
                rate, cost, said = run(arguments, folder, spec, 1, security)
                print(f"{kind}: {rate:.0f} rows/s; CPU s/GB: " +
                      ", ".join(f"{name} {spent:.3f}" for name, spent in cost.items()),
                      flush=True)
                if arguments.verbose:
                    print(json.dumps(said))


if __name__ == "__main__":
    main()
