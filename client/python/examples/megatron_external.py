"""Megatron's data in Megatron's loops: no index to build, the same samples in memory once.

    torchrun --nproc-per-node 4 megatron_external.py --out data --steps 20

`train_valid_test_datasets_provider` is for Megatron-LM's own loop, in its pretrain_gpt.py,
with `--dataloader-type external --no-create-attention-mask-in-dataloader`:

    -def train_valid_test_datasets_provider(train_val_test_num_samples, vp_stage=None):
    -    ...BlendedMegatronDatasetBuilder(...).build()...
    +from megatron_external import train_valid_test_datasets_provider

What runs here is megatron-core's examples/run_simple_mcore_train_loop.py, data parallel 2 ×
tensor parallel 2, on the bytes of the licences which Debian has:

    -    datasets = BlendedMegatronDatasetBuilder(
    -        MockGPTDataset, [1000, None, None], lambda: True, config).build()
    -    train_dataloader = DataLoader(datasets[0], batch_size=8, shuffle=True)
    -    train_iterator = iter(train_dataloader)
    +    train_iterator = batches("train", prefix, LENGTH, samples=1000, per_rank=8,
    +                             layout=penstock.parallel.of_megatron())

`--consumed N` begins with sample N, with any number of processes. Needs torch and
megatron-core; without a GPU, megatron_on_cpu.py stands in for it.
"""

import argparse
import functools
import os
import pathlib

import megatron_on_cpu
import numpy as np
import penstock.parallel
import torch
from megatron.core import mpu

LENGTH = 64
FEATURES = ["tokens", "labels", "loss_mask", "position_ids"]


def batches(use, prefix, length, *, samples, per_rank, layout, consumed=0, **options):
    """What Megatron's sampler `single` takes, from the sample `consumed` on. Copies, as
    Megatron keeps the batches of a step to run it again."""
    dataset = penstock.Dataset.megatron(
        prefix, length, samples=samples, use=use, features=FEATURES, **options)
    reader = penstock.attach(
        dataset.batch(per_rank=per_rank, last="drop"), job=use, autostart=True,
        state={"epoch": 0, "row": consumed} if consumed else None, **layout.options())
    return ({name: tensor.clone() for name, tensor in batch.torch().items()}
            for batch in reader)


def train_valid_test_datasets_provider(train_val_test_num_samples, vp_stage=None):
    from megatron.training import get_args
    from megatron.training.utils import get_blend_from_list
    args = get_args()
    # pretrain_gpt's get_batch takes them here, and broadcasts them to the others.
    takes = mpu.get_tensor_model_parallel_rank() == 0 and (
        mpu.is_pipeline_first_stage() or mpu.is_pipeline_last_stage())
    layout = penstock.parallel.of_data_rank(
        mpu.get_data_parallel_rank() if takes else None, mpu.get_data_parallel_world_size())
    prefixes, weights = get_blend_from_list(args.data_path)
    shares = [*map(float, args.split.split(",")), 0, 0]

    def part(use, samples, share, consumed):
        return None if layout is None or not samples or share == 0 else batches(
            use, list(zip(weights, prefixes)) if weights else prefixes, args.seq_length,
            samples=samples, per_rank=args.micro_batch_size, layout=layout,
            consumed=consumed, split=args.split, seed=args.seed)
    return tuple(map(part, ("train", "valid", "test"), train_val_test_num_samples, shares,
                     (args.consumed_train_samples, args.consumed_valid_samples, 0)))


train_valid_test_datasets_provider.is_distributed = True  # all processes call it


def write(prefix):
    """The licences as PREFIX.bin and PREFIX.idx, a document each."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for path in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()):
        if not path.is_symlink():
            tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            builder.add_document(tokens, [len(tokens)])
    builder.finalize(f"{prefix}.idx")


def forward_step(data_iterator, model):
    batch = next(data_iterator)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])

    def loss_of(mask, output):
        loss = (output.float() * mask).sum() / mask.sum()
        return loss, {"lm loss": loss}
    return output, functools.partial(loss_of, batch["loss_mask"])


def main():
    from megatron.core.distributed import (DistributedDataParallel,
                                           DistributedDataParallelConfig)
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default="data", metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--consumed", type=int, default=0, metavar="SAMPLES")
    options = parser.parse_args()
    torch.distributed.init_process_group()
    mpu.initialize_model_parallel(2, 1)
    model_parallel_cuda_manual_seed(123)
    prefix = options.out / "licences"
    if torch.distributed.get_rank() == 0 and not prefix.with_suffix(".idx").exists():
        options.out.mkdir(parents=True, exist_ok=True)
        write(prefix)
    torch.distributed.barrier()
    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4,
                               hidden_dropout=0, attention_dropout=0,
                               use_cpu_initialization=True, pipeline_dtype=torch.float32)
    torch.manual_seed(123)
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(),
        GPTModel(config, get_gpt_layer_local_spec(), 256, LENGTH).cuda())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    layout = penstock.parallel.of_megatron()
    train_iterator = batches("train", prefix, LENGTH, samples=1000, per_rank=8, layout=layout,
                             consumed=options.consumed)
    for step in range(options.steps):
        optimizer.zero_grad()
        model.zero_grad_buffer()
        losses = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=train_iterator, model=model,
            num_microbatches=1, seq_length=LENGTH, micro_batch_size=8, forward_only=False)
        finalize_model_grads([model])
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        if step in (0, options.steps - 1):
            print(f"step {step}, rank {layout.rank}, replica {layout.replica}: loss "
                  f"{losses[0]['lm loss'].item():.3f}", flush=True)
    torch.distributed.barrier()
    os._exit(0)  # a thread of Gloo's may abort an orderly end (pytorch/pytorch issue 190489)


if __name__ == "__main__":
    if torch.cuda.is_available():
        main()
    else:
        megatron_on_cpu.patch()
        with megatron_on_cpu.OnCpu():
            main()
