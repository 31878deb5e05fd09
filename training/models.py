"""Qwen3.5 with its MTP head, and LFM2: from a hub config to a model whose state_dict is the hub's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Attention, DeltaNet, GatedMLP, Memory, RMSNorm, Rotary, ShortConv

Config = Mapping[str, Any]
SWIGLU = ("gate_proj", "up_proj", "down_proj")


class Block(nn.Module):
    """names: of the norm before the mixer, the mixer, the norm before the MLP, the MLP, as the files have them"""

    def __init__(self, names: tuple[str, str, str, str], parts: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.names, self.dropout = names, 0.0
        for name, part in zip(names, parts, strict=True):
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        mixer_norm, mixer, mlp_norm, mlp = (self.get_submodule(name) for name in self.names)
        x = x + F.dropout(mixer(mixer_norm(x)), self.dropout, self.training)
        return x + F.dropout(mlp(mlp_norm(x)), self.dropout, self.training)

    def step(self, x: Tensor, memory: Memory, position: int, room: int) -> Tensor:
        mixer_norm, mixer, mlp_norm, mlp = (self.get_submodule(name) for name in self.names)
        x = x + mixer.step(mixer_norm(x), memory, position, room)
        return x + mlp(mlp_norm(x))


class Trunk(nn.Module):
    def __init__(self, vocab: int, hidden: int, blocks: list[Block], norm_name: str, norm: RMSNorm) -> None:
        super().__init__()
        self.norm_name = norm_name
        self.embed_tokens = nn.Embedding(vocab, hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(blocks)
        self.add_module(norm_name, norm)


class Model(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, config: Config, trunk: Trunk) -> None:
        super().__init__()
        self.config, self.model = config, trunk

    def embed(self, tokens: Tensor) -> Tensor:
        x, kind = self.model.embed_tokens(tokens), tokens.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def norm(self, x: Tensor) -> Tensor:
        return self.model.get_submodule(self.model.norm_name)(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, tokens: Tensor, features: list[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The normed hidden vectors [B, T, hidden], and what the layers named in `features` gave."""
        x, found = self.embed(tokens), []
        for number, layer in enumerate(self.model.layers):
            x = layer(x)
            if number in (features or ()):
                found.append(x)
        return self.norm(x), found

    def step(self, tokens: Tensor, memory: list[Memory], position: int, room: int) -> Tensor:
        """Logits [B, vocab] after one token each."""
        x = self.embed(tokens)
        for layer, own in zip(self.model.layers, memory, strict=True):
            x = layer.step(x, own, position, room)
        return self.logits(self.norm(x))

    def new_memory(self) -> list[Memory]:
        return [{} for _ in self.model.layers]


class Qwen35(Model):
    def __init__(self, config: Config) -> None:
        rotary = _rotary(config, config["head_dim"])
        kinds = config["layer_types"]
        blocks = [_qwen_block(config, kind, rotary) for kind in kinds]
        trunk = Trunk(config["vocab_size"], config["hidden_size"], blocks, "norm", _zero_centred(config))
        super().__init__(config, trunk)
        if config.get("mtp_num_hidden_layers"):
            self.mtp = MTP(config, rotary)


class MTP(nn.Module):
    """Reads a token and the normed hidden vector of the one before it, and says the token after it."""

    def __init__(self, config: Config, rotary: Rotary) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.pre_fc_norm_embedding = _zero_centred(config)
        self.pre_fc_norm_hidden = _zero_centred(config)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        nn.init.normal_(self.fc.weight, std=(2 * hidden) ** -0.5)
        self.layers = nn.ModuleList([_qwen_block(config, "full_attention", rotary)])
        self.norm = _zero_centred(config)

    def entry(self, embedding: Tensor, before: Tensor) -> Tensor:
        return self.fc(
            torch.cat((self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(before)), -1)
        )

    def forward(self, embedding: Tensor, before: Tensor) -> Tensor:
        """Both [B, T, hidden]; the hidden vectors for the head, and for the next token's `before`."""
        return self.norm(self.layers[0](self.entry(embedding, before)))


class Lfm2(Model):
    def __init__(self, config: Config) -> None:
        hidden, eps = config["hidden_size"], config["norm_eps"]
        heads = config["num_attention_heads"]
        rotary = _rotary(config, hidden // heads)

        def mixer(kind: str) -> nn.Module:
            if kind == "conv":
                return ShortConv(hidden, config["conv_L_cache"])
            names = ("out_proj", "q_layernorm", "k_layernorm")
            return Attention(
                hidden, heads, config["num_key_value_heads"], hidden // heads, rotary, eps, names=names
            )

        def block(kind: str) -> Block:
            mlp = GatedMLP(hidden, config["intermediate_size"], ("w1", "w3", "w2"))
            names = ("operator_norm", "conv" if kind == "conv" else "self_attn", "ffn_norm", "feed_forward")
            return Block(names, (RMSNorm(hidden, eps), mixer(kind), RMSNorm(hidden, eps), mlp))

        blocks = [block(kind) for kind in config["layer_types"]]
        super().__init__(
            config, Trunk(config["vocab_size"], hidden, blocks, "embedding_norm", RMSNorm(hidden, eps))
        )


def build(config: Config) -> Model:
    return {"qwen3_5_text": Qwen35, "lfm2": Lfm2}[config["model_type"]](config)


def _rotary(config: Config, head_dim: int) -> Rotary:
    options = config["rope_parameters"]
    return Rotary(int(head_dim * options.get("partial_rotary_factor", 1.0)), options["rope_theta"])


def _zero_centred(config: Config) -> RMSNorm:
    return RMSNorm(config["hidden_size"], config["rms_norm_eps"], zero_centred=True)


def _qwen_block(config: Config, kind: str, rotary: Rotary) -> Block:
    hidden, eps = config["hidden_size"], config["rms_norm_eps"]
    mixer: nn.Module
    if kind == "full_attention":
        mixer = Attention(
            hidden,
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
            rotary,
            eps,
            gated=True,
            zero_centred=True,
        )
    else:
        mixer = DeltaNet(
            hidden,
            config["linear_num_key_heads"],
            config["linear_num_value_heads"],
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
            config["linear_conv_kernel_dim"],
            eps,
        )
    names = (
        "input_layernorm",
        "self_attn" if kind == "full_attention" else "linear_attn",
        "post_attention_layernorm",
        "mlp",
    )
    mlp = GatedMLP(hidden, config["intermediate_size"], SWIGLU)
    return Block(names, (_zero_centred(config), mixer, _zero_centred(config), mlp))
