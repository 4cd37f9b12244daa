"""The page and the notebook card of predictions, made of the blocks of the folder above."""
