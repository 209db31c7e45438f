"""The global state of a process that running a model can move: torch's settings and the random generators."""

import contextlib
import functools
import gc
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return functools.partial(getattr, owner, name), functools.partial(setattr, owner, name)


#: How to read and to set each global setting of torch, by name.
_FLAGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "mha_fastpath": (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    "fill_uninitialized_memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    **{
        f"cudnn.{name}": _attribute(torch.backends.cudnn, name)
        for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
    },
    **{
        f"{name}_sdp": (
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in ("flash", "mem_efficient", "math", "cudnn")
    },
    **{
        f"autocast_{device}": (
            functools.partial(torch.is_autocast_enabled, device),
            functools.partial(torch.set_autocast_enabled, device),
        )
        for device in ("cpu", "cuda")
    },
}
#: Parameters below which a network is small.
SMALL = 150_000


def few_threads(model: torch.nn.Module) -> None:
    """Let torch use one thread if a network is small: more would only wait for each other, long on a busy machine.

    >>> before = torch.get_num_threads()
    >>> few_threads(torch.nn.Linear(2, 2))
    >>> torch.get_num_threads()
    1
    >>> torch.set_num_threads(before)
    """
    if sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter)) < SMALL:
        torch.set_num_threads(1)


def flags() -> dict[str, Any]:
    """Return torch's global settings by name; those that this build cannot report are left out.

    >>> flags()["default_dtype"]
    torch.float32
    """
    found: dict[str, Any] = {}
    for name, (get, _) in _FLAGS.items():
        with contextlib.suppress(RuntimeError):  # cudnn hides its TF32 flag once the newer interface has been used
            found[name] = get()
    return found


def restore_flags(saved: dict[str, Any]) -> None:
    """Set the settings that differ from ``saved`` back to it, and leave the others alone."""
    now = flags()
    for name, (_, put) in _FLAGS.items():
        if name in saved and now.get(name) != saved[name]:
            put(saved[name])


def seed_torch(seed: int) -> None:
    """Seed torch's generators, including those of an accelerator in use.

    ``torch.manual_seed`` also queues a call with a stack trace for each kind of device that may be used later: over
    thousands of runs this takes more time than the model itself, and more memory with each run.

    >>> seed_torch(0); first = torch.rand(1); seed_torch(0)
    >>> bool(first == torch.rand(1))
    True
    """
    torch.default_generator.manual_seed(seed)
    device = _accelerator()
    if device is not None:
        getattr(device, "manual_seed_all", device.manual_seed)(seed)


def rng_state() -> dict[str, Any]:
    """Return the states of every global random generator in use: Python's, numpy's, torch's, the accelerator's.

    >>> state = rng_state()
    >>> first = random.random()
    >>> restore_rng(state)
    >>> random.random() == first
    True
    """
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    device = _accelerator()
    if device is not None:
        state["accelerator"] = getattr(device, "get_rng_state_all", lambda: [device.get_rng_state()])()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Set every global random generator back."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    device = _accelerator()
    if device is not None and "accelerator" in state:
        if hasattr(device, "set_rng_state_all"):
            device.set_rng_state_all(state["accelerator"])
        else:
            device.set_rng_state(state["accelerator"][0])


def same_rng(state: dict[str, Any]) -> bool:
    """Return whether every global random generator is where it was.

    >>> state = rng_state()
    >>> same_rng(state)
    True
    """
    now, before = rng_state(), dict(state)
    # Python's state is a tuple of hundreds of plain numbers, which can be compared directly.
    return now.pop("python") == before.pop("python") and same_state(now, before)


def same_state(a: Any, b: Any) -> bool:
    """Return whether two states of random generators are equal, entry by entry where they are arrays.

    >>> same_state({"a": (1, np.ones(2))}, {"a": (1, np.ones(2))}), same_state([torch.ones(1)], [torch.zeros(1)])
    (True, False)
    """
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same_state, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)


def _accelerator() -> Any:
    """Return torch's module of the accelerator in use, if there is one (asking must not start it)."""
    if not torch.accelerator.is_available():
        return None
    device = torch.get_device_module(torch.accelerator.current_accelerator())
    return device if getattr(device, "is_initialized", lambda: True)() else None


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Run Python's cyclic garbage collector a tenth as often: it visits all objects, and a graph has millions.

    >>> before = gc.get_threshold()
    >>> with rarely_collected():
    ...     more = gc.get_threshold()
    >>> more[0] == 10 * before[0], gc.get_threshold() == before
    (True, True)
    """
    before = gc.get_threshold()
    gc.set_threshold(10 * before[0], before[1], 10 * before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def quiet_vmap() -> Iterator[None]:
    """Keep ``vmap`` from warning that it is slow, also in autograd's threads: this does not concern the user.

    Use it around single computations: the warning filters are restored after the block.

    >>> with warnings.catch_warnings(record=True) as told, quiet_vmap():
    ...     _ = torch.func.vmap(lambda x: x.take(torch.tensor([0])))(torch.ones(2, 3))
    >>> told
    []
    """
    switch = getattr(torch._C._functorch, "_set_vmap_fallback_warning_enabled", lambda enabled: None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        switch(False)
        try:
            yield
        finally:
            switch(True)
