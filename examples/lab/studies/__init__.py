"""Experiments of the paper, and those behind the advice in the documentation."""
