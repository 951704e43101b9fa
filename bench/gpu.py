#!/usr/bin/env python3
"""What does the last copy, to the GPU, cost, and is the GPU kept busy?

    bench/gpu.py --photographs DIR [--only NAME,...] [--seconds 15] [--out FILE]

Needs an NVIDIA GPU, PyTorch with CUDA, torchvision and this tree's Python package;
without a GPU it says so and ends with status 77. DALI (nvidia-dali-cuda120) is
measured where it is installed. DIR: of make_photographs.py. Below 10 minutes.

Method: each part is a process of its own, so that none finds another's memory or
caches of CUDA; rates are of a window after a warm-up, CPU seconds those of the
process and all it has started (peers/measure.py), utilisation nvidia-smi's mean.

  bandwidth  one batch of 38 MB copied again and again (repeat_first), beside copies
             of as much memory that PyTorch has pinned: goal 0.98
  loader     rows of 150 KB from a .npy file, beside a DataLoader with pin_memory and a
             process per core: goal 2. staging_bytes 0: no copy on the host
  cycles     1,000 readers that attach, copy a batch and detach: no growth
  killed     a rank that is killed while its batch is copied: no row is lost or unmarked
  resnet     ResNet-50, bf16, channels_last, on photographs as uint8, fed by nothing (one
             tensor), Penstock, a tuned DataLoader, DALI on the CPU and on the GPU:
             goal 90 % of the first at no more than 40 % of the CPU
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import measure  # noqa: E402

ROW_BYTES, BATCH = 150_000, 256
FEEDS = ("synthetic", "penstock", "dataloader", "dali_cpu", "dali_gpu")
CORES = len(os.sched_getaffinity(0))


def cpu_seconds():
    own = os.times()
    return own.user + own.system + sum(measure.descendants().values())


class Window:
    """Counts what happens in the given seconds, after a warm-up."""

    def __init__(self, seconds, warm_up_s=5):
        import torch
        self.synchronize = torch.cuda.synchronize
        self.seconds, self.warm_up_s = seconds, warm_up_s
        self.began = time.monotonic()
        self.begin = None
        self.count = 0

    def done(self):
        """To be called once a batch."""
        now = time.monotonic()
        if self.begin is None:
            if now - self.began < self.warm_up_s:
                return False
            self.synchronize()
            self.begin, self.cpu = time.monotonic(), cpu_seconds()
            self.watch = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits",
                 "-lms", "500"], stdout=subprocess.PIPE, text=True)
            return False
        self.count += 1
        if now - self.begin < self.seconds:
            return False
        self.synchronize()
        passed = time.monotonic() - self.begin
        cpu = cpu_seconds() - self.cpu
        self.watch.terminate()
        busy = [int(line) for line in self.watch.communicate()[0].split() if line.isdigit()]
        self.result = {"per_s": self.count / passed, "cpu_cores": cpu / passed,
                       "gpu_percent": sum(busy) / max(len(busy), 1)}
        return True


def rows(batches):
    import penstock
    return penstock.Dataset.synthetic(
        BATCH * batches, {"x": {"dtype": "uint8", "shape": [ROW_BYTES]}}).batch(BATCH)


def bandwidth(options):
    import penstock
    import torch
    found = {}
    pinned = torch.empty(BATCH * ROW_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(pinned, device="cuda")
    with penstock.attach(rows(4), autostart=True, repeat_first=True) as reader:
        reader.prefetch_to_device()
        for name in ("pinned", "penstock") * 3:
            def copy():
                if name == "pinned":
                    target.copy_(pinned, non_blocking=True)
                else:
                    reader.next().cuda()
            for _ in range(20):
                copy()
            torch.cuda.synchronize()
            begin = time.monotonic()
            for _ in range(200):
                copy()
            torch.cuda.synchronize()
            rate = 200 * BATCH * ROW_BYTES / (time.monotonic() - begin) / 1e9
            found.setdefault(name + "_gb_per_s", []).append(rate)
        found["stats"] = reader.stats()
    found["ratio"] = (max(found["penstock_gb_per_s"]) / max(found["pinned_gb_per_s"]))
    return found


def loader(options):
    import numpy as np
    import penstock
    import penstock.torch
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(data)

        def __getitem__(self, index):
            return torch.from_numpy(data[index].copy())

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = folder + "/rows.npy"
        np.save(path, np.random.default_rng(0).integers(0, 255, (10_000, ROW_BYTES), np.uint8))
        data = np.load(path, mmap_mode="r")
        found = {}

        def drain(name, batches):
            window = Window(options.seconds)
            for batch in batches:
                x = batch if torch.is_tensor(batch) else batch[0]
                x.cuda(non_blocking=True).view(-1)[0]
                if window.done():
                    break
            found[name] = window.result

        spec = penstock.Dataset.npy({"x": path}).shuffle(seed=1).batch(BATCH).repeat(None)
        with penstock.torch.DataLoader(spec, features=("x",), device="cuda",
                                       autostart=True) as ours:
            drain("penstock", (x for _ in range(1000) for x in ours))
            found["stats"] = ours.reader.stats()
        theirs = torch.utils.data.DataLoader(
            Rows(), BATCH, shuffle=True, num_workers=CORES, pin_memory=True,
            persistent_workers=True, prefetch_factor=4)
        drain("dataloader", (x for _ in range(1000) for x in theirs))
    found["ratio"] = found["penstock"]["per_s"] / found["dataloader"]["per_s"]
    return found


def cycles(options):
    import penstock
    import torch
    torch.zeros(1, device="cuda")
    found = {}
    with penstock.broker():
        for cycle in range(1001):
            with penstock.attach(rows(1), job="cycles") as reader:
                reader.prefetch_to_device()
                assert reader.next().cuda()["x"].shape[0] == BATCH
            if cycle in (10, 1000):
                found[f"gpu_free_bytes_{cycle}"] = torch.cuda.mem_get_info()[0]
                found[f"resident_pages_{cycle}"] = int(
                    pathlib.Path("/proc/self/statm").read_text().split()[1])
    return found


KILLED = """
import os, signal, penstock
reader = penstock.attach(penstock.Dataset.range(64 * 100000).batch(100000), job="killed")
reader.prefetch_to_device()
for _ in range(3):
    batch = reader.next()
    print(batch["value"].sum(), flush=True)
    batch.cuda()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(options):
    import penstock
    with penstock.broker() as broker:
        first = subprocess.run([sys.executable, "-c", KILLED], text=True, capture_output=True,
                               env={**os.environ, "PENSTOCK_SOCKET": broker.socket})
        assert first.returncode == -signal.SIGKILL, first.stderr
        had = [int(line) for line in first.stdout.split()]
        with penstock.attach(penstock.Dataset.range(6_400_000).batch(100_000),
                             job="killed") as reader:
            again = [(int(batch["value"].sum()), batch.redelivered) for batch in reader]
    marked = [total for total, redelivered in again if redelivered]
    plain = [total for total, redelivered in again if not redelivered]
    assert set(marked) <= set(had) and len(set(had) | set(marked)) + len(plain) == 64
    assert sum(set(had) | set(plain)) == 6_400_000 * 6_399_999 // 2
    return {"had": len(had), "redelivered": len(marked), "once": len(plain)}


