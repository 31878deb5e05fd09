"""A vLLM engine that waits to be asked, in a process of its own: `peers` starts it and talks to it by lines of JSON.

Nothing of Holdfast is imported. What it says stands behind MARK, for the engine logs to the same stream. It says
that it is ready, and by what configuration; then, for each line that comes in, how a batch fared.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from .timing import Moments, noted, steady

MARK = "@driver "
KV_BYTES = 24 << 30
"""Enough for every batch; given, because two engines that start at once cannot tell whose the used memory is."""


def tell(**what: Any) -> None:
    print(MARK + json.dumps(what), flush=True)


def main(name: str, directory: str, most: int, batches: list[int]) -> None:
    begun = time.perf_counter()
    import vllm

    further: dict[str, Any] = {}
    if name.startswith(
        "qwen"
    ):  # there is only the class that also sees, and FlashInfer need not be installed
        further = {"language_model_only": True, "additional_config": {"gdn_prefill_backend": "triton"}}
    llm = vllm.LLM(
        model=directory,
        load_format="dummy",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        generation_config="vllm",
        enable_prefix_caching=False,
        max_model_len=4096,
        max_num_seqs=most,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.3,
        kv_cache_memory_bytes=KV_BYTES,
        attention_config={"backend": "FLASH_ATTN"},
        compilation_config={"cudagraph_capture_sizes": batches},
        **further,
    )
    settings = llm.llm_engine.vllm_config
    tell(
        version=vllm.__version__,
        start_s=time.perf_counter() - begun,
        graphs=str(settings.compilation_config.cudagraph_mode),
        async_scheduling=settings.scheduler_config.async_scheduling,
    )

    def run(given: list[list[int]], tokens: int) -> Moments:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in given]
        with noted(llm.llm_engine) as moments:
            outputs = llm.generate(asked, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
        return moments

    for line in sys.stdin:
        asked = json.loads(line)
        tell(**steady(name, asked["batch"], asked["reps"], run))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
