"""Answers of S3 that are cut in their headers, which Arrow's client takes for empty ones, without an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pyarrow as pa
import pytest
from lowmark.sources.files import FileSource
from lowmark.sources.files.errors import FileUnreadable

from tests.servers.local import LOCALHOST

LINES = {"csv": ["id", *map(str, range(100))], "json": [f'{{"id": {n}}}' for n in range(100)]}


@contextmanager
def bucket(content: bytes, heads: list[bool]) -> Iterator[str]:
    """Yield the host and port of a server with one file; `heads` says whether the next answers to HEAD come whole."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, last = (int(byte) for byte in self.headers["Range"].removeprefix("bytes=").split("-"))
            self._answer(206, content[first : last + 1])

        def do_HEAD(self) -> None:
            self._answer(200, content, is_whole=heads.pop(0) if heads else True)

        def _answer(self, status: int, part: bytes, *, is_whole: bool = True) -> None:
            self.wfile.write(b"HTTP/1.1 %d OK\r\nServer: x\r\n" % status)
            if is_whole:
                self.wfile.write(
                    b"Last-Modified: Mon, 23 Nov 2026 10:00:00 GMT\r\nContent-Length: %d\r\n\r\n" % len(part)
                )
                self.wfile.write(b"" if self.command == "HEAD" else part)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((LOCALHOST, 0), Answer) as server:
        answering = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        answering.start()
        try:
            yield f"{LOCALHOST}:{server.server_port}"
        finally:
            server.shutdown()
            answering.join()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_cut_answer_about_a_file_takes_none_of_its_rows_away(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text counted as empty and as read, without a word, or the error said that it had changed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "eu-central-1")
    content, heads = "\n".join(LINES[kind]).encode(), list[bool]()
    with bucket(content, heads) as place:
        address = f"s3://bucket/a.{kind}?scheme=http&endpoint_override={place}"
        source = FileSource(address, format=kind, schema=pa.schema({"id": pa.int64()}))
        split = source.listing.find(f"a.{kind}")
        assert split is not None
        planned = replace(split, stop=1)

        heads += [False]  # of the look whether the file has changed
        assert source.latest([split])[split.split_id].rows == 100
        heads += [True, False, False, False]  # of the file when it is opened
        with pytest.raises(FileUnreadable, match=f"it had {len(content)} bytes when it was found, and has 0"):
            source.latest([split])
        heads[:] = [True, False, False, False]
        with pytest.raises(FileUnreadable, match=f"it had {len(content)} bytes when it was found, and has 0"):
            list(source.read(planned))
        heads.clear()
        assert [number for rows, _ in source.read(planned) for number in rows["id"].to_pylist()] == list(range(100))
