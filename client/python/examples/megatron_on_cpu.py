"""Runs a program of Megatron's on the processor, whatever it says of "cuda".

    torchrun --nproc-per-node 4 megatron_on_cpu.py PROGRAM ARGUMENTS ...

For a look at its loops and data where no GPU is: processes talk by Gloo.
"""

import collections
import contextlib
import runpy
import sys
import types
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Tensors that were to be on a GPU."""

    def __torch_function__(self, function, kinds, arguments=(), keywords=None):
        def moved(value):
            is_gpu = (isinstance(value, (str, torch.device)) and str(value).startswith("cuda"))
            return torch.device("cpu") if is_gpu else value
        keywords = {name: moved(value) for name, value in (keywords or {}).items()}
        if function is torch.Tensor.cuda:
            return arguments[0]
        if function is torch.Tensor.type and len(arguments) + len(keywords) == 1:
            return function(arguments[0]).replace("torch.", "torch.cuda.")
        return function(*map(moved, arguments), **keywords)


def patch():
    """torch.cuda as if there were GPUs, with nothing to do."""
    cuda = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.is_available, cuda.device_count = lambda: True, lambda: 64
    cuda.get_rng_state = cuda.random.get_rng_state = lambda device=None: torch.get_rng_state()
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        major=8, minor=0, name="cpu", total_memory=0)
    cuda.get_device_capability = lambda device=None: (8, 0)
    cuda.memory_stats = lambda device=None: collections.defaultdict(int)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated",
                 "max_memory_reserved", "device_memory_used"):
        setattr(cuda, name, lambda device=None: 0)
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.Stream = cuda.Event = cuda.current_stream = mock.MagicMock
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "set_rng_state",
                 "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *arguments, **keywords: None)
    torch.compiler.set_stance("force_eager")
    # They want Triton, and CUDA's compiler.
    for name in ("core.transformer.custom_layers.batch_invariant_kernels",
                 "legacy.fused_kernels"):
        sys.modules[f"megatron.{name}"] = mock.MagicMock()
    torch.nn.Module.cuda = lambda module, device=None: module
    init = torch.distributed.init_process_group
    torch.distributed.init_process_group = (
        lambda backend=None, device_id=None, **keywords: init("gloo", **keywords))


if __name__ == "__main__":
    patch()
    sys.argv = sys.argv[1:]
    with OnCpu():
        runpy.run_path(sys.argv[0], run_name="__main__")
