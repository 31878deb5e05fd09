"""What a model and its limits take in bytes, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from ..config import Limits, journal_capacity
from ..resolve import Costs
from ..units import format_bytes
from .kv_pool import KVPool
from .sanitizer import Sanitizer, one_row, stamp_bytes
from .spec import KVSpec, StateSpec
from .state_pool import StatePool

META = torch.device("meta")

ACTIVATION_COPIES = 10
"""Float32 values that live at once while a step's tokens pass a layer, in units of the widest layer's output:
measured with the reference operations on a GPU, 2.5 for short convolutions and 9.5 for gated delta nets."""
RECORDING_WORKSPACES = 148 << 20
"""That libraries of products take for the stream on which steps are recorded: as measured on an H200, torch 2.11."""
LOGITS_COPIES = 14
"""The same while tokens are chosen, in units of the logits: as measured with every kind of sampling at once."""


class Model(Protocol):
    """A model that has been laid out, on the meta device or a real one."""

    def state_dict(self, *, keep_vars: bool) -> Mapping[str, Any]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def state_specs(self) -> Mapping[str, StateSpec]: ...
    def kv_specs(self) -> Mapping[str, KVSpec]: ...
    @property
    def recordable(self) -> bool: ...


@dataclass(frozen=True)
class ModelSize:
    """What a model declares, counted without loading it.

    weights         bytes of all that files hold
    constants       bytes of what it computes once, such as rotary angles, but for
    position_bytes  which each position of the context adds
    widest          values that the widest layer gives for a token, the head aside
    recordable      no layer has to ask the device about a step of windows
    """

    weights: int
    constants: int
    position_bytes: int
    widest: int
    state: Mapping[str, StateSpec]
    kv: Mapping[str, KVSpec]
    recordable: bool = False


@dataclass(frozen=True)
class StepBytes:
    """What steps take beside all that stays: `Parts` says what for."""

    activations: int
    graphs: int
    known: str = "measured"
    """How."""


UNMEASURED = StepBytes(0, 0, "not measured yet")


@dataclass(frozen=True)
class Parts:
    """Bytes by what they are for. Padding is counted where it lies: row 0, slot 0, page 0."""

    weights: int
    kv: int
    checkpoints: int
    journals: int
    """And rings: what a running request appends to."""
    tables: int
    """Of rows and positions: tokens, pages, cursors, how to sample, rotary angles, a step's inputs."""
    activations: int
    """What the largest step works in; measured, also what libraries work in, and what torch rounds up."""
    graphs: int = 0
    """What recorded steps work in, and what they keep. Other steps cannot use it."""
    sanitizer: int = 0
    """Stamps; and, if it recomputes, a row's state and KV once more."""

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True)
class Footprint:
    """Bytes as a function of the limits.

    executor_tables  what the executor keeps for rows and steps; only it knows
    sanitizer        its mode
    records          are steps recorded?
    measured         what steps take, where that is known by more than an estimate
    """

    model: ModelSize
    executor_tables: Callable[[Limits], int]
    sanitizer: str = "off"
    records: bool = False
    measured: StepBytes | None = None

    def parts(self, limits: Limits) -> Parts:
        steps = self.steps(limits)
        return Parts(
            weights=self.model.weights,
            kv=(limits.num_pages + 1) * self.page(limits.page_size),
            checkpoints=(limits.num_slots + 1) * self.slot,
            journals=(limits.max_num_seqs + 1) * self.row(limits.fold_every, limits.max_window),
            tables=self._tables(limits),
            activations=steps.activations,
            graphs=steps.graphs,
            sanitizer=self._sanitizer(limits),
        )

    def steps(self, limits: Limits) -> StepBytes:
        if self.measured is not None:
            return self.measured
        graphs = self._graphs(limits) if self.records else 0
        return StepBytes(self._activations(limits), graphs, "an estimate")

    def page(self, page_size: int) -> int:
        """One page of KV, every attention layer's part of it; with page_size 1, one token."""
        return sum(spec.page_bytes(page_size) for spec in self.model.kv.values())

    @property
    def slot(self) -> int:
        """One checkpoint, every recurrent layer's part of it."""
        return sum(spec.slot_bytes() for spec in self.model.state.values())

    def row(self, fold_every: int, max_window: int) -> int:
        """Journals and rings of one running request."""
        capacity = journal_capacity(fold_every, max_window)
        return sum(spec.row_bytes(capacity, max_window) for spec in self.model.state.values())

    def costs(self, page_size: int) -> Costs:
        page, slot = self.page(page_size), self.slot
        if self.sanitizer != "off":
            page += stamp_bytes(len(self.model.kv) * page_size)
            slot += stamp_bytes(sum(len(spec.names) for spec in self.model.state.values()))

        def fixed(limits: Limits) -> int:
            return self.parts(limits).total - limits.num_pages * page - limits.num_slots * slot

        return Costs(weights=self.model.weights, page=page, slot=slot, fixed=fixed, steps=self._told)

    def _told(self, limits: Limits) -> str:
        steps = self.steps(limits)
        taken = format_bytes(steps.activations + steps.graphs)
        return "" if steps is UNMEASURED else f", of which {taken} for steps to work in ({steps.known})"

    def _tables(self, limits: Limits) -> int:
        pools = held_bytes(KVPool({}, limits, META), StatePool({}, limits, META))
        positions = self.model.constants + self.model.position_bytes * max_positions(limits)
        return pools + positions + self.executor_tables(limits)

    def _sanitizer(self, limits: Limits) -> int:
        if self.sanitizer == "off":
            return 0
        held = held_bytes(Sanitizer(*self._pools(limits), limits))
        return held + (held_bytes(*self._pools(one_row(limits))) if self.sanitizer == "full" else 0)

    def _pools(self, limits: Limits) -> tuple[StatePool, KVPool]:
        """Laid out, but not allocated."""
        return StatePool(self.model.state, limits, META), KVPool(self.model.kv, limits, META)

    def _activations(self, limits: Limits) -> int:
        layer = limits.max_num_batched_tokens * self.model.widest * ACTIVATION_COPIES
        choices = min(limits.max_num_seqs * limits.max_window, limits.max_num_batched_tokens)
        choice = choices * limits.vocab_size * LOGITS_COPIES
        return torch.float32.itemsize * max(layer, choice)

    def _graphs(self, limits: Limits) -> int:
        """The largest shape's: the others are recorded into the same memory. Kernels choose from the logits as they
        lie, without a copy."""
        tokens = limits.max_num_seqs * limits.max_window
        values = tokens * (self.model.widest * ACTIVATION_COPIES + limits.vocab_size)
        return RECORDING_WORKSPACES + torch.float32.itemsize * values


