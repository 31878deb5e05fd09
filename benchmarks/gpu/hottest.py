"""One decode step of four layers of Qwen3.5-4B, for Nsight Compute: each of the hottest kernels with its real inputs.

    ncu --profile-from-start off --clock-control none --section SpeedOfLight --section MemoryWorkloadAnalysis \\
        --section SchedulerStats --section WarpStateStats --section Occupancy --section LaunchStats \\
        -k 'regex:^(few_gated|few|main_one)$' python benchmarks/gpu/hottest.py 16

Nothing is recorded, so that every kernel is launched by itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu.models import options
from gpu.shapes import PROMPT, QWEN35_4B, folder, prompts
from holdfast.request import SamplingParams
from holdfast.service import Service

LAYERS = 4
STEPS = 12
"""Before the one that is looked at: all requests decode, and no journal is empty."""


def main(batch: int) -> None:
    few = {"num_hidden_layers": LAYERS, "layer_types": QWEN35_4B["layer_types"][:LAYERS]}
    with folder(QWEN35_4B | few) as directory:
        service = Service(directory, options(batch, max_model_len=1024, eager=True))
    params = SamplingParams(max_tokens=8 * STEPS, ignore_eos=True)
    answers = [
        a for prompt in prompts("qwen3.5-4b", batch, PROMPT, 0) for a in service.submit(prompt, params)
    ]
    while min(answer.length for answer in answers) < STEPS:
        service.step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    service.step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("batch", type=int, help="requests that decode")
    main(parser.parse_args().batch)
