"""Mamba-2 (Dao and Gu, 2024): blocks of one mixer and no MLP, no attention, no positions.

Nothing in the model bounds its context. max_model_len does, and costs a row only its table of tokens: the
pages that the host counts all the same have no bytes behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError, ModelFacts
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mamba2 import Mamba2, Mamba2Shape
from .base import Architecture, CausalLM, MixerBlock, Rules
from .fields import Fields


@dataclass(frozen=True)
class Mamba2Config:
    vocab_size: int
    layers: int
    mixer: Mamba2Shape
    tied: bool
    residual_in_fp32: bool


def parse(values: Mapping[str, Any]) -> Mamba2Config:
    fields = Fields(values, "config.json")
    config = Mamba2Config(
        vocab_size=fields.integer("vocab_size"),
        layers=fields.integer("num_hidden_layers"),
        mixer=_mixer(fields),
        tied=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=fields.flag("residual_in_fp32", default=True),
    )
    fields.only("hidden_act", "silu", "swish")
    fields.only("rms_norm", True)
    fields.ignore("time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "time_step_scale")
    fields.ignore("time_step_init_scheme", "rescale_prenorm_residual", "chunk_size", "use_mambapy")
    fields.ignore("norm_before_gate")  # old files say true, yet their weights want the gate first
    fields.finish()
    return config


def _mixer(fields: Fields) -> Mamba2Shape:
    shape = Mamba2Shape(
        hidden=fields.integer("hidden_size"),
        heads=fields.integer("num_heads", default=128),
        head_dim=fields.integer("head_dim", default=64),
        groups=fields.integer("n_groups", default=8),
        state=fields.integer("state_size", default=128),
        conv_width=fields.integer("conv_kernel", default=4),
        eps=fields.number("layer_norm_epsilon", default=1e-5),
        bias=fields.flag("use_bias", default=False),
        conv_bias=fields.flag("use_conv_bias", default=True),
        norm_groups=1,  # as transformers has it; mamba_ssm norms each of n_groups by itself
        dt_limits=fields.interval("time_step_limit", default=(0.0, math.inf)),
    )
    for name, value in (
        ("expand * hidden_size", fields.number("expand", default=2) * shape.hidden),
        ("intermediate_size", fields.integer("intermediate_size", default=shape.inner)),
    ):
        if value != shape.inner:
            raise ConfigError(f"config.json: {name} is {value:g}, but num_heads * head_dim is {shape.inner}")
    return shape


def facts(config: Mamba2Config) -> ModelFacts:
    return ModelFacts(config.vocab_size, max_positions=None, recurrent=True)


def build_model(build: Build, config: Mamba2Config) -> CausalLM:
    hidden = config.mixer.hidden

    def norm() -> RMSNorm:
        return RMSNorm(build, hidden, config.mixer.eps)

    blocks = [MixerBlock(norm(), Mamba2(build, f"blocks.{i}", config.mixer)) for i in range(config.layers)]
    return CausalLM(
        build,
        facts(config),
        hidden,
        blocks,
        norm(),
        tied=config.tied,
        residual_in_fp32=config.residual_in_fp32,
    )


def rules(config: Mamba2Config) -> Rules:
    layer = r"backbone\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"backbone\.embeddings?\.(.*)", r"embed.\1"),
        (r"backbone\.norm_f\.(.*)", r"norm.\1"),
        (layer + r"norm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"mixer\.conv1d\.(weight|bias)", r"blocks.\1.mixer.conv_\2"),
        (layer + r"mixer\.norm\.weight", r"blocks.\1.mixer.norm_weight"),
        (layer + r"mixer\.A_log", r"blocks.\1.mixer.a_log"),
        (layer + r"mixer\.D", r"blocks.\1.mixer.skip"),
        (layer + r"(mixer\..*)", r"blocks.\1.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
