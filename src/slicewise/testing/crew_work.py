"""Handlers that the workers of the suite of crews live by, where a worker can import them.

Each `do_` function is an order: its name and its arguments.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from slicewise.core.crew import Handler, Tell
from slicewise.core.errors import MissingDependency, UsageError


def work(order: object, tell: Tell) -> object:
    """Do what the order names: ('square', 3), ('fail', 'text'), ('steps', 2), ('die', 3), ..."""
    assert isinstance(order, tuple)
    return globals()[f"do_{order[0]}"](tell, *order[1:])


def make_work() -> Handler:
    """Return `work`."""
    return work


def make_counting(start: int) -> Handler:
    """Return a handler with a state: it adds the orders up, from `start`."""
    total = start

    def add(order: object, tell: Tell) -> object:
        nonlocal total
        assert isinstance(order, int)
        total += order
        return total

    return add


def make_nothing(text: str) -> NoReturn:
    """Fail to make a handler."""
    raise UsageError(text)


def make_death() -> NoReturn:
    """Die where a handler is to be made."""
    print("no such device")
    sys.stdout.flush()
    os._exit(7)


def do_square(tell: Tell, number: int) -> int:
    """Return the square."""
    return number * number


def do_fail(tell: Tell, text: str) -> NoReturn:
    """Raise an error of ours."""
    raise UsageError(text)


def do_lack(tell: Tell) -> NoReturn:
    """Raise an error that a message alone cannot make."""
    raise MissingDependency("this work", package="nothing", extra=None)


def do_steps(tell: Tell, count: int) -> str:
    """Tell 0 to `count` - 1."""
    for number in range(count):
        tell(number)
    return "told"


def do_who(tell: Tell) -> tuple[int, int]:
    """Return the ids of this process and its session."""
    return os.getpid(), os.getsid(0)


def do_die(tell: Tell, code: int) -> NoReturn:
    """End the process, with last words."""
    print("\n  my last\twords ")
    sys.stdout.flush()
    os._exit(code)


def do_hang(tell: Tell) -> NoReturn:
    """Tell the id of the process, then loop without end."""
    tell(os.getpid())
    while True:
        pass


def do_count(tell: Tell, path: str) -> NoReturn:
    """Tell the id of the process, then write growing numbers into the file without end."""
    _count(path, tell)


def do_echo(tell: Tell, content: bytes) -> bytes:
    """Return what was sent."""
    return content


def do_flood(tell: Tell, size: int) -> bytes:
    """Tell that it begins, then return `size` bytes."""
    tell("now")
    return b"x" * size


def do_lambda(tell: Tell) -> object:
    """Return what cannot be sent."""
    return lambda: None


def do_start(tell: Tell, path: str, apart: bool) -> int:
    """Start a process that counts, in a session of its own if `apart`; return its id."""
    code = "import sys; from slicewise.testing.crew_work import count; count(sys.argv[1])"
    started = subprocess.Popen([sys.executable, "-c", code, path], start_new_session=apart)
    return started.pid


def do_start_and_die(tell: Tell, path: str) -> NoReturn:
    """Start a process that counts and die, which leaves it behind."""
    tell(do_start(tell, path, True))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def do_folder(tell: Tell) -> str:
    """Leave a file in the folder for temporary files; return the folder."""
    Path(tempfile.gettempdir(), "left.txt").write_text("x")
    return tempfile.gettempdir()


def count(path: str) -> NoReturn:
    """Write growing numbers into the file without end."""
    _count(path, lambda _: None)


def _count(path: str, tell: Tell) -> NoReturn:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    number = 0
    while True:
        os.pwrite(descriptor, number.to_bytes(8, "little"), 0)
        if number == 0:
            tell(os.getpid())
        number += 1


def counted(path: Path) -> int:
    """Return the number in the file, -1 for none yet."""
    with suppress(FileNotFoundError):
        if content := path.read_bytes():
            return int.from_bytes(content, "little")
    return -1


def is_running(pid: int) -> bool:
    """True while the process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False
