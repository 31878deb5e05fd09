"""The prefix tree: a node for each page of tokens that somebody computed, and perhaps a checkpoint at its end.

A node is found by the chain hash of all tokens up to its end. It is *pinned* by every request whose tokens begin
so, and so a parent has at least the pins of its children; without pins it is idle, and may be evicted.
Requests that computed the same page beside each other each read their own. The tree has one of them: when nobody
reads that one any more, another takes its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..ids import PAD_SLOT, Page, Row, Slot
from .chain import ROOT, Label
from .free_list import OwnershipError
from .pages import Pages
from .policy import Policy


@dataclass(eq=False, slots=True)
class Node:
    parent: Node | None = field(repr=False)
    label: Label
    page: Page
    children: dict[bytes, Node] = field(default_factory=dict, repr=False)
    pins: int = 0
    spares: dict[Row, Page] = field(default_factory=dict)
    """Of rows that pin the node, but read a page of their own."""
    stale: bool = False
    """Made before a reset: nobody finds it, and it is given back with its last pin."""

    slot: Slot = PAD_SLOT
    """A checkpoint at the end of the page."""
    readers: int = 0
    """Rows that read it: it stays as long as they do."""
    hits: int = 0
    used_at: int = 0
    above: Node | None = field(default=None, repr=False)
    """The nearest checkpoint before this one."""
    below: dict[Node, None] = field(default_factory=dict, repr=False)
    """Checkpoints whose nearest this one is."""

    @property
    def saved(self) -> int:
        """Tokens that would be recomputed without this checkpoint."""
        return self.label.position - (self.above.label.position if self.above else 0)


@dataclass(frozen=True)
class Match:
    """How far a prompt is known already."""

    nodes: tuple[Node, ...] = ()
    """Up to the resumable length, and no further: what lies beyond is recomputed, into other pages."""
    kv_len: int = 0
    """KV was found this far; there may be no checkpoint so deep."""
    slot: Slot = PAD_SLOT
    refused: str = ""
    """Why nothing of it may be used."""

    @property
    def label(self) -> Label:
        """What the checkpoint must say of itself."""
        return self.nodes[-1].label if self.nodes else ROOT

    @property
    def resumable_len(self) -> int:
        return self.label.position

    @property
    def pages(self) -> tuple[Page, ...]:
        return tuple(node.page for node in self.nodes)

    @property
    def outcome(self) -> str:
        """Why not more is resumed. One of a few sentences, for counting."""
        if self.refused:
            return self.refused
        if not self.kv_len:
            return "no page of this prompt was computed before"
        whole = self.resumable_len == self.kv_len
        return "as far as the prompt was computed before" if whole else "no checkpoint in between"

    @property
    def reason(self) -> str:
        """For the one who asked: why so much, and why not more."""
        if not self.kv_len:
            return self.outcome
        if self.resumable_len == self.kv_len:
            return f"resumed at {self.resumable_len:,}, {self.outcome}"
        return f"matched {self.kv_len:,} tokens of KV, resumed at {self.resumable_len:,}: {self.outcome}"


COLD = Match()


class RadixTree:
    def __init__(self, pages: Pages, *, recurrent: bool, policy: Policy) -> None:
        self._pages = pages
        self._recurrent = recurrent
        self._policy = policy
        self._root = Node(None, ROOT, Page(0), pins=1)
        # Oldest first, and so every child before its parent. (A dict would pass over all that went before the first.)
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._checkpoints: dict[Slot, Node] = {}
        self._nodes = 0
        self._read = 0
        self._clock = 0

    # --- finding ---

    def match(self, chain: Sequence[bytes], pages: int) -> Match:
        """The deepest position, at most `pages` pages, that has both its checkpoint and all KV before it."""
        path = list(self._walk(chain, pages))
        kept = len(path)
        while self._recurrent and kept and path[kept - 1].slot == PAD_SLOT:
            kept -= 1
        return Match(
            nodes=tuple(path[:kept]),
            kv_len=path[-1].label.position if path else 0,
            slot=path[kept - 1].slot if kept else PAD_SLOT,
        )

    def has_checkpoint(self, path: Sequence[Node], chain: Sequence[bytes], pages: int) -> bool:
        """After so many pages of `chain`, whose first nodes are `path`."""
        if pages <= len(path):
            return path[pages - 1].slot != PAD_SLOT
        beyond = list(self._walk(chain[len(path) :], pages - len(path), path[-1] if path else None))
        return len(path) + len(beyond) == pages and beyond[-1].slot != PAD_SLOT

    def _walk(self, chain: Sequence[bytes], pages: int, start: Node | None = None) -> Iterator[Node]:
        node: Node | None = start or self._root
        for key in chain[:pages]:
            node = node.children.get(key) if node else None
            if node is None:
                return
            yield node

    # --- pages ---

    def pin(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if not node.pins:
                del self._idle[node]
            node.pins += 1

    def unpin(self, nodes: Sequence[Node], row: Row) -> list[Node]:
        """From the deepest up. Returns stale nodes that nobody holds any more."""
        gone = []
        for node in reversed(nodes):
            if not node.pins:
                raise OwnershipError(f"page {node.page} is unpinned once too often")
            node.pins -= 1
            node.spares.pop(row, None)
            if node.pins:
                self._swap_unread(node)
            elif node.stale:
                self._unlink(node)
                gone.append(node)
            else:
                self._idle[node] = None
        return gone

    def publish(self, parent: Node | None, label: Label, page: Page, row: Row) -> Node:
        """The node for this content below `parent`, pinned. The row goes on reading its own page."""
        parent = parent or self._root
        node = parent.children.get(label.chain)
        if node is None:
            node = parent.children[label.chain] = Node(parent, label, page, pins=1)
            self._nodes += 1
            self._pages.publish(page, row)
        else:
            self.pin((node,))
            node.spares[row] = page
            self._swap_unread(node)
        return node

    def _swap_unread(self, node: Node) -> None:
        if node.spares and len(node.spares) == node.pins:
            row, page = next(iter(node.spares.items()))
            del node.spares[row]
            self._pages.forget(node.page)
            self._pages.publish(page, row)
            node.page = page

    @property
    def num_pages(self) -> int:
        return self._nodes

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def evict_page(self) -> Node:
        """The idle page that was used least recently, always one at the end of its path."""
        node = next(iter(self._idle), None)
        if node is None:
            raise OwnershipError("no page is idle, so none can be evicted")
        del self._idle[node]
        self._unlink(node)
        return node

    def reset(self) -> list[Node]:
        """Forget everything. Returns what nobody holds; the rest comes back as it is let go."""
        gone = [self.evict_page() for _ in range(len(self._idle))]
        held = list(self._root.children.values())
        self._root.children = {}
        while held:
            node = held.pop()
            node.stale = True
            held += node.children.values()
        return gone

    def _unlink(self, node: Node) -> None:
        if node.children or node.readers or node.parent is None:
            raise OwnershipError(f"page {node.page} is still needed")
        if node.parent.children.get(node.label.chain) is node:  # after a reset another may have its place
            del node.parent.children[node.label.chain]
        self._pages.forget(node.page)
        self._nodes -= 1

    # --- checkpoints ---

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints)

    @property
    def num_read(self) -> int:
        """Checkpoints that rows read."""
        return self._read

    def tick(self) -> None:
        """Time passes with each admission."""
        self._clock += 1

    def consume(self, node: Node) -> None:
        """A request resumes here. Only this checkpoint is fresh again: those above it were of no use."""
        node.hits += 1
        node.used_at = self._clock
        self.read(node)

    def read(self, node: Node) -> None:
        node.readers += 1
        self._read += node.readers == 1

    def unread(self, node: Node) -> None:
        if not node.readers:
            raise OwnershipError(f"nobody reads the checkpoint at {node.label.position}")
        node.readers -= 1
        self._read -= node.readers == 0

    def attach(self, node: Node, slot: Slot) -> None:
        if node.slot != PAD_SLOT or node.stale:
            raise OwnershipError(f"slot {slot} is not wanted at {node.label.position}")
        node.slot, node.used_at, node.hits = slot, self._clock, 0
        self._checkpoints[slot] = node
        node.above = self._nearest(node.parent)
        siblings = node.above.below if node.above else None
        candidates = siblings if siblings is not None else self._tops()
        if node.children:
            for other in [c for c in candidates if c is not node and self._is_under(c, node)]:
                self._hang(other, node)
        if node.above:
            node.above.below[node] = None

    def detach(self, node: Node) -> Slot:
        """The checkpoint's slot, which is nobody's then."""
        if node.slot == PAD_SLOT or node.readers:
            raise OwnershipError(f"no checkpoint at {node.label.position} can be taken away")
        for other in list(node.below):
            self._hang(other, node.above)
        if node.above:
            del node.above.below[node]
        slot, node.slot, node.above = node.slot, PAD_SLOT, None
        del self._checkpoints[slot]
        return slot

    def weakest(self) -> Node | None:
        """The checkpoint to give up if one must go: nobody reads it, and it scores least."""
        idle = (node for node in self._checkpoints.values() if not node.readers)
        return min(idle, key=self._score, default=None)

    def surplus(self, node: Node) -> Node | None:
        """If the path down to `node` holds too many checkpoints, the one before it to give up."""
        path = []
        at: Node | None = node
        while at:
            path.append(at)
            at = at.above
        if len(path) <= self._policy.per_path:
            return None
        others = (n for n in path[1:] if not n.readers and len(n.below) < 2)
        return min(others, key=self._score, default=None)

    def _score(self, node: Node) -> float:
        return self._policy.score(saved=node.saved, age=self._clock - node.used_at, hits=node.hits)

    def _nearest(self, node: Node | None) -> Node | None:
        while node and node.slot == PAD_SLOT:
            node = node.parent
        return node

    def _tops(self) -> list[Node]:
        return [node for node in self._checkpoints.values() if node.above is None]

    @staticmethod
    def _is_under(node: Node, top: Node) -> bool:
        at: Node | None = node
        while at and at.label.position > top.label.position:
            at = at.parent
        return at is top

    @staticmethod
    def _hang(node: Node, above: Node | None) -> None:
        if node.above:
            del node.above.below[node]
        node.above = above
        if above:
            above.below[node] = None

    # --- for those who check it ---

    def nodes(self) -> Iterator[Node]:
        """Every node that can be found."""
        left = list(self._root.children.values())
        while left:
            node = left.pop()
            yield node
            left += node.children.values()

    def idle(self) -> Iterator[Node]:
        """Those that would be evicted, in that order."""
        return iter(self._idle)

    def checkpoints(self) -> Iterator[tuple[Slot, Node]]:
        return iter(self._checkpoints.items())
