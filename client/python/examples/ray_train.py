"""Ray Train: TorchTrainer's ranks take batches from their node's broker, and nodes without
GPUs make rows for it.

    python3 ray_train.py --ranks 2 --makers 1

On a cluster it runs as it is (`ray job submit -- python3 ray_train.py ...`); without one
Ray starts on this machine. What is Penstock's in it: the makers, `join` and the DataLoader,
with its state beside the model's: ranks that are started again go on behind it. Needs torch,
ray[train], and Debian's package dataset-fashion-mnist on all nodes.
"""

import argparse
import os
import tempfile

import penstock
import penstock.ray
import penstock.torch
import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

FILES = "/usr/share/datasets/fashion-mnist"


def train(config):
    config["makers"].join()  # sets PENSTOCK_SOCKET; ranks and sizes are Ray's
    dataset = (penstock.Dataset.idx(f"{FILES}/train-images-idx3-ubyte.gz",
                                    f"{FILES}/train-labels-idx1-ubyte.gz")
               .shuffle(seed=42).map(penstock.normalize(mean=0.2860, std=0.3530))
               .batch(256).repeat(config["epochs"]))
    net = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 128), nn.ReLU(), nn.Linear(128, 10))
    model = prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = {"epoch": 0, "row": 0}  # else a broker that has not died would go on
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/all.pt")
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["loader"]
    loader = penstock.torch.DataLoader(dataset, features=("image", "label"), state=state)
    for epoch in range(loader.epoch, config["epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                            "loader": loader.state_dict()}, f"{folder}/all.pt")
                saved = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=saved)
    loader.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--makers", type=int, default=1, help="at most")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", default=os.path.abspath("ray_train"), metavar="FOLDER",
                        help="of checkpoints, on storage that all nodes share")
    options = parser.parse_args()
    with penstock.ray.makers(min=0, max=options.makers, cpus_per_maker=1) as makers:
        result = TorchTrainer(
            train, train_loop_config={"makers": makers, "epochs": options.epochs},
            scaling_config=ScalingConfig(num_workers=options.ranks),
            run_config=RunConfig(storage_path=options.out,
                                 failure_config=FailureConfig(max_failures=3))).fit()
    print(f"epoch {result.metrics['epoch']}: loss {result.metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
