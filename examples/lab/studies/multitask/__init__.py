"""The pieces of ``mtl``: a trial, its training, the search, and the page."""
