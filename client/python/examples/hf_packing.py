"""Hugging Face's Trainer with packed documents.

    torchrun --nproc-per-node 2 hf_packing.py

The documents are the lines of a licence which Debian has, their tokens the bytes of ByT5.
Each batch is one sequence of whole documents, of one length, nearly without padding, with
position_ids by which the model keeps them apart. Beside transformers' way, whose batches are
of any length, what differs:

    -dataset = load_dataset("text", data_files=files)["train"].map(tokenize, num_proc=8)
    -trainer = transformers.Trainer(model, arguments, train_dataset=dataset,
    -                               data_collator=DataCollatorWithFlattening())
    +loader = penstock.torch.DataLoader(packed_documents(), autostart=True)
    +trainer = Trainer(model, arguments, train_dataset=loader, data_collator=flattened,
    +                  callbacks=[SetEpoch()])

Killed and started again, it goes on after its last checkpoint. Needs transformers and
accelerate.
"""

import glob

import penstock.packing
import penstock.torch
import torch
import transformers

LENGTH, ROWS, EPOCHS = 128, 4, 2


def packed_documents():
    return (penstock.Dataset.text_lines("/usr/share/common-licenses/GPL-3", 256)
            .shuffle(seed=1)
            .map(penstock.encode_bytes(offset=3, end=1), penstock.rename({"text": "input_ids"}))
            .batch(per_rank=ROWS, last="drop",
                   pack=penstock.pack(LENGTH, with_=["position_ids", "seq_lens"]))
            .repeat(EPOCHS))


def flattened(batch):
    flat = penstock.packing.flatten(batch)
    tokens, positions = flat["input_ids"], flat["position_ids"]
    return {"input_ids": tokens.to(torch.int64), "position_ids": positions.to(torch.int64),
            "labels": penstock.packing.labels(tokens, positions)}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None,
                                           collate_fn=self.data_collator)


class SetEpoch(transformers.TrainerCallback):
    def on_epoch_begin(self, args, state, control, train_dataloader, **_):
        train_dataloader.dataset.set_epoch(int(state.epoch))


if __name__ == "__main__":
    torch.manual_seed(1)
    # With a cache its attention would not look at position_ids.
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=1, eos_token_id=1, use_cache=False))
    loader = penstock.torch.DataLoader(packed_documents(), autostart=True)
    trainer = Trainer(model, transformers.TrainingArguments(
        "checkpoints", per_device_train_batch_size=ROWS, num_train_epochs=EPOCHS,
        learning_rate=3e-3, save_steps=20, logging_steps=10, use_cpu=True,
        disable_tqdm=True, report_to="none"), train_dataset=loader, data_collator=flattened,
        callbacks=[SetEpoch()])
    trainer.train(resume_from_checkpoint=bool(glob.glob("checkpoints/*-*")))
    print("trained", model.lm_head.weight[:1, :8].tolist(), flush=True)
