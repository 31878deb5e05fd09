from __future__ import annotations

import pytest

from holdfast.cache import Admission, CacheManager, Label, Match, OwnershipError
from holdfast.ids import Page, Row
from holdfast.plan import Grant
from holdfast.request import Request

from .harness import make_limits, make_request
from .results import RowResult, step_result

PROMPT = tuple(range(1, 14))  # three pages of four, and one token


def admitted(cache: CacheManager, request: Request | None = None) -> Admission:
    admission = cache.admit(request or make_request("a", PROMPT, max_tokens=1))
    assert admission is not None
    return admission


def granted(cache: CacheManager, row: Row, line: int) -> Grant:
    grant = cache.grant(row, line)
    assert grant is not None
    return grant


def match(cache: CacheManager, tokens: tuple[int, ...]) -> Match:
    return cache.match(make_request("?", tokens))


def caching(**limits: int) -> CacheManager:
    return CacheManager(make_limits(**limits), prefix_reuse=True)


def collect(
    cache: CacheManager,
    step: int,
    admission: Admission,
    position: int,
    *,
    base: int = 0,
    used: tuple[Grant, ...] = (),
    missed: tuple[Grant, ...] = (),
) -> None:
    row = RowResult(admission.row, admission.generation, position, (), base=base)
    cache.commit(step_result(step, (row,), used, missed))
    cache.collected(step)


def publish(cache: CacheManager, request: Request, line: int, step: int = 1) -> None:
    """A request that runs alone for one step of its prompt, leaves a checkpoint at `line` and goes."""
    admission = admitted(cache, request)
    grant = cache.export(admission.row, line)
    assert grant is not None
    cache.launched(step, [admission.row])
    collect(cache, step, admission, len(request.prompt), used=(grant,))
    cache.release(admission.row)
    assert cache.check().clean


# --- admission ---


def test_admission_takes_a_row_a_slot_and_pages_for_every_token() -> None:
    cache = CacheManager(make_limits())
    first, second = admitted(cache), admitted(cache, make_request("b", (1,), max_tokens=1))
    assert (first.row, first.own_slot, second.row, second.own_slot) == (1, 1, 2, 2)
    assert [(p.row, p.ordinal, p.page) for p in first.pages] == [(1, n, n + 1) for n in range(4)]
    assert [p.page for p in second.pages] == [11]  # behind the first one's share of the forty
    assert first.match.resumable_len == 0


@pytest.mark.parametrize("scarce", [{"max_num_seqs": 1}, {"num_checkpoints": 5}, {"num_pages": 7}])
def test_admission_is_never_partial(scarce: dict[str, int]) -> None:
    cache = CacheManager(make_limits(**scarce))
    first = admitted(cache)
    before = cache.check()
    assert cache.admit(make_request("b", PROMPT)) is None
    assert cache.check() == before
    cache.release(first.row)
    assert cache.admit(make_request("b", PROMPT)) is not None


def test_headroom_is_asked_for_and_not_taken() -> None:
    cache = CacheManager(make_limits(num_pages=4))
    assert cache.admit(make_request("a", PROMPT), headroom=1) is None
    assert cache.admit(make_request("a", PROMPT), headroom=0) is not None
    cache = CacheManager(make_limits(num_pages=5))
    assert cache.admit(make_request("a", PROMPT), headroom=1) is not None
    assert cache.check().pages.free == 1


def test_each_tenant_of_a_row_is_a_new_generation() -> None:
    cache = CacheManager(make_limits())
    first = admitted(cache)
    cache.release(first.row)
    second = admitted(cache)
    assert (first.row, first.generation, second.row, second.generation) == (1, 1, 1, 2)


def test_a_model_without_state_takes_no_slots() -> None:
    cache = caching(num_slots=0)
    admission = admitted(cache)
    assert admission.own_slot == 0
    assert cache.grant(admission.row, 4) is cache.export(admission.row, 4) is None
    assert cache.counters.skipped == 0


