"""Hugging Face's Trainer.

    torchrun --nproc-per-node 2 hf_trainer.py

Killed and started again, it goes on after its last checkpoint: the Trainer skips the
batches that it had of that epoch. Needs transformers and accelerate.
"""

import glob

import penstock.torch
import torch
import transformers


class Regression(torch.nn.Linear):
    def forward(self, x, labels):
        return {"loss": (super().forward(x)[:, 0] - labels).square().mean()}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        loader = penstock.torch.DataLoader(self.train_dataset, self._train_batch_size,
                                           shuffle=True, collate_fn=self.data_collator)
        return torch.utils.data.DataLoader(loader, batch_size=None)


class SetEpoch(transformers.TrainerCallback):
    def on_epoch_begin(self, args, state, control, train_dataloader, **_):
        train_dataloader.dataset.set_epoch(int(state.epoch))


if __name__ == "__main__":
    torch.manual_seed(1)
    dataset = [{"x": x, "labels": x.sum()} for x in torch.randn(640, 16)]
    trainer = Trainer(Regression(16, 1), transformers.TrainingArguments(
        "checkpoints", per_device_train_batch_size=32, save_steps=4, use_cpu=True,
        report_to="none"), train_dataset=dataset, callbacks=[SetEpoch()])
    trainer.train(resume_from_checkpoint=bool(glob.glob("checkpoints/*-*")))
    print("trained", trainer.model.weight.tolist(), flush=True)
