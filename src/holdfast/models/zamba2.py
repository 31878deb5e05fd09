"""Zamba2 (Zyphra): Mamba-2 mixers; before some of them one of few transformer blocks that they share in turn.

A shared block reads the embeddings beside its input. What one use of it has of its own are adapters, and its KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ModelFacts
from ..layers.adapter import Adapted, Adapter
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.linear import Linear, RMSNorm
from ..layers.mamba2 import Mamba2, Mamba2Shape
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from .bamba import mamba2_rules
from .base import Architecture, CausalLM, Rules
from .fields import Fields, rotary

KINDS = {"linear_attention": False, "mamba": False, "hybrid": True}
"""What files call a layer: has it a shared block?"""
DEFAULT = [*"mmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmmhmmmmhmmmhmm"]


@dataclass(frozen=True)
class Zamba2Config:
    vocab_size: int
    hidden: int
    inner: int
    eps: float
    layers: int
    hybrid_layers: tuple[int, ...]
    shared_blocks: int
    attention: AttentionShape
    mamba: Mamba2Shape
    rotary: RotarySpec | None
    bias: bool
    """Of the shared blocks' MLPs."""
    rank: int
    attention_adapters: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> Zamba2Config:
    fields = Fields(values, "config.json")
    hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
    bias = fields.flag("add_bias_linear", default=False)
    fields.only("hidden_act", "gelu")
    fields.only("use_long_context", False)
    fields.only("tie_word_embeddings", True)
    turning = fields.flag("use_mem_rope", default=False)
    spec = rotary(fields, theta=10_000.0)
    config = Zamba2Config(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size", "ffn_hidden_size", default=4 * hidden),
        eps=fields.number("rms_norm_eps", default=1e-5),
        layers=layers,
        hybrid_layers=_hybrid_layers(fields, layers),
        shared_blocks=fields.integer("num_mem_blocks", default=1),
        attention=_attention(fields, hidden),
        mamba=_mamba(fields, hidden, bias),
        rotary=spec if turning else None,
        bias=bias,
        rank=fields.integer("adapter_rank", default=128),
        attention_adapters=fields.flag("use_shared_attention_adapter", default=False),
        max_positions=fields.integer("max_position_embeddings", default=4096),
    )
    fields.ignore(
        "use_conv_bias", "chunk_size", "use_mamba_kernels", "use_mem_eff_path", "num_logits_to_keep"
    )
    fields.ignore("time_step_min", "time_step_max", "time_step_floor", "attention_hidden_size", "kv_channels")
    fields.ignore("num_query_groups", "hybrid_layer_ids")
    fields.finish()
    return config


def _hybrid_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    fields.ignore("layers_block_type", "layer_types")
    for name in ("layers_block_type", "layer_types"):
        if name in fields:
            kinds = fields.items(name, tuple(KINDS), length=layers)
            return tuple(i for i, kind in enumerate(kinds) if KINDS[kind])
    return tuple(i for i, letter in enumerate(DEFAULT) if letter == "h" and i < layers)


