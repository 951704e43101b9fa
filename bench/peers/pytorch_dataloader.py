"""PyTorch DataLoader as its users write it: Pillow decodes, torchvision's v2
transforms (the ones of torchvision's reference training script) do the rest.

Settings: 0, 1 or 2 worker processes, kept over epochs. One thread per process,
as torchrun sets it.
"""

import collections
import itertools
import sys

import common

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "torchvision", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Pillow and torchvision.transforms.v2"


def settings(consumers):
    return [{"num_workers": n}
            for n in ((0, 1, 2) if consumers <= 2 else (0, 1))]


def load_libraries():
    import torch
    torch.set_num_threads(1)
    common.import_torchvision()


def dataset(config, transform):
    """Map-style, of (image, label)."""
    import torch

    class Photographs(torch.utils.data.Dataset):
        def __init__(self):
            self.files = common.photographs(config["photographs"])

        def __len__(self):
            return len(self.files)

        def __getitem__(self, index):
            path, label = self.files[index]
            return transform(path), label

    return Photographs()


class EndlessSampler:
    def __init__(self, count, config):
        self.count, self.config = count, config

    def __iter__(self):
        return common.endless_order(self.count, self.config)

    def __len__(self):
        return sys.maxsize


def balanced_sampler(files, config):
    """Classes with equal chances, drawn from all files by each consumer."""
    import torch
    sizes = collections.Counter(label for _, label in files)
    sampler = torch.utils.data.WeightedRandomSampler(
        [1 / sizes[label] for _, label in files], len(files),
        generator=torch.Generator().manual_seed(common.SEED + config["rank"]))
    return itertools.chain.from_iterable(itertools.repeat(sampler))


def torchvision_transform(config):
    import torch
    from PIL import Image
    common.import_torchvision()
    from torchvision.transforms import v2
    steps = [v2.RandomResizedCrop(common.SIZE, common.SCALE, common.RATIO,
                                  antialias=True),
             v2.RandomHorizontalFlip(0.5)]
    if config["data"] == "randaugment":
        steps.append(v2.RandAugment(num_ops=2, magnitude=9))
    steps.append(v2.PILToTensor())
    if config["dtype"] == "float16":
        steps += [v2.ToDtype(torch.float32, scale=True),
                  v2.Normalize(common.MEAN, common.STD),
                  v2.ToDtype(torch.float16)]
    else:
        steps += [v2.Lambda(lambda image: image.permute(1, 2, 0).contiguous())]
    apply = v2.Compose(steps)

    def transform(path):
        with Image.open(path) as image:
            return apply(image.convert("RGB"))
    return transform


def mixed(rows):
    """torchvision's collate_fn of its reference training script."""
    import torch
    common.import_torchvision()
    from torchvision.transforms import v2
    return v2.MixUp(alpha=0.2, num_classes=1000)(
        *torch.utils.data.default_collate(rows))


def endless(data, config, loader=None):
    """A DataLoader, or the loader given, over a map-style dataset, without an end."""
    import torch
    workers = config["settings"]["num_workers"]
    return (loader or torch.utils.data.DataLoader)(
        data, batch_size=config["batch"], num_workers=workers,
        sampler=(balanced_sampler(data.files, config)
                 if config["data"] == "balanced"
                 else EndlessSampler(len(data), config)),
        collate_fn=mixed if config["data"] == "mixup" else None,
        persistent_workers=workers > 0)


def loader(config, transform):
    return endless(dataset(config, transform), config)


def batches(config):
    yield from loader(config, torchvision_transform(config))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