def test_extend_takes_what_is_missing_or_nothing() -> None:
    cache = CacheManager(make_limits(num_pages=5))
    row = admitted(cache).row
    assert cache.extend(row, 16) == ()
    assert cache.extend(row, 21) is None
    assert cache.check().pages.free == 1
    assert [(p.ordinal, p.page) for p in cache.extend(row, 17) or ()] == [(4, 5)]


# --- grants ---


def test_while_most_pages_are_free_some_are_given_ahead() -> None:
    """At first, and when they are full."""
    cache = CacheManager(make_limits(num_pages=64, max_num_seqs=2, max_model_len=160))
    asked = make_request("a", PROMPT, max_tokens=120)
    first, second = (admitted(cache, asked).row for _ in range(2))
    assert [cache.room(row) for row in (first, second)] == [32, 32]
    assert cache.extend(first, 32) == () and [p.ordinal for p in cache.extend(first, 33) or ()] == [
        *range(8, 16)
    ]
    assert cache.extend(second, 49) and cache.room(second) == 64
    assert [p.ordinal for p in cache.extend(first, 65) or ()] == [16], "half are taken: the one that it needs"
    cache.release(second)
    assert [p.ordinal for p in cache.extend(first, 69) or ()] == [*range(17, 25)]
    assert cache.check().clean


@pytest.mark.parametrize(("pages", "rows", "held"), [(72, 3, 6), (60, 3, 5), (24, 3, 2), (11, 3, 1)])
def test_pages_ahead_are_a_quarter_of_all_at_most(pages: int, rows: int, held: int) -> None:
    cache = CacheManager(make_limits(num_pages=pages, max_num_seqs=rows, max_model_len=96))
    assert len(admitted(cache, make_request("a", (1,), max_tokens=80)).pages) == held


def test_where_every_row_has_room_for_all_it_may_absorb_none_are_spared() -> None:
    limits = make_limits(num_pages=3 * 25, max_num_seqs=3, max_model_len=96)
    assert limits.pages_per_row == 25
    for cache, held in ((CacheManager(limits), 8), (CacheManager(limits, prefix_reuse=True), 6)):
        rows = [admitted(cache, make_request(id_, (1,), max_tokens=80)).row for id_ in "abc"]
        assert [cache.room(row) for row in rows] == [4 * held] * 3
    cache = CacheManager(limits)
    rows = [admitted(cache, make_request(id_, (1,), max_tokens=95)).row for id_ in "abc"]
    for length in (33, 65):
        assert all(len(cache.extend(row, length) or ()) == 8 for row in rows)


@pytest.mark.parametrize(("answer", "held"), [(1, 16), (7, 20), (11, 24), (99, 24)])
def test_pages_ahead_end_where_the_longest_answer_does(answer: int, held: int) -> None:
    limits = make_limits(num_pages=64, max_num_seqs=1, max_model_len=20)
    cache = CacheManager(limits)
    row = admitted(cache, make_request("a", PROMPT, max_tokens=answer)).row
    assert cache.room(row) == held <= 4 * limits.pages_per_row


def test_nor_are_pages_given_beyond_it_later() -> None:
    cache = CacheManager(make_limits(num_pages=64, max_num_seqs=1, max_model_len=96))
    row = admitted(cache, make_request("a", PROMPT, max_tokens=27)).row
    assert cache.room(row) == 32 and cache.extend(row, 33) and cache.room(row) == 40


def test_one_grant_at_a_time_and_any_number_of_exports() -> None:
    cache = caching()
    row = admitted(cache).row
    assert granted(cache, row, 4) == Grant(row, 1, 2, 4)  # type: ignore[arg-type]
    assert cache.grant(row, 8) is None
    assert cache.counters.skipped == 0
    assert cache.export(row, 8) == Grant(row, 1, 3, 8)  # type: ignore[arg-type]
    assert cache.export(row, 12) == Grant(row, 1, 4, 12)  # type: ignore[arg-type]
    assert sorted(cache.promised_lines(row)) == [4, 8, 12]


