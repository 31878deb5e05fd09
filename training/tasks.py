"""Made-up conversations that cannot be answered without memory: recall, copy, and small arithmetic.

Everything to remember is drawn anew for each, so nothing can be learnt by heart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from .chat import Turn

SHORTEST, LONGEST = 24, 1900
"""Of the tokens to remember, about."""


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    "Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Peter Rosa Sam Tom Zoe "
    "Alice Bob Carl Dora Eric Fay George Helen Ian Julia Kevin Lucy Max Nora Oscar Paul Ruth Simon Tina Will"
)
ADJECTIVES = _words(
    "red blue green yellow black white brown golden silver purple small big old new round soft hard bright dark "
    "clean heavy light long short warm cold quiet happy sleepy brave"
)
NOUNS = _words(
    "apple ball bell bird boat book bottle box bread bridge brush button cake candle cap car carpet castle cat "
    "chair clock cloud coat coin cup dog door dress drum duck egg feather fish flag flower flute fork garden "
    "gate glass glove hammer hat heart horse house jar key kite knife ladder lamp leaf letter lion map mirror "
    "mountain needle nest orange paint pan paper pen pencil phone piano picture pillow plate pot rabbit ribbon "
    "ring river robot rock rope rose shell ship shirt shoe spoon star stone street sun table tiger toy train "
    "tree umbrella vase violin wagon wheel whistle window wolf"
)
VERBS = _words("sees likes finds carries paints hides follows draws keeps drops")
PLACES = ["in the kitchen", "by the river", "under the tree", "on the hill", "near the market", "at school"]

Task = Callable[[Random, int], list[Turn]]


def number(random: Random) -> str:
    return str(random.randrange(10, 10 ** random.randint(2, 5)))


def code(random: Random) -> str:
    letters = "".join(random.choice("abcdefghijkmnpqrstuvwxyz") for _ in range(random.randint(2, 3)))
    return f"{letters}{random.randrange(10, 100)}"


def thing(random: Random) -> str:
    return f"{random.choice(ADJECTIVES)} {random.choice(NOUNS)}"


def _keys(random: Random, count: int) -> list[str]:
    """All different, of one kind where that kind has enough."""
    kinds: list[Callable[[], str]] = [
        lambda: thing(random),
        lambda: code(random),
        lambda: f"{random.choice(NAMES)} {random.choice(NAMES)}",
    ]
    if count < len(NOUNS) // 2:
        kinds.append(lambda: random.choice(NOUNS))
    if count < len(NAMES) // 2:
        kinds += [lambda: random.choice(NAMES)] * 2
    draw, found = random.choice(kinds), dict[str, None]()
    while len(found) < count:
        found[draw()] = None
    return list(found)


def _asked(random: Random, known: dict[str, str], most: int = 8) -> list[tuple[str, str]]:
    return random.sample(list(known.items()), min(len(known), random.randint(2, most)))


def _conversation(intro: str, queries: list[tuple[str, str]]) -> list[Turn]:
    """What is to be remembered stands before the first question only."""
    (first, answer), *others = queries
    return [Turn(f"{intro}\n{first}", answer), *(Turn(question, answer) for question, answer in others)]


def lookup(random: Random, tokens: int) -> list[Turn]:
    """A list of keys and values."""
    value = random.choice([number, code, thing, lambda r: r.choice(NOUNS)])
    known = {key: value(random) for key in _keys(random, max(2, tokens // 8))}
    line = random.choice(["{}: {}", "{} = {}", "{} -> {}", "{} is {}"])
    ask = random.choice(["What is {}?", "Look up {}.", "{}?", "Tell me the value of {}."])
    listed = random.choice(["\n", "\n", ", ", "; "]).join(line.format(*pair) for pair in known.items())
    head = random.choice(["Remember this list.", "Here is a table.", "Read these values:"])
    return _conversation(f"{head}\n{listed}", [(ask.format(k), v) for k, v in _asked(random, known)])


def belongings(random: Random, tokens: int) -> list[Turn]:
    """Sentences about people and what they have."""
    known = {key: f"a {thing(random)}" for key in _keys(random, max(2, tokens // 9))}
    verb, ask = random.choice(
        [
            ("has", "What does {} have?"),
            ("bought", "What did {} buy?"),
            ("found", "What did {} find?"),
            ("lost", "What did {} lose?"),
        ]
    )
    told = " ".join(f"{key} {verb} {it}." for key, it in known.items())
    return _conversation(told, [(ask.format(k), f"{k} {verb} {v}.") for k, v in _asked(random, known)])


def latest(random: Random, tokens: int) -> list[Turn]:
    """Variables that change: the last value counts."""
    names = _keys(random, random.randint(2, max(2, min(24, tokens // 16))))
    known: dict[str, str] = {}
    lines = []
    for place in range(max(len(names), tokens // 8)):
        name = names[place] if place < len(names) else random.choice(names)
        known[name] = str(random.randrange(100))
        lines.append(f"{name} = {known[name]}")
    head = random.choice(["Values change. Only the last one counts.", "Follow these values to the end."])
    ask = random.choice(["What is {} now?", "Now {} is?"])
    return _conversation(
        head + "\n" + "\n".join(lines), [(ask.format(k), v) for k, v in _asked(random, known)]
    )


def needle(random: Random, tokens: int) -> list[Turn]:
    """A few facts in much talk."""
    known = {key: number(random) for key in _keys(random, random.randint(1, 4))}
    told = [_idle_sentence(random) for _ in range(max(2, tokens // 10))]
    for key, value in known.items():
        told.insert(random.randrange(len(told) + 1), f"The secret number of {key} is {value}.")
    queries = [(f"What is the secret number of {k}?", v) for k, v in known.items()]
    random.shuffle(queries)
    return _conversation(" ".join(told), queries)


def _idle_sentence(random: Random) -> str:
    who = random.choice(NAMES) if random.random() < 0.5 else f"The {thing(random)}"
    return f"{who} {random.choice(VERBS)} the {random.choice(NOUNS)} {random.choice(PLACES)}."


def copy(random: Random, tokens: int) -> list[Turn]:
    """A text to be said again, word for word."""
    count = max(3, tokens // 4)
    word = random.choice(
        [number, code, lambda r: r.choice(NOUNS), lambda r: r.choice(NOUNS), lambda r: r.choice(NAMES)]
    )
    text = random.choice([" ", " ", ", ", "\n"]).join(word(random) for _ in range(count))
    if random.random() < 0.25:
        text = " ".join(_idle_sentence(random) for _ in range(max(1, tokens // 20)))
    ask = random.choice(["Repeat this:", "Copy this text.", "Say this again, word for word:", "Copy:"])
    return [Turn(f"{ask}\n{text}", text)]


def after(random: Random, tokens: int) -> list[Turn]:
    """Which word of a list comes next?"""
    words = _keys(random, max(3, min(tokens // 4, 300)))
    place = random.sample(range(len(words) - 1), min(len(words) - 1, random.randint(2, 6)))
    ask = random.choice(["What comes after {}?", "Which one follows {}?"])
    head = random.choice(["Here is a row of words:", "Remember the order:"])
    return _conversation(f"{head} {', '.join(words)}.", [(ask.format(words[i]), words[i + 1]) for i in place])


def arithmetic(random: Random, tokens: int) -> list[Turn]:
    """Sums, differences and small products, the question said again before the answer."""
    return [_sum(random) for _ in range(min(12, max(2, tokens // 30)))]


def _sum(random: Random) -> Turn:
    a, b = random.randrange(random.choice([10, 100, 100, 1000])), random.randrange(random.choice([10, 100]))
    sign, result = random.choice([("+", a + b), ("+", a + b), ("-", a - b), ("*", (a % 10) * (b % 10))])
    if sign == "*":
        a, b = a % 10, b % 10
    ask = random.choice(["What is {}?", "{}", "How much is {}?", "Calculate {}."])
    return Turn(ask.format(f"{a} {sign} {b}"), f"{a} {sign} {b} = {result}")


RECALL: dict[str, Task] = {
    "lookup": lookup,
    "belongings": belongings,
    "latest": latest,
    "needle": needle,
    "copy": copy,
    "after": after,
}
TASKS: dict[str, Task] = {**RECALL, "arithmetic": arithmetic}


def endless(random: Random, *, shortest: int = SHORTEST, longest: int = LONGEST) -> Iterator[list[Turn]]:
    """Every task in turn at random, and as many short ones as long ones (on a scale of powers)."""
    while True:
        tokens = round(math.exp(random.uniform(math.log(shortest), math.log(longest))))
        yield random.choice(list(TASKS.values()))(random, tokens)
