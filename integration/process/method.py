"""A method of a service of ours, for both ends of both wires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from lowmark.integration.errors import MalformedMessage

from .codec import Codec

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Message = TypeVar("Message")


class Method(Generic[Question, Answer]):
    """The name of a method, and the types of its two messages."""

    def __init__(
        self, service: str, name: str, question: type[Question], answer: type[Answer], codec: Codec | None = None
    ) -> None:
        codec = Codec() if codec is None else codec
        self.name, self.path = name, f"/{service}/{name}"
        self._question, self._answer = question.__name__, answer.__name__
        self._read_question, self._read_answer = codec.decoder(question), codec.decoder(answer)

    def decode_question(self, data: bytes) -> Question:
        """Read a message.

        Both ends call this class themselves, because the error of gRPC for such bytes names no field.

        Raises:
            MalformedMessage: the bytes are no such message; names the field.

        >>> class Ask(msgspec.Struct):
        ...     limit: int
        >>> asked = msgspec.msgpack.encode({"limit": "1"})
        >>> Method("service", "Ask", Ask, Ask).decode_question(asked)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lowmark.integration.errors.MalformedMessage: Ask: Expected `int`, got `str` - at `$.limit`; nothing ...
        """
        return _decoded(self._read_question, data, self._question)

    def decode_answer(self, data: bytes) -> Answer:
        """Read an answer; raises as `decode_question`."""
        return _decoded(self._read_answer, data, self._answer)


def _decoded(read: Callable[[bytes], Message], data: bytes, name: str) -> Message:
    try:
        return read(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(name, f"{error!s:.300}") from None  # the text may show a name of any length
