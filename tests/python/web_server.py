"""A web server with ranges and ETags, whose answers can be made wrong."""

import hashlib
import http.server
import socket
import threading
import time
from contextlib import contextmanager


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
            fault = store.fault(self.path, store.requests) if store.fault else None
        if isinstance(fault, float):
            time.sleep(fault)
            fault = None
        data = store.files.get(self.path.lstrip("/"))
        if data is None or isinstance(fault, int):
            self.send_response(404 if data is None else fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        etag = '"' + hashlib.md5(data).hexdigest() + '"'
        if fault == "etag":
            etag = '"other"'
        begin, end = 0, len(data)
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else end, end)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
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


class Store:
    """files: by name. fault(path, number): what is wrong with an answer: a status, seconds
    that it takes (a float), "half", "cut" or "etag"; None: nothing."""

    def __init__(self):
        self.files = {}
        self.fault = None
        self.lock = threading.Lock()
        self.requests = self.sent = 0
        self.ranges = []
        self.server = Server(("127.0.0.1", 0), Answer)
        self.server.store = self
        self.url = "http://127.0.0.1:{}".format(self.server.server_address[1])


@contextmanager
def web_server():
    store = Store()
    thread = threading.Thread(target=store.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.server.shutdown()
        store.server.server_close()