def test_a_grant_that_finds_no_slot_is_skipped_and_counted() -> None:
    cache = caching(num_slots=4, num_checkpoints=1)
    row = admitted(cache).row
    assert granted(cache, row, 4) and not cache.may_promise
    assert cache.export(row, 8) is None
    assert cache.counters.skipped == 1


def test_slots_of_running_requests_are_not_promised() -> None:
    cache = caching(num_slots=6, num_checkpoints=3)
    row = admitted(cache).row
    assert len([line for line in (4, 8, 12, 16) if cache.export(row, line)]) == 3
    assert cache.spare_rows == 2
    assert admitted(cache, make_request("b", (1,))) and admitted(cache, make_request("c", (1,)))
    assert cache.check().slots.free == 0


@pytest.mark.parametrize("line", [0, -4, 6])
def test_a_line_off_the_page_grid_is_refused(line: int) -> None:
    cache = caching()
    row = admitted(cache).row
    for ask in (cache.grant, cache.export):
        with pytest.raises(ValueError, match="page boundary"):
            ask(row, line)


def test_a_checkpoint_is_found_only_after_its_fold_was_collected() -> None:
    cache = caching()
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    assert match(cache, PROMPT).resumable_len == 0
    collect(cache, 1, admission, 13, base=8, used=(grant,))
    found = match(cache, PROMPT)
    assert (found.resumable_len, found.kv_len, found.slot, found.pages) == (8, 12, grant.slot, (1, 2))
    assert match(cache, (*PROMPT[:7], 99, *PROMPT[8:])).kv_len == 4


def test_there_is_no_second_checkpoint_of_the_same() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    row = admitted(cache, make_request("b", (*PROMPT[:8], 99, 98, 97, 96, 95))).row
    assert cache.export(row, 8) is None
    assert cache.export(row, 12) is not None
    assert cache.counters.skipped == 0


def test_a_missed_grant_comes_back_unlabelled() -> None:
    cache = caching()
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 13, missed=(grant,))
    assert (match(cache, PROMPT).kv_len, match(cache, PROMPT).resumable_len) == (12, 0)
    assert cache.check().slots.free == 5
    assert granted(cache, admission.row, 12).slot == grant.slot


def test_a_report_of_an_unknown_grant_is_a_bug() -> None:
    cache = caching()
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    stranger = Grant(grant.row, grant.generation, grant.slot, 12)
    with pytest.raises(OwnershipError, match="outstanding"):
        cache.commit(step_result(1, (), used=(stranger,)))


def test_what_the_last_step_of_a_released_row_published_is_found() -> None:
    cache = caching()
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    cache.release(admission.row)
    assert cache.check().slots.waiting == 2
    collect(cache, 1, admission, 13, base=8, used=(grant,))
    assert match(cache, PROMPT).resumable_len == 8
    assert (cache.check().slots.free, cache.check().slots.idle) == (5, 1)


def test_a_report_for_an_earlier_tenant_is_ignored() -> None:
    cache = caching()
    first = admitted(cache)
    old = granted(cache, first.row, 8)
    cache.release(first.row)
    second = admitted(cache)
    new = granted(cache, second.row, 8)
    assert (second.row, new.slot) == (first.row, old.slot)
    cache.commit(step_result(1, (RowResult(first.row, first.generation, 99, ()),), used=(old,)))
    assert match(cache, PROMPT).kv_len == 0
    assert cache.check().slots.held == 2


@pytest.mark.parametrize("window", [True, False])
def test_the_same_prefix_published_twice_is_kept_once(window: bool) -> None:
    cache = caching()
    rows = [admitted(cache), admitted(cache)]
    grants = [cache.grant(a.row, 8) if window else cache.export(a.row, 8) for a in rows]
    cache.launched(1, [a.row for a in rows])
    results = tuple(RowResult(a.row, a.generation, 13, (), base=8) for a in rows)
    cache.commit(step_result(1, results, used=tuple(filter(None, grants))))
    cache.collected(1)
    assert cache.check().clean
    for admission in rows:
        cache.release(admission.row)
    audit = cache.check()
    assert audit.clean and (audit.slots.idle, audit.pages.idle, audit.pages.free) == (1, 3, 29)
    assert grants[0] is not None and match(cache, PROMPT).slot == grants[0].slot


