"""Is the prefix tree what it should be?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..ids import PAD_SLOT
from .radix import Node, RadixTree


def tree_faults(tree: RadixTree, page_size: int, held: Sequence[Sequence[Node]]) -> list[str]:
    """What is wrong with the tree, if `held` are the paths that requests hold."""
    pins = Counter(node for path in held for node in path)
    nodes = dict.fromkeys([*tree.nodes(), *pins])
    idle = {node: place for place, node in enumerate(tree.idle())}
    at_slot = dict(tree.checkpoints())
    found: list[str] = []
    for node in nodes:
        found += _link_faults(node, page_size)
        found += _pin_faults(node, pins[node], node in idle)
        if node.slot != PAD_SLOT and at_slot.get(node.slot) is not node:
            found.append(f"{_name(node)} has a checkpoint that nobody knows")
        if node.slot != PAD_SLOT and node.above is not _checkpoint_before(node):
            found.append(f"{_name(node)} does not know the checkpoint before it")
    for node, place in idle.items():
        if any(idle.get(child, len(idle)) > place for child in node.children.values()):
            found.append(f"{_name(node)} would be evicted before one that follows it")
    found += [f"slot {slot} is not where it should be" for slot, node in at_slot.items() if node.slot != slot]
    if len(nodes) != tree.num_pages:
        found.append(f"{tree.num_pages} nodes are counted, {len(nodes)} are there")
    return found


def _link_faults(node: Node, page_size: int) -> Iterator[str]:
    parent = node.parent
    if parent is None or node.label.position != parent.label.position + page_size:
        yield f"{_name(node)} does not follow its parent"
    elif not node.stale and parent.children.get(node.label.chain) is not node:
        yield f"{_name(node)} is not its parent's"
    elif parent.pins < node.pins and parent.parent is not None:
        yield f"{_name(node)} is held, and the page before it is not"


def _pin_faults(node: Node, holders: int, idle: bool) -> Iterator[str]:
    if node.pins != holders:
        yield f"{_name(node)} has {node.pins} pins and {holders} holders"
    if idle != (not node.pins and not node.stale):
        yield f"{_name(node)} has {node.pins} pins, and is {'' if idle else 'not '}idle"
    if node.spares and len(node.spares) >= node.pins:
        yield f"{_name(node)} is read by nobody, though {len(node.spares)} have it"
    if node.readers and node.slot == PAD_SLOT:
        yield f"{_name(node)} has readers of no checkpoint"


def _checkpoint_before(node: Node) -> Node | None:
    before = node.parent
    while before and before.slot == PAD_SLOT:
        before = before.parent
    return before


def _name(node: Node) -> str:
    return f"page {node.page} at {node.label.position}"
