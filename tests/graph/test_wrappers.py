"""Modules around a model: what is inside of them, and what is no module at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.graph.wrappers import require_module, uncompiled, unwrap


def test_compiled_modules_are_unwrapped() -> None:
    """torch.compile(module) computes what its module computes; a module that only looks like one is left alone."""
    inner = nn.Linear(2, 2)
    assert uncompiled(torch.compile(inner)) is inner  # type: ignore[arg-type]
    assert uncompiled(inner) is inner
    lookalike = nn.Sequential(nn.Linear(2, 2))
    lookalike._orig_mod = inner
    assert uncompiled(lookalike) is lookalike


def test_wrappers_are_opened_in_any_order() -> None:
    """Compiled and parallel; the wrapper of several devices is named."""
    inner = nn.Linear(2, 2)
    assert unwrap(inner) == (inner, "")
    assert unwrap(torch.compile(nn.DataParallel(inner))) == (inner, "DataParallel")
    assert unwrap(nn.DataParallel(torch.compile(inner))) == (inner, "DataParallel")
    averaged = torch.optim.swa_utils.AveragedModel(inner)
    assert unwrap(averaged) == (averaged.module, "")


def test_what_is_no_module_is_refused() -> None:
    """Also a class that was not called."""
    require_module(nn.Linear(2, 2))
    for given, named in ((3, "int"), (nn.Linear, "the class Linear itself"), ({"weight": 1}, "dict")):
        with pytest.raises(InputError, match=rf"Expected a torch.nn.Module, got {named}\. Build the model"):
            require_module(given)


def test_a_class_made_from_a_wrapper_is_opened_too() -> None:
    """Libraries derive wrappers of their own."""

    class Parallel(nn.DataParallel):
        """A wrapper under another name."""

    inner = nn.Linear(2, 2)
    assert unwrap(Parallel(inner)) == (inner, "DataParallel")
