"""Readable, unique names for the nodes of a PyTorch program, and which modules called them.

A name follows the module that an operator runs in; none depends on the batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

# FX writes this where an operator has no module of its own
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"


def scopes_of(node: Any) -> tuple[str, ...]:
    """Return the module calls that an FX node runs in, outermost first; '' is the model itself.

    A module that is called again has '@1', '@2' behind its path.
    """
    stack = node.meta.get("nn_module_stack") or {}
    found = [""]
    for key, entry in stack.items():
        if key == _NO_MODULE:
            continue
        path = str(entry[0])
        again = str(key).rpartition("@")[2] if "@" in str(key) else ""
        if again.isdigit() and not path.endswith(f"@{again}"):
            path = f"{path}@{again}"
        if path and path != found[-1]:
            found.append(path)
    return tuple(found)


def node_names(scopes: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return one unique name for each operator, given its innermost module call and ATen name.

    The module's own path where it is the only operator of that call, else path/operator.
    """
    own = Counter(scopes)
    taken: set[str] = set()
    names: list[str] = []
    again: Counter[str] = Counter()
    for scope, kind in zip(scopes, kinds, strict=True):
        alone = scope and own[scope] == 1
        stem = scope if alone else f"{scope}/{kind}" if scope else kind
        name = stem
        while name in taken:
            again[stem] += 1
            name = f"{stem}_{again[stem]}"
        taken.add(name)
        names.append(name)
    return names


def held_arguments(
    reads: Sequence[Sequence[str]],
    writes: Sequence[Sequence[str]],
    stacks: Sequence[tuple[str, ...]],
    inputs: Sequence[str],
) -> Mapping[str, int]:
    """Return, for tensors that module calls were made with, the node at which the last returns.

    What is read inside a module call and was made outside it is an argument: the caller's frame
    refers to it until the call returns (CPython keeps the arguments of a running call alive). By
    index, and only where that is later than the last node that reads the tensor. Time
    O(reads x depth).
    """
    last_of_call: dict[str, int] = {}
    for i, stack in enumerate(stacks):
        for scope in stack:
            last_of_call[scope] = i
    made_in: dict[str, frozenset[str]] = dict.fromkeys(inputs, frozenset())
    last_read: dict[str, int] = {}
    held: dict[str, int] = {}
    for i, stack in enumerate(stacks):
        for name in reads[i]:
            last_read[name] = i
            around = made_in.get(name)
            if around is None:
                continue
            outermost = next((scope for scope in stack if scope not in around), None)
            if outermost is not None:
                held[name] = max(held.get(name, 0), last_of_call[outermost])
        scope_set = frozenset(stack)
        for name in writes[i]:
            made_in[name] = scope_set
    return {name: i for name, i in held.items() if i > last_read.get(name, -1)}
