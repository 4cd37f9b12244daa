"""One measuring campaign on one NVIDIA GPU within minutes, from a bare checkout. See README.md."""
