#!/usr/bin/env python3
"""Runs Megatron-LM's own loop with its own loader and with Penstock's, and compares the
losses: by hand, in an environment with penstock, torch and megatron-core, whose helpers the
checkout needs, on a machine without a GPU.

    git clone --branch core_v0.16.1 https://github.com/NVIDIA/Megatron-LM
    python tests/python/megatron_loop_judge.py Megatron-LM

As data and tensor parallel 2, and with three stages of a pipeline. What differs of the two
programs is the provider of the datasets, and the option that chooses the loader."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "client" / "python" / "examples"
OPTIONS = """
    --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --micro-batch-size 2 --global-batch-size 16 --train-iters 10 --lr 3e-3
    --lr-decay-style constant --hidden-dropout 0 --attention-dropout 0
    --eval-iters 2 --eval-interval 5 --log-interval 1 --split 90,10,0
    --tokenizer-type NullTokenizer --vocab-size 255 --transformer-impl local
    --distributed-backend gloo --use-cpu-initialization --attention-softmax-in-fp32
    --no-create-attention-mask-in-dataloader --no-gradient-accumulation-fusion
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion
    --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
    --no-async-tensor-model-parallel-allreduce""".split()
LAYOUTS = [(4, ["--tensor-model-parallel-size", "2", "--num-layers", "2"]),
           (3, ["--pipeline-model-parallel-size", "3", "--num-layers", "3"])]


def losses(folder, megatron, program, processes, options):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={processes}", EXAMPLES / "megatron_on_cpu.py", program, *OPTIONS,
         *options, "--data-path", folder / "licences"],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": f"{megatron}:{EXAMPLES}", "OMP_NUM_THREADS": "1",
             "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    found = re.findall(r"lm loss(?: value)?: [\d.E+-]+|grad norm: [\d.]+", done.stdout)
    if done.returncode or len(found) < 20:
        raise SystemExit(f"{program}:\n{done.stdout[-4000:]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megatron", type=Path)
    megatron = parser.parse_args().megatron.resolve()
    sys.path.insert(0, str(EXAMPLES))
    import megatron.core.datasets as datasets
    import megatron_external
    for helpers in Path(datasets.__file__).parent.glob("helpers_cpp.*.so"):
        shutil.copy(helpers, megatron / "megatron/core/datasets")
    program = (megatron / "pretrain_gpt.py").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megatron_external.write(folder / "licences")
        before, main_part = program.split('if __name__ == "__main__":')
        (folder / "external.py").write_text(
            f"{before}from megatron_external import train_valid_test_datasets_provider\n\n\n"
            f'if __name__ == "__main__":{main_part}')
        for processes, layout in LAYOUTS:
            own = losses(folder, megatron, megatron / "pretrain_gpt.py", processes, layout)
            ours = losses(folder, megatron, folder / "external.py", processes,
                          [*layout, "--dataloader-type", "external"])
            if own != ours:
                raise SystemExit(f"{layout}: they differ:\n{own}\n{ours}")
            print(f"{' '.join(layout)}: {len(own)} losses and norms, no difference",
                  flush=True)


if __name__ == "__main__":
    main()
