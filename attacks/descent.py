"""The loop that gradient attacks share: steps, the best point seen, and the active set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.noise import Noise
from bench.target import Target

from .geometry import Ball, lengths, per_image
from .losses import margins
from .survivors import Survivors, places, possibly

# A point counts as broken for the active set when its margin is below minus this share of the
# largest logit: another batch size changes logits by about 1e-6 of it, and the verdict, which is
# taken by a later pass, must not differ.
_SURE = 1e-5
_LOOKS_BROKEN, _BROKEN = 1, 2
_TINY = torch.finfo(torch.float32).tiny
_SMALL, _LARGE = 1e-15, 1e15  # norms between them are right in float32, and so are their entries


@dataclass
class Best:
    """The best point seen so far of every image of a batch.

    Attributes:
        point: ``(B, C, H, W)``; the clean image before anything was seen.
        margin: ``(B,)``; the mean over draws of true logit minus best other.
        broken: ``(B,)``; whether the point is misclassified beyond rounding.
        passes: ``(B,)``; forward passes spent on each image.
    """

    point: Tensor
    margin: Tensor
    broken: Tensor
    passes: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Best:
        """Return the state before the first pass."""
        none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return cls(x.clone(), torch.full_like(none, torch.inf, dtype=x.dtype), none.bool(), none)

    def select(self, rows: Tensor) -> Best:
        """Return the state of some images."""
        return Best(self.point[rows], self.margin[rows], self.broken[rows], self.passes[rows])

    def put(self, rows: Tensor, new: Best) -> None:
        """Exchange the state of some images."""
        self.point[rows], self.margin[rows] = new.point, new.margin
        self.broken[rows], self.passes[rows] = new.broken, new.passes

    def forget(self, x: Tensor) -> None:
        """Start anew from the clean images; passes spent stay spent."""
        new = Best.of(x)
        self.point, self.margin, self.broken = new.point, new.margin, new.broken

    def see(
        self,
        rows: Tensor,
        point: Tensor,
        logits: Tensor,
        y: Tensor,
        freeze: bool,
        passes: int | None = None,
        idle: Tensor | None = None,
    ) -> None:
        """Take up the points of some rows where they are better than what there was.

        With ``freeze`` a broken image keeps the point that broke it, and is charged no more; the
        same goes for those that are ``idle``, ``(b,)``. The logits are ``(b, K, classes)``, and
        cost ``passes`` an image, K by default.
        """
        logits = logits.detach()
        margin, old, broken = margins(logits, y).mean(dim=1), self.margin[rows], self.broken[rows]
        better, charge = margin < old, passes or logits.shape[1]
        still = idle if not freeze else broken if idle is None else broken | idle
        if still is not None:
            better &= ~still
        self.passes[rows] += charge if still is None else ~still * charge
        scale = torch.nan_to_num(logits.abs().amax(dim=(1, 2)), nan=0.0)
        self.margin[rows] = torch.where(better, margin, old)
        self.broken[rows] = broken | (better & (margin < -_SURE * scale))
        if rows.device.type == "cpu":  # copy what changes and no more
            chosen = better.nonzero()[:, 0]
            self.point.index_copy_(0, rows[chosen], point.index_select(0, chosen))
        else:
            self.point[rows] = torch.where(per_image(better, point), point, self.point[rows])


@dataclass
class Group:
    """The images that still walk; every field has a row for each.

    Attributes:
        rows: Their places in the whole batch.
        point: Where they are.
        y: True classes.
        ball: Where they may go.
        step: Lengths of a step.
        noise: Their draws.
        speed: Directions of the step before, with momentum.
        flat: Random directions, once they were needed.
    """

    rows: Tensor
    point: Tensor
    y: Tensor
    ball: Ball
    step: Tensor
    noise: Noise
    speed: Tensor | None = None
    flat: Tensor | None = None

    def select(self, keep: Tensor) -> Group:
        """Return the group of some images."""
        return Group(
            self.rows[keep],
            self.point[keep],
            self.y[keep],
            self.ball.select(keep),
            self.step[keep],
            self.noise.select(keep),
            None if self.speed is None else self.speed[keep],
            None if self.flat is None else self.flat[keep],
        )

    def put(self, places: Tensor, point: Tensor, ball: Ball, step: Tensor) -> None:
        """Let some images start anew elsewhere, in another ball."""
        self.point[places], self.step[places] = point, step
        self.ball.put(places, ball)
        if self.speed is not None:
            self.speed[places] = 0

    @torch.no_grad()
    def move(self, gradient: Tensor, momentum: float) -> None:
        """Take a step up the gradient, in a random direction where there is none."""
        if momentum:
            unit = _bounded(gradient)
            share = unit.abs().mean(dim=(1, 2, 3)).clamp(min=_TINY)
            unit = unit / per_image(share, unit)  # so that the speeds of steps add
            self.speed = unit if self.speed is None else momentum * self.speed + unit
            gradient = self.speed
        gradient, size = self._usable(gradient)
        self.ball.climb(self.point, gradient, size, self.step)

    def _usable(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return finite gradients of ordinary size that are not zero, and their L2 norms."""
        size = lengths(gradient)
        odd = ~((size > _SMALL) & (size < _LARGE))  # also true for NaN
        if possibly(odd):
            if self.flat is None:
                self.flat = self.noise.at("flat").normal(*gradient.shape[1:])
            bounded = _bounded(gradient)
            flat = per_image((bounded == 0).all(dim=(1, 2, 3)), gradient)
            bounded = torch.where(flat, self.flat, bounded)
            gradient = torch.where(per_image(odd, gradient), bounded, gradient)
            size = lengths(gradient)
        return gradient, size


