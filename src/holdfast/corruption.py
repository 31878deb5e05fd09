"""What the sanitizer reports, and how it reaches whoever asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import RequestOutput


@dataclass(frozen=True)
class Finding:
    """Something that was done for `row` to the wrong place, or what should have been there and was not."""

    step: int
    what: str
    """read, write, publish, resume, cursor, padding or recomputation"""
    layer: str
    state: str
    row: int
    generation: int
    place: int
    """A slot; or a place in the rings or pages, counted through all rows or pages from 0."""
    expected: int
    """A position: how many of the row's tokens should lie behind what is there."""
    found: int | None
    """How many tokens do; -1: it is nobody's; None: it is not the content that is wrong."""

    def __str__(self) -> str:
        there = {None: "", -1: "; nothing is there"}.get(self.found, f"; position {self.found} is there")
        return (
            f"step {self.step}: {self.what} of {self.state} in layer {self.layer} at {self.place}, "
            f"for row {self.row} at position {self.expected}{there}"
        )


class StateCorruption(RuntimeError):
    """The state of these requests is not to be trusted, so they were ended. No other request is affected.

    outputs  of LLM.generate: every prompt's, in their order; those of the affected end with "error"
    """

    def __init__(
        self,
        request_ids: tuple[str, ...],
        findings: tuple[Finding, ...],
        outputs: tuple[RequestOutput, ...] = (),
    ) -> None:
        what = "; ".join(map(str, findings[:3])) + ("; ..." if len(findings) > 3 else "")
        super().__init__(f"request {', '.join(request_ids)}: {what}")
        self.request_ids = request_ids
        self.findings = findings
        self.outputs = outputs
