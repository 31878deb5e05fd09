from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cache.chain import chain_of, common_pages

from .examples import EXAMPLES
from .harness import make_request

TOKENS = tuple(range(1, 21))


def chain(tokens: tuple[int, ...]) -> list[bytes]:
    return list(chain_of(make_request("a", tokens), 4))


def test_a_hash_depends_on_every_token_before_it() -> None:
    known = chain(TOKENS)
    assert len(known) == 5 and len(set(known)) == 5
    assert chain(TOKENS[:15]) == known[:3]
    for place in range(12):
        changed = [token + (i == place) for i, token in enumerate(TOKENS)]
        assert [a == b for a, b in zip(chain(tuple(changed)), known, strict=True)] == [
            page < place // 4 for page in range(5)
        ]


def test_a_chain_follows_tokens_that_grow_and_hashes_none_twice() -> None:
    request = make_request("a", TOKENS[:6])
    first = chain_of(request, 4)
    assert len(first) == 1
    request.tokens += TOKENS[6:]
    assert chain_of(request, 4) is first and first == chain(TOKENS)


@EXAMPLES
@given(st.lists(st.integers(0, 1), max_size=24), st.lists(st.integers(0, 1), max_size=24), st.integers(0, 20))
def test_common_pages(one: list[int], other: list[int], shared: int) -> None:
    stem = [5] * shared
    first, second = (chain((*stem, *tail)) for tail in (one, other))
    same = [a == b for a, b in zip(first, second, strict=False)]
    assert common_pages(first, second) == (same.index(False) if False in same else len(same))
