"""The matrix: each cell is one thing that the engine can do, and the traffic that makes it do so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLAIN: Mapping[str, Any] = {"overlap": False, "enable_prefix_caching": False}
"""One request at a time, its prompt whole, nothing overlapped or reused: what every cell is compared with."""


@dataclass(frozen=True)
class Traffic:
    """How requests arrive."""

    gap: int | None = 0
    """Turns of the engine between arrivals; None: each comes when the one before has ended."""
    rounds: int = 1
    """How often the same requests come."""
    leavers: bool = False
    """Others come between them, and are cancelled: waiting, running or in flight."""


ALONE, TOGETHER, STAGGERED = Traffic(gap=None), Traffic(), Traffic(gap=3)
LEAVING = Traffic(gap=2, leavers=True)
TWICE = Traffic(gap=1, rounds=2)


@dataclass(frozen=True)
class Cell:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What differs from PLAIN."""
    traffic: Traffic = TOGETHER
    must: tuple[str, ...] = ()
    """What has to happen, or the cell shows nothing: "pre-emptions", "cancellations", "hits", "drafts", "masks"."""
    tight: bool = False
    """Pages for the longest request, and hardly another."""
    quick: bool = False
    drafter: bool = False
    """With the one that the user names."""
    structured: bool = False
    """Every other answer must have a form."""

    @property
    def exact(self) -> bool:
        """Compared bit by bit with the plain path in exact mode."""
        return bool(self.options.get("exact"))


OVERLAP = {"overlap": True}
REUSE = {"enable_prefix_caching": True}
SMALL_PAGES = {"page_size": 16}
SMALL_CHUNKS = {"max_num_batched_tokens": 7}
WINDOWS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
EVERYTHING = {**OVERLAP, **REUSE, **SMALL_PAGES, **WINDOWS, "max_num_batched_tokens": 40}

_NORMAL = (
    Cell("together", quick=True),
    Cell("staggered", traffic=STAGGERED),
    Cell("cancelled-company", OVERLAP, LEAVING, must=("cancellations",), quick=True),
    Cell("chunks-of-1", {"max_num_batched_tokens": 1}),
    Cell("chunks-of-7", SMALL_CHUNKS, quick=True),
    Cell("chunks-of-64", {"max_num_batched_tokens": 64}),
    Cell("chunks-of-100", {"max_num_batched_tokens": 100}, STAGGERED),
    Cell("overlap", OVERLAP, STAGGERED, quick=True),
    Cell("two-rows", {"max_num_seqs": 2, **OVERLAP}, LEAVING, must=("cancellations",)),
    Cell("windows-of-5", WINDOWS, STAGGERED, quick=True),
    Cell(
        "windows-of-16",
        {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 15},
            "max_num_batched_tokens": 40,
        },
    ),
    Cell("small-pages", SMALL_PAGES),
    Cell("folds-of-8", {"fold_every": 8, "page_size": 32}, quick=True),
    Cell("opposite-axes", {"backend": "reference_kv"}),
    Cell("pre-empted", SMALL_PAGES, must=("pre-emptions",), tight=True, quick=True),
    Cell("pre-empted-overlap", SMALL_PAGES | OVERLAP, STAGGERED, ("pre-emptions",), tight=True),
    Cell("hits", REUSE, TWICE, must=("hits",), quick=True),
    Cell("hits-alone", REUSE | SMALL_PAGES, ALONE, must=("hits",)),
    Cell("hits-few-slots", REUSE | SMALL_PAGES | OVERLAP | {"num_slots": 10}, TWICE, ("hits",)),
    Cell("hits-pre-empted", REUSE | SMALL_PAGES | OVERLAP, TWICE, ("hits", "pre-emptions"), tight=True),
    Cell(
        "sanitized", {**EVERYTHING, "sanitizer": "full"}, Traffic(2, 1, True), ("cancellations",), tight=True
    ),
    Cell("everything", EVERYTHING, Traffic(2, 2, True), ("pre-emptions", "cancellations"), True, True),
    Cell("structured", OVERLAP | WINDOWS, STAGGERED, ("masks", "drafts"), quick=True, structured=True),
    Cell(
        "structured-pre-empted",
        OVERLAP | SMALL_PAGES | REUSE,
        Traffic(2, 2, True),
        ("masks", "pre-emptions", "cancellations", "hits"),
        tight=True,
        structured=True,
    ),
    Cell("drafter", {}, STAGGERED, must=("drafts",), drafter=True, quick=True),
    Cell(
        "drafter-pre-empted", SMALL_PAGES | OVERLAP, must=("drafts", "pre-emptions"), tight=True, drafter=True
    ),
    Cell("drafter-hits", REUSE | SMALL_PAGES, TWICE, must=("drafts", "hits"), drafter=True, quick=True),
    Cell(
        "drafter-structured",
        OVERLAP,
        STAGGERED,
        must=("drafts", "masks"),
        drafter=True,
        structured=True,
    ),
    Cell(
        "drafter-sanitized",
        {**OVERLAP, **REUSE, **SMALL_PAGES, "max_num_batched_tokens": 40, "sanitizer": "full"},
        Traffic(2, 2, True),
        must=("drafts", "cancellations"),
        tight=True,
        drafter=True,
    ),
)

# Any fold of exact mode is on the absolute grid, so another grid would be another order of the same sums.
_EXACT = (
    Cell("exact-together", {}, quick=True),
    Cell("exact-cancelled-company", OVERLAP, LEAVING, must=("cancellations",)),
    Cell("exact-chunks-of-7", SMALL_CHUNKS),
    Cell("exact-windows-of-5", WINDOWS, STAGGERED),
    Cell("exact-pre-empted", SMALL_PAGES | OVERLAP, must=("pre-emptions",), tight=True),
    Cell("exact-hits", REUSE | OVERLAP, TWICE, must=("hits",)),
    Cell("exact-structured", OVERLAP | WINDOWS, STAGGERED, ("masks", "drafts"), structured=True),
    Cell("exact-drafter", SMALL_PAGES | OVERLAP, STAGGERED, ("drafts",), drafter=True),
    Cell("exact-everything", EVERYTHING, Traffic(2, 2, True), ("pre-emptions", "cancellations"), True, True),
)

CELLS: tuple[Cell, ...] = (
    *_NORMAL,
    *(Cell(**{**vars(cell), "options": {**cell.options, "exact": True}}) for cell in _EXACT),
)

LIBRARY = "transformers"
"""One more cell: the plain path itself, held against the transformers library."""


def cell_names(*, quick: bool = False, drafter: bool = True) -> list[str]:
    """drafter: also those that need one"""
    chosen = (cell for cell in CELLS if (cell.quick or not quick) and (drafter or not cell.drafter))
    return [cell.name for cell in chosen] + [LIBRARY]
