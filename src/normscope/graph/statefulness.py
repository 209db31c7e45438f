"""Run a model from its original state every time: no run may see what another has left behind."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import CaptureError, NormscopeError, RandomError, StatefulError, WeightsError, listed
from normscope.graph.guard import StateGuard, copies, untouched

#: Units in the last place of the largest entry by which two runs of one function may differ.
_ROUNDINGS = 256.0
#: The same for two modes of autograd: a module may have another kernel for each.
_BETWEEN_MODES = 1e4
#: Calls in a row that must all return the same, if something in the model moves.
CALLS = 8
#: The ways in which a model may be run; what it computes must not depend on them.
MODES: tuple[Callable[[], Any], ...] = (torch.no_grad, torch.enable_grad, torch.inference_mode)


def evaluating(model: nn.Module) -> nn.Module:
    """Put a model into evaluation mode; one from ``torch.export`` has a fixed mode already.

    >>> evaluating(nn.Dropout()).training
    False
    """
    try:
        return model.eval()
    except NotImplementedError:
        for module in model.modules():
            module.training = False
        return model


def refuse_quantized(model: nn.Module) -> None:
    """Raise if a part of a model is quantized: piecewise constant, with weights that cannot be read as tensors.

    >>> refuse_quantized(nn.Linear(2, 2))
    """
    found = [path or type(m).__name__ for path, m in model.named_modules() if _is_quantized(type(m))]
    found = [path for path in found if path.rpartition(".")[0] not in found]  # parts of a part add nothing
    if found:
        raise WeightsError(
            f"Quantized modules are not supported: {listed(found)} {'are' if len(found) > 1 else 'is'} "
            "quantized. Analyze the float model they were made from."
        )


def _is_quantized(kind: type) -> bool:
    """Return whether a module's class is one of torch's quantized ones; the functional ones for floats do not count."""
    names = kind.__module__.split(".")
    return names[0] == "torch" and "quantized" in names and "FloatFunctional" not in kind.__name__


def _as_it_is(t: Tensor) -> Tensor:
    return t


def _recorded(t: Tensor) -> Tensor:
    """Return an input for which a gradient is recorded: no leaf, so that it may be written to."""
    return t.requires_grad_().clone() if t.is_floating_point() else t


class RepeatedRuns:
    """A model whose every run starts from the same state.

    Attributes:
        moved: what the runs so far have changed in the model: attributes, buffers, other tensors.
        drew: whether a run so far used a global random generator.
    """

    def __init__(self, model: nn.Module, flat: Any) -> None:
        self.model, self.flat = model, flat
        self.moved: tuple[str, ...] = ()
        self.drew = False
        self._ran = False

    def state(self) -> StateGuard:
        """Return a context after which the model is again as it was before."""
        return untouched(self.model, parameters=False)

    def run(self, *several: Sequence[Tensor], mode: Callable[[], Any] = torch.no_grad) -> tuple[Tensor, ...]:
        """Run the model from its first state, on one input after another, and return the last result.

        Where gradients are recorded, the inputs have one too, if the model takes them: NumPy does not.
        """
        if mode is torch.enable_grad:
            with contextlib.suppress(Exception):
                return self._run(several, mode, _recorded)
        return self._run(several, mode)

    def _run(
        self,
        several: Sequence[Sequence[Tensor]],
        mode: Callable[[], Any],
        given: Callable[[Tensor], Tensor] = _as_it_is,
    ) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = ()
        try:
            with self.state() as guard:
                with mode():
                    for inputs in several:
                        result = self.flat(*map(given, copies(inputs)))
                result = tuple(t.detach().clone() for t in result)  # the guard may write to a buffer that was returned
        except (Exception, SystemExit) as error:
            if not self._ran or isinstance(error, NormscopeError):
                raise
            raise CaptureError(
                "Expected a model that can be called repeatedly; the second call raised "
                f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            ) from error
        self._ran = True
        self.moved = tuple(dict.fromkeys(self.moved + guard.moved))
        self.drew |= guard.drew
        return result

    def require_function(self, example: Sequence[Tensor]) -> None:
        """Return if earlier calls of the model do not affect what it returns; run it only if they might.

        Tables made on the first call are no harm: with or without them it returns the same.
        """
        if self.moved or self.drew:
            self.refuse_difference(self._small(example))

    def refuse_difference(self, example: Sequence[Tensor]) -> None:
        """Return if the model returns the same on one input, from its first state and after it was run already.

        Raises:
            StatefulError: if it does not, because of state that it keeps: then it is not a function of its input.
            RandomError: if two runs differ and nothing is kept.
            CaptureError: if it depends on the mode of autograd.
        """
        first = self.run(example)
        if not all(_agree(first, self.run(example, mode=mode), _BETWEEN_MODES) for mode in MODES[1:]):
            raise CaptureError(
                "Expected the output to depend on the input only, but the model returns something else "
                "when gradients are recorded or in inference mode. Remove torch.is_grad_enabled(), "
                "torch.is_inference_mode_enabled() and requires_grad from forward()."
            )
        if all(_agree(first, again) for again in (self.run(example), self._after(*[example] * CALLS))):
            other = [_another(t) for t in example]
            try:
                expected = self.run(other)
            except Exception:  # this input is ours: a model need not run on it
                return
            if _agree(expected, self._after(example, other)):
                return
        if self.moved:
            raise StatefulError(
                "Expected the output to depend on the input only, but the model returns something else "
                f"when it is called again in evaluation mode: forward() changes {listed(list(self.moved))}"
                ", and the output depends on it. Move the change out of forward(), or skip it in "
                "evaluation mode."
            )
        raise RandomError(
            "Expected the output to depend on the input only, but two runs on the same input in "
            "evaluation mode differ. Remove the randomness (dropout with training=True, sampling, "
            "noise), or draw it once and keep it."
        )

    def _after(self, *several: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the model returns for the last of several inputs; nothing if it then fails."""
        try:
            return self.run(*several)
        except Exception:  # it ran from its first state, so failing now is a difference too
            return ()

    def _small(self, example: Sequence[Tensor]) -> list[Tensor]:
        """Return at most two samples of an example, if the model takes them: running on all may take long."""
        few = [t[:2] if t.ndim else t for t in example]
        try:
            self.run(few)
        except Exception:  # a model of one batch size
            return list(example)
        return few


def _another(t: Tensor) -> Tensor:
    """Return an input of the same shape and range with other entries."""
    if t.ndim == 0:
        return t
    return t.flip(-1) * 0.75 if t.is_floating_point() else t.flip(-1)


def _agree(a: tuple[Tensor, ...], b: tuple[Tensor, ...], roundings: float = _ROUNDINGS) -> bool:
    """Return whether two outputs agree up to rounding."""
    return len(a) == len(b) and all(_close(x, y, roundings) for x, y in zip(a, b, strict=True))


def _close(x: Tensor, y: Tensor, roundings: float) -> bool:
    """Return whether two tensors agree up to rounding."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    scale = float(x.abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0
    slack = roundings * torch.finfo(x.dtype).eps * scale
    return bool(torch.isclose(x, y, rtol=0.0, atol=slack, equal_nan=True).all())
