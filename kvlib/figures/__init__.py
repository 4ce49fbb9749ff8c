"""One module per chapter or primer: its explorers and its self-checked exercises.

Only these modules know what a plotly figure dictionary looks like; the shared shapes are in
`kvlib.figures.charts`.
"""
