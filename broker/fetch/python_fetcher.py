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
                                 {"call": N, "names": [...], "sizes": [...],
                                 "offsets": [...], "more": true},
                                 then as for open; no names after "inode"
  {"call": N, "version": url}    {"call": N, "version": text}
  {"call": N, "put": url, "from": path}   {"call": N}
  {"call": N, "try": url, "seconds"}      {"call": N, "found": {...}} (python_store_trial.py)
  any                            {"call": N, "error": [code, text]}
  {"cancel": N}                  nobody waits for that call any more
  {"observe": bool}              {"span": {...}} of each range that is fetched from now on
  twice a second, if it changed  {"use": {...}}: `stores` of a status, "listing", "silent"
  a range that cannot be had     {"copy": K, "offset", "bytes", "error": [code, text]}
"""

import argparse
import asyncio
import configparser
import contextlib
import fcntl
import hashlib
import itertools
import re
import weakref
from collections import Counter, deque

WANT, HURRY, GIVE_UP, CLOSE, PROMOTE = 1, 2, 3, 4, 5  # asked
# What is fetched at once, if the room takes all of it: a record is part of it as a rule.
UNIT = 512 << 10
REQUEST_BYTES_MAX = 8 << 20
TELL_S = 0.5  # after the last file that was opened
PACKET = 1 << 15
# Packets of a long list that wait for the broker, and how long it is given.
ANSWERS_MAX, ANSWERS_S = 64, 0.001
# What decides which stores an address means, and as whom.
ENVIRONMENT = re.compile(r"AWS_|AZURE_|GOOGLE_|GCP_|GCS_|HF_|HUGGING|FSSPEC_|SSL_|\w*_PROXY$|HOME$|"
                         "PENSTOCK_STORE_TIMEOUT_S$", re.IGNORECASE)
CONNECT_TRIES, CONNECT_WAIT_S = 40, 0.05


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
        self.calls = {}  # their tasks
        self.use = None  # as it was told last
        self.answers = deque()
        connection.setblocking(False)
        self.loop.add_reader(connection, self.receive)

    def answer(self, packet, descriptor=None):
        if self.connection.fileno() < 0:
            if descriptor is not None:
                os.close(descriptor)
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
                elif "cancel" in message:
                    if task := self.calls.pop(message["cancel"], None):
                        task.cancel()
                else:
                    call = message["call"]
                    task = self.calls[call] = self.fetcher.start(
                        self.fetcher.serve(self, message))
                    task.add_done_callback(lambda _, call=call: self.calls.pop(call, None))
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
        for task in self.calls.values():
            task.cancel()
        for opening in self.openings.values():
            self.fetcher.close(opening)
        self.openings.clear()


class Fetcher:
    def __init__(self, options):
        self.links = set()
        self.stores = Stores(Sections(options["stores"]) if "stores" in options else None)
        self.folder = Folder(options["folder"])
        self.copies, self.open_bytes = {}, 0  # (url, version): copies; bytes of all
        self.locks = weakref.WeakValueDictionary()  # by address, while it is opened
        self.told, self.telling = False, None  # that not all is kept
        self.coming = {}  # (copy, block): its piece
        self.lanes, self.new_lanes = [], itertools.count()  # of fetches at once; the free ones
        self.loop = asyncio.get_running_loop()
        self.tasks = set()

    def start(self, work):
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def accept(self, listener):
        connection, _ = listener.accept()
        self.links.add(Link(self, connection))

    # -- calls

    async def serve(self, link, message):
        call, opening = message["call"], None
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
                await retried(message["put"], store, lambda: store.put(path, message["from"]))
                link.say({"call": call})
                return
            room = message.get("room")
            if "inode" in message:  # it was open when a former process had it
                self.stores.find(message.get("open") or message["folder"])[0] \
                    .requests.answered = True
            if "folder" in message:
                objects = await self.stores.list_folder(message["folder"])
                if message.get("had", objects.version) != objects.version:
                    raise Failed(DATA_LOSS, f"{message['folder']}: objects have come, gone or "
                                 "changed since it was opened: attach the job again")
                copy = await self.open(FolderCopy, message["folder"], objects.version, objects,
                                       inode=message.get("inode"))
                opening = link.open(copy, room)
                # Who has had it open has the names.
                count = 0 if "inode" in message else len(objects)
                async for begin, end in packets(link, count, lambda i:
                                                len(objects.names.encoded(i)) + 48):
                    link.say({"call": call,
                              "names": [objects.names[i] for i in range(begin, end)],
                              "sizes": objects.sizes[begin:end].tolist(),
                              "offsets": [first * BLOCK for first in copy.firsts[begin:end]],
                              "more": True})
                version = copy.version
            else:
                size, version = await self.stores.head(message["open"])
                copy = await self.open(Copy, message["open"], f"{size} {version}", size, version,
                                       inode=message.get("inode"))
                opening = link.open(copy, room)
                version = f"{size} {version}"
            kept = self.folder.kept_room
            self.tell_room_soon()
            link.say({"call": call, "copy": opening.number, "bytes": copy.bytes,
                      "version": version, "path": copy.path,
                      "unit": UNIT if "open" in message and self.open_bytes <= kept else BLOCK,
                      "ahead": min(self.folder.passing_room, AHEAD_MAX),
                      "room": self.folder.room, "kept": kept},
                     copy.read_only())
        except BaseException as error:
            if opening and link.openings.pop(opening.number, None):
                self.close(opening)
            if not isinstance(error, Exception):  # cancelled
                raise
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

    async def open(self, kind, url, version, *arguments, inode=None):
        """The copy, which all that open it share. inode: that of the one that a broker has."""
        async with self.locks.setdefault(url, asyncio.Lock()):
            return await self.open_alone(kind, url, version, *arguments, inode=inode)

    async def open_alone(self, kind, url, version, *arguments, inode):
        def make():
            return kind(self.folder.path, url, *arguments, inode=inode)

        def discard(copy):
            self.folder.used -= copy.removed_bytes
            copy.close()
        for copy in self.copies.get((url, version), ()):
            if inode in (None, copy.inode):
                return copy
        while True:
            try:
                os.makedirs(self.folder.path, mode=0o700, exist_ok=True)  # removed meanwhile
                # The places of many objects take seconds.
                copy = await in_thread(make, discard) if kind is FolderCopy else make()
                break
            except OSError as error:
                if error.errno not in FULL:
                    raise Failed(UNAVAILABLE, f"{error.filename or self.folder.path}: "
                                 f"{error.strerror}: set PENSTOCK_CACHE_DIR") from None
                if not self.folder.remove_unused(1):
                    raise Failed(RESOURCE_EXHAUSTED, self.no_space()) from None
        copy.key, copy.requests = (url, version), self.stores.find(url)[0].requests
        self.copies.setdefault(copy.key, []).append(copy)
        self.open_bytes += copy.objects_bytes
        self.folder.used -= copy.removed_bytes
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
        self.open_bytes -= copy.objects_bytes
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
                "copies_bytes": self.folder.used, "copies_room_bytes": self.folder.room,
                **self.stores.silent()}

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
        requests.coming += end - begin
        begun = time.monotonic()
        try:
            data, size, version = await store.get(path, begin, end, version_of_copy)
        except Exception as error:
            if type(error).__name__ != "PreconditionError" and "status code: 416" not in str(error):
                raise
            version = None
        finally:
            requests.coming -= end - begin
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


async def in_thread(make, discard):
    """What it makes, which is discarded where nobody waits for it any more."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            discard(await making)
        raise


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
    while True:
        await asyncio.sleep(TUNE_S)
        rate = sum(each.tune() for each in fetcher.stores.requests())
        fetcher.look()
        use = fetcher.use(rate)
        for link in fetcher.links:
            if link.use != use and not link.answers:  # one that is stopped is told later
                link.use = use
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
