from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests import random_model
from tests.capacity.shapes import ZOO

from holdfast import LLM, SamplingParams
from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.models import registry

HYBRID = random_model.CONFIG
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": HYBRID,
    "Qwen3_5ForConditionalGeneration": {"text_config": HYBRID},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "LlamaForCausalLM": {"num_hidden_layers": 2, "tie_word_embeddings": True},
    "Qwen3ForCausalLM": {"num_hidden_layers": 2, "head_dim": 16},
    "Mamba2ForCausalLM": {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "n_groups": 2},
    "Qwen3_5MoeForConditionalGeneration": {"text_config": ZOO["qwen3_5_moe"] | {"vocab_size": 259}},
    **{config["architectures"][0]: config | {"vocab_size": 259} for config in ZOO.values()},
}
SHARED = {"vocab_size": 259, "hidden_size": 64}
HEADS = {"intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(params=sorted(registry.ARCHITECTURES))
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """config.json and nothing else."""
    config = dict(CONFIGS[request.param])
    if request.param.startswith(("Lfm2For", "Llama", "Qwen3For")):
        config |= SHARED | HEADS | {"max_position_embeddings": 512}
    elif request.param.startswith("Mamba2For"):
        config |= SHARED
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [request.param]}))
    return tmp_path


def weights(directory: Path, **options: Any) -> dict[str, torch.Tensor]:
    config = EngineConfig(load_format="dummy", max_model_len=128, **options)
    return Blueprint(directory, config).build().model.state_dict()


def test_every_weight_is_filled_and_the_same_again(directory: Path) -> None:
    once, twice, other = weights(directory), weights(directory), weights(directory, seed=1)
    assert all(tensor.isfinite().all() for tensor in once.values())
    assert all(torch.equal(tensor, twice[name]) for name, tensor in once.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in once.items())


def test_no_two_weights_and_no_two_rows_are_alike(directory: Path) -> None:
    matrices = {tensor.data_ptr(): tensor for tensor in weights(directory).values() if tensor.ndim == 2}
    starts = [tuple(row[:4].tolist()) for matrix in matrices.values() for row in matrix]
    assert len(set(starts)) == len(starts)


def test_decays_are_those_of_a_trained_model(directory: Path) -> None:
    found = weights(directory)
    for name, tensor in found.items():
        if name.endswith("a_log"):
            assert (
                tensor.min() >= 0.0 and tensor.max() <= math.log(16.0) + 1e-6 and tensor.unique().numel() > 1
            )
        if name.endswith("dt_bias"):
            step = torch.nn.functional.softplus(tensor)
            assert step.min() >= 0.001 * 0.99 and step.max() <= 0.1 * 1.01


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_runs(directory: Path, dtype: str) -> None:
    llm = LLM(directory, load_format="dummy", dtype=dtype, max_num_seqs=4, max_model_len=512)
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=5)
    random = Random(0)
    answers = llm.generate([random.choices(range(250), k=length) for length in (200, 100, 7, 2)], params)
    values = [[top for token in answer.logprobs or () for _, top in token.top] for answer in answers]
    assert all(math.isfinite(value) for each in values for value in each)
    assert all(-6.0 < max(each) < -0.01 for each in values), "neither flat nor certain"
    assert len({answer.token_ids for answer in answers}) == 4


@pytest.mark.slow
def test_a_billion_parameters_in_seconds(tmp_path: Path) -> None:
    """Bytes of the size that was planned, at the shape that was published."""
    source = Path(__file__).parents[1] / "capacity" / "configs" / "lfm2-1.2b.json"
    (tmp_path / "config.json").write_text(source.read_text())
    options: dict[str, Any] = dict(dtype="bfloat16", max_num_seqs=2, max_model_len=512)
    llm = LLM(tmp_path, load_format="dummy", **options)
    [answer] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, ignore_eos=True, logprobs=0))
    assert all(math.isfinite(token.logprob) for token in answer.logprobs or ())
