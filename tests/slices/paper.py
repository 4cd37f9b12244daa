"""A machine with cards on paper: a program called nvidia-smi that keeps its state in a file.

It knows where the slices of a card may start, and refuses what a driver would.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicewise.core.device import Device
from slicewise.core.packing import PlacedSlice

FAKE = '''#!{python} -SE
"""nvidia-smi on paper: argument by argument, as the script under test writes them."""
import json, sys
path, arguments = {state!r}, sys.argv[1:]
with open(path) as file:
    board = json.load(file)
with open({log!r}, "a") as file:
    file.write(" ".join(arguments) + "\\n")

def stop(words):
    print(words, file=sys.stderr)
    sys.exit(1)

def value(option):
    return arguments[arguments.index(option) + 1]

card = board["cards"].get(value("-i"))
if card is None:
    stop("No devices were found")
slices = card["slices"]
if arguments[0] != "mig":
    if "-mig" in arguments:
        if value("-mig") == "0" and slices:
            stop("In use by another client")
        card["mode"] = "Enabled" if value("-mig") == "1" and not card["pending"] else "Disabled"
    else:
        assert arguments[2:] == ["--query-gpu=mig.mode.current", "--format=csv,noheader"]
        print(card["mode"])
elif card["mode"] != "Enabled":
    stop("No MIG-enabled devices found.")
elif "-cgi" in arguments:
    assert "-C" in arguments
    for told in value("-cgi").split(","):
        name, start = told.rsplit(":", 1)
        profile = next(p for p in board["profiles"] if name in (p["name"], str(p["id"])))
        taken = [s for s in slices if s["start"] < int(start) + profile["size"]
                 and int(start) < s["start"] + s["size"]]
        same = sum(s["name"] == profile["name"] for s in slices)
        if int(start) not in profile["starts"] or taken or same >= profile["most"]:
            stop("Insufficient Resources")
        slices.append(dict(name=profile["name"], start=int(start), size=profile["size"],
                           id=1 + max([s["id"] for s in slices], default=0), compute=True,
                           used=False))
elif "-lgi" in arguments:
    print("+-------------------------------------------------------+")
    print("| GPU instances:                                        |")
    print("| GPU   Name             Profile  Instance   Placement  |")
    print("|                          ID       ID       Start:Size |")
    print("|=======================================================|")
    for s in slices:
        at = "%d:%d" % (s["start"], s["size"])
        print("|   0  MIG %-16s  14  %8d  %10s     |" % (s["name"], s["id"], at))
    print("+-------------------------------------------------------+")
else:
    (found,) = [s for s in slices if str(s["id"]) == value("-gi")]
    if found["used"]:
        stop("In use by another client")
    if "-dci" in arguments:
        found["compute"] = False
    else:
        assert "-dgi" in arguments
        if found["compute"]:
            stop("In use by another client")
        slices.remove(found)
with open(path, "w") as file:
    json.dump(board, file)
'''


@dataclass
class Paper:
    """A machine of cards of one kind with the nvidia-smi of paper before all others in PATH."""

    folder: Path
    device: Device
    cards: dict[str, Any] = field(default_factory=dict)

    def card(
        self, index: int, *, slices: tuple[PlacedSlice, ...] = (), pending: bool = False
    ) -> None:
        self.cards[str(index)] = {
            "mode": "Enabled" if slices else "Disabled",
            "pending": pending,
            "slices": [
                {
                    "name": each.profile, "start": each.start, "id": 20 + i, "compute": True,
                    "size": self.device.profile_named(each.profile or "").size,
                    "used": each.in_use,
                }
                for i, each in enumerate(slices)
            ],
        }  # fmt: skip

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        profiles = [
            {"name": p.name, "id": p.profile_id, "starts": p.starts, "size": p.size,
             "most": p.max_instances}
            for p in self.device.profiles
        ]  # fmt: skip
        state, program = self.folder / "state.json", self.folder / "nvidia-smi"
        state.write_text(json.dumps({"profiles": profiles, "cards": self.cards}))
        log = self.folder / "log"
        log.write_text("")
        program.write_text(FAKE.format(python=sys.executable, state=str(state), log=str(log)))
        program.chmod(0o755)
        (self.folder / "apply.sh").write_text(script)
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", str(self.folder / "apply.sh"), *arguments],
            env={"PATH": path}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.cards = json.loads(state.read_text())["cards"]
        return done

    @property
    def commands(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def stands(self, index: int) -> set[tuple[str, int]]:
        return {(each["name"], each["start"]) for each in self.cards[str(index)]["slices"]}
