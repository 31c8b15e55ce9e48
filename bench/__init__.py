"""Robustness, calibration and OOD benchmark for classifiers that are also energy models."""
