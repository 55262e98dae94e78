"""The pieces of ``lightning-jd mtl``: a trial, its training, the search, and the page."""
