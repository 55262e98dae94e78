"""Jacobian descent for PyTorch Lightning: train with a vector of losses instead of one number."""

__version__ = "0.1.0"
