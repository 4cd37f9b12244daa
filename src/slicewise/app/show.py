"""How a command shows its result: the JSON document or the report on stdout, talk on stderr."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def show(
    document: Callable[[], dict[str, object]],
    report: Callable[[], None],
    *,
    as_json: bool,
    output: Path | None,
) -> None:
    """Write the document where asked, then print it or the report."""
    from slicewise.app.documents import encode
    from slicewise.app.files import write_atomically

    encoded = encode(document()) if as_json or output is not None else b""
    if output is not None:
        write_atomically(output, encoded)
    if as_json:
        sys.stdout.buffer.write(encoded)
        sys.stdout.flush()
    else:
        report()


def reason_once(reason: str, *, as_json: bool) -> str:
    """Return the reason of a failure for the line on stderr, or where the reader has it from.

    A person at a terminal has just read it in the report; scripts and log files have it here too.
    """
    is_read = not as_json and sys.stdout.isatty() and sys.stderr.isatty()
    return "the report above says why" if is_read else reason


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a reporter of what is being worked on: a spinner on a terminal's stderr, else None."""
    if quiet or "NO_COLOR" in os.environ or not sys.stderr.isatty():
        yield None
        return
    from slicewise.app.report import console

    with console(stderr=True).status("reading") as status:
        yield lambda words: status.update(words)
