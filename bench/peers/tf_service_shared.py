"""tf.data service with one job for all consumers, which get the same batches, each made once
(cross-trainer cache): the pipeline of tf_kept.py, which keeps half of the decoded rows.

Settings as of tf_service_jobs.py.
"""

import sys

import common
import tf_data_service
import tf_kept
from data import DATA
from tf_service_jobs import (  # noqa: F401
    DISTRIBUTIONS, VENV, WORKLOADS, load_libraries, serve, settings)

TITLE = "tf.data service, shared"
SHARES = True
NOTE = "cross-trainer cache: consumers have the same batches, a late one misses some"


def batches(config):
    data = tf_kept.made({**config, "kept": DATA[config["data"]].kept(config), "rank": 0})
    return tf_data_service.distributed(data, config, True)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
