"""Penstock: a broker and `penstock link serve` on each host that makes rows, a broker and
`penstock link use` on the training host. Rows that cost nothing are those of a plugin
(PLUGIN of makers.py); the training host's own sleeps, so that nearly all come from the others.

Settings: connections to a maker, 1 for what one carries, or 4, its default.
"""

import json
import pathlib
import subprocess
import sys

import common

TITLE = "Penstock"
VENV = None
DISTRIBUTIONS = ["penstock"]
NOTE = "a broker and a link on each host"
MAKES = ["constant", "sleep", "photographs"]


def settings(_):
    return [{"connections": 4}]


def load_libraries():
    import numpy  # noqa: F401  batches are its arrays
    import penstock
    return penstock


def security(config, name):
    if not config["tls"]:
        return ["--token-file", config["token"]]
    certificates = pathlib.Path(config["certificates"])
    return ["--cert", certificates / f"{name}.pem", "--key", certificates / f"{name}.key",
            "--ca", certificates / "ca.pem"]


def start(config, plugins, *link, **options):
    """(broker, link) of a host."""
    penstock = load_libraries()
    broker = penstock.broker(workers=config["processors"],
                             plugin_dir=pathlib.Path(config["plugins"], plugins))
    command = pathlib.Path(penstock.__file__).parent / "bin" / "penstock"
    return broker, subprocess.Popen(
        [command, "link", link[0], "--socket", broker.socket, *link[1:]], text=True, **options)


def serve(config, ready):
    _, link = start(config, "sleeps" if config["rows"] == "sleep" else "free", "serve",
                    "--listen", f"{config['address']}:0", *security(config, "maker"),
                    stderr=subprocess.PIPE)
    for line in link.stderr:
        print(line, end="", file=sys.stderr, flush=True)
        if "makes rows at" in line:
            ready(remote=line.split()[-1])


def spec(config):
    if config["rows"] == "photographs":
        source = {"image_folder": {"path": config["files"]}}
        steps = [{"decode_image": {"crop": {"random_resized": {
            "scale": list(common.SCALE), "ratio": list(common.RATIO)}},
            "size": [common.SIZE, common.SIZE]}}, {"flip": {"horizontal": 0.5}}]
    else:
        source = {"range": 1 << 20}
        steps = [{"plugin": {"library": "made_row.so", "function": "made_row", "features": {
            "image": {"dtype": "uint8", "shape": config["shape"]},
            "label": {"dtype": "int64", "shape": []}}}}]
    return {"dataset": "made", "source": source, "shuffle": {"seed": common.SEED},
            "map": steps, "batch": {"size": config["batch"]}, "epochs": "forever"}


def batches(config):
    penstock = load_libraries()
    remotes = [server["remote"] for server in config["servers"]]
    if remotes:
        broker, _ = start(config, "sleeps", "use", "--remote", ",".join(remotes),
                          "--connections", str(config["settings"]["connections"]),
                          *security(config, "trainer"))
    else:
        broker = penstock.broker(workers=config["processors"],
                                 plugin_dir=pathlib.Path(config["plugins"], "sleeps"))
    pathlib.Path(config["status"]).write_text(json.dumps(
        [str(pathlib.Path(penstock.__file__).parent / "bin" / "penstock"), "status", "--json",
         "--socket", broker.socket]))
    with penstock.attach(penstock.Dataset(spec(config)), job="made", socket=broker.socket,
                         timeout_s=120) as reader:
        for epoch in reader.epochs():
            for batch in epoch:
                yield batch["image"], batch["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
