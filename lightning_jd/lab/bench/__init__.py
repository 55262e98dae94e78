"""Benchmarks of the package, run from the command line: ``lightning-jd bench --help``."""