# --- lifetimes ---


def test_what_a_step_in_flight_has_comes_back_with_its_last_step() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    for step in (1, 2, 3):
        cache.launched(step, [admission.row])
    cache.release(admission.row)
    for step in (1, 2):
        collect(cache, step, admission, 13)
        audit = cache.check()
        assert (audit.rows.waiting, audit.slots.waiting, audit.pages.waiting) == (1, 1, 4)
        assert audit.clean and cache.returning
        assert cache.take_freed() == ((), ())
    collect(cache, 3, admission, 14)
    audit = cache.check()
    assert (audit.rows.free, audit.slots.free, audit.pages.free) == (3, 6, 32)
    assert not cache.returning
    slots, pages = cache.take_freed()
    assert (slots, sorted(pages)) == ((1,), [1, 2, 3, 4])


def test_a_row_waits_for_its_own_steps_only() -> None:
    cache = CacheManager(make_limits())
    one, two = admitted(cache), admitted(cache)
    cache.launched(1, [one.row, two.row])
    cache.launched(2, [two.row])
    collect(cache, 1, one, 13)
    assert not cache.in_flight(one.row) and cache.in_flight(two.row)
    cache.release(one.row)
    assert cache.check().rows.free == 2
    assert cache.any_in_flight


def test_a_shared_checkpoint_is_held_until_a_fold_past_it_was_collected() -> None:
    cache = caching(num_slots=4, max_num_seqs=3, fold_every=4)
    publish(cache, make_request("a", PROMPT), 8)
    reader = admitted(cache, make_request("b", PROMPT))
    assert (reader.match.resumable_len, reader.own_slot != reader.match.slot) == (8, True)
    assert cache.check().slots.held == 2
    for step, (position, base) in enumerate([(9, 8), (10, 8), (11, 8), (12, 8), (13, 12)], start=2):
        cache.launched(step, [reader.row])
        assert not cache.may_promise, "the only one there may be is being read"
        collect(cache, step, reader, position, base=base)
        assert cache.check().slots.held == (1 if base == 12 else 2)
    assert cache.may_promise
    assert match(cache, PROMPT).resumable_len == 8


# --- prefix reuse ---


def test_reuse_is_off_unless_asked_for() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    assert cache.export(admission.row, 8) is None
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 13, base=12)
    cache.release(admission.row)
    again = admitted(cache)
    assert (again.match.kv_len, again.match.reason) == (0, "prefix caching is off")
    assert cache.check().slots.idle == cache.check().pages.idle == 0


def test_the_last_token_is_never_matched() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 12)
    assert match(cache, PROMPT[:13]).resumable_len == 12
    assert match(cache, PROMPT[:12]).resumable_len == 0


def test_a_prompt_that_has_to_be_scored_is_computed() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 12)
    found = cache.match(make_request("b", PROMPT, prompt_logprobs=0))
    assert found.resumable_len == 0 and "every token of the prompt has to be scored" in found.reason


def test_shared_pages_are_mapped_first_and_new_ones_follow() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    other = admitted(cache, make_request("b", (*PROMPT[:8], 50, 51, 52, 53, 54), max_tokens=1))
    assert [p.page for p in other.pages] == [1, 2, 4, 5]  # the third is still known
    assert cache.check().pages.idle == 1


