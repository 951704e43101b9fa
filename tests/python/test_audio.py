"""Sounds: the samples that soundfile reads and the soxr package resamples, in folders,
tar files and lists, padded and ragged; another number of channels, a longer file and a
file that is no sound are errors that name the file, also one of noise, which is added at a
ratio."""

import io
import tarfile

import numpy as np
import penstock
import pytest

soundfile = pytest.importorskip("soundfile", reason="no soundfile")
soxr = pytest.importorskip("soxr", reason="no soxr")

RATE = 16000
FORMATS = [("wav", "WAV", "PCM_16", 44100, 2), ("flac", "FLAC", "PCM_24", 16000, 1),
           ("ogg", "OGG", "VORBIS", 22050, 1), ("opus", "OGG", "OPUS", 48000, 2),
           ("mp3", "MP3", "MPEG_LAYER_III", 44100, 2), ("wav", "WAV", "FLOAT", 8000, 3)]


def sound(n):
    extension, form, subtype, rate, channels = FORMATS[n % len(FORMATS)]
    rng = np.random.default_rng(n)
    length = rate // 4 + 1111 * n
    time = np.arange(length)[:, None] / rate
    values = (0.4 * np.sin(2 * np.pi * 300 * (np.arange(channels) + 1) * time)
              + 0.1 * rng.normal(size=(length, channels))).astype("float32")
    file = io.BytesIO()
    soundfile.write(file, values, rate, format=form, subtype=subtype)
    return extension, file.getvalue()


def samples(data, rate=RATE):
    """What decode_audio of mono shall give."""
    values, own = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    mono = values.mean(axis=1, dtype=np.float64).astype("float32")
    return mono if own == rate else soxr.resample(mono, own, rate, quality="HQ")


@pytest.fixture
def sounds(tmp_path):
    made = {}
    for n in range(12):
        extension, data = sound(n)
        path = tmp_path / "sounds" / "ab"[n % 2] / f"{n:02}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        made[path] = data
    return dict(sorted(made.items()))


def check(batches, sounds, name="audio"):
    wanted = list(map(samples, sounds.values()))
    seen = 0
    for batch in batches:
        padded = batch.padded(name)
        values, splits = batch.ragged(name)
        assert padded.shape[1] == max(len(wanted[i]) for i in batch.ids)
        for row, i in enumerate(batch.ids):
            assert batch.lengths(name)[row] == len(wanted[i])
            # Each of the two libraries has its own libvorbis, libopus and FFT.
            np.testing.assert_allclose(padded[row, :len(wanted[i])], wanted[i], atol=1e-4)
            assert not batch[name][row, len(wanted[i]):].any()
            assert (values[splits[row]:splits[row + 1]] == padded[row, :len(wanted[i])]).all()
            seen += 1
    assert seen == len(sounds)


STEP = penstock.decode_audio(RATE, 3, mono=True)


def test_a_folder_of_classes(attach, tmp_path, sounds):
    reader = attach(penstock.Dataset.audio_folder(tmp_path / "sounds").map(STEP)
                    .shuffle(seed=1).batch(5, last="partial"))
    labels = {}

    def batches():
        for batch in reader:
            labels.update(zip(batch.ids.tolist(), batch["label"].tolist()))
            yield batch

    check(batches(), sounds)
    assert [labels[i] for i in range(12)] == [0] * 6 + [1] * 6


