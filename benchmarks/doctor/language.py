"""Transformers, built from configurations of the transformers library or written out, and their optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import PreNormBlock, RMSNorm, Setup, case, named, sequences, train


def _tokens(n: int = 8, length: int = 10) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 60, (n, length))}


def _llama(**options: Any) -> nn.Module:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, use_cache=False, **options,
    )).eval()  # fmt: skip


def _bert(**options: Any) -> nn.Module:
    import transformers

    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **options,
    )).eval()  # fmt: skip


def _by_name(model: nn.Module, spared: tuple[str, ...]) -> torch.optim.Optimizer:
    """Return AdamW that spares parameters by parts of their names, as training scripts do."""
    kept = [p for n, p in model.named_parameters() if not any(s in n for s in spared)]
    free = [p for n, p in model.named_parameters() if any(s in n for s in spared)]
    return torch.optim.AdamW([{"params": kept, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}], lr=1e-3)


@case("huggingface/transformers/issues/16908", "NS401", "lm_head.layer_norm")
def norm_of_the_head_decays(bug: bool) -> Setup:
    """Training spares names with "LayerNorm"; the one of the language model's head is called layer_norm."""
    import transformers

    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40, pad_token_id=1,
    )).eval()  # fmt: skip
    spared = ("bias", "LayerNorm.weight") if bug else ("bias", "LayerNorm.weight", "layer_norm.weight")
    return Setup(model, _tokens(), _by_name(model, spared))


@case("deepspeedai/DeepSpeedExamples/pull/755", "NS401", "model.layers.0.input_layernorm model.norm")
def every_norm_of_a_llama_decays(bug: bool) -> Setup:
    """No name of the model has "LayerNorm" in it, so every scale decays."""
    model = _llama()
    return Setup(model, _tokens(), _by_name(model, ("bias", "LayerNorm.weight") if bug else ("bias", "norm")))


@case("linkedin/Liger-Kernel/issues/74", "NS604 NS603", "model.layers.0.input_layernorm")
def offset_of_one_lost(bug: bool) -> Setup:
    """Scales stored as differences from one are loaded into a model that multiplies by them as they are."""
    model = _llama()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_((0.0 if bug else 1.0) + 0.02 * torch.randn_like(weight))
    return Setup(model, _tokens())


@case("kekzl/imp/pull/1289", "NS604 NS603", "model.norm")
def offset_of_one_lost_at_the_end(bug: bool) -> Setup:
    """Every scale but that of the last normalizer got its one."""
    model = _llama()
    with torch.no_grad():
        model.model.norm.weight.copy_((0.0 if bug else 1.0) + 0.05 * torch.randn(32))
    return Setup(model, _tokens())


@case("huggingface/transformers/pull/171", "NS604", "blocks.0.norm1 blocks.1.norm1")
def scales_drawn_like_weights(bug: bool) -> Setup:
    """The initialisation draws every weight from a normal of deviation 0.02, scales of LayerNorm included."""
    model = named(embed=nn.Linear(16, 16), blocks=nn.Sequential(PreNormBlock(), PreNormBlock()), head=nn.Linear(16, 4))
    for module in model.modules():
        if isinstance(module, nn.Linear) or (bug and isinstance(module, nn.LayerNorm)):
            nn.init.normal_(module.weight, 0, 0.02)
    return Setup(model, sequences())


@case("google/objax/pull/94", "NS603", "norm1")
def scale_and_shift_swapped(bug: bool) -> Setup:
    """The scale begins at zero and the shift at one."""
    model = named(
        fc1=nn.Linear(16, 16), norm1=nn.LayerNorm(16), act1=nn.GELU(), fc2=nn.Linear(16, 16), head=nn.Linear(16, 4)
    )
    if bug:
        nn.init.zeros_(model.norm1.weight)
        nn.init.ones_(model.norm1.bias)
    return Setup(model, torch.randn(64, 16))


