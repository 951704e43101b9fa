"""Fetches ranges of objects of stores into local copies: the one process that uses a
network. It never sees a row. A private broker starts it; others of its user and
environment connect to it. A service has a unit for it (penstock-fetch.service).

A copy is a sparse file of the object's size, in the folder of copies, with a checksum of
each block that is there. A block is *kept*, or it *passes*: then it is removed when the
broker no longer holds it. Blocks are kept while there is room. In each pass over the data
every block is needed once, so whatever is kept, just as many are missing: to replace kept
blocks by others gains nothing (the optimum of Belady's rule for passes in random orders).

Packets of a link, asked and answered: JSON of a call, or little-endian uint64 in
fours: kind, copy, offset, bytes. The first is {"first": N}: the number of the first copy.
Calls:

  {"call": N, "list": pattern}   {"call": N, "urls": [...], "more": bool}
  {"call": N, "open": url, "room": bytes or null}
                                 {"call": N, "copy": K, "bytes", "version", "unit",
                                 "ahead", "path"}, and the copy's descriptor
  {"call": N, "folder": url, "room": bytes or null}
                                 {"call": N, "names": [...], "sizes": [...], "more": true},
                                 then as for open
  {"call": N, "version": url}    {"call": N, "version": text}
  {"call": N, "put": url, "from": path}   {"call": N}
  any                            {"call": N, "error": [code, text]}
  twice a second, if it changed  {"use": {...}}: `stores` of a status
  a range that cannot be had     {"copy": K, "offset", "bytes", "error": [code, text]}
"""

import argparse
import array
import asyncio
import bisect
import configparser
import ctypes
import fcntl
import fnmatch
import hashlib
import itertools
import mmap
import random
import re
import zlib
from collections import deque

# Codes of a status (common/status.h).
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 5, 7, 8
FAILED_PRECONDITION, UNAVAILABLE, DATA_LOSS = 9, 14, 15

WANT, HURRY, GIVE_UP, CLOSE, PROMOTE = 1, 2, 3, 4, 5  # asked
KEPT, PASSES = 1, 2  # answered
BLOCK = 4096
# What is fetched at once, if the room takes all of it: a record is part of it as a rule.
UNIT = 512 << 10
REQUEST_BYTES_MAX = 8 << 20
# The part of the room that is for what passes; and the most, of a job and of all.
PASSING_SHARE, AHEAD_MAX, PASSING_MAX = 8, 1 << 30, 2 << 30
# A request of this size has its rate limited by the link rather than by its latency.
REQUESTS_FIRST, REQUESTS_MAX = 16, 256
TUNE_S = 0.5
GAIN = 1.05
REQUEST_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 10
# From the first request of a range to its error, retries included.
RANGE_TIMEOUT_S = 120
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10
# A request that takes this many times the median is sent once more.
HEDGE_TIMES, HEDGE_MIN_S, HEDGE_FIRST_S = 4, 0.5, 3
HEDGED_MAX = 0.05  # of the requests
LISTED_MAX = 10_000_000
URLS_MAX = 1 << 18
PACKET = 1 << 15
# What was listed is known as long for opening.
LISTED_S = 60
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
INSTALL = ("object stores are read with obstore, which {} cannot import ({}): pip install "
           "obstore into the Python that the {} runs")
GLOB = re.compile(r"[*?\[]")
# What decides which stores an address means, and as whom.
ENVIRONMENT = re.compile(r"AWS_|AZURE_|GOOGLE_|GCP_|GCS_|HF_|HUGGING|FSSPEC_|SSL_|\w*_PROXY$|HOME$",
                         re.IGNORECASE)
CONNECT_TRIES, CONNECT_WAIT_S = 40, 0.05


class Failed(Exception):
    """code: of a status."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def without_secrets(text):
    """The query of a signed address is a credential."""
    return re.sub(r"(https?://[^\s\"'?]*)\?[^\s\"')]*", r"\1?...", " ".join(text.split()))


def failed(url, error):
    """The status of a store's error; None: it is worth another try."""
    if isinstance(error, Failed):
        return error
    name, text = type(error).__name__, without_secrets(str(error))
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        what = "there is no such bucket" if "NoSuchBucket" in text else "there is no such object"
        return Failed(NOT_FOUND, f"{url}: {what}")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(
            error, PermissionError):
        return Failed(PERMISSION_DENIED,
                      f"{url}: the store refuses ({text[:300]}): the credentials of the broker's "
                      "environment do not read it, or they have expired")
    if name == "PreconditionError":
        return Failed(DATA_LOSS, f"{url}: the object has changed since it was opened")
    return None


