"""Tiny random models in hub format, made by transformers, with weights scaled so that state matters.

The usual initialisation makes models whose state hardly matters: residuals drown the mixers, decays forget within
a token, a tied head repeats its input. An engine could lose a layer's state and nobody would see. Here every
mixer speaks as loud as the residual stream, decays last from a few tokens to hundreds, and logits are neither flat
nor certain. The scales hold for any seed; none is picked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

LFM2 = "Lfm2ForCausalLM"
QWEN3_5 = "Qwen3_5ForCausalLM"
QWEN3_5_VL = "Qwen3_5ForConditionalGeneration"

CONFIGS = {
    LFM2: transformers.Lfm2Config,
    QWEN3_5: transformers.Qwen3_5TextConfig,
    QWEN3_5_VL: transformers.Qwen3_5Config,
}

VOCAB = 512

LFM2_BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    block_multiple_of=16,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
QWEN3_5_BASE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=1024,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    eos_token_id=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
)
VISION: dict[str, Any] = dict(
    depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, num_position_embeddings=16
)


@dataclass(frozen=True)
class TinyModel:
    name: str
    architecture: str
    options: Mapping[str, Any]
    unused: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Tensors stored beside the model's own, as the hub has them, which no text model uses: name to shape."""

    def config(self) -> transformers.PreTrainedConfig:
        return CONFIGS[self.architecture](**self.options)


def _lfm2(name: str, layers: str, **options: Any) -> TinyModel:
    kinds = {"c": "conv", "a": "full_attention"}
    return TinyModel(f"lfm2-{name}", LFM2, LFM2_BASE | _layers(layers, kinds) | options)


def _qwen3_5(name: str, layers: str, **options: Any) -> TinyModel:
    kinds = {"l": "linear_attention", "a": "full_attention"}
    return TinyModel(f"qwen3_5-{name}", QWEN3_5, QWEN3_5_BASE | _layers(layers, kinds) | options)


def _layers(layers: str, kinds: dict[str, str]) -> dict[str, Any]:
    return dict(num_hidden_layers=len(layers), layer_types=[kinds[letter] for letter in layers])


def _qwen3_5_vl(name: str, layers: str, **options: Any) -> TinyModel:
    text = dict(_qwen3_5(name, layers, **options).options)
    tied = text.get("tie_word_embeddings", False)
    special = dict(image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253)
    vision = VISION | dict(out_hidden_size=text["hidden_size"])
    return TinyModel(
        f"qwen3_5_vl-{name}",
        QWEN3_5_VL,
        dict(text_config=text, vision_config=vision, tie_word_embeddings=tied, **special),
        unused={"mtp.fc.weight": (text["hidden_size"], 2 * text["hidden_size"]), "mtp.norm.weight": (text["hidden_size"],)},
    )


MODELS = {
    m.name: m
    for m in (
        _lfm2("hybrid", "ccac"),
        _lfm2("pair", "ca", num_key_value_heads=1),
        _lfm2("recurrent", "ccc", tie_word_embeddings=False),
        _lfm2("attention", "aaa", num_key_value_heads=4),
        _lfm2("bias", "cac", conv_bias=True, conv_L_cache=4),
        _lfm2("odd", "acc", num_attention_heads=3, num_key_value_heads=3, block_auto_adjust_ff_dim=False),
        _lfm2("wide", "cca", hidden_size=64, num_attention_heads=8, num_key_value_heads=2, conv_L_cache=4, block_ffn_dim_multiplier=1.3),
        _qwen3_5("hybrid", "llla"),
        _qwen3_5("pair", "la", num_key_value_heads=1, tie_word_embeddings=True),
        _qwen3_5("recurrent", "lll", linear_num_key_heads=4),
        _qwen3_5("attention", "aaa", num_key_value_heads=4),
        _qwen3_5("bias", "lal", attention_bias=True, linear_conv_kernel_dim=3),
        _qwen3_5("odd", "all", num_attention_heads=3, num_key_value_heads=1, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=12),
        _qwen3_5("grouped", "lla", hidden_size=64, linear_num_key_heads=2, linear_num_value_heads=8, linear_value_head_dim=16,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        _qwen3_5_vl("hybrid", "lla"),
        _qwen3_5_vl("tied", "la", tie_word_embeddings=True),
    )
}


S = dict(away=1.0, aout=1.5, qk=2.0, embed=1.0, tied=1.5, head=2.0, win=1.0, wout=1.5, conv=1.2, norm=0.2, bias=0.3, alo=0.005, ahi=0.2, dt=0.5, b=1.5, mlp=1.5)

def draw(name: str, shape, generator, tied) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    last = name.rsplit(".", 2)
    fan = shape[-1] if len(shape)==2 else 1
    if name.endswith("A_log"):
        u = torch.rand(shape, generator=generator)
        return math.log(S["alo"]) + u * math.log(S["ahi"]/S["alo"])
    if name.endswith("dt_bias"): return noise*S["dt"]
    if "visual" in name: return noise*0.1
    if "embed_tokens" in name:
        return noise * S["embed"]
    if "lm_head" in name: return noise*S["head"]/math.sqrt(shape[1])
    if name.endswith("bias"): return noise*S["bias"]
    if len(shape)==3: return noise*S["conv"]/math.sqrt(shape[-1])
    if len(shape)==1:
        if name.endswith(("embedding_norm.weight","model.norm.weight","language_model.norm.weight")):
            sign = -1.0 if tied else 1.0
            return (S["head"]/S["embed"]/math.sqrt(shape[0]) if tied else 1.0)*sign*(1+S["norm"]*noise) - (1 if "qwen" in S["family"] else 0)
        if "q_layernorm" in name or "q_norm" in name:
            return S["qk"]*(1+S["norm"]*noise) - (1 if "qwen" in S["family"] else 0)
        zero = "qwen" in S.get("family","") and not name.endswith("linear_attn.norm.weight")
        return noise*S["norm"] + (0 if zero else 1)
    if "self_attn" in name and any(k in name for k in ("out_proj","o_proj")): return noise*S["aout"]/math.sqrt(fan)
    if any(k in name for k in ("out_proj","o_proj")): return noise*S["wout"]/math.sqrt(fan)
    if any(k in name for k in ("w2","down_proj")): return noise*S["mlp"]/math.sqrt(fan)
    if "in_proj_b" in name: return noise*S["b"]/math.sqrt(fan)
    return noise*S["win"]/math.sqrt(fan)

@torch.no_grad()
def redraw(model, seed):
    g = torch.Generator().manual_seed(seed)
    S["family"]="qwen" if "Qwen" in type(model).__name__ else "lfm"
    tied = model.config.get_text_config().tie_word_embeddings
    for n,p in sorted(model.named_parameters()):
        p.copy_(draw(n, tuple(p.shape), g, tied))
    if not tied:
        e=model.get_input_embeddings().weight; h=model.lm_head.weight
        h.sub_(S["away"]*S["head"]/S["embed"]/math.sqrt(e.shape[1])*e).div_(math.sqrt(1+S["away"]**2))
