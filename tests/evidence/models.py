"""Tiny random models in hub format, made by transformers, with weights scaled so that state matters.

The usual initialisation makes models whose state hardly matters: the residual stream drowns the mixers, decays
forget within a token, greedy decoding repeats itself. An engine could lose a layer's state and no test would see
it. Here (`draw_weights`) every layer is heard, decays last from three tokens to hundreds, attention is sharp
and the head leans away from the token just read. The scales hold for any seed; no seed is picked.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

KERNELS = ("fla", "causal_conv1d", "mamba_ssm")


@contextmanager
def _plain() -> Iterator[None]:
    """A family that transformers loads takes its kernels from these packages, where they are installed; the oracle
    must be plain torch."""
    found = {name: sys.modules.get(name) for name in KERNELS}
    sys.modules.update(dict.fromkeys(KERNELS))  # type: ignore[arg-type]
    yield
    for name, module in found.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


with _plain():
    import transformers
    from transformers import (
        Lfm2Config,
        Lfm2ForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        Mamba2Config,
        Mamba2ForCausalLM,
        PreTrainedConfig,
        PreTrainedModel,
        Qwen3_5Config,
        Qwen3_5ForCausalLM,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5TextConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
    )
    from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCAB = 512
LFM2, QWEN3_5, QWEN3_5_VL = "Lfm2ForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"
MAMBA2, LLAMA, QWEN3 = "Mamba2ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"
OTHERS = {
    "Bamba": "Config",
    "FalconH1": "Config",
    "FalconMamba": "Config",
    "GraniteMoeHybrid": "Config",
    "Jamba": "Config",
    "KimiLinear": "Config",
    "Lfm2Moe": "Config",
    "Mamba": "Config",
    "MiniMax": "Config",
    "NemotronH": "Config",
    "OlmoHybrid": "Config",
    "Qwen3Moe": "Config",
    "Qwen3Next": "Config",
    "Qwen3_5Moe": "TextConfig",
    "Zamba2": "Config",
}
"""Families without models of their own here, and what their configs are called."""
with _plain():
    ARCHITECTURES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
        LFM2: (Lfm2Config, Lfm2ForCausalLM),
        QWEN3_5: (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
        QWEN3_5_VL: (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
        MAMBA2: (Mamba2Config, Mamba2ForCausalLM),
        LLAMA: (LlamaConfig, LlamaForCausalLM),
        QWEN3: (Qwen3Config, Qwen3ForCausalLM),
        **{
            f"{family}ForCausalLM": (
                getattr(transformers, f"{family}{config}"),
                getattr(transformers, f"{family}ForCausalLM"),
            )
            for family, config in OTHERS.items()
        },
    }


@dataclass(frozen=True)
class TinyModel:
    name: str
    architecture: str
    options: Mapping[str, Any]
    unused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tensors stored beside the model's own, which no text model uses, as on the hub: name to shape."""

    def create(self) -> PreTrainedModel:
        config, model = ARCHITECTURES[self.architecture]
        return model(config(**self.options)).eval()


def build(model: TinyModel, directory: Path, *, seed: int = 0, max_shard_size: str = "1GB") -> Path:
    """Write the model with weights drawn from `seed`: one file, or several if `max_shard_size` asks for it."""
    network = model.create()
    draw_weights(network, seed)
    network.save_pretrained(directory, max_shard_size=max_shard_size)
    if model.unused:
        _add_tensors(directory, {name: torch.ones(shape) for name, shape in model.unused.items()})
    return directory


def random_prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCAB, (length,), generator=generator).tolist())


# Weights

LOUDNESS = 0.2
"""The embedding's standard deviation per layer that will be added to it; layers add about 0.5 each."""
DECAYS = (0.005, 0.2)
"""exp(A_log): a state decays by about this much a token, per head, drawn evenly in the logarithm."""
SHARPNESS = 3.0
"""Weight of the query norm: attention scores have about this standard deviation."""
SPREAD = 0.2
"""Standard deviation of norm weights around their mean."""