def is_throttled(error):
    return re.search(r"\b(429|503)\b|SlowDown|Too Many Requests", str(error)) is not None


# ---- stores


class ObjectStore:
    """obstore's."""

    def __init__(self, root, keys):
        import obstore.store
        self.obstore = obstore
        given = {"config": keys}
        if root.startswith("s3") and not keys and "AWS_ACCESS_KEY_ID" not in os.environ and \
                "AWS_SKIP_SIGNATURE" not in os.environ:
            given = self.profile()
        self.lists = not root.startswith("http")
        self.store = obstore.store.from_url(
            root, retry_config={"max_retries": 0}, client_options={
                "timeout": f"{REQUEST_TIMEOUT_S}s", "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                "allow_http": True}, **given)

    @staticmethod
    def profile():
        """What boto3 finds (profiles, SSO), where it is installed."""
        try:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider
            session = boto3.Session()
            return {"credential_provider": Boto3CredentialProvider(session)} \
                if session.get_credentials() else {}
        except ImportError:
            return {}

    async def head(self, path):
        meta = await self.obstore.head_async(self.store, path)
        return meta["size"], version_of(meta)

    async def get(self, path, begin, end, version):
        options = {"range": (begin, end)}
        if version.startswith('"') or version.startswith("W/"):
            options["if_match"] = version
        found = await self.obstore.get_async(self.store, path, options=options)
        data = memoryview(await found.bytes_async())
        return data, found.meta["size"], version_of(found.meta)

    async def put(self, path, file):
        with open(file, "rb") as data:
            await self.obstore.put_async(self.store, path, data)

    async def list(self, prefix):
        async for chunk in self.obstore.list(self.store, prefix or None, chunk_size=1000):
            yield [(meta["path"], meta["size"], version_of(meta)) for meta in chunk]


def version_of(meta):
    """The ETag; of a store without them the time."""
    return meta.get("e_tag") or str(meta.get("last_modified"))


class FsspecStore:
    """Any other address that fsspec has a file system for."""

    lists = True

    def __init__(self, scheme, keys):
        try:
            import fsspec
            self.files = fsspec.filesystem(scheme, **keys)
        except (ImportError, ValueError) as error:
            raise Failed(INVALID_ARGUMENT, f"{scheme}://: {error}") from None

    @staticmethod
    def version(info):
        for key in ("etag", "ETag", "md5Hash", "blob_id", "sha", "mtime", "created"):
            if info.get(key):
                return str(info[key])
        return str(info.get("size"))

    async def head(self, path):
        info = await asyncio.to_thread(self.files.info, path)
        return info["size"], self.version(info)

    async def get(self, path, begin, end, version):
        data = await asyncio.to_thread(self.files.cat_file, path, start=begin, end=end)
        return memoryview(data), None, version

    async def put(self, path, file):
        await asyncio.to_thread(self.files.put_file, file, path)

    async def list(self, prefix):
        folder = prefix.rpartition("/")[0] or prefix
        found = await asyncio.to_thread(self.files.find, folder, detail=True)
        yield [(path, info["size"], self.version(info)) for path, info in sorted(found.items())]


OBSTORE_SCHEMES = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"}


class Sections:
    """The administrator's file of a service: which addresses are read, and with which
    keys of the client, credentials among them. An INI file as ~/.aws/credentials is."""

    def __init__(self, path):
        self.path = path
        parser = configparser.ConfigParser(interpolation=None, delimiters=("=",),
                                           default_section="\0")
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        # The longest first.
        self.keys = {name: dict(parser[name])
                     for name in sorted(parser.sections(), key=len, reverse=True)}
        for name in self.keys:
            if "://" not in name:
                raise Told(f"{path}: [{name}] is no address; wanted [s3://bucket/prefix]")

    def find(self, url):
        """The section that an address lies in."""
        if not re.search(r"(^|/)(\.|%2e){1,2}(/|$)", url, re.IGNORECASE):
            for name in self.keys:
                if (url + "/").startswith(name.rstrip("/") + "/"):
                    return name
        raise Failed(PERMISSION_DENIED, f"{url}: not below an address in {self.path}, which "
                     "the administrator lets this service read")


class Stores:
    def __init__(self, sections):
        self.sections = sections  # None: all addresses, as the environment says
        self.of_root = {}
        self.listed = {}  # url: (size, version, when)

    def find(self, url):
        """The store of an address, and the path in it."""
        section = self.sections.find(url) if self.sections else None
        scheme, _, rest = url.partition("://")
        if scheme in OBSTORE_SCHEMES:
            place, _, path = rest.partition("/")
            root = f"{scheme}://{place}"
            if not place or not (path or url.endswith("/")):
                raise Failed(INVALID_ARGUMENT, f"{url}: wanted {scheme}://bucket/key")
            make = ObjectStore
        else:
            root, path, make = scheme, rest, FsspecStore
        if (root, section) not in self.of_root:
            try:
                keys = self.sections.keys[section] if self.sections else {}
                self.of_root[root, section] = make(root, keys)
            except ImportError as error:
                who = "fetcher (penstock-fetch.service)" if self.sections else "broker"
                raise Failed(FAILED_PRECONDITION,
                             INSTALL.format(sys.executable, error, who)) from None
            except Exception as error:
                if isinstance(error, Failed) or section is None:
                    raise
                raise Failed(INVALID_ARGUMENT, f"{self.sections.path}, [{section}]: "
                             f"{type(error).__name__}: {error}") from None
        return self.of_root[root, section], path

    async def head(self, url):
        known = self.listed.get(url)
        if known and time.monotonic() - known[2] < LISTED_S:
            return known[:2]
        store, path = self.find(url)
        return await retried(url, lambda: store.head(path))

    async def list_folder(self, url):
        """Objects below a folder: (name below it, bytes, version), in byte order."""
        store, path = self.find(url)
        if not store.lists:
            raise Failed(INVALID_ARGUMENT, f"{url}: a web server lists no files: use a source "
                         "of files, such as webdataset")
        found = []
        async for chunk in store.list(path):
            found += [(key[len(path):], size, version) for key, size, version in chunk
                      if key.startswith(path) and not key.endswith("/")]
            if len(found) > LISTED_MAX:
                raise Failed(INVALID_ARGUMENT, f"{url}: more than {LISTED_MAX:,} objects")
        if not found:
            raise Failed(NOT_FOUND, f"{url}: there are no objects")
        return sorted(found, key=lambda each: each[0].encode())

    async def list(self, pattern):
        """Objects that match, in byte order; '*' matches no '/'."""
        store, path = self.find(pattern)
        if not store.lists:
            raise Failed(INVALID_ARGUMENT,
                         f"{pattern}: a web server lists no files: name them with braces "
                         "(train-{000..146}.tar), or in a list")
        prefix = path[:GLOB.search(path).start()].rpartition("/")[0]
        wanted = re.compile("/".join(
            fnmatch.translate(part).removesuffix(r"\Z").removesuffix(r"\z").replace(".*", "[^/]*")
            for part in path.split("/")) + r"\Z")
        root = pattern[:len(pattern) - len(path)]
        found, seen, now = [], 0, time.monotonic()
        async for chunk in store.list(prefix):
            seen += len(chunk)
            if seen > LISTED_MAX:
                raise Failed(INVALID_ARGUMENT,
                             f"{pattern}: more than {LISTED_MAX:,} objects lie below {prefix}/: "
                             "name a folder with fewer, or a list")
            for key, size, version in chunk:
                if wanted.match(key):
                    found.append(root + key)
                    self.listed[root + key] = (size, version, now)
            if len(found) > URLS_MAX:
                raise Failed(INVALID_ARGUMENT, f"{pattern}: more than {URLS_MAX} files")
        if not found:
            raise Failed(NOT_FOUND, f"{pattern}: no object matches it")
        return sorted(found, key=str.encode)


async def retried(url, get, counts=None):
    """What get() returns, in the time of a range."""
    # Servers close connections while a request is on its way: the first is sent again at
    # once.
    begun, wait = time.monotonic(), 0
    while True:
        try:
            return await asyncio.wait_for(get(), REQUEST_TIMEOUT_S + CONNECT_TIMEOUT_S)
        except Exception as error:
            final = failed(url, error)
            if final:
                raise final from None
            left = begun + RANGE_TIMEOUT_S - time.monotonic()
            if left <= wait:
                text = without_secrets(str(error)) or type(error).__name__
                raise Failed(UNAVAILABLE, f"{url}: the store has not answered well for "
                             f"{RANGE_TIMEOUT_S} s ({text[:300]})") from None
            if counts is not None:
                counts.retry(error)
            wait = wait or (RETRY_FIRST_S if is_throttled(error) else 0)
        await asyncio.sleep(wait * random.uniform(0.5, 1))
        wait = min(max(2 * wait, RETRY_FIRST_S), RETRY_MAX_S)


# ---- copies


def punch(descriptor, offset, size):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Copy:
    """The local copy of one version of an object."""

    def __init__(self, folder, url, size, version):
        self.url, self.bytes, self.version = url, size, version
        self.openings = []
        name = hashlib.sha256(json.dumps([url, size, version]).encode()).hexdigest()[:32]
        self.path = os.path.join(folder, name)
        self.blocks = -(-size // BLOCK)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.lock = os.open(self.path + ".crc", flags, 0o640)
        sums_bytes = max(4 * self.blocks, 4)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.data = os.open(self.path, flags, 0o640)
            os.ftruncate(self.lock, sums_bytes)
            sums = mmap.mmap(self.lock, sums_bytes)
            os.utime(self.path + ".crc")
        except BlockingIOError:
            # Another broker has it, which may remove what passes there: one for this
            # process alone, without a name.
            self.data = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            self.path = f"/proc/{os.getpid()}/fd/{self.data}"
            sums = mmap.mmap(-1, sums_bytes)
        os.ftruncate(self.data, size)
        self.sums = memoryview(sums).cast("I")  # 0: it is not there
        self.checked = bytearray(self.blocks)  # KEPT or PASSES: it is there, as it was fetched

    def close(self):
        os.close(self.data)
        os.close(self.lock)

    def read_only(self):
        """A descriptor for a broker; while that is open, nobody removes the copy."""
        descriptor = os.open(f"/proc/self/fd/{self.data}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def write(self, begin, data, kind):
        """Bytes of blocks; what is missing of the last one, unless it is the file's, is 0."""
        data = bytes(data) + bytes(min(-len(data) % BLOCK, self.bytes - begin - len(data)))
        os.pwrite(self.data, data, begin)
        first = begin // BLOCK
        for i in range(-(-len(data) // BLOCK)):
            self.sums[first + i] = zlib.crc32(data[i * BLOCK:(i + 1) * BLOCK]) or 1
        self.checked[first:first + i + 1] = bytes([kind]) * (i + 1)

    def check(self, first, end):
        """Which of these blocks, of an earlier process, are as they were fetched."""
        data = memoryview(os.pread(self.data, (end - first) * BLOCK, first * BLOCK))
        for i in range(first, end):
            at = (i - first) * BLOCK
            if (zlib.crc32(data[at:at + BLOCK]) or 1) == self.sums[i]:
                self.checked[i] = KEPT
            else:
                self.sums[i] = 0

    def remove(self, first, end):
        self.checked[first:end] = bytes(end - first)
        for i in range(first, end):
            self.sums[i] = 0
        punch(self.data, first * BLOCK, (end - first) * BLOCK)

    def size_of(self, first, end):
        return min(end * BLOCK, self.bytes) - first * BLOCK

    def object_of(self, block):
        """The object that has a block: its address, bytes, version, and blocks here."""
        return self.url, self.bytes, self.version, 0, self.blocks


class FolderCopy(Copy):
    """The local copy of all objects of a folder, each beginning with a block, in byte
    order of their names."""

    def __init__(self, folder, url, objects):
        self.names, self.sizes, versions = zip(*objects) if objects else ((), (), ())
        self.versions = versions
        self.firsts = array.array("Q", itertools.accumulate(
            (-(-size // BLOCK) for size in self.sizes), initial=0))
        super().__init__(folder, url, self.firsts[-1] * BLOCK, folder_version(objects))

    def object_of(self, block):
        i = bisect.bisect_right(self.firsts, block) - 1
        return (self.url + self.names[i], self.sizes[i], self.versions[i], self.firsts[i],
                self.firsts[i + 1])


class Opening:
    """A copy, as one broker has opened it."""

    __slots__ = ("link", "number", "copy", "passing")

    def __init__(self, link, number, copy):
        self.link, self.number, self.copy = link, number, copy
        self.passing = set()  # blocks that pass, which it has been told of
        copy.openings.append(self)

    def tell(self, kind, first, end):
        if kind == PASSES:
            self.passing.update(range(first, end))
        self.link.answer(struct.pack("<4Q", kind, self.number, first * BLOCK,
                                     self.copy.size_of(first, end)))

    def tell_failure(self, first, end, told):
        self.link.say({"copy": self.number, "offset": first * BLOCK,
                       "bytes": self.copy.size_of(first, end),
                       "error": [told.code, str(told)]})


def folder_version(objects):
    digest = hashlib.sha256()
    for each in objects:
        digest.update(repr(each).encode())
    return digest.hexdigest()


class Folder:
    """All copies, and the room they have."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.stat(path)
        if status.st_uid != os.geteuid():
            raise Told(f"{path} belongs to user {status.st_uid}: set PENSTOCK_CACHE_DIR")
        self.used = sum(each.stat().st_blocks * 512 for each in os.scandir(path))
        self.default_room = self.used + self.free() // 2
        self.given_room = 0

    def free(self):
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    @property
    def room(self):
        return self.given_room or self.default_room

    @property
    def kept_room(self):
        return self.room - min(self.room // PASSING_SHARE, PASSING_MAX)

    def keeps(self, size):
        """Whether so many bytes more are kept."""
        limit = self.kept_room
        if self.used + size > limit:
            self.remove_unused(self.used + size - limit)
        return self.used + size <= limit

    def remove_unused(self, wanted):
        """Copies that no broker has open, the longest unused ones first."""
        names = [each for each in os.scandir(self.path) if each.name.endswith(".crc")]
        for each in sorted(names, key=lambda each: each.stat().st_mtime):
            path = each.path.removesuffix(".crc")
            held = []
            try:
                for name in (each.path, path):  # of a process that fetches, of a broker
                    held.append(os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
                    fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken = sum(os.fstat(one).st_blocks for one in held) * 512
                os.unlink(path)
                os.unlink(each.path)
                self.used -= taken
                wanted -= taken
            except (BlockingIOError, FileNotFoundError):
                continue
            finally:
                for one in held:
                    os.close(one)
            if wanted <= 0:
                return


# ---- fetching


class Requests:
    """How many requests are sent at once: more while that brings more bytes, fewer when
    the store says so."""

    def __init__(self):
        self.limit, self.running, self.waiting = REQUESTS_FIRST, 0, []
        self.order = itertools.count()
        self.bytes = self.sent = self.retries = self.throttled = self.hedged = 0
        self.durations = deque(maxlen=64)
        self.best, self.before = 0.0, None  # before the limit was raised
        self.hold_s = self.halved_s = 0.0

    def retry(self, error):
        self.retries += 1
        if is_throttled(error):
            self.throttled += 1
            now = time.monotonic()
            if now > self.halved_s + 1:  # answers to those that were sent before
                self.limit, self.before = max(1, self.limit // 2), None
                self.halved_s, self.hold_s = now, now + 10

    def tune(self, rate):
        """rate: bytes a second, of the last TUNE_S."""
        now = time.monotonic()
        if self.running < self.limit or now < self.hold_s:
            return
        if self.before and rate < self.best * GAIN:  # more brought nothing: as before
            self.limit, self.before, self.hold_s = self.before, None, now + 5
            return
        self.best, self.before = rate, self.limit
        self.limit = min(REQUESTS_MAX, self.limit + self.limit // 2 + 1)

    def hedge_s(self):
        if self.hedged > HEDGED_MAX * self.sent + 1:
            return None
        if len(self.durations) < 16:
            return HEDGE_FIRST_S
        return max(HEDGE_MIN_S, HEDGE_TIMES * sorted(self.durations)[len(self.durations) // 2])


class Piece:
    """Blocks that are fetched by one request."""

    __slots__ = ("copy", "first", "end", "urgent", "begun", "askers")

    def __init__(self, opening, first, end, urgent):
        self.copy, self.first, self.end, self.urgent = opening.copy, first, end, urgent
        self.begun = False
        self.askers = {opening}


class Link:
    """A connection to a broker."""

    def __init__(self, fetcher, connection, owner=False):
        """owner: of this process, which ends with it."""
        self.fetcher, self.connection, self.loop = fetcher, connection, fetcher.loop
        self.owner = owner
        self.openings = {}  # by number
        self.answers = deque()
        connection.setblocking(False)
        self.loop.add_reader(connection, self.receive)

    def answer(self, packet, descriptor=None):
        if not self.answers:
            self.loop.add_writer(self.connection, self.send)
        self.answers.append((packet, descriptor))

    def send(self):
        while self.answers:
            packet, descriptor = self.answers[0]
            more = [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                     struct.pack("i", descriptor))] if descriptor is not None else []
            try:
                self.connection.sendmsg([packet], more)
            except BlockingIOError:
                return
            except OSError:
                break  # receive() sees its end
            self.answers.popleft()
            if descriptor is not None:
                os.close(descriptor)
        self.loop.remove_writer(self.connection)

    def say(self, message, descriptor=None):
        self.answer(json.dumps(message, ensure_ascii=False).encode(), descriptor)

    def receive(self):
        while True:
            try:
                packet = self.connection.recv(MESSAGE_MAX)
            except BlockingIOError:
                return
            except ConnectionError:
                packet = b""
            if not packet:
                self.end()
                return
            if packet[:1] == b"{":
                message = json.loads(packet)
                if "first" in message:
                    self.numbers = itertools.count(message["first"])
                else:
                    self.fetcher.start(self.fetcher.serve(self, message))
                continue
            for kind, number, offset, size in struct.iter_unpack("<4Q", packet):
                opening = self.openings.get(number)
                if opening is None:
                    continue  # asked of a former process
                first, end = offset // BLOCK, -(-(offset + size) // BLOCK)
                if kind == CLOSE:
                    self.fetcher.close(self.openings.pop(number))
                elif kind == GIVE_UP:
                    self.fetcher.give_up(opening, first, end)
                elif kind == PROMOTE:
                    self.fetcher.promote(opening.copy, first, end)
                else:
                    self.fetcher.want(opening, first, end, kind == HURRY)

    def end(self):
        if self.owner:
            os._exit(0)
        self.loop.remove_reader(self.connection)
        self.loop.remove_writer(self.connection)
        for _, descriptor in self.answers:
            if descriptor is not None:
                os.close(descriptor)
        self.answers.clear()
        self.connection.close()
        self.fetcher.links.discard(self)
        for opening in self.openings.values():
            self.fetcher.close(opening)
        self.openings.clear()


class Fetcher:
    def __init__(self, options):
        self.links = set()
        self.stores = Stores(Sections(options["stores"]) if "stores" in options else None)
        self.folder = Folder(options["folder"])
        self.copies = {}  # (url, version): Copy
        self.requests = Requests()
        self.soon, self.later = deque(), deque()  # of pieces
        self.coming = {}  # (copy, block): its piece
        self.loop = asyncio.get_running_loop()
        self.tasks = set()

    def start(self, work):
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def accept(self, listener):
        connection, _ = listener.accept()
        self.links.add(Link(self, connection))

    # -- calls

    async def serve(self, link, message):
        call = message["call"]
        try:
            if "list" in message:
                urls = await self.stores.list(message["list"])
                while True:
                    packet, size = [], 0
                    while urls and size < PACKET:
                        packet.append(urls.pop(0))
                        size += len(packet[-1]) + 4
                    link.say({"call": call, "urls": packet, "more": bool(urls)})
                    if not urls:
                        return
            if message.get("version", "").endswith("/"):
                objects = await self.stores.list_folder(message["version"])
                link.say({"call": call, "version": folder_version(objects)})
                return
            if "version" in message:
                self.stores.listed.pop(message["version"], None)
                size, version = await self.stores.head(message["version"])
                link.say({"call": call, "version": f"{size} {version}"})
                return
            if "put" in message:
                if self.stores.sections:
                    raise Failed(PERMISSION_DENIED, "a service writes to no store")
                store, path = self.stores.find(message["put"])
                await store.put(path, message["from"])
                link.say({"call": call})
                return
            if message.get("room"):
                self.folder.given_room = max(self.folder.given_room, message["room"])
            if "folder" in message:
                objects = await self.stores.list_folder(message["folder"])
                copy = self.copy_of(message["folder"], folder_version(objects),
                                    lambda: FolderCopy(self.folder.path, message["folder"],
                                                       objects))
                begin = 0
                while begin < len(objects):
                    end, size = begin, 0
                    while end < len(objects) and size < PACKET:
                        size += len(copy.names[end].encode()) + 32
                        end += 1
                    link.say({"call": call, "names": copy.names[begin:end],
                              "sizes": copy.sizes[begin:end], "more": True})
                    begin = end
                version = copy.version
            else:
                size, version = await self.stores.head(message["open"])
                url = message["open"]
                copy = self.copy_of(url, f"{size} {version}",
                                    lambda: Copy(self.folder.path, url, size, version))
                version = f"{size} {version}"
            opening = Opening(link, next(link.numbers), copy)
            link.openings[opening.number] = opening
            all_bytes = sum(each.bytes for each in self.copies.values())
            keeps = "open" in message and \
                all_bytes <= self.folder.kept_room
            link.say({"call": call, "copy": opening.number, "bytes": copy.bytes,
                      "version": version, "path": copy.path,
                      "unit": UNIT if keeps else BLOCK,
                      "ahead": min(self.folder.room // PASSING_SHARE, AHEAD_MAX)},
                     copy.read_only())
        except Exception as error:
            url = next(message[key] for key in ("open", "list", "version", "put", "folder")
                       if key in message)
            told = failed(url, error) or Failed(UNAVAILABLE, f"{url}: {error}")
            link.say({"call": call, "error": [told.code, str(told)]})

    def copy_of(self, url, version, make):
        """The copy, which all that open it share."""
        if (url, version) not in self.copies:
            self.copies[url, version] = make()
            self.copies[url, version].key = url, version
        return self.copies[url, version]

    def close(self, opening):
        copy = opening.copy
        copy.openings.remove(opening)
        self.remove_passed(copy, opening.passing)
        if not copy.openings:
            del self.copies[copy.key]
            copy.close()

    def use(self, rate):
        requests = self.requests
        return {"bytes": requests.bytes, "bytes_per_s": int(rate), "requests": requests.sent,
                "at_once": requests.limit, "in_flight": requests.running,
                "queued": len(self.soon) + len(self.later), "retries": requests.retries,
                "throttled": requests.throttled, "hedged": requests.hedged,
                "copies_bytes": self.folder.used, "copies_room_bytes": self.folder.room}

    # -- ranges

    def want(self, opening, first, end, urgent):
        copy, block = opening.copy, first
        while block < end:
            begin = block
            if copy.checked[block]:
                while block < end and copy.checked[block]:
                    block += 1
                for kind, run in itertools.groupby(range(begin, block),
                                                   key=copy.checked.__getitem__):
                    run = list(run)
                    opening.tell(kind, run[0], run[-1] + 1)
            elif copy.sums[block]:
                while block < end and copy.sums[block] and not copy.checked[block] and \
                        block - begin < UNIT // BLOCK:
                    block += 1
                copy.check(begin, block)
                block = begin  # those that were damaged are fetched
            elif piece := self.coming.get((copy, block)):
                piece.askers.add(opening)
                block = piece.end  # its answer is to come
                if urgent:
                    self.promote(copy, piece.first, piece.end)
            else:
                end_of_object = min(end, copy.object_of(block)[4])
                while block < end_of_object and not copy.checked[block] and \
                        not copy.sums[block] and \
                        (copy, block) not in self.coming and \
                        block - begin < REQUEST_BYTES_MAX // BLOCK:
                    block += 1
                piece = Piece(opening, begin, block, urgent)
                for each in range(begin, block):
                    self.coming[copy, each] = piece
                (self.soon if urgent else self.later).append(piece)
        self.pump()

    def promote(self, copy, first, end):
        for piece in {self.coming.get((copy, block)) for block in range(first, end)}:
            if piece and not piece.begun and not piece.urgent:
                piece.urgent = True
                self.soon.append(piece)
        self.pump()

    def pump(self):
        while self.requests.running < self.requests.limit and (self.soon or self.later):
            piece = (self.soon or self.later).popleft()
            if not piece.begun:
                piece.begun = True
                self.requests.running += 1
                self.start(self.fetch(piece))

    async def request(self, piece):
        copy, requests = piece.copy, self.requests
        url, bytes_of, version_of_copy, first, _ = copy.object_of(piece.first)
        begin = (piece.first - first) * BLOCK
        end = min((piece.end - first) * BLOCK, bytes_of)
        store, path = self.stores.find(url)
        requests.sent += 1
        begun = time.monotonic()
        data, size, version = await store.get(path, begin, end, version_of_copy)
        if size not in (None, bytes_of) or version != version_of_copy:
            raise Failed(DATA_LOSS, f"{url}: the object has changed since it was opened")
        if len(data) != end - begin:
            raise OSError(f"{len(data)} bytes came of {end - begin}")
        requests.durations.append(time.monotonic() - begun)
        requests.bytes += len(data)
        return data

    async def hedged(self, piece):
        """The first answer of two requests, if one takes long."""
        first = self.loop.create_task(self.request(piece))
        # While others queue, the link is busy, and a second request makes it busier.
        queued = bool(self.soon or self.later)
        after = None if queued and not piece.urgent else self.requests.hedge_s()
        done, _ = await asyncio.wait([first], timeout=after)
        if done:
            return first.result()
        self.requests.hedged += 1
        both = [first, self.loop.create_task(self.request(piece))]
        try:
            while True:
                done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    if not each.exception() or not left:
                        return each.result()
                both = list(left)
        finally:
            for each in both:
                each.cancel()

    async def fetch(self, piece):
        copy = piece.copy
        url = copy.object_of(piece.first)[0]
        try:
            if not copy.openings:
                return
            data = await retried(url, lambda: self.hedged(piece), self.requests)
            if not copy.openings:
                return
            kind = KEPT if self.folder.keeps(len(data)) else PASSES
            await self.store(copy, piece, data, kind)
            for opening in piece.askers & set(copy.openings):
                opening.tell(kind, piece.first, piece.end)
            if kind == PASSES:  # of those that have closed it meanwhile
                self.remove_passed(copy, range(piece.first, piece.end))
        except Exception as error:
            told = failed(url, error) or Failed(UNAVAILABLE, f"{url}: {error}")
            for opening in piece.askers & set(copy.openings):
                opening.tell_failure(piece.first, piece.end, told)
        finally:
            for each in range(piece.first, piece.end):
                self.coming.pop((copy, each), None)
            self.requests.running -= 1
            self.pump()

    async def store(self, copy, piece, data, kind):
        begun = time.monotonic()
        while copy.openings:
            try:
                copy.write(piece.first * BLOCK, data, kind)
                self.folder.used += len(data)
                return
            except OSError as error:
                if error.errno not in (28, 122):  # ENOSPC, EDQUOT
                    raise Failed(UNAVAILABLE, f"{copy.path}: {error.strerror}") from None
                # What passes makes room soon.
                self.folder.remove_unused(len(data))
                self.folder.given_room = self.folder.used
                if time.monotonic() - begun > RANGE_TIMEOUT_S:
                    raise Failed(RESOURCE_EXHAUSTED,
                                 f"{self.folder.path}: no space is left for what is fetched: "
                                 "make room, or set PENSTOCK_CACHE_DIR") from None
                await asyncio.sleep(RETRY_FIRST_S)

    def give_up(self, opening, first, end):
        blocks = opening.passing.intersection(range(first, end))
        opening.passing -= blocks
        self.remove_passed(opening.copy, blocks)

    def remove_passed(self, copy, blocks):
        """Those that pass, and that nobody holds any more."""
        unheld = sorted(block for block in blocks if copy.checked[block] == PASSES and
                        not any(block in opening.passing for opening in copy.openings))
        for begin, end in runs(unheld):
            copy.remove(begin, end)
            self.folder.used -= copy.size_of(begin, end)


def runs(numbers):
    """(begin, end) of consecutive sorted numbers."""
    for _, run in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in run]
        yield run[0], run[-1] + 1


async def run(options, listener, link=None):
    """listener: where brokers connect, or None; link: of the one that owns this."""
    fetcher = Fetcher(options)
    if listener:
        listener.setblocking(False)
        fetcher.loop.add_reader(listener, fetcher.accept, listener)
    if link:
        fetcher.links.add(Link(fetcher, link, owner=True))
    before, use = 0, None
    while True:
        await asyncio.sleep(TUNE_S)
        rate, before = (fetcher.requests.bytes - before) / TUNE_S, fetcher.requests.bytes
        fetcher.requests.tune(rate)
        if use != (use := fetcher.use(rate)):
            for link in fetcher.links:
                link.say({"use": use})


def listen_or_connect(folder):
    """(where this process listens for the other private brokers that have this folder and
    this environment, None); or (None, a connection to the process that does). Both None:
    that one does not answer."""
    given = sorted((name, value) for name, value in os.environ.items() if ENVIRONMENT.match(name))
    name = hashlib.sha256(repr(given).encode()).hexdigest()[:32]
    lock = os.open(os.path.join(folder, name + ".lock"),
                   os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    # Addresses of sockets are short.
    path = f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_CLOEXEC)}/{name}"
    for _ in range(CONNECT_TRIES):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except BlockingIOError:
            try:
                end.connect(path)
                return None, end
            except OSError:  # it starts or ends
                end.close()
                time.sleep(CONNECT_WAIT_S)
                continue
        if os.path.lexists(path):
            os.unlink(path)
        end.bind(path)
        end.listen()
        return end, None
    return None, None


def main():
    end_with_parent()
    keep_to_itself()
    options = options_of(sys.argv[1])
    link = socket.socket(fileno=LINK)
    try:
        Folder(options["folder"])
        listener, other = listen_or_connect(options["folder"])
    except BaseException as error:
        link.send(failure(0, error))
        return
    if other:
        link.sendmsg([answer(0, DONE)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                          struct.pack("i", other.fileno()))])
        return
    link.send(answer(0, DONE))
    asyncio.run(run(options, listener, link))


def serve_brokers():
    """penstock-fetch: as penstock-fetch.service starts it."""
    parser = argparse.ArgumentParser(prog="penstock-fetch", description=(
        "Fetches objects of stores for penstockd, which has no network."))
    parser.add_argument("--stores", metavar="FILE", default="/etc/penstock/stores.ini",
                        help="which addresses are read, and their credentials "
                        "(default: %(default)s)")
    parser.add_argument("--folder", metavar="FOLDER", help="of the local copies (default: "
                        "CACHE_DIRECTORY)", default=os.environ.get("CACHE_DIRECTORY"))
    given = parser.parse_args()
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not given.folder:
        parser.error("systemd starts this (penstock-fetch.socket), with a socket and a folder")
    asyncio.run(run({"stores": given.stores, "folder": given.folder},
                    socket.socket(fileno=LINK)))


if sys.argv[0] == "-c":  # by a private broker
    main()
else:
    try:
        serve_brokers()
    except (Told, OSError, configparser.Error) as error:
        sys.exit(f"penstock-fetch: {error}")
