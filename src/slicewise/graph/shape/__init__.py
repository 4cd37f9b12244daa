"""Shape inference: rule tables, the walk that applies them, and mending a baked batch.

`facts` is the vocabulary; `layout`, `spatial`, `compute`, `dependent`, `contrib` are tables of
shape rules, `values` follows small contents, `rules` finds a rule; `walk` and `bodies` apply them,
`reshape` and `batch` move a baked batch, `prepare` makes the working copy. The way in is
`slicewise.graph.shapes.infer`.
"""
