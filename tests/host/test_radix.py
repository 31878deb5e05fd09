"""The tree alone: what it finds, what it keeps, what goes first."""

from __future__ import annotations

import pytest

from holdfast.cache.chain import Label
from holdfast.cache.free_list import OwnershipError
from holdfast.cache.pages import Pages
from holdfast.cache.policy import Policy
from holdfast.cache.radix import COLD, Match, Node, RadixTree
from holdfast.cache.tree_check import tree_faults
from holdfast.ids import Row, Slot

PAGE = 4
ROW = Row(1)


class Grown:
    """A tree whose paths are words: each letter stands for a page, and a path is named by the letters so far."""

    def __init__(self, *, recurrent: bool = True, pages: int = 32, **policy: int) -> None:
        self.pages = Pages(pages)
        self.tree = RadixTree(self.pages, recurrent=recurrent, policy=Policy(**policy))
        self.held: dict[str, list[Node]] = {}
        self.slots = 0

    def add(self, word: str, row: Row = ROW) -> list[Node]:
        """Somebody computes these pages, and holds them."""
        path: list[Node] = []
        for end in range(1, len(word) + 1):
            label = Label(end * PAGE, word[:end].encode())
            path.append(self.tree.publish(path[-1] if path else None, label, self.pages.take(row), row))
        self.held[word] = path
        return path

    def drop(self, word: str, row: Row = ROW) -> list[Node]:
        path = self.held.pop(word)
        for node in path:
            if row in node.spares:
                self.pages.release(node.spares[row], row)
        return self.tree.unpin(path, row)

    def keep(self, *words: str) -> Grown:
        """Pages of these words, idle; a star marks a checkpoint at the end of the page before it."""
        for word in words:
            plain = word.replace("*", "")
            path = self.add(plain)
            for star in (i for i, letter in enumerate(word) if letter == "*"):
                node = path[star - word[:star].count("*") - 1]
                if not node.slot:
                    self.checkpoint(node)
            self.drop(plain)
        return self

    def checkpoint(self, node: Node) -> None:
        self.slots += 1
        self.tree.attach(node, Slot(self.slots))

    def match(self, word: str) -> Match:
        return self.tree.match([word[:end].encode() for end in range(1, len(word) + 1)], len(word))

    def words(self) -> set[str]:
        return {node.label.chain.decode() for node in self.tree.nodes()}

    def check(self) -> None:
        assert tree_faults(self.tree, PAGE, list(self.held.values())) == []

    def at(self, word: str) -> Node:
        return next(node for node in self.tree.nodes() if node.label.chain == word.encode())


# --- finding ---


def test_resumes_at_the_deepest_checkpoint_with_its_kv() -> None:
    grown = Grown().keep("a*bc*d")
    match = grown.match("abcdefg")
    assert (match.resumable_len, match.kv_len, match.slot) == (12, 16, grown.at("abc").slot)
    assert match.pages == tuple(grown.at(word).page for word in ("a", "ab", "abc"))
    assert "matched 16 tokens of KV, resumed at 12: no checkpoint in between" in match.reason
    grown.check()


def test_another_branch_has_its_own_pages_and_checkpoints() -> None:
    grown = Grown().keep("ab*c*", "abx*y")
    assert grown.match("abcz").resumable_len == 12
    assert grown.match("abxyz").resumable_len == 12 and grown.match("abxyz").kv_len == 16
    assert grown.match("abq").resumable_len == 8
    assert grown.match("xy") == COLD
    assert grown.match("abc").reason == "resumed at 12, as far as the prompt was computed before"
    assert COLD.reason == "no page of this prompt was computed before"


def test_never_beyond_what_may_be_resumed() -> None:
    grown = Grown().keep("a*b*c*")
    chain = [b"a", b"ab", b"abc"]
    assert [grown.tree.match(chain, pages).resumable_len for pages in range(4)] == [0, 4, 8, 12]


def test_without_recurrent_state_kv_is_enough() -> None:
    match = Grown(recurrent=False).keep("abc").match("abcd")
    assert (match.resumable_len, match.slot, len(match.pages)) == (12, 0, 3)


def test_is_there_a_checkpoint_beyond_what_a_row_has_published() -> None:
    grown = Grown().keep("ab*c*")
    chain = [b"a", b"ab", b"abc", b"abcd"]
    path = list(grown.match("ab").nodes)
    found = [grown.tree.has_checkpoint(path, chain, pages) for pages in (1, 2, 3, 4)]
    assert found == [False, True, True, False]
    assert [grown.tree.has_checkpoint([], chain, pages) for pages in (1, 2, 3, 4)] == found


# --- pages ---


def test_pages_go_least_recently_used_first_and_from_the_end() -> None:
    grown = Grown().keep("abc", "axy")
    first = [grown.tree.evict_page().label.chain.decode() for _ in range(2)]
    assert first == ["abc", "ab"]
    grown.tree.pin(grown.match("a").nodes)  # nothing, without a checkpoint
    grown.keep("axyz")
    assert [grown.tree.evict_page().label.chain.decode() for _ in range(4)] == ["axyz", "axy", "ax", "a"]
    with pytest.raises(OwnershipError, match="idle"):
        grown.tree.evict_page()
    assert len(grown.pages.free) == 32
    grown.check()


def test_what_is_pinned_stays() -> None:
    grown = Grown()
    grown.add("ab")
    grown.keep("abc")
    assert grown.tree.num_idle == 1 and grown.tree.evict_page().label.chain == b"abc"
    with pytest.raises(OwnershipError):
        grown.tree.evict_page()
    grown.check()
    path = grown.held["ab"]
    grown.drop("ab")
    with pytest.raises(OwnershipError, match="once too often"):
        grown.tree.unpin(path, ROW)


