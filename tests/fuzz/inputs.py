"""The inputs of decoders: junk, and good inputs with changes; each input is a pure function of a seed.

These functions draw inputs themselves because hypothesis takes 20 to 50 ms for such a nested input, a decoder only
some microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Draw = Callable[[Random], Any]

NUMBERS = [
    -(2**63) - 1, -(2**63), -1_000, -2, -1, 0, 1, 2, 3, 255, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**40,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")]
TEXTS = [
    "", "a", "b", "orders", "orders/0", "0", "1", "-1", "2\u00b2", "\u0663", "1e9", "9" * 40, "9" * 4_400, "true",
    "null", "NaN", "Infinity", "\0", "\ud800", "\u2028", "\u00e9" * 300, "/", "..", "[z-a]", "(", "*", "a{99999999999}",
    "[" * 2_000, "{", "}", '"', ",", " ", "\n", "earliest", "PT1S", "P", "T", "1 second", "P1M", "year", "--", "&&",
    "]", '{"a":{"0":1}}', '{"a":[0]}',
]  # fmt: skip
_ALPHABET = "aZ09-+. /\\[]{}\"':,_é\u00b2\n\0"
_MOST_DEEP = 4


def text(rng: Random) -> str:
    """Draw a text of the table, or a few characters."""
    return rng.choice(TEXTS) if rng.random() < 0.7 else "".join(rng.choices(_ALPHABET, k=rng.randrange(9)))


def number(rng: Random) -> int:
    """Draw a number at which code breaks, or a small number."""
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randrange(-10, 300)


def junk(rng: Random, deep: int = 0) -> Any:
    """Draw any value of JSON and msgpack."""
    match rng.randrange(8 if deep < _MOST_DEEP else 6):
        case 0:
            return rng.choice([None, True, False])
        case 1 | 2:
            return number(rng)
        case 3:
            return rng.choice(FLOATS)
        case 4 | 5:
            return text(rng)
        case 6:
            return [junk(rng, deep + 1) for _ in range(rng.randrange(4))]
        case _:
            return {text(rng): junk(rng, deep + 1) for _ in range(rng.randrange(4))}


def one_of(*draws: Draw) -> Draw:
    """Draw by one of these functions, each with the same chance."""
    return lambda rng: rng.choice(draws)(rng)


def then(draw: Draw, *convert: Callable[[Any], Any]) -> Draw:
    """Draw a value and convert it, step by step."""

    def converted(rng: Random) -> Any:
        value = draw(rng)
        for step in convert:
            value = step(value)
        return value

    return converted


def changed_bytes(*seeds: bytes) -> Draw:
    """Draw random bytes, or good bytes that were cut, extended or replaced in part."""

    def draw(rng: Random) -> bytes:
        if rng.random() < 0.1:
            return rng.randbytes(rng.randrange(100))
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0 if at < len(data):
                    data[at] = rng.choice([0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xDD, 0xDF, 0xFF])
                case 1 if at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
                case 2:
                    del data[at:]
                case 3:
                    del data[at : at + rng.randrange(1, 9)]
                case _:
                    data[at:at] = rng.randbytes(rng.randrange(9))
        return bytes(data)

    return draw


def changed_text(*seeds: str) -> Draw:
    """Draw random text, or good text that was cut or got other characters."""

    def draw(rng: Random) -> str:
        given = rng.choice(seeds) if rng.random() < 0.9 else text(rng)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(given) + 1)
            given = given[:at] + text(rng) + given[at + rng.randrange(6) :]
        return given

    return draw


def changed_tree(*seeds: Any) -> Draw:
    """Draw a tree of lists, dicts and values; some values are junk, missing, renamed or copies of other parts."""

    def draw(rng: Random) -> Any:
        tree = rng.choice(seeds)
        for _ in range(rng.choice([1, 1, 2, 3])):
            paths = list(_paths(tree))
            how = rng.choice(["junk", "junk", "other", "drop", "rename"])
            value = _at(tree, rng.choice(paths)) if how == "other" else junk(rng)
            tree = _changed(tree, rng.choice(paths), how, value)
        return tree

    return draw


def changed_options(*seeds: dict[str, str]) -> Draw:
    """Draw options with some changed values; values that are JSON may also change inside."""
    names = sorted({name for seed in seeds for name in seed})
    trees = [json.loads(value) for seed in seeds for value in seed.values() if value.startswith("{")]
    values = [text, changed_text("10", "1 minute", "true")]
    if trees:
        values.append(then(changed_tree(*trees), json.dumps))

    def draw(rng: Random) -> dict[str, str]:
        given = dict(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            given[rng.choice(names)] = rng.choice(values)(rng)
        return given

    return draw


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(tree, dict | list):
        for step in tree if isinstance(tree, dict) else range(len(tree)):
            yield from _paths(tree[step], (*path, step))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _changed(tree: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    if not path:
        return value
    copy, step = tree.copy(), path[0]
    if len(path) > 1:
        copy[step] = _changed(tree[step], path[1:], how, value)
    elif how == "drop":
        del copy[step]
    elif how == "rename" and isinstance(copy, dict):
        copy[value if isinstance(value, str) else "renamed"] = copy.pop(step)
    else:
        copy[step] = value
    return copy
