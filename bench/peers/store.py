"""The object store of bench/remote.py: the files of a folder, by HTTP and by as much of
S3 as its clients ask for (GET and HEAD of an object, ListObjectsV2).

  store.py ADDRESS PORT FOLDER DELAY_S COUNTERS

An address is /BUCKET/KEY. Each answer begins DELAY_S late. COUNTERS is a file of two
numbers of 8 bytes, kept up to date: bytes of objects sent, and requests. A port of 0 is
any; the port is printed when it listens.
"""

import http.server
import mmap
import os
import pathlib
import struct
import sys
import threading
import time
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape


class Counters:
    """Shared with the driver, who reads them while they change."""

    def __init__(self, path, create=False):
        if create:
            pathlib.Path(path).write_bytes(bytes(16))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 16)
        self.lock = threading.Lock()

    def read(self):
        """(bytes sent, requests)"""
        return struct.unpack_from("<QQ", self.map)

    def add(self, sent, requests):
        with self.lock:
            before = self.read()
            struct.pack_into("<QQ", self.map, 0, before[0] + sent, before[1] + requests)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        time.sleep(self.server.delay_s)
        self.server.counters.add(0, 1)
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        path = pathlib.PurePosixPath(urllib.parse.unquote(url.path))
        if "list-type" in query:
            self.small(200, self.listing(path.parts[1], query.get("prefix", [""])[0]))
            return
        try:
            if ".." in path.parts:
                raise FileNotFoundError
            file = open(f"{self.server.folder}{path}", "rb")
        except OSError:
            self.small(404, "<Error><Code>NoSuchKey</Code></Error>", body)
            return
        with file:
            self.send_object(file, body)

    def send_object(self, file, body):
        about = os.fstat(file.fileno())
        begin, end = 0, about.st_size
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            if first:
                begin, end = int(first), min(int(last) + 1 if last else end, end)
            else:  # so many of the last bytes
                begin = max(0, end - int(last))
            if begin >= end:
                self.small(416, "<Error><Code>InvalidRange</Code></Error>", body)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{about.st_size}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{about.st_mtime_ns:x}-{about.st_size:x}"')
        self.send_header("Last-Modified", formatdate(about.st_mtime, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        while body and begin < end:
            sent = os.sendfile(self.connection.fileno(), file.fileno(), begin,
                               min(end - begin, 1 << 18))
            if sent == 0:
                self.close_connection = True
                return
            self.server.counters.add(sent, 0)
            begin += sent

    def small(self, status, text, body=True):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def listing(self, bucket, prefix):
        folder = pathlib.Path(self.server.folder, bucket)
        found = []
        for path in sorted(folder.rglob("*")):
            key = path.relative_to(folder).as_posix()
            if path.is_file() and key.startswith(prefix):
                about = path.stat()
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{about.st_size}</Size>"
                    f'<ETag>"{about.st_mtime_ns:x}-{about.st_size:x}"</ETag>'
                    f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(about.st_mtime))}"
                    "</LastModified><StorageClass>STANDARD</StorageClass></Contents>")
        return ('<?xml version="1.0" encoding="UTF-8"?>'
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
                f"<KeyCount>{len(found)}</KeyCount><MaxKeys>{len(found)}</MaxKeys>"
                f"<IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        pass  # a client that has enough hangs up


def main():
    address, port, folder, delay_s, counters = sys.argv[1:]
    server = Server((address, int(port)), Answer)
    server.folder, server.delay_s = folder, float(delay_s)
    server.counters = Counters(counters)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
