"""Attacking a model and measuring what came of it; the attacks are in `bench.attacks`."""

from bench.attacking.measured import AttackResult, attack
from bench.attacking.stochastic import StochasticResult, attack_stochastic

__all__ = ["AttackResult", "StochasticResult", "attack", "attack_stochastic"]