def _bounded(gradient: Tensor) -> Tensor:
    """Return gradients with largest entry 1, or zero; what is not finite becomes zero."""
    clean = torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)
    largest = clean.abs().amax(dim=(1, 2, 3)).clamp(min=_TINY)
    return clean / per_image(largest, clean)


@dataclass(frozen=True)
class Seen:
    """What one pass showed: the losses ``(B,)`` of some points, with their graph."""

    point: Tensor
    loss: Tensor

    def gradient(self) -> Tensor:
        """Return the gradients of the losses in their points; to be asked for once."""
        if not self.loss.requires_grad:  # constant logits
            return torch.zeros_like(self.point)
        (gradient,) = torch.autograd.grad(
            self.loss.sum(), self.point, allow_unused=True, materialize_grads=True
        )
        return gradient


@dataclass(frozen=True)
class Walk:
    """How runs from a starting point go.

    Attributes:
        goal: What is attacked.
        loss: (logits, y, step) to ``(B,)``, to be raised; steps may differ between images.
        steps: How many steps.
        momentum: Share of the last direction kept (Dong et al. 2018, equation 6); 0 is plain.
        early_stop: Whether a broken image leaves the batch.
        progress: Called with 1 after each step.
        out_of_time: Asked after each step; when true the run ends.
        rough: Whether steps are taken in bfloat16; what looks broken is checked in float32.
        layout: How the images of rough steps lie in memory.
    """

    goal: Target
    loss: Callable[[Tensor, Tensor, int | Tensor], Tensor]
    steps: int
    momentum: float
    early_stop: bool
    progress: Callable[[int], None]
    out_of_time: Callable[[], bool]
    rough: bool = False
    layout: torch.memory_format = torch.contiguous_format

    def run(
        self,
        best: Best,
        rows: Tensor,
        start: Tensor,
        y: Tensor,
        ball: Ball,
        step: Tensor,
        noise: Noise,
    ) -> None:
        """Walk uphill from ``start`` and note in ``best`` what is found.

        ``rows`` are the places in ``best`` of the images; ``start``, ``y``, ``ball``, ``step`` (the
        length of a step, ``(b,)``) and ``noise`` have one row for each.
        """
        group = Group(rows, start.clone(), y, ball, step, noise)
        draft, survivors = Best.of(best.point) if self.rough else best, Survivors()
        for k in range(self.steps + 1):
            draws = group.noise.at("step", k)
            with torch.set_grad_enabled(k < self.steps):  # nothing follows the last look
                shown = self.look(draft, group.rows, group.point, group.y, draws, k)
            if k == self.steps or self.out_of_time():
                break
            group.move(shown.gradient(), self.momentum)
            if self.early_stop:
                answer = survivors.after(_state(best, draft, group.rows))
                if answer is not None:
                    group = self._leave(best, draft, group, answer)
                if len(group.rows) == 0:
                    break
        if self.rough:
            self._check(best, draft, group)
            best.passes[rows] += draft.passes[rows]

    def _leave(self, best: Best, draft: Best, group: Group, answer: Tensor) -> Group:
        """Return the images that go on; what only looks broken is checked first."""
        device = group.rows.device
        if self.rough:
            self._check(best, draft, group.select(places(answer == _LOOKS_BROKEN, device)))
            if device.type == "cpu":  # where the new state is known at once
                answer = _state(best, draft, group.rows)
        return group.select(places(answer != _BROKEN, device))

    def _check(self, best: Best, draft: Best, group: Group) -> None:
        """Take over from a rough draft what holds in float32."""
        rows = group.rows
        if len(rows) == 0:
            return
        with torch.no_grad():
            logits = self.goal(draft.point[rows], group.noise.at("check"))
        best.see(rows, draft.point[rows], logits, group.y, self.early_stop, self.goal.samples)
        draft.broken[rows] = best.broken[rows]

    def checked(self, found: Best, y: Tensor, noise: Noise) -> Best:
        """Return what was found in rough steps with the margins it has in float32."""
        if not self.rough or len(y) == 0:
            return found
        exact, every = Best.of(found.point), torch.arange(len(y), device=y.device)
        with torch.no_grad():
            logits = self.goal(found.point, noise.at("check"))
        exact.see(every, found.point, logits, y, True, self.goal.samples)
        return Best(found.point, exact.margin, exact.broken, found.passes + exact.passes)

    def look(
        self,
        best: Best,
        rows: Tensor,
        point: Tensor,
        y: Tensor,
        noise: Noise,
        step: int | Tensor,
        idle: Tensor | None = None,
    ) -> Seen:
        """Show points to the model, note in ``best`` what is found, and return what was seen."""
        leaf = point.detach().requires_grad_()
        if self.rough:
            with torch.autocast(point.device.type, torch.bfloat16):
                logits = self.goal(leaf.contiguous(memory_format=self.layout), noise)
        else:
            logits = self.goal(leaf, noise)
        best.see(rows, point, logits, y, self.early_stop, self.goal.samples, idle)
        self.progress(1)
        return Seen(leaf, self.loss(logits, y, step))


def _state(best: Best, draft: Best, rows: Tensor) -> Tensor:
    """Return of some images whether they are broken, look so, or neither."""
    looks = draft.broken[rows].to(torch.int8) * _LOOKS_BROKEN
    return torch.where(best.broken[rows], _BROKEN, looks)
