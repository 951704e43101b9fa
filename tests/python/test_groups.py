"""Ranks of several processes (replicas): each process gets the rank's batches, whichever
of them is killed, evicted or late; and where a process is in a mesh."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import penstock
import pytest
from penstock import parallel

ROWS = 48
STEPS = 6


@pytest.fixture
def rows():
    return penstock.Dataset.range(ROWS).shuffle(seed=3).batch(ROWS // STEPS)


@pytest.fixture
def attach_groups(attach):
    """All processes of a job: readers by rank and replica."""
    def attach_them(dataset, ranks, replicas, **options):
        with ThreadPoolExecutor(ranks * replicas) as pool:
            readers = list(pool.map(
                lambda at: attach(dataset, at // replicas, ranks, replica=at % replicas,
                                  replicas=replicas, local_world_size=ranks, **options),
                range(ranks * replicas)))
        return [readers[rank * replicas:(rank + 1) * replicas] for rank in range(ranks)]
    return attach_them


def values(batch):
    return batch["value"].tolist()


def address(batch):
    return batch["value"].__array_interface__["data"][0]


@pytest.mark.parametrize("ranks, replicas", [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_replicas_get_the_same_rows_and_ranks_divide_them(attach, attach_groups, rows, ranks,
                                                          replicas):
    alone = [values(batch) for batch in attach(rows, 0, 1, job="alone")]
    readers = attach_groups(rows, ranks, replicas)
    assert {(each.rank, each.world_size, each.replica, each.replicas)
            for group in readers for each in group} == {
        (rank, ranks, replica, replicas)
        for rank in range(ranks) for replica in range(replicas)}
    steps = []
    for batches in zip(*(reader for group in readers for reader in group)):
        groups = [batches[i:i + replicas] for i in range(0, len(batches), replicas)]
        for group in groups:
            assert all(values(batch) == values(group[0]) for batch in group)
        steps.append(sum((values(group[0]) for group in groups), []))
    assert steps == alone


def test_a_step_is_made_once_for_all_replicas(broker, attach_groups, rows):
    readers, = attach_groups(rows.prefetch(2).repeat(None), 1, 4, job="made-once")
    for _ in zip(*(next(reader.epochs()) for reader in readers)):
        pass
    job = status(broker, "made-once")
    assert (job["world_size"], job["replicas"]) == (1, 4)
    assert [(rank["rank"], rank["replica"]) for rank in job["ranks"]] == [
        (0, replica) for replica in range(4)]
    # An epoch, and what is made ahead: slots of prefetch and what all may hold.
    assert job["rows"] <= ROWS + ROWS // STEPS * (2 + 3 + 3 * 2)


def status_of(broker):
    return json.loads(subprocess.run(
        [command(), "status", "--json", "--socket", broker.socket], check=True,
        capture_output=True, text=True).stdout)


def status(broker, job):
    found, = [each for each in status_of(broker)["jobs"] if each["job"] == job]
    return found


def command():
    return os.path.join(os.path.dirname(sys.executable), "penstock")


def test_none_begins_before_all_of_its_rank_came(attach, rows):
    first = attach(rows, 0, 1, replica=0, replicas=2)
    with pytest.raises(penstock.DeadlineExceeded, match=r"rank 0 \(replica 1\)"):
        first.next(1.5)
    second = attach(rows, 0, 1, replica=1, replicas=2)
    assert values(first.next()) == values(second.next())


def test_a_member_that_disagrees_is_refused(attach, rows):
    attach(rows, 0, 2, replica=0, replicas=2)
    for options, text in [
            (dict(world_size=2, replicas=4), "replicas: 4 here, 2 there"),
            (dict(world_size=4, replicas=2), "world_size: 4 here, 2 there"),
            (dict(world_size=2, replicas=2, local_replicas=1, local_world_size=2),
             "local_replicas: 1 here, 2 there")]:
        with pytest.raises(penstock.FailedPrecondition, match=text):
            attach(rows, rank=0, replica=1, **options)
    with pytest.raises(penstock.FailedPrecondition, match="batch.size: 4 here, 8 there"):
        attach(penstock.Dataset.range(ROWS).shuffle(seed=3).batch(4), 0, 2, replica=1, replicas=2)
    with pytest.raises(penstock.AlreadyExists, match=r"rank 0 \(replica 0\) is already"):
        attach(rows, 0, 2, replica=0, replicas=2)


def test_consumers_of_one_order_each_agree_too(attach, rows):
    alone = {"delivery": "independent"}
    first = attach(rows, 0, 2, job="split")
    with pytest.raises(penstock.FailedPrecondition, match="delivery: independent here, split"):
        attach(rows, 1, 2, job="split", **alone)
    first.close()
    attach(rows, 0, 2, job="alone", **alone)
    for options, text in [
            (dict(world_size=3, **alone), "world_size: 3 here, 2 there"),
            (dict(world_size=2), "delivery: split here, independent there"),
            (dict(world_size=2, replica=0, replicas=2, **alone), "replicas: 2 here, 1 there")]:
        with pytest.raises(penstock.FailedPrecondition, match=text):
            attach(rows, rank=1, job="alone", **options)
    with pytest.raises(penstock.FailedPrecondition, match="shuffle.seed: 4 here, 3 there"):
        attach(penstock.Dataset.range(ROWS).shuffle(seed=4).batch(8), 1, 2, job="alone", **alone)
    attach(rows, 1, 2, job="alone", **alone)


@pytest.mark.parametrize("options, text", [
    (dict(rank=0, world_size=2, replica=2, replicas=2), "replica 2 of 2 .* from 0 to 1"),
    (dict(rank=0, world_size=2, replicas=2), "`rank` is given and `replica` is not"),
    (dict(replica=0, replicas=2), "`replica` is given and `rank` is not"),
    (dict(replicas=2), "the world of 1 processes is no multiple"),
    (dict(replica=1), "replica 1 is given and `replicas` is not"),
    (dict(rank=0, world_size=1, replica=0, replicas=2, local_replicas=3),
     "local_replicas 3 is more than replicas 2"),
    (dict(rank=0, world_size=1, replica=0, replicas=2, delivery="broadcast"),
     "'replicas' is an option of split and independent; delivery is broadcast: leave it out"),
    (dict(rank=0, world_size=1, replica=0, replicas=2, delivery="dynamic"),
     "delivery is dynamic: a batch goes to one process"),
    (dict(rank=2, world_size=2, replica=0, replicas=2, delivery="independent"),
     "'rank' is 2; wanted a number from 0 to 1"),
    (dict(rank=0, world_size=1024, replica=0, replicas=1024), "1048576"),
])
def test_impossible_numbers_are_refused(attach, rows, options, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        attach(rows, **options)


def test_groups_that_have_an_order_each(broker, attach, attach_groups, rows):
    alone = [[values(batch) for batch in attach(rows, rank, 2, delivery="independent",
                                                job="alone")] for rank in range(2)]
    assert alone[0] != alone[1]
    groups = attach_groups(rows, 2, 2, delivery="independent", job="models")
    found = [each for each in status_of(broker)["jobs"] if each["job"] == "models"]
    assert sorted((each["rank"], each["replica"]) for job in found for each in job["ranks"]) == [
        (0, 0), (0, 1), (1, 0), (1, 1)]
    for group, order in zip(groups, alone):
        steps = [[values(batch) for batch in step] for step in zip(*group)]
        assert steps == [[rows_of_step] * 2 for rows_of_step in order]
    # A state is one group's, which may resume with other members.
    state = attach_groups(rows, 1, 1, delivery="independent", job="some")[0][0]
    for _ in range(2):
        state.next().release()
    (one, other), = attach_groups(rows, 1, 2, delivery="independent", job="more",
                                  state=state.state_dict())
    assert values(one.next()) == values(other.next()) == alone[0][2]


def test_a_member_of_one_order_is_missed_and_evicted_by_its_number(broker, attach, rows):
    options = dict(replicas=2, delivery="independent", job="models")
    first = attach(rows, 1, 2, replica=0, **options)
    with pytest.raises(penstock.DeadlineExceeded, match=r"rank 1 \(replica 1\)"):
        first.next(1.5)
    second = attach(rows, 1, 2, replica=1, **options)
    assert values(first.next()) == values(second.next())
    subprocess.run([command(), "evict", "models", "1", "--replica", "1", "--socket",
                    broker.socket], check=True, capture_output=True)
    with pytest.raises(penstock.Aborted, match=r"rank 1 \(replica 1\).*evicted by user"):
        second.next()
    second = attach(rows, 1, 2, replica=1, **options)
    assert values(first.next()) == values(second.next())


def test_hosts_make_batches_for_their_own_members(attach, rows):
    """Two jobs stand for two hosts: each has one replica of both ranks."""
    with ThreadPoolExecutor(4) as pool:
        readers = list(pool.map(
            lambda at: attach(rows, at % 2, 2, replica=at // 2, replicas=2,
                              local_world_size=2, local_replicas=1, job=f"host{at // 2}"),
            range(4)))
    steps = [list(map(values, step)) for step in zip(*readers)]
    assert len(steps) == STEPS
    assert all((one, two) == (as_one, as_two) for one, two, as_one, as_two in steps)


def test_a_host_has_the_members_that_it_said(attach, rows):
    here = dict(world_size=4, replicas=2, local_world_size=2, local_replicas=1)
    attach(rows, 0, replica=0, **here)
    with pytest.raises(penstock.ResourceExhausted, match=(
            r"rank 0 \(replica 1\) is one too many for this host, which has 1 replicas "
            r"\(`local_replicas`\) of 2 ranks")):
        attach(rows, 0, replica=1, **here)
    attach(rows, 3, replica=1, **here)
    with pytest.raises(penstock.ResourceExhausted, match="all 2 local ranks are attached"):
        attach(rows, 2, replica=0, **here)


def test_a_state_begins_with_another_layout(attach, attach_groups, rows):
    alone = [values(batch) for batch in attach(rows, 0, 1, job="alone")]
    groups = attach_groups(rows, 2, 2, job="before")
    for _ in range(2):
        for group in groups:
            for reader in group:
                reader.next().release()
    states = [json.dumps(reader.state_dict()) for group in groups for reader in group]
    assert len(set(states)) == 1
    readers, = attach_groups(rows, 1, 4, state=states[0], job="after")
    steps = [[values(batch) for batch in step] for step in zip(*readers)]
    assert [step[0] for step in steps] == alone[2:]
    assert all(each == step[0] for step in steps for each in step)


def test_resume_with_reset(attach_groups, rows):
    readers, = attach_groups(rows, 1, 2)
    first = [values(reader.next()) for reader in readers]
    assert first[0] == first[1]
    state = readers[0].state_dict()
    following = [values(reader.next()) for reader in readers]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda reader: reader.load_state_dict(state), readers))
    assert [values(reader.next()) for reader in readers] == following


PROCESS = """
import json, sys, time
import penstock
rank, ranks, replica, replicas, job, log, death, delivery = sys.argv[1:]
dataset = penstock.Dataset.range(240).shuffle(seed=5).batch(8)
with open(log, "a") as out, penstock.attach(
        dataset, int(rank), int(ranks), replica=int(replica), replicas=int(replicas),
        job=job, timeout_s=60, on_rank_death=death, delivery=delivery) as reader:
    for batch in reader:
        print(json.dumps([batch.step, batch.redelivered, batch["value"].tolist()]),
              file=out, flush=True)
        time.sleep(0.02)
