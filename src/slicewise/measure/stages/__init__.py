"""The parts of `measure/pipeline.py`: plan, rings of shared memory, stage processes, times."""
