"""What the models are made of. Parameters have the hub's names, so a state_dict is the file.

Each mixer has a forward over whole sequences [B, T, hidden], and a `step` of one token [B, hidden] that reads and
writes `memory`, the mixer's own dict of tensors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import delta

Memory = dict[str, Tensor]


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, *, zero_centred: bool = False) -> None:
        super().__init__()
        self.eps, self.offset = eps, 1.0 if zero_centred else 0.0
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], (self.weight + self.offset).to(x.dtype), self.eps).to(x.dtype)


def linear(inputs: int, outputs: int, *, silent: bool = False) -> nn.Linear:
    """silent: nothing at first; what is added to the residual stream starts so."""
    made = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(made.weight) if silent else nn.init.normal_(made.weight, std=0.7 * inputs**-0.5)
    return made


class GatedMLP(nn.Module):
    def __init__(self, hidden: int, inner: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        gate, up, down = names
        self.add_module(gate, linear(hidden, inner))
        self.add_module(up, linear(hidden, inner))
        self.add_module(down, linear(inner, hidden, silent=True))

    def forward(self, x: Tensor) -> Tensor:
        gate, up, down = (self.get_submodule(name) for name in self.names)
        return down(F.silu(gate(x)) * up(x))


class Rotary(nn.Module):
    """Turns the first `turning` channels of each head, pairs half of them apart."""

    def __init__(self, turning: int, theta: float) -> None:
        super().__init__()
        self.turning = turning
        frequencies = theta ** -(torch.arange(0, turning, 2, dtype=torch.float64) / turning)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B, T, heads, head_dim], positions [T]"""
        angles = positions.float()[:, None] * self.frequencies.float()
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second, rest = x.split(
            (self.turning // 2, self.turning // 2, x.shape[-1] - self.turning), dim=-1
        )
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat((*(part.to(x.dtype) for part in turned), rest), -1)


class Attention(nn.Module):
    """Softmax attention; a gate on the output if asked.

    names: of the output projection and of the norms over each query and key head, as the files have them; "": no norm
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary: Rotary,
        eps: float,
        *,
        gated: bool = False,
        zero_centred: bool = False,
        inputs: int | None = None,
        names: tuple[str, str, str] = ("o_proj", "q_norm", "k_norm"),
    ) -> None:
        super().__init__()
        self.head_dim, self.gated, self.names = head_dim, gated, names
        self.rotary = rotary
        inputs = inputs or hidden
        self.q_proj = linear(inputs, heads * head_dim * (2 if gated else 1))
        self.k_proj = linear(inputs, kv_heads * head_dim)
        self.v_proj = linear(inputs, kv_heads * head_dim)
        out, *norms = names
        self.add_module(out, linear(heads * head_dim, hidden, silent=True))
        for norm in filter(None, norms):
            self.add_module(norm, RMSNorm(head_dim, eps, zero_centred=zero_centred))

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """[B, T, heads, head_dim], and the output's gate."""
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim * (2 if self.gated else 1)))
        q, gate = (*q.split(self.head_dim, -1), None)[:2]
        return self.rotary(self._norm(1)(q), positions), gate

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.k_proj, self.v_proj))
        return self.rotary(self._norm(2)(k), positions), v

    def _norm(self, which: int) -> nn.Module:
        name = self.names[which]
        return self.get_submodule(name) if name else nn.Identity()

    def finish(self, mixed: Tensor, gate: Tensor | None) -> Tensor:
        """mixed [B, T, heads, head_dim]"""
        if gate is not None:
            mixed = mixed * gate.sigmoid()
        return self.get_submodule(self.names[0])(mixed.flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        q, gate = self.queries(x, positions)
        k, v = self.keys_values(x, positions)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.finish(mixed.transpose(1, 2), gate)

    def step(self, x: Tensor, memory: Memory, position: int, room: int) -> Tensor:
        x, where = x[:, None], torch.tensor([position], device=x.device)
        q, gate = self.queries(x, where)
        k, v = (it.transpose(1, 2) for it in self.keys_values(x, where))
        for name, new in (("k", k), ("v", v)):
            if name not in memory:
                memory[name] = new.new_zeros(*new.shape[:2], room, new.shape[-1])
            memory[name][:, :, position] = new[:, :, 0]
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            memory["k"][:, :, : position + 1],
            memory["v"][:, :, : position + 1],
            enable_gqa=True,
        )
        return self.finish(mixed.transpose(1, 2), gate)[:, 0]