class _SharedBlock(nn.Module):
    """A block with one normalizer before attention and before the feed-forward part."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.norm2 = self.norm if shared else nn.LayerNorm(16)
        self.att = nn.MultiheadAttention(16, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then mix features."""
        y = self.norm(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        return x + self.ff(self.norm2(x))


@case("allenai/OLMo/issues/222", "NS213", "block.norm")
def one_norm_for_both_halves(bug: bool) -> Setup:
    """Attention and feed-forward read the same LayerNorm."""
    return Setup(named(embed=nn.Linear(16, 16), block=_SharedBlock(shared=bug), head=nn.Linear(16, 4)), sequences())


class _Stack(nn.Module):
    """Layers of a head, each with a normalizer of its own or one for all."""

    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norms = nn.ModuleList([nn.LayerNorm(16)] * 3 if repeated else [nn.LayerNorm(16) for _ in range(3)])
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in turn."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x)).relu()
        return self.out(x)


@case("linkedin/Liger-Kernel/pull/269", "NS213", "norms.0")
def list_of_one_module(bug: bool) -> Setup:
    """[nn.LayerNorm(d)] * n is a list of one module."""
    return Setup(_Stack(repeated=bug), torch.randn(64, 16))


class _Tabular(nn.Module):
    """Shared weights in two steps, with shared or separate BatchNorm."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 12, bias=False), nn.Linear(12, 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.other = self.norm if shared else nn.BatchNorm1d(12)
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.norm(self.first(x)).relu()
        return self.out(self.other(self.second(x)).relu())


@case("dreamquark-ai/tabnet/pull/76", "NS213", "norm")
def batch_norm_shared_with_the_layers(bug: bool) -> Setup:
    """With deepcopy gone, the steps share their normalizers as well as their layers."""
    return Setup(train(_Tabular(shared=bug), torch.randn(128, 10)), torch.randn(128, 10))


@case("kyegomez/MambaTransformer/issues/14", "NS102 NS213", "norm")
def normalized_stream(bug: bool) -> Setup:
    """The residual stream itself is normalized before every part, by one layer."""
    return Setup(_Stream(bug=bug), sequences())


class _Stream(nn.Module):
    """Two residual parts."""

    def __init__(self, *, bug: bool) -> None:
        super().__init__()
        self.norm, self.own = nn.LayerNorm(16), nn.LayerNorm(16)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.out, self.bug = nn.Linear(16, 4), bug
        if bug:
            del self.own

    def forward(self, x: Tensor) -> Tensor:
        """Apply both."""
        if self.bug:
            x = self.norm(x)
            x = self.a(x).relu() + x
            x = self.norm(x)
            return self.out(self.b(x).relu() + x)
        x = self.a(self.norm(x)).relu() + x
        return self.out(self.b(self.own(x)).relu() + x)


@case("huggingface/pytorch-image-models/issues/1851", "NS105", "mlp.norm")
def norm_built_and_forgotten(bug: bool) -> Setup:
    """The feed-forward part builds a normalizer and never calls it."""
    return Setup(named(embed=nn.Linear(16, 16), mlp=_Mlp(uses=not bug), head=nn.Linear(16, 4)), sequences())


class _Mlp(nn.Module):
    """A feed-forward part."""

    def __init__(self, *, uses: bool, drops: bool = False) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)
        self.uses, self.drops = uses, drops

    def forward(self, x: Tensor) -> Tensor:
        """Mix features."""
        x = self.fc1(x).relu()
        if self.drops:
            self.norm(x)
        return self.fc2(self.norm(x) if self.uses else x)


@case("esceptico/perceiver-io/pull/5", "NS105", "mlp.norm")
def result_of_the_norm_thrown_away(bug: bool) -> Setup:
    """forward() calls the normalizer and goes on with what it had before."""
    mlp = _Mlp(uses=not bug, drops=bug)
    return Setup(named(embed=nn.Linear(16, 16), mlp=mlp, head=nn.Linear(16, 4)), sequences())


@case("reczoo/FuxiCTR/issues/23", "NS211", "norm")
def fields_normalized_together(bug: bool) -> Setup:
    """LayerNorm over fields and embedding mixes all fields of a sample."""
    model = named(
        embed=nn.Linear(6, 16), norm=nn.LayerNorm([12, 16] if bug else 16), act=nn.ReLU(), out=nn.Linear(16, 4)
    )
    return Setup(model, torch.randn(64, 12, 6))


@case("huggingface/transformers/pull/585", "NS302", "bert.embeddings.LayerNorm")
def bert_eps_in_half(bug: bool) -> Setup:
    """eps=1e-12 is zero in half precision."""
    return Setup(_bert(layer_norm_eps=1e-12 if bug else 1e-5), _tokens(), options={"dtype": torch.float16})


@case("lucidrains/PaLM-rlhf-pytorch/issues/46", "NS102", "head.norm model.norm body.model.norm")
def value_head_normalizes_again(bug: bool) -> Setup:
    """A value head begins with a LayerNorm, after the last normalizer of the model."""
    body = _llama().model

    class Valued(nn.Module):
        """A language model with a value for every token."""

        def __init__(self) -> None:
            super().__init__()
            self.model = body
            self.head = named(norm=nn.LayerNorm(32), out=nn.Linear(32, 1)) if bug else named(out=nn.Linear(32, 1))

        def forward(self, input_ids: Tensor) -> Tensor:
            """Return values."""
            return self.head(self.model(input_ids=input_ids).last_hidden_state)

    return Setup(Valued().eval(), _tokens())


@case("vllm-project/speculators/pull/765", "NS404", "model.layers.0.input_layernorm model.norm")
def half_precision_scales_stand_still(bug: bool) -> Setup:
    """The whole model trains in bfloat16 with steps of 1e-5: scales of one are never moved."""
    model = _llama().to(torch.bfloat16 if bug else torch.float32)
    return Setup(model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0))


@case("PAIR-code/tiny-transformers/issues/71", "NS507", "transformer.h.0.attn transformer.h.1.attn")
def logits_not_divided(bug: bool) -> Setup:
    """Attention without the division by the root of the width, on weights that have grown."""
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=60, n_embd=64, n_layer=2, n_head=1, n_positions=32, use_cache=False, attn_implementation="eager",
        scale_attn_weights=not bug,
    )).eval()  # fmt: skip
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :128].mul_(12.0)
    return Setup(model, _tokens())


class _QueryKey(nn.Module):
    """Attention with normalized queries and keys, in half precision or not."""

    def __init__(self, *, half: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.q_norm, self.k_norm = RMSNorm(8, upcast=not half), RMSNorm(8, upcast=not half)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)


@case("xlite-dev/LeetCUDA/pull/335", "NS305", "q_norm k_norm")
def queries_normalized_in_half(bug: bool) -> Setup:
    """The root mean square of queries and keys is taken in half precision."""
    return Setup(_QueryKey(half=bug).half(), sequences(8).half())


@case("keras-team/keras/issues/23075", "NS306 NS302", "head")
def cosine_head_without_eps(bug: bool) -> Setup:
    """Vectors are divided by their length, and padding has length zero."""
    return Setup(named(body=nn.Linear(16, 16), act=nn.ReLU(), head=_Cosine(safe=not bug)), torch.randn(64, 16))


class _Cosine(nn.Module):
    """A classifier by cosines."""

    def __init__(self, *, safe: bool) -> None:
        super().__init__()
        self.weight, self.safe = nn.Parameter(torch.randn(5, 16)), safe

    def forward(self, x: Tensor) -> Tensor:
        """Compare with the classes."""
        x = nn.functional.normalize(x, dim=-1) if self.safe else x / x.norm(dim=-1, keepdim=True)
        return 10 * x @ nn.functional.normalize(self.weight, dim=-1).T
