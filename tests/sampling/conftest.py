"""A small hybrid with a token for each byte, and engines that serve it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.random_model import write_random_model

from holdfast import LLM

TIGHT: dict[str, Any] = dict(max_num_seqs=3, max_model_len=120, page_size=16, num_pages=8, num_slots=3)
"""Pages for one request of full length: of several that grow, some are pre-empted."""
ROOMY: dict[str, Any] = dict(max_num_seqs=3, max_model_len=120, page_size=16, num_pages=64, num_slots=3)

Engines = Callable[..., LLM]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bytes")
    write_random_model(directory)
    return directory


@pytest.fixture(scope="session")
def engines(model_dir: Path) -> Engines:
    """An engine for each set of options, made once. Exact: what two of them compute is equal to the bit."""
    made: dict[str, LLM] = {}

    def engine(**options: Any) -> LLM:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = LLM(model_dir, **(dict(exact=True) | options))
        return made[key]

    return engine


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def logits_of(reference: transformers.PreTrainedModel) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """[tokens, vocab] of what follows each token, in one shot and by another implementation."""

    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return reference(torch.tensor([tokens]), use_cache=False).logits[0]

    return logits
