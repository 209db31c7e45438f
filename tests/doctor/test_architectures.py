"""Well-made architectures: never an error, and no warning but those that are true of them by their definition."""

from __future__ import annotations

import pytest

from architectures import ARCHITECTURES
from normscope.core.finding import Severity
from normscope.doctor import check

#: Architectures, and the rules that warn about them: each warning is a theorem about the network.
EXPECTED: dict[str, set[str]] = {
    "relu10": set(),
    "mlp": {"NS101"},  # linear layers with bias before BatchNorm
    "cnn": set(),
    "wn_cnn": set(),
    "sn_cnn": set(),
    "resnet20": set(),
    "resnet18": set(),
    "vgg11": {"NS101"},  # convolutions with bias before BatchNorm, as in the original
    "densenet": set(),
    "unet": set(),
    "nfnet": set(),
    "vit": set(),
    "mixer": {"NS101"},  # the token-mixing bias is the same for all channels of a token: LayerNorm subtracts it
    "gpt": set(),
    "llama_like": set(),
    "lstm": set(),
    "nn.Transformer post": {"NS102"},  # a final norm after a post-norm layer
    "BERT": set(),
    "GPT-2": set(),
    "Llama": set(),
    "Qwen3": set(),
}


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", EXPECTED)
def test_no_errors_and_only_true_warnings(name: str) -> None:
    """In evaluation, on a batch of its inputs."""
    model, inputs = ARCHITECTURES[name].build()
    result = check(model.eval(), inputs)
    assert not any("failed" in reason for reason in result.skipped.values()), result.skipped
    assert result.count(Severity.ERROR) == 0
    assert {f.code for f in result.findings if f.severity is Severity.WARNING} == EXPECTED[name]
