"""The capacity plan: what goes where, how much fits, what runs out first, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import EngineConfig, Limits, ModelFacts, pages_for
from ..resolve import TYPICAL_LEN, most_slots
from ..units import enough_bytes, format_bytes
from .sizing import Footprint, Parts


@dataclass(frozen=True)
class Units:
    """Bytes of one of each."""

    kv_token: int
    kv_page: int
    checkpoint: int
    row: int
    """Journals and rings of a running request."""
    draft_token: int
    """What one draft token more adds to them."""


@dataclass(frozen=True)
class Fit:
    """How many requests of `length` tokens, prompt and answer together, can run at once, and why not more."""

    length: int
    requests: int
    binds: str
    """rows, slots or pages: what runs out first"""
    option: str
    """The option that would change it."""
    change: str


@dataclass(frozen=True)
class CapacityPlan:
    config: EngineConfig
    limits: Limits
    parts: Parts
    steps: str
    """How it is known what steps take."""
    units: Units
    fits: tuple[Fit, ...]
    notes: tuple[str, ...]
    """Where less is possible than was asked for, or than the model could do."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Sizes are in bytes."""
        return {
            "options": asdict(self.config),
            "limits": asdict(self.limits),
            "bytes": asdict(self.parts) | {"total": self.parts.total},
            "steps": self.steps,
            "bytes_per": asdict(self.units),
            "kv_tokens": self.limits.num_pages * self.limits.page_size,
            "fits": [asdict(fit) for fit in self.fits],
            "notes": list(self.notes),
        }

    def render(self) -> str:
        config, lines = self.config, list(self._lines())
        width = max(len(name) for name, *_ in lines)
        table = [f"{name:<{width}}  {format_bytes(size):>9}  {told}".rstrip() for name, size, told in lines]
        fits = [f"requests of {f.length:,} tokens: {f.requests:,} at once; {f.change}" for f in self.fits]
        notes = [f"note: {note}" for note in self.notes]
        head = f"Capacity on {config.device}, {config.dtype}, recurrent state {config.state_dtype}"
        return "\n  ".join([head, *table, *fits, *notes])

    def _lines(self) -> Iterator[tuple[str, int, str]]:
        limits, parts, units, size = self.limits, self.parts, self.units, format_bytes
        pages = f"{limits.num_pages:,} pages of {size(units.kv_page)}"
        tokens = f"{limits.num_pages * limits.page_size:,} tokens of {size(units.kv_token)}"
        drafts = f"a further draft token adds {size(units.draft_token)}"
        if limits.max_drafts:
            drafts = f"{limits.max_drafts} drafts take {size(limits.max_drafts * units.draft_token)} of it, {drafts}"
        yield "weights", parts.weights, self._drafter()
        yield "KV", parts.kv, f"{pages}: {tokens}"
        slots = f"{limits.num_slots:,} slots of {size(units.checkpoint)}"
        kept = f", {limits.num_checkpoints:,} of them to keep prefixes" if limits.num_checkpoints else ""
        yield "checkpoints", parts.checkpoints, slots + kept
        yield "journals", parts.journals, f"{limits.max_num_seqs:,} rows of {size(units.row)}; {drafts}"
        yield "tables", parts.tables, f"{limits.max_model_len:,} positions for each row"
        yield (
            "activations",
            parts.activations,
            f"{self.steps}, {limits.max_num_batched_tokens:,} tokens a step",
        )
        if parts.graphs:
            yield (
                "graphs",
                parts.graphs,
                f"{self.steps}, recorded steps of up to {limits.max_num_seqs:,} requests",
            )
        if parts.sanitizer:
            yield "sanitizer", parts.sanitizer, f"{self.config.sanitizer}"
        yield "total", parts.total, self._share_of_memory()

    def _drafter(self) -> str:
        config = self.config.speculative_config
        return f"with the drafter's: {config.method}" if config and config.method != "ngram" else ""

    def _share_of_memory(self) -> str:
        limits, memory = self.limits, self.config.memory_bytes
        if memory is None:
            return ""
        useless = limits.num_pages > limits.max_num_seqs * limits.pages_per_row and memory > self.parts.total
        return f"of {format_bytes(memory)}" + (": more is of no use with these limits" if useless else "")


