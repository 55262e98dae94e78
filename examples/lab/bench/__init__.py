"""Benchmarks of the package, run from the command line: ``bench --help``."""
