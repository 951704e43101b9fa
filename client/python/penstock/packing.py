"""Batches of packed rows (``batch.pack``) as models take them.

    flat = penstock.packing.flatten(batch)  # a Batch, its torch(), what a DataLoader gives
    flash_attn_varlen_func(q, k, v, flat["cu_seqlens"], flat["cu_seqlens"],
                           flat["max_length"], flat["max_length"], causal=True)
    loss = model(flat["input_ids"], position_ids=flat["position_ids"],
                 labels=penstock.packing.labels(flat["input_ids"], flat["position_ids"],
                                                flat.get("loss_mask")))
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Mapping

import numpy as np

# Features that have a number for each document, not for each item.
_OF_DOCUMENTS = ("seq_lens", "cu_seqlens", "records")
_ITEMS_MAX = np.iinfo(np.int32).max  # as FlashAttention numbers them


def flatten(batch: Mapping[str, Any], *, padding: bool = True,
            empty: bool = False) -> Dict[str, Any]:
    """All rows of a packed batch as one sequence, as Hugging Face's
    ``DataCollatorWithFlattening`` and FlashAttention's varlen functions take it.

    The place of a document that ``on_error("skip")`` leaves out stays a segment, with
    padding in it, also without ``padding``: where documents are is planned before they
    are read. Its ``loss_mask`` is 0: give that to `labels`.

    Args:
      batch: of a ``pack`` that has "seq_lens" among its ``with_``: arrays, or tensors
        on any device (of others than the CPU it waits for them).
      padding: True: the padding of a row stays, as a segment of its own behind the
        row's documents, and the items are views. False: without it, as copies.
      empty: segments without items stay, so that ``cu_seqlens`` has as many numbers in
        each batch: 1 + rows * (documents + 1), without padding 1 + rows * documents.

    Returns:
      Each list, ``position_ids`` and ``loss_mask`` as ``[1, items, *shape]``;
      ``document_ids`` likewise, numbered through the batch, -1 in padding;
      ``seq_lens`` int32 and ``records`` int64 ``[documents]``, of those that there are;
      ``cu_seqlens`` int32 ``[segments + 1]``: 0, and where each segment ends;
      ``max_length``: an int, the items of the longest segment.

    Raises:
      ValueError: the batch has no "seq_lens", no list, or a value that is none.
    """
    if "seq_lens" not in batch:
        raise ValueError("the batch has no 'seq_lens': add it to `with_` of penstock.pack")
    of_items = {name: array for name, array in batch.items() if name not in _OF_DOCUMENTS}
    if not of_items:
        raise ValueError("the batch has no list that is packed: leave one in `features`")
    lengths = _numpy(batch["seq_lens"]).astype(np.int64)  # [rows, documents]
    rows, room = lengths.shape[0], next(iter(of_items.values())).shape[1:2]
    for name, array in of_items.items():
        if array.shape[:2] != (rows, *room) or not room:
            raise ValueError(f"{name!r} has the shape {tuple(array.shape)}, and the batch "
                             f"rows of {room[0] if room else 'no'} items: it is no packed list")
    length = room[0]
    if rows * length > _ITEMS_MAX:
        raise ValueError(f"{rows} rows of {length} items are more than the {_ITEMS_MAX} that "
                         "cu_seqlens can count: give the batch fewer rows")
    used = lengths.sum(axis=1, keepdims=True)
    segments = np.concatenate([lengths, length - used], axis=1) if padding else lengths
    segments = segments.ravel() if empty else segments[segments > 0]
    ends = np.zeros(len(segments) + 1, np.int32)
    np.cumsum(segments, out=ends[1:])

    there = lengths > 0
    flat: Dict[str, Any] = {}
    for name, array in of_items.items():
        if name == "document_ids":
            before = there.sum(axis=1, keepdims=True).cumsum(axis=0, dtype=np.int32)
            before -= there.sum(axis=1, keepdims=True, dtype=np.int32)
            array = array + _like(array, before) * (array >= 0)
        flat[name] = (array.reshape(1, rows * length, *array.shape[2:]) if padding else
                      array[_like(array, np.arange(length) < used)][None])
    for name in ("seq_lens", "records"):
        if name in batch:
            flat[name] = batch[name][_like(batch[name], there)]
    flat["cu_seqlens"] = _like(batch["seq_lens"], ends)
    flat["max_length"] = int(segments.max(initial=0))
    return flat


def labels(tokens: Any, position_ids: Any, loss_mask: Any = None, *,
           shifted: bool = False, ignore: int = -100) -> Any:
    """What a causal model has to predict, int64 as ``tokens``, a copy: ``ignore`` where
    that is nothing: in padding, and at the first item of each document, before which
    there is none of it.

    Args:
      tokens, position_ids: of a packed batch, flattened or not: ``[rows, length]``.
      loss_mask: likewise: items where it is 0 are not predicted either: those of
        documents that ``on_error("skip")`` leaves out, and those of a chat that are not
        trained on. None: without it such documents are trained on as padding.
      shifted: False: of the item itself, for models that shift (Hugging Face's). True: of
        the next item, for losses that compare each output with its target.
      ignore: ``ignore_index`` of the loss.
    """
    torch = sys.modules.get("torch")
    if np.shape(tokens) != np.shape(position_ids):
        raise ValueError(f"tokens have the shape {np.shape(tokens)}, position_ids "
                         f"{np.shape(position_ids)}: give both of one batch")
    is_none = position_ids == 0
    if loss_mask is not None:
        is_none = is_none | (loss_mask == 0)
    if torch is not None and isinstance(tokens, torch.Tensor):
        found = tokens.long().masked_fill(is_none, ignore)
        moved = torch.full_like(found, ignore) if shifted else found
    else:
        found = np.where(is_none, ignore, np.asarray(tokens, np.int64))
        moved = np.full_like(found, ignore) if shifted else found
    if shifted:
        moved[:, :-1] = found[:, 1:]
    return moved


def _numpy(array: Any) -> np.ndarray:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def _like(array: Any, numbers: np.ndarray) -> Any:
    """The numbers as a tensor on its device, if it is one."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return numbers
    return torch.from_numpy(numbers).to(array.device)
