"""The engines: what proposes, builds, runs and assembles. Foreign compilers stay in here."""
