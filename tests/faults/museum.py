"""All faults, room by room."""

from __future__ import annotations

from . import (
    branches,
    changing_depth,
    drafters,
    forms,
    reuse,
    stale_tenant,
    uncertain_tokens,
    wrong_content,
    wrong_place,
    wrong_position,
)
from .fault import Fault

ROOMS: dict[str, tuple[Fault, ...]] = {
    "The state of somebody else": wrong_place.FAULTS,
    "The state of another time": wrong_position.FAULTS,
    "What the last tenant left": stale_tenant.FAULTS,
    "Prefixes shared too early, too late, or under the wrong label": reuse.FAULTS,
    "Tokens that may be rejected": uncertain_tokens.FAULTS,
    "Drafts that branch": branches.FAULTS,
    "A depth that changes": changing_depth.FAULTS,
    "The right place with the wrong bytes": wrong_content.FAULTS,
    "Answers that must have a form": forms.FAULTS,
    "Worse drafts": drafters.FAULTS,
}
FAULTS: tuple[Fault, ...] = tuple(fault for faults in ROOMS.values() for fault in faults)