"""


class Processes:
    def __init__(self, folder, ranks, replicas, job, death, delivery="split"):
        self.arguments = ranks, replicas, job, death, delivery
        self.folder = folder
        self.running = {(rank, replica): self.start(rank, replica)
                        for rank in range(ranks) for replica in range(replicas)}

    def start(self, rank, replica):
        ranks, replicas, job, death, delivery = self.arguments
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS, *map(str, (rank, ranks, replica, replicas, job,
                                                       self.log(rank, replica), death,
                                                       delivery))],
            stderr=subprocess.PIPE, text=True)

    def log(self, rank, replica):
        return self.folder / f"{rank}.{replica}"

    def lines(self, rank, replica):
        path = self.log(rank, replica)
        return [json.loads(line) for line in path.read_text().splitlines()
                ] if path.exists() else []

    def wait_for(self, rank, replica, steps):
        until = time.monotonic() + 60
        while len(self.lines(rank, replica)) < steps:
            assert time.monotonic() < until
            time.sleep(0.01)

    def end(self):
        errors = {at: process.communicate(timeout=90)[1]
                  for at, process in self.running.items()}
        return {at: error for at, error in errors.items() if self.running[at].returncode}


@pytest.mark.parametrize("delivery, death", [("split", "wait"), ("independent", "shrink")])
def test_a_member_that_is_killed_is_replaced(in_broker, tmp_path, delivery, death):
    processes = Processes(tmp_path, 2, 2, "replaced-" + delivery, death, delivery)
    processes.wait_for(1, 0, 5)
    processes.running[1, 0].send_signal(signal.SIGKILL)
    processes.running[1, 0].communicate()
    processes.running[1, 0] = processes.start(1, 0)
    assert processes.end() == {}
    seen = {}
    for at in processes.running:
        steps = {}
        for step, redelivered, rows in processes.lines(*at):
            assert step not in steps or redelivered and steps[step] == rows
            steps[step] = rows
        assert sorted(steps) == list(range(30))
        seen[at] = steps
    assert seen[0, 0] == seen[0, 1] and seen[1, 0] == seen[1, 1]
    had = sorted(row for at in ((0, 0), (1, 0)) for rows in seen[at].values() for row in rows)
    each = 1 if delivery == "split" else 2
    assert had == [row for row in range(240) for _ in range(each)]


STUCK = """
import sys
import penstock
with penstock.attach(sys.argv[2], 0, 2, replica=1, replicas=2, local_world_size=2,
                     job=sys.argv[1], timeout_s=60) as reader:
    for _ in range(5):
        held = reader.next()
    print("holds", flush=True)
    sys.stdin.readline()
    try:
        reader.next()
    except penstock.Aborted as error:
        print(error, flush=True)
