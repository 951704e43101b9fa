"""PyTorch DataLoader over FLAC files: soundfile reads the part that is used, soxr
resamples it (HQ), as librosa.load does.

Settings: 0, 1 or 2 worker processes.
"""

import pathlib
import sys

import common
from data import Flac
from pytorch_dataloader import endless, settings
from torch_memmap import load_libraries

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "soundfile", "soxr"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "soundfile and soxr"


def sounds(config, resample):
    """Map-style, of (float32 [samples], how many are the sound's)."""
    torch = load_libraries()
    import random
    import numpy
    import soundfile

    class Sounds(torch.utils.data.Dataset):
        def __init__(self):
            self.files = sorted(map(str, pathlib.Path(config["files"]).glob("*.flac")))

        def __len__(self):
            return len(self.files)

        def __getitem__(self, index):
            with soundfile.SoundFile(self.files[index]) as file:
                wanted = file.samplerate * Flac.SECONDS
                file.seek(random.randint(0, max(0, file.frames - wanted)))
                part = file.read(wanted, dtype="float32", always_2d=True).mean(1)
                part = resample(part, file.samplerate, Flac.RATE)
            row = numpy.zeros(Flac.RATE * Flac.SECONDS, numpy.float32)
            length = min(len(part), len(row))
            row[:length] = part[:length]
            return row, length

    return Sounds()


def batches(config):
    import soxr
    yield from endless(sounds(config, soxr.resample), config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
