"""Local copies of objects, and the room they have. A part of the process that fetches
(python_fetcher.py)."""

import array
import bisect
import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import mmap
import re
import tempfile
import zlib
from collections import Counter, deque

KEPT, PASSES = 1, 2  # answered
BLOCK = 4096
# The part of the room that is for what passes, a larger one of a small room; and the most, of
# a job and of all.
PASSING_SHARE, PASSING_SHARE_SMALL, PASSING_SMALL = 32, 8, 4 << 20
AHEAD_MAX, PASSING_MAX = 1 << 30, 2 << 30
COPIES_MAX = 64  # of one object: of brokers that run beside each other
# The copy of a folder begins anew when objects that are gone had more of it than this many
# times what the others have.
GONE_MAX = 1
LOOK_S = 1  # between searches for copies that are not used
FULL = (28, 122)  # ENOSPC, EDQUOT
PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE


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

    def __init__(self, folder, url, size, version, inode=None, key=None):
        """inode: of the copy that the broker has; None: any that no other process has,
        which may remove what passes there."""
        self.url, self.bytes, self.version = url, size, version
        self.openings = []
        key = key or [url, size, version]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        self.objects_bytes, self.removed_bytes = size, 0
        self.data = self.lock = None
        try:
            for i in range(COPIES_MAX):
                if self.open(os.path.join(folder, f"{name}-{i}"), inode):
                    break
            else:
                raise Failed(UNAVAILABLE, f"{url}: its local copy was removed from {folder} while "
                             "it was read: attach the job again" if inode else
                             f"{url}: {COPIES_MAX} brokers have local copies of it in {folder}")
            self.place(inode is not None)
            self.blocks = -(-self.bytes // BLOCK)
            sums_bytes = max(4 * self.blocks, 4)
            os.ftruncate(self.lock, sums_bytes)
            # To write a page that the disk has no room for would be SIGBUS.
            os.posix_fallocate(self.lock, 0, sums_bytes)
            os.utime(self.path + ".crc")
            os.ftruncate(self.data, self.bytes)
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

    def place(self, again):
        """Says where in the copy its objects lie."""

    def seed(self, block):
        """What its checksum begins with."""
        return 0

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
            self.sums[first + i] = zlib.crc32(data[i * BLOCK:(i + 1) * BLOCK],
                                              self.seed(first + i)) or 1
        self.checked[first:first + i + 1] = bytes([kind]) * (i + 1)

    def check(self, first, end):
        """Which of these blocks, of an earlier process, are as they were fetched."""
        try:
            data = memoryview(os.pread(self.data, (end - first) * BLOCK, first * BLOCK))
        except OSError:
            data = b""
        for i in range(first, end):
            at = (i - first) * BLOCK
            if (zlib.crc32(data[at:at + BLOCK], self.seed(i)) or 1) == self.sums[i]:
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
    """The local copy of all objects of a folder, each beginning with a block. Those that an
    earlier listing had, too, lie where they lay, others behind them; a file beside it says
    where. A checksum begins with what its object is, so no block is taken for one of another."""

    def __init__(self, folder, url, objects, inode=None):
        self.names, self.sizes, self.versions = objects.names, objects.sizes, objects.versions
        self.hashes, self.seeds = objects.hashes, objects.seeds
        super().__init__(folder, url, 0, objects.version, inode, key=[url])
        self.objects_bytes = sum(self.sizes)
        if self.blocks > sum(map(self.blocks_of, range(len(self.sizes)))):
            end = 0
            for i in self.order:
                self.remove_gone(end, self.firsts[i])
                end = self.firsts[i] + self.blocks_of(i)
            self.remove_gone(end, self.blocks)

    def blocks_of(self, i):
        return -(-self.sizes[i] // BLOCK)

    def remove_gone(self, first, end):
        there = sum(1 for block in range(first, end) if self.sums[block])
        if there:
            with contextlib.suppress(OSError):  # they stay
                self.remove(first, end)
                self.removed_bytes += there * BLOCK

    def place(self, again):
        end = os.fstat(self.data).st_size // BLOCK
        former = self.former()
        # In Python, not by one call for all: other threads run between the objects.
        known = {name: first for name, first in zip(*former)} if former else {}
        live = sum(map(self.blocks_of, range(len(self.sizes))))
        if not again and (not known or end > (1 + GONE_MAX) * live):
            self.removed_bytes = os.fstat(self.data).st_blocks * 512
            known, end = {}, 0
            os.ftruncate(self.data, 0)
            os.ftruncate(self.lock, 0)
        self.firsts = array.array("Q")
        for i, name in enumerate(self.hashes):
            first = known.pop(name, None)
            if first is None or first + self.blocks_of(i) > end:
                if again:  # the broker reads it elsewhere
                    raise Failed(UNAVAILABLE, f"{self.url}: its local copy in {self.path} was "
                                 "damaged while it was read: attach the job again")
                first, end = end, end + self.blocks_of(i)
            self.firsts.append(first)
        self.bytes = end * BLOCK
        # Those with blocks, by their places.
        self.order = array.array("Q", sorted((i for i, size in enumerate(self.sizes) if size),
                                             key=lambda i: self.firsts[i]))
        self.starts = array.array("Q", (self.firsts[i] for i in self.order))
        if former == (self.hashes, self.firsts):
            return
        os.ftruncate(self.data, self.bytes)  # what comes later lies behind, whatever happens
        places = self.hashes.tobytes() + self.firsts.tobytes()
        with open(self.path + ".part", "wb") as file:
            file.write(places + struct.pack("<Q", zlib.crc32(places)))
        os.rename(self.path + ".part", self.path + ".places")

    def former(self):
        """What its objects are, and their first blocks; None: not known."""
        try:
            with open(self.path + ".places", "rb") as file:
                places = file.read()
        except OSError:
            return None
        places, crc = places[:-8], places[-8:]
        if len(places) % 16 or crc != struct.pack("<Q", zlib.crc32(places)):
            return None
        return (array.array("Q", places[:len(places) // 2]),
                array.array("Q", places[len(places) // 2:]))

    def at(self, block):
        return self.order[bisect.bisect_right(self.starts, block) - 1]

    def seed(self, block):
        return self.seeds[self.at(block)]

    def object_of(self, block):
        i = self.at(block)
        return (self.url + self.names[i], self.sizes[i], self.versions[i], self.firsts[i],
                self.firsts[i] + self.blocks_of(i))


class Opening:
    """A copy, as one broker has opened it."""

    __slots__ = ("link", "number", "copy", "passing", "room")

    def __init__(self, link, number, copy, room):
        """room: as of Folder.rooms."""
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
        # Copies that were not in use, the longest unused ones first, and when they were found.
        self.unused, self.looked_s = deque(), 0
        self.default_room = (self.used + self.free()) // 2
        # What the copies may take, as each opening says; 0: half of the disk; None: as
        # the others say.
        self.rooms = Counter()
        self.quota = None  # bytes; a quota of the disk has no other sign than an error

    def free(self):
        status = os.fstatvfs(self.descriptor)
        return status.f_bavail * status.f_frsize

    @property
    def room(self):
        wanted = max((room or self.default_room for room in self.rooms if room is not None),
                     default=self.default_room)
        return min(wanted, self.used + self.free() if self.quota is None else self.quota)

    @property
    def passing_room(self):
        room = self.room
        return min(max(room // PASSING_SHARE, min(room // PASSING_SHARE_SMALL, PASSING_SMALL)),
                   PASSING_MAX)

    @property
    def kept_room(self):
        return self.room - self.passing_room

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
        if time.monotonic() >= self.looked_s + LOOK_S:
            self.looked_s = time.monotonic()
            try:
                names = [each.path for each in os.scandir(self.path)
                         if re.fullmatch(r"[0-9a-f]{32}-\d+\.crc", each.name)]
            except OSError:
                names = []
            self.unused = deque(sorted(names, key=modified_ns))
        removed = 0
        while self.unused and removed < wanted:
            lock = self.unused.popleft()
            path = lock.removesuffix(".crc")
            held = []
            try:
                for name in (lock, path):  # of a process that fetches, of a broker
                    held.append(locked(name, 0))
                if None not in held:
                    for name in (path + ".places", path, lock):
                        removed += disk_bytes(name)
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name)
            except OSError:
                pass  # not a copy, or another broker removes it
            finally:
                for one in held:
                    if one is not None:
                        os.close(one)
        self.used -= removed
        return removed
