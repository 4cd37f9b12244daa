"""Which version of a tensor a reader sees, where operators write into storage that is shared.

Eager code may write through a view: `x[:, 0].add_(1)` changes what a later reader of `x` sees,
though no result of the write is ever named there. Here every write is booked on the storage; who
reads a name that was made before the last write gets a new version of it. Names only: no torch,
no shapes. Two views of one storage are taken to overlap, which costs an edge, never a kernel.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Versions:
    """The writes of a program so far, by the storage that they went to. Steps count nodes."""

    _owner: dict[str, str] = field(default_factory=dict)  # a view -> the tensor with the storage
    _written: dict[str, tuple[int, str]] = field(default_factory=dict)  # storage -> last write
    _made: dict[str, int] = field(default_factory=dict)  # a name -> its step; not given: -1
    _newer: dict[str, str] = field(default_factory=dict)  # a name -> its next version
    _count: int = 0

    def made(self, name: str, *, of: str, step: int) -> None:
        """Book a tensor made in `step`; `of` is the tensor whose storage it shares, '' its own."""
        self._made[name] = step
        if of:
            self._owner[name] = self._root(of)

    def wrote(self, name: str, *, result: str, step: int) -> None:
        """Book that `step` wrote into the storage of `name`; `result` stands for what it wrote."""
        self._written[self._root(name)] = (step, result)

    def replaced(self, name: str, by: str) -> None:
        """Book that who reads `name` from now on sees `by`."""
        if name != by:
            self._newer[name] = by

    def latest(self, name: str) -> str:
        """Return the newest version of a name."""
        while name in self._newer:
            name = self._newer[name]
        return name

    def write_since(self, name: str) -> str:
        """Return the result of the last write into the storage of `name` that it does not show
        yet, '' if there is none."""
        step, result = self._written.get(self._root(name), (-1, ""))
        return result if step > self._made.get(name, -1) else ""

    def new_name(self, name: str) -> str:
        """Return a name for the next version of a tensor."""
        self._count += 1
        return f"{name.partition('@')[0]}@{self._count}"

    def _root(self, name: str) -> str:
        return self._owner.get(name, name)
