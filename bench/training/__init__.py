"""Training: what a trainer is given and returns, the job around it, and the card it leaves."""

from bench.training.contract import Event, TrainContext, Trained, Trainer

__all__ = ["Event", "TrainContext", "Trained", "Trainer"]
