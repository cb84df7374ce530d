"""Every error of the product has one base class and survives pickling between processes."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import types
import typing
from collections.abc import Iterator

import lowmark.integration
import lowmark.sources
import lowmark.watermark
import pytest
from lowmark.integration.errors import UnknownStream
from lowmark.watermark import LowmarkError


def defined() -> Iterator[type[Exception]]:
    """All exception classes that our modules define, also private ones."""
    for package in (lowmark.watermark, lowmark.sources, lowmark.integration):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == found.name:
                    yield value


ERRORS = sorted(set(defined()), key=lambda kind: (kind.__module__, kind.__name__))


def made(kind: type[Exception]) -> Exception:
    """Make an error of this class with distinct arguments."""
    if kind.__init__ is Exception.__init__:
        return kind("text")
    taken = inspect.signature(kind).parameters.values()
    hints = typing.get_type_hints(kind.__init__)
    unnamed = [value(hints[each.name], n) for n, each in enumerate(taken) if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: value(hints[each.name], 99) for each in taken if each.kind is each.KEYWORD_ONLY}
    return kind(*unnamed, **named)


def value(hint: typing.Any, n: int) -> typing.Any:
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return value(typing.get_args(hint)[0], n)
    examples = {str: f"text {n}", int: 1_000 + n, float: 0.5 + n, bool: True, tuple: (f"name {n}",)}
    return examples[kind]


def test_all_of_them_are_found() -> None:
    assert {"InvalidDuration", "UnreadableOffset", "InvalidOption", "JournalRefused", "FileChanged"} <= {
        kind.__name__ for kind in ERRORS
    }


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_one_base_catches_them_all_and_they_survive_pickling(kind: type[Exception]) -> None:
    assert issubclass(kind, LowmarkError)
    error = made(kind)
    error.later = "set on the way"  # type: ignore[attr-defined]

    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: TID251  # our own bytes
        assert (type(again), str(again), again.args) == (kind, str(error), error.args)
        assert vars(again) == vars(error)


class ByName(LowmarkError, ValueError):
    """An error that composes its text, and takes its arguments by name."""

    def __init__(self, *, fact: str, hint: str = "none") -> None:
        super().__init__(f"{fact}. Hint: {hint}")
        self.fact = fact


class OfTheSystem(LowmarkError, OSError):
    """An OSError interprets up to five arguments, and keeps two of them in `args`."""

    def __init__(self, one: str, two: str, three: str, four: str) -> None:
        super().__init__(one, two, three, four)
        self.four = four

    def __str__(self) -> str:
        return f"it is {self.four}"


@pytest.mark.parametrize("error", [ByName(fact="f", hint="h"), OfTheSystem("1", "2", "3", "4")], ids=repr)
def test_whatever_a_constructor_takes(error: LowmarkError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: TID251  # our own bytes

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class Refused(LowmarkError, OSError):
    """A declared error, with an attribute that is no field in its text."""

    door: str
    cause: str = "it is locked."
    _fact = "cannot open {door!r} {_twice}: {cause}"
    _hint = "ring the bell."
    _cause_knows_best = True

    @property
    def _twice(self) -> str:
        return f"nor {self.door.upper()}"


def test_an_unknown_stream_among_many_names_the_nearest_and_some() -> None:
    told = str(UnknownStream("orders-19", tuple(f"orders-{n:03}" for n in range(200))))
    assert '"orders-019" and 180 more. Hint: did you mean "orders-' in told


def test_a_declared_error_takes_its_fields_by_place_or_by_name() -> None:
    error = Refused("a", cause="it {creaks}")

    assert (error.door, error.cause, str(error)) == (
        "a",
        "it {creaks}",
        "cannot open 'a' nor A: it {creaks}. Hint: ring the bell.",
    )
    assert error != Refused("a", cause="it {creaks}")  # exceptions stay equal by identity
    assert hash(error) == object.__hash__(error)
    with pytest.raises(TypeError, match="door"):
        Refused()  # type: ignore[call-arg]


def test_a_cause_that_brought_its_own_hint_has_the_last_word() -> None:
    assert str(Refused("a")) == "cannot open 'a' nor A: it is locked. Hint: ring the bell."
    assert str(Refused("a", "locked. Hint: the key is under the mat.")) == (
        "cannot open 'a' nor A: locked. Hint: the key is under the mat."
    )
