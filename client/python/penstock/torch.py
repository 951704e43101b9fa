"""Penstock for loops written for torch.utils.data.DataLoader.

    loader = penstock.torch.DataLoader("train.yaml", features=("image", "label"))
    for epoch in range(loader.epoch, loader.epoch_count):
        for images, labels in loader:
            ...
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import torch

from penstock.batch import Batch
from penstock.reader import Epoch, Reader, State, attach, no_epoch_left

Tensors = Union[Dict[str, torch.Tensor], Tuple[torch.Tensor, ...]]


# Arguments of PyTorch's DataLoader, and where Penstock takes them instead.
_ELSEWHERE = {
    "batch_size": "set it in the dataset: .batch(per_rank=...), or .batch(size) of "
                  "all ranks",
    "drop_last": "set it in the dataset: .batch(..., last=...)",
    "shuffle": "set it in the dataset: .shuffle(seed=...)",
    "sampler": "every rank gets its part of each batch (delivery=)",
    "collate_fn": "rows come as batches; .map() changes rows",
    "num_workers": "the broker's workers serve all ranks",
    "prefetch_factor": "set it in the dataset: .prefetch(...)",
    "pin_memory": "device= copies by way of pinned memory",
    "timeout": "timeout_s=",
}
for _name in ("persistent_workers", "multiprocessing_context", "worker_init_fn"):
    _ELSEWHERE[_name] = _ELSEWHERE["num_workers"]
_ELSEWHERE["batch_sampler"] = _ELSEWHERE["generator"] = _ELSEWHERE["sampler"]


class DataLoader:
    """An iterable of an epoch's batches as tensors ``[rows, *shape]``. Each ``for``
    takes the next epoch (after a ``break``, the rest of that epoch). After the last
    epoch, the first if the dataset sets no number (``.repeat(n)``, ``epochs:``), it
    raises FailedPrecondition.

    Args:
      dataset, **options: as ``penstock.attach``. TypeError: an argument of PyTorch's
        DataLoader that Penstock takes elsewhere.
      features: names; batches are then tuples of these tensors instead of
        dictionaries of all. KeyError: no such feature.
      device: None or "cpu": tensors over the batch's memory, which is held while one
        of them is alive (``Batch.torch``). Else copies on this device. A copy to a
        CUDA device goes through pinned memory, asynchronously on the current stream,
        and the batch is free at once.
    """

    def __init__(self, dataset: Any = None, *,
                 features: Optional[Sequence[str]] = None,
                 device: Union[str, torch.device, None] = None,
                 **options: Any):
        for name in options:
            if name in _ELSEWHERE:
                raise TypeError(f"penstock.torch.DataLoader has no {name!r}: "
                                + _ELSEWHERE[name])
        self.reader: Reader = attach(dataset, **options)
        self._features = (None if features is None else
                          self.reader.element_spec.chosen(features))
        self._device = None if device is None else torch.device(device)

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery and of a stream."""
        return len(Epoch(self.reader, self.reader.epoch))

    def __iter__(self) -> Iterator[Tensors]:
        for epoch in self.reader.epochs():
            for tensors in map(self._tensors, epoch):
                yield (tensors if self._features is None else
                       tuple(tensors[name] for name in self._features))
                del tensors
            return
        raise no_epoch_left(self.reader)

    def _tensors(self, batch: Batch) -> Dict[str, torch.Tensor]:
        tensors = batch.torch()
        if self._device is None or self._device.type == "cpu":
            return tensors
        if self._device.type == "cuda":
            # PyTorch keeps the pinned memory until the copy is done.
            return {name: tensor.pin_memory().to(self._device,
                                                 non_blocking=True)
                    for name, tensor in tensors.items()}
        return {name: tensor.to(self._device)
                for name, tensor in tensors.items()}

    @property
    def epoch(self) -> int:
        """The next batch's epoch, from 0; ``epoch_count`` at the end."""
        return self.reader.epoch

    @property
    def epoch_count(self) -> Optional[int]:
        """Epochs of the job; None: forever."""
        return self.reader.epoch_count

    def state_dict(self) -> Dict[str, Any]:
        """As ``Reader.state_dict``."""
        return self.reader.state_dict()

    def load_state_dict(self, state: State) -> None:
        """As ``Reader.load_state_dict``."""
        self.reader.load_state_dict(state)

    def close(self) -> None:
        """As ``Reader.close``."""
        self.reader.close()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