@torch.no_grad()
def draw_weights(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            parameter.copy_(_draw(path, leaf, module, parameter.shape, generator))
        if hasattr(module, "q_proj") and not hasattr(module, "q_norm") and not hasattr(module, "q_layernorm"):
            module.q_proj.weight.mul_(SHARPNESS)
    _draw_ends(model, generator)


def _draw(path: str, leaf: str, module: nn.Module, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if leaf == "A_log":
        low, high = (math.log(decay) for decay in DECAYS)
        return low + (high - low) * torch.rand(shape, generator=generator)
    if leaf == "dt_bias":
        return 0.5 * noise
    if leaf in ("bias", "D"):
        return 0.3 * noise
    if len(shape) == 1:
        mean = SHARPNESS if path.endswith(("q_norm", "q_layernorm")) else 1.0
        return _norm_weight(module, mean * (1 + SPREAD * noise))
    return noise / math.sqrt(shape[1:].numel())  # unit gain


def _draw_ends(model: Any, generator: torch.Generator) -> None:
    """Embedding, last norm and head.

    Logits get unit variance, whether tied or not. The head leans away from the token just read: otherwise a
    token that maps to itself is a trap for greedy decoding, and with a tied head most tokens do.
    """
    text = model.base_model
    text = getattr(text, "language_model", text)
    norm = next(getattr(text, name) for name in ("embedding_norm", "norm_f", "norm") if hasattr(text, name))
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    (vocab, hidden), loudness = embedding.shape, LOUDNESS * len(text.layers)
    tokens = torch.randn(vocab, hidden, generator=generator)
    scale = 1 + SPREAD * torch.randn(hidden, generator=generator)
    embedding.copy_(loudness * tokens)
    if head is embedding:
        scale = -scale / (loudness * math.sqrt(hidden))
    else:
        head.copy_((torch.randn(vocab, hidden, generator=generator) - tokens) / math.sqrt(2 * hidden))
    norm.weight.copy_(_norm_weight(norm, scale))


def _norm_weight(module: nn.Module, scale: Tensor) -> Tensor:
    """The weight with which a norm scales by `scale`: some store the difference from one."""
    return scale - 1 if type(module).__name__ == "Qwen3_5RMSNorm" else scale


def _add_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        save_file(load_file(single) | tensors, single, metadata={"format": "pt"})
        return
    extra = "model-extra.safetensors"
    save_file(tensors, directory / extra, metadata={"format": "pt"})
    content = json.loads(index.read_text())
    content["weight_map"] |= dict.fromkeys(tensors, extra)
    index.write_text(json.dumps(content))


# Configurations

LFM2_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "block_multiple_of": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN3_5_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
QUARTER_ROTARY = {"rope_parameters": QWEN3_5_BASE["rope_parameters"] | {"partial_rotary_factor": 0.25}}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
KINDS = {"c": "conv", "l": "linear_attention", "a": "full_attention"}


def _lfm2(name: str, layers: str, **options: Any) -> TinyModel:
    return TinyModel(f"lfm2-{name}", LFM2, LFM2_BASE | _layers(layers) | options)


def _qwen3_5(name: str, layers: str, **options: Any) -> TinyModel:
    return TinyModel(f"qwen3_5-{name}", QWEN3_5, QWEN3_5_BASE | _layers(layers) | options)


def _qwen3_5_vl(name: str, layers: str, **options: Any) -> TinyModel:
    """The text model inside a model that also sees; token ids of images lie outside the vocabulary."""
    text = QWEN3_5_BASE | _layers(layers) | options
    hidden = text["hidden_size"]
    special = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    whole = {
        "text_config": text,
        "vision_config": VISION | {"out_hidden_size": hidden},
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
        **{token: VOCAB + i for i, token in enumerate(special)},
    }
    unused = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}
    return TinyModel(f"qwen3_5_vl-{name}", QWEN3_5_VL, whole, unused)


def _layers(layers: str) -> dict[str, Any]:
    return {"num_hidden_layers": len(layers), "layer_types": [KINDS[letter] for letter in layers]}


ALL = (
    _lfm2("hybrid", "ccac"),
    _lfm2("pair", "ca", num_key_value_heads=1),
    _lfm2("recurrent", "ccc", tie_word_embeddings=False),
    _lfm2("attention", "aaa", num_key_value_heads=4),
    _lfm2("bias", "cac", conv_bias=True, conv_L_cache=4),
    _lfm2("odd", "acc", num_attention_heads=3, num_key_value_heads=3, block_auto_adjust_ff_dim=False),
    _lfm2("wide", "cca", hidden_size=64, num_attention_heads=8, conv_L_cache=4, block_ffn_dim_multiplier=1.3),
    _qwen3_5("hybrid", "llla"),
    _qwen3_5("pair", "la", num_key_value_heads=1, tie_word_embeddings=True),
    _qwen3_5("recurrent", "lll", linear_num_key_heads=4),
    _qwen3_5("attention", "aaa", num_key_value_heads=4),
    _qwen3_5("bias", "lal", attention_bias=True, linear_conv_kernel_dim=3),
    _qwen3_5(
        "odd",
        "all",
        num_attention_heads=3,
        num_key_value_heads=1,
        linear_num_key_heads=3,
        linear_num_value_heads=3,
        linear_value_head_dim=24,
    ),
    _qwen3_5("grouped", "lla", hidden_size=64, linear_num_value_heads=8, **QUARTER_ROTARY),
    _qwen3_5_vl("hybrid", "lla"),
    _qwen3_5_vl("tied", "la", tie_word_embeddings=True),
)
MODELS = {model.name: model for model in ALL}
