"""A broker of the program's own: it ends with the program, whatever the program
has started, and with nothing else."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import penstock
import pytest

BEGIN = """
import os, signal, subprocess, sys, threading, time
import penstock
numbers = penstock.Dataset.range(4000).batch(10)
penstock_command = os.path.join(os.path.dirname(sys.executable), "penstock")
def is_broker(pid):
    try:
        parent = open(f"/proc/{pid}/stat").read().split(") ")[1].split()[1]
        return (int(parent) == os.getpid()
                and b"--until-eof" in open(f"/proc/{pid}/cmdline", "rb").read())
    except OSError:  # it ended meanwhile
        return False
def broker_pids():
    return [int(pid) for pid in os.listdir("/proc")
            if pid.isdigit() and is_broker(pid)]
"""


def start(program):
    return subprocess.Popen([sys.executable, "-c", BEGIN + program], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True)


def finished(process, within_s=60):
    try:
        output, errors = process.communicate(timeout=within_s)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0, (process.returncode, errors)
    return output


def gone(folder, within_s=30):
    end = time.monotonic() + within_s
    while folder.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_it_ends_while_a_forked_child_lives():
    output = finished(start("""
with penstock.broker(), penstock.attach(numbers) as reader:
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        time.sleep(3000)
        os._exit(0)
    assert sum(batch.rows for batch in reader) == 4000
print("stopped")
os.kill(child, signal.SIGKILL)
"""))
    assert output == "stopped\n"


def test_a_forked_child_does_not_end_it():
    finished(start("""
with penstock.broker() as broker, penstock.attach(numbers) as reader:
    child = os.fork()
    if child == 0:
        broker.stop()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(batch.rows for batch in reader) == 4000
"""))


def test_it_ends_with_a_program_that_is_killed_and_leaves_a_child():
    process = start("""
broker = penstock.broker()
child = os.fork()
if child == 0:
    time.sleep(3000)
print(broker.socket, flush=True)
time.sleep(3000)
""")
    folder = pathlib.Path(process.stdout.readline()).parent
    try:
        assert folder.is_dir()
        process.kill()
        process.wait()
        assert gone(folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("job", [None, "mine"])
def test_a_nameless_job_of_one_rank_does_not_wait_for_the_dead_and_says_so(job):
    process = start(f"""
with penstock.broker():
    child = os.fork()
    if child == 0:
        reader = penstock.attach(numbers, 0, 1, job={job!r})
        batch = reader.next()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    jobs = []
    for attempt in range(50):
        time.sleep(0.1)
        jobs = subprocess.run([penstock_command, "jobs"], stdout=subprocess.PIPE,
                              check=True, text=True).stdout
        if {job is None} == ("no jobs" in jobs):
            break
    print(jobs)
""")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert ("no jobs" in output) == (job is None)
    assert ("over before all was delivered" in errors) == (job is None)


def test_what_interrupts_the_program_does_not_end_it():
    finished(start("""
# Ignored by whoever was started in the background of a script.
signal.signal(signal.SIGINT, signal.default_int_handler)
with penstock.broker(), penstock.attach(numbers, delivery="dynamic") as reader:
    rows = 0
    try:
        for batch in reader:
            rows += batch.rows
            if rows == 50:
                os.killpg(0, signal.SIGINT)
                time.sleep(0.2)
    except KeyboardInterrupt:
        del batch
    time.sleep(0.5)
    assert reader.state_dict()["row"] >= rows  # asked of the same broker
    assert rows + sum(batch.rows for batch in reader) == 4000
"""))


def test_autostart_starts_another_when_its_broker_died():
    finished(start("""
def rows():
    with penstock.attach(numbers, autostart=True,
                         socket=sys.argv[0] + "/none") as reader:
        return sum(batch.rows for batch in reader)
assert rows() == 4000
first = broker_pids()
assert rows() == 4000 and broker_pids() == first
os.kill(*first, signal.SIGKILL)
time.sleep(0.5)
assert rows() == 4000
"""))


RANK = """
rank, kill = int(sys.argv[1]), sys.argv[2]
with penstock.attach(numbers, rank, 2, local_world_size=2, job="launch",
                     autostart=True, socket="/nonexistent/s") as reader:
    for batch in reader:
        pass
    if kill:
        open(f"{kill}{rank}", "w").close()
        while not os.path.exists(f"{kill}{1 - rank}"):
            time.sleep(0.01)
        for pid in broker_pids():
            os.kill(pid, signal.SIGKILL)
"""


def test_nothing_is_left_of_a_broker_that_ranks_shared(tmp_path):
    folder = tmp_path / f"penstock-launches-{os.geteuid()}"

    def launch(port, kill=""):
        environment = dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks = [subprocess.Popen([sys.executable, "-c", BEGIN + RANK, str(rank), kill],
                                  env=environment) for rank in range(2)]
        assert [rank.wait(60) for rank in ranks] == [0, 0]

    launch(1)
    assert gone(folder)
    launch(2, str(tmp_path / "done"))
    assert len(list(folder.iterdir())) == 2, "a file and a FIFO"
    launch(3)
    assert gone(folder), "with those of the broker that was killed"


@pytest.mark.parametrize("waits", [
    "for batch in reader: pass",
    "reader.next()",
])
@pytest.mark.parametrize("dataset", [
    "penstock.Dataset.range(10 ** 9).batch(10)",
    "penstock.Dataset.stream({'x': penstock.TensorSpec((), 'int64')}).batch(4)",
])
def test_the_program_ends_while_a_thread_waits(dataset, waits):
    finished(start(f"""
reader = penstock.attach({dataset}, autostart=True, socket="/nonexistent/s")
def take():
    {waits}
threading.Thread(target=take, daemon=True).start()
time.sleep(0.3)
"""))


def test_the_program_ends_while_a_producer_waits():
    finished(start("""
with penstock.broker():
    stream = penstock.Dataset.stream({"x": penstock.TensorSpec((), "int64")})
    reader = penstock.attach(stream.batch(4), job="rows")
    def put():
        with penstock.producer("rows", {"x": penstock.TensorSpec((), "int64")}) as out:
            while True:
                out.put({"x": [1]})
    threading.Thread(target=put, daemon=True).start()
    reader.next()
"""))


def test_what_it_does_not_like_is_in_the_exception(tmp_path):
    with pytest.raises(penstock.Error, match="nothing-here"):
        penstock.broker(python_path=tmp_path / "nothing-here")
    with pytest.raises(penstock.InvalidArgument, match="much"):
        penstock.broker(memory_limit="much")
    with pytest.raises(penstock.InvalidArgument, match="4096"):
        penstock.broker(workers=5000)
    with pytest.raises(penstock.InvalidArgument, match="colons"):
        penstock.broker(python_path="a:b")
