"""Promise: steps on sounds have the values of torchaudio, draws included, within the bounds
that the tests and broker/transform/OPERATIONS.md state. Method: torchaudio's own functions
run, and where they ask PyTorch for a random number they get the one that the headers of
broker/transform document."""

import itertools
from unittest import mock

import numpy as np
import penstock
import pytest
import soundfile
import soxr

from test_pictures import SEED, uniform
from test_spectrogram import LENGTHS, RATE, Sounds, source  # noqa: F401

torch = pytest.importorskip("torch")
torchaudio = pytest.importorskip("torchaudio", reason="no torchaudio")

torch.set_num_threads(1)  # the sounds are short, and the broker computes beside it


def sounds():
    return [torch.from_numpy(Sounds()[i]["audio"]) for i in range(len(LENGTHS))]


def rows_of(attach, dataset):
    """Each as long as it is; row i is sample i of epoch 0."""
    with attach(dataset.batch(len(LENGTHS)).seed(SEED)) as reader:
        batch = reader.next()
        return [np.array(row[:length])
                for row, length in zip(batch["audio"], batch.lengths("audio"))]


@pytest.mark.parametrize("ours, theirs", [
    ({}, {}),
    ({"fft": 390, "hop": 100, "mels": 23, "pad": "zeros"},
     {"n_fft": 390, "hop_length": 100, "n_mels": 23, "pad_mode": "constant"}),
    ({"window": 320, "min_hz": 80, "max_hz": 7600, "power": 1},
     {"win_length": 320, "f_min": 80, "f_max": 7600, "power": 1}),
    ({"scale": "slaney", "equal_area": True, "pad": "none", "fft": 200},
     {"mel_scale": "slaney", "norm": "slaney", "center": False, "n_fft": 200}),
], ids=str)
def test_mel_spectrogram(attach, source, ours, theirs):  # noqa: F811
    made = rows_of(attach, source.map(penstock.mel_spectrogram(RATE, **ours)))
    transform = torchaudio.transforms.MelSpectrogram(
        RATE, **{"n_fft": 400, "hop_length": 160, "n_mels": 80, **theirs})
    for row, sound in zip(made, sounds()):
        wanted = transform(sound).T.numpy()
        assert row.shape == wanted.shape
        np.testing.assert_allclose(row, wanted, rtol=0, atol=5e-6 * wanted.max())


def test_decibels(attach, source):  # noqa: F811
    made = rows_of(attach, source.map(
        penstock.mel_spectrogram(RATE, log="decibel", floor=1e-10)))
    transform = torch.nn.Sequential(
        torchaudio.transforms.MelSpectrogram(RATE, n_fft=400, hop_length=160, n_mels=80),
        torchaudio.transforms.AmplitudeToDB())
    for row, sound in zip(made, sounds()):
        np.testing.assert_allclose(row, transform(sound).T.numpy(), rtol=0, atol=1e-3)


def test_mask_spectrogram(attach, source):  # noqa: F811
    mel = penstock.mel_spectrogram(RATE)
    plain = rows_of(attach, source.map(mel))
    made = rows_of(attach, source.map(mel, penstock.mask_spectrogram(
        time=8, times=2, frequency=20, frequencies=2, value=-1)))
    for sample, (row, before) in enumerate(zip(made, plain)):
        frames = min(8, len(row))  # theirs may be wider than the row
        draw = itertools.count()
        with mock.patch("torch.rand", lambda *_, **__: torch.tensor(
                [uniform(SEED, 0, sample, 1, next(draw))], dtype=torch.float64)):
            wanted = torch.from_numpy(before).T[None]
            for axis, widest in (2, frames), (2, frames), (1, 20), (1, 20):
                wanted = torchaudio.functional.mask_along_axis(wanted, widest, -1, axis)
        np.testing.assert_array_equal(row, wanted[0].T.numpy())
        assert (row == -1).any()


def test_gain(attach, source):  # noqa: F811
    made = rows_of(attach, source.map(penstock.gain([-20, -8])))
    for sample, (row, sound) in enumerate(zip(made, sounds())):
        decibels = -20 + 12 * uniform(SEED, 0, sample, 0, 0)
        wanted = torchaudio.transforms.Vol(decibels, "db")(sound)
        np.testing.assert_allclose(row, wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize("rate, seconds", [(RATE, 1), (8000, 1), (RATE, 0.1)])
def test_noise(attach, source, tmp_path, rate, seconds):  # noqa: F811
    """Parts of noises; one that is shorter than a row, repeated; one of another rate."""
    draw = np.random.default_rng(3)
    noises = [draw.normal(0, 0.1, int(rate * seconds)).astype("float32") for _ in range(3)]
    for i, noise in enumerate(noises):
        soundfile.write(tmp_path / f"{i}.wav", noise, rate, subtype="FLOAT")
    made = rows_of(attach, source.map(penstock.noise(
        tmp_path / "*.wav", RATE, [-5, 20], probability=0.8)))
    added = 0
    for sample, (row, sound) in enumerate(zip(made, sounds())):
        begin, happens, which, ratio = (uniform(SEED, 0, sample, 0, n) for n in range(4))
        if happens >= 0.8:
            np.testing.assert_array_equal(row, sound.numpy())
            continue
        noise = noises[int(which * 3)]
        wanted = -(-len(sound) * rate // RATE)  # rounded up
        begin = int(begin * max(1, len(noise) - wanted + 1))
        part = noise[begin:begin + wanted]
        if rate != RATE:
            part = soxr.resample(part, rate, RATE, quality="HQ")
        part = torch.from_numpy(np.resize(part, len(sound)))
        theirs = torchaudio.functional.add_noise(
            sound[None], part[None], torch.tensor([-5 + 25 * ratio]))[0].numpy()
        bound = 1e-6 if rate == RATE else 1e-5  # the package has its own soxr
        np.testing.assert_allclose(row, theirs, rtol=0, atol=bound * np.abs(theirs).max())
        added += 1
    assert added > 1
