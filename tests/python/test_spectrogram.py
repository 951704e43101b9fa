"""Spectrograms of rows of any length beside NumPy's FFT and torchaudio's and librosa's
formulas; bands that lie within a row; gain."""

import numpy as np
import penstock
import pytest

RATE = 16000
LENGTHS = [4000, 201, 1600, 3999]


def mel_filters(hz_of_bins, low, high, count, scale, equal_area):
    """torchaudio.functional.melscale_fbanks."""
    def mel(hz):
        if scale == "htk":
            return 2595 * np.log10(1 + hz / 700)
        return np.where(hz < 1000, hz * 3 / 200,
                        15 + 27 * np.log(np.maximum(hz, 1) / 1000) / np.log(6.4))

    def hertz(mels):
        if scale == "htk":
            return 700 * (10 ** (mels / 2595) - 1)
        return np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))

    nodes = hertz(np.linspace(mel(np.float64(low)), mel(np.float64(high)), count + 2))
    slopes = nodes[None] - hz_of_bins[:, None]
    down, up = -slopes[:, :-2] / np.diff(nodes)[:-1], slopes[:, 2:] / np.diff(nodes)[1:]
    filters = np.maximum(0, np.minimum(down, up))
    return filters * (2 / (nodes[2:] - nodes[:-2]) if equal_area else 1)


def spectrogram(samples, rate=RATE, mels=80, fft=400, hop=160, window=None, min_hz=0,
                max_hz=None, power=2, scale="htk", equal_area=False, pad="reflect",
                log=None, floor=1e-10):
    """[frames, mels] in double precision."""
    mode = {"reflect": "reflect", "zeros": "constant"}
    samples = samples.astype(np.float64)
    if pad != "none":
        samples = np.pad(samples, fft // 2, mode[pad])
    length = window or fft
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    before = (fft - length) // 2
    hann = np.pad(hann, (before, fft - length - before))
    frames = np.stack([samples[at:at + fft] * hann
                       for at in range(0, len(samples) - fft + 1, hop)])
    energy = np.abs(np.fft.rfft(frames)) ** power
    made = energy @ mel_filters(np.arange(energy.shape[1]) * rate / fft, min_hz,
                                max_hz or rate / 2, mels, scale, equal_area)
    if log:
        made = np.log(np.maximum(made, floor)) * (1 if log == "natural" else
                                                  10 / np.log(10))
    return made


class Sounds:
    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        time = np.arange(LENGTHS[index]) / RATE
        return {"audio": (np.sin(2 * np.pi * 440 * time) +
                          0.1 * draw.standard_normal(len(time))).astype(np.float32)}


@pytest.fixture
def source(tmp_path):
    """Lists of samples."""
    import json
    with open(tmp_path / "sounds.jsonl", "w", encoding="utf-8") as out:
        for index in range(len(LENGTHS)):
            out.write(json.dumps({"audio": Sounds()[index]["audio"].tolist()}) + "\n")
    return penstock.Dataset.json_lines(
        tmp_path / "sounds.jsonl", {"audio": {"dtype": "float32", "max_length": 4000}})


@pytest.mark.parametrize("options", [
    {}, {"log": "natural"}, {"log": "decibel", "floor": 1e-5},
    {"fft": 401, "hop": 100, "mels": 23, "pad": "zeros"},
    {"fft": 256, "window": 200, "hop": 256, "min_hz": 80, "max_hz": 7600, "power": 1},
    {"scale": "slaney", "equal_area": True, "pad": "zeros", "fft": 384},
    {"pad": "none", "fft": 200, "hop": 7, "mels": 1},
], ids=str)
def test_a_spectrogram(attach, source, options):
    dataset = source.map(penstock.mel_spectrogram(RATE, **options)).batch(4)
    batch = attach(dataset).next()
    for index, length in enumerate(batch.lengths("audio")):
        wanted = spectrogram(Sounds()[index]["audio"], **options)
        assert length == len(wanted)
        found = batch["audio"][index]
        assert not found[length:].any()
        if options.get("log"):
            np.testing.assert_allclose(found[:length], wanted, atol=2e-3)
        else:
            np.testing.assert_allclose(found[:length], wanted, atol=1e-5 * wanted.max())


def test_rows_of_one_length(attach, tmp_path):
    samples = np.stack([Sounds()[0]["audio"], Sounds()[0]["audio"][::-1]])
    np.save(tmp_path / "audio.npy", samples)
    dataset = penstock.Dataset.npy({"audio": tmp_path / "audio.npy"}).map(
        penstock.mel_spectrogram(RATE)).batch(2)
    batch = attach(dataset).next()
    assert batch["audio"].shape == (2, 26, 80) and "audio.length" not in batch
    np.testing.assert_allclose(batch["audio"][1], spectrogram(samples[1]), rtol=1e-3,
                               atol=1e-2)


def test_too_few_samples(attach, tmp_path):
    (tmp_path / "a").write_text('{"audio": [1, 2, 3]}\n')
    source = penstock.Dataset.json_lines(
        tmp_path / "a", {"audio": {"dtype": "float32", "max_length": 4000}})
    with pytest.raises(penstock.DataLoss,
                       match="3 samples are too few for a spectrum: at least 201"):
        attach(source.map(penstock.mel_spectrogram(RATE)).batch(1)).next()


def test_bands_lie_within_a_row(attach, source):
    dataset = source.map(
        penstock.mel_spectrogram(RATE),
        penstock.mask_spectrogram(time=8, times=2, frequency=20, value=-1)).batch(4)
    seen = set()
    for batch in attach(dataset.repeat(40)):
        for row, length in zip(batch["audio"], batch.lengths("audio")):
            assert not row[length:].any()
            masked = row[:length] == -1
            frames, mels = masked.all(1), masked.all(0)
            assert frames.sum() <= 16 and mels.sum() <= 20
            # One band of filters: its places follow each other.
            assert np.diff(np.flatnonzero(mels)).max(initial=1) == 1
            assert masked.sum() == (frames.sum() * 80 + mels.sum() * length
                                    - frames.sum() * mels.sum())
            seen.add((int(frames.sum()), int(mels.sum())))
    assert len(seen) > 20


def test_a_share_of_the_frames(attach, source):
    dataset = source.map(
        penstock.mel_spectrogram(RATE),
        penstock.mask_spectrogram(time=1000, share=0.5, frequencies=0, value=-1)).batch(4)
    widths = [int((row[:length] == -1).all(1).sum()) / length
              for batch in attach(dataset.repeat(40))
              for row, length in zip(batch["audio"], batch.lengths("audio"))]
    assert max(widths) <= 0.5 and max(widths) > 0.4


def test_gain(attach, source):
    plain = attach(source.batch(4), job="plain").next()
    louder = attach(source.map(penstock.gain([6, 6])).batch(4), job="louder").next()
    np.testing.assert_allclose(louder["audio"], plain["audio"] * 10 ** 0.3, rtol=1e-6)
    assert (louder.lengths("audio") == plain.lengths("audio")).all()
    factors = set()
    for batch in attach(source.map(penstock.gain(20)).batch(4).repeat(20), job="random"):
        ratio = batch["audio"][:, 7] / plain["audio"][:, 7]
        assert (ratio >= 0.1 - 1e-6).all() and (ratio <= 10 + 1e-4).all()
        factors.update(np.round(ratio, 4).tolist())
    assert len(factors) > 60
