"""Devices: the catalogue of data sheets and the probe of this machine."""
