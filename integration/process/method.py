"""A method of a service of ours, for both ends of both wires."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from lowmark.integration.errors import MalformedMessage

from .codec import Codec

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Method(Generic[Question, Answer]):
    """The name of a method, and the types of its two messages."""

    def __init__(
        self, service: str, name: str, question: type[Question], answer: type[Answer], codec: Codec | None = None
    ) -> None:
        codec = Codec() if codec is None else codec
        self.name, self.path = name, f"/{service}/{name}"
        self._message = question.__name__
        self._decode_question = codec.decoder(question)
        self.decode_answer = codec.decoder(answer)

    def decode_question(self, data: bytes) -> Question:
        """Read a message.

        Raises:
            MalformedMessage: the bytes are no such message; names the field.

        >>> class Ask(msgspec.Struct):
        ...     limit: int
        >>> asked = msgspec.msgpack.encode({"limit": "1"})
        >>> Method("service", "Ask", Ask, Ask).decode_question(asked)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        lowmark.integration.errors.MalformedMessage: Ask: Expected `int`, got `str` - at `$.limit`; nothing ...
        """
        try:
            return self._decode_question(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(self._message, f"{error!s:.300}") from None  # the text may show a name of any length
