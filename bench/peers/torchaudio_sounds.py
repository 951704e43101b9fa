"""PyTorch DataLoader over FLAC files with torchaudio's Resample (its default: a
windowed sinc of 6 zero crossings, shorter than soxr's HQ). soundfile reads, as
torchaudio.load did: from 2.9 on load() is TorchCodec's, whose wheel needs the
system's FFmpeg.

Settings: 0, 1 or 2 worker processes.
"""

import functools
import sys
import types

import common
from pytorch_dataloader import endless, settings
from torch_memmap import load_libraries
from torch_sounds import sounds

TITLE = "torchaudio"
VENV = "torch"
DISTRIBUTIONS = ["torchaudio", "torch", "soundfile"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "soundfile, as load() needs the system's FFmpeg; its filter is shorter than soxr's"


def import_torchaudio():
    """torchaudio, also where its build for CUDA lies beside PyTorch's for CPUs and its
    library cannot be loaded: its resampler does without."""
    try:
        import torchaudio
    except OSError:
        for name in [n for n in sys.modules if n.startswith("torchaudio")]:
            del sys.modules[name]
        without = types.ModuleType("torchaudio._extension")
        without._IS_TORCHAUDIO_EXT_AVAILABLE = False
        without.fail_if_no_align = lambda function: function
        sys.modules[without.__name__] = without
        import torchaudio
    return torchaudio


def batches(config):
    torch = load_libraries()
    torchaudio = import_torchaudio()
    # It keeps its filter, which functional.resample makes for each call.
    resampler = functools.cache(torchaudio.transforms.Resample)

    def resample(part, rate, new_rate):
        return resampler(rate, new_rate)(torch.from_numpy(part)).numpy()

    yield from endless(sounds(config, resample), config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
