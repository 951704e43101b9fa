"""tf.data service: a dispatcher and a worker on the host that makes rows, a consumer on the
training host, gRPC without compression (which rows of pixels do not repay). Rows that cost
nothing are one batch that its worker sends again and again. Photographs are tf_data.py's.

Settings: AUTOTUNE.
"""

import signal
import sys

import common
import tf_data
from tf_data import DISTRIBUTIONS, VENV, load_libraries

TITLE = "tf.data service"
NOTE = "a dispatcher and a worker, gRPC without compression"
MAKES = ["constant", "photographs"]


def settings(_):
    return [{"threads": "AUTOTUNE"}]


def serve(config, ready):
    service = load_libraries().data.experimental.service
    dispatcher = service.DispatchServer()
    target = f"{config['address']}:{dispatcher.target.rpartition(':')[2]}"
    # Kept: a server ends with its object.
    worker = service.WorkerServer(service.WorkerConfig(
        dispatcher_address=target, worker_address=f"{config['address']}:%port%"))
    ready(target=f"grpc://{target}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # join() hears of no other
    dispatcher.join()
    del worker


def batches(config):
    tf = load_libraries()
    service = tf.data.experimental.service
    if config["rows"] == "constant":
        data = tf.data.Dataset.from_tensors(
            (tf.fill([config["batch"], *config["shape"]], tf.constant(0x5a, tf.uint8)),
             tf.zeros([config["batch"]], tf.int64))).repeat()
    else:
        data = tf_data.photographs(config, 0, 1)
        data = data.map(tf_data.transform(config), num_parallel_calls=tf_data.calls(config))
        data = data.batch(config["batch"], drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        data = data.with_options(tf_data.options(config))
    data = data.apply(service.distribute(
        processing_mode=service.ShardingPolicy.OFF, service=config["servers"][0]["target"],
        job_name="made", compression=None))
    for images, labels in data.prefetch(1):
        yield images.numpy(), labels.numpy()


if __name__ == "__main__":
    common.main(sys.modules[__name__])
