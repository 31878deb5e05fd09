from __future__ import annotations

import pytest

from holdfast.cache import Admission, CacheManager, OwnershipError
from holdfast.ids import Page, Row
from holdfast.plan import Grant, RowResult, StepResult
from holdfast.request import Request

from .harness import make_limits, make_request

PROMPT = tuple(range(1, 14))  # three pages of four, and one token


def admitted(cache: CacheManager, request: Request | None = None) -> Admission:
    admission = cache.admit(request or make_request("a", PROMPT))
    assert admission is not None
    return admission


def granted(cache: CacheManager, row: Row, line: int) -> Grant:
    grant = cache.grant(row, line)
    assert grant is not None
    return grant


def collect(
    cache: CacheManager,
    step: int,
    admission: Admission,
    position: int,
    *,
    used: tuple[Grant, ...] = (),
    missed: tuple[Grant, ...] = (),
) -> None:
    row = RowResult(admission.row, admission.generation, position, ())
    cache.commit(StepResult(step, (row,), used, missed))
    cache.collected(step)


def publish(cache: CacheManager, request: Request, line: int, step: int = 1) -> None:
    """A request that runs alone for one step, leaves a checkpoint at `line` and goes."""
    admission = admitted(cache, request)
    grant = granted(cache, admission.row, line)
    cache.launched(step, [admission.row])
    collect(cache, step, admission, len(request.prompt), used=(grant,))
    cache.release(admission.row)
    assert cache.check().clean


# --- admission ---


def test_admission_takes_a_row_a_slot_and_pages_for_every_token() -> None:
    cache = CacheManager(make_limits())
    first, second = admitted(cache), admitted(cache, make_request("b", (1,)))
    assert (first.row, first.own_slot, second.row, second.own_slot) == (1, 1, 2, 2)
    assert [(p.row, p.ordinal, p.page) for p in first.pages] == [(1, n, n + 1) for n in range(4)]
    assert [p.page for p in second.pages] == [5]
    assert first.match.resumable_len == 0


@pytest.mark.parametrize("scarce", ["max_num_seqs", "num_slots", "num_pages"])
def test_admission_is_never_partial(scarce: str) -> None:
    cache = CacheManager(make_limits(**{scarce: 7 if scarce == "num_pages" else 1}))
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
    cache = CacheManager(make_limits(num_slots=0))
    admission = admitted(cache)
    assert admission.own_slot == 0
    assert cache.grant(admission.row, 4) is None
    assert cache.counters.skipped == 0


def test_extend_takes_what_is_missing_or_nothing() -> None:
    cache = CacheManager(make_limits(num_pages=5))
    row = admitted(cache).row
    assert cache.extend(row, 16) == ()
    assert cache.extend(row, 21) is None
    assert cache.check().pages.free == 1
    assert [(p.ordinal, p.page) for p in cache.extend(row, 17) or ()] == [(4, 5)]


# --- grants ---


def test_one_grant_at_a_time() -> None:
    cache = CacheManager(make_limits())
    row = admitted(cache).row
    assert granted(cache, row, 4) == Grant(row, 1, 2, 4)  # type: ignore[arg-type]
    assert cache.grant(row, 8) is None
    assert cache.counters.skipped == 0


def test_a_grant_that_finds_no_slot_is_skipped_and_counted() -> None:
    cache = CacheManager(make_limits(num_slots=1))
    assert cache.grant(admitted(cache).row, 4) is None
    assert cache.counters.skipped == 1


@pytest.mark.parametrize("line", [0, -4, 6])
def test_a_line_off_the_page_grid_is_refused(line: int) -> None:
    cache = CacheManager(make_limits())
    with pytest.raises(ValueError, match="page boundary"):
        cache.grant(admitted(cache).row, line)


