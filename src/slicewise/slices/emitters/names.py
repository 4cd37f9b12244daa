"""Names that every reader of the files accepts, and text that stays in its comment or quotes."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping

LONGEST_LABEL = 63  # of a DNS label (RFC 1123), to which Kubernetes holds names and label values


def safe_names(
    names: Iterable[str], *, longest: int = LONGEST_LABEL, otherwise: str = "workload"
) -> Mapping[str, str]:
    """Return for each name one of small letters, digits and dashes, at most `longest` long.

    Different names stay different: a number follows where two would be the same. The names of DNS
    labels, Kubernetes objects, label values and Triton models are of this form.

    >>> safe_names(["ResNet 50", "resnet-50", "\N{GREEK SMALL LETTER ALPHA}"])
    {'ResNet 50': 'resnet-50', 'resnet-50': 'resnet-50-2', 'α': 'workload'}
    """
    made: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        base = safe_name(name, longest=longest, otherwise=otherwise)
        chosen, number = base, 1
        while chosen in taken:
            number += 1
            tail = f"-{number}"
            chosen = f"{base[: longest - len(tail)].rstrip('-')}{tail}"
        taken.add(chosen)
        made[name] = chosen
    return made


def safe_name(name: str, *, longest: int = LONGEST_LABEL, otherwise: str = "workload") -> str:
    """Return a name of small letters, digits and dashes that begins and ends with neither dash.

    >>> safe_name("models/BERT_base.onnx"), safe_name("--"), safe_name("1g.10gb+me")
    ('models-bert-base-onnx', 'workload', '1g-10gb-me')
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    dashed = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return dashed[:longest].rstrip("-") or otherwise


def comment(text: str) -> str:
    """Return text for one line of comment: what is not printable, line ends too, becomes '?'.

    >>> comment("a\\nb")
    'a?b'
    """
    return "".join(char if char.isprintable() else "?" for char in text)


def quoted(text: str) -> str:
    """Return text in double quotes as YAML, JSON and protobuf's text form take it.

    >>> quoted('1g.10gb "x"')
    '"1g.10gb \\\\"x\\\\""'
    """
    return json.dumps(comment(text), ensure_ascii=False)
