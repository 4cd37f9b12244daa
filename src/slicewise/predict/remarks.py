"""Notes on what was asked: conditions that change nothing, and fp32 where TF32 is the default."""

from slicewise.core.conditions import USUAL, Conditions, version_text
from slicewise.core.cost import Kind
from slicewise.core.device import Device
from slicewise.core.notes import Note
from slicewise.core.precision import DType
from slicewise.predict.kernels import KernelTable, kinds_computed_in
from slicewise.predict.runtimes import Runtime


def may_be_nvidia(device: Device) -> bool:
    """True for a GPU whose vendor is NVIDIA or not told."""
    return device.kind == "gpu" and device.vendor in ("NVIDIA", "")


def ignored(conditions: Conditions, runtime: Runtime) -> tuple[Note, ...]:
    """Tell which of the conditions that were asked change nothing here."""
    notes = []
    if conditions.layout != USUAL.layout:
        text = f"the roofline knows no memory layouts; {conditions.layout} changed nothing"
        notes.append(Note("layout-ignored", text))
    version = version_text(conditions.runtime_version)
    if version is not None:
        text = f"the roofline knows no versions of {runtime.name}; {version} changed nothing"
        notes.append(Note("version-ignored", text))
    return tuple(notes)


# What the note on TF32 calls the kinds.
_IN_TF32 = {
    Kind.CONV: "convolutions",
    Kind.MATMUL: "products",
    Kind.ATTENTION: "attention",
    Kind.RECURRENT: "recurrent layers",
}


def tf32_note(kernels: KernelTable, runtime: Runtime, device: Device) -> tuple[Note, ...]:
    """Tell that fp32 was taken at its word where the runtime would not."""
    if DType.TF32 not in device.peak_flop_per_s or not may_be_nvidia(device):
        return ()
    in_fp32 = kinds_computed_in(kernels, DType.FP32) & runtime.tf32_by_default
    if not in_fp32:
        return ()
    text = (
        f"{runtime.name} runs fp32"
        f" {' and '.join(words for kind, words in _IN_TF32.items() if kind in in_fp32)} in TF32 on"
        f" {device.name} unless told otherwise; predicted in full fp32, ask for tf32 to see the"
        " other"
    )
    return (Note("tf32-default", text),)