def test_a_checkpoint_is_found_only_after_its_fold_was_collected() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    assert cache.match(PROMPT).resumable_len == 0
    collect(cache, 1, admission, 13, used=(grant,))
    match = cache.match(PROMPT)
    assert (match.resumable_len, match.kv_len, match.slot, match.pages) == (8, 8, grant.slot, (1, 2))
    assert cache.match((*PROMPT[:7], 99, *PROMPT[8:])).kv_len == 4


def test_a_missed_grant_comes_back_unlabelled() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    collect(cache, 1, admission, 13, missed=(grant,))
    assert cache.match(PROMPT).kv_len == 0
    assert cache.check().slots.free == 5
    assert granted(cache, admission.row, 12).slot == grant.slot


def test_a_report_of_an_unknown_grant_is_a_bug() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    stranger = Grant(grant.row, grant.generation, grant.slot, 12)
    with pytest.raises(OwnershipError, match="outstanding"):
        cache.commit(StepResult(1, (), used=(stranger,)))


def test_a_released_rows_grant_is_returned_even_if_it_was_used() -> None:
    cache = CacheManager(make_limits())
    admission = admitted(cache)
    grant = granted(cache, admission.row, 8)
    cache.launched(1, [admission.row])
    cache.release(admission.row)
    assert cache.check().slots.waiting == 2
    collect(cache, 1, admission, 13, used=(grant,))
    assert cache.match(PROMPT).kv_len == 0
    assert cache.check().slots.free == 6


def test_a_report_for_an_earlier_tenant_is_ignored() -> None:
    cache = CacheManager(make_limits())
    first = admitted(cache)
    old = granted(cache, first.row, 8)
    cache.release(first.row)
    second = admitted(cache)
    new = granted(cache, second.row, 8)
    assert (second.row, new.slot) == (first.row, old.slot)
    cache.commit(StepResult(1, (RowResult(first.row, first.generation, 99, ()),), used=(old,)))
    assert cache.match(PROMPT).kv_len == 0
    assert cache.check().slots.held == 2


def test_the_same_prefix_published_twice_is_kept_once() -> None:
    cache = CacheManager(make_limits())
    rows = [admitted(cache), admitted(cache)]
    grants = [granted(cache, a.row, 8) for a in rows]
    cache.launched(1, [a.row for a in rows])
    results = tuple(RowResult(a.row, a.generation, 13, ()) for a in rows)
    cache.commit(StepResult(1, results, used=tuple(grants)))
    cache.collected(1)
    for admission in rows:
        cache.release(admission.row)
    audit = cache.check()
    assert (audit.slots.idle, audit.pages.idle, audit.leaked) == (1, 2, 0)
    assert cache.match(PROMPT).slot == grants[0].slot


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
    collect(cache, 3, admission, 14)
    audit = cache.check()
    assert (audit.rows.free, audit.slots.free, audit.pages.free) == (3, 6, 32)
    assert not cache.returning


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
    cache = CacheManager(make_limits(num_slots=3, fold_every=4), prefix_reuse=True)
    publish(cache, make_request("a", PROMPT), 8)
    reader = admitted(cache, make_request("b", PROMPT))
    assert (reader.match.resumable_len, reader.own_slot != reader.match.slot) == (8, True)
    assert cache.check().slots.held == 2
    for step, position in enumerate((9, 10, 11, 12, 13), start=2):
        cache.launched(step, [reader.row])
        collect(cache, step, reader, position)
        held = cache.check().slots.held
        assert held == (1 if position == 13 else 2)  # the step that began at 12 folded to it
    assert cache.match(PROMPT).resumable_len == 8


# --- prefix reuse ---


def test_reuse_is_off_unless_asked_for() -> None:
    cache = CacheManager(make_limits())
    publish(cache, make_request("a", PROMPT), 12)
    assert cache.match(PROMPT).resumable_len == 12
    assert admitted(cache).match.resumable_len == 0