def test_members_of_a_tar_file(attach, tmp_path, sounds):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path, data in sounds.items():
            member = tarfile.TarInfo(path.name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    dataset = penstock.Dataset.webdataset(tmp_path / "a.tar", {
        "speech": {"encoded": True, "member": "wav;flac;ogg;opus;mp3"}})
    check(attach(dataset.map(penstock.decode_audio(
        RATE, 3, mono=True, feature="speech")).batch(4)), sounds, "speech")


def test_a_list_with_text(attach, tmp_path, sounds):
    rows = "".join(f"{path.name}\tword {n}\n" for n, path in enumerate(sounds))
    (tmp_path / "list.tsv").write_text("path\tsentence\n" + rows)
    for path in list(sounds):
        path.rename(tmp_path / path.name)
    dataset = penstock.Dataset.image_list(tmp_path / "list.tsv", {
        "audio": {"encoded": True, "column": "path"},
        "text": {"max_bytes": 20, "column": "sentence"}}, delimiter="\t")
    check(attach(dataset.map(STEP).batch(6)), sounds)


def test_channels_beside_each_other_and_a_crop(attach, tmp_path):
    values = np.random.default_rng(1).integers(-9999, 9999, (RATE, 2)).astype("int16")
    soundfile.write(tmp_path / "a.flac", values, RATE)
    dataset = penstock.Dataset.audio_folder(tmp_path, labels="none")
    parts = {"start": 0, "center": RATE // 4}
    for crop, first in parts.items():
        reader = attach(dataset.map(penstock.decode_audio(RATE, 0.5, channels=2, crop=crop))
                        .batch(1), job=crop)
        wanted = values[first:first + RATE // 2].astype("float32") / 32768
        assert (reader.next()["audio"][0] == wanted).all()
    reader = attach(dataset.map(penstock.decode_audio(RATE, 0.5, channels=2, crop="random"))
                    .shuffle(seed=5).batch(1).repeat(20), job="random")
    starts = set()
    for epoch in reader.epochs():
        for batch in epoch:
            row = np.round(batch["audio"][0] * 32768).astype("int16")
            first = next(i for i in range(RATE // 2 + 1) if (values[i] == row[0]).all()
                         and (values[i:i + RATE // 2] == row).all())
            starts.add(first)
    assert len(starts) > 15


@pytest.mark.parametrize("step, words", [
    (penstock.decode_audio(RATE, 1, channels=1), "2 channels, and the step says"),
    (penstock.decode_audio(RATE, 0.5, mono=True), "a sound of 1 seconds; at most 0.5 fit")])
def test_what_does_not_fit_is_told_with_its_file(attach, tmp_path, step, words):
    soundfile.write(tmp_path / "long.wav", np.zeros((RATE, 2)), RATE)
    dataset = penstock.Dataset.audio_folder(tmp_path, labels="none").map(step).batch(1)
    with pytest.raises(penstock.DataLoss, match="long.wav.*" + words):
        attach(dataset).next()


def test_what_is_no_sound_is_told_with_its_file(attach, tmp_path):
    (tmp_path / "a.wav").write_bytes(b"GIF89a")
    dataset = penstock.Dataset.audio_folder(tmp_path, labels="none").map(STEP).batch(1)
    with pytest.raises(penstock.DataLoss, match="a.wav.*not a WAV, FLAC, MP3"):
        attach(dataset).next()


def test_noise_at_a_ratio(attach, tmp_path, sounds):
    noise = np.random.default_rng(2).normal(0, 0.1, 10 * RATE)
    soundfile.write(tmp_path / "noise.flac", noise, RATE)
    plain = penstock.Dataset.audio_folder(tmp_path / "sounds").map(STEP).batch(12)
    noisy = plain.map(penstock.noise(tmp_path / "noise.flac", RATE, [3, 9]))
    before = attach(plain, job="plain").next()
    ratios = set()
    for batch in attach(noisy.repeat(3), job="noisy"):
        for row, length in enumerate(batch.lengths("audio")):
            sound = before["audio"][row, :length].astype(float)
            added = batch["audio"][row, :length] - sound
            ratio = 10 * np.log10((sound ** 2).sum() / (added ** 2).sum())
            assert 3 - 1e-3 <= ratio <= 9 + 1e-3
            assert not batch["audio"][row, length:].any()
            ratios.add(round(float(ratio), 4))
    assert len(ratios) > 30


@pytest.mark.parametrize("name, words", [("a.wav", "not a WAV, FLAC, MP3"),
                                         ("gone.wav", "no such file")])
def test_what_is_no_noise_is_told_with_its_file(attach, tmp_path, sounds, name, words):
    (tmp_path / "a.wav").write_bytes(b"GIF89a")
    dataset = penstock.Dataset.audio_folder(tmp_path / "sounds").map(
        STEP, penstock.noise(tmp_path / name, RATE, [3, 9])).batch(1)
    with pytest.raises(penstock.Error, match=f"noise: .*{name}.*{words}"):
        attach(dataset)


def test_batches_of_like_length(attach, tmp_path, sounds):
    """The length of a decoded sound is a column, which nothing but decoding tells."""
    lengths = [len(samples(data)) for data in sounds.values()]
    made = penstock.Dataset.audio_folder(tmp_path / "sounds").map(STEP).shuffle(seed=1)
    bounds = sorted([*sorted(lengths)[3::4]])
    for job in ("first", "cached"):
        seen = []
        for batch in attach(made.batch(
                3, buckets=penstock.buckets("audio.length", boundaries=bounds[:2])), job=job):
            assert batch["audio"].shape[1] == bounds[batch.part]
            assert batch.lengths("audio").tolist() == [lengths[i] for i in batch.ids]
            seen += batch.ids.tolist()
        assert sorted(seen) == list(range(len(sounds)))
    short = made.filter("audio.length", max=bounds[0]).batch(2)
    assert sorted(i for batch in attach(short, job="short") for i in batch.ids) == [
        i for i, length in enumerate(lengths) if length <= bounds[0]]


def test_a_length_that_is_drawn_is_no_column(attach, tmp_path, sounds):
    made = penstock.Dataset.audio_folder(tmp_path / "sounds").map(
        penstock.decode_audio(RATE, 0.1, mono=True, crop="random"))
    with pytest.raises(penstock.InvalidArgument, match="no column 'audio.length'"):
        attach(made.shuffle(seed=1).batch(3, buckets=penstock.buckets("audio.length")))


def test_a_broken_sound_has_no_length(attach, tmp_path, sounds):
    next(iter(sounds)).write_bytes(b"RIFF")
    made = penstock.Dataset.audio_folder(tmp_path / "sounds").map(STEP)
    by_length = penstock.buckets("audio.length")
    with pytest.raises(penstock.DataLoss, match="column 'audio.length'.*00.wav"):
        attach(made.batch(3, buckets=by_length))
    broken = tmp_path / "broken.txt"
    broken.write_text("0\n")
    without = attach(made.exclude(broken).batch(3, buckets=by_length))
    assert sorted(i for batch in without for i in batch.ids) == list(range(1, len(sounds)))