def photographs(feed, options):
    """Endless (images uint8 [n, 224, 224, 3] on the GPU, labels)."""
    import torch
    size = options.batch
    if feed == "synthetic":
        images = torch.randint(0, 255, (size, 224, 224, 3), dtype=torch.uint8, device="cuda")
        labels = torch.zeros(size, dtype=torch.int64, device="cuda")
        while True:
            yield images, labels
    elif feed == "penstock":
        import penstock
        import penstock.torch
        spec = (penstock.Dataset.image_folder(options.photographs).shuffle(seed=1)
                .map(penstock.decode_image(224, "random_resized"), penstock.flip())
                .batch(size, last="drop").repeat(None))
        with penstock.torch.DataLoader(spec, features=("image", "label"), device="cuda",
                                       autostart=True) as batches:
            while True:
                yield from batches
    elif feed == "dataloader":
        from torchvision import datasets
        from torchvision.transforms import v2
        data = datasets.ImageFolder(options.photographs, v2.Compose([
            v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor(),
            v2.Lambda(lambda image: image.permute(1, 2, 0).contiguous())]))
        batches = torch.utils.data.DataLoader(
            data, size, shuffle=True, num_workers=CORES, pin_memory=True, drop_last=True,
            persistent_workers=True, prefetch_factor=4)
        while True:
            for x, y in batches:
                yield x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    else:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator
        on_gpu = feed == "dali_gpu"

        @pipeline_def(batch_size=size, num_threads=CORES, device_id=0)
        def pipeline():
            data, labels = fn.readers.file(file_root=options.photographs, random_shuffle=True,
                                           name="reader")
            images = fn.decoders.image_random_crop(
                data, device="mixed" if on_gpu else "cpu", output_type=types.RGB,
                random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            images = fn.resize(images, size=[224, 224])
            images = fn.flip(images, horizontal=fn.random.coin_flip())
            return images.gpu(), labels.gpu()

        for batch in DALIGenericIterator([pipeline()], ["image", "label"], size=-1):
            yield batch[0]["image"], batch[0]["label"].view(-1).long()


def resnet(options, feed):
    import torch
    import torchvision
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean = torch.tensor([123.7, 116.3, 103.5], device="cuda").view(1, 3, 1, 1)
    deviation = torch.tensor([58.4, 57.1, 57.4], device="cuda").view(1, 3, 1, 1)
    window = Window(options.seconds, warm_up_s=10)
    for images, labels in photographs(feed, options):
        x = ((images.permute(0, 3, 1, 2) - mean) / deviation).to(
            memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if window.done():
            return window.result


PARTS = {each.__name__: each for each in (bandwidth, loader, cycles, killed)}
PARTS.update({f"resnet_{feed}": lambda options, feed=feed: resnet(options, feed)
              for feed in FEEDS})


def no_gpu():
    """Why nothing can be measured here; "": it can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.version.cuda and torch.cuda.is_available() else (
        "PyTorch finds no NVIDIA GPU")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--folder", help="where the .npy file goes")
    parser.add_argument("--out")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    why = no_gpu()
    if why:
        print(f"bench/gpu.py: nothing is measured: {why}", file=sys.stderr)
        return 77
    if options.part:
        print(json.dumps(PARTS[options.part](options)), flush=True)
        os._exit(0)  # whatever its loaders still wait for
    results = {}
    for part in PARTS:
        if not any(part.startswith(name) for name in options.only.split(",")):
            continue
        if part.startswith("resnet") and not options.photographs:
            print(f"{part}: left out without --photographs")
            continue
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", part],
                              text=True, capture_output=True, timeout=180)
        if done.returncode != 0:
            results[part] = {"failed": done.stderr.strip().splitlines()[-1:]}
        else:
            results[part] = json.loads(done.stdout.splitlines()[-1])
        print(part, json.dumps(results[part]), flush=True)
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
