"""Stores: what they have, give and say. A part of the process that fetches
(python_fetcher.py)."""

import array
import asyncio
import concurrent.futures
import configparser
import fnmatch
import hashlib
import math
import random
import re
import urllib.parse
from collections import deque

# Codes of a status (common/status.h).
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 5, 7, 8
FAILED_PRECONDITION, UNAVAILABLE, DATA_LOSS = 9, 14, 15
# A request of this size has its rate limited by the link rather than by its latency.
REQUESTS_FIRST, REQUESTS_MIN, REQUESTS_MAX, HEADS_MAX = 16, 4, 256, 64
TUNE_S = 0.5
GAIN = 1.05
# A request is sent once more when it takes this many times the median, or the time in which
# all that was asked for comes at the present rate.
HEDGE_TIMES, HEDGE_MIN_S, HEDGE_FIRST_S = 4, 0.5, 3
HEDGED_MAX = 0.05  # of the requests
# From the first request of a range to its error, retries included.
TIMEOUT = os.environ.get("PENSTOCK_STORE_TIMEOUT_S") or "120"
RANGE_TIMEOUT_S = int(TIMEOUT) if re.fullmatch("[0-9]{1,6}", TIMEOUT) else 0
REQUEST_TIMEOUT_S = RANGE_TIMEOUT_S / 4
CONNECT_TIMEOUT_S = RANGE_TIMEOUT_S / 15  # a part of a try
# As RANGE_TIMEOUT_S, of a store that has never answered: its address may be wrong.
FIRST_TIMEOUT_S = max(RANGE_TIMEOUT_S / 4, min(RANGE_TIMEOUT_S, 5))
TRIES_MIN = 3  # in that time
# The same, where nobody is at its address.
NOBODY_TIMEOUT_S = RANGE_TIMEOUT_S / 24
# Who waits for a store that has never answered is told so after this.
SILENT_S = 2
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10
# Servers close connections that are idle: after 5 s or more, as a rule.
IDLE_S = 4
# How often credentials are read that have expired.
RENEW_S = 1
LISTED_MAX = 10_000_000
URLS_MAX = 1 << 18
# What was listed is known as long for opening.
LISTED_S = 60
# A commit of a hub is that of all that are opened by name with shorter pauses; and how often
# it is asked whether there is another.
COMMIT_S, COMMIT_ANEW_S = 5, 1
INSTALL = ("object stores are read with obstore, which {} cannot import ({}): pip install "
           "obstore into the Python that the {} runs")
GLOB = re.compile(r"[*?\[]")


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
        text = f"no {'connection' if 'tcp connect error' in causes else 'answer'} in time"
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


UNRESOLVED = "failed to lookup|Failed to resolve|Name or service not known|name resolution"
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
    if name == "NotSupportedError" or re.match("405|501", text):
        return Failed(INVALID_ARGUMENT,
                      f"{url}: the server cannot do what is asked ({text}): files are read in "
                      "parts, by requests with a range, as nginx, Apache and object stores "
                      "answer them, and written by PUT")
    return None


# Where a reason alone does not say what to do: about a store's endpoint.
HINTS = {UNRESOLVED: "the host of {} is not known: check its name, and this host's DNS",
         "[Rr]efused": "nothing listens at {}: check the address (AWS_ENDPOINT_URL and the like)",
         "no connection": "check the address {}, the network and its firewalls",
         "": "check the network and {}"}


def explained(error, endpoint):
    text = reason(error)
    if asks_for_role(error):
        return (f"{text}: no credentials are given, and this machine has no role to ask for them: "
                "give some, or AWS_SKIP_SIGNATURE=true (GOOGLE_, AZURE_) if everybody may read it")
    hint = next(HINTS[each] for each in HINTS if re.search(each, text))
    return f"{text}: {hint.format(endpoint)}"


def timed_out(url, error, tries, seconds, endpoint):
    return Failed(UNAVAILABLE,
                  f"{url}: no good answer in {seconds:.0f} s, of {tries} "
                  f"{'tries' if tries > 1 else 'try'}; the last one: {explained(error, endpoint)}; "
                  f"PENSTOCK_STORE_TIMEOUT_S (now {RANGE_TIMEOUT_S}) waits longer")


def asks_for_role(error):
    """It is an error of the address at which a machine in a cloud asks for credentials."""
    return re.search("latest/api/token|computeMetadata|metadata/identity", str(error)) is not None


def is_of_nobody(error):
    return asks_for_role(error) or re.search(f"[Rr]efused|{UNRESOLVED}", str(error)) is not None