def test_of_two_who_compute_the_same_the_tree_keeps_one_page_and_never_two_without_need() -> None:
    grown, two = Grown(pages=4), Row(2)
    mine = grown.add("a")[0].page
    other = grown.pages.take(two)
    node = grown.tree.publish(None, Label(PAGE, b"a"), other, two)
    assert (node.page, node.spares, node.pins) == (mine, {two: other}, 2)
    grown.held["b"] = [node]
    grown.check()
    grown.drop("a")  # the one whose page it was goes: the other page takes its place
    assert (node.page, node.spares, node.pins) == (other, {}, 1)
    assert mine in grown.pages.free and other not in grown.pages.writers
    grown.check()
    grown.tree.unpin(grown.held.pop("b"), two)
    late = grown.add("a")[0]  # and an idle page that is computed anew makes way at once
    assert late is node and other in grown.pages.free
    grown.check()


# --- checkpoints ---


def test_a_checkpoint_saves_what_lies_between_it_and_the_one_before() -> None:
    grown = Grown().keep("ab*cd*e*", "abx*")
    saved = {word: grown.at(word).saved for word in ("ab", "abcd", "abcde", "abx")}
    assert saved == {"ab": 8, "abcd": 8, "abcde": 4, "abx": 4}
    grown.tree.detach(grown.at("ab"))
    assert (grown.at("abcd").saved, grown.at("abx").saved) == (16, 12)
    grown.check()
    grown.checkpoint(grown.at("ab"))  # in between again
    assert (grown.at("abcd").saved, grown.at("abx").saved) == (8, 4)
    grown.checkpoint(grown.at("abc"))
    assert (grown.at("abcd").saved, grown.at("abc").saved, grown.at("abx").saved) == (4, 4, 4)
    grown.check()


def test_the_one_that_saves_least_goes_first_and_only_the_consumed_one_is_fresh() -> None:
    grown = Grown().keep("abcd*", "x*", "yz*")
    assert grown.tree.weakest() is grown.at("x")
    for _ in range(9):
        grown.tree.tick()
    match = grown.match("x")
    grown.tree.consume(match.nodes[-1])
    assert grown.tree.num_read == 1
    grown.tree.unread(match.nodes[-1])
    assert grown.tree.weakest() is grown.at("yz")
    with pytest.raises(OwnershipError):
        grown.tree.unread(match.nodes[-1])


def test_what_a_row_reads_is_never_given_up() -> None:
    grown = Grown().keep("a*")
    node = grown.at("a")
    grown.tree.read(node)
    assert grown.tree.weakest() is None
    with pytest.raises(OwnershipError):
        grown.tree.detach(node)
    grown.tree.unread(node)
    assert grown.tree.weakest() is node


def test_a_path_holds_no_more_than_its_share_but_branches_stay() -> None:
    grown = Grown(per_path=2).keep("ab*c*")
    assert grown.tree.surplus(grown.at("abc")) is None
    grown.keep("abc*d*")
    assert grown.tree.surplus(grown.at("abcd")) is grown.at("abc")
    grown = Grown(per_path=2).keep("a*bc*", "a*x*", "a*bcd*")
    surplus = grown.tree.surplus(grown.at("abcd"))
    assert surplus is grown.at("abc"), "two go on from the other"


# --- a fresh start ---


def test_a_reset_forgets_everything_and_takes_back_what_is_held_later() -> None:
    grown = Grown(pages=8).keep("ab*")
    held = grown.add("a")
    gone = grown.tree.reset()
    assert [node.label.chain for node in gone] == [b"ab"] and gone[0].slot
    grown.tree.detach(gone[0])
    assert grown.match("ab") == COLD and grown.tree.num_pages == 1
    again = grown.tree.publish(None, Label(PAGE, b"a"), grown.pages.take(Row(2)), Row(2))
    grown.held["new"] = [again]
    grown.check()
    assert grown.drop("a") == held, "its last holder gives it back"
    assert grown.match("a").kv_len == 4, "and the new one stays where it is"
    assert len(grown.pages.free) == 7
    grown.check()


# --- the check finds what it is for ---


@pytest.mark.parametrize(
    ("word", "harm", "found"),
    [
        ("ab", {"pins": 1}, "1 pins and 0 holders"),
        ("ab", {"label": Label(12, b"ab")}, "does not follow"),
        ("ab", {"slot": Slot(9)}, "a checkpoint that nobody knows"),
        ("ab", {"above": None}, "does not know the checkpoint before it"),
        ("a", {"readers": 1, "slot": Slot(0)}, "readers of no checkpoint"),
        ("a", {"spares": {ROW: 3}}, "read by nobody"),
    ],
)
def test_the_check_sees_harm(word: str, harm: dict[str, object], found: str) -> None:
    grown = Grown().keep("a*b*")
    node = grown.at(word)
    for name, value in harm.items():
        setattr(node, name, value)
    assert any(found in fault for fault in tree_faults(grown.tree, PAGE, []))


def test_the_check_sees_a_wrong_order_and_a_lost_node() -> None:
    grown = Grown().keep("ab")
    grown.tree._idle = dict.fromkeys([grown.at("a"), grown.at("ab")])
    assert any("evicted before" in fault for fault in tree_faults(grown.tree, PAGE, []))
    grown = Grown().keep("ab")
    grown.at("a").children.clear()
    assert any("2 nodes are counted, 1 are there" in fault for fault in tree_faults(grown.tree, PAGE, []))
