"""Conformance suites and tiny graphs that a plug-in inherits or uses in its tests."""
