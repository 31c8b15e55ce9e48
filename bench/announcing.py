"""What is seen of a model before it is attacked: whether it is random, and answers as it must.

RobustBench and AutoAttack look for randomness the same way: some passes at one input must agree.
A model may be random without saying so, e.g. with dropout that stays on in eval mode.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from bench.errors import ModelError
from bench.noise import Noise, bound
from bench.preserving import preserved, seeded
from bench.refinement import is_refining, is_stochastic
from bench.wrapping import check_form

# On the CPU equal passes give equal bits; kernels elsewhere may add in another order, which moves
# logits by some 1e-6 of the largest one.
_TOLERANCE = 1e-5
# Another batch size moves logits by some 1e-6 of the largest one, or by the rounding of the type.
_COMPANY, _ROUNDINGS = 1e-3, 10
_MANY = 50  # passes that tell a model that is random in one pass of ten from any other: 1 in 200


def detect_stochastic(model: nn.Module, x: Tensor, passes: int = 5) -> bool:
    """Say whether ``passes`` forward passes at ``x``, in eval mode, disagree.

    On the CPU any difference counts, elsewhere one above 1e-5 of the largest logit. The model's
    flags and the global random state are left as they were.
    """
    with preserved(model), torch.no_grad():
        first = model(x)
        tolerance = 0.0 if x.device.type == "cpu" else _TOLERANCE * float(first.abs().max())
        others = [model(x) for _ in range(passes - 1)]
        # NaN differs from itself: a model that returns it is broken, not random.
        return any(bool(((other - first).abs() > tolerance).any()) for other in others)


def looked_over(model: nn.Module, x: Tensor) -> nn.Module:
    """Return the model, in `Announced` if it turns out to be random.

    Args:
        model: The model, with its draws if it says that it is stochastic.
        x: Some images, ``(B, C, H, W)``; a few are enough.

    Raises:
        ModelError: The answers are no logits, or one of them depends on the rest of the batch; or
            a stochastic model has no draws.
    """
    if is_stochastic(model):
        _check_declared(model)
        return model
    if len(x) == 1:
        x = torch.cat([x, 1 - x])  # what cannot be asked for one image alone is told below
    with preserved(model), torch.no_grad():
        _asked(model, x)
    if detect_stochastic(model, x) or keeps_company(model, x):
        return _announced(model, x)
    return model


def keeps_company(model: nn.Module, x: Tensor) -> bool:
    """Refuse a model whose answer to an image depends on the rest of the batch.

    Returns:
        Whether what looked like it was randomness: a model that is random in a few passes only.

    Raises:
        ModelError: It does.
    """
    dark, negative = x[:1] / 2, 1 - x[:1]  # one image may be all there is
    large, small = torch.cat([x, negative, dark]), torch.cat([dark, x[:1]])
    with preserved(model), torch.no_grad():
        of_large, of_small = _asked(model, large), _asked(model, small)
        try:
            alone = _asked(model, dark)
        except Exception as error:
            _asked(model, small)  # if it raises here too, that is something else
            raise ModelError(_company(f"alone it raises {type(error).__name__}")) from error
    in_large, in_small = of_large[[-1, 0]], of_small
    gap = max(float((in_large - in_small).abs().max()), float((alone - of_small[:1]).abs().max()))
    rounding = _ROUNDINGS * torch.finfo(alone.dtype).eps
    if not gap > max(_COMPANY, rounding) * float(of_large.abs().max()):  # NaN is told elsewhere
        return False
    if detect_stochastic(model, large, _MANY):
        return True
    raise ModelError(_company(f"logits differ by {gap:.3g}"))


def _company(how: str) -> str:
    return (
        f"the model's answer for an image depends on the other images of the batch ({how}); batch "
        "norm in train mode, or without running statistics? It must be in eval mode, also after "
        "model.eval()"
    )


def _asked(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits ``(B, K)``, finite or not.

    Raises:
        ModelError: They are none, or the weights are of another type than the images.
    """
    try:
        logits: Tensor = model(x)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        types = {p.dtype for p in model.parameters() if p.is_floating_point()} - {x.dtype}
        if not types:
            raise
        raise ModelError(
            f"the model raised '{error}', and its weights are {', '.join(map(str, types))}; images "
            f"are {x.dtype}: use model.float(), or convert them in forward()"
        ) from error
    check_form(logits, len(x))
    return logits


def _check_declared(model: nn.Module) -> None:
    """Refuse a stochastic model without draws, or with an impossible number of chains."""
    name = type(model).__name__
    if not callable(getattr(model, "sample_logits", None)):
        raise ModelError(
            f"{name} says stochastic = True and has no sample_logits(x, noise); write it, or leave "
            "the declaration out: then its draws come from the global generators"
        )
    if is_refining(model):
        chains: object = model.n_chains
        if not isinstance(chains, int) or isinstance(chains, bool) or chains < 1:
            raise ModelError(f"{name} has n_chains={chains!r}; expected a whole number above 0")


def _announced(model: nn.Module, x: Tensor) -> nn.Module:
    """Return the random model, and warn if seeding the global generators does not hold it."""
    random = Announced(model)
    noise = bound(0, "repeat", range(len(x)), device=x.device)
    with preserved(model), torch.no_grad():
        first, again = random.sample_logits(x, noise), random.sample_logits(x, noise)
    if not torch.equal(first, again):
        warnings.warn(
            f"{type(model).__name__} is random, and not by the global generators of torch, NumPy "
            "or Python: results cannot be repeated. Declare stochastic = True and "
            "sample_logits(x, noise)",
            stacklevel=3,
        )
    return random


class Announced(nn.Module):
    """A model that draws from the global generators, made to draw from keyed noise.

    The global generators are seeded from the noise of the batch's first image for the time of a
    pass. So the draws belong to the micro-batch rather than to the image. A model may make one draw
    for a whole batch (noisy weights, a random resize), so the samples of an expectation are passes
    of their own.
    """

    stochastic = True
    one_draw_a_pass = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's logits for whatever the global generators give."""
        logits: Tensor = self.model(x)
        return logits

    def sample_logits(self, x: Tensor, noise: Noise) -> Tensor:
        """Return the logits ``(B, K)`` of one draw."""
        with seeded(int(noise.at("announced").integers(1 << 62, 1)[0])):
            return self.forward(x)
