"""The door to ortools for packing: linear programs of GLOP, integer programs of CP-SAT."""