def max_positions(limits: Limits) -> int:
    """Positions that a model may be asked for: a window may pass the last token that is kept."""
    return limits.max_model_len + limits.max_window


def measure(lay_out: Callable[[int], Model], vocab_size: int) -> ModelSize:
    """`lay_out` gives the model for so many positions. Two of them show what a position takes."""
    model = lay_out(1)
    stored = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    one, two = _computed_bytes(model), _computed_bytes(lay_out(2))
    widths = (_width(tensor) for tensor in stored.values() if tensor.ndim == 2)
    return ModelSize(
        weights=sum(tensor.untyped_storage().nbytes() for tensor in stored.values()),
        constants=2 * one - two,
        position_bytes=two - one,
        widest=max((width for width in widths if width != vocab_size), default=0),
        state=model.state_specs(),
        kv=model.kv_specs(),
        recordable=model.recordable,
    )


def _width(weight: Tensor) -> int:
    """Values that it gives for a token; of a merged one, the widest part does, for layers take it apart again."""
    if ways := getattr(weight, "ways", None):
        return max(len(range(weight.shape[0])[part.at[0]]) for part in ways()[0].values())
    return weight.shape[0]


def _computed_bytes(model: Model) -> int:
    stored = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
    return sum(buffer.nbytes for buffer in model.buffers() if id(buffer) not in stored)


def held_bytes(*holders: object) -> int:
    """Bytes of all the tensors that these objects hold, however deep, each counted once, whatever views there are."""
    stored: dict[int, int] = {}
    seen: set[int] = set()
    left = list(holders)
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            stored[storage._cdata] = storage.nbytes()
        elif isinstance(item, Mapping):
            left += item.values()
        elif isinstance(item, (list, tuple)):
            left += item
        elif type(item).__module__.startswith("holdfast."):
            left += getattr(item, "__dict__", {}).values()
    return sum(stored.values())
