"""A web server with ranges and ETags, whose answers can be made wrong."""

import collections
import functools
import hashlib
import http.server
import socket
import struct
import threading
import time
from contextlib import contextmanager


@functools.lru_cache(maxsize=256)
def etag_of(data):
    return '"' + hashlib.md5(data).hexdigest() + '"'


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        store = self.server.store
        with store.lock:
            store.requests += 1
            store.headers = self.headers
            fault = store.fault(self.path, store.requests) if store.fault else None
            if fault is not None:
                store.faults[kind_of(fault)] += 1
        if isinstance(fault, float):
            time.sleep(fault)
            fault = None
        self.close_connection |= fault == "closes"
        if fault in ("stall", "reset", "garbage"):
            self.close_connection = True
            if fault == "stall":
                store.ended.wait()
            elif fault == "garbage":
                self.wfile.write(b"\0garbage\r\n\r\n")
            else:  # closed with a reset, not an end
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                           struct.pack("ii", 1, 0))
                self.connection.close()
            return
        data = store.files.get(self.path.lstrip("/"))
        if data is None and fault is None:
            fault = 404
        if isinstance(fault, (int, tuple)):
            status, text = fault if isinstance(fault, tuple) else (fault, "")
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode() if body else b"")
            return
        etag = etag_of(data)
        if fault == "etag":
            etag = '"other"'
        begin, end = 0, len(data)
        if (wanted := self.headers.get("Range")) and not store.ranges_off:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else end, end)
            if fault == "short":
                end -= (end - begin) // 2
            moved = fault == "range"
            self.send_response(206)
            self.send_header("Content-Range",
                             f"bytes {begin + moved}-{end - 1 + moved}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", "Mon, 02 Nov 2026 10:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if not body:
            return
        part = data[begin:end]
        if fault == "half":
            self.wfile.write(part[:len(part) // 2])
            self.close_connection = True
            return
        if fault == "cut":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        with store.lock:
            store.sent += len(part)
            store.ranges.append((self.path, begin, end))
        self.wfile.write(part)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass


def kind_of(fault):
    return "delay" if isinstance(fault, float) else \
        fault[0] if isinstance(fault, tuple) else fault


class Store:
    """files: by name. fault(path, number): what is wrong with an answer: a status, or one
    and its text, seconds that it takes (a float), "half", "cut", "short", "range", "etag",
    "garbage", "reset" or "stall", or "closes": the connection is closed behind it, which it does
    not say; None: nothing. headers: of its request. faults: how many were made, by kind."""

    def __init__(self, port, files):
        self.files = dict(files)
        self.fault = None
        self.ranges_off = False
        self.lock = threading.Lock()
        self.faults = collections.Counter()
        self.ended = threading.Event()
        self.requests = self.sent = 0
        self.ranges = []
        self.server = Server(("127.0.0.1", port), Answer)
        self.server.store = self
        self.url = "http://127.0.0.1:{}".format(self.server.server_address[1])


@contextmanager
def web_server(port=0, files=()):
    store = Store(port, files)
    thread = threading.Thread(target=store.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.ended.set()
        store.server.shutdown()
        store.server.server_close()
