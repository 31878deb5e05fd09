"""Which implementation of each operation runs: chosen once, at start, and passed to whoever builds layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import BACKEND_GROUP, BACKENDS, ConfigError, backends
from . import journal
from .acceptance import reference as acceptance
from .alike import rows_alike
from .attention import reference as attention
from .attention.heads import Heads, Turn
from .causal_conv import reference as causal_conv
from .cursors import reference as cursors
from .gated_delta import reference as gated_delta
from .gated_delta.front import DeltaInputs, DeltaWeights
from .kda import reference as kda
from .linear import reference as linear
from .lookup import reference as lookup
from .moe import reference as moe
from .norm import reference as norm
from .places import ConvState, KVState, TemporalState, ToKeep
from .rope import reference as rope
from .sampling import reference as sampling
from .selective_scan import reference as selective_scan
from .ssd import reference as ssd
from .step import StateStep

BLOCK = 32
"""Exact mode: operations on tokens see this many rows, always. A multiple of every CPU vector length."""

UNDIVIDED = 1 << 15
"""Elements of a tensor that torch leaves to one thread."""


TEMPORAL_AXES = {
    "gated_delta": gated_delta.AXES,
    "kda": kda.AXES,
    "selective_scan": selective_scan.AXES,
    "ssd": ssd.AXES,
}
"""The temporal state of each recurrent operation that has one: its axes in logical order."""


class Ops:
    """The reference for every operation. A faster backend overrides what it does better."""

    exact = False
    records = False
    """Windows without a tree are absorbed without a word from the device, so that a step of them can be recorded."""

    def __init__(
        self, name: str = "reference", temporal_orders: Mapping[str, tuple[str, ...]] = TEMPORAL_AXES
    ) -> None:
        self.name = name
        self.temporal_orders = {**TEMPORAL_AXES, **temporal_orders}
        """The order in which this backend's kernels want those axes stored, for each operation."""
        for operation, order in self.temporal_orders.items():
            if sorted(order) != sorted(TEMPORAL_AXES.get(operation, ())):
                known = ", ".join(f"{name}: {axes}" for name, axes in TEMPORAL_AXES.items())
                raise ConfigError(f"backend={name!r} orders {operation} as {order}; there are {known}")

    def compile_ahead(self, work: Callable[[], object]) -> None:
        """All that `work` will need, which changes nothing when it is done, and may be done here in part."""

    # tokens in, tokens out: one row never depends on another

    def packed(self, weight: Tensor, device: str) -> Tensor:
        """A weight as `linear` reads it fastest there; the weight itself if it lies so."""
        if device != "cpu" or weight.dtype != torch.float32 or weight.dim() != 2:
            return weight
        return linear.in_blocks(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear.linear(x, weight, bias)

    def embedding(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(tokens, weight)

    def gated_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """silu(gate) * up, of a weight whose first half gives the gate and whose second half gives up."""
        gate, up = self.linear(x, weight, bias).chunk(2, -1)
        return self.silu_mul(gate, up)

    def linear_per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [tokens, heads, inputs], weight [heads, outputs, inputs] -> [tokens, heads, outputs]"""
        return torch.einsum("thi,hoi->tho", x, weight)

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """In `out`, if that is given."""
        normed = norm.rms_norm(x, weight, eps, zero_centred=zero_centred)
        return normed if out is None else out.copy_(normed)

    def add_rms_norm(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        *,
        zero_centred: bool = False,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The sum, in `out` if that is given, and its norm."""
        x = torch.add(x, added, out=out)
        return x, self.rms_norm(x, weight, eps, zero_centred=zero_centred)

    def gated_rms_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
    ) -> Tensor:
        return norm.gated_rms_norm(x, gate, weight, eps, gate_first=gate_first)

    def l2_norm(self, x: Tensor) -> Tensor:
        return norm.l2_norm(x)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def silu_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        return self.silu(gate).mul_(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def sigmoid_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        return x * self.sigmoid(gate)

    def softplus(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return logits.float().log_softmax(-1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope.rotate(x, cos, sin)

    def route(self, logits: Tensor, bias: Tensor | None, routing: moe.Routing) -> tuple[Tensor, Tensor]:
        return moe.route(logits, bias, routing)

    def experts(
        self, x: Tensor, experts: Tensor, weights: Tensor, up: Tensor, down: Tensor, *, gated: bool
    ) -> Tensor:
        """`moe.mix` of feed-forward networks with weights up [experts, inner, width], down [experts, width, inner].

        gated: down(silu(first half of up(x)) * second half), else down(relu(up(x))^2)
        """

        def expert(number: int, tokens: Tensor) -> Tensor:
            inner = self.linear(tokens, up[number])
            if gated:
                gate, inner = inner.chunk(2, -1)
                return self.linear(self.silu(gate) * inner, down[number])
            return self.linear(inner.relu().square(), down[number])

        return moe.mix(x, experts, weights, len(up), expert)

    # where rows stand, and what they are told: each is its module's function

    begin = staticmethod(cursors.begin)
    commit = staticmethod(cursors.commit)
    absorbed = staticmethod(cursors.absorbed)
    accept = staticmethod(acceptance.accept)
    write_drafts = staticmethod(acceptance.write_drafts)
    look_up = staticmethod(lookup.look_up)

    def commit_keeping(
        self,
        at: cursors.Cursors,
        stood: cursors.Standing,
        accepted: Tensor,
        keep: ToKeep,
        step: StateStep,
    ) -> cursors.Committed:
        """`commit`, with what `causal_conv` keeps of a step of windows: nothing is convolved."""
        causal_conv.keep(keep.x, keep.state, step)
        return self.commit(at, step.rows, stood, accepted)

    # over lanes, with what they keep

    def attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: Heads,
        pool: KVState,
        pages: Tensor,
        step: StateStep,
    ) -> Tensor:
        """Queries [tokens, QH, D], keys and values [tokens, KH, ..] as projected; `heads`: what becomes of them."""
        scale = heads.scale
        if (norms := heads.norms) is not None:
            queries = self.rms_norm(queries, norms.queries, norms.eps, zero_centred=norms.zero_centred)
            keys = self.rms_norm(keys, norms.keys, norms.eps, zero_centred=norms.zero_centred)
        if (turn := heads.turn) is not None:
            cos, sin = _angles(turn, step, len(queries))
            queries, keys = self.rotate(queries, cos, sin), self.rotate(keys, cos, sin)
        attention.write_kv(keys, values, pool, pages, step)
        return attention.paged_attention(queries, pool, pages, step, scale, exact=self.exact)

    def keep_kv(
        self, keys: Tensor, values: Tensor, heads: Heads, pool: KVState, pages: Tensor, step: StateStep
    ) -> None:
        """What `attention` keeps of keys and values, without attending to anything."""
        if (norms := heads.norms) is not None:
            keys = self.rms_norm(keys, norms.keys, norms.eps, zero_centred=norms.zero_centred)
        if (turn := heads.turn) is not None:
            keys = self.rotate(keys, *_angles(turn, step, len(keys)))
        attention.write_kv(keys, values, pool, pages, step)

    def latent_attention(
        self,
        queries: Tensor,
        latents: Tensor,
        pool: KVState,
        pages: Tensor,
        step: StateStep,
        scale: float,
        *,
        value_dim: int,
    ) -> Tensor:
        """Queries [tokens, heads, width] of what all heads share, latents [tokens, width]: its first `value_dim`
        channels are the values as well. -> [tokens, heads, value_dim]"""
        attention.write_kv(latents[:, None], latents[:, None, :0], pool, pages, step)
        return attention.paged_attention(
            queries, pool, pages, step, scale, value_dim=value_dim, exact=self.exact
        )

    def causal_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
        return causal_conv.causal_conv(x, weight, bias, pool, step)

    def short_conv(
        self, gated: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
        """after * convolution(before * x) of [before, after, x], side by side in the last axis."""
        before, after, x = gated.chunk(3, -1)
        return after * self.causal_conv(before * x, weight, bias, pool, step).to(gated.dtype)

    def delta_net(
        self,
        inputs: DeltaInputs,
        weights: DeltaWeights,
        conv: ConvState,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        """What a delta net does between its projections and its norm: [tokens, HV, V]"""
        dtype, value_heads = inputs.qkv.dtype, len(weights.a_log)
        _, value_dim, key_dim = pool.saved.permute(self._axes("gated_delta")).shape[1:]
        mixed = self.causal_conv(inputs.qkv, weights.conv, None, conv, step)
        values = value_heads * value_dim
        qk, v = self.silu(mixed).to(dtype).split_with_sizes((mixed.shape[-1] - values, values), -1)
        q, k = self.l2_norm(qk.unflatten(-1, (-1, key_dim))).chunk(2, 1)
        return self.gated_delta(
            q * key_dim**-0.5,
            k.to(dtype),  # as the journal keeps it: window, journal and chunk form see the same bits
            v.unflatten(-1, (-1, value_dim)),
            -weights.a_log.exp() * self.softplus(inputs.a.float() + weights.dt_bias),
            self.sigmoid(inputs.b.float()) * weights.beta_scale,
            pool,
            step,
        )

    def records_delta(self, key_dim: int) -> bool:
        """Whether that goes for delta nets with keys of this size."""
        return self.records

    def gated_delta(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_g: Tensor,
        beta: Tensor,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        rule = gated_delta.GatedDelta(self._axes("gated_delta"))
        inputs = {"q": q, "k": k, "v": v, "log_g": log_g, "beta": beta}
        out = torch.full(v.shape, torch.nan, device=v.device)
        return journal.advance(rule, inputs, pool, step, out, exact=self.exact)

    def kda(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_g: Tensor,
        beta: Tensor,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        rule = kda.KDA(self._axes("kda"))
        inputs = {"q": q, "k": k, "v": v, "log_g": log_g, "beta": beta}
        out = torch.full(v.shape, torch.nan, device=v.device)
        return journal.advance(rule, inputs, pool, step, out, exact=self.exact)

    def ssd(
        self,
        x: Tensor,
        b: Tensor,
        c: Tensor,
        dt: Tensor,
        log_decay: Tensor,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        rule = ssd.SSD(self._axes("ssd"))
        inputs = {"x": x, "b": b, "c": c, "dt": dt, "log_decay": log_decay}
        out = torch.full(x.shape, torch.nan, device=x.device)
        return journal.advance(rule, inputs, pool, step, out, exact=self.exact)

    def selective_scan(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, a: Tensor, pool: TemporalState, step: StateStep
    ) -> Tensor:
        rule = selective_scan.SelectiveScan(a, self._axes("selective_scan"))
        inputs = {"x": x, "b": b, "c": c, "dt": dt}
        out = torch.full(x.shape, torch.nan, device=x.device)
        return journal.advance(rule, inputs, pool, step, out, exact=self.exact)

    def _axes(self, operation: str) -> tuple[int, ...]:
        """Where each logical axis of the operation's state stands in the pool, whose axis 0 is the slot."""
        stored = self.temporal_orders[operation]
        return (0, *(1 + stored.index(axis) for axis in TEMPORAL_AXES[operation]))

    # logits to tokens

    def adjust(self, logits: Tensor, rows: sampling.Adjustments) -> Tensor:
        return sampling.adjust(logits, rows)

    def permit(self, logits: Tensor, places: Tensor, permitted: Tensor) -> Tensor:
        return sampling.permit(logits, places, permitted)

    def most_likely(self, logits: Tensor) -> Tensor:
        return sampling.most_likely(logits)

    def sample(self, logits: Tensor, rows: sampling.SamplingRows) -> Tensor:
        return sampling.sample(logits, rows)


REFERENCE = Ops()


class ExactOps(Ops):
    """The reference, one tile configuration per operation: a token's bits depend on its own past alone."""

    exact = True

    def packed(self, weight: Tensor, device: str) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        weight = rows_alike(weight)
        return _in_blocks(lambda block: F.linear(block, weight, bias), rows_alike(x))

    def linear_per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        weight = rows_alike(weight)
        return _in_blocks(lambda block: super(ExactOps, self).linear_per_head(block, weight), rows_alike(x))

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False, out: Tensor | None = None
    ) -> Tensor:
        normed = _in_blocks(lambda block: norm.rms_norm(block, weight, eps, zero_centred=zero_centred), x)
        return normed if out is None else out.copy_(normed)

    def gated_rms_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
    ) -> Tensor:
        return _undivided(lambda a, b: norm.gated_rms_norm(a, b, weight, eps, gate_first=gate_first), x, gate)

    def l2_norm(self, x: Tensor) -> Tensor:
        return _in_blocks(norm.l2_norm, x)

    def silu(self, x: Tensor) -> Tensor:
        return _undivided(F.silu, x)

    def gelu(self, x: Tensor) -> Tensor:
        return _undivided(F.gelu, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return _undivided(torch.sigmoid, x)

    def softplus(self, x: Tensor) -> Tensor:
        return _undivided(F.softplus, x)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return _in_blocks(super().log_softmax, logits)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _in_blocks(rope.rotate, x, cos, sin)

    def route(self, logits: Tensor, bias: Tensor | None, routing: moe.Routing) -> tuple[Tensor, Tensor]:
        def pairs(block: Tensor) -> Tensor:
            return torch.stack([part.double() for part in moe.route(block, bias, routing)], 1)

        experts, weights = _in_blocks(pairs, logits).unbind(1)
        return experts.long(), weights.float()

    def sample(self, logits: Tensor, rows: sampling.SamplingRows) -> Tensor:
        """Row by row: noise is made by logarithms, whose last bit depends on where in a batch they stand."""
        if not rows.draws or len(logits) < 2:
            return sampling.sample(logits, rows)
        return torch.cat([sampling.sample(logits[i : i + 1], rows.row(i)) for i in range(len(logits))])


def _in_blocks(op: Callable[..., Tensor], *rows: Tensor, size: int = BLOCK) -> Tensor:
    """op over `size` rows at a time, the last block filled up with zeros."""
    count = len(rows[0])
    if not count:
        return op(*rows)
    missing = -count % size
    padded = [torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) for x in rows]
    blocks = [op(*(x[i : i + size] for x in padded)) for i in range(0, count, size)]
    return torch.cat(blocks)[:count]


def _undivided(op: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """In blocks that torch does not divide among threads: the end of a thread's share is computed by other
    instructions, to other bits. A row too wide for that goes alone, and is divided as every other is."""
    narrow = BLOCK * rows[0][:1].numel() <= UNDIVIDED
    return _in_blocks(op, *rows, size=BLOCK if narrow else 1)


def choose(name: str, *, exact: bool) -> Ops:
    if name not in BACKENDS:
        return _from_outside(name, exact=exact)
    if name == "triton":
        return _triton(exact=exact)
    kind = ExactOps if exact else Ops
    return kind(name, _swapped(TEMPORAL_AXES) if name == "reference_kv" else TEMPORAL_AXES)


def _triton(*, exact: bool) -> Ops:
    if exact:
        raise ConfigError("backend='triton' has no exact mode yet; use backend='reference'")
    try:
        from .triton_backend import TritonOps
    except ImportError as error:
        raise ConfigError(f"backend='triton' needs the triton package: {error}") from error
    return TritonOps()


def _from_outside(name: str, *, exact: bool) -> Ops:
    """Of another package: its entry point is a function that takes `exact` and gives an `Ops`, or raises a
    ConfigError that says why not."""
    found = [point for point in entry_points(group=BACKEND_GROUP) if point.name == name]
    if not found:
        raise ConfigError(f"backend={name!r} is not one of {', '.join(backends())}")
    try:
        ops = found[0].load()(exact=exact)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"backend={name!r}, which {found[0].value} should give, fails: {error}") from error
    if not isinstance(ops, Ops) or ops.exact != exact:
        raise ConfigError(f"backend={name!r}: {found[0].value} gave {ops!r}, not an Ops with exact={exact}")
    return ops


def _swapped(orders: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Every state with its last two axes the other way round."""
    return {operation: (*order[:-2], order[-1], order[-2]) for operation, order in orders.items()}


def _angles(turn: Turn, step: StateStep, tokens: int) -> tuple[Tensor, Tensor]:
    """cos, sin [tokens, half], of the step's tokens."""
    at = step.positions_of(tokens)
    return step.once(("turn", id(turn.cos)), lambda: (turn.cos[at], turn.sin[at]))
