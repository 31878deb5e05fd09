"""The checks' kernels, launched."""

from __future__ import annotations

import triton
from torch import Tensor

from ..acceptance.reference import Drafts
from ..step import StateStep
from . import kernels
from .ledger import Ledger, Meant

BLOCK, BLOCKS = 1024, 4
"""Positions that a program compares at a time, and how often at the most."""


def check_cursors(
    found: Tensor, ledger: Ledger, step: StateStep, tokens: Tensor, drafts: Tensor, *, missing: int
) -> None:
    """The first of a step. missing: the number of a state that no operation used, or -1"""
    kernels.cursors[(len(step.rows),)](
        found, missing, ledger.meant, ledger.meant.stride(0),
        step.rows, step.counts, step.position, drafts, tokens,
        ledger.stand, ledger.chain, ledger.chain.stride(0), ledger.keys, len(ledger.keys), step.longest_window,
        num_warps=1,
    )  # fmt: skip


def extend(found: Tensor, ledger: Ledger, step: StateStep, drafts: Tensor) -> None:
    """The first of what was done to make drafts [lanes, depth]."""
    kernels.drafted[(len(step.rows),)](
        found, step.rows, step.position, drafts, drafts.shape[1],
        ledger.stand, ledger.chain, ledger.chain.stride(0), ledger.keys, len(ledger.keys), num_warps=1,
    )  # fmt: skip


def check_recurrent(
    found: Tensor,
    ledger: Ledger,
    meant: Meant,
    step: StateStep,
    states: Tensor,
    ring: Tensor,
    slots: Tensor,
    reach: int,
) -> None:
    """ring [its states, rows * capacity], slots [all states, slots]: stamps; states [n, 2]: which of both"""
    capacity = ring.shape[1] // len(ledger.stand)
    kernels.recurrent[(len(step.rows), len(states))](
        found, states, ring, ring.stride(0), slots, slots.stride(0),
        meant.rows, meant.tokens, step.rows, step.counts, step.position, step.base, step.read_slot, step.end_base,
        step.write_slot, _ahead(step), ledger.stand, ledger.tickets, ledger.slot_owner,
        ledger.chain, ledger.chain.stride(0),
        CAP=capacity, BC=triton.next_power_of_2(capacity), REACH=reach,
        BT=triton.next_power_of_2(step.longest_window), num_warps=1,
    )  # fmt: skip


def check_paged(
    found: Tensor,
    ledger: Ledger,
    meant: Meant,
    step: StateStep,
    states: Tensor,
    stamps: Tensor,
    pages: Tensor,
    page_size: int,
    *,
    first_state: int,
) -> None:
    """stamps [layers, pages * page_size]; pages: the table; first_state: the number that a finding has for layer 0"""
    blocks = triton.cdiv(pages.shape[1] * page_size, BLOCK)
    parts = triton.cdiv(blocks, BLOCKS)
    kernels.paged[(len(step.rows), len(states), parts)](
        found, states, first_state, stamps, stamps.stride(0), pages, pages.stride(0),
        meant.rows, meant.tokens, step.rows, step.counts, step.position,
        _ahead(step), ledger.stand, ledger.tickets, ledger.page_owner, ledger.chain, ledger.chain.stride(0),
        PAGE=page_size, BLOCK=BLOCK, BLOCKS=min(blocks, BLOCKS),
        BT=triton.next_power_of_2(step.longest_window), num_warps=4,
    )  # fmt: skip


def _ahead(step: StateStep) -> int:
    """How far beyond their rows lanes begin, of a step that only looks there."""
    return step.ahead - step.longest_window if step.ahead else 0


def check_accepted(
    found: Tensor,
    ledger: Ledger,
    step: StateStep,
    slots: Tensor,
    *,
    drafts: Drafts,
    accepted: Tensor,
    chosen: Tensor,
    used: Tensor,
    nobody: int,
) -> None:
    """The last of a step: then rows stand behind it. accepted, used: by lane; nobody: who owns what is published"""
    kernels.accepted[(len(step.rows),)](
        found, ledger.meant, ledger.meant.stride(0),
        step.rows, drafts.drafts, drafts.first, drafts.tell, accepted, chosen,
        ledger.stand, ledger.chain, ledger.chain.stride(0), ledger.keys, len(ledger.keys),
        used, ledger.granted, ledger.granted.stride(0), slots, slots.stride(0), len(slots), ledger.slot_owner,
        NOBODY=nobody, BS=triton.next_power_of_2(max(1, len(slots))), num_warps=1,
    )  # fmt: skip
