"""Penstock for loops that are written for torch.utils.data.DataLoader.

    loader = penstock.torch.DataLoader("train.yaml", features=("image", "label"))
    for epoch in range(loader.epoch, loader.epoch_count):
        for images, labels in loader:
            ...
"""

from __future__ import annotations

import collections
from typing import (Any, Callable, Deque, Dict, Iterator, Optional, Sequence,
                    Tuple, Union)

import torch

from penstock.batch import Batch
from penstock.reader import Epoch, Reader, State, attach

Tensors = Union[Dict[str, torch.Tensor], Tuple[torch.Tensor, ...]]


class DataLoader:
    """An iterable of an epoch's batches as tensors, with a length; each ``for``
    is the next epoch (after a ``break``: the rest of it).

    Args:
      dataset, **options: as ``penstock.attach``.
      features: names; batches are then tuples of these tensors instead of
        dictionaries of all of them.
      device: None: tensors on the CPU over the batch's memory, which is held as
        long as one of them is alive (``Batch.torch``). Else tensors of their own
        on this device. On a CUDA device they are copied asynchronously on a
        stream of the loader's, ``device_prefetch`` batches ahead, and the
        batch's memory goes back once the copy's event has passed: what the loop
        body gets is ordered behind it on the current stream.
      device_prefetch: batches copied ahead of the one in use (1).
    """

    def __init__(self, dataset: Any = None, *,
                 features: Optional[Sequence[str]] = None,
                 device: Union[str, torch.device, None] = None,
                 device_prefetch: int = 1, **options: Any):
        self.reader: Reader = attach(dataset, **options)
        for name in features or ():
            self.reader.element_spec.find(name)  # KeyError says which there are
        self._features = tuple(features) if features is not None else None
        self._device = None if device is None else torch.device(device)
        # The state behind the batch that the loop has, where some are copied
        # ahead of it.
        self._behind: Optional[Dict[str, Any]] = None
        self._copies = (_CudaCopies(self._device, device_prefetch)
                        if self._device is not None
                        and self._device.type == "cuda" else None)

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery."""
        for epoch in self.reader.epochs():
            return len(epoch)
        return self.reader.steps_per_epoch

    def __iter__(self) -> Iterator[Tensors]:
        for epoch in self.reader.epochs():
            for tensors in self._run(epoch):
                yield (tensors if self._features is None else
                       tuple(tensors[name] for name in self._features))
                del tensors
            return

    def _run(self, epoch: Epoch) -> Iterator[Dict[str, torch.Tensor]]:
        if self._copies is None:
            yield from map(self._tensors, epoch)
            return
        for tensors, behind in self._copies.run(iter(epoch),
                                                self.reader.state_dict):
            self._behind = behind
            yield tensors
            del tensors
        self._behind = None

    def _tensors(self, batch: Batch) -> Dict[str, torch.Tensor]:
        tensors = batch.torch()
        if self._device is None or self._device.type == "cpu":
            return tensors
        return {name: tensor.to(self._device)
                for name, tensor in tensors.items()}

    @property
    def epoch(self) -> int:
        """That of the next batch, from 0."""
        return self.reader.epoch

    @property
    def epoch_count(self) -> Optional[int]:
        """None: forever."""
        return self.reader.epoch_count

    def state_dict(self) -> Dict[str, Any]:
        """Where the job stands after the last batch that the loop was given: as
        ``Reader.state_dict``; batches copied ahead to a device are not in it."""
        return self._behind or self.reader.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._forget()
        self.reader.load_state_dict(state)

    def close(self) -> None:
        self._forget()
        self.reader.close()

    def _forget(self) -> None:
        self._behind = None
        if self._copies is not None:
            self._copies.forget()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _CudaCopies:
    """Copies batches to a CUDA device, some ahead of the loop."""

    def __init__(self, device: torch.device, ahead: int):
        if ahead < 0:
            raise ValueError(f"device_prefetch: {ahead}; at least 0")
        self._device = device
        self._ahead = ahead
        self._stream = torch.cuda.Stream(device)
        self._copied: Deque[Tuple[Dict[str, torch.Tensor], torch.cuda.Event,
                                  Dict[str, Any]]] = collections.deque()

    def run(self, batches: Iterator[Batch],
            state: Callable[[], Dict[str, Any]]
            ) -> Iterator[Tuple[Dict[str, torch.Tensor], Dict[str, Any]]]:
        """Each batch on the device, and the state behind it."""
        over = False
        while True:
            while not over and len(self._copied) <= self._ahead:
                batch = next(batches, None)
                if batch is None:
                    over = True
                else:
                    self._copied.append((*self._copy(batch), state()))
                del batch
            if not self._copied:
                return
            tensors, event, behind = self._copied.popleft()
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in tensors.values():
                # Its memory is not given to another copy before the loop's
                # work on it is done.
                tensor.record_stream(current)
            yield tensors, behind
            del tensors

    def _copy(self, batch: Batch
              ) -> Tuple[Dict[str, torch.Tensor], torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            # By way of pinned memory: the copy is asynchronous, and the batch is
            # free at once. PyTorch keeps the pinned memory until the copy is
            # done.
            tensors = {name: tensor.pin_memory().to(self._device,
                                                    non_blocking=True)
                       for name, tensor in batch.torch().items()}
            event = torch.cuda.Event()
            event.record(self._stream)
        return tensors, event

    def forget(self) -> None:
        self._copied.clear()