def test_idle_prefixes_are_evicted_least_recently_used_first_and_from_the_end() -> None:
    cache = caching(num_pages=8)
    old, new = PROMPT, tuple(range(50, 63))
    publish(cache, make_request("a", old), 8)
    publish(cache, make_request("b", new), 12, step=2)
    assert (match(cache, old).kv_len, match(cache, new).kv_len) == (12, 12)
    row = admitted(cache, make_request("c", tuple(range(70, 78)))).row
    assert cache.extend(row, 12) is not None
    assert (match(cache, old).kv_len, match(cache, new).kv_len) == (8, 12)
    assert cache.extend(row, 16) is not None
    assert (match(cache, old).kv_len, match(cache, old).resumable_len) == (4, 0)
    counters = cache.counters
    assert (counters.evicted_pages, counters.evicted_checkpoints, counters.lost_checkpoints) == (2, 0, 1)
    assert cache.check().clean


def test_checkpoints_make_way_for_running_requests_and_for_better_ones() -> None:
    cache = caching(num_slots=4, max_num_seqs=3, num_checkpoints=2)
    publish(cache, make_request("a", PROMPT), 8)
    publish(cache, make_request("b", tuple(range(50, 63))), 12, step=2)
    publish(cache, make_request("c", tuple(range(70, 83))), 12, step=3)
    assert cache.stats().checkpoints == 3, "slots that nobody runs in may keep prefixes too"
    first = admitted(cache, make_request("d", (1,)))
    assert cache.stats().checkpoints == 3
    admitted(cache, make_request("e", (1,)))
    assert match(cache, PROMPT).resumable_len == 0, "the one that saved least"
    assert cache.counters.evicted_checkpoints == 1 and not cache.spare_rows
    assert granted(cache, first.row, 4)
    assert cache.counters.evicted_checkpoints == 2
    assert cache.check().clean


def test_one_who_cannot_read_a_checkpoint_without_taking_a_slot_from_others_is_cold() -> None:
    cache = caching(num_slots=4, num_checkpoints=1)
    publish(cache, make_request("a", PROMPT), 8)
    row = admitted(cache, make_request("b", (1,))).row
    assert granted(cache, row, 4)
    cold = admitted(cache, make_request("c", PROMPT))
    assert cold.match.resumable_len == 0 and "all checkpoint slots are in use" in cold.match.reason
    assert cache.check().clean


def test_an_answer_replaces_the_checkpoint_that_it_left_before() -> None:
    cache = caching(max_model_len=64, fold_every=4)
    request = make_request("a", PROMPT[:3])
    admission = admitted(cache, request)
    assert cache.extend(admission.row, 16) is not None
    for step, line in enumerate((4, 8, 12), start=1):
        request.tokens = list(PROMPT[: line + 1])
        grant = granted(cache, admission.row, line)
        cache.launched(step, [admission.row])
        collect(cache, step, admission, line + 1, base=line, used=(grant,))
        assert cache.stats().checkpoints == 1
    assert match(cache, PROMPT).resumable_len == 12
    assert cache.counters.replaced_checkpoints == 2
    assert cache.check().clean


def test_a_row_hands_over_the_state_in_its_own_slot_if_it_ends_a_page() -> None:
    cache = caching()
    admission = admitted(cache)
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 13, base=12)
    cache.release(admission.row)
    assert match(cache, PROMPT).resumable_len == 12 and match(cache, PROMPT).slot == admission.own_slot
    assert cache.check().clean
    other = admitted(cache, make_request("b", (9, 9, 9, 9, 9, 9, 9)))
    cache.launched(2, [other.row])
    collect(cache, 2, other, 7, base=6)
    cache.release(other.row)
    assert match(cache, (9, 9, 9, 9, 9, 9, 9)).resumable_len == 0


def test_what_was_sampled_but_never_collected_is_not_published() -> None:
    cache = caching()
    request = make_request("a", PROMPT[:3])
    admission = admitted(cache, request)
    assert cache.extend(admission.row, 9) is not None
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 9, base=8)
    assert cache.published_len(admission.row) == 0
    cache.release(admission.row)
    assert cache.check().slots.free == 6 and cache.check().clean