"""


def test_evicted_members_that_live_are_named(broker, attach, tmp_path):
    """Each keeps a slot of its rank from the others until it ends."""
    job, spec = "frozen", tmp_path / "spec.yaml"
    spec.write_text("dataset: frozen\nsource: {range: 4000}\nbatch: {size: 8}\nepochs: 1\n"
                    "prefetch: 1\nhold: 2\n")

    def drain(replica):
        return sum(1 for _ in attach(str(spec), 0, 2, replica=replica, replicas=2,
                                     local_world_size=2, job=job))

    with ThreadPoolExecutor(4) as pool:
        drains = [pool.submit(drain, 0)]
        others = [pool.submit(attach, str(spec), 1, 2, replica=replica, replicas=2,
                              local_world_size=2, job=job) for replica in range(2)]
        frozen = []
        for _ in range(3):
            frozen.append(subprocess.Popen([sys.executable, "-c", STUCK, job, spec], text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert frozen[-1].stdout.readline() == "holds\n"
            subprocess.run([command(), "evict", job, "0", "--replica", "1"], check=True,
                           capture_output=True)
        drains.append(pool.submit(drain, 1))
        until = time.monotonic() + 60
        while (found := status(broker, job)["bottleneck"])["what"] != "evicted":
            assert time.monotonic() < until, found
            time.sleep(0.1)
        assert sorted(found["pids"]) == sorted(each.pid for each in frozen)
        assert found["text"].startswith("slots are held by 3 evicted processes (pid ")
        assert "end them, by kill -9 where frozen" in found["text"]
        # What it is told names its replica.
        told, _ = frozen[0].communicate("\n", timeout=60)
        assert f"detached rank 0 (replica 1) of job '{job}': evicted by user" in told
        for each in frozen[1:]:
            each.kill()
            each.communicate()
        assert drains[0].result() == 500 and drains[1].result() > 0
        for each in others:
            each.result().close()


def test_a_rank_goes_with_one_of_its_members(in_broker, tmp_path, request):
    processes = Processes(tmp_path, 3, 2, request.node.name, "shrink")
    processes.wait_for(2, 1, 5)
    processes.running[2, 1].send_signal(signal.SIGKILL)
    failed = processes.end()
    assert sorted(failed) == [(2, 0), (2, 1)]
    assert ("rank 2 (replica 1) died, and the others go on without rank 2 (on_rank_death: "
            "shrink)") in failed[2, 0]
    had = [row for replica in range(2) for _, _, rows in processes.lines(0, replica)
           for row in rows]
    assert len(had) % 2 == 0 and sorted(had)[::2] == sorted(had)[1::2]
    assert processes.lines(0, 0) == processes.lines(0, 1)
    # Its batches that not both had released went to the others, marked.
    seen = {}
    for rank in (2, 0, 1):
        for _, redelivered, rows in processes.lines(rank, 0):
            for row in rows:
                assert row not in seen or redelivered
                seen[row] = rank
    assert sorted(seen) == list(range(240))


def test_a_member_is_evicted_by_its_number(broker, attach_groups, attach, rows):
    readers, = attach_groups(rows, 1, 2, job="evicted")
    def evict(*words):
        return subprocess.run([command(), "evict", "evicted", *words, "--socket",
                               broker.socket], capture_output=True, text=True)
    assert "say which `replica`" in evict("0").stderr
    assert "no attached rank 0 (replica 2)" in evict("0", "--replica", "2").stderr
    assert evict("0", "--replica", "1").returncode == 0
    with pytest.raises(penstock.Aborted, match="evicted by user"):
        readers[1].next()
    replacement = attach(rows, 0, 1, replica=1, replicas=2, job="evicted")
    assert values(readers[0].next()) == values(replacement.next())


def test_features_leaves_the_others_out(attach, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    data = penstock.Dataset.csv(tmp_path / "rows.csv", {
        "a": {"dtype": "int64"}, "b": {"dtype": "float32"}}).batch(2)
    reader = attach(data, features=["b"])
    assert list(reader.element_spec) == ["b"]
    batch = reader.next()
    assert list(batch) == ["b"] and values_of(batch) == {"b": [2.0, 4.0]}
    with pytest.raises(KeyError, match="no feature 'a'; there are: b"):
        batch["a"]
    with pytest.raises(KeyError, match="no feature 'c'; there are: a, b"):
        attach(data, job="other", features=["c"])


def values_of(batch):
    return {name: array.tolist() for name, array in batch.items()}


# ---- layouts


class Mesh:
    def __init__(self, names, sizes):
        self.mesh_dim_names = names
        self.mesh = np.arange(int(np.prod(sizes))).reshape(sizes)


@pytest.fixture
def launched(monkeypatch):
    def launch(processes, this, local=None):
        monkeypatch.setenv("RANK", str(this))
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local or processes))
        monkeypatch.setenv("LOCAL_RANK", str(this % (local or processes)))
    return launch


@pytest.mark.parametrize("names, sizes, this, local, found", [
    (("dp", "tp"), (2, 4), 6, 8, (1, 2, 2, 4, 2, 4)),
    (("pp", "dp", "tp"), (2, 2, 2), 5, 8, (0, 2, 3, 4, 2, 4)),
    (("dp_replicate", "dp_shard", "tp"), (2, 2, 2), 7, 8, (3, 4, 1, 2, 4, 2)),
    (("tp", "pp"), (4, 2), 3, 8, (0, 1, 3, 8, 1, 8)),
    # Two hosts: a stage of the pipeline on each, and groups that span them.
    (("pp", "dp", "tp"), (2, 2, 2), 6, 4, (1, 2, 2, 4, 2, 2)),
    (("dp", "tp"), (1, 8), 5, 4, (0, 1, 5, 8, 1, 4)),
])
def test_a_mesh_says_where_a_process_is(launched, names, sizes, this, local, found):
    launched(8, this, local)
    layout = parallel.of_mesh(Mesh(names, sizes))
    assert tuple(layout.options().values()) == found
    assert parallel.of_sizes(**dict(zip(names, sizes))) == layout


def test_a_mesh_that_does_not_divide_the_world_is_refused(launched):
    launched(8, 0)
    with pytest.raises(ValueError, match="dp 3 × tp 2 has 6 of 8 processes$"):
        parallel.of_mesh(Mesh(("dp", "tp"), (3, 2)))
    with pytest.raises(ValueError, match="has 4 of 8 processes: give the whole mesh"):
        parallel.of_mesh(Mesh(("dp", "tp"), (2, 2)))
    with pytest.raises(ValueError, match="no dimension 'ddp'; it has dp, tp"):
        parallel.of_mesh(Mesh(("dp", "tp"), (2, 4)), data=["ddp"])
    with pytest.raises(ValueError, match="have no names"):
        parallel.of_mesh(Mesh(None, (2, 4)))
    with pytest.raises(ValueError, match="tp is 0; wanted 1 or more"):
        parallel.of_sizes(dp=8, tp=0)
    with pytest.raises(TypeError, match="float"):
        parallel.of_sizes(dp=2.0, tp=4)
    launched(6, 0, 3)
    with pytest.raises(ValueError, match="of the 3 processes of this host, some ranks"):
        parallel.of_sizes(dp=3, tp=2)


def test_data_names_are_given(launched):
    launched(8, 5)
    assert parallel.of_mesh(Mesh(("rows", "model"), (2, 4)), data=["rows"]).rank == 1
    assert parallel.of_sizes(("rows",), rows=2, model=4).replica == 1
    assert parallel.of_mesh(Mesh(("rows", "columns"), (2, 4)), data=[]).replicas == 8
    with pytest.raises(ValueError, match="no dimension 'rows'; it has row, tp"):
        parallel.of_sizes(data=["rows"], row=2, tp=4)
    for of in (lambda data: parallel.of_sizes(data=data, dp=2, tp=4),
               lambda data: parallel.of_mesh(Mesh(("dp", "tp"), (2, 4)), data=data)):
        with pytest.raises(TypeError, match="wanted names, .'dp_outer'., got a text"):
            of("dp_outer")


@pytest.mark.parametrize("names", [
    ("replicate", "shard"), ("data_parallel", "tensor_parallel"), ("ddp", "tp"),
    ("dp_rep", "tp"), ("hsdp", "cp"), ("fsdp", "tensor"), ("data", "model")])
def test_names_that_frameworks_use(launched, names):
    launched(8, 5)
    both = names == ("replicate", "shard")
    layout = parallel.of_mesh(Mesh(names, (2, 4)))
    assert (layout.rank, layout.replica) == ((5, 0) if both else (1, 1))
    if names[0] == "data":
        with pytest.raises(TypeError, match="got 2: where it is a size, call it `dp`"):
            parallel.of_sizes(data=2, model=4)
    else:
        assert parallel.of_sizes(**dict(zip(names, (2, 4)))) == layout


@pytest.mark.parametrize("names", [("rows", "columns"), ("dp", "columns"), ("columns", "tp")])
def test_a_dimension_that_may_be_data_parallel_is_asked_for(launched, names):
    launched(8, 5)
    text = f"has {', '.join(names)}; whether '{'rows' if 'rows' in names else 'columns'}' is"
    for of in (lambda: parallel.of_mesh(Mesh(names, (2, 4))),
               lambda: parallel.of_sizes(**dict(zip(names, (2, 4))))):
        with pytest.raises(ValueError, match=text + ".*data=.....*data=.. if all processes"):
            of()
    # A dimension of one process decides nothing.
    assert parallel.of_sizes(columns=1, dp=8).rank == 5


def test_the_module_needs_no_import_of_its_own():
    program = ("import penstock\n"
               "assert penstock.parallel.of_sizes(process=1, dp=2, tp=4).replica == 1\n"
               "assert penstock.packing.flatten and not hasattr(penstock, 'paralel')\n"
               "import sys; assert 'torch' not in sys.modules\n")
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- the processes of a host


def test_a_rank_of_more_replicas_than_a_host_has_processes(attach, rows):
    # A mesh of 16,384 processes, eight on a host.
    layout = parallel.of_sizes(process=9, here=range(8, 16), pp=16, dp=8, cp=16, tp=8)
    assert (layout.replicas, layout.local_replicas) == (2048, 8)
    reader = attach(rows, **layout.options())
    assert (reader.replica, reader.replicas, reader.world_size) == (9, 2048, 8)
    with pytest.raises(penstock.InvalidArgument, match="at most 1048576 processes are allowed"):
        attach(rows, 0, 1 << 20, job="all", replica=0, replicas=1 << 13, local_world_size=1,
               local_replicas=1)
    with pytest.raises(penstock.InvalidArgument, match="1024 on a host"):
        attach(rows, 0, 1024, job="host", replica=0, replicas=2)


@pytest.mark.parametrize("this, local_rank, local, found", [
    (0, 0, 2, (0, 5, 0, 1, 2, 1)), (2, 0, 3, (2, 5, 0, 1, 3, 1)), (4, 2, 3, (4, 5, 0, 1, 3, 1))])
def test_hosts_of_unequal_numbers_of_processes(launched, monkeypatch, this, local_rank, local,
                                               found):
    launched(5, this, local)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert tuple(parallel.of_sizes(dp=5).options().values()) == found


def test_a_rank_whose_replicas_begin_on_the_host_before(launched, monkeypatch):
    # Hosts of 3 and 5 processes: of rank 0 one replica is on the second.
    launched(8, 3, 5)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="of the 5 processes of this host, some ranks"):
        parallel.of_sizes(dp=2, tp=4)


@pytest.fixture
def dealt(monkeypatch):
    """By mpirun, to hosts in turn; version 4 says so."""
    def launch(processes, this, hosts, version=5):
        if version == 4:
            monkeypatch.setenv("OMPI_MCA_rmaps_base_mapping_policy", "node")
        for name, value in (("RANK", this), ("SIZE", processes), ("LOCAL_RANK", this // hosts),
                            ("LOCAL_SIZE", processes // hosts)):
            monkeypatch.setenv("OMPI_COMM_WORLD_" + name, str(value))
    return launch


def test_processes_that_are_dealt_to_hosts_in_turn(dealt, attach, rows):
    refused = []
    for this in range(4):
        dealt(4, this, 2)
        try:
            parallel.of_sizes(dp=2, tp=2)
        except ValueError as error:
            assert "whether these follow one another" in str(error)
            assert "of_data_rank" in str(error)
            refused.append(this)
    # Others may be told nothing: one error ends a launch.
    assert refused == [1, 2]
    layout = parallel.of_sizes(dp=2, tp=2, process=2, here=[0, 2])
    assert tuple(layout.options().values()) == (1, 2, 0, 2, 2, 1)
    dealt(4, 1, 2)
    with pytest.raises(penstock.InvalidArgument, match="process 1 is number 0 of these: give"):
        attach(rows, replicas=2)


@pytest.mark.parametrize("processes, hosts, sizes, found", [
    # Rank, ranks, replica, replicas, and of these here: ranks, replicas of each.
    (4, 2, dict(dp=2, tp=2), [(0, 2, 0, 2, 2, 1), (0, 2, 1, 2, 2, 1),
                              (1, 2, 0, 2, 2, 1), (1, 2, 1, 2, 2, 1)]),
    (4, 2, dict(dp=1, tp=4), [(0, 1, this, 4, 1, 2) for this in range(4)]),
    (8, 2, dict(dp=2, tp=4), [(this // 4, 2, this % 4, 4, 2, 2) for this in range(8)]),
    (6, 3, dict(dp=3, tp=2), [(this // 2, 3, this % 2, 2, 2, 1) for this in range(6)]),
])
def test_a_launcher_that_says_that_it_deals_in_turn(dealt, attach, rows, processes, hosts, sizes,
                                                    found):
    for this in range(processes):
        dealt(processes, this, hosts, version=4)
        assert tuple(parallel.of_sizes(**sizes).options().values()) == found[this]
    # A host's own are all that its broker waits for.
    readers = []
    for this in range(hosts - 1, processes, hosts):
        dealt(processes, this, hosts, version=4)
        readers.append(attach(rows, replicas=sizes["tp"]))
        assert (readers[-1].rank, readers[-1].replica) == (found[this][0], found[this][2])
    assert all(len(values(reader.next())) for reader in readers)
    # Ranks that have unlike numbers of replicas here.
    if processes == 6:
        dealt(6, 0, 2, version=4)
        with pytest.raises(penstock.InvalidArgument, match="3 of 6 .* give `local_world_size`"):
            attach(rows, replicas=3, job="uneven")


@pytest.mark.parametrize("options", ["--map-by node", "--rank-by node", "--bynode"])
def test_a_real_mpirun_says_that_it_deals_in_turn(tmp_path, options):
    """Two hosts by names of their own."""
    if not shutil.which("mpirun") or "4." not in subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True).stdout.split("\n")[0]:
        pytest.skip("no Open MPI 4")
    if os.geteuid() != 0:
        pytest.skip("a host's name takes root")
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nhost=$1; shift; exec unshare -u sh -c "hostname $host; $*"\n')
    agent.chmod(0o755)
    program = ("import os, penstock.parallel as p\n"
               "with open(os.environ['OMPI_COMM_WORLD_RANK'] + '.out', 'w') as out:\n"
               "  print(*p.of_sizes(dp=2, tp=2).options().values(), file=out)\n")
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", *options.split(), "-H", "localhost:2,other:2", "--mca",
         "plm_rsh_agent", str(agent), "--oversubscribe", "-np", "4", sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"{this}.out").read_text() for this in range(4)] == [
        "0 2 0 2 2 1\n", "0 2 1 2 2 1\n", "1 2 0 2 2 1\n", "1 2 1 2 2 1\n"]


def test_hosts_that_the_launcher_tells_wrong(launched, monkeypatch):
    launched(8, 5, 3)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(ValueError, match="process 5 of 8 is number 3 of 3 on this host"):
        parallel.of_sizes(dp=8)
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ValueError, match="process 5 of 8 is one of 3 on this host"):
        parallel.of_sizes(dp=8)
    launched(8, 5, 4)
    monkeypatch.delenv("LOCAL_RANK")
    assert parallel.of_sizes(dp=8).local_world_size == 4


def test_a_dry_run_needs_no_launcher(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    assert [parallel.of_sizes(process=this, pp=2, dp=2, tp=2).rank for this in range(8)] == [
        0, 0, 1, 1, 0, 0, 1, 1]
    hosts = parallel.of_sizes(process=5, here=range(4, 8), dp=2, tp=4)
    assert tuple(hosts.options().values()) == (1, 2, 1, 4, 1, 4)
    assert parallel.of_sizes(dp=1).world_size == 1
    with pytest.raises(ValueError, match="no launcher and no torch.*takes `process`"):
        parallel.of_sizes(dp=2, tp=4)
    with pytest.raises(ValueError, match="process 8 of 8: they count from 0 to 7"):
        parallel.of_sizes(process=8, dp=2, tp=4)
    with pytest.raises(ValueError, match="here: wanted numbers below 8, with 5"):
        parallel.of_sizes(process=5, here=range(4), dp=2, tp=4)


class Megatron:
    """megatron.core.parallel_state of tp 2, dp 2, pp 2."""

    def __init__(self, this, dp=None):
        self.tp, self.dp, self.pp = this % 2, this // 2 % 2 if dp is None else dp, this // 4

    def __getattr__(self, name):
        if name == "model_parallel_is_initialized":
            return lambda: True
        of = {"tensor_model": "tp", "data": "dp", "pipeline_model": "pp", "context": "cp"}
        which, what = name.removeprefix("get_").split("_parallel_")
        return lambda: (2 if of[which] != "cp" else 1) if what == "world_size" else getattr(
            self, of[which], 0)

    cp = 0


def test_megatrons_numbers(launched):
    for this in range(8):
        launched(8, this)
        layout = parallel.of_megatron(Megatron(this))
        assert (layout.rank, layout.replica) == (this // 2 % 2, this // 4 * 2 + this % 2)
    launched(8, 2)
    with pytest.raises(ValueError, match="data parallel rank 0, and rank 1 in the order"):
        parallel.of_megatron(Megatron(2, dp=0))
    with pytest.raises(ValueError, match="order: wanted tp, cp, dp and pp"):
        parallel.of_megatron(Megatron(2), order="tp-dp")
    state = Megatron(2)
    state.model_parallel_is_initialized = lambda: False
    with pytest.raises(ValueError, match="is not initialised"):
        parallel.of_megatron(state)


def test_torchtitans_dimensions(launched):
    class Dims:
        pp, dp_replicate, dp_shard, cp, tp = 1, 1, 2, 2, 2
    launched(8, 6)
    layout = parallel.of_torchtitan(Dims)
    assert (layout.rank, layout.world_size, layout.replica, layout.replicas) == (1, 2, 2, 4)


class Distributed:
    """torch.distributed of a process, where all have told (host, rank, world size)."""

    def __init__(self, told, this):
        self.told, self.get_rank = told, lambda: this
        self.is_available = self.is_initialized = lambda: True
        self.get_world_size = lambda: len(told)

    def all_gather_object(self, found, mine):
        assert mine[1:] == self.told[self.get_rank()][1:]
        # This process's own host is what it is called here.
        here = self.told[self.get_rank()][0]
        found[:] = [((mine[0] if host == here else host), *rest)
                    for host, *rest in self.told]


@pytest.fixture
def told(monkeypatch):
    def asks(this, *told):
        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(told, this))
        return parallel.of_data_rank(*told[this][1:])
    return asks


def test_processes_tell_each_other_their_data_ranks(told):
    # Two hosts, numbers in turn; of a pipeline's three stages the one between takes none.
    stages = [("a", 0, 2), ("a", 1, 2), ("a", None, 2), ("b", None, 2), ("b", 0, 2), ("b", 1, 2)]
    found = [told(this, *stages) for this in range(6)]
    assert [layout and tuple(layout.options().values()) for layout in found] == [
        (0, 2, 0, 2, 2, 1), (1, 2, 0, 2, 2, 1), None, None,
        (0, 2, 1, 2, 2, 1), (1, 2, 1, 2, 2, 1)]
    whole = [("a", 0, 1), ("a", 0, 1)]
    assert [tuple(told(this, *whole).options().values()) for this in range(2)] == [
        (0, 1, 0, 2, 1, 2), (0, 1, 1, 2, 1, 2)]


@pytest.mark.parametrize("processes, text", [
    ([("a", 0, 2), ("a", 1, 3)], "world_size: some processes say 2, others 3"),
    ([("a", 0, 0)], "world_size is 0; wanted 1 or more"),
    ([("a", 0, 2), ("a", 2, 2)], "process 1 says that its rank is 2: they count from 0 to 1"),
    ([("a", 0, 2), ("a", 0, 2), ("a", 1, 2)],
     "rank 1 has 1 processes that take batches, and rank 0 has 2"),
    ([("a", None, 1)], "rank 0 has 0 processes"),
    ([("a", 0, 2), ("a", 0, 2), ("a", 1, 2), ("b", 1, 2)], "of the 3 processes of this host"),
])
def test_data_ranks_that_disagree_are_refused(told, processes, text):
    with pytest.raises(ValueError, match=text):
        told(0, *processes)


MESHED = """
import json, sys
import penstock
from penstock import parallel
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
layout = parallel.of_mesh(mesh)
assert layout.rank == mesh.get_local_rank("dp") and layout.replica == mesh.get_local_rank("tp")
assert parallel.of_data_rank(layout.rank, 2) == layout
with penstock.attach(penstock.Dataset.range(16).batch(4), job="mesh", timeout_s=60,
                     **layout.options()) as reader:
    rows = [batch["value"].tolist() for batch in reader]
