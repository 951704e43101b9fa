"""A bare TCP connection, plain or with TLS: what a loader over the network cannot beat.
The maker sends rows from one buffer, the consumer receives into one; TLS is Python's
ssl, which calls OpenSSL once a record of 16 KiB.

Settings: none.
"""

import pathlib
import socket
import ssl
import sys

import common

TITLE = "bare socket"
VENV = None
DISTRIBUTIONS = []
NOTE = "one connection; receives into one buffer"
MAKES = ["constant"]


def settings(_):
    return [{}]


def context(config, side, name):
    made = ssl.SSLContext(side)
    certificates = pathlib.Path(config["certificates"])
    made.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    made.load_verify_locations(certificates / "ca.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def serve(config, ready):
    with socket.create_server((config["address"], 0)) as listener:
        ready(address=config["address"], port=listener.getsockname()[1])
        rows = b"\x5a" * (config["batch"] * config["row_bytes"])
        connection, _ = listener.accept()
        if config["tls"]:
            connection = context(config, ssl.PROTOCOL_TLS_SERVER, "maker").wrap_socket(
                connection, server_side=True)
        while True:
            connection.sendall(rows)


def load_libraries():
    import numpy
    return numpy


def batches(config):
    numpy = load_libraries()
    server = config["servers"][0]
    connection = socket.create_connection((server["address"], server["port"]))
    if config["tls"]:
        connection = context(config, ssl.PROTOCOL_TLS_CLIENT, "trainer").wrap_socket(
            connection, server_hostname=server["address"])
    rows = numpy.empty((config["batch"], *config["shape"]), numpy.uint8)
    labels = numpy.zeros(config["batch"], numpy.int64)
    left = memoryview(rows.reshape(-1))
    while True:
        at = 0
        while at < len(left):
            at += connection.recv_into(left[at:])
        yield rows, labels


if __name__ == "__main__":
    common.main(sys.modules[__name__])
