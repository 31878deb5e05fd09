"""Which slot holds which state: own slots of running rows, slots promised to their folds, checkpoints in the tree.

There is always a slot for a row that may run: checkpoints that rows read or will write are never more than
`num_checkpoints`, and the others make way. A checkpoint that finds no slot is skipped, and counted.
"""

from __future__ import annotations

from ..config import Limits
from ..ids import PAD_SLOT, Row, Slot
from ..plan import Grant
from .chain import chain_of
from .free_list import OwnershipError
from .holding import Holding, Reading
from .radix import Match, Node, RadixTree
from .slots import Slots
from .stats import CacheCounters


class Checkpoints:
    def __init__(
        self, limits: Limits, tree: RadixTree, slots: Slots, counters: CacheCounters, *, kept: bool
    ) -> None:
        self._limits = limits
        self._tree = tree
        self._slots = slots
        self._counters = counters
        self._kept = kept

    # --- taking ---

    @property
    def may_promise(self) -> bool:
        """May one more checkpoint be kept from running requests?"""
        return self._tree.num_read + self._slots.num_granted < self._limits.num_checkpoints

    def take_own(self, row: Row) -> Slot:
        if not self._limits.num_slots:
            return PAD_SLOT
        if not self._slots.free and not self._evict():
            raise OwnershipError("no slot is left for a request that may run")
        return self._slots.take(row)

    def promise(self, holding: Holding, line: int) -> Grant | None:
        """A slot for the row's state at `line`. None if there is none, or that state is there already."""
        if line < 1 or line % self._limits.page_size:
            raise ValueError(f"line {line} is not a page boundary, so no KV could go with its checkpoint")
        if not (self._kept and holding.publishes):
            return None
        chain = chain_of(holding.request, self._limits.page_size)
        if self._tree.has_checkpoint(holding.path, chain, line // self._limits.page_size):
            return None
        if not self.may_promise or not (self._slots.free or self._evict()):
            self._counters.skipped += 1
            return None
        self._counters.granted += 1
        return Grant(holding.row, holding.generation, self._slots.grant(holding.row), line)

    def consume(self, match: Match) -> Reading | None:
        if match.slot == PAD_SLOT:
            return None
        node = match.nodes[-1]
        self._slots.verify(match.slot, node.label)
        self._tree.consume(node)
        return Reading(match.slot, match.resumable_len, node)

    def _evict(self) -> bool:
        node = self._tree.weakest()
        if node is None:
            return False
        self.drop(node)
        self._counters.evicted_checkpoints += 1
        return True

    # --- what a step reports ---

    def publish(self, holding: Holding, grant: Grant) -> None:
        """The row's state is in the slot that it was promised, and its pages are in the tree."""
        reads = self._settle(holding, grant)
        node = self._place_for(holding, grant.line)
        if node is not None:
            self._slots.label_granted(grant.slot, holding.row, node.label)
            self._attach(node, grant.slot)
        elif not reads:
            self._slots.release_grant(grant.slot, holding.row)
        if reads:  # and never again from an earlier one
            self.stop_reading(holding)
            holding.reading = Reading(grant.slot, grant.line, node)
            if node is not None:
                self._tree.read(node)
                self._replace_left(holding, node)

    def take_back(self, holding: Holding, grant: Grant) -> None:
        """The row did not fold at the line."""
        self._settle(holding, grant)
        self._slots.release_grant(grant.slot, holding.row)
        self._counters.missed += 1

    def stop_reading(self, holding: Holding) -> None:
        reading, holding.reading = holding.reading, None
        if reading and reading.node:
            self._tree.unread(reading.node)
        elif reading:
            self._slots.release_grant(reading.slot, holding.row)

    @staticmethod
    def _settle(holding: Holding, grant: Grant) -> bool:
        """True if it was a window's: the row reads on from the slot it filled."""
        if holding.grant == grant:
            holding.grant = None
            return True
        if grant not in holding.exports:
            raise OwnershipError(f"the device reports {grant}; outstanding is {holding.grant}")
        holding.exports.remove(grant)
        return False

    def _place_for(self, holding: Holding, line: int) -> Node | None:
        """The node where a checkpoint at `line` belongs; None if it has one, or nobody may find it."""
        pages = line // self._limits.page_size
        if not holding.publishes or len(holding.path) < pages:
            return None
        node = holding.path[pages - 1]
        return node if node.slot == PAD_SLOT else None

    def _attach(self, node: Node, slot: Slot) -> None:
        self._tree.attach(node, slot)
        self._counters.published += 1
        if surplus := self._tree.surplus(node):
            self._replace(surplus)

    def _replace_left(self, holding: Holding, node: Node) -> None:
        """Nobody asked for the line that the answer left before, and who would can ask for this one."""
        if node.label.position <= len(holding.request.prompt):
            return
        left, holding.left = holding.left, node
        if left and left.slot != PAD_SLOT and not (left.readers or left.hits) and len(left.children) < 2:
            self._replace(left)

    def _replace(self, node: Node) -> None:
        self.drop(node)
        self._counters.replaced_checkpoints += 1

    # --- giving back ---

    def give_back(self, holding: Holding) -> None:
        """All slots of a row that has gone."""
        self._hand_over(holding)
        self.stop_reading(holding)
        for grant in holding.grants():
            self._slots.release_grant(grant.slot, holding.row)
        if holding.own_slot != PAD_SLOT:
            self._slots.release(holding.own_slot, holding.row)

    def drop(self, node: Node) -> None:
        """The node's checkpoint, if it has one."""
        if node.slot != PAD_SLOT:
            self._slots.forget(self._tree.detach(node))

    def _hand_over(self, holding: Holding) -> None:
        """If the row's own slot holds a state that others can resume from, it stays as a checkpoint."""
        in_own_slot = holding.base > (holding.reading.position if holding.reading else 0)
        if not (self._kept and in_own_slot) or holding.base % self._limits.page_size:
            return
        if node := self._place_for(holding, holding.base):
            self._slots.label_running(holding.own_slot, holding.row, node.label)
            self._attach(node, holding.own_slot)
            self._replace_left(holding, node)
            holding.own_slot = PAD_SLOT
