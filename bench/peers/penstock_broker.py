"""Penstock: `penstock run` with a private broker, and bench/consumer.cc as
ranks.

Settings: 1 or 2 worker threads of the broker. Divided is its default delivery,
split; shared is broadcast, where a consumer that is behind makes the others
wait.
"""

import hashlib
import json
import pathlib
import subprocess

import common
import data

TITLE = "Penstock"
VENV = None
DISTRIBUTIONS = []
WORKLOADS = ["divided", "shared"]
SHARES = True
NOTE = "consumers are C++: no interpreter in its memory"

SPEC = """\
dataset: data
source:
  {source}
{shuffle}
{steps}batch: {{{size}: {batch}{keys}}}
epochs: forever
"""
DELIVERY = {"divided": "split", "shared": "broadcast"}


def settings(consumers):
    return [{"workers": n} for n in (1, 2)]


def versions(build):
    version = subprocess.run([build / "client" / "command" / "penstock",
                           "--version"], capture_output=True, text=True,
                          check=True).stdout
    # One code has one: cells of a comparison can be of different days.
    programs = hashlib.sha256()
    for program in ("broker/penstockd", "bench/consumer"):
        programs.update((build / program).read_bytes())
    return {"penstock": version.split()[-1], "build": programs.hexdigest()[:12]}


def command(config, delivery=None):
    delivery = delivery or DELIVERY[config["workload"]]
    build = pathlib.Path(config["build"])
    spec = pathlib.Path(config["folder"]) / "penstock.yaml"
    # In a broadcast the global batch is what each consumer gets.
    size = "size" if config["workload"] == "shared" else "per_rank"
    what = data.DATA[config["data"]]
    spec.write_text(SPEC.format(
        source=what.source(config), shuffle=what.shuffle(config),
        steps=what.steps(config), size=size, batch=config["batch"],
        keys=what.batch_keys()))
    begin = []
    if config["from"] > 0:
        consumers = config["consumers"] if size == "per_rank" else 1
        records = what.records(config)
        shuffled = what.shuffle(config) != ""
        state = {"penstock_state": 1, "dataset": "data", "epoch": 0,
                 "delivery": delivery,
                 "seed": common.SEED if shuffled else 0,
                 "shuffle": ({"seed": common.SEED, "each_epoch": True}
                             if shuffled else None),
                 "records": records, "owed": [],
                 "row": consumers * common.passed(records, {**config, "rank": 0})}
        path = spec.with_name("state.json")
        path.write_text(json.dumps(state))
        begin = ["--state", path]
    # Caches of this comparison, not of others before.
    return ["env", f"PENSTOCK_CACHE_DIR={config['folder']}/cache",
            f"PENSTOCK_SNAPSHOT_PATH={config['folder']}",
            *([f"PENSTOCK_PYTHON={config['venvs']}/{what.VENV}/bin/python"]
              if what.VENV else []),
            build / "client" / "command" / "penstock", "run",
            "--dataset", spec, *begin, "--ranks", config["consumers"], "--workers",
            config["settings"]["workers"], "--",
            build / "bench" / "consumer", config["socket"],
            delivery, *([] if config["touch"] else ["no-touch"])]
