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
                                 "ahead", "path"}, and the copy's descriptor; "inode"
                                 in the question: of the copy that the broker has
  {"call": N, "folder": url, "room": bytes or null}
                                 {"call": N, "names": [...], "sizes": [...], "more": true},
                                 then as for open
  {"call": N, "version": url}    {"call": N, "version": text}
  {"call": N, "put": url, "from": path}   {"call": N}
  {"call": N, "try": url, "seconds"}      {"call": N, "found": {...}} (python_store_trial.py)
  any                            {"call": N, "error": [code, text]}
  {"observe": bool}              {"span": {...}} of each range that is fetched from now on
  twice a second, if it changed  {"use": {...}}: `stores` of a status, and "listing"
  a range that cannot be had     {"copy": K, "offset", "bytes", "error": [code, text]}
"""

import argparse
import array
import asyncio
import bisect
import concurrent.futures
import configparser
import ctypes
import fcntl
import fnmatch
import hashlib
import itertools
import mmap
import random
import re
import tempfile
import urllib.parse
import zlib
from collections import Counter, deque

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
REQUESTS_FIRST, REQUESTS_MIN, REQUESTS_MAX, HEADS_MAX = 16, 4, 256, 64
TUNE_S = 0.5
GAIN = 1.05
# From the first request of a range to its error, retries included.
TIMEOUT = os.environ.get("PENSTOCK_STORE_TIMEOUT_S") or "120"
RANGE_TIMEOUT_S = int(TIMEOUT) if re.fullmatch("[0-9]{1,6}", TIMEOUT) else 0
REQUEST_TIMEOUT_S = RANGE_TIMEOUT_S / 4
CONNECT_TIMEOUT_S = RANGE_TIMEOUT_S / 12
# As RANGE_TIMEOUT_S, of a store that has never answered: its address may be wrong.
FIRST_TIMEOUT_S = RANGE_TIMEOUT_S / 4
TRIES_MIN = 3  # in that time
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10
# Servers close connections that are idle: after 5 s or more, as a rule.
IDLE_S = 4
# How often credentials are read that have expired.
RENEW_S = 1
# A request that takes this many times the median is sent once more.
HEDGE_TIMES, HEDGE_MIN_S, HEDGE_FIRST_S = 4, 0.5, 3
HEDGED_MAX = 0.05  # of the requests
LISTED_MAX = 10_000_000
URLS_MAX = 1 << 18
COPIES_MAX = 64  # of one object: of brokers that run beside each other
TELL_S = 0.5  # after the last file that was opened
LOOK_S = 1  # between searches for copies that are not used
PACKET = 1 << 15
# Packets of a long list that wait for the broker, and how long it is given.
ANSWERS_MAX, ANSWERS_S = 64, 0.001
# What was listed is known as long for opening.
LISTED_S = 60
# A commit of a hub is that of all that are opened by name with shorter pauses; and how often
# it is asked whether there is another.
COMMIT_S, COMMIT_ANEW_S = 5, 1
FULL = (28, 122)  # ENOSPC, EDQUOT
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
INSTALL = ("object stores are read with obstore, which {} cannot import ({}): pip install "
           "obstore into the Python that the {} runs")
GLOB = re.compile(r"[*?\[]")
# What decides which stores an address means, and as whom.
ENVIRONMENT = re.compile(r"AWS_|AZURE_|GOOGLE_|GCP_|GCS_|HF_|HUGGING|FSSPEC_|SSL_|\w*_PROXY$|HOME$|"
                         "PENSTOCK_STORE_TIMEOUT_S$", re.IGNORECASE)
CONNECT_TRIES, CONNECT_WAIT_S = 40, 0.05


class Failed(Exception):
    """code: of a status. expired: other credentials may read it."""

    def __init__(self, code, text, expired=False):
        super().__init__(without_secrets(text))
        self.code, self.expired = code, expired


def without_secrets(text):
    """The query of a signed address is a credential, and so is a password in one."""
    text = re.sub(r"(://[^\s/@:]*):[^\s/@]*@", r"\1:...@", text)
    return re.sub(r"(https?://[^\s\"'?]*|://[^\s?]*(?=\?[^\s]*(?i:signature|credential|token|sig)=))"
                  r"\?[^\s\"')]*?(?=:?([\s\"')]|$))", r"\1?...", text)


def reason(error):
    """What a person can use of a store's error. What else a store says may have a token
    in it."""
    text, _, causes = str(error).partition("\n\nDebug source:")
    if told := re.search(r"<Code>(.*?)</Code>(?:.*?<Message>(.*?)</Message>)?", text, re.S):
        status = re.search(r"status code: (\d+)", text)
        text = (status[1] + ", " if status else "") + ": ".join(filter(None, told.groups()))
    elif is_slow(error):
        text = "no answer in time"
    elif cause := re.findall(r'(?:message|error): "([^"]+)"', causes):
        text = cause[-1]
    else:
        text = re.sub(r"^.*?Server returned non-2xx status code: ([\w ]+).*", r"\1", text,
                      flags=re.S)
        text = re.sub(r"^Generic \w+ error: ", "", text)
    return without_secrets(" ".join(text.split())).rstrip(" :")[:300] or type(error).__name__


CREDENTIALS = ("the credentials of the broker's environment do not read it, or they have "
               "expired")
REFUSALS = {  # what a refusal has in it: what that means
    "RequestTimeTooSkewed": "the clock of this host differs from the store's: set it "
                            "(timedatectl, chronyc tracking)",
    "Expired|TokenRefreshRequired|InvalidToken|InvalidAccessKeyId":
        "renew them: those of a profile (~/.aws) are read again, others when the broker starts "
        "again with them, and jobs go on where they were",
    "KeyTooLong": "the name of the object is too long",
    "": CREDENTIALS}


HUB_LOGIN = "a private or gated one wants a token (hf auth login, or HF_TOKEN)"
HUB_ERRORS = {  # of huggingface_hub
    "RepositoryNotFoundError": lambda url: (
        NOT_FOUND, f"{url}: the hub has no such repository; {HUB_LOGIN}"),
    "GatedRepoError": lambda url: (
        PERMISSION_DENIED, f"{url}: accept the terms of the repository on its page; {HUB_LOGIN}"),
    "RevisionNotFoundError": lambda url: (
        NOT_FOUND, f"{url}: the repository has no such revision"),
    "RemoteEntryNotFoundError": lambda url: (NOT_FOUND, f"{url}: there is no such object")}
HUB_ERRORS["EntryNotFoundError"] = HUB_ERRORS["RemoteEntryNotFoundError"]


def failed(url, error):
    """The status of a store's error; None: it is worth another try."""
    if isinstance(error, Failed):
        return error
    name, text = type(error).__name__, reason(error)
    if name in HUB_ERRORS:
        return Failed(*HUB_ERRORS[name](url))
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        what = "there is no such bucket" if "NoSuchBucket" in text else "there is no such object"
        return Failed(NOT_FOUND, f"{url}: {what}")
    if name in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(
            error, PermissionError) or text.startswith("400"):
        found = next(each for each in REFUSALS if re.search(each, text))
        means = "no credentials are sent to web servers" if url.startswith("http") else \
            REFUSALS[found]
        return Failed(PERMISSION_DENIED, f"{url}: the store refuses ({text}): {means}",
                      expired="Expired" in found or name == "UnauthenticatedError")
    if "invalid path" in text:
        return Failed(INVALID_ARGUMENT, f"{url}: the store's client lists no such names ({text}): "
                      "rename that object, or name a folder without it, or a list of files")
    if name == "PreconditionError":
        return Failed(DATA_LOSS, f"{url}: the object has changed since it was opened")
    if name == "NotSupportedError":
        return Failed(INVALID_ARGUMENT,
                      f"{url}: the server cannot do what is asked ({text}): files are read in "
                      "parts, by requests with a range, as nginx, Apache and object stores "
                      "answer them")
    return None


