"""Every network of the zoo builds, runs, repeats itself and says what it takes."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from normscope.core.errors import FactoryError, ModelNotFoundError
from normscope.zoo.catalogue import ZOO, build, entry, example_input
from normscope.zoo.networks.normalizers import NORMS

#: Networks that differ from one below in numbers only.
SIBLINGS = {"wn_cnn", "sn_cnn", "resnet34", "resnet18_cifar", "resnet34_cifar", "resnet50_cifar", "efficientnet_b3"}
#: Arguments that make each other network with a normalizer small.
SMALL = {
    "relu10": {"width": 8, "in_features": 64},
    "mlp": {"hidden": (8,), "in_features": 64},
    "cnn": {"width": 4},
    "resnet20": {"width": 4},
    "resnet18": {"width": 4, "image_size": 32},
    "resnet50": {"width": 4, "image_size": 32},
    "preact_resnet18": {"width": 4},
    "vgg11": {"width": 4, "image_size": 64},
    "mobilenet_v2": {"width": 0.25, "image_size": 64},
    "efficientnet_b0": {"width": 0.25, "image_size": 64},
    "convnext_tiny": {"width": 4, "image_size": 32},
    "convnextv2_atto": {"width": 4, "image_size": 32},
    "densenet": {"growth": 4},
    "inception": {"width": 8},
    "unet": {"width": 4},
    "autoencoder": {"width": 4},
    "regnet": {"widths": (8, 16), "blocks": (1, 1)},
    "vit_tiny": {"width": 12, "depth": 1, "image_size": 32},
    "mixer": {"width": 8, "depth": 1},
    "gpt": {"width": 8, "layers": 1},
    "lstm_cell": {},
    "gru_cell": {},
}
TOKEN_NORMS = ("ln", "rms", "none")
ON_TOKENS = ("convnext_tiny", "convnextv2_atto", "vit_tiny", "mixer", "gpt", "lstm_cell", "gru_cell")
ON_VECTORS = ("relu10", "mlp")


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", ZOO)
def test_defaults_build_and_run(name: str) -> None:
    """The entry's input shape and dtype are what the network takes, and the output is finite."""
    model = build(name).eval()
    x = example_input(name, 1)
    assert tuple(x.shape[1:]) == ZOO[name].input_shape == model.input_shape
    assert str(x.dtype) == f"torch.{ZOO[name].input_dtype}"
    with torch.no_grad():
        assert torch.isfinite(model(x)).all()


def allowed(name: str) -> tuple[str, ...]:
    """Return the normalizers that make sense in a network."""
    if name in ON_TOKENS:
        return TOKEN_NORMS
    return tuple(norm for norm in NORMS if norm != "in") if name in ON_VECTORS else NORMS


@pytest.mark.turns(3)
@pytest.mark.parametrize(("name", "norm"), [(name, norm) for name in SMALL for norm in allowed(name)])
def test_every_normalizer_runs_forward_and_backward(name: str, norm: str) -> None:
    """In training mode each parameter that can gets a finite gradient."""
    model = build(name, norm=norm, **SMALL[name])
    shape, generator = (2, *model.input_shape), torch.Generator().manual_seed(0)
    tokens = ZOO[name].input_dtype == "int64"
    output = model(torch.randint(9, shape, generator=generator) if tokens else torch.randn(shape, generator=generator))
    output.square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_every_network_with_a_normalizer_is_tried() -> None:
    """The table above forgets none."""
    with_norm = {name for name in ZOO if "norm" in inspect.signature(ZOO[name].resolve()).parameters}
    assert with_norm == set(SMALL) | SIBLINGS


@pytest.mark.parametrize("name", ["relu10", "sn_cnn", "vit_tiny"])
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    """The global generator neither matters nor moves."""
    small = SMALL.get(name, {})
    torch.manual_seed(1)
    first = build(name, seed=7, **small).state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again, other = build(name, seed=7, **small).state_dict(), build(name, seed=8, **small).state_dict()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_mistakes_are_named() -> None:
    """Unknown networks, unknown arguments, impossible values."""
    with pytest.raises(ModelNotFoundError, match="Did you mean resnet18"):
        entry("resnet_18")
    with pytest.raises(ModelNotFoundError, match="Known names: autoencoder, cnn"):
        build("???")
    with pytest.raises(FactoryError, match=r"for relu10: wdth\. It accepts norm, width"):
        build("relu10", wdth=3)
    for name in ("name", "seed", "arguments"):
        with pytest.raises(FactoryError, match=f"for relu10: {name}"):
            build("relu10", arguments={name: 1})
    with pytest.raises(FactoryError, match=r"Expected norm to be one of bn.*got 'batch'"):
        build("cnn", norm="batch")
    for name, value in (("width", -4), ("width", 10**12)):
        with pytest.raises(FactoryError, match="Cannot build relu10: "):
            build("relu10", **{name: value})
    for name, value in (("width", 0.5), ("depth", "deep"), ("width", None)):
        with pytest.raises(FactoryError, match=f"Expected {name} to be an integer, got {value!r}"):
            build("relu10", **{name: value})
    with pytest.raises(FactoryError, match="Expected width to be a number, got 'x'"):
        build("efficientnet_b0", width="x")


def test_names_are_known_without_torch() -> None:
    """Listing the zoo is quick: torch is imported by the first network built, not before."""
    code = (
        "import sys, normscope.zoo, normscope.zoo.data, normscope.zoo.catalogue as z;"
        "assert len(z.ZOO) > 20; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
