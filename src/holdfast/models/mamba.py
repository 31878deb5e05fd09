"""Mamba (Gu and Dao, 2023): blocks of one mixer and no MLP, no attention, no positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ModelFacts
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mamba1 import Mamba1, Mamba1Shape
from .base import Architecture, CausalLM, MixerBlock, Rules
from .fields import Fields


@dataclass(frozen=True)
class MambaConfig:
    vocab_size: int
    layers: int
    eps: float
    mixer: Mamba1Shape
    tied: bool
    residual_in_fp32: bool


def parse(values: Mapping[str, Any]) -> MambaConfig:
    return read(open_fields(values))


def open_fields(values: Mapping[str, Any]) -> Fields:
    """With nothing where the config leaves the rank of the time steps open by "auto"."""
    return Fields({name: value for name, value in values.items() if value != "auto"}, "config.json")


def read(fields: Fields, **norms: Any) -> MambaConfig:
    """norms: of what the mixer makes its time steps, B and C"""
    hidden = fields.integer("hidden_size")
    config = MambaConfig(
        vocab_size=fields.integer("vocab_size"),
        layers=fields.integer("num_hidden_layers"),
        eps=fields.number("layer_norm_epsilon", default=1e-5),
        mixer=Mamba1Shape(
            hidden=hidden,
            inner=fields.integer(
                "intermediate_size", default=int(fields.number("expand", default=2) * hidden)
            ),
            state=fields.integer("state_size", default=16),
            conv_width=fields.integer("conv_kernel", default=4),
            dt_rank=fields.integer("time_step_rank", default=-(-hidden // 16)),
            bias=fields.flag("use_bias", default=False),
            conv_bias=fields.flag("use_conv_bias", default=True),
            **norms,
        ),
        tied=fields.flag("tie_word_embeddings", default=True),
        residual_in_fp32=fields.flag("residual_in_fp32", default=True),
    )
    fields.only("hidden_act", "silu", "swish")
    fields.only("rms_norm", True)
    fields.only("ssm_cfg", {})
    fields.ignore("d_inner", "d_model", "n_layer", "fused_add_norm", "pad_vocab_size_multiple")
    fields.ignore("time_step_scale", "time_step_min", "time_step_max", "time_step_floor", "use_mambapy")
    fields.ignore("time_step_init_scheme", "rescale_prenorm_residual", "use_associative_scan")
    fields.finish()
    return config


def facts(config: MambaConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, max_positions=None, recurrent=True, fold_every=1)


def build_model(build: Build, config: MambaConfig) -> CausalLM:
    hidden = config.mixer.hidden

    def norm() -> RMSNorm:
        return RMSNorm(build, hidden, config.eps)

    blocks = [MixerBlock(norm(), Mamba1(build, f"blocks.{i}", config.mixer)) for i in range(config.layers)]
    return CausalLM(
        build,
        facts(config),
        hidden,
        blocks,
        norm(),
        tied=config.tied,
        residual_in_fp32=config.residual_in_fp32,
    )


def rules(config: MambaConfig) -> Rules:
    layer = r"backbone\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"backbone\.embeddings?\.(.*)", r"embed.\1"),
        (r"backbone\.norm_f\.(.*)", r"norm.\1"),
        (layer + r"norm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        *mamba1_rules(layer + r"mixer\.", r"blocks.\1.mixer."),
    )


def mamba1_rules(there: str, here: str) -> Rules:
    """Of one mixer: `there` is its name in the files and holds one group, `here` its name in the model."""
    return (
        (there + r"conv1d\.(weight|bias)", here + r"conv_\2"),
        (there + r"(dt|b|c)_layernorm\.weight", here + r"\2_norm.weight"),
        (there + r"dt_proj\.bias", here + "dt_bias"),
        (there + "A_log", here + "a_log"),
        (there + "D", here + "skip"),
        (there + "(.*)", here + r"\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
