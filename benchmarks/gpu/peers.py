"""Other engines, on the same GPU, the same shapes, the same prompts: vLLM, and `transformers` generate.

vLLM is no dependency: `--vllm` names a directory that has it unpacked, with what it needs. It takes minutes to start,
almost all of them the host's, so all its engines start at once; then each is measured while the others wait.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from . import timing
from .shapes import MODELS, batches_of, folder
from .vllm_driver import MARK

HERE = Path(__file__).parent
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # not there
    "VLLM_USE_DEEP_GEMM": "0",
}
MEASURING = 45
"""Seconds that are left for each engine when none is waited for any more."""
FEW_OUT = 32
"""Tokens of an answer by `transformers`, whose steps take longer."""


def config_for_vllm(name: str) -> dict[str, Any]:
    """It knows Qwen3.5 only with a vision tower, here a small one that is left out when it loads."""
    config = MODELS[name]
    if name != "qwen3.5-4b":
        return config | {"torch_dtype": "bfloat16"}
    rope = config["rope_parameters"] | {"mrope_interleaved": True, "mrope_section": [11, 11, 10]}
    text = config | {"mamba_ssm_dtype": "float32", "dtype": "bfloat16", "rope_parameters": rope}
    del text["architectures"]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **{f"{kind}_token_id": 248_053 + n for n, kind in enumerate(("vision_start", "vision_end"))},
        **{f"{kind}_token_id": 248_056 + n for n, kind in enumerate(("image", "video"))},
        "text_config": text,
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": 2,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": config["hidden_size"],
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [],
        },
    }


class Driver:
    """The process of one engine, and what it has said."""

    def __init__(self, site: Path, name: str, directory: str, batches: list[int]) -> None:
        paths = os.pathsep.join((str(site), str(HERE.parent)))
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._log = (Path(tempfile.gettempdir()) / f"vllm-{name}.log").open("w")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpu.vllm_driver",
                name,
                directory,
                str(max(batches)),
                json.dumps(batches),
            ],
            env=os.environ | QUIET | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._log.write(line)
            self._log.flush()
            if MARK in line:
                self._said.put(json.loads(line.split(MARK, 1)[1]))
        self._said.put(None)

    def hear(self, until: float) -> dict[str, Any]:
        try:
            said = self._said.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"vLLM has not answered in time; see {self._log.name}") from None
        if said is None:
            raise RuntimeError(f"vLLM has ended with {self.process.wait()}; see {self._log.name}")
        return said

    def ask(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """And the processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def _driver(site: Path, name: str, batches: list[int]) -> Iterator[Driver]:
    with folder(config_for_vllm(name)) as directory:
        driver = Driver(site, name, directory, batches)
        try:
            yield driver
        finally:
            driver.end()


def vllm(
    site: Path, names: list[str], batches: list[int], reps: int, limit: float
) -> Iterator[dict[str, Any]]:
    """Rows as of decode, with the configuration that vLLM reports. After `limit` seconds nothing is waited for."""
    until = time.monotonic() + limit
    wanted = {name: batches_of(name, batches) for name in names}
    with ExitStack() as stack:
        drivers = {name: stack.enter_context(_driver(site, name, its)) for name, its in wanted.items()}
        ready: dict[str, dict[str, Any]] = {}
        for name, driver in drivers.items():
            try:
                ready[name] = driver.hear(until - MEASURING * len(drivers))
            except (TimeoutError, RuntimeError) as error:
                print(f"{name}: {error}", flush=True)
                driver.end()
        for name, settings in ready.items():
            for batch in wanted[name]:
                drivers[name].ask(batch=batch, reps=reps)
                yield drivers[name].hear(until) | settings
            drivers[name].end()


def vllm_line(row: dict[str, Any]) -> str:
    return (
        f"vllm {row['version']}: {timing.line(row)}  graphs {row['graphs']}, "
        f"async scheduling {row['async_scheduling']}, started in {row['start_s']:.0f} s beside the others"
    )


class Told:
    """Is told of the prompts when `generate` begins, and then of each step's tokens, which it waits for."""

    def __init__(self) -> None:
        self.moments: timing.Moments = []

    def put(self, tokens: torch.Tensor) -> None:
        self.moments.append(time.perf_counter())

    def end(self) -> None: ...


def transformers(name: str, batches: list[int], reps: int) -> Iterator[dict[str, Any]]:
    import transformers as library

    with folder(MODELS[name]) as directory, torch.device("cuda"):
        config = library.AutoConfig.from_pretrained(directory)
        model = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None

    def run(given: list[list[int]], tokens: int) -> timing.Moments:
        prompts, told = torch.tensor(given, device="cuda"), Told()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            streamer=told,
        )
        return told.moments

    for batch in batches:
        yield timing.steady(name, batch, reps, run, out=FEW_OUT) | {"version": library.__version__}


def transformers_line(row: dict[str, Any]) -> str:
    return f"transformers {row['version']}: {timing.line(row)}"


def table(found: dict[str, Any]) -> list[str]:
    """Holdfast beside the others, as far as they were measured, tokens a second."""
    ours = {(row["model"], row["batch"]): row for row in found.get("decode", [])}
    lines = []
    for part in ("vllm", "transformers"):
        for row in found.get(part, []):
            if own := ours.get((row["model"], row["batch"])):
                ratio, prefill = (own[key] / row[key] for key in ("tokens_per_s", "prefill_tokens_per_s"))
                lines.append(
                    f"{row['model']:12} batch {row['batch']:4}  Holdfast {own['tokens_per_s']:8.0f}  "
                    f"{part} {row['tokens_per_s']:8.0f}  ratio {ratio:.2f}  prefill {prefill:.2f}"
                )
    return lines
