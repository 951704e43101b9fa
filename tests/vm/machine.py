"""A virtual machine with four processors and two NUMA nodes, for the tests of this
folder. QEMU emulates it: no KVM is needed. It boots Debian's cloud kernel, whose
package is downloaded into a folder, not installed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

KERNEL = "linux-image-cloud-amd64"
BUSYBOX = "/bin/busybox"


def fail(message):
    print(f"{pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(1)


def need_programs():
    os.environ["LC_ALL"] = "C"
    for program in ("qemu-system-x86_64", BUSYBOX):
        if shutil.which(program) is None:
            fail(f"{program} is not here: tests/install_packages qemu-system-x86 "
                 "busybox-static")


class Kernel:
    """The newest one there is, unpacked in the folder.

    image: its file. modules: the folder of its modules.
    """

    def __init__(self, folder):
        policy = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True,
                                text=True, check=True).stdout
        found = re.search(r"Depends: (linux-image-\S+-cloud-amd64\S*)", policy)
        if not found:
            fail(f"apt does not know {KERNEL}: run apt-get update")
        unpacked = folder / found.group(1)
        if not unpacked.exists():
            for old in folder.glob("*.deb"):
                old.unlink()
            # apt downloads as another user where it may.
            subprocess.run(["apt-get", "-q", "download", unpacked.name], cwd=folder,
                           check=True)
            archive = next(folder.glob("*.deb"))
            part = folder / "part"
            shutil.rmtree(part, ignore_errors=True)
            subprocess.run(["dpkg-deb", "-x", archive, part], check=True)
            part.rename(unpacked)
        self.image = next(unpacked.glob("boot/vmlinuz-*"))
        self.modules = next(unpacked.glob("lib/modules/*"))

    def module_files(self, names):
        """Files of these modules and of those they need, in the order to load them."""
        needs = self.modules / "modules.dep"
        if not needs.exists():
            subprocess.run([BUSYBOX, "depmod", "-b", self.modules.parents[2],
                            self.modules.name], check=True)
        # "a.ko: b.ko c.ko": a needs c, then b.
        lines = dict(line.split(":", 1) for line in needs.read_text().splitlines())
        of_name = {pathlib.Path(path).stem: path for path in lines}
        files = []
        for name in names:
            path = of_name[name]
            for each in [*reversed(lines[path].split()), path]:
                if each not in files:
                    files.append(each)
        return [self.modules / each for each in files]


def libraries_of(program):
    """Paths of what the loader loads with it, the loader included."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True,
                            check=True).stdout
    return re.findall(r"(/\S+) \(0x", output)


def write_initramfs(path, init, files):
    """The first file system: busybox, its script init, and these files."""
    root = path.parent / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in sorted({BUSYBOX, *map(str, files)}):
        to = root / name.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, to)
    script = root / "init"
    script.write_text(init)
    script.chmod(0o755)
    with open(path, "wb") as archive:
        names = subprocess.run([BUSYBOX, "find", "."], cwd=root, check=True,
                               capture_output=True).stdout
        subprocess.run([BUSYBOX, "cpio", "-o", "-H", "newc"], cwd=root, input=names,
                       stdout=archive, stderr=subprocess.DEVNULL, check=True)
    shutil.rmtree(root)


def command(kernel, initramfs, options=(), parameters=""):
    """What starts it; its console is the first serial line."""
    node = "memory-backend-ram,size=1G,id=memory"
    return [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
        "-smp", "4,sockets=2,cores=2", "-m", "2G",
        "-object", node + "0", "-numa", "node,nodeid=0,cpus=0-1,memdev=memory0",
        "-object", node + "1", "-numa", "node,nodeid=1,cpus=2-3,memdev=memory1",
        "-kernel", kernel.image, "-initrd", initramfs,
        "-append", f"console=ttyS0 quiet panic=-1 {parameters}", "-display", "none",
        "-monitor", "none", "-nic", "none", "-no-reboot", *options]
