"""Messages between a crew and a worker: a kind and pickled bytes, over a pair of sockets.

Not `multiprocessing.Connection`: the crew may never block on a worker, which can be stopped in the
midst of a message, or before it has read one. So the crew's end takes and gives what the socket
has room for; the worker's end blocks. Knows nothing of what the bytes mean.
"""

import socket
import struct
from collections import deque
from enum import IntEnum

_HEAD = struct.Struct("!QB")  # bytes of the message, and its kind
_CHUNK_BYTES = 1 << 20


class Word(IntEnum):
    """The kind of a message."""

    MAKE = 0  # to the worker: how to import, and what makes the handler
    ORDER = 1
    READY = 2  # from the worker, as `AnswerKind`
    STEP = 3
    DONE = 4
    FAILED = 5


def frame(word: Word, content: bytes) -> bytes:
    """Return the message as it goes over the wire."""
    return _HEAD.pack(len(content), word) + content


class Channel:
    """The crew's end: never waits."""

    def __init__(self, ours: socket.socket) -> None:
        """Take the socket over."""
        ours.setblocking(False)
        self._socket = ours
        self._out: deque[memoryview] = deque()
        self._in = bytearray()
        self.is_ended = False  # nothing more can be read

    def fileno(self) -> int:
        """Return what a selector waits for."""
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """True while something is still to be sent."""
        return bool(self._out)

    def send(self, word: Word, content: bytes) -> None:
        """Send the message as far as there is room; `flush` sends the rest."""
        self._out.append(memoryview(frame(word, content)))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for. To a worker that is gone it goes nowhere."""
        while self._out:
            try:
                sent = self._socket.send(self._out[0][:_CHUNK_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                return
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()

    def receive(self) -> list[tuple[Word, bytes]]:
        """Return the messages that have arrived whole."""
        while not self.is_ended:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self.is_ended = not chunk
            self._in += chunk
        return self._whole()

    def _whole(self) -> list[tuple[Word, bytes]]:
        found: list[tuple[Word, bytes]] = []
        start = 0
        while len(self._in) - start >= _HEAD.size:
            size, word = _HEAD.unpack_from(self._in, start)
            end = start + _HEAD.size + size
            if end > len(self._in):
                break
            found.append((Word(word), bytes(self._in[start + _HEAD.size : end])))
            start = end
        del self._in[:start]
        return found

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def read_message(theirs: socket.socket) -> tuple[Word, bytes]:
    """Return the next message at the worker's end, once it is there; `EOFError` at the end."""
    size, word = _HEAD.unpack(_exactly(theirs, _HEAD.size))
    return Word(word), _exactly(theirs, size)


def _exactly(theirs: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = theirs.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    view.release()
    return bytes(content)
