"""Lightning: `fit` in two processes.

    python3 lightning_fit.py

Killed and started again, it goes on with the batch after its last checkpoint: Lightning
keeps the loader's state in it. Needs lightning.
"""

import lightning
import penstock.torch
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x)[:, 0], y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


if __name__ == "__main__":
    lightning.seed_everything(1)
    x = torch.randn(640, 16)
    dataset = TensorDataset(x, x.sum(1))
    loader = penstock.torch.DataLoader(dataset, batch_size=32, shuffle=True)
    model = Regression()
    trainer = lightning.Trainer(
        strategy="ddp", devices=2, accelerator="cpu", max_epochs=3, logger=False,
        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=4, save_last=True)])
    trainer.fit(model, loader, ckpt_path="last")
    print("trained", model.layer.weight.tolist(), flush=True)
