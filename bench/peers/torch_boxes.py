"""torchvision's detection reference: CocoDetection made for transforms v2, its
transforms (a random-resized crop and a flip that boxes follow, SanitizeBoundingBoxes)
in a PyTorch DataLoader.

Its collate function makes lists, of which the model makes tensors; here they are
stacked, and boxes padded, in the loader. Settings: 0, 1 or 2 worker processes.
"""

import sys

import common
from data import Boxes
from pytorch_dataloader import EndlessSampler, load_libraries, settings

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "torchvision", "pycocotools", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "CocoDetection and torchvision.transforms.v2"


def transform(config):
    import torch
    from torchvision.transforms import v2
    steps = [v2.RandomResizedCrop(Boxes.SIZE, Boxes.SCALE, common.RATIO, antialias=True),
             v2.RandomHorizontalFlip(0.5), v2.PILToTensor()]
    if config["dtype"] == "float16":
        steps += [v2.ToDtype(torch.float32, scale=True),
                  v2.Normalize(common.MEAN, common.STD), v2.ToDtype(torch.float16)]
    return v2.Compose(steps + [v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()])


def collate(rows):
    import torch
    pad = torch.nn.utils.rnn.pad_sequence
    images, targets = zip(*rows)
    boxes, labels = ([target[key].as_subclass(torch.Tensor) for target in targets]
                     for key in ("boxes", "labels"))
    return (torch.stack(images), pad(boxes, batch_first=True),
            pad(labels, batch_first=True), torch.tensor([len(each) for each in boxes]),
            torch.tensor([target["image_id"] for target in targets]))


def batches(config):
    load_libraries()
    import torch
    from torchvision import datasets
    files = config["files"]
    rows = datasets.wrap_dataset_for_transforms_v2(
        datasets.CocoDetection(f"{files}/images", f"{files}/instances.json",
                               transforms=transform(config)),
        target_keys=("boxes", "labels", "image_id"))
    workers = config["settings"]["num_workers"]
    for images, boxes, *_ in torch.utils.data.DataLoader(
            rows, batch_size=config["batch"], num_workers=workers, collate_fn=collate,
            sampler=EndlessSampler(len(rows), config),
            persistent_workers=workers > 0):
        if config["dtype"] == "uint8":
            images = images.permute(0, 2, 3, 1).contiguous()
        yield images, boxes


if __name__ == "__main__":
    common.main(sys.modules[__name__])
