"""What is called first in a process that measures. Imports no numpy: that is what is tested."""

import os
import sys

from slicewise.core.errors import DeviceError
from slicewise.core.measurement import Job
from slicewise.core.notes import Note


def bind_nothing(job: Job) -> tuple[Note, ...]:
    return ()


def bind_to_one_core(job: Job) -> tuple[Note, ...]:
    assert "numpy" not in sys.modules
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return (Note("bound-in-test", "to one core"),)


def bind_impossibly(job: Job) -> tuple[Note, ...]:
    raise DeviceError("there is no core 99; there are 2; choose one of them")


def bind_wrongly(job: Job) -> tuple[Note, ...]:
    raise OSError("the first line\nthe last line")
