"""The laboratory: benchmarks of the package, and studies that train with it.

Run from the command line; nothing here is needed to train.
"""
