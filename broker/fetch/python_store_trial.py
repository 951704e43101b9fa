"""What `penstock doctor` finds of a store: a part of the process that fetches, so that it has
its client, its credentials and its network."""

# A range that the link limits rather than its latency; small ones; and how many at once.
TRIAL_BYTES, TRIAL_SMALL, TRIAL_SMALL_TIMES = 1 << 20, 4096, 16
TRIAL_AT_ONCE = (1, 4, 16, 64)
TRIAL_HOST_S = 5
# Variables of the environment, by the beginning of an address.
TRIAL_CREDENTIALS = {
    "s3": ("AWS_SKIP_SIGNATURE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE",
           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_SKIP_SIGNATURE", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
           "GOOGLE_APPLICATION_CREDENTIALS"),
    "az": ("AZURE_SKIP_SIGNATURE", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
           "AZURE_STORAGE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")}


def credentials_of(scheme):
    """Where they come from, never what they are."""
    if scheme.startswith("http"):
        return "none"
    for name in TRIAL_CREDENTIALS.get(scheme[:2], ()):
        if os.environ.get(name):
            return name + " of the environment"
    if not scheme.startswith("s3"):
        return "the client's own search"
    try:
        import boto3
        found = boto3.Session().get_credentials()
    except ImportError:
        return "the machine's role (profiles and SSO are found where boto3 is installed)"
    except Exception as error:
        return f"boto3 finds none ({type(error).__name__})"
    return f"boto3: {found.method}" if found else "none are found"


def server_date(endpoint):
    """The server's clock, in seconds since 1970; None: it does not tell."""
    import email.utils
    import urllib.error
    import urllib.request
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=TRIAL_HOST_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        return None
    told = headers.get("Date")
    return email.utils.parsedate_to_datetime(told).timestamp() if told else None


class Trial:
    def __init__(self, fetcher, url, seconds):
        self.stores, self.folder = fetcher.stores, fetcher.folder
        self.url, self.seconds = url, seconds
        scheme, _, rest = url.partition("://")
        self.scheme, self.place = scheme, rest.partition("/")[0]
        self.found = {"url": without_secrets(url), "credentials": credentials_of(scheme),
                      "folder": self.folder.path, "room_bytes": self.folder.room,
                      "kept_bytes": self.folder.kept_room, "free_bytes": self.folder.free(),
                      "throttled": 0, "failed": 0}

    async def run(self):
        for step in (self.resolve, self.choose, self.read_small, self.read_large):
            try:
                await step()
            except Exception as error:
                told = failed(self.url, error) or Failed(
                    UNAVAILABLE, f"{self.url}: {explained(error, self.found.get('host') or 'the store')}")
                self.found["error"] = {"step": step.__name__, "code": told.code,
                                       "text": str(told)[:1000]}
                break
        return self.found

    async def resolve(self):
        endpoint = endpoint_of(self.scheme, self.place, {})
        if endpoint is None:
            return
        import urllib.parse
        parts = urllib.parse.urlsplit(endpoint)
        self.found["host"] = parts.hostname
        try:
            await asyncio.wait_for(asyncio.to_thread(
                socket.getaddrinfo, parts.hostname, parts.port or parts.scheme), TRIAL_HOST_S)
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:
            raise Failed(UNAVAILABLE, f"{parts.hostname}: its name is not resolved ({error})") \
                from None
        before = time.time()
        date = await asyncio.to_thread(server_date, endpoint)
        if date is not None:
            # A Date has whole seconds.
            self.found["clock_skew_s"] = round((before + time.time()) / 2 - date - 0.5, 1)

    async def choose(self):
        """An object to read: the address, else the largest of the first below it."""
        url = self.url
        if self.place and url.count("/") == 2:
            url += "/"
        glob = None if self.scheme.startswith("http") else GLOB.search(url)
        if glob:
            url = url[:glob.start()].rpartition("/")[0] + "/"
        store, path = self.stores.find(url)
        self.store, self.path = store, path
        if not url.endswith("/"):
            try:
                self.size, self.version = await store.head(path)
                self.found["object"] = without_secrets(url)
                return
            except Exception as error:
                told = failed(url, error)
                if not store.lists or told is None or told.code != NOT_FOUND:
                    raise
            path += "/"
        if not store.lists:
            raise Failed(INVALID_ARGUMENT, f"{url}: a web server lists no files: name one of them")
        begun = time.monotonic()
        async for chunk in store.list(path, None):
            break
        else:
            chunk = []
        self.found["list_s"] = time.monotonic() - begun
        self.found["listed"] = len(chunk)
        objects = [each for each in chunk if each[1] > 0]
        if not objects:
            raise Failed(NOT_FOUND, f"{self.url}: there are no objects that could be read")
        self.path, self.size, self.version = max(objects, key=lambda each: each[1])
        self.found["object"] = self.path

    async def get(self, size):
        begin = random.randrange(0, max(1, self.size - size), TRIAL_SMALL)
        end = min(begin + size, self.size)
        data, _, version = await self.store.get(self.path, begin, end, self.version)
        if len(data) != end - begin:
            raise Failed(UNAVAILABLE, f"{self.path}: {len(data)} bytes came where "
                         f"{end - begin} were asked for: it has no ranges")
        return len(data), version

    async def read_small(self):
        self.found["bytes"] = self.size
        self.found["etag"] = self.version.startswith(('"', "W/")) or self.scheme.startswith("s3")
        times = []
        for _ in range(TRIAL_SMALL_TIMES):
            begun = time.monotonic()
            _, version = await self.get(TRIAL_SMALL)
            times.append(time.monotonic() - begun)
        self.found["first_byte_s"] = sorted(times)[len(times) // 2]
        if version != self.version:
            raise Failed(DATA_LOSS, f"{self.path}: its version is another in each answer")

    async def read_large(self):
        share = self.seconds / (len(TRIAL_AT_ONCE) + 1)
        rates = self.found["rates"] = []
        for at_once in TRIAL_AT_ONCE:
            _, rate = await self.measure(TRIAL_BYTES, at_once, share)
            rates.append({"at_once": at_once, "bytes_per_s": int(rate)})
        self.found["requests_per_s"], _ = await self.measure(
            TRIAL_SMALL, TRIAL_AT_ONCE[-1], share)

    async def measure(self, size, at_once, seconds):
        """Requests and bytes a second, with so many at once."""
        begun = time.monotonic()
        sums = [0, 0]

        async def read():
            while time.monotonic() < begun + seconds:
                try:
                    got, _ = await self.get(size)
                    sums[0] += 1
                    sums[1] += got
                except Exception as error:
                    if failed(self.url, error):
                        raise
                    self.found["throttled" if is_throttled(error) else "failed"] += 1
                    await asyncio.sleep(RETRY_FIRST_S)
        await asyncio.gather(*(read() for _ in range(at_once)))
        spent = time.monotonic() - begun
        return sums[0] / spent, sums[1] / spent
