"""The probe batch, and a context that isolates its passes from training."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.environment import restore_rng, rng_state
from normscope.core.errors import CaptureError, InputError
from normscope.graph.inputs import ModelInputs, as_inputs, check_runs
from normscope.graph.objective import LossFunction
from normscope.graph.signature import signature_of
from normscope.monitor.graph_view import GraphView
from normscope.monitor.module_view import ModuleView
from normscope.monitor.view import View


def probe_inputs(probe: Any, model: nn.Module) -> tuple[ModelInputs, Tensor | None]:
    """Return a probe batch as the model's arguments, and its labels; tensors are copied, so the batch stays fixed.

    The probe is a tensor, a pair of inputs and labels, or a mapping. A model that takes ``labels`` gets them, and may
    compute its loss itself.

    Raises:
        InputError: if there is no batch, or the model does not run on it.

    >>> inputs, labels = probe_inputs((torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)), nn.Linear(3, 2))
    >>> inputs.batch, labels.shape
    (4, torch.Size([4]))
    """
    if probe is None or isinstance(probe, torch.utils.data.DataLoader):
        raise InputError(
            "Expected a fixed batch. Pass probe=(inputs, labels), for example probe=next(iter(loader)) taken before "
            "training starts."
        )
    inputs = as_inputs(probe, model)
    labels = inputs.labels
    if labels is None and isinstance(probe, ModelInputs):
        labels = probe.labels
    kwargs = dict(inputs.kwargs)
    if labels is not None and isinstance(probe, Mapping) and "labels" in signature_of(model).keywords:
        kwargs["labels"] = labels
    fixed = ModelInputs(tuple(map(_copied, inputs.args)), {name: _copied(v) for name, v in kwargs.items()})
    with torch.compiler.set_stance("force_eager"):
        check_runs(model, fixed)
    return fixed, None if labels is None else labels.detach().clone()


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def view_of(model: nn.Module, probe: Any, loss: LossFunction | None, mode: str) -> View:
    """Return a view of a model and its probe: of the captured graph, or of the modules if there is none."""
    inputs, labels = probe_inputs(probe, model)
    try:
        view = GraphView(model, inputs, labels, loss, mode)
        view.run_probe(statistics=False)
    except (CaptureError, RuntimeError) as error:  # the graph may be fixed to one batch size or device
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return ModuleView(model, inputs, labels, loss, mode, reason)
    return view


@contextmanager
def apart_from_training(device: torch.device) -> Iterator[None]:
    """Run the block isolated from training: without autocast and inference mode, and with the random state restored.

    >>> before = torch.get_rng_state()
    >>> with apart_from_training(torch.device("cpu")):
    ...     _ = torch.rand(3)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    state = rng_state()
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            yield
    finally:
        restore_rng(state)
