"""Detection with torchvision: pictures with boxes, moved together, to a model's targets.

    penstock run --ranks 1 -- python3 detection.py

It writes a small folder in COCO's format, of coloured rectangles, and trains FCOS on it
for a few steps on the processor. Beside torchvision's tutorial (CocoDetection,
transforms.v2, a collate_fn), what differs:

    -dataset = datasets.CocoDetection(folder, annotations, transforms=transforms)
    -dataset = datasets.wrap_dataset_for_transforms_v2(dataset, ("boxes", "labels"))
    -loader = torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True,
    -                                     collate_fn=lambda batch: tuple(zip(*batch)))
    -for images, targets in loader:
    +for batch in penstock.attach(dataset(folder)):
    +    images, targets = images_and_targets(batch)
         losses = model(images, targets)

Needs torch, torchvision and Pillow.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np
import penstock
import torch
from PIL import Image
from torchvision.models.detection import fcos_resnet50_fpn

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 220)}


def write_coco(folder, pictures):
    """Rectangles of three colours in front of noise."""
    draw = np.random.default_rng(0)
    images, annotations = [], []
    for i in range(pictures):
        height, width = draw.integers(100, 200, 2)
        pixels = draw.integers(0, 60, (height, width, 3), "uint8")
        for _ in range(draw.integers(0, 4)):
            w, h = draw.integers(20, 60, 2)
            x, y = draw.integers(0, width - w), draw.integers(0, height - h)
            colour = int(draw.integers(3))
            pixels[y:y + h, x:x + w] = list(COLOURS.values())[colour]
            annotations.append({"id": len(annotations) + 1, "image_id": i,
                                "category_id": colour, "iscrowd": 0, "area": int(w * h),
                                "bbox": [int(x), int(y), int(w), int(h)]})
        Image.fromarray(pixels).save(folder / f"{i}.jpg")
        images.append({"id": i, "file_name": f"{i}.jpg"})
    (folder / "instances.json").write_text(json.dumps({
        "images": images, "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(COLOURS)]}))


def dataset(folder, epochs):
    return (penstock.Dataset.coco(folder / "instances.json", folder, crowd="drop")
            .filter("boxes.length", min=1)
            .shuffle(seed=1)
            .map(penstock.decode_image(128, penstock.random_resized(scale=[0.5, 1]),
                                       boxes="boxes"),
                 penstock.flip(boxes="boxes"),
                 penstock.sanitize_boxes(["labels", "area", "iscrowd"], min_size=4),
                 penstock.rescale(1 / 255, layout="chw"))
            .batch(4)
            .repeat(epochs))


def images_and_targets(batch):
    tensors = batch.torch(lists="nested")
    return list(tensors["image"]), [
        {"boxes": boxes, "labels": labels}
        for boxes, labels in zip(tensors["boxes"].unbind(), tensors["labels"].unbind())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pictures", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(1)
    model = fcos_resnet50_fpn(weights=None, weights_backbone=None,
                              num_classes=len(COLOURS), min_size=128, max_size=128)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    losses = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_coco(folder, options.pictures)
        with penstock.attach(dataset(folder, options.epochs)) as reader:
            for batch in reader:
                images, targets = images_and_targets(batch)
                loss = sum(model(images, targets).values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    half = len(losses) // 2
    print(f"{len(losses)} steps: mean loss {np.mean(losses[:half]):.3f}, then "
          f"{np.mean(losses[half:]):.3f}", flush=True)


if __name__ == "__main__":
    main()
