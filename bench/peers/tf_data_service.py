"""tf.data service: a dispatcher and one worker decode for all consumers of the
host, who get batches over gRPC. The pipeline is tf_data.py's.

Divided: one job of that name for all, first come, first served (one worker
needs no sharding). Shared: its cross-trainer cache, which gives every trainer
that requests it in time the batch that was decoded once (a late one misses it).
Settings: AUTOTUNE, or 1 or 2 threads in the worker; no compression, as
documented for one host.
"""

import signal
import sys

import common
import tf_data
from tf_data import DISTRIBUTIONS, VENV, WORKLOADS, load_libraries

TITLE = "tf.data service"
SHARES = True
NOTE = ("one worker, gRPC on the same host, without compression; shared: a "
        "consumer that is late misses batches")


def settings(consumers):
    return [{"threads": "AUTOTUNE"}, {"threads": 1}, {"threads": 2}]


def serve(config, ready):
    tf = load_libraries()
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    # Kept: a server ends with its object.
    worker = service.WorkerServer(service.WorkerConfig(
        dispatcher_address=dispatcher.target.split("://")[1]))
    ready(target=dispatcher.target)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # join() hears of no other
    dispatcher.join()
    del worker


def distributed(data, config, shared, job="photographs"):
    """Batches of a dataset that the service makes; shared: once for all consumers."""
    service = load_libraries().data.experimental.service
    cache = service.CrossTrainerCache(
        trainer_id=f"trainer {config['rank']}") if shared else None
    data = data.apply(service.distribute(
        processing_mode=service.ShardingPolicy.OFF,
        service=config["server"]["target"], job_name=job,
        compression=None, cross_trainer_cache=cache))
    for images, labels in data.prefetch(1):
        yield images.numpy(), labels.numpy()


def batches(config):
    tf = load_libraries()
    data = tf_data.photographs(config, 0, 1)
    data = data.map(tf_data.transform(config),
                    num_parallel_calls=tf_data.calls(config))
    data = data.batch(config["batch"], drop_remainder=True)
    data = data.prefetch(tf.data.AUTOTUNE)
    # Options are part of what the worker runs.
    data = data.with_options(tf_data.options(config))
    return distributed(data, config, config["workload"] == "shared")


if __name__ == "__main__":
    common.main(sys.modules[__name__])