def causal_conv(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, T, channels], weight [channels, 1, width]: each channel by itself, zeros before the first token."""
    width, taps = weight.shape[-1], weight[:, 0].to(x.dtype)
    padded = F.pad(x, (0, 0, width - 1, 0))
    return sum(padded[:, i : i + x.shape[1]] * taps[:, i] for i in range(width))  # type: ignore[return-value]


def conv_step(x: Tensor, weight: Tensor, memory: Memory) -> Tensor:
    """One token x [B, channels]; memory keeps the inputs before it."""
    before = memory.get("conv")
    if before is None:
        before = x.new_zeros(x.shape[0], weight.shape[-1] - 1, x.shape[-1])
    window = torch.cat((before, x[:, None]), 1)
    memory["conv"] = window[:, 1:]
    return (window * weight[:, 0].T).sum(1)


class Conv(nn.Module):
    """A depthwise convolution's weight, where the files have it."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, width) * width**-0.5)


class DeltaNet(nn.Module):
    def __init__(
        self,
        hidden: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        width: int,
        eps: float,
    ) -> None:
        super().__init__()
        self.key_dim, self.value_dim, self.ratio = key_dim, value_dim, value_heads // key_heads
        self.keys, self.values, self.eps = key_heads * key_dim, value_heads * value_dim, eps
        self.in_proj_qkv = linear(hidden, 2 * self.keys + self.values)
        self.in_proj_z = linear(hidden, self.values)
        self.in_proj_b = linear(hidden, value_heads)
        self.in_proj_a = linear(hidden, value_heads)
        self.conv1d = Conv(2 * self.keys + self.values, width)
        rate = torch.exp(torch.linspace(math.log(0.001), math.log(0.1), value_heads))
        self.dt_bias = nn.Parameter(rate.expm1().log())  # softplus gives the rate back
        self.A_log = nn.Parameter(torch.empty(value_heads).uniform_(1, 8).log())
        self.norm = RMSNorm(value_dim, eps)
        self.out_proj = linear(self.values, hidden, silent=True)

    def _prepare(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, log_g, beta of the convolution's output, a key head repeated for its value heads."""
        q, k, v = F.silu(mixed.float()).split((self.keys, self.keys, self.values), -1)
        q, k = (it.unflatten(-1, (-1, self.key_dim)) for it in (q, k))
        q, k = (it * (it.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for it in (q, k))
        q, k = (it.repeat_interleave(self.ratio, -2) for it in (q * self.key_dim**-0.5, k))
        log_g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return q, k, v.unflatten(-1, (-1, self.value_dim)), log_g, self.in_proj_b(x).float().sigmoid()

    def _finish(self, x: Tensor, out: Tensor) -> Tensor:
        gate = F.silu(self.in_proj_z(x).float()).unflatten(-1, (-1, self.value_dim))
        return self.out_proj((self.norm(out.float()) * gate).flatten(-2).to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        prepared = self._prepare(x, causal_conv(self.in_proj_qkv(x), self.conv1d.weight))
        with torch.autocast(x.device.type, enabled=False):
            out = delta.gated_delta(*prepared)
        return self._finish(x, out)

    def step(self, x: Tensor, memory: Memory, position: int, room: int) -> Tensor:
        prepared = self._prepare(x, conv_step(self.in_proj_qkv(x), self.conv1d.weight, memory))
        with torch.autocast(x.device.type, enabled=False):
            q, _, v, *_ = prepared
            empty = q.new_zeros(*q.shape, v.shape[-1])
            out, memory["state"] = delta.step(memory.get("state", empty), *prepared)
        return self._finish(x, out)


class ShortConv(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.in_proj = linear(hidden, 3 * hidden)
        self.conv = Conv(hidden, width)
        self.out_proj = linear(hidden, hidden, silent=True)

    def forward(self, x: Tensor) -> Tensor:
        before, after, x = self.in_proj(x).chunk(3, -1)
        return self.out_proj(after * causal_conv(before * x, self.conv.weight).to(after.dtype))

    def step(self, x: Tensor, memory: Memory, position: int, room: int) -> Tensor:
        before, after, x = self.in_proj(x).chunk(3, -1)
        return self.out_proj(after * conv_step(before * x, self.conv.weight, memory).to(after.dtype))