def _attention(fields: Fields, hidden: int) -> AttentionShape:
    heads = fields.integer("num_attention_heads")
    head_dim = fields.integer("attention_head_dim", "head_dim", default=2 * hidden // heads)
    return AttentionShape(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=head_dim,
        eps=None,
        scale=(head_dim / 2) ** -0.5,
        inputs=2 * hidden,
    )


def _mamba(fields: Fields, hidden: int, bias: bool) -> Mamba2Shape:
    heads = fields.integer("n_mamba_heads", default=8)
    inner = fields.integer("mamba_expand", default=2) * hidden
    groups = fields.integer("mamba_ngroups", default=1)
    return Mamba2Shape(
        hidden=hidden,
        heads=heads,
        head_dim=fields.integer("mamba_headdim", default=inner // heads),
        groups=groups,
        state=fields.integer("mamba_d_state", default=64),
        conv_width=fields.integer("mamba_d_conv", default=4),
        eps=1e-5,
        bias=bias,
        norm_groups=groups,
    )


class SharedUse(nn.Module):
    """One use of a shared block: no residuals inside it, and a projection of what it gives."""

    def __init__(
        self, build: Build, name: str, config: Zamba2Config, positions: Rotary | None, of: SharedUse | None
    ) -> None:
        """of: the first use of the same block, whose weights it takes"""
        super().__init__()
        self.attention = Attention(build, name, config.attention, positions)
        self.mlp = GatedMLP(build, config.hidden, config.inner, bias=config.bias, activation="gelu")
        self.attention_norm = RMSNorm(build, 2 * config.hidden, config.eps)
        self.mlp_norm = RMSNorm(build, config.hidden, config.eps)
        self.projections = (self.attention.qkv_proj, self.mlp.gate_up_proj)
        if of is not None:
            self.attention.o_proj, self.mlp.down_proj = of.attention.o_proj, of.mlp.down_proj
            self.attention_norm, self.mlp_norm = of.attention_norm, of.mlp_norm
            self.projections = of.projections
        qkv, gate_up = self.projections
        inputs, rank = 2 * config.hidden, config.rank
        names = "qkv" if config.attention_adapters else ""
        self.attention.qkv_proj = Adapted(
            qkv, {key: Adapter(build, inputs, rank, (inputs,)) for key in names}
        )
        both = Adapter(build, config.hidden, rank, (config.inner, config.inner))
        self.mlp.gate_up_proj = Adapted(gate_up, {"both": both})
        self.out_proj = Linear(build, config.hidden, config.hidden)

    def forward(self, x: Tensor, embedded: Tensor, batch: Batch) -> Tensor:
        mixed = self.attention(self.attention_norm(torch.cat((x, embedded), -1)), batch)
        return self.out_proj(self.mlp(self.mlp_norm(mixed)))


class Zamba2Block(nn.Module):
    """x + mixer(norm(x)), the mixer reading beside x what the shared block makes of it, if there is one."""

    def __init__(self, norm: RMSNorm, mixer: Mamba2, shared: SharedUse | None) -> None:
        super().__init__()
        self.mixer_norm, self.mixer, self.shared = norm, mixer, shared

    def forward(self, x: Tensor, embedded: Tensor, batch: Batch) -> Tensor:
        seen = x if self.shared is None else x + self.shared(x, embedded, batch)
        return x + self.mixer(self.mixer_norm(seen), batch)


class Zamba2LM(CausalLM):
    def features(self, batch: Batch, layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        x = embedded = self.embed(batch.tokens)
        after: list[Tensor] = []
        for block in self.blocks:
            x = block(x, embedded, batch)
            after.append(x)
        return self.norm(x), torch.stack([after[layer] for layer in layers], 1) if layers else x[:, None, :0]


def facts(config: Zamba2Config) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent=True)


def build_model(build: Build, config: Zamba2Config) -> CausalLM:
    spec = config.rotary
    positions = Rotary(spec, config.attention.head_dim, build.max_positions) if spec else None
    uses: list[SharedUse] = []
    blocks: list[nn.Module] = []
    for layer in range(config.layers):
        name, shared = f"blocks.{layer}", None
        if layer in config.hybrid_layers:
            of = uses[len(uses) % config.shared_blocks] if len(uses) >= config.shared_blocks else None
            shared = SharedUse(build, f"{name}.attention", config, positions, of)
            uses.append(shared)
        norm = RMSNorm(build, config.hidden, config.eps)
        blocks.append(Zamba2Block(norm, Mamba2(build, f"{name}.mamba", config.mamba), shared))
    last = RMSNorm(build, config.hidden, config.eps)
    return Zamba2LM(build, facts(config), config.hidden, blocks, last, tied=True)


def rules(config: Zamba2Config) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.final_layernorm\.(.*)", r"norm.\1"),
        *_shared_rules(config.hybrid_layers, config.shared_blocks),
        (layer + r"linear\.(.*)", r"blocks.\1.shared.out_proj.\2"),
        (layer + r"(?:mamba_decoder\.)?input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        *mamba2_rules(layer + r"(?:mamba_decoder\.)?mamba\.", r"blocks.\1.mixer."),
    )


def _shared_rules(uses: Sequence[int], blocks: int) -> Rules:
    """The files name a shared block by the layer that uses it first, and number the adapters by use."""
    first = r"model\.layers\.(" + "|".join(map(str, uses[:blocks] or ("none",))) + r")\.shared_transformer\."
    found: list[tuple[str, str | None]] = []
    for number, use in enumerate(uses):
        here = rf"blocks.{use}.shared."
        for place, part in enumerate(("down", "up")):
            adapter = rf"adapter_list\.{number}\.{place}\.weight"
            qkv = rf"{here}attention.qkv_proj.adapters.\2.{part}.weight"
            found.append((first + r"self_attn\.linear_([qkv])_" + adapter, qkv))
            both = rf"{here}mlp.gate_up_proj.adapters.both.{part}.weight"
            found.append((first + r"feed_forward\.gate_up_proj_" + adapter, both))
    return (
        *found,
        (first + r"self_attn\.([qkv]_proj)\.(.*)", r"blocks.\1.shared.attention.qkv_proj.\2.\3"),
        (first + r"self_attn\.(.*)", r"blocks.\1.shared.attention.\2"),
        (first + r"feed_forward\.gate_up_proj\.(.*)", r"blocks.\1.shared.mlp.gate_up_proj.shared.\2"),
        (first + r"feed_forward\.(.*)", r"blocks.\1.shared.mlp.\2"),
        (first + r"input_layernorm\.(.*)", r"blocks.\1.shared.attention_norm.\2"),
        (first + r"pre_ff_layernorm\.(.*)", r"blocks.\1.shared.mlp_norm.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
