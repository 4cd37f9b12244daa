"""The language of the house: frozen types, units, errors and the plug-in finder.

Standard library only. Nothing here reads a file, knows a framework or imports another room.
"""
