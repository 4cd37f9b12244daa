"""`devices`: what the catalogue holds."""

from slicewise.core.device import Device


def devices() -> tuple[Device, ...]:
    """Return every device of the catalogue, by name."""
    from slicewise.hardware.catalogue import device_names, find_device

    return tuple(find_device(name) for name in device_names())


def device(name: str) -> Device:
    """Return one device, slice (`name/2g.20gb`), share (`name@50%`), file or this machine (`cpu`).

    `DeviceError` names the nearest known ones.
    """
    from slicewise.hardware.catalogue import find_device

    return find_device(name)