# Where a reason alone does not say what to do.
HINTS = {"failed to lookup": "the host's name is not known: check it, and this host's DNS",
         "refused": "nothing listens there: check the address (AWS_ENDPOINT_URL and the like)",
         "": "check the network and the store"}


def explained(error):
    text = reason(error)
    return text + ": " + next(HINTS[each] for each in HINTS if each in text)


def timed_out(url, error, tries, seconds):
    return Failed(UNAVAILABLE,
                  f"{url}: no good answer in {seconds:.0f} s, of {tries} "
                  f"{'tries' if tries > 1 else 'try'}; the last one: {explained(error)}; "
                  f"PENSTOCK_STORE_TIMEOUT_S (now {RANGE_TIMEOUT_S}) waits longer")


def is_throttled(error):
    return re.search(r"status code: (429|503)\b|SlowDown|Too Many Requests",
                     str(error)) is not None


def is_slow(error):
    return isinstance(error, asyncio.TimeoutError) or "kind: Timeout" in str(error)


def is_closed(error):
    """The server has closed a connection that was idle, maybe."""
    return re.search(r"SendRequest,.*(IncompleteMessage|ConnectionReset|BrokenPipe)",
                     str(error), re.S) is not None


# ---- stores


def milliseconds(seconds):
    return f"{int(seconds * 1000)}ms"


class ObjectStore:
    """obstore's."""

    def __init__(self, root, keys):
        import obstore.store
        self.obstore, self.root, self.keys = obstore, root, keys
        self.lists = not root.startswith("http")
        self.connect()

    def connect(self):
        self.connected_s = time.monotonic()
        given = {"config": self.keys}
        if self.root.startswith("s3") and not self.keys and \
                "AWS_ACCESS_KEY_ID" not in os.environ and \
                "AWS_SKIP_SIGNATURE" not in os.environ:
            given = self.profile()
        self.store = self.obstore.store.from_url(
            self.root, retry_config={"max_retries": 0}, client_options={
                "timeout": milliseconds(REQUEST_TIMEOUT_S),
                "connect_timeout": milliseconds(CONNECT_TIMEOUT_S),
                "pool_idle_timeout": f"{IDLE_S}s", "allow_http": True}, **given)

    def renew(self):
        """Whether there can be other credentials than before: then they are read."""
        if not self.lists or "AWS_ACCESS_KEY_ID" in os.environ:
            return False  # those of the environment stay
        if time.monotonic() > self.connected_s + RENEW_S:
            self.connect()
        return True

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

    async def head(self, path, anew=False):
        try:
            meta = await self.obstore.head_async(self.store, path)
        except Exception as error:
            if re.search("status code: 40[013]", str(error)):
                await self.get(path, 0, 1, "")  # which is told why
            raise
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

    async def list(self, prefix, after):
        async for chunk in self.obstore.list(self.store, prefix or None, offset=after,
                                             chunk_size=1000):
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
        # Not those of others: one that hangs holds up no other store.
        self.threads = concurrent.futures.ThreadPoolExecutor(REQUESTS_FIRST)

    def call(self, function, *arguments, **named):
        return asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: function(*arguments, **named))

    @staticmethod
    def renew():
        return False

    @staticmethod
    def version(info):
        for key in ("etag", "ETag", "md5Hash", "blob_id", "sha", "mtime", "created"):
            if info.get(key):
                return str(info[key])
        return str(info.get("size"))

    async def head(self, path, anew=False):
        info = await self.call(self.files.info, path)
        return info["size"], self.version(info)

    async def get(self, path, begin, end, version):
        data = await self.call(self.files.cat_file, path, start=begin, end=end)
        return memoryview(data), None, version

    async def put(self, path, file):
        await self.call(self.files.put_file, file, path)

    async def list(self, prefix, _):
        folder = prefix.rpartition("/")[0] or prefix
        found = await self.call(self.files.find, folder, detail=True)
        yield [(path, info["size"], self.version(info)) for path, info in sorted(found.items())]


