"""The project speaks plain English: few sentences that a reader has to decode (`tests/prose.py`)."""

from __future__ import annotations

import pytest

from tests.prose import Sentence, files, sentences

PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs")
INVERTED_PERCENT, FULL_OF_POINTERS_PERCENT = 0.3, 1.5
"""At most so many. In eleven well-known libraries 0 to 0.9 and 0 to 1.3 % were found."""


@pytest.mark.parametrize("places", [("watermark",), ("sources",), ("integration",), PAGES], ids=lambda each: each[0])
def test_few_sentences_have_to_be_decoded(places: tuple[str, ...]) -> None:
    read = sentences(files(*places))
    assert len(read) > 500, "the sentences are found"
    for kind, most_percent in (("inverted", INVERTED_PERCENT), ("full_of_pointers", FULL_OF_POINTERS_PERCENT)):
        found = [f"{each.place}: {each.text}" for each in read if getattr(each, kind)]
        assert len(found) <= most_percent / 100 * len(read), f"{kind.replace('_', ' ')}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "inverted", "full_of_pointers"),
    [
        ("Of a split that is silent nothing is known before.", True, False),
        ("Nor is it known before the report who had rows.", True, False),
        ("What is known of one split, given the counts before.", True, False),
        ("It is the one behind the one that was there before.", False, True),
        ("Call when the heartbeat reader is answered by the driver.", False, False),
        ("What would move the low watermark of this stream?", False, False),
    ],
)
def test_a_riddle_is_told_from_a_plain_sentence(text: str, inverted: bool, full_of_pointers: bool) -> None:
    sentence = Sentence("here", text)
    assert (sentence.inverted, sentence.full_of_pointers) == (inverted, full_of_pointers)
