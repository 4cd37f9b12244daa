"""The operator table by part: rows, and the formulas they name; `graph/ops.py` looks rows up."""