def make_plan(config: EngineConfig, facts: ModelFacts, limits: Limits, footprint: Footprint) -> CapacityPlan:
    row = footprint.row(limits.fold_every, limits.max_window)
    units = Units(
        kv_token=footprint.page(1),
        kv_page=footprint.page(limits.page_size),
        checkpoint=footprint.slot,
        row=row,
        draft_token=footprint.row(limits.fold_every, limits.max_window + 1) - row,
    )
    lengths = sorted({min(TYPICAL_LEN, limits.max_model_len), limits.max_model_len})
    return CapacityPlan(
        config=config,
        limits=limits,
        parts=footprint.parts(limits),
        steps=footprint.steps(limits).known,
        units=units,
        fits=tuple(_fit(length, config, limits, footprint) for length in lengths),
        notes=tuple(_notes(config, facts, limits, footprint)),
    )


def _fit(length: int, config: EngineConfig, limits: Limits, footprint: Footprint) -> Fit:
    # the last token is never absorbed, though drafts may be that follow the one before it
    pages_each = pages_for(length + limits.max_window - 2, limits.page_size)
    page = footprint.page(limits.page_size)
    most = {
        "rows": (limits.max_num_seqs, "max_num_seqs", _another_row(limits, footprint)),
        "slots": (limits.running_slots, "num_slots", footprint.slot),
        # one page is kept from newcomers while others run
        "pages": (max(1, (limits.num_pages - 1) // pages_each), "num_pages", pages_each * page),
    }
    if not limits.num_slots:
        del most["slots"]
    binds = min(most, key=lambda pool: most[pool][0])
    requests, option, each = most[binds]
    raised = option if getattr(config, option) is not None else "memory"
    return Fit(
        length, requests, binds, raised, f"{binds} bind first: raise {raised} ({format_bytes(each)} each)"
    )


def _another_row(limits: Limits, footprint: Footprint) -> int:
    """With the slot that goes with it."""
    more = replace(
        limits,
        max_num_seqs=limits.max_num_seqs + 1,
        num_slots=limits.num_slots + 1 if limits.num_slots else 0,
    )
    before, after = footprint.parts(limits), footprint.parts(more)
    return (after.total - after.activations) - (before.total - before.activations)


def _notes(config: EngineConfig, facts: ModelFacts, limits: Limits, footprint: Footprint) -> Iterator[str]:
    length, bound = limits.max_model_len, facts.max_positions
    if config.max_model_len is None and bound is None:
        yield f"max_model_len is {length:,}: the model itself has no bound, so set another if you need it"
    if config.max_model_len is None and bound is not None and length < bound:
        whole = replace(limits, max_model_len=bound, num_slots=most_slots(config, limits))
        whole = replace(whole, num_pages=max(limits.num_pages, whole.pages_per_row))
        needed = f"memory='{enough_bytes(footprint.parts(whole).total)}'"
        change = f"num_pages={whole.num_pages} and {needed}" if config.num_pages else needed
        yield (
            f"max_model_len is {length:,}, though the model has {bound:,} positions: no longer request fits; "
            f"the longest takes {change}"
        )
    if facts.recurrent and limits.running_slots < limits.max_num_seqs:
        yield (
            f"{limits.running_slots:,} of max_num_seqs={limits.max_num_seqs:,} requests run at once, for lack of "
            f"slots; raise {'num_slots' if config.num_slots else 'memory'}, or lower max_num_seqs, whose rows "
            "take memory too"
        )
    elif facts.recurrent and config.enable_prefix_caching and limits.num_checkpoints == 0:
        yield (
            "no prefix is kept for later requests, for lack of slots; "
            f"raise {'num_slots' if config.num_slots else 'memory'}, or say enable_prefix_caching=False"
        )
    if config.num_slots and not facts.recurrent:
        yield f"num_slots={config.num_slots} has no effect: the model has no recurrent state"
