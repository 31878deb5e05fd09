"""DFlash: a whole block of drafts in one pass. The target's features enter as keys and values in every layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import Attention, GatedMLP, RMSNorm, Rotary, linear
from .models import SWIGLU, Block, Config


class DFlash(nn.Module):
    """No embedding and no head of its own: the target's are used."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, hidden, eps = config, config["hidden_size"], config["rms_norm_eps"]
        self.layer_ids = tuple(config["dflash_config"]["target_layer_ids"])
        rotary = Rotary(config["head_dim"], config["rope_theta"])

        def block() -> Block:
            attention = Attention(
                hidden,
                config["num_attention_heads"],
                config["num_key_value_heads"],
                config["head_dim"],
                rotary,
                eps,
            )
            mlp = GatedMLP(hidden, config["intermediate_size"], SWIGLU)
            names = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
            return Block(names, (RMSNorm(hidden, eps), attention, RMSNorm(hidden, eps), mlp))

        self.fc = linear(len(self.layer_ids) * hidden, hidden)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(block() for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(hidden, eps)

    def forward(self, embedding: Tensor, features: list[Tensor], anchors: Tensor) -> Tensor:
        """Hidden vectors for the target's head.

        embedding  [B, N, size, hidden] of N blocks in each row: a known token, then masks
        features   [B, T, hidden] of each layer in layer_ids
        anchors    [N] the known tokens' positions; a block sees the features before its own
        result     [B, N, size, hidden]
        """
        context = self.hidden_norm(self.fc(torch.cat(features, -1)))
        count, size = embedding.shape[1:3]
        length = context.shape[1]
        positions = torch.arange(length, device=context.device)
        own = (anchors[:, None] + torch.arange(size, device=anchors.device)).flatten()
        block = torch.arange(count, device=anchors.device).repeat_interleave(size)
        sees = torch.cat(
            (positions[None] < anchors[block][:, None], block[:, None] == block[None]), 1
        )  # [N size, T + N size]
        x = embedding.flatten(1, 2)
        for layer in self.layers:
            normed = layer.input_layernorm(x)
            q, _ = layer.self_attn.queries(normed, own)
            read = torch.cat((context, normed.to(context.dtype)), 1)
            k, v = layer.self_attn.keys_values(read, torch.cat((positions, own)))
            mixed = F.scaled_dot_product_attention(
                *(it.transpose(1, 2) for it in (q, k, v)), attn_mask=sees, enable_gqa=True
            )
            x = x + layer.self_attn.finish(mixed.transpose(1, 2), None)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x).unflatten(1, (count, size))


def dflash_config(
    target: Config, *, layer_ids: list[int], layers: int, inner: int, block: int, mask: int
) -> dict[str, Any]:
    copied = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        **{name: target[name] for name in copied},
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "block_size": block,
        "dflash_config": {
            "block_size": block,
            "target_layer_ids": layer_ids,
            "mask_token_id": mask,
            "num_target_layers": target["num_hidden_layers"],
        },
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target["max_position_embeddings"],
        "tie_word_embeddings": True,
    }
