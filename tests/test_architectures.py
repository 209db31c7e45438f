"""A zoo of architectures: normalizers are all found and told apart, and no upper bound is below what is attained."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from normscope.analysis import analyze
from normscope.models.zoo import build, example_input
from normscope.testing.state import fingerprint

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": 32, "max_position_embeddings": 16, **SMALL}
SHARED_HEADS = {"num_key_value_heads": 1, **TEXT}
IMAGE = {"image_size": 16, "patch_size": 8, **SMALL}
STAGES = {"hidden_sizes": [4, 6, 6, 6], "depths": [1, 1, 1, 1]}


def _tokens(length: int = 6) -> Tensor:
    return torch.randint(0, 32, (2, length), generator=torch.Generator().manual_seed(0))


def _images(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def _t(name: str, config: dict[str, Any], data: Any = None, size: int = 16) -> Callable[[], tuple[nn.Module, Any]]:
    """Return a builder of a transformers model from its configuration."""

    def builder() -> tuple[nn.Module, Any]:
        model_class = getattr(transformers, name)
        model = model_class(model_class.config_class(**config))
        if data is not None:
            return model, data
        return model, _tokens() if "vocab_size" in config else _images(size)

    return builder


def _zoo(name: str, **arguments: Any) -> Callable[[], tuple[nn.Module, Any]]:
    """Return a builder of a network of our own zoo."""
    return lambda: (build(name, **arguments), example_input(name, 2, **arguments))


def _whisper() -> tuple[nn.Module, Any]:
    config = transformers.WhisperConfig(
        vocab_size=32, num_mel_bins=4, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=6, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperModel(config).get_encoder(), torch.randn(2, 4, 12)


def _transformer() -> tuple[nn.Module, Any]:
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (torch.randn(2, 3, 8), torch.randn(2, 4, 8))


ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "bert": _t("BertModel", TEXT),
    "roberta": _t("RobertaModel", TEXT),
    "distilbert": _t("DistilBertModel", {"vocab_size": 32, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}),
    "electra": _t("ElectraModel", {"embedding_size": 8, **TEXT}),
    "albert": _t("AlbertModel", {"embedding_size": 8, **TEXT}),
    "deberta": _t("DebertaV2Model", TEXT),
    "gpt2": _t("GPT2LMHeadModel", {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "opt": _t("OPTModel", {"ffn_dim": 24, "word_embed_proj_dim": 16, **TEXT}),
    "gpt_neox": _t("GPTNeoXModel", TEXT),
    "bloom": _t("BloomModel", {"vocab_size": 32, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "phi": _t("PhiModel", TEXT),
    "llama": _t("LlamaForCausalLM", SHARED_HEADS),
    "mistral": _t("MistralModel", SHARED_HEADS),
    "qwen2": _t("Qwen2Model", SHARED_HEADS),
    "qwen3": _t("Qwen3Model", {"head_dim": 8, **SHARED_HEADS}),
    "gemma2": _t("Gemma2Model", {"head_dim": 8, **SHARED_HEADS}),
    "mixtral": _t("MixtralModel", {"num_local_experts": 2, **SHARED_HEADS}),
    "t5_encoder": _t(
        "T5EncoderModel", {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    ),
    "t5": _t(
        "T5Model",
        {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
        {"input_ids": _tokens(), "decoder_input_ids": _tokens(4)},
    ),
    "mamba": _t("MambaModel", {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "whisper_encoder": _whisper,
    "vit": _t("ViTModel", IMAGE),
    "deit": _t("DeiTModel", IMAGE),
    "dinov2": _t("Dinov2Model", IMAGE),
    "clip_vision": _t("CLIPVisionModel", IMAGE),
    "swin": _t(
        "SwinModel",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    ),
    "swinv2": _t(
        "Swinv2Model",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    ),
    "convnext": _t("ConvNextModel", STAGES, size=32),
    "convnextv2": _t("ConvNextV2Model", STAGES, size=32),
    "resnet": _t("ResNetModel", {"embedding_size": 4, "layer_type": "basic", **STAGES}, size=32),
    "regnet": _t(
        "RegNetModel",
        {"embedding_size": 4, "hidden_sizes": [4, 4, 4, 4], "depths": [1, 1, 1, 1], "groups_width": 2},
        size=32,
    ),
    "mobilenet_v1": _t("MobileNetV1Model", {"depth_multiplier": 0.05, "min_depth": 4}, size=32),
    "poolformer": _t("PoolFormerModel", {"hidden_sizes": [4, 4, 4, 4], "depths": [1, 1, 1, 1]}, size=32),
    "nn_transformer": _transformer,
    "zoo_relu10": _zoo("relu10", norm="bn", width=16, in_features=12),
    "zoo_mlp_rms": _zoo("relu10", norm="rms", width=16, in_features=12),
    "zoo_resnet20": _zoo("resnet20"),
    "zoo_cnn_gn": _zoo("cnn", norm="gn"),
    "zoo_cnn_in": _zoo("cnn", norm="in"),
    "zoo_wn": _zoo("wn_cnn"),
    "zoo_sn": _zoo("sn_cnn"),
    "zoo_nfnet": _zoo("nfnet"),
    "zoo_densenet": _zoo("densenet"),
    "zoo_unet": _zoo("unet"),
    "zoo_mixer": _zoo("mixer"),
    "zoo_lstm": _zoo("lstm"),
    "zoo_gru": _zoo("gru"),
    "zoo_gpt": _zoo("gpt"),
    "zoo_llama": _zoo("llama_like"),
}
#: Top-k routing is discontinuous: no constant exists, and the bound says so.
DISCONTINUOUS = {"mixtral"}
#: Normalizers that are no module of their own.
WITHOUT_A_MODULE = {
    "swinv2": {"l2_norm": 4},
    "zoo_wn": {"weight_norm": 4},
    "zoo_sn": {"spectral_norm": 4},
    "zoo_nfnet": {"weight_standardization": 15},
}


def _kind_of(module: nn.Module) -> str | None:
    """Return the kind of a normalizer by the name of its class, the way its authors call it."""
    name = type(module).__name__
    if "RMSNorm" in name or name == "T5LayerNorm":
        return "rms_norm"
    if "GRN" in name:
        return "global_response_norm"
    for word, kind in (("BatchNorm", "batch_norm"), ("InstanceNorm", "instance_norm"), ("GroupNorm", "group_norm")):
        if word in name:
            return kind
    return "layer_norm" if "LayerNorm" in name else None


def _called(model: nn.Module, data: Any) -> Counter[str]:
    """Count the normalizer modules a forward pass calls, innermost ones only."""
    seen: Counter[str] = Counter()
    handles = []
    for module in model.modules():
        kind = _kind_of(module)
        inner = any(_kind_of(m) for m in module.modules() if m is not module)
        if kind and not inner:
            handles.append(module.register_forward_hook(lambda *_, kind=kind: seen.update([kind])))
    with torch.no_grad():
        model(**data) if isinstance(data, dict) else model(*data) if isinstance(data, tuple) else model(data)
    for handle in handles:
        handle.remove()
    return seen


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep remarks of transformers out of the way: here every warning is an error."""
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