def test_without_state_whole_pages_are_shared_as_they_fill() -> None:
    cache = caching(num_slots=0)
    prompt = (*PROMPT, 14, 15, 16)
    admission = admitted(cache, make_request("a", prompt, max_tokens=1))
    cache.launched(1, [admission.row])
    assert match(cache, prompt).kv_len == 0
    collect(cache, 1, admission, 9)
    assert match(cache, (*prompt, 17)).resumable_len == 8
    cache.launched(2, [admission.row])
    collect(cache, 2, admission, 15)
    other = admitted(cache, make_request("b", prompt, max_tokens=1))
    assert (other.match.resumable_len, other.match.slot) == (12, 0)
    assert [p.page for p in other.pages] == [1, 2, 3, 5, 6]  # the one after it may be needed next


def test_a_reset_hides_the_past_and_what_running_requests_make_of_it() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    reader = admitted(cache, make_request("b", PROMPT))
    assert reader.match.resumable_len == 8
    cache.reset()
    assert match(cache, PROMPT).kv_len == 0
    assert cache.export(reader.row, 12) is None
    cache.launched(2, [reader.row])
    collect(cache, 2, reader, 13, base=12)
    assert match(cache, PROMPT).kv_len == 0 and cache.check().clean
    cache.release(reader.row)
    audit = cache.check()
    assert audit.clean and (audit.slots.free, audit.pages.free) == (6, 32)
    publish(cache, make_request("c", PROMPT), 8, step=3)
    assert match(cache, PROMPT).resumable_len == 8


def test_what_two_requests_have_in_common() -> None:
    cache = caching()
    row = admitted(cache).row
    assert cache.common_len(row, make_request("b", PROMPT)) == 12
    assert cache.common_len(row, make_request("b", PROMPT[:12])) == 8, "its last token is computed"
    assert cache.common_len(row, make_request("b", (*PROMPT[:6], 99, 98, 97))) == 4
    assert cache.common_len(row, make_request("b", (99,))) == 0


def test_counts() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    resumed = make_request("b", PROMPT)
    admitted(cache, resumed)
    counters = cache.stats().counters
    assert (counters.requests, counters.prompt_tokens) == (2, 26)
    assert (counters.matched_tokens, counters.resumed_tokens, counters.lost_tokens) == (12, 8, 4)
    assert cache.stats().hit_rate == 8 / 26
    resumed.metrics.preemptions = 1
    admitted(cache, resumed)
    assert (counters.requests, cache.stats().counters.resumed_after_preemption) == (2, 8)


# --- the audit finds what it is for ---


def test_the_audit_sees_a_leak() -> None:
    cache = CacheManager(make_limits())
    cache._pages.take(Row(1))
    audit = cache.check()
    assert (audit.leaked, audit.pages.leaked, audit.unaccounted) == (1, 1, 1)
    cache._rows.take()
    assert cache.check().leaked == 2


def test_the_audit_sees_a_reference_too_many_and_one_too_few() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    reader = admitted(cache, make_request("b", PROMPT))
    node = reader.match.nodes[-1]
    node.pins += 1
    node.readers += 1
    assert (cache.check().leaked, cache.check().double_owned) == (2, 0) and cache.check().tree
    node.pins -= 2
    node.readers -= 2
    assert cache.check().double_owned == 2


def test_the_audit_sees_two_owners() -> None:
    cache = CacheManager(make_limits())
    one, two = admitted(cache), admitted(cache)
    cache._holdings[two.row].pages[0] = Page(one.pages[0].page)
    audit = cache.check()
    assert (audit.pages.double_owned, audit.pages.leaked) == (1, 1)
    assert not audit.clean


def test_the_audit_sees_a_wrong_label() -> None:
    cache = caching()
    publish(cache, make_request("a", PROMPT), 8)
    slot = match(cache, PROMPT).slot
    cache._slots._labels[slot] = Label(8, b"another")
    assert cache.check().tree == ("slots are labelled otherwise than the tree has them",)
    with pytest.raises(OwnershipError, match="holds"):
        cache.admit(make_request("b", PROMPT))
