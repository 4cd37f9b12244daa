"""From a model file to a frozen graph, and from a graph to device-free work."""