def _heavy_tailed(model: nn.Module) -> None:
    """Give weights what training gives them: some directions much larger than the rest."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                factors = torch.empty(parameter.shape[0]).log_normal_(0.5, 1.0, generator=generator)
                parameter.mul_(factors.reshape(-1, *(1,) * (parameter.ndim - 1)))


@pytest.mark.parametrize("weights", ["random", "heavy_tailed"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_normalizers_are_found_and_upper_bounds_hold(name: str, weights: str) -> None:
    """Every normalizer is found by its kind, and what is attained stays below what is proved."""
    torch.manual_seed(0)
    model, data = ARCHITECTURES[name]()
    model.eval()
    if weights == "heavy_tailed":
        _heavy_tailed(model)
    expected = _called(model, data) + Counter(WITHOUT_A_MODULE.get(name, {}))
    before = fingerprint(model)
    result = analyze(model, data, points=2, ascent=4, without_normalizers=False, stacked=False, tolerance=1e-2)
    assert fingerprint(model) == before
    assert Counter(n.kind for n in result.normalizers) == expected
    unknown = [o for o in result.coverage.opaque if not o.known]
    upper, floor = result.end_to_end["global"], result.end_to_end["variance_floor"]
    assert upper is not None
    assert floor is not None
    if name in DISCONTINUOUS:
        assert upper.log == floor.log == math.inf
        assert any(o.known for o in result.coverage.opaque)
        return
    assert not unknown, unknown
    assert floor.log < math.inf
    lower, anywhere = result.end_to_end["lower"], result.end_to_end["lower_everywhere"]
    assert lower is not None
    assert anywhere is not None
    assert lower.log <= floor.log
    assert anywhere.log <= upper.log
