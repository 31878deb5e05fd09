"""What the cache refuses to do, told so that a bug can be found by the message; and its numbers, one by one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from holdfast.cache import CacheCounters, CacheManager, CacheStats, OwnershipError, Policy
from holdfast.cache.audit import take_census
from holdfast.cache.chain import Label, chain_of
from holdfast.cache.checkpoints import Checkpoints
from holdfast.cache.free_list import FreeList
from holdfast.cache.holding import Reading
from holdfast.cache.pages import Pages
from holdfast.cache.radix import Node
from holdfast.cache.slots import Slots
from holdfast.cache.tree_check import tree_faults
from holdfast.ids import PAD_SLOT, Page, Row, Slot

from .harness import make_limits, make_request
from .test_manager import PROMPT, admitted, caching, collect, granted, publish
from .test_radix import PAGE, ROW, Grown

# --- the tree ---


def test_no_page_is_evicted_where_none_is_idle() -> None:
    with pytest.raises(OwnershipError, match=r"^no page is idle, so none can be evicted$"):
        Grown().tree.evict_page()


def test_a_page_that_is_needed_is_not_unlinked() -> None:
    grown = Grown().keep("ab*")
    for word, needs in (("a", "children"), ("ab", "readers")):
        node = grown.at(word)
        if needs == "readers":
            grown.tree.read(node)
        with pytest.raises(OwnershipError, match=f"^page {node.page} is still needed$"):
            grown.tree._unlink(node)


def test_a_checkpoint_is_taken_away_once_and_never_from_a_reader() -> None:
    grown = Grown().keep("a*b")
    node = grown.at("a")
    with pytest.raises(OwnershipError, match=r"^no checkpoint at 8 can be taken away$"):
        grown.tree.detach(grown.at("ab"))
    grown.tree.read(node)
    with pytest.raises(OwnershipError, match=r"^no checkpoint at 4 can be taken away$"):
        grown.tree.detach(node)
    grown.tree.unread(node)
    with pytest.raises(OwnershipError, match=r"^nobody reads the checkpoint at 4$"):
        grown.tree.unread(node)
    assert grown.tree.detach(node) == 1


def test_a_place_has_one_checkpoint_and_none_after_a_reset() -> None:
    grown = Grown().keep("a*b")
    with pytest.raises(OwnershipError, match=r"^slot 9 is not wanted at 4$"):
        grown.tree.attach(grown.at("a"), Slot(9))
    (node,) = grown.add("c")
    grown.tree.reset()
    with pytest.raises(OwnershipError, match=r"^slot 9 is not wanted at 4$"):
        grown.tree.attach(node, Slot(9))


def test_readers_and_hits_are_counted_one_by_one() -> None:
    grown = Grown().keep("a*b*")
    a, b = grown.at("a"), grown.at("ab")
    for times in (1, 2, 3):
        grown.tree.consume(a)
        assert (a.hits, a.readers, grown.tree.num_read) == (times, times, 1)
    grown.tree.read(b)
    assert (b.hits, b.readers, grown.tree.num_read) == (0, 1, 2)
    grown.tree.unread(a)
    assert grown.tree.num_read == 2
    grown.tree.unread(b)
    assert grown.tree.num_read == 1


def test_what_hangs_below_a_checkpoint_is_a_set() -> None:
    """In the order in which it came; there is nothing to say of its members."""
    grown = Grown().keep("a*bc*", "ad*")
    assert set(grown.at("a").below.values()) == {None}
    grown.checkpoint(grown.at("ab"))
    assert grown.at("ab").below == {grown.at("abc"): None}
    assert grown.at("a").below == {grown.at("ad"): None, grown.at("ab"): None}


def test_a_path_has_no_surplus_if_every_checkpoint_before_is_read() -> None:
    grown = Grown(per_path=1).keep("a*b")
    grown.tree.read(grown.at("a"))
    grown.checkpoint(grown.at("ab"))
    assert grown.tree.surplus(grown.at("ab")) is None


@pytest.mark.parametrize(
    ("saved", "age", "hits", "score"), [(12, 0, 0, 12), (12, 0, 2, 36), (12, 3, 0, 6), (12, 8, 1, 8)]
)
def test_what_a_checkpoint_is_worth(saved: int, age: int, hits: int, score: float) -> None:
    assert math.isclose(Policy().score(saved=saved, age=age, hits=hits), score)


# --- pages and slots ---


def test_a_page_that_the_tree_does_not_have_is_not_its_to_give_up() -> None:
    pages = Pages(2)
    page = pages.take(Row(1))
    with pytest.raises(OwnershipError, match=f"^page {page} is not the tree's to give up$"):
        pages.forget(Page(page))


def test_a_slot_s_label_is_told_when_it_is_another() -> None:
    slots = Slots(2)
    slot, label, other = slots.grant(Row(1)), Label(4, b"a"), Label(8, b"b")
    slots.label_granted(slot, Row(1), label)
    with pytest.raises(OwnershipError) as refused:
        slots.verify(slot, other)
    assert str(refused.value) == f"slot {slot} holds {label}, not {other}"
    with pytest.raises(OwnershipError, match=r"^slot 2 holds no checkpoint$"):
        slots.forget(Slot(2))


# --- checkpoints ---


def test_missed_grants_are_counted_one_by_one() -> None:
    cache = caching()
    admission = admitted(cache)
    for step in (1, 2, 3):
        grant = granted(cache, admission.row, 4)
        cache.launched(step, [admission.row])
        collect(cache, step, admission, 1, missed=(grant,))
        assert cache.counters.missed == cache.counters.granted == step


def test_a_request_that_may_run_finds_a_slot_or_the_books_are_wrong() -> None:
    cache = caching(num_slots=3, max_num_seqs=3)
    for _ in range(3):
        cache._slots.take(Row(1))
    with pytest.raises(OwnershipError, match=r"^no slot is left for a request that may run$"):
        cache._checkpoints.take_own(Row(1))


def test_the_path_of_a_new_checkpoint_gives_up_its_surplus() -> None:
    cache = CacheManager(
        make_limits(num_slots=9, max_model_len=64, num_pages=40), prefix_reuse=True, policy=Policy(per_path=2)
    )
    prompt = tuple(range(1, 30))
    for step, line in enumerate((4, 12, 24), 1):
        publish(cache, make_request(f"{line}", prompt), line, step)
    assert cache.stats().checkpoints == 2
    assert cache.counters.published == 3 and cache.counters.replaced_checkpoints == 1
    assert cache.match(make_request("?", prompt)).resumable_len == 24


# --- statistics ---


def test_statistics_are_of_what_is_there() -> None:
    limits = make_limits()
    cache = CacheManager(limits, prefix_reuse=True)
    publish(cache, make_request("a", PROMPT), 8)
    stats = cache.stats()
    assert isinstance(stats, CacheStats) and stats.counters == cache.counters
    assert stats.counters is not cache.counters, "a copy: it does not change later"
    assert (stats.pages, stats.idle_pages, stats.checkpoints) == (3, 3, 1)
    assert (stats.num_pages, stats.num_slots) == (limits.num_pages, limits.num_slots)
    assert stats.num_checkpoints == limits.num_checkpoints
    admitted(cache, make_request("b", PROMPT))
    assert (cache.stats().pages, cache.stats().idle_pages) == (3, 1)


def test_published_tokens_are_counted_in_whole_pages() -> None:
    cache = CacheManager(make_limits(num_slots=0), prefix_reuse=True)
    admission = admitted(cache)
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 10)
    assert cache.published_len(admission.row) == 8


def test_a_running_request_publishes_nothing_after_a_reset() -> None:
    cache = caching()
    admission = admitted(cache)
    cache.reset()
    assert cache._holdings[admission.row].publishes is False
    assert cache.grant(admission.row, 4) is None


# --- the check of the tree itself ---


def faults(grown: Grown) -> list[str]:
    return tree_faults(grown.tree, PAGE, list(grown.held.values()))


def test_what_the_check_says_of_a_page_that_is_not_where_it_should_be() -> None:
    grown = Grown().keep("ab")
    b = grown.at("ab")
    b.label = Label(12, b.label.chain)
    assert faults(grown) == [f"page {b.page} at 12 does not follow its parent"]
    grown = Grown()
    _, b = grown.add("ab")
    b.label = Label(8, b"another")
    assert faults(grown) == [f"page {b.page} at 8 is not its parent's"]


def test_what_the_check_says_of_pins() -> None:
    grown = Grown()
    (node,) = grown.add("a")
    name = f"page {node.page} at 4"
    node.pins = 0
    assert faults(grown) == [f"{name} has 0 pins and 1 holders", f"{name} has 0 pins, and is not idle"]
    grown = Grown().keep("a")
    grown.at("a").pins = 1
    assert faults(grown) == [f"{name} has 1 pins and 0 holders", f"{name} has 1 pins, and is idle"]
    grown = Grown()
    (node,) = grown.add("a")
    node.spares[Row(2)] = Page(9)
    assert faults(grown) == [f"{name} is read by nobody, though 1 have it"]


def test_a_checkpoint_further_down_does_not_count_for_a_page_before_it() -> None:
    grown = Grown().keep("ab*cd*")
    chain = [word.encode() for word in ("a", "ab", "abc", "abcd")]
    path = [grown.at("a")]
    asked = [grown.tree.has_checkpoint(path, chain, pages) for pages in (1, 2, 3, 4)]
    assert asked == [False, True, False, True]
    assert not grown.tree.has_checkpoint(path, [*chain, b"abcde"], 5)


# --- which checkpoint an answer's next one replaces ---


@pytest.mark.parametrize(
    ("position", "state", "gone"),
    [
        (12, "left alone", True),
        (8, "left alone", False),  # the prompt ends here: this is its checkpoint, not the answer's
        (12, "read", False),
        (12, "hit", False),
        (12, "two children", False),
        (12, "one child", True),
    ],
)
def test_an_answer_s_last_checkpoint_is_given_up_if_nobody_has_use_for_it(
    position: int, state: str, gone: bool
) -> None:
    grown = Grown()
    path = grown.add("abc")
    left, node = path[0], path[position // PAGE - 1]
    slots, counters = Slots(4), CacheCounters()
    checkpoints = Checkpoints(make_limits(), grown.tree, slots, counters, kept=True)
    for each in (left, node):
        slot = slots.grant(ROW)
        slots.label_granted(slot, ROW, each.label)
        grown.tree.attach(each, slot)
    if state == "read":
        grown.tree.read(left)
    if state == "hit":
        left.hits = 1
    if state == "two children":
        grown.add("ad", Row(2))
    holding = SimpleNamespace(request=make_request("a", tuple(range(1, 9))), left=left)
    checkpoints._replace_left(holding, node)  # type: ignore[arg-type]
    assert (left.slot == PAD_SLOT) is gone and counters.replaced_checkpoints == gone
    assert holding.left is (left if position == 8 else node)


def test_a_row_does_not_read_on_from_what_its_run_exported() -> None:
    cache = caching()
    admission = admitted(cache)
    grant = cache.export(admission.row, 8)
    assert grant is not None
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 9, base=8, used=(grant,))
    assert cache._holdings[admission.row].reading is None
    assert cache._tree.num_read == 0


# --- more of what is told, and of what is counted ---


def test_what_belongs_to_another_row_is_told() -> None:
    pages, slots = Pages(2), Slots(2)
    page, slot = pages.take(Row(1)), slots.take(Row(1))
    with pytest.raises(OwnershipError, match=r"^page 1 belongs to row 1, not to row 2$"):
        pages.publish(page, Row(2))
    with pytest.raises(OwnershipError, match=r"^slot 1 belongs to row 1, not to row 2$"):
        slots.release(slot, Row(2))


def test_why_nothing_is_reused_is_told() -> None:
    cache = caching(num_slots=4, max_num_seqs=3)
    publish(cache, make_request("a", PROMPT), 8)
    found = cache.match(make_request("b", PROMPT, prompt_logprobs=0))
    assert found.reason == "matched 12 tokens of KV, resumed at 0: every token of the prompt has to be scored"
    admission = admitted(cache, make_request("c", (90, 91, 92, 93, 94)))
    granted(cache, admission.row, 4)  # the only slot that there is for checkpoints
    cache._tree.attach(grown_alone(cache), Slot(9))
    assert cache.match(make_request("d", PROMPT)).reason == (
        "matched 12 tokens of KV, resumed at 0: all checkpoint slots are in use"
    )


def grown_alone(cache: CacheManager) -> Node:
    """A page that is in the tree and has no checkpoint."""
    return next(node for node in cache._tree.nodes() if node.slot == PAD_SLOT and node.label.position == 12)


def test_a_request_alone_may_take_the_last_page() -> None:
    assert caching(num_pages=4).admit(make_request("a", PROMPT)) is not None
    assert caching(num_pages=3).admit(make_request("a", PROMPT)) is None


def test_pages_may_be_of_one_token() -> None:
    cache = caching(page_size=1, fold_every=1)
    assert granted(cache, admitted(cache).row, 1).line == 1


def test_a_chain_has_short_names() -> None:
    assert [len(name) for name in chain_of(make_request("a", PROMPT), 4)] == [16, 16, 16]


def test_an_id_is_double_owned_that_is_held_and_free_or_idle_or_in_no_book() -> None:
    free = FreeList(Row, 3)
    assert take_census(free, {}, [Row(1)], []).double_owned == 1
    taken = free.take()
    assert take_census(free, {taken: 1}, [taken], []).double_owned == 0
    assert take_census(free, {taken: 1}, [taken], [], idle=[taken]).double_owned == 1
    assert take_census(free, {}, [taken], []).double_owned == 1


def test_tokens_found_again_are_added_up() -> None:
    cache = caching(num_slots=9)
    publish(cache, make_request("a", PROMPT), 8)
    for times in (1, 2):
        admission = admitted(cache, make_request(f"b{times}", PROMPT))
        assert cache._holdings[admission.row].position == 8
        counted = cache.counters
        assert (counted.matched_tokens, counted.resumed_tokens, counted.lost_tokens) == (
            12 * times,
            8 * times,
            4 * times,
        )
    again = make_request("c", PROMPT)
    again.metrics.preemptions = 1
    for times in (1, 2):
        cache.release(admitted(cache, again).row)
        assert cache.counters.resumed_after_preemption == 8 * times
    assert cache.counters.requests == 3 and cache.counters.prompt_tokens == 3 * len(PROMPT)


def test_checkpoints_that_go_with_their_pages_are_counted() -> None:
    cache = caching(num_pages=4, num_slots=9)
    publish(cache, make_request("a", PROMPT), 4)
    admitted(cache, make_request("b", tuple(range(50, 66))))
    assert cache.counters.evicted_pages == 3 and cache.counters.lost_checkpoints == 1
    cache = caching(num_pages=4, num_slots=9)
    publish(cache, make_request("a", PROMPT), 4)
    publish(cache, make_request("b", PROMPT), 8, step=2)
    admitted(cache, make_request("c", tuple(range(50, 66))))
    assert cache.counters.lost_checkpoints == 2


@pytest.mark.parametrize(("admissions", "weakest"), [(2, "a"), (4, "bc")])
def test_a_checkpoint_ages_with_every_admission(admissions: int, weakest: str) -> None:
    """8 tokens saved so many admissions ago, against 4 saved just now."""
    grown = Grown().keep("bc*")
    for _ in range(admissions):
        grown.tree.tick()
    grown.keep("a*")
    assert grown.tree.weakest() is grown.at(weakest)


@pytest.mark.parametrize(
    ("page_size", "base", "read_at", "handed_over"),
    [(4, 12, 8, True), (4, 8, None, True), (4, 8, 8, False), (4, 6, None, False), (1, 1, None, True)],
)
def test_a_row_that_goes_hands_over_its_own_slot_only_if_its_state_is_there(
    page_size: int, base: int, read_at: int | None, handed_over: bool
) -> None:
    """One that has not folded since it began to read a slot has its state in that slot."""
    grown, slots = Grown(), Slots(4)
    limits = make_limits(page_size=page_size, fold_every=1)
    checkpoints = Checkpoints(limits, grown.tree, slots, CacheCounters(), kept=True)
    own, path = slots.take(ROW), grown.add("abc")
    holding = SimpleNamespace(
        request=make_request("a", PROMPT),
        row=ROW,
        own_slot=own,
        base=base,
        reading=None if read_at is None else Reading(slots.grant(ROW), read_at, None),
        publishes=True,
        path=path,
        left=None,
    )
    checkpoints._hand_over(holding)  # type: ignore[arg-type]
    assert (holding.own_slot == PAD_SLOT) is handed_over
    assert [node.slot for node in path if node.slot] == ([own] if handed_over else [])
