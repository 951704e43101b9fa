"""Speech on the processor: which of five languages a voice of a telephone speaks.

    penstock run --ranks 1 -- python3 speech.py

2,800 recordings of four people, which Debian's asterisk-core-sounds-en-wav, -es-wav,
-fr-wav, -it-wav and -ru-wav have, a folder for each language; one of them speaks English
and Spanish. After 30 seconds on two cores it is right about 0.98 of the recordings that it
was not trained on. Beside PyTorch's tutorial "Speech Command Classification with torchaudio",
whose model it has, what differs:

    -train_set = SubsetSC("training")
    -transform = torchaudio.transforms.Resample(orig_freq=16000, new_freq=8000)
    -train_loader = torch.utils.data.DataLoader(train_set, batch_size=256, shuffle=True,
    -                                           collate_fn=collate_fn, num_workers=1)
    +train_loader = penstock.torch.DataLoader(dataset("train", epochs),
    +                                         features=("audio", "label"))
     for data, target in train_loader:
    -    data = transform(data)
         output = model(data)

Needs torch.
"""

import argparse
import pathlib

import penstock
import penstock.torch
import torch
from torch import nn
from torch.nn import functional as F

FOLDER = pathlib.Path("/usr/share/asterisk/sounds")
RATE = 8000  # Hz
MELS = 64
BATCH = 64


def dataset(part, epochs=1):
    """Spectrograms of two seconds of each recording. In training: of any two, louder or
    less loud, with bands of time and of frequency masked."""
    train = part == "train"
    mel = penstock.mel_spectrogram(RATE, mels=MELS, fft=256, hop=80, log="natural")
    if train:
        steps = [penstock.decode_audio(RATE, 2, mono=True, crop="random"),
                 penstock.gain(6), mel,
                 penstock.mask_spectrogram(time=20, frequency=8, times=2, frequencies=2,
                                           share=0.2)]
    else:
        steps = [penstock.decode_audio(RATE, 2, mono=True, crop="center"), mel]
    nobody = [str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/silence/*.wav")]
    found = (penstock.Dataset.audio_folder(FOLDER, name=f"speech-{part}")
             .filter("path", exclude=[*nobody, "ru_RU_f_IvrvoiceRU/is.wav"])  # empty
             .split(part, {"train": 0.8, "test": 0.2})
             .map(*steps)
             .batch(BATCH, last="drop" if train else "partial")
             .repeat(epochs))
    return found.shuffle(seed=1) if train else found


def m5(classes, width=64):
    """The tutorial's, with the filters of a spectrogram as channels of its input."""
    def block(size, channels, kernel, stride=1):
        return [nn.Conv1d(size, channels, kernel, stride), nn.BatchNorm1d(channels),
                nn.ReLU()]
    return nn.Sequential(
        nn.BatchNorm1d(MELS), *block(MELS, width, 5, 2), nn.MaxPool1d(2),
        *block(width, width, 3), nn.MaxPool1d(2), *block(width, 2 * width, 3),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(1)
    languages = sorted(each.name for each in FOLDER.iterdir())
    model = m5(len(languages))
    train_loader = penstock.torch.DataLoader(dataset("train", options.epochs),
                                             features=("audio", "label"))
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.01, total_steps=options.epochs * len(train_loader))
    for epoch in range(options.epochs):
        losses = []
        for data, target in train_loader:
            # [rows, frames, mels], as rows differ in their frames.
            loss = F.cross_entropy(model(data.transpose(1, 2)), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}", flush=True)

    model.eval()
    right = rows = 0
    with torch.no_grad():
        for data, target in penstock.torch.DataLoader(dataset("test"),
                                                      features=("audio", "label")):
            right += (model(data.transpose(1, 2)).argmax(dim=1) == target).sum().item()
            rows += len(target)
    print(f"{len(languages)} languages, {rows} recordings, test accuracy {right / rows:.4f}",
          flush=True)


if __name__ == "__main__":
    main()
