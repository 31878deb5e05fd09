"""Drafters in the hub's formats, with weights made here; and in plain torch what such files would draft.

The weights lean on what the model says, so that drafts agree with it where noise decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from holdfast.spec.ensemble import Ensemble

from .uncached import fresh_batch

HEADS, KV_HEADS, HEAD_DIM, INNER, EPS, THETA = 4, 2, 8, 24, 1e-5, 10_000.0
LAYERS_READ = (0, 1)
DRAFT_VOCAB = 100
UNSURE = 1e-4
"""Logits closer than this may be ordered otherwise by other rounding."""

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Target:
    hidden: int
    vocab: int

    @staticmethod
    def of(directory: Path) -> Target:
        weights = load_file(directory / "model.safetensors")
        embedding = next(w for n, w in weights.items() if "embed" in n and w.ndim == 2)
        return Target(embedding.shape[1], embedding.shape[0])


class Noise:
    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float) -> Tensor:
        return scale * torch.randn(*shape, generator=self._generator)

    def around_one(self, size: int) -> Tensor:
        return 1 + self(size, scale=0.1)

    def layer(self, prefix: str, hidden: int, inputs: int, *, head_norms: bool = False) -> Weights:
        """Attention and feed-forward of a layer, with the norm between them."""
        rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        made = {f"self_attn.{n}_proj.weight": self(size, inputs, scale=0.3) for n, size in rows.items()}
        made["self_attn.o_proj.weight"] = self(hidden, HEADS * HEAD_DIM, scale=0.2)
        if head_norms:
            made |= {f"self_attn.{n}_norm.weight": self.around_one(HEAD_DIM) for n in "qk"}
        made |= {f"mlp.{n}_proj.weight": self(INNER, hidden, scale=0.2) for n in ("gate", "up")}
        made["mlp.down_proj.weight"] = self(hidden, INNER, scale=0.2)
        made["post_attention_layernorm.weight"] = self.around_one(hidden)
        return {prefix + name: weight for name, weight in made.items()}


def write(directory: Path, config: dict[str, Any], weights: Weights) -> Path:
    directory.mkdir(exist_ok=True)
    save_file(
        {n: w.contiguous() for n, w in weights.items()}, directory / "model.safetensors", {"format": "pt"}
    )
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def common_config(target: Target) -> dict[str, Any]:
    return dict(
        hidden_size=target.hidden,
        vocab_size=target.vocab,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=INNER,
        num_hidden_layers=1,
        rms_norm_eps=EPS,
        rope_theta=THETA,
        hidden_act="silu",
        max_position_embeddings=64,
    )


def write_eagle3(target: Target, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    noise, hidden = Noise(seed), target.hidden
    drafted = torch.randperm(target.vocab, generator=torch.Generator().manual_seed(seed))[:DRAFT_VOCAB]
    drafted = drafted.sort().values
    weights = noise.layer("midlayer.", hidden, 2 * hidden)
    mixing = [noise(hidden, hidden, scale=0.05) for _ in LAYERS_READ[:-1]]
    weights["fc.weight"] = torch.cat((*mixing, torch.eye(hidden) + noise(hidden, hidden, scale=0.05)), 1)
    for norm in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
        weights[f"{norm}.weight"] = noise.around_one(hidden)
    weights["lm_head.weight"] = noise(DRAFT_VOCAB, hidden, scale=0.1)
    weights["d2t"] = drafted - torch.arange(DRAFT_VOCAB)
    weights["t2d"] = torch.zeros(target.vocab, dtype=torch.bool).index_fill(0, drafted, True)
    config = common_config(target) | dict(
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=DRAFT_VOCAB,
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": list(LAYERS_READ),
            "use_aux_hidden_state": True,
        },
    )
    return write(directory, config | changes, weights)


def write_eagle1(target: Target, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    noise, hidden = Noise(seed), target.hidden
    weights = noise.layer("layers.0.", hidden, hidden)
    weights["fc.weight"] = torch.cat((noise(hidden, hidden, scale=0.05), torch.eye(hidden)), 1)
    weights["fc.bias"] = noise(hidden, scale=0.1)
    weights["embed_tokens.weight"] = noise(target.vocab, hidden, scale=1.0)
    config = common_config(target) | dict(architectures=["LlamaForCausalLMEagle"])
    return write(directory, config | changes, weights)


DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=4)


def write_recurrent_eagle1(target: Target, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A gated delta net in the place of attention, with the tensors of Qwen3.5's."""
    write_eagle1(target, directory, seed=seed)
    noise = Noise(seed + 100)
    kept = load_file(directory / "model.safetensors")
    keys, values, heads = 2 * 8, 4 * 4, 4
    mixer = {
        "in_proj_qkv.weight": noise(2 * keys + values, target.hidden, scale=0.3),
        "in_proj_z.weight": noise(values, target.hidden, scale=0.3),
        "in_proj_b.weight": noise(heads, target.hidden, scale=0.3),
        "in_proj_a.weight": noise(heads, target.hidden, scale=0.3),
        "conv1d.weight": noise(2 * keys + values, 1, 4, scale=0.5),
        "dt_bias": noise(heads, scale=0.3),
        "A_log": noise(heads, scale=0.3),
        "norm.weight": noise.around_one(4),
        "out_proj.weight": noise(target.hidden, values, scale=0.2),
    }
    weights = {name: weight for name, weight in kept.items() if "self_attn" not in name}
    weights |= {f"layers.0.linear_attn.{name}": weight for name, weight in mixer.items()}
    config = json.loads((directory / "config.json").read_text())
    return write(directory, config | DELTA | {"layer_types": ["linear_attention"]} | changes, weights)


