"""What energon_packed.py gives to Energon: how documents are packed.

A module of its own, since Energon's workers send these classes by name.
"""

import bisect

import numpy
import torch
from data import Packed
from megatron.energon import (
    Cooker, DefaultTaskEncoder, Sample, basic_sample_keys, edataclass, stateless)


def knapsacks(samples):
    """Groups of samples that fit into a row."""
    samples = sorted(samples, key=len)
    lengths = [len(each) for each in samples]
    while samples:
        group, room = [], Packed.LONGEST
        while fits := bisect.bisect(lengths, room):
            room -= lengths.pop(fits - 1)
            group.append(samples.pop(fits - 1))
        yield group


@edataclass
class Document(Sample):
    tokens: torch.Tensor

    def __len__(self):
        return len(self.tokens)


@edataclass
class Row(Sample):
    tokens: torch.Tensor
    segment_ids: torch.Tensor
    positions: torch.Tensor


@stateless
def cook(sample):
    return Document(**basic_sample_keys(sample), tokens=torch.from_numpy(
        numpy.frombuffer(sample["tokens"], dtype=numpy.int32).copy()))


class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

    def select_samples_to_pack(self, samples):
        return list(knapsacks(samples))

    @stateless
    def pack_selected_samples(self, samples):
        tokens, segments, positions = torch.zeros(
            (3, Packed.LONGEST), dtype=torch.int32)
        at = 0
        for number, sample in enumerate(samples, 1):
            end = at + len(sample)
            tokens[at:end] = sample.tokens
            segments[at:end] = number
            positions[at:end] = torch.arange(len(sample), dtype=torch.int32)
            at = end
        return Row.derive_from(samples[0], tokens=tokens, segment_ids=segments,
                               positions=positions)
