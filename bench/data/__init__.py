"""Loading data sets by name, from registered factories and from files of the user's."""

from bench.data.loading import load_dataset, take, to_tensor

__all__ = ["load_dataset", "take", "to_tensor"]
