"""Small networks of every known architecture, with the normalizers each has by its definition."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.zoo import catalogue as zoo

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """A network to analyze.

    Attributes:
        build: returns the network and a batch of inputs.
        normalizers: how many of each kind it has, by its definition.
        refused: operations that have no finite constant.
        bounded: whether the constant on all inputs is finite.
        weights: whether the tests may also scale its weights (not where a search would only find infinities).
    """

    build: Callable[[], tuple[nn.Module, Inputs]]
    normalizers: dict[str, int] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    bounded: bool = True


def _tokens(length: int = 5, rows: int = 3) -> Tensor:
    """Return token ids below 32."""
    return torch.randint(3, 32, (rows, length), generator=torch.Generator().manual_seed(3))


def _noise(*shape: int) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


def _zoo(name: str, **arguments: Any) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Return the factory of a network of our own."""
    return lambda: (zoo.build(name, **arguments), zoo.example_input(name, 3, **arguments))


def _hub(
    kind: str, config: str, inputs: Callable[[], Inputs], **settings: Any
) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Return the factory of a network of transformers, made from its configuration."""

    def build() -> tuple[nn.Module, Inputs]:
        import transformers

        transformers.logging.set_verbosity_error()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
        return model, inputs()

    return build


class _Whole(nn.Module):
    """nn.Transformer on a source and a target."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a fast path is not taken
            self.inner = nn.Transformer(8, 2, 1, 1, 12, batch_first=True, norm_first=norm_first)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Run encoder and decoder."""
        return self.inner(source, target)


def _whole(norm_first: bool) -> Callable[[], tuple[nn.Module, Inputs]]:
    """Return the factory of nn.Transformer."""

    def build() -> tuple[nn.Module, Inputs]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _Whole(norm_first), (_noise(3, 4, 8), _noise(3, 3, 8))

    return build


_SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_TEXT = dict(vocab_size=32, max_position_embeddings=16, pad_token_id=0, **_SMALL)
_LLAMA = dict(num_key_value_heads=1, **_TEXT)
_VIT = dict(image_size=16, patch_size=8, num_channels=3, **_SMALL)
_T5 = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}
_STAGES = {"hidden_sizes": [4, 4, 6, 6], "depths": [1, 1, 1, 1]}


def _picture(size: int = 16) -> Callable[[], Inputs]:
    """Return a batch of images."""
    return lambda: _noise(3, 3, size, size)


_OWN: dict[str, Architecture] = {
    # Ten linear layers, a normalizer after each but the last.
    "relu10": Architecture(_zoo("relu10", norm="ln", width=12, in_features=16), {"layer_norm": 9}),
    "mlp": Architecture(_zoo("mlp", norm="bn", hidden=(12, 8), in_features=16), {"batch_norm": 2}),
    "cnn": Architecture(_zoo("cnn", norm="gn", image_size=8, width=4), {"group_norm": 3}),
    "wn_cnn": Architecture(_zoo("wn_cnn", image_size=8, width=4), {"weight_norm": 4}),
    "sn_cnn": Architecture(_zoo("sn_cnn", image_size=8, width=4), {"spectral_norm": 4}),
    # Stem, two in each of three blocks; shortcuts without parameters.
    "resnet20": Architecture(_zoo("resnet20", blocks=1, width=4), {"batch_norm": 7}),
    # Stem, two in each of eight blocks, three projections.
    "resnet18": Architecture(_zoo("resnet18_cifar", width=4, image_size=16), {"batch_norm": 20}),
    "preact_resnet18": Architecture(_zoo("preact_resnet18", width=4, image_size=16), {"batch_norm": 17}),
    "vgg11": Architecture(_zoo("vgg11", width=4), {"batch_norm": 8}),
    # Stem, 17 blocks of three but the first of two, head.
    "mobilenet_v2": Architecture(_zoo("mobilenet_v2", image_size=32, width=0.1), {"batch_norm": 52}),
    "efficientnet_b0": Architecture(
        _zoo("efficientnet_b0", image_size=32, width=0.1, depth=0.3), {"batch_norm": 25}, bounded=False
    ),
    # Twelve blocks, stem, three between stages, head.
    "convnextv2_atto": Architecture(
        _zoo("convnextv2_atto", image_size=32, width=4), {"layer_norm": 17, "global_response_norm": 12}
    ),
    "densenet": Architecture(_zoo("densenet", image_size=8, blocks=(2, 2), growth=4), {"batch_norm": 10}),
    "inception": Architecture(_zoo("inception", image_size=8, width=4), {"batch_norm": 37}),
    "unet": Architecture(_zoo("unet", norm="in", image_size=8, width=4), {"instance_norm": 10}),
    "autoencoder": Architecture(_zoo("autoencoder", image_size=8, width=4, code=6), {"batch_norm": 3}),
    "regnet": Architecture(_zoo("regnet", image_size=8, widths=(8, 8), blocks=(1, 1), group=4), {"batch_norm": 9}),
    "nfnet": Architecture(_zoo("nfnet", image_size=8, width=8, blocks=1), {"weight_standardization": 9}),
    # Two in each of two blocks, one at the end.
    "vit": Architecture(_zoo("vit_tiny", image_size=16, patch=8, width=12, depth=2, heads=2), {"layer_norm": 5}),
    "mixer": Architecture(
        _zoo("mixer", image_size=8, patch=4, width=8, depth=2, token_hidden=6, channel_hidden=12), {"layer_norm": 5}
    ),
    "transformer_encoder": Architecture(
        _zoo("transformer_encoder", features=4, length=4, width=8, heads=2), {"layer_norm": 4}, bounded=False
    ),
    "gpt": Architecture(_zoo("gpt", vocabulary=16, context=8, width=8, layers=2, heads=2), {"layer_norm": 5}),
    "llama_like": Architecture(
        _zoo("llama_like", vocabulary=16, width=16, layers=2, hidden=24, heads=4, key_heads=2), {"rms_norm": 5}
    ),
    "lstm": Architecture(_zoo("lstm", features=3, length=4, hidden=4)),
    "gru": Architecture(_zoo("gru", features=3, length=4, hidden=4)),
    # One of the input and one of the state in each of three steps; the first state is a constant.
    "lstm_cell": Architecture(_zoo("lstm_cell", norm="ln", features=3, length=3, hidden=4), {"layer_norm": 5}),
    "gru_cell": Architecture(_zoo("gru_cell", norm="rms", features=3, length=3, hidden=4), {"rms_norm": 5}),
    # Encoder: two and one at the end; decoder: three and one at the end.
    "nn.Transformer post": Architecture(_whole(False), {"layer_norm": 7}, bounded=False),
    "nn.Transformer pre": Architecture(_whole(True), {"layer_norm": 7}),
}

_TEXT_MODELS: dict[str, Architecture] = {
    # Embeddings, and two in each of two layers.
    "BERT": Architecture(_hub("BertModel", "BertConfig", _tokens, **_TEXT), {"layer_norm": 5}),
    "RoBERTa": Architecture(_hub("RobertaModel", "RobertaConfig", _tokens, **_TEXT), {"layer_norm": 5}),
    "DistilBERT": Architecture(
        _hub(
            "DistilBertModel",
            "DistilBertConfig",
            _tokens,
            vocab_size=32,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=16,
        ),
        {"layer_norm": 5},
    ),
    "DeBERTa-v2": Architecture(
        _hub(
            "DebertaV2Model",
            "DebertaV2Config",
            _tokens,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            **_TEXT,
        ),
        {"layer_norm": 5},
    ),
    "ALBERT": Architecture(_hub("AlbertModel", "AlbertConfig", _tokens, embedding_size=8, **_TEXT), {"layer_norm": 5}),
    # Two in each of two layers, one at the end.
    "GPT-2": Architecture(
        _hub("GPT2LMHeadModel", "GPT2Config", _tokens, vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2),
        {"layer_norm": 5},
    ),
    "OPT": Architecture(
        _hub(
            "OPTForCausalLM",
            "OPTConfig",
            _tokens,
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=2,
            ffn_dim=24,
            num_attention_heads=2,
            max_position_embeddings=16,
            word_embed_proj_dim=16,
        ),
        {"layer_norm": 5},
    ),
    "GPT-NeoX": Architecture(_hub("GPTNeoXForCausalLM", "GPTNeoXConfig", _tokens, **_TEXT), {"layer_norm": 5}),
    # As GPT-2, and one of the embeddings.
    "BLOOM": Architecture(
        _hub("BloomForCausalLM", "BloomConfig", _tokens, vocab_size=32, hidden_size=16, n_layer=2, n_head=2),
        {"layer_norm": 6},
    ),
    # One in each of two parallel layers, one at the end.
    "Falcon": Architecture(
        _hub(
            "FalconForCausalLM",
            "FalconConfig",
            _tokens,
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        {"layer_norm": 3},
    ),
    "Phi": Architecture(_hub("PhiForCausalLM", "PhiConfig", _tokens, **_TEXT), {"layer_norm": 3}),
    # Two in each of two layers, one at the end.
    "Llama": Architecture(_hub("LlamaForCausalLM", "LlamaConfig", _tokens, **_LLAMA), {"rms_norm": 5}),
    # As Llama, and queries and keys in each layer.
    "Qwen3": Architecture(_hub("Qwen3ForCausalLM", "Qwen3Config", _tokens, head_dim=8, **_LLAMA), {"rms_norm": 9}),
    # Four in each of two layers, one at the end.
    "Gemma 2": Architecture(_hub("Gemma2ForCausalLM", "Gemma2Config", _tokens, head_dim=8, **_LLAMA), {"rms_norm": 9}),
    # Each router chooses two experts by their places in an order.
    "Mixtral": Architecture(
        _hub("MixtralForCausalLM", "MixtralConfig", _tokens, num_local_experts=4, **_LLAMA),
        {"rms_norm": 5},
        frozenset({"topk"}),
        bounded=False,
    ),
    # Two in each of two layers, one at the end.
    "T5 encoder": Architecture(_hub("T5EncoderModel", "T5Config", _tokens, **_T5), {"rms_norm": 5}),
    # The encoder, three in each of two decoder layers, one at the end.
    "T5": Architecture(
        _hub(
            "T5ForConditionalGeneration",
            "T5Config",
            lambda: {"input_ids": _tokens(4), "decoder_input_ids": _tokens(3)},
            **_T5,
        ),
        {"rms_norm": 12},
    ),
    # One in each of two layers, one at the end.
    "Mamba": Architecture(
        _hub(
            "MambaForCausalLM",
            "MambaConfig",
            lambda: _tokens(3),
            vocab_size=32,
            hidden_size=8,
            num_hidden_layers=2,
            state_size=2,
        ),
        {"rms_norm": 3},
    ),
    # The same, and one before each output projection.
    "Mamba 2": Architecture(
        _hub(
            "Mamba2ForCausalLM",
            "Mamba2Config",
            lambda: _tokens(4),
            vocab_size=32,
            hidden_size=8,
            num_hidden_layers=2,
            state_size=4,
            num_heads=4,
            head_dim=4,
            n_groups=1,
            chunk_size=4,
        ),
        {"rms_norm": 5},
    ),
    "CLIP text": Architecture(
        _hub("CLIPTextModel", "CLIPTextConfig", _tokens, **{**_TEXT, "eos_token_id": 2, "bos_token_id": 1}),
        {"layer_norm": 5},
    ),
}

_VISION_MODELS: dict[str, Architecture] = {
    "ViT": Architecture(_hub("ViTModel", "ViTConfig", _picture(), **_VIT), {"layer_norm": 5}),
    # As ViT, and one before the first layer.
    "CLIP vision": Architecture(_hub("CLIPVisionModel", "CLIPVisionConfig", _picture(), **_VIT), {"layer_norm": 6}),
    # Patches, two in each of two layers, one between stages, one at the end; queries and keys of each layer.
    "Swin v2": Architecture(
        _hub(
            "Swinv2Model",
            "Swinv2Config",
            _picture(8),
            image_size=8,
            patch_size=2,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=2,
        ),
        {"layer_norm": 7, "l2_norm": 4},
    ),
    # Four blocks, stem, three between stages, head; a response in each block.
    "ConvNeXt v2": Architecture(
        _hub("ConvNextV2Model", "ConvNextV2Config", _picture(32), image_size=32, **_STAGES),
        {"layer_norm": 9, "global_response_norm": 4},
    ),
    # Stem, two in each of four blocks, three projections.
    "ResNet": Architecture(
        _hub("ResNetModel", "ResNetConfig", _picture(32), embedding_size=4, layer_type="basic", **_STAGES),
        {"batch_norm": 12},
    ),
    # Stem, three in each of four blocks, a projection in each.
    "RegNet": Architecture(
        _hub("RegNetModel", "RegNetConfig", _picture(32), embedding_size=4, groups_width=2, **_STAGES),
        {"batch_norm": 17},
        bounded=False,
    ),
    "EfficientNet": Architecture(
        _hub(
            "EfficientNetModel",
            "EfficientNetConfig",
            _picture(32),
            image_size=32,
            width_coefficient=0.1,
            depth_coefficient=0.1,
            depth_divisor=4,
            hidden_dim=128,
        ),
        {"batch_norm": 22},
        bounded=False,
    ),
    # Stem, two in each of thirteen blocks.
    "MobileNet v1": Architecture(
        _hub("MobileNetV1Model", "MobileNetV1Config", _picture(), image_size=16, depth_multiplier=0.02, min_depth=4),
        {"batch_norm": 27},
    ),
    "MobileNet v2": Architecture(
        _hub(
            "MobileNetV2Model",
            "MobileNetV2Config",
            _picture(),
            image_size=16,
            depth_multiplier=0.05,
            min_depth=4,
            depth_divisible_by=4,
            finegrained_output=False,
        ),
        {"batch_norm": 52},
    ),
    # Two in each of two layers, one at the end.
    "Whisper encoder": Architecture(lambda: _whisper(), {"layer_norm": 5}),
}


def _whisper() -> tuple[nn.Module, Inputs]:
    """Return the encoder of Whisper on a short spectrogram."""
    model, inputs = _hub(
        "WhisperModel",
        "WhisperConfig",
        lambda: _noise(3, 4, 12),
        vocab_size=32,
        num_mel_bins=4,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=6,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )()
    return model.get_encoder(), inputs  # type: ignore[operator]


#: Every architecture by name.
ARCHITECTURES: dict[str, Architecture] = {**_OWN, **_TEXT_MODELS, **_VISION_MODELS}
