"""A model that cannot be served says why in one sentence, before it costs anyone time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from holdfast import LLM

GATE = "model.layers.1.mlp.gate_proj.weight"


def refusal(model: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        LLM(model, max_num_seqs=2, **options)
    message = str(caught.value)
    assert "\n" not in message and 20 < len(message) < 500
    return message


# Where the model should be


def test_no_such_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent") == (
        f"{tmp_path / 'absent'} is not a directory; give one with config.json, *.safetensors, tokenizer.json"
    )
    assert "Qwen/Qwen3.5-4B is not a directory" in refusal("Qwen/Qwen3.5-4B")


def test_a_file_instead_of_a_directory(spoilt: Path) -> None:
    assert "config.json is not a directory" in refusal(spoilt / "config.json")


def test_an_empty_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path} has no config.json, so it is not a model as the hub stores them"
    )


def test_not_a_path_at_all() -> None:
    with pytest.raises(
        TypeError, match="model must be the path of a directory, or None for the built-in one, not 5"
    ):
        LLM(5)  # type: ignore[arg-type]


# config.json


def write_config(directory: Path, **changes: Any) -> Path:
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_an_unknown_architecture(spoilt: Path) -> None:
    message = refusal(write_config(spoilt, architectures=["GPT2LMHeadModel"]))
    assert message.startswith("architecture GPT2LMHeadModel is not known here; known are these, each with ")
    assert " Lfm2, " in message and " Qwen3_5, " in message


@pytest.mark.parametrize("named", [None, [], "Qwen3_5ForCausalLM", 5, [5]])
def test_an_architecture_that_is_none(spoilt: Path, named: Any) -> None:
    message = refusal(write_config(spoilt, architectures=named))
    assert "is not known here" in message or "architectures must be a list of names" in message


@pytest.mark.parametrize(
    "spoil", [lambda t: t[: len(t) // 2], lambda t: "", lambda t: "\0" + t, lambda t: "ÿ"]
)
def test_a_corrupt_config(spoilt: Path, spoil: Callable[[str], str]) -> None:
    path = spoilt / "config.json"
    path.write_bytes(spoil(path.read_text()).encode("latin-1"))
    assert f"{path} is not valid JSON: " in refusal(spoilt)


def test_a_config_that_is_no_object(spoilt: Path) -> None:
    (spoilt / "config.json").write_text("[1, 2]")
    assert refusal(spoilt) == f"{spoilt / 'config.json'} must hold a JSON object"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        # fields that this engine does not implement
        ({"sliding_window": 128}, "unknown fields sliding_window; the model might depend on them"),
        ({"quantization_config": {"bits": 4}}, "unknown fields quantization_config"),
        ({"new_gate": True, "new_norm": 1}, "unknown fields new_gate, new_norm"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not implemented here, only 'silu'"),
        ({"attn_output_gate": False}, "attn_output_gate=False is not implemented here, only True"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4}}, "rope_type='yarn' is not implemented here"),
        ({"rope_parameters": {"new_angle": 1}}, "rope_parameters: unknown fields new_angle"),
        # fields that are missing, of the wrong kind, or at odds with each other
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, not '64'"),
        ({"hidden_size": -64}, "hidden_size must be a positive integer, not -64"),
        ({"vocab_size": 259.5}, "vocab_size must be a positive integer, not 259.5"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number, not 'small'"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number, not nan"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object, not [1]"),
        ({"layer_types": "linear_attention"}, "layer_types must be a list, not 'linear_attention'"),
        ({"layer_types": ["mamba"] * 4}, "layer_types holds 'mamba'; this architecture has linear_attention"),
        ({"num_hidden_layers": 5}, "layer_types names 4 layers; num_hidden_layers is 5"),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 2},
            "num_attention_heads=3 must be a multiple of num_key_value_heads=2",
        ),
        (
            {"linear_num_key_heads": 3},
            "linear_num_value_heads=4 must be a multiple of linear_num_key_heads=3",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 2.0}},
            "rotary positions turn pairs of a head's channels, so not 64 of 32",
        ),
    ],
)
def test_a_config_that_is_not_understood(spoilt: Path, changes: dict[str, Any], sentence: str) -> None:
    write_config(spoilt, **changes)
    message = refusal(spoilt)
    assert message.startswith("config.json: ") and sentence in message
    assert refusal(spoilt, load_format="dummy") == message


# Weights


def respoil(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    return path


def test_no_weights(spoilt: Path) -> None:
    (spoilt / "model.safetensors").unlink()
    assert "it has no safetensors files" in refusal(spoilt)
    LLM(spoilt, load_format="dummy", max_num_seqs=2)  # needs none


def test_an_absent_tensor_is_named(spoilt: Path) -> None:
    respoil(spoilt, lambda weights: weights.pop(GATE))
    message = refusal(spoilt)
    assert message == f"the model needs blocks.1.mlp.gate_proj.weight, which no file in {spoilt} gives"


def test_a_misshapen_tensor_is_named(spoilt: Path) -> None:
    path = respoil(spoilt, lambda weights: weights.update({GATE: torch.zeros(3, 64)}))
    assert refusal(spoilt) == (
        f"{GATE} in {path} has shape (3, 64); blocks.1.mlp.gate_proj.weight needs (128, 64)"
    )


def test_a_tensor_that_nobody_asked_for_is_named(spoilt: Path) -> None:
    path = respoil(spoilt, lambda weights: weights.update({"model.layers.1.mlp.adapter": torch.zeros(3)}))
    assert refusal(spoilt) == f"the model has no place for model.layers.1.mlp.adapter in {path}"


def test_a_quantised_tensor_is_named(spoilt: Path) -> None:
    path = respoil(spoilt, lambda weights: weights.update({GATE: torch.zeros(128, 64, dtype=torch.int8)}))
    assert refusal(spoilt) == f"{GATE} in {path} has dtype I8; it must be one of F64, F32, F16, BF16"


@pytest.mark.parametrize("keep", [0, 7, 500, -1])
def test_truncated_weights(spoilt: Path, keep: int) -> None:
    path = spoilt / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    message = refusal(spoilt)
    assert message.startswith(f"{path} cannot be read: ") and message.endswith("fetch it again")


def test_weights_of_another_model(spoilt: Path) -> None:
    """Every layer has another size; the first that does not fit is named."""
    write_config(spoilt, hidden_size=32)
    assert "has shape" in refusal(spoilt) and "needs" in refusal(spoilt)


# Tokenizer


def test_a_corrupt_tokenizer(spoilt: Path) -> None:
    (spoilt / "tokenizer.json").write_text("{")
    assert refusal(spoilt).startswith(f"{spoilt / 'tokenizer.json'} cannot be read: ")


def test_a_corrupt_tokenizer_config(spoilt: Path) -> None:
    (spoilt / "tokenizer_config.json").write_text("[]")
    assert "tokenizer_config.json should hold a JSON object" in refusal(spoilt)
