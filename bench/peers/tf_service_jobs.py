"""tf.data service with jobs beside each other: a dispatcher and one worker make the
pipelines of tf_kept.py, one of each consumer, which keeps its part of the room.

Settings: as of tf_data_service.py, each with flip and normalize row by row, or by
batches and compiled by XLA.
"""

import sys

import common
import tf_data_service
import tf_kept
from data import DATA
from tf_data_service import DISTRIBUTIONS, VENV, load_libraries, serve  # noqa: F401

TITLE = "tf.data service, a job each"
WORKLOADS = ["shared"]
SHARES = False
NOTE = "no cache is of two jobs: each keeps a quarter of the decoded rows"


def settings(consumers):
    return [{**threads, "xla": xla} for threads in tf_data_service.settings(consumers)
            for xla in (False, True)]


def batches(config):
    rows = DATA[config["data"]].kept(config) // config["consumers"]
    data = tf_kept.made({**config, "kept": rows})
    return tf_data_service.distributed(data, config, False, f"job {config['rank']}")


if __name__ == "__main__":
    common.main(sys.modules[__name__])