def test_the_last_token_is_never_matched() -> None:
    cache = CacheManager(make_limits(), prefix_reuse=True)
    publish(cache, make_request("a", PROMPT), 12)
    assert cache.match(PROMPT[:13]).resumable_len == 12
    assert cache.match(PROMPT[:12]).resumable_len == 0


def test_shared_pages_are_mapped_first_and_new_ones_follow() -> None:
    cache = CacheManager(make_limits(), prefix_reuse=True)
    publish(cache, make_request("a", PROMPT), 8)
    other = admitted(cache, make_request("b", (*PROMPT[:8], 50, 51, 52, 53, 54)))
    assert [p.page for p in other.pages] == [1, 2, 3, 4]
    assert cache.check().pages.idle == 0


def test_idle_prefixes_are_evicted_least_recently_used_first_and_from_the_end() -> None:
    cache = CacheManager(make_limits(num_pages=8, num_slots=2), prefix_reuse=True)
    old, new = PROMPT, tuple(range(50, 63))
    publish(cache, make_request("a", old), 12)
    publish(cache, make_request("b", new), 12, step=2)  # its checkpoint takes the slot of the old one
    assert (cache.match(old).kv_len, cache.match(new).kv_len) == (12, 12)
    assert (cache.match(old).resumable_len, cache.match(new).resumable_len) == (0, 12)
    row = admitted(cache, make_request("c", tuple(range(70, 78)))).row
    assert cache.extend(row, 12) is not None
    assert (cache.match(old).kv_len, cache.match(new).kv_len) == (8, 12)
    assert (cache.counters.evicted_checkpoints, cache.counters.evicted_pages) == (1, 1)


def test_a_checkpoint_yields_its_slot_to_the_request_that_would_resume_from_it() -> None:
    cache = CacheManager(make_limits(num_slots=2), prefix_reuse=True)
    publish(cache, make_request("a", PROMPT), 8)
    first = admitted(cache, make_request("b", (99,)))
    second = admitted(cache, make_request("c", PROMPT))
    assert second.match.resumable_len == 0
    assert {first.own_slot, second.own_slot} == {1, 2}
    assert cache.check().clean


def test_without_state_whole_pages_are_shared_as_they_fill() -> None:
    cache = CacheManager(make_limits(num_slots=0), prefix_reuse=True)
    prompt = (*PROMPT, 14, 15, 16)
    admission = admitted(cache, make_request("a", prompt))
    cache.launched(1, [admission.row])
    assert cache.match(prompt).kv_len == 0
    collect(cache, 1, admission, 9)
    assert cache.match((*prompt, 17)).resumable_len == 8
    cache.launched(2, [admission.row])
    collect(cache, 2, admission, 15)
    other = admitted(cache, make_request("b", prompt))
    assert (other.match.resumable_len, other.match.slot) == (12, 0)
    assert [p.page for p in other.pages] == [1, 2, 3, 5]


# --- the audit finds what it is for ---


def test_the_audit_sees_a_leak() -> None:
    cache = CacheManager(make_limits())
    cache._pages.take()
    audit = cache.check()
    assert (audit.leaked, audit.pages.leaked, audit.unaccounted) == (1, 1, 1)
    cache._rows.take()
    assert cache.check().leaked == 2


def test_the_audit_sees_a_reference_too_many_and_one_too_few() -> None:
    cache = CacheManager(make_limits())
    page = admitted(cache).pages[0].page
    cache._pages.share(page)
    assert (cache.check().leaked, cache.check().double_owned) == (1, 0)
    cache._pages.drop(page)
    assert cache.check().clean
    cache._pages.drop(page)
    assert (cache.check().leaked, cache.check().double_owned) == (0, 1)


def test_the_audit_sees_two_owners() -> None:
    cache = CacheManager(make_limits())
    one, two = admitted(cache), admitted(cache)
    cache._holdings[two.row].pages[0] = Page(one.pages[0].page)
    audit = cache.check()
    assert (audit.pages.double_owned, audit.pages.leaked) == (1, 1)
    assert not audit.clean
