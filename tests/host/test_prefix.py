from __future__ import annotations

import pytest

from holdfast.cache.prefix import COLD, Chain, PrefixIndex
from holdfast.ids import Page, Slot

TOKENS = tuple(range(20))


def filled(*, pages: int, checkpoints: tuple[int, ...] = (), recurrent: bool = True) -> PrefixIndex:
    index = PrefixIndex(4, recurrent=recurrent)
    chain = Chain(TOKENS, 4)
    for boundary in range(1, pages + 1):
        assert index.pages.add(chain.label(boundary), Page(boundary))
    for boundary in checkpoints:
        assert index.checkpoints.add(chain.label(boundary), Slot(boundary))
    return index


def test_a_label_depends_on_every_token_before_it() -> None:
    label = Chain(TOKENS, 4).label(3)
    assert label.position == 12
    assert Chain(TOKENS[:12], 4).label(3) == label
    for place in range(12):
        changed = list(TOKENS)
        changed[place] += 1
        assert Chain(changed, 4).label(3) != label
    with pytest.raises(ValueError, match="needs 24 tokens"):
        Chain(TOKENS, 4).label(6)


def test_a_chain_follows_tokens_that_grow() -> None:
    tokens = list(TOKENS[:5])
    chain = Chain(tokens, 4)
    chain.label(1)
    tokens += TOKENS[5:]
    assert chain.label(5) == Chain(TOKENS, 4).label(5)


def test_resumes_at_the_deepest_checkpoint_with_its_kv() -> None:
    match = filled(pages=4, checkpoints=(1, 3)).match(TOKENS, 19)
    assert (match.resumable_len, match.kv_len) == (12, 16)
    assert (match.slot, match.pages) == (3, (1, 2, 3))


def test_a_checkpoint_without_its_kv_is_no_use() -> None:
    index = filled(pages=2, checkpoints=(1, 3))
    assert index.match(TOKENS, 19).resumable_len == 4
    index.pages.forget(Page(1))
    assert index.match(TOKENS, 19) == COLD


def test_kv_without_a_checkpoint_is_reported() -> None:
    match = filled(pages=4).match(TOKENS, 19)
    assert (match.resumable_len, match.kv_len, match.slot, match.pages) == (0, 16, 0, ())


def test_without_recurrent_state_kv_is_enough() -> None:
    match = filled(pages=4, recurrent=False).match(TOKENS, 19)
    assert (match.resumable_len, match.slot, match.pages) == (16, 0, (1, 2, 3, 4))


@pytest.mark.parametrize(("limit", "resumed"), [(12, 12), (11, 8), (4, 4), (3, 0), (0, 0)])
def test_never_beyond_the_limit(limit: int, resumed: int) -> None:
    assert filled(pages=4, checkpoints=(1, 2, 3, 4)).match(TOKENS, limit).resumable_len == resumed


def test_the_first_to_publish_is_the_one_to_share() -> None:
    index = filled(pages=1)
    label = Chain(TOKENS, 4).label(1)
    assert not index.pages.add(label, Page(9))
    assert index.pages.find(label) == 1
    index.pages.forget(Page(1))
    assert index.pages.add(label, Page(9))