def write_dflash(target: Target, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    noise, hidden, layers = Noise(seed), target.hidden, 2
    weights = {"fc.weight": noise(hidden, len(LAYERS_READ) * hidden, scale=0.2)}
    for number in range(layers):
        prefix = f"layers.{number}."
        weights |= noise.layer(prefix, hidden, hidden, head_norms=True)
        weights[f"{prefix}input_layernorm.weight"] = noise.around_one(hidden)
    weights |= {f"{norm}.weight": noise.around_one(hidden) for norm in ("hidden_norm", "norm")}
    config = common_config(target) | dict(
        architectures=["DFlashDraftModel"],
        num_hidden_layers=layers,
        block_size=8,
        dflash_config={"target_layer_ids": list(LAYERS_READ), "mask_token_id": 3},
    )
    return write(directory, config | changes, weights)


def write_eagle_multi(target: Target, directory: Path, *, heads: int = 3) -> Path:
    """The first in EAGLE-3's format, so that more than one kind is in the chain."""
    directory.mkdir(exist_ok=True)
    write_eagle3(target, directory / "0")
    for number in range(1, heads):
        write_eagle1(target, directory / str(number), seed=number)
    return directory


def write_mtp(model: Path, directory: Path) -> Path:
    """The model once more, with a head that is drawn like its layers and leans on what it says."""
    weights = load_file(model / "model.safetensors")
    attention = next(name.split(".self_attn")[0] for name in weights if ".self_attn" in name)
    noise, hidden = Noise(), weights["model.norm.weight"].shape[0]
    head = {
        name.replace(attention, "mtp.layers.0"): weight + noise(*weight.shape, scale=0.02)
        for name, weight in weights.items()
        if name.startswith(attention + ".")
    }
    head["mtp.fc.weight"] = torch.cat((noise(hidden, hidden, scale=0.05), torch.eye(hidden)), 1)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        head[f"mtp.{norm}.weight"] = noise(hidden, scale=0.1)
    return write(directory, json.loads((model / "config.json").read_text()), weights | head)


WRITERS: dict[str, Callable[[Target, Path], Path]] = {
    "eagle": write_eagle3,
    "eagle_multi": write_eagle_multi,
    "dflash": write_dflash,
}
"""By method."""


class Plain:
    """The formats once more, over a whole text at once, with nothing kept."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.weights, self.model = load_file(directory / "model.safetensors"), model
        self.config = json.loads((directory / "config.json").read_text())

    def drafts(self, text: list[int], depth: int) -> list[int]:
        """Greedy; fewer if rounding could decide about one."""
        raise NotImplementedError

    def features(self, text: list[int], layers: list[int]) -> tuple[Tensor, Tensor]:
        return self.model.features(fresh_batch(Ensemble(self.model), text), layers)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], EPS)

    def attention(
        self, prefix: str, asking: Tensor, read: Tensor, positions: tuple[Tensor, Tensor], sees: Tensor
    ) -> Tensor:
        """asking [Q, inputs], read [K, inputs], positions of both, sees [Q, K]"""
        parts = [
            self.linear(f"{prefix}self_attn.{n}_proj", x).unflatten(-1, (-1, HEAD_DIM))
            for n, x in (("q", asking), ("k", read), ("v", read))
        ]
        if f"{prefix}self_attn.q_norm.weight" in self.weights:
            parts[:2] = [
                self.norm(f"{prefix}self_attn.{n}_norm", x) for n, x in zip("qk", parts[:2], strict=True)
            ]
        parts[:2] = [turned(x, at) for x, at in zip(parts[:2], positions, strict=True)]
        q, k, v = (x.transpose(0, 1) for x in parts)
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
        scores = (q @ k.mT * HEAD_DIM**-0.5).masked_fill(~sees, -torch.inf)
        return self.linear(f"{prefix}self_attn.o_proj", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

    def feed_forward(self, prefix: str, x: Tensor) -> Tensor:
        normed = self.norm(f"{prefix}post_attention_layernorm", x)
        gate, up = (self.linear(f"{prefix}mlp.{n}_proj", normed) for n in ("gate", "up"))
        return x + self.linear(f"{prefix}mlp.down_proj", F.silu(gate) * up)


class PlainEagle(Plain):
    def known(self, text: list[int]) -> Tensor:
        raise NotImplementedError

    def step(self, embedding: Tensor, previous: Tensor, causal: Callable[[str, Tensor], Tensor]) -> Tensor:
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """[vocabulary of the model]"""
        raise NotImplementedError

    def hidden(self, tokens: list[int], previous: Tensor) -> Tensor:
        """[tokens, hidden], of all of them beside vectors of those before them."""
        at = torch.arange(len(tokens))
        sees = at[:, None] >= at
        return self.step(
            self.model.embed(torch.tensor(tokens)),
            torch.cat((torch.zeros_like(previous[:1]), previous)),
            lambda prefix, read: self.attention(prefix, read, read, (at, at), sees),
        )

    @torch.inference_mode()
    def drafts(self, text: list[int], depth: int) -> list[int]:
        previous, tokens = self.known(text[:-1]), list(text)
        for _ in range(depth):
            found = self.hidden(tokens, previous)[-1:]
            if (token := surely(self.logits(found[0]))) is None:
                break
            tokens.append(token)
            previous = torch.cat((previous, found))
        return tokens[len(text) :]

    @torch.inference_mode()
    def tree(self, text: list[int], sizes: list[int], topk: int) -> set[tuple[int, ...]] | None:
        """The paths that a tree with levels of these sizes has; None if rounding could decide about one."""
        level = [((), self.known(text[:-1]), 0.0)]
        paths: set[tuple[int, ...]] = set()
        for size in sizes:
            grown: list[tuple[tuple[int, ...], Tensor, float]] = []
            for path, previous, score in level:
                found = self.hidden([*text, *path], previous)[-1:]
                best = self.logits(found[0]).log_softmax(-1).topk(topk)
                ways = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                grown += [
                    ((*path, token), torch.cat((previous, found)), score + more) for token, more in ways
                ]
            grown.sort(key=lambda each: -each[2])
            if len(grown) > size and grown[size - 1][2] - grown[size][2] < UNSURE:
                return None
            level = grown[:size]
            paths |= {path for path, _, _ in level}
        return paths


class PlainEagleMulti:
    """A chain of heads: each reads what the one before made of all tokens."""

    def __init__(self, heads: list[PlainEagle]) -> None:
        self.heads = heads

    @torch.inference_mode()
    def drafts(self, text: list[int], depth: int) -> list[int]:
        previous, tokens = self.heads[0].known(text[:-1]), list(text)
        for head in self.heads[:depth]:
            previous = head.hidden(tokens, previous)
            if (token := surely(head.logits(previous[-1]))) is None:
                break
            tokens.append(token)
        return tokens[len(text) :]


class PlainEagle3(PlainEagle):
    def known(self, text: list[int]) -> Tensor:
        ids = self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return self.linear("fc", self.features(text, ids)[1].flatten(1))

    def step(self, embedding: Tensor, previous: Tensor, causal: Callable[[str, Tensor], Tensor]) -> Tensor:
        embedding = self.norm("midlayer.input_layernorm", embedding)
        read = torch.cat((embedding, self.norm("midlayer.hidden_norm", previous)), -1)
        return self.feed_forward("midlayer.", previous + causal("midlayer.", read))

    def logits(self, hidden: Tensor) -> Tensor:
        found = self.linear("lm_head", self.norm("norm", hidden))
        everything = torch.full((self.config["vocab_size"],), -torch.inf)
        for place, logit in enumerate(found):
            everything[place + self.weights["d2t"][place]] = logit
        return everything


class PlainEagle1(PlainEagle):
    def known(self, text: list[int]) -> Tensor:
        return self.features(text, [])[0]

    def step(self, embedding: Tensor, previous: Tensor, causal: Callable[[str, Tensor], Tensor]) -> Tensor:
        x = self.linear("fc", torch.cat((embedding, previous), -1))
        return self.feed_forward("layers.0.", x + causal("layers.0.", x))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden[None])[0]


class PlainRecurrentEagle1(PlainEagle1):
    """Its layer as transformers computes it."""

    def __init__(self, directory: Path, model: Any) -> None:
        super().__init__(directory, model)
        config = Qwen3_5TextConfig(**DELTA, hidden_size=self.config["hidden_size"], rms_norm_eps=EPS)
        self.mixer = Qwen3_5GatedDeltaNet(config, 0).eval()
        prefix = "layers.0.linear_attn."
        self.mixer.load_state_dict(
            {n.removeprefix(prefix): w for n, w in self.weights.items() if n.startswith(prefix)}
        )

    def step(self, embedding: Tensor, previous: Tensor, causal: Callable[[str, Tensor], Tensor]) -> Tensor:
        x = self.linear("fc", torch.cat((embedding, previous), -1))
        return self.feed_forward("layers.0.", x + self.mixer(x[None])[0])


class PlainDFlash(Plain):
    @torch.inference_mode()
    def drafts(self, text: list[int], depth: int) -> list[int]:
        own, before = self.config["dflash_config"], len(text) - 1
        layers = self.features(text[:-1], own["target_layer_ids"])[1]
        context = self.norm("hidden_norm", self.linear("fc", layers.flatten(1)))
        x = self.model.embed(torch.tensor([text[-1], *[own["mask_token_id"]] * depth]))
        everything = torch.arange(before + len(x))
        for number in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{number}."
            normed = self.norm(f"{prefix}input_layernorm", x)
            read, sees = torch.cat((context, normed)), torch.ones(1, 1, dtype=torch.bool)
            x = x + self.attention(prefix, normed, read, (everything[before:], everything), sees)
            x = self.feed_forward(prefix, x)
        found: list[int] = []
        for logits in self.model.logits(self.norm("norm", x))[1:]:
            if (token := surely(logits)) is None:
                break
            found.append(token)
        return found


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """x [tokens, heads, dim]: channel i of the first half turns with channel i of the second."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * THETA ** -(torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def surely(logits: Tensor) -> int | None:
    """The most likely token; None if another is about as likely."""
    best, other = logits.topk(2).values.tolist()
    return int(logits.argmax()) if best - other > UNSURE else None
