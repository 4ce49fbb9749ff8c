"""Keys and values that exist: the block tables of :mod:`kvlib.blocks` moving real tensors, and models that
read them.

Import the modules by name. `decoding`, `sharing`, `placement` and `online_softmax` need only the standard
library, so the book's explorers run them in the browser; the others need numpy, and torch only where the
torch backend is asked for.
"""
