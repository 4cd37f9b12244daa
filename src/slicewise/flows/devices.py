"""`devices`: what the catalogue holds."""

from slicewise.core.device import Device


def devices() -> tuple[Device, ...]:
    """Return every device of the catalogue, by name.

    >>> "h100-sxm5-80gb" in {card.name for card in devices()}
    True
    """
    from slicewise.hardware.catalogue import device_names, find_device

    return tuple(find_device(name) for name in device_names())


def device(name: str | None) -> Device:
    """Return one device, slice (`name/2g.20gb`), share (`name@50%`), file or this machine (`cpu`).

    None is what `predict` takes without a device: this machine's first GPU, or its CPU.
    `DeviceError` names the nearest known ones.

    >>> part = device("h100-sxm5-80gb/1g.20gb")
    >>> part.compute_units, part.whole.compute_units
    (26, 132)
    """
    from slicewise.hardware.catalogue import find_device
    from slicewise.hardware.probe import probe_cpu, probe_gpus

    if name is None:
        return next(iter(probe_gpus()), None) or probe_cpu()
    return find_device(name)