def is_throttled(error):
    return re.search(r"status code: (429|503)\b|SlowDown|Too Many Requests",
                     str(error)) is not None


def is_slow(error):
    return isinstance(error, asyncio.TimeoutError) or "kind: Timeout" in str(error)


def is_closed(error):
    """The server has closed a connection that was idle, maybe."""
    return re.search(r"SendRequest,.*(IncompleteMessage|ConnectionReset|BrokenPipe)",
                     str(error), re.S) is not None


def milliseconds(seconds):
    return f"{int(seconds * 1000)}ms"


def endpoint_of(scheme, place, keys):
    """The web server that answers for a store; None: not known. keys: of its client."""
    given = {**os.environ, **{name.upper(): value for name, value in keys.items()}}

    def first(*names):
        return next((given[name] for name in names if given.get(name)), None)
    if scheme.startswith("http"):
        return f"{scheme}://{place}"
    if scheme.startswith("s3"):
        region = first("AWS_REGION", "REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        return first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "ENDPOINT_URL",
                     "ENDPOINT") or f"https://s3.{region}.amazonaws.com"
    if scheme == "gs":
        return "https://storage.googleapis.com"
    account = first("AZURE_STORAGE_ACCOUNT_NAME", "ACCOUNT_NAME")
    if scheme.startswith("az") and account:
        return first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "ENDPOINT") or \
            f"https://{account}.blob.core.windows.net"
    return None


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
    """Those below a folder: their names below it, bytes and versions; hashes and seeds of all
    three."""

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
        made.hashes, made.seeds = array.array("Q"), array.array("I")
        digest = hashlib.sha256()
        for i, size in enumerate(made.sizes):
            of_object = hashlib.sha256(repr((made.names[i], size, made.versions[i])).encode())
            made.hashes.frombytes(of_object.digest()[:8])
            made.seeds.frombytes(of_object.digest()[8:12])
            digest.update(of_object.digest())
        made.version = digest.hexdigest()
        return made


OBSTORE_SCHEMES = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"}


class Requests:
    """What is asked of one store, and how many requests are sent to it at once: more while
    that brings more bytes, fewer when the store says so."""

    def __init__(self):
        self.limit, self.running = REQUESTS_FIRST, 0
        self.soon, self.later = deque(), deque()  # of pieces
        self.answered = False
        self.asked_s = math.inf  # when it was, if it has never answered
        self.heads = asyncio.Semaphore(HEADS_MAX)
        self.bytes = self.sent = self.retries = self.throttled = self.hedged = 0
        self.bytes_tuned = self.begun_s = 0
        self.coming, self.rate = 0, 0.0  # bytes, of requests under way; bytes a second
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
        self.rate = rate = (self.bytes - self.bytes_tuned) / TUNE_S
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
        median = sorted(self.durations)[len(self.durations) // 2]
        # With more requests at once each takes longer, and those of before say less.
        return max(HEDGE_MIN_S, HEDGE_TIMES * max(median, self.coming / max(self.rate, 1.0)))


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
            store.endpoint = without_secrets(
                endpoint_of(scheme, rest.partition("/")[0], keys) or f"{scheme}://")
            self.of_root[root, section] = store
        return self.of_root[root, section], path

    def requests(self):
        return [store.requests for store in self.of_root.values()]

    def silent(self):
        """Of the store that has been waited for the longest, of those that have never answered;
        empty: not long."""
        now = time.monotonic()
        waited = [(store.requests.asked_s, store.endpoint) for store in self.of_root.values()
                  if not store.requests.answered and now - SILENT_S > store.requests.asked_s]
        if not waited:
            return {}
        asked_s, endpoint = min(waited)
        # Who asks a service may be told nothing of others' stores.
        return {"silent": "an object store" if self.sections else endpoint,
                "silent_s": int(now - asked_s), "silent_max_s": int(FIRST_TIMEOUT_S)}

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
    requests.asked_s = min(requests.asked_s, begun)
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
            if not requests.answered and is_of_nobody(error):
                limit = NOBODY_TIMEOUT_S
            seconds = time.monotonic() - begun
            if limit - seconds <= wait:
                requests.asked_s = math.inf
                raise final or timed_out(url, cause, tries, seconds, store.endpoint) from None
            # Connections that were idle may be closed by now: once more, at once.
            if tries > 1 or not is_closed(error):
                requests.retry(error)
                wait = wait or (RETRY_FIRST_S if is_throttled(error) else 0)
        await asyncio.sleep(wait * random.uniform(0.5, 1))
        wait = min(max(2 * wait, RETRY_FIRST_S), RETRY_MAX_S)
