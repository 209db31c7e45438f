"""Further networks of transformers, each made from its configuration at a tiny size, for the sweep of refutations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from architectures import _LLAMA, _SMALL, _TEXT, _VIT, Inputs, _hub, _noise, _picture, _tokens

Build = Callable[[], tuple[nn.Module, Inputs]]

_SEQ: dict[str, Any] = {
    "vocab_size": 32,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_NYSTROM: dict[str, Any] = {**_TEXT, "num_landmarks": 2, "segment_means_seq_len": 4}
_N: dict[str, Any] = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}


def _pair() -> dict[str, Tensor]:
    """Return tokens of an encoder and of a decoder."""
    return {"input_ids": _tokens(4), "decoder_input_ids": _tokens(3)}


def _sound() -> Tensor:
    """Return a short waveform."""
    return _noise(2, 400)


_AUDIO: dict[str, Any] = dict(
    conv_dim=(4, 4),
    conv_stride=(5, 4),
    conv_kernel=(10, 8),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    vocab_size=32,
    **_SMALL,
)

#: Class of the model, class of its configuration, inputs, settings.
_MORE: dict[str, tuple[str, str, Callable[[], Inputs], dict[str, Any]]] = {
    "ELECTRA": ("ElectraModel", "ElectraConfig", _tokens, {**_TEXT, "embedding_size": 8}),
    "MPNet": ("MPNetModel", "MPNetConfig", _tokens, {**_TEXT}),
    "ERNIE": ("ErnieModel", "ErnieConfig", _tokens, {**_TEXT}),
    "Megatron-BERT": ("MegatronBertModel", "MegatronBertConfig", _tokens, {**_TEXT}),
    "RemBERT": ("RemBertModel", "RemBertConfig", _tokens, {**_TEXT, "input_embedding_size": 8}),
    "ConvBERT": ("ConvBertModel", "ConvBertConfig", _tokens, {**_TEXT, "embedding_size": 16, "conv_kernel_size": 3}),
    "SqueezeBERT": ("SqueezeBertModel", "SqueezeBertConfig", _tokens, {**_TEXT, "embedding_size": 16}),
    "XLM-RoBERTa-XL": ("XLMRobertaXLModel", "XLMRobertaXLConfig", _tokens, {**_TEXT}),
    "Nystromformer": (
        "NystromformerModel",
        "NystromformerConfig",
        lambda: _tokens(4),
        _NYSTROM,
    ),
    "FNet": ("FNetModel", "FNetConfig", _tokens, {k: v for k, v in _TEXT.items() if "heads" not in k}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _tokens, {**_LLAMA}),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _tokens, {**_LLAMA}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", _tokens, {**_LLAMA, "head_dim": 8}),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _tokens, {**_LLAMA, "head_dim": 8}),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", _tokens, {**_LLAMA, "bos_token_id": 1, "eos_token_id": 2}),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", _tokens, {**_LLAMA}),
    "Cohere": ("CohereForCausalLM", "CohereConfig", _tokens, {**_LLAMA}),
    "OLMo": ("OlmoForCausalLM", "OlmoConfig", _tokens, {**_LLAMA}),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", _tokens, {**_LLAMA}),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", _tokens, {**_LLAMA}),
    "Starcoder 2": ("Starcoder2ForCausalLM", "Starcoder2Config", _tokens, {**_LLAMA}),
    "Persimmon": ("PersimmonForCausalLM", "PersimmonConfig", _tokens, {**_TEXT}),
    "Nemotron": ("NemotronForCausalLM", "NemotronConfig", _tokens, {**_LLAMA}),
    "GLM": ("GlmForCausalLM", "GlmConfig", _tokens, {**_LLAMA, "head_dim": 8}),
    "GPT-Neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        _tokens,
        {
            "vocab_size": 32,
            "hidden_size": 16,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "num_heads": 2,
            "max_position_embeddings": 16,
            "window_size": 4,
        },
    ),
    "GPT-J": ("GPTJForCausalLM", "GPTJConfig", _tokens, {**_N, "rotary_dim": 4}),
    "CodeGen": ("CodeGenForCausalLM", "CodeGenConfig", _tokens, {**_N, "n_head": 4, "rotary_dim": 4}),
    "GPT-BigCode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _tokens, {**_N}),
    "BioGPT": ("BioGptForCausalLM", "BioGptConfig", _tokens, {**_TEXT}),
    "XGLM": (
        "XGLMForCausalLM",
        "XGLMConfig",
        _tokens,
        {
            "vocab_size": 32,
            "max_position_embeddings": 16,
            "d_model": 16,
            "ffn_dim": 24,
            "num_layers": 2,
            "attention_heads": 2,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    "BART": ("BartModel", "BartConfig", _pair, {**_SEQ, "forced_eos_token_id": 2}),
    "mBART": ("MBartModel", "MBartConfig", _pair, {**_SEQ, "forced_eos_token_id": 2}),
    "Pegasus": ("PegasusModel", "PegasusConfig", _pair, {**_SEQ, "forced_eos_token_id": 2}),
    "Marian": ("MarianModel", "MarianConfig", _pair, {**_SEQ, "forced_eos_token_id": 0}),
    "DeiT": ("DeiTModel", "DeiTConfig", _picture(), {**_VIT}),
    "BEiT": ("BeitModel", "BeitConfig", _picture(), {**_VIT}),
    "DINOv2": ("Dinov2Model", "Dinov2Config", _picture(), {**_VIT, "mlp_ratio": 2}),
    "SigLIP": ("SiglipVisionModel", "SiglipVisionConfig", _picture(), {**_VIT}),
    "Swin": (
        "SwinModel",
        "SwinConfig",
        _picture(8),
        {"image_size": 8, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2},
    ),
    "SegFormer": (
        "SegformerModel",
        "SegformerConfig",
        _picture(32),
        {
            "hidden_sizes": [4, 4, 8, 8],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "mlp_ratios": [2, 2, 2, 2],
        },
    ),
    "PoolFormer": (
        "PoolFormerModel",
        "PoolFormerConfig",
        _picture(32),
        {"hidden_sizes": [4, 4, 8, 8], "depths": [1, 1, 1, 1], "mlp_ratio": 2.0},
    ),
    "ConvNeXt": (
        "ConvNextModel",
        "ConvNextConfig",
        _picture(32),
        {"hidden_sizes": [4, 4, 6, 6], "depths": [1, 1, 1, 1], "image_size": 32},
    ),
    "Wav2Vec 2": ("Wav2Vec2Model", "Wav2Vec2Config", _sound, {**_AUDIO}),
    "HuBERT": ("HubertModel", "HubertConfig", _sound, {**_AUDIO}),
}

#: Every further network by name.
MORE: dict[str, Build] = {
    name: _hub(kind, config, inputs, **settings) for name, (kind, config, inputs, settings) in _MORE.items()
}