class HubStore(FsspecStore):
    """hf://: the files of a commit, which a branch leads to when they are opened. What is
    pushed later is another version of them."""

    # A repository, a revision, a path. "@refs/convert/parquet" is one, too.
    PATH = re.compile(r"((?:(?:datasets|spaces)/)?[^/@]+/[^/@]+)"
                      r"(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.S)

    def __init__(self, _, keys):
        super().__init__("hf", keys)
        import huggingface_hub
        self.hub = huggingface_hub.HfApi(endpoint=keys.get("endpoint"), token=keys.get("token"))
        self.commits = {}  # (repository, revision): (commit, when it was asked for, last used)
        self.asking = asyncio.Lock()

    async def commit(self, path, anew=False):
        """(what stands before the path in a repository, the same of the commit, the commit).
        Files that are listed, or are opened one after the other, are of one commit."""
        found = self.PATH.fullmatch(path)
        if not found:
            raise Failed(INVALID_ARGUMENT, f"hf://{path}: wanted hf://datasets/owner/name/file")
        repository, revision, _ = found.groups()
        async with self.asking:
            commit, asked_s, used_s = self.commits.get((repository, revision), ("", 0, 0))
            now = time.monotonic()
            if now > (asked_s + COMMIT_ANEW_S if anew else
                      min(used_s + COMMIT_S, asked_s + LISTED_S)):
                kind, _, name = ("model/" + repository if repository.count("/") == 1 else
                                 repository.replace("s/", "/", 1)).partition("/")
                told = await self.call(self.hub.repo_info, name, repo_type=kind,
                                       revision=revision and urllib.parse.unquote(revision))
                commit, asked_s = told.sha, now
            self.commits[repository, revision] = commit, asked_s, now
        return path[:found.end(2) if revision else found.end(1)], f"{repository}@{commit}", commit

    async def head(self, path, anew=False):
        given, pinned, commit = await self.commit(path, anew)
        info = await self.call(self.files.info, pinned + path[len(given):])
        if info["type"] != "file":
            raise FileNotFoundError
        return info["size"], commit

    async def get(self, path, begin, end, version):
        repository, _, name = self.PATH.fullmatch(path).groups()
        data = await self.call(self.files.cat_file, f"{repository}@{version}/{name}", start=begin,
                               end=end, cache_type="none")
        return memoryview(data), None, version

    async def list(self, prefix, _):
        given, pinned, commit = await self.commit(prefix, anew=True)
        found = await self.call(self.files.find, (pinned + prefix[len(given):]).rstrip("/"),
                                detail=True)
        yield [(given + path[len(pinned):], info["size"], commit)
               for path, info in sorted(found.items())]


class Texts:
    """Many texts, in little memory."""

    def __init__(self):
        self.bytes, self.ends = bytearray(), array.array("Q")

    def append(self, text):
        self.bytes += text.encode()
        self.ends.append(len(self.bytes))

    def encoded(self, i):
        return bytes(self.bytes[self.ends[i - 1] if i else 0:self.ends[i]])

    def __getitem__(self, i):
        return self.encoded(i).decode()


class Objects:
    """Those below a folder: their names below it, bytes and versions."""

    def __init__(self):
        self.names, self.sizes, self.versions = Texts(), array.array("Q"), Texts()
        self.ordered = True

    def append(self, name, size, version):
        self.names.append(name)
        self.sizes.append(size)
        self.versions.append(version)
        last = len(self) - 1
        self.ordered = self.ordered and (
            last == 0 or self.names.encoded(last - 1) < self.names.encoded(last))

    def __len__(self):
        return len(self.sizes)

    def finished(self):
        """With a version, by the bytes of names, as stores list them, or most."""
        made = self
        if not self.ordered:
            made = Objects()
            for i in sorted(range(len(self)), key=self.names.encoded):
                made.append(self.names[i], self.sizes[i], self.versions[i])
        digest = hashlib.sha256()
        for i, size in enumerate(made.sizes):
            digest.update(repr((made.names[i], size, made.versions[i])).encode())
        made.version = digest.hexdigest()
        return made


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
        self.lists = self.listing = 0  # under way; objects of these so far

    def find(self, url):
        """The store of an address, and the path in it."""
        section = self.sections.find(url) if self.sections else None
        scheme, _, rest = url.partition("://")
        if scheme in OBSTORE_SCHEMES:
            place, _, path = rest.partition("/")
            root = f"{scheme}://{place}"
            if not place or not (path or url.endswith("/")):
                raise Failed(INVALID_ARGUMENT, f"{url}: wanted {scheme}://bucket/key")
            if re.search(":.*@", place):
                raise Failed(INVALID_ARGUMENT, f"{url}: an address with a password cannot be read: "
                             "errors and logs would show it")
            if "?" in path and scheme.startswith("http"):
                raise Failed(INVALID_ARGUMENT,
                             f"{url}: an address with a query cannot be read: "
                             "name the object as s3://, gs:// or az://, with credentials")
            # It would find another object, or complain for ever.
            if re.search(r"(^|/)(\.{0,2})/|(^|/)\.{1,2}$|[\x00-\x1f\x7f]", path):
                raise Failed(INVALID_ARGUMENT,
                             f"{url!r}: no object of such a name can be read: with an empty part, "
                             "'.' or '..' between slashes, or a control character")
            make = ObjectStore
        else:
            root, path, make = scheme, rest, FsspecStore
            if scheme == "hf" and not rest.startswith("buckets/"):
                root, make = "hf repositories", HubStore
        if (root, section) not in self.of_root:
            try:
                keys = self.sections.keys[section] if self.sections else {}
                store = make(root, keys)
            except ImportError as error:
                who = "fetcher (penstock-fetch.service)" if self.sections else "broker"
                raise Failed(FAILED_PRECONDITION,
                             INSTALL.format(sys.executable, error, who)) from None
            except Exception as error:
                if isinstance(error, Failed) or section is None:
                    raise
                raise Failed(INVALID_ARGUMENT, f"{self.sections.path}, [{section}]: "
                             f"{type(error).__name__}: {error}") from None
            store.requests = Requests()
            self.of_root[root, section] = store
        return self.of_root[root, section], path

    def requests(self):
        return [store.requests for store in self.of_root.values()]

    async def objects(self, url, store, prefix):
        """(key, bytes, version) of those below a prefix, in chunks. After a fault it goes on
        behind the last one."""
        last = chunks = None

        async def following():
            nonlocal chunks
            chunks = chunks or store.list(prefix, last)
            try:
                return await chunks.__anext__()
            except StopAsyncIteration:
                return None
            except BaseException:
                chunks = None
                raise

        self.lists += 1
        try:
            while chunk := await retried(url, store, following):
                last = chunk[-1][0]
                self.listing += len(chunk)
                yield chunk
        finally:
            self.lists -= 1
            self.listing *= self.lists > 0

    async def head(self, url, anew=False):
        """anew: as it is now, not as it was when others were opened."""
        known = self.listed.get(url)
        if known and time.monotonic() - known[2] < LISTED_S:
            return known[:2]
        store, path = self.find(url)
        async with store.requests.heads:
            return await retried(url, store, lambda: store.head(path, anew))

    async def list_folder(self, url):
        """Objects below a folder."""
        store, path = self.find(url)
        if not store.lists:
            raise Failed(INVALID_ARGUMENT, f"{url}: a web server lists no files: use a source "
                         "of files, such as webdataset")
        found = Objects()
        async for chunk in self.objects(url, store, path):
            for key, size, version in chunk:
                if key.startswith(path) and not key.endswith("/"):
                    found.append(key[len(path):], size, version)
            if len(found) > LISTED_MAX:
                raise Failed(INVALID_ARGUMENT, f"{url}: more than {LISTED_MAX:,} objects")
        if not found:
            raise Failed(NOT_FOUND, f"{url}: there are no objects")
        return await asyncio.to_thread(found.finished)

    async def list(self, pattern):
        """Objects that match, in byte order; '*' matches no '/'."""
        store, path = self.find(pattern)
        if not store.lists:
            raise Failed(INVALID_ARGUMENT,
                         f"{pattern}: a web server lists no files: name them with braces "
                         "(train-{000..146}.tar), or in a list")
        prefix = path[:GLOB.search(path).start()].rpartition("/")[0]
        # With as many slashes as the pattern has, no '*', '?' or '[!a]' can match one.
        wanted, slashes = re.compile(fnmatch.translate(path)), path.count("/")
        root = pattern[:len(pattern) - len(path)]
        found, seen, now = [], 0, time.monotonic()
        self.listed = {url: known for url, known in self.listed.items()
                       if now - known[2] < LISTED_S}
        async for chunk in self.objects(pattern, store, prefix):
            seen += len(chunk)
            if seen > LISTED_MAX:
                raise Failed(INVALID_ARGUMENT,
                             f"{pattern}: more than {LISTED_MAX:,} objects lie below {prefix}/: "
                             "name a folder with fewer, or a list")
            for key, size, version in chunk:
                if key == path:  # a name that looks like a pattern
                    return [pattern]
                if key.count("/") == slashes and wanted.match(key):
                    found.append(root + key)
                    self.listed[root + key] = (size, version, now)
            if len(found) > URLS_MAX:
                raise Failed(INVALID_ARGUMENT, f"{pattern}: more than {URLS_MAX} files")
        if not found:
            raise Failed(NOT_FOUND, f"{pattern}: no object matches it")
        return sorted(found, key=str.encode)


async def retried(url, store, get):
    """What get() returns, in the time of a range."""
    requests = store.requests
    begun, wait, tries, cause = time.monotonic(), 0, 0, None
    while True:
        limit = RANGE_TIMEOUT_S if requests.answered else FIRST_TIMEOUT_S
        left = begun + limit - time.monotonic()
        try:
            found = await asyncio.wait_for(get(), min(left, limit / TRIES_MIN))
            requests.answered = True
            return found
        except Exception as error:
            final = failed(url, error)
            if final and not (final.expired and store.renew()):
                raise final from None
            requests.answered |= "status code: " in str(error)
            if cause is None or not isinstance(error, asyncio.TimeoutError):
                cause = error  # a last try that is cut short says less
            tries += 1
            seconds = time.monotonic() - begun
            if limit - seconds <= wait:
                raise final or timed_out(url, cause, tries, seconds) from None
            # Connections that were idle may be closed by now: once more, at once.
            if tries > 1 or not is_closed(error):
                requests.retry(error)
                wait = wait or (RETRY_FIRST_S if is_throttled(error) else 0)
        await asyncio.sleep(wait * random.uniform(0.5, 1))
        wait = min(max(2 * wait, RETRY_FIRST_S), RETRY_MAX_S)


# ---- copies


def disk_bytes(file):
    try:
        return os.stat(file, follow_symlinks=False).st_blocks * 512
    except OSError:  # removed meanwhile
        return 0


def modified_ns(file):
    try:
        return os.stat(file, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def punch(descriptor, offset, size):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(size)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def locked(path, flags):
    """A file that nobody else has locked; None: somebody has, or has removed it."""
    descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink > 0:
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


class Copy:
    """The local copy of one version of an object."""

    def __init__(self, folder, url, size, version, inode=None):
        """inode: of the copy that the broker has; None: any that no other process has,
        which may remove what passes there."""
        self.url, self.bytes, self.version = url, size, version
        self.openings = []
        name = hashlib.sha256(json.dumps([url, size, version]).encode()).hexdigest()[:32]
        self.blocks = -(-size // BLOCK)
        self.data = self.lock = None
        try:
            for i in range(COPIES_MAX):
                if self.open(os.path.join(folder, f"{name}-{i}"), inode):
                    break
            else:
                raise Failed(UNAVAILABLE, f"{url}: its local copy was removed from {folder} while "
                             "it was read: attach the job again" if inode else
                             f"{url}: {COPIES_MAX} brokers have local copies of it in {folder}")
            sums_bytes = max(4 * self.blocks, 4)
            os.ftruncate(self.lock, sums_bytes)
            # To write a page that the disk has no room for would be SIGBUS.
            os.posix_fallocate(self.lock, 0, sums_bytes)
            os.utime(self.path + ".crc")
            os.ftruncate(self.data, size)
            self.sums = memoryview(mmap.mmap(self.lock, sums_bytes)).cast("I")
            self.inode = os.fstat(self.data).st_ino
        except BaseException:
            self.close()
            raise
        # KEPT or PASSES: it is there, as it was fetched. A sum of 0: it is not there.
        self.checked = bytearray(self.blocks)

    def open(self, path, inode):
        self.path = path
        try:
            self.lock = locked(path + ".crc", 0 if inode else os.O_CREAT)
            if self.lock is None:
                return False
            self.data = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW |
                                (0 if inode else os.O_CREAT), 0o640)
            if inode in (None, os.fstat(self.data).st_ino):
                return True
        except FileNotFoundError:
            if inode is None:
                raise
        self.close()
        return False

    def close(self):
        if self.lock is not None:
            fcntl.flock(self.lock, fcntl.LOCK_UN)  # the mapping has a copy of the descriptor
        for each in (self.data, self.lock):
            if each is not None:
                os.close(each)
        self.data = self.lock = None

    def read_only(self):
        """A descriptor for a broker; while that is open, nobody removes the copy."""
        descriptor = os.open(f"/proc/self/fd/{self.data}", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def write(self, begin, data, kind):
        """Bytes of blocks; what is missing of the last one, unless it is the file's, is 0."""
        data = bytes(data) + bytes(min(-len(data) % BLOCK, self.bytes - begin - len(data)))
        written = 0
        while written < len(data):  # a disk that gets full takes a part
            written += os.pwrite(self.data, data[written:], begin + written)
        first = begin // BLOCK
        for i in range(-(-len(data) // BLOCK)):
            self.sums[first + i] = zlib.crc32(data[i * BLOCK:(i + 1) * BLOCK]) or 1
        self.checked[first:first + i + 1] = bytes([kind]) * (i + 1)

    def check(self, first, end):
        """Which of these blocks, of an earlier process, are as they were fetched."""
        try:
            data = memoryview(os.pread(self.data, (end - first) * BLOCK, first * BLOCK))
        except OSError:
            data = b""
        for i in range(first, end):
            at = (i - first) * BLOCK
            if (zlib.crc32(data[at:at + BLOCK]) or 1) == self.sums[i]:
                self.checked[i] = KEPT
            else:
                self.sums[i] = 0

    def remove(self, first, end):
        punch(self.data, first * BLOCK, (end - first) * BLOCK)
        self.checked[first:end] = bytes(end - first)
        for i in range(first, end):
            self.sums[i] = 0

    def size_of(self, first, end):
        return min(end * BLOCK, self.bytes) - first * BLOCK

    def object_of(self, block):
        """The object that has a block: its address, bytes, version, and blocks here."""
        return self.url, self.bytes, self.version, 0, self.blocks


class FolderCopy(Copy):
    """The local copy of all objects of a folder, each beginning with a block, in byte
    order of their names."""

    def __init__(self, folder, url, objects, inode=None):
        self.names, self.sizes, self.versions = objects.names, objects.sizes, objects.versions
        self.firsts = array.array("Q", itertools.accumulate(
            (-(-size // BLOCK) for size in self.sizes), initial=0))
        super().__init__(folder, url, self.firsts[-1] * BLOCK, objects.version, inode)

    def object_of(self, block):
        i = bisect.bisect_right(self.firsts, block) - 1
        return (self.url + self.names[i], self.sizes[i], self.versions[i], self.firsts[i],
                self.firsts[i + 1])


class Opening:
    """A copy, as one broker has opened it."""

    __slots__ = ("link", "number", "copy", "passing", "room")

    def __init__(self, link, number, copy, room):
        """room: that the broker gives all copies; 0: not said."""
        self.link, self.number, self.copy, self.room = link, number, copy, room
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


class Folder:
    """All copies, and the room they have."""

    def __init__(self, path):
        self.path = path
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            status = os.stat(path)
            if status.st_uid != os.geteuid():
                raise Told(f"{path} belongs to user {status.st_uid}: set PENSTOCK_CACHE_DIR")
            with tempfile.TemporaryFile(dir=path, buffering=0) as probe:
                if probe.write(bytes(2 * BLOCK)):
                    punch(probe.fileno(), 0, BLOCK)
        except OSError as error:
            if error.errno not in FULL:
                raise Told(f"{path}: {error.strerror}: wanted a folder for local copies of objects,"
                           " on a file system that can remove parts of files (ext4, xfs, btrfs, "
                           "tmpfs): set PENSTOCK_CACHE_DIR") from None
        self.descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # even if it is removed
        self.used = sum(map(disk_bytes, os.scandir(path)))
        self.passing = 0  # of these
        self.coming = 0  # of what is requested
        self.looked_s = 0  # when no copy was left to remove
        self.default_room = (self.used + self.free()) // 2
        self.rooms = Counter()  # of openings: what the copies may take; 0: not said
        self.quota = None  # bytes; a quota of the disk has no other sign than an error

    def free(self):
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize

    @property
    def room(self):
        wanted = max((room or self.default_room for room in self.rooms),
                     default=self.default_room)
        return min(wanted, self.used + self.free() if self.quota is None else self.quota)

    @property
    def kept_room(self):
        return self.room - min(self.room // PASSING_SHARE, PASSING_MAX)

    def has_space(self, size, urgent):
        """Whether the disk takes so many bytes more. Rows that are next need the rest: those
        behind them, which are let go after them, keep to the room, and leave the half of what is
        for passing."""
        if urgent:
            return self.free() - self.coming >= size
        room = self.room
        passing = room - self.kept_room
        more = self.passing + self.coming + size
        return self.free() - self.coming - size >= passing // 2 and \
            (more <= passing or more == size or self.used + self.coming + size <= room)

    def keeps(self, size):
        """Whether so many bytes more are kept."""
        more = self.used - self.passing + size - self.kept_room
        return more <= 0 or self.remove_unused(more) >= more

    def remove_unused(self, wanted):
        """Copies that no broker has open, the longest unused ones first. Returns their
        bytes."""
        now = time.monotonic()
        if now < self.looked_s + LOOK_S:
            return 0
        removed = 0
        try:
            names = [each.path for each in os.scandir(self.path)
                     if re.fullmatch(r"[0-9a-f]{32}-\d+\.crc", each.name)]
        except OSError:
            return 0
        for lock in sorted(names, key=modified_ns):
            path = lock.removesuffix(".crc")
            held = []
            try:
                for name in (lock, path):  # of a process that fetches, of a broker
                    held.append(locked(name, 0))
                if None not in held:
                    removed += disk_bytes(lock) + disk_bytes(path)
                    os.unlink(path)
                    os.unlink(lock)
            except OSError:
                pass  # not a copy, or another broker removes it
            finally:
                for one in held:
                    if one is not None:
                        os.close(one)
            if removed >= wanted:
                break
        else:
            self.looked_s = now
        self.used -= removed
        return removed


# ---- fetching


class Requests:
    """What is asked of one store, and how many requests are sent to it at once: more while
    that brings more bytes, fewer when the store says so."""

    def __init__(self):
        self.limit, self.running = REQUESTS_FIRST, 0
        self.soon, self.later = deque(), deque()  # of pieces
        self.answered = False
        self.heads = asyncio.Semaphore(HEADS_MAX)
        self.bytes = self.sent = self.retries = self.throttled = self.hedged = 0
        self.bytes_tuned = self.begun_s = 0
        self.durations = deque(maxlen=64)
        self.best, self.before = 0.0, None  # before the limit was raised
        self.hold_s = self.halved_s = 0.0

    def retry(self, error):
        self.retries += 1
        throttled, slow = is_throttled(error), is_slow(error)
        self.throttled += throttled
        now = time.monotonic()
        if (throttled or slow) and now > self.halved_s + 1:  # not those that were sent before
            # On a slow link so many answers at once would all take too long.
            self.limit, self.before = max(1 if slow else REQUESTS_MIN, self.limit // 2), None
            self.halved_s, self.hold_s = now, now + 10

    def tune(self):
        """Bytes a second, of the last TUNE_S."""
        rate = (self.bytes - self.bytes_tuned) / TUNE_S
        self.bytes_tuned, now = self.bytes, time.monotonic()
        if self.running < self.limit or now < self.hold_s:
            pass
        elif self.before and rate < self.best * GAIN:  # more brought nothing: as before
            self.limit, self.before, self.hold_s = self.before, None, now + 5
        else:
            self.best, self.before = rate, self.limit
            self.limit = min(REQUESTS_MAX, self.limit + self.limit // 2 + 1)
        return rate

    def hedge_s(self):
        if self.hedged > HEDGED_MAX * self.sent + 1:
            return RANGE_TIMEOUT_S  # none is sent
        if len(self.durations) < 16:
            return HEDGE_FIRST_S
        return max(HEDGE_MIN_S, HEDGE_TIMES * sorted(self.durations)[len(self.durations) // 2])


class Piece:
    """Blocks that are fetched by one request."""

    __slots__ = ("copy", "first", "end", "urgent", "begun", "askers", "asked_ns", "tries")

    def __init__(self, opening, first, end, urgent):
        self.copy, self.first, self.end, self.urgent = opening.copy, first, end, urgent
        self.begun, self.tries = False, 0
        self.askers = {opening}
        self.asked_ns = time.monotonic_ns()


class Link:
    """A connection to a broker."""

    def __init__(self, fetcher, connection, owner=False):
        """owner: of this process, which ends with it."""
        self.fetcher, self.connection, self.loop = fetcher, connection, fetcher.loop
        self.owner, self.observes = owner, False
        self.openings = {}  # by number
        self.answers = deque()
        connection.setblocking(False)
        self.loop.add_reader(connection, self.receive)

    def answer(self, packet, descriptor=None):
        if self.connection.fileno() < 0:
            return
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
            except OSError:
                packet = b""
            if not packet:
                self.end()
                return
            if packet[:1] == b"{":
                message = json.loads(packet)
                if "first" in message:
                    self.numbers = itertools.count(message["first"])
                    self.say({"use": self.fetcher.use(0)})
                elif "observe" in message:
                    self.observes = message["observe"]
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

    def open(self, copy, room):
        opening = Opening(self, next(self.numbers), copy, room)
        self.fetcher.folder.rooms[room] += 1
        if self.connection.fileno() < 0:  # it ended meanwhile
            self.fetcher.close(opening)
            raise Failed(UNAVAILABLE, "the broker has ended")
        self.openings[opening.number] = opening
        return opening

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
        self.copies, self.open_bytes = {}, 0  # (url, version): copies; bytes of all
        self.told, self.telling = False, None  # that not all is kept
        self.coming = {}  # (copy, block): its piece
        self.lanes, self.new_lanes = [], itertools.count()  # of fetches at once; the free ones
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
                async for begin, end in packets(link, len(urls), lambda i: len(urls[i]) + 4):
                    link.say({"call": call, "urls": urls[begin:end], "more": end < len(urls)})
                return
            if message.get("version", "").endswith("/"):
                objects = await self.stores.list_folder(message["version"])
                link.say({"call": call, "version": objects.version})
                return
            if "version" in message:
                self.stores.listed.pop(message["version"], None)
                size, version = await self.stores.head(message["version"], anew=True)
                link.say({"call": call, "version": f"{size} {version}"})
                return
            if "try" in message:
                trial = Trial(self, message["try"], message["seconds"])
                link.say({"call": call, "found": await trial.run()})
                return
            if "put" in message:
                if self.stores.sections:
                    raise Failed(PERMISSION_DENIED, "a service writes to no store")
                store, path = self.stores.find(message["put"])
                await store.put(path, message["from"])
                link.say({"call": call})
                return
            room = message.get("room", 0)
            if "inode" in message:  # it was open when a former process had it
                self.stores.find(message.get("open") or message["folder"])[0] \
                    .requests.answered = True
            if "folder" in message:
                objects = await self.stores.list_folder(message["folder"])
                if message.get("had", objects.version) != objects.version:
                    raise Failed(DATA_LOSS, f"{message['folder']}: objects have come, gone or "
                                 "changed since it was opened: attach the job again")
                copy = self.open(FolderCopy, message["folder"], objects.version, objects,
                                 inode=message.get("inode"))
                opening = link.open(copy, room)
                async for begin, end in packets(link, len(objects), lambda i:
                                                len(objects.names.encoded(i)) + 32):
                    link.say({"call": call,
                              "names": [objects.names[i] for i in range(begin, end)],
                              "sizes": objects.sizes[begin:end].tolist(), "more": True})
                version = copy.version
            else:
                size, version = await self.stores.head(message["open"])
                copy = self.open(Copy, message["open"], f"{size} {version}", size, version,
                                 inode=message.get("inode"))
                opening = link.open(copy, room)
                version = f"{size} {version}"
            kept = self.folder.kept_room
            self.tell_room_soon()
            link.say({"call": call, "copy": opening.number, "bytes": copy.bytes,
                      "version": version, "path": copy.path,
                      "unit": UNIT if "open" in message and self.open_bytes <= kept else BLOCK,
                      "ahead": min(self.folder.room // PASSING_SHARE, AHEAD_MAX),
                      "room": self.folder.room, "kept": kept},
                     copy.read_only())
        except Exception as error:
            url = next(message[key] for key in ("open", "list", "version", "put", "folder", "try")
                       if key in message)
            told = failed(url, error) or Failed(UNAVAILABLE, f"{url}: {reason(error)}")
            # Who attaches would take it for the broker, and wait until that is back.
            code = FAILED_PRECONDITION if told.code == UNAVAILABLE else told.code
            link.say({"call": call, "error": [code, str(told)]})

    def tell_room_soon(self):
        """When no more files are opened, so that their sum is that of all."""
        if self.told or self.open_bytes <= self.folder.kept_room:
            return

        def tell(open_bytes, kept_room):
            self.told = True
            print(f"penstock: {open_bytes} bytes of objects of stores are open, and local "
                  f"copies have room for {kept_room}: the rest is fetched in each pass (`cache: "
                  "{files: SIZE}` lets them take more, PENSTOCK_CACHE_DIR moves them)",
                  file=sys.stderr, flush=True)
        if self.telling:
            self.telling.cancel()
        self.telling = self.loop.call_later(TELL_S, tell, self.open_bytes, self.folder.kept_room)

    def open(self, kind, url, version, *arguments, inode=None):
        """The copy, which all that open it share. inode: that of the one that a broker has."""
        for copy in self.copies.get((url, version), ()):
            if inode in (None, copy.inode):
                return copy
        while True:
            try:
                os.makedirs(self.folder.path, mode=0o700, exist_ok=True)  # removed meanwhile
                copy = kind(self.folder.path, url, *arguments, inode=inode)
                break
            except OSError as error:
                if error.errno not in FULL:
                    raise Failed(UNAVAILABLE, f"{error.filename or self.folder.path}: "
                                 f"{error.strerror}: set PENSTOCK_CACHE_DIR") from None
                if not self.folder.remove_unused(1):
                    raise Failed(RESOURCE_EXHAUSTED, self.no_space()) from None
        copy.key, copy.requests = (url, version), self.stores.find(url)[0].requests
        self.copies.setdefault(copy.key, []).append(copy)
        self.open_bytes += copy.bytes
        return copy

    def close(self, opening):
        copy = opening.copy
        copy.openings.remove(opening)
        self.folder.rooms[opening.room] -= 1
        self.folder.rooms += Counter()  # without zeros
        self.folder.quota = None  # it may be another by now
        self.remove_passed(copy, opening.passing)
        if copy.openings:
            return
        self.folder.passing -= copy.checked.count(PASSES) * BLOCK  # those that stay
        self.open_bytes -= copy.bytes
        self.copies[copy.key].remove(copy)
        if not self.copies[copy.key]:
            del self.copies[copy.key]
        copy.close()

    def no_space(self):
        return (f"{self.folder.path}: no space is left for what is fetched: make room, let the "
                "copies take less (`cache: {files: SIZE}`), or set PENSTOCK_CACHE_DIR")

    def use(self, rate):
        stores = self.stores.requests()

        def total(name):
            return sum(getattr(each, name) for each in stores)
        return {"bytes": total("bytes"), "bytes_per_s": int(rate), "requests": total("sent"),
                "at_once": total("limit"), "in_flight": total("running"),
                "queued": sum(len(each.soon) + len(each.later) for each in stores),
                "retries": total("retries"), "throttled": total("throttled"),
                "hedged": total("hedged"), "listing": self.stores.listing,
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
                self.pass_excess(copy, begin, block)
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
                (copy.requests.soon if urgent else copy.requests.later).append(piece)
        self.pump(copy.requests)

    def pass_excess(self, copy, first, end):
        """What a former process let pass, or kept in a larger room, passes now."""
        excess = self.folder.used - self.folder.passing - self.folder.kept_room
        for block in range(first, end):
            if excess > 0 and copy.checked[block] == KEPT:
                copy.checked[block] = PASSES
                self.folder.passing += BLOCK
                excess -= BLOCK

    def promote(self, copy, first, end):
        for piece in {self.coming.get((copy, block)) for block in range(first, end)}:
            if piece and not piece.urgent:
                piece.urgent = True
                if not piece.begun:
                    copy.requests.soon.append(piece)
        self.pump(copy.requests)

    def pump(self, requests):
        while requests.running < requests.limit and (requests.soon or requests.later):
            queue = requests.soon or requests.later
            size = queue[0].copy.size_of(queue[0].first, queue[0].end)
            # In the order of the rows: else those that are next could wait for the space of
            # others behind them, for ever.
            if not queue[0].begun and not self.folder.has_space(size, queue[0].urgent) and \
                    not self.folder.remove_unused(size):
                return
            piece = queue.popleft()
            if not piece.begun:
                piece.begun, requests.begun_s = True, time.monotonic()
                requests.running += 1
                self.folder.coming += size
                self.start(self.fetch(piece))

    def look(self):
        """Begins what has space by now, and ends what has had none for long."""
        for requests in self.stores.requests():
            self.pump(requests)
            queue = requests.soon or requests.later
            if requests.running or not queue:
                requests.begun_s = time.monotonic()
            elif time.monotonic() > requests.begun_s + RANGE_TIMEOUT_S:
                piece = queue.popleft()
                piece.begun = True
                self.fail(piece, Failed(RESOURCE_EXHAUSTED, self.no_space()))
                self.forget(piece)

    async def request(self, piece):
        requests = piece.copy.requests
        url, bytes_of, version_of_copy, first, _ = piece.copy.object_of(piece.first)
        begin = (piece.first - first) * BLOCK
        end = min((piece.end - first) * BLOCK, bytes_of)
        store, path = self.stores.find(url)
        requests.sent += 1
        begun = time.monotonic()
        try:
            data, size, version = await store.get(path, begin, end, version_of_copy)
        except Exception as error:
            if type(error).__name__ != "PreconditionError" and "status code: 416" not in str(error):
                raise
            version = None
        if version != version_of_copy or size not in (None, bytes_of):
            # Or a cache between has answered, of another time.
            if await store.head(path) != (bytes_of, version_of_copy):
                raise Failed(DATA_LOSS, f"{url}: the object has changed since it was opened")
            raise OSError("an answer of another version than the object has")
        if len(data) != end - begin:
            raise OSError(f"{len(data)} bytes came of {end - begin}")
        requests.durations.append(time.monotonic() - begun)
        requests.bytes += len(data)
        return data

    async def hedged(self, piece):
        """The first answer of two requests, if one takes long."""
        requests, begun = piece.copy.requests, time.monotonic()
        tasks = [self.loop.create_task(self.request(piece))]
        try:
            while True:
                done, left = await asyncio.wait(
                    tasks, timeout=requests.hedge_s() if len(tasks) == 1 else None,
                    return_when=asyncio.FIRST_COMPLETED)
                for each in sorted(done, key=lambda task: task.exception() is not None):
                    if not each.exception() or not left:
                        return each.result()
                # While others queue, the link is busy, and a second request makes it busier.
                waits = piece.urgent or not (requests.soon or requests.later)
                if done:
                    tasks = list(left)
                elif waits or time.monotonic() - begun > HEDGE_TIMES * requests.hedge_s():
                    requests.hedged += 1
                    tasks.append(self.loop.create_task(self.request(piece)))
        finally:
            for each in tasks:
                each.cancel()

    async def fetch(self, piece):
        copy = piece.copy
        url = copy.object_of(piece.first)[0]
        begun = time.monotonic_ns()
        lane = self.lanes.pop() if self.lanes else next(self.new_lanes)

        def once():
            piece.tries += 1
            return self.hedged(piece)
        try:
            try:
                if not copy.openings:
                    return  # closed
                data = await retried(url, self.stores.find(url)[0], once)
            finally:
                copy.requests.running -= 1
                self.pump(copy.requests)
            kind = await self.store(copy, piece, data)
            if kind is None:
                return
            for opening in piece.askers & set(copy.openings):
                opening.tell(kind, piece.first, piece.end)
            if kind == PASSES:  # of those that have closed it meanwhile
                self.remove_passed(copy, range(piece.first, piece.end))
        except Exception as error:
            self.fail(piece, failed(url, error) or
                      Failed(UNAVAILABLE, f"{url}: {reason(error)}"))
        finally:
            self.folder.coming -= copy.size_of(piece.first, piece.end)
            self.forget(piece)
            for link in self.links:
                if link.observes:
                    link.say({"span": {"lane": lane, "retries": max(0, piece.tries - 1),
                                       "bytes": copy.size_of(piece.first, piece.end),
                                       "asked": piece.asked_ns, "begin": begun,
                                       "end": time.monotonic_ns()}})
            self.lanes.append(lane)

    def fail(self, piece, told):
        for opening in piece.askers & set(piece.copy.openings):
            opening.tell_failure(piece.first, piece.end, told)

    def forget(self, piece):
        for each in range(piece.first, piece.end):
            self.coming.pop((piece.copy, each), None)

    async def store(self, copy, piece, data):
        """KEPT or PASSES; None: nobody has the copy open any more."""
        waited = 0
        while copy.openings:
            kind = KEPT if self.folder.keeps(len(data)) else PASSES
            try:
                copy.write(piece.first * BLOCK, data, kind)
            except OSError as error:
                if error.errno not in FULL:
                    raise Failed(UNAVAILABLE, f"{copy.path}: {error.strerror}: set "
                                 "PENSTOCK_CACHE_DIR") from None
                # What passes makes room soon; a part of this would take it from others.
                copy.remove(piece.first, piece.end)
                if not self.folder.remove_unused(len(data)):
                    self.folder.quota = self.folder.used
                if waited > RANGE_TIMEOUT_S:
                    raise Failed(RESOURCE_EXHAUSTED, self.no_space()) from None
                waited += RETRY_FIRST_S
                await asyncio.sleep(RETRY_FIRST_S)
                continue
            self.folder.used += len(data)
            if kind == PASSES:
                self.folder.passing += (piece.end - piece.first) * BLOCK
            return kind
        return None

    def give_up(self, opening, first, end):
        blocks = opening.passing.intersection(range(first, end))
        opening.passing -= blocks
        self.remove_passed(opening.copy, blocks)
        self.pump(opening.copy.requests)

    def remove_passed(self, copy, blocks):
        """Those that pass, and that nobody holds any more."""
        unheld = sorted(block for block in blocks if copy.checked[block] == PASSES and
                        not any(block in opening.passing for opening in copy.openings))
        for begin, end in runs(unheld):
            try:
                copy.remove(begin, end)
            except OSError:
                continue  # they stay
            self.folder.used -= copy.size_of(begin, end)
            self.folder.passing -= (end - begin) * BLOCK


async def packets(link, count, size_of):
    """(begin, end) of items that fit in a packet, when the broker has read most of those
    before."""
    begin = 0
    while True:
        end, size = begin, 0
        while end < count and size < PACKET:
            size += size_of(end)
            end += 1
        yield begin, end
        if end == count:
            return
        begin = end
        while len(link.answers) > ANSWERS_MAX:
            await asyncio.sleep(ANSWERS_S)


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
    use = None
    while True:
        await asyncio.sleep(TUNE_S)
        rate = sum(each.tune() for each in fetcher.stores.requests())
        fetcher.look()
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
        if not RANGE_TIMEOUT_S:
            raise Told(f"PENSTOCK_STORE_TIMEOUT_S is '{TIMEOUT}': wanted whole seconds, from 1")
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