everybody = [None] * 4
distributed.all_gather_object(everybody, rows)
assert everybody[0] == everybody[1] and everybody[2] == everybody[3]
assert sorted(sum(everybody[0] + everybody[2], [])) == list(range(16))
import penstock.torch
loader = penstock.torch.DataLoader(penstock.Dataset.range(16).batch(4), job="loader",
                                   timeout_s=60, **layout.options())
rows = [batch["value"].tolist() for batch in loader]
assert rows == everybody[distributed.get_rank()], rows
objects = penstock.torch.DataLoader(list(range(16)), batch_size=2, **layout.options())
rows = [batch.tolist() for batch in objects]
assert len(objects) == 4
distributed.all_gather_object(everybody, rows)
assert everybody[0] == everybody[1] and everybody[2] == everybody[3]
assert sorted(sum(everybody[0] + everybody[2], [])) == list(range(16)), everybody
distributed.destroy_process_group()
"""


def test_torchs_mesh(in_broker, tmp_path):
    pytest.importorskip("torch")
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    started = [subprocess.Popen([sys.executable, "-c", MESHED], env={
        **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE,
        text=True) for rank in range(4)]
    errors = [each.communicate(timeout=150)[1] for each in started]
    assert [each.returncode for each in started] == [0] * 4, errors


def free_port():
    import socket
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_the_launchers_ranks_in_turn(attach, launched, rows):
    launched(8, 5, 4)
    reader = attach(rows, replicas=2, local_world_size=1, local_replicas=1)
    assert (reader.rank, reader.world_size, reader.replica) == (2, 4, 1)


def test_ranks_of_the_command(tmp_path, rows):
    (tmp_path / "train.yaml").write_text(rows.to_yaml())
    program = ("import penstock, json\n"
               "with penstock.attach() as r, open(f'{r.rank}.{r.replica}', 'x') as out:\n"
               "  json.dump([b['value'].tolist() for b in r], out)\n")
    done = subprocess.run(
        [command(), "run", "--dataset", "train.yaml", "--ranks", "4", "--replicas", "2",
         "--", sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("?.?")}
    assert sorted(found) == ["0.0", "0.1", "1.0", "1.1"]
    assert found["0.0"] == found["0.1"] and found["1.0"] == found["1.1"]
    assert sorted(sum(found["0.0"] + found["1.0"], [])) == list(range(ROWS))
    refused = subprocess.run([command(), "run", "--ranks", "3", "--replicas", "2", "--", "true"],
                             capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--ranks 3 is no multiple of --replicas 2" in refused.stderr


def test_other_jobs_of_a_trainer_of_replicas(attach, launched, rows, monkeypatch):
    launched(4, 3)
    monkeypatch.setenv("PENSTOCK_REPLICAS", "2")
    assert (lambda reader: (reader.rank, reader.replica))(attach(rows, job="train")) == (1, 1)
    for delivery in ("broadcast", "dynamic", "independent"):
        reader = attach(rows, job=delivery, delivery=delivery)
        assert (reader.replicas, reader.world_size) == (1, 4)
    context = []
    attach(lambda its: context.append(its) or rows, job="of", delivery="dynamic")
    assert context == [penstock.InputContext(4, 3, 4)]
    assert attach(rows, job="alone", replicas=1).rank == 3
    with penstock.replicas(rows, 2, job="devices") as devices:
        assert [(each.rank, each.world_size) for each in devices.readers] == [(6, 8), (7, 8)]


# ---- context parallel


def test_parts_of_a_sequence():
    tokens = np.arange(2 * 16).reshape(2, 16)
    parts = [parallel.slice_of(tokens, number, 4) for number in range(4)]
    assert np.concatenate(parts, 1).tolist() == tokens.tolist()
    assert all(np.shares_memory(part, tokens) for part in parts)
    first, second = parallel.slice_of(tokens, 1, 4, order="zigzag")
    assert (first[0].tolist(), second[0].tolist()) == ([2, 3], [12, 13])
    assert np.shares_memory(first, tokens) and np.shares_memory(second, tokens)
    joined = parallel.slice_of(tokens, 1, 4, order="zigzag", join=True)
    assert joined[1].tolist() == [18, 19, 28, 29]
    assert parallel.slice_of(tokens.T, 1, 4, dim=0)[:, 0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("arguments, text", [
    ((0, 3, {}), "a sequence of 16 is not divisible by 3: contiguous for 3"),
    ((0, 16, dict(order="zigzag")), "not divisible by 32"),
    ((4, 4, {}), "number 4 of 4 .* from 0 to 3"),
    ((0, 2, dict(order="ring")), "order: wanted 'contiguous' or 'zigzag', got 'ring'"),
])
def test_impossible_parts_are_refused(arguments, text):
    number, size, options = arguments
    with pytest.raises(ValueError, match=text):
        parallel.slice_of(np.zeros((2, 16)), number, size, **options)
