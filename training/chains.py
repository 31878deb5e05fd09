"""Heads that draft one token after the other, MTP and EAGLE-3, trained as they are used.

A chain that starts at token i first reads token i beside what the target knew of token i - 1; every further step
reads the next token beside the chain's own last output, and attends to what the first steps of chains up to i left,
and to itself. All chains of a row are computed at once: everything here is indexed by where a chain starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Attention, GatedMLP, RMSNorm, Rotary, linear
from .models import SWIGLU, Config, Qwen35


@dataclass
class Links:
    """Keys and values [B, T, kv_heads, head_dim] of each step so far."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


def chained_attention(attention: Attention, x: Tensor, links: Links) -> Tensor:
    """One further step of all chains. x [B, T, inputs]"""
    positions = torch.arange(x.shape[1], device=x.device) + len(links.keys)
    q, gate = attention.queries(x, positions)
    groups = q.shape[2] * attention.head_dim // attention.k_proj.out_features
    k, v = (it.repeat_interleave(groups, 2) for it in attention.keys_values(x, positions))
    links.keys.append(k)
    links.values.append(v)
    (first, *own), (first_value, *own_values) = links.keys, links.values
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    scores = torch.einsum("bihd,bjhd->bihj", q, first).float()
    scores = scores.masked_fill(later[:, None], -torch.inf)
    scores = torch.cat((scores, *((q * it).float().sum(-1, keepdim=True) for it in own)), -1)
    weights = (scores * attention.head_dim**-0.5).softmax(-1).to(v.dtype)
    mixed = torch.einsum("bihj,bjhd->bihd", weights[..., : x.shape[1]], first_value)
    for number, value in enumerate(own_values):
        mixed = mixed + weights[..., x.shape[1] + number, None] * value
    return attention.finish(mixed, gate)


class MTPChain(nn.Module):
    """The target's own head, as a drafter."""

    layer_ids: tuple[int, ...] = ()

    def __init__(self, target: Qwen35) -> None:
        super().__init__()
        self.mtp = target.mtp
        self._logits = [target.logits]  # in a list: the target's weights are not this module's

    def first(self, hidden: Tensor, features: list[Tensor]) -> Tensor:
        return hidden

    def forward(self, embedding: Tensor, before: Tensor, links: Links) -> tuple[Tensor, Tensor]:
        """The hidden vectors for the next step, and for the head."""
        x = self.mtp.entry(embedding, before)
        block = self.mtp.layers[0]
        x = x + chained_attention(block.self_attn, block.input_layernorm(x), links)
        x = self.mtp.norm(x + block.mlp(block.post_attention_layernorm(x)))
        return x, x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits[0](hidden)

    def vocabulary(self) -> Tensor | None:
        """The ids that it can draft; None: all."""
        return None


class Eagle3(nn.Module):
    def __init__(self, config: Config, drafted: Tensor) -> None:
        """drafted: the ids that it can draft, in order"""
        super().__init__()
        self.config = config
        self.layer_ids = tuple(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        hidden = config["hidden_size"]
        self.fc = linear(len(self.layer_ids) * hidden, hidden)
        self.midlayer = EagleLayer(config)
        self.norm = RMSNorm(hidden, config["rms_norm_eps"])
        self.lm_head = linear(hidden, config["draft_vocab_size"])
        self.register_buffer("d2t", drafted - torch.arange(len(drafted)))
        known = torch.zeros(config["vocab_size"], dtype=torch.bool)
        known[drafted] = True
        self.register_buffer("t2d", known)

    def first(self, hidden: Tensor, features: list[Tensor]) -> Tensor:
        return self.fc(torch.cat(features, -1))

    def forward(self, embedding: Tensor, before: Tensor, links: Links) -> tuple[Tensor, Tensor]:
        x = self.midlayer(embedding, before, links)
        return x, self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)

    def vocabulary(self) -> Tensor | None:
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


class EagleLayer(nn.Module):
    """A Llama layer whose attention reads embedding and hidden vector side by side."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        rotary = Rotary(config["head_dim"], config["rope_theta"])
        self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.self_attn = Attention(
            hidden,
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
            rotary,
            eps,
            inputs=2 * hidden,
            names=("o_proj", "", ""),
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, config["intermediate_size"], SWIGLU)

    def forward(self, embedding: Tensor, before: Tensor, links: Links) -> Tensor:
        read = torch.cat((self.input_layernorm(embedding), self.hidden_norm(before)), -1)
        x = before + chained_attention(self.self_attn, read, links)
        return x + self.mlp(self.post_attention_layernorm(x))


def eagle3_config(target: Config, *, layer_ids: list[int], vocabulary: int, inner: int) -> dict[str, Any]:
    copied = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        **{name: target[name] for name in copied},
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "draft_vocab_size": vocabulary,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids, "use_aux_hidden_state": True},
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target["max_position_embeddings"],
        "tie_word_embeddings": False,
    }


def draft(drafter: MTPChain | Eagle3, embedding: Tensor, first: Tensor, depth: int) -> list[Tensor]:
    """Hidden vectors for the head at each step, [B, T, hidden] by where the chain starts.

    embedding  [B, T, hidden] of every token
    first      [B, T, hidden] what the target knew of the token before each
    """
    links, before, found = Links(), first, []
    for step in range(depth):
        read = F.pad(embedding[:, step:], (0, 0, 0, step))  # chains that leave the row are not looked at
        before, out = drafter(read, before, links)
        found.append(out)
    return found
