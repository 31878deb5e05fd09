"""DFlash's files: a few layers that were trained to draft blocks of tokens for one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..config import ConfigError
from ..layers.attention import Attention
from ..layers.batch import Batch, Build
from ..layers.linear import Linear, RMSNorm, Stream
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from . import qwen3
from .base import Block, CausalLM, Rename, renamer
from .drafting import check_fits, layers_read
from .fields import Fields
from .llama import LlamaConfig


class DFlashHead(nn.Module):
    def __init__(self, build: Build, config: LlamaConfig, *, layers: int) -> None:
        """layers: of the model, that it reads"""
        super().__init__()
        positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

        def norm() -> RMSNorm:
            return RMSNorm(build, config.hidden, config.eps)

        def block(name: str) -> Block:
            attention = Attention(build, name, config.attention, positions)
            return Block(norm(), attention, norm(), GatedMLP(build, config.hidden, config.inner))

        self.known_width = layers * config.hidden
        self.fc = Linear(build, self.known_width, config.hidden)
        self.hidden_norm, self.norm = norm(), norm()
        self.blocks = nn.ModuleList(block(f"blocks.{i}") for i in range(config.layers))

    def context(self, known: Tensor) -> Tensor:
        """Of the layers that it reads, side by side, what stands for each token."""
        return self.hidden_norm(self.fc(known))

    def keep(self, context: Tensor, batch: Batch) -> None:
        """What every block's attention finds in the place of the batch's tokens."""
        blocks: Iterable[Any] = self.blocks
        for block in blocks:
            block.mixer.keep(context, batch)

    def forward(self, embedding: Tensor, batch: Batch) -> Tensor:
        """Hidden states [tokens, hidden] that lead to the token in each one's own place."""
        stream = Stream(embedding)
        for block in self.blocks:
            stream = block(stream, batch)
        return self.norm.of_stream(stream)[1]


@dataclass(frozen=True)
class DFlashConfig:
    """As a drafter's config.json describes it."""

    layers: LlamaConfig
    block_size: int
    """Places of a block: the last token, and masks."""
    mask_token: int
    layer_ids: tuple[int, ...]
    target_layers: int | None
    """So many has the model that it was made for, if the config says."""

    def build(self, build: Build, model: CausalLM, *, depth: int) -> DFlashHead:
        """To make so many drafts for that model."""
        check_fits(model, vocab=self.layers.vocab_size, hidden=self.layers.hidden)
        if depth >= self.block_size:
            raise ConfigError(
                f"speculative_config: num_speculative_tokens={depth}, but blocks of this drafter have "
                f"{self.block_size} places, one of them for the last token; {self.block_size - 1} at most"
            )
        if self.target_layers not in (None, len(model.blocks)):
            raise ConfigError(
                f"speculative_config: the drafter was made for a model of {self.target_layers} layers; "
                f"this one has {len(model.blocks)}"
            )
        if self.mask_token >= self.layers.vocab_size:
            raise ConfigError(
                f"speculative_config: the drafter's mask_token_id={self.mask_token} is none of the model's "
                f"{self.layers.vocab_size} tokens"
            )
        layers_read(self.layer_ids, len(model.blocks))
        return DFlashHead(build, self.layers, layers=len(self.layer_ids))

    @property
    def rename(self) -> Rename:
        layer = r"(?:model\.)?layers\.(\d+)\."
        return renamer(
            (
                (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
                (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
                (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
                (layer + r"(mlp\..*)", r"blocks.\1.\2"),
                (r"model\.(.*)", r"\1"),
            )
        )


def parse(values: Mapping[str, Any], where: str) -> DFlashConfig:
    fields = Fields(values, where)
    own = fields.group("dflash_config")
    block_size = own.integer("block_size", default=fields.integer("block_size", default=0, least=0), least=2)
    outer = fields.integer("num_target_layers", default=0, least=0)
    target_layers = own.integer("num_target_layers", default=outer, least=0) or None
    mask_token = own.integer("mask_token_id", least=0)
    layer_ids = own.items("target_layer_ids")
    own.finish()
    return DFlashConfig(qwen3.read(fields, head_dim=128), block_size, mask_token, layer_ids, target_layers)
