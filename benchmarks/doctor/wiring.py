"""Where normalizers stand: twice, shared, unused, at the output, after dropout, after a bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks.doctor.case import PreNormBlock, RMSNorm, Setup, case, convnet, images, mlp, named, sequences, train


@case("milesial/Pytorch-UNet/pull/325", "NS101", "conv1")
def bias_before_batch_norm(bug: bool) -> Setup:
    """The convolution before BatchNorm has a bias, which does nothing."""
    model = convnet()
    model.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=bug)
    return Setup(model, options={"input_shape": (3, 8, 8)})


class _PostNorm(nn.Module):
    """Post-norm layers with a norm at the end."""

    def __init__(self, *, final: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        norm = nn.LayerNorm(16) if final else None
        self.encoder = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Classify each step."""
        return self.head(self.encoder(x))


@case("pytorch/pytorch/issues/50086", "NS102", "encoder.layers.1.norm2 encoder.norm")
def final_norm_after_post_norm(bug: bool) -> Setup:
    """A post-norm encoder ends with a normalizer and then another one."""
    return Setup(_PostNorm(final=bug), sequences())


@case("ggml-org/llama.cpp/pull/1925", "NS102", "norm1 again")
def normalized_twice(bug: bool) -> Setup:
    """The same normalization was applied twice by accident."""
    model = named(fc1=nn.Linear(16, 16), norm1=RMSNorm(16), again=RMSNorm(16) if bug else nn.Identity(),
                  fc2=nn.Linear(16, 4))  # fmt: skip
    return Setup(model, sequences())


class _Embedded(nn.Module):
    """An embedding with a norm of its own before a pre-norm block."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.embed, self.embed_norm = nn.Linear(16, 16), nn.LayerNorm(16) if norm else nn.Identity()
        self.block, self.head = PreNormBlock(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Classify each step."""
        return self.head(self.block(self.embed_norm(self.embed(x))))


@case("nlp-with-transformers/notebooks/issues/129", "NS102", "embed_norm block.norm1")
def embedding_norm_before_pre_norm(bug: bool) -> Setup:
    """The embedding is normalized, and the first block normalizes it again beside its residual."""
    return Setup(_Embedded(norm=bug), sequences())


@case("quark0/darts/issues/41", "NS103", "norm1")
def normalizer_that_cannot_act(bug: bool) -> Setup:
    """BatchNorm, average pooling, BatchNorm: the first one is undone."""
    model = named(conv=nn.Conv2d(3, 8, 3, padding=1, bias=False), norm1=nn.BatchNorm2d(8),
                  act=nn.Identity() if bug else nn.ReLU(), pool=nn.AvgPool2d(2), norm2=nn.BatchNorm2d(8), end=nn.ReLU(),
                  flat=nn.Flatten(), fc=nn.Linear(128, 4))  # fmt: skip
    return Setup(model, options={"input_shape": (3, 8, 8)})


@case("arcchang1236/CA-NoiseGAN/issues/3", "NS104", "conv1")
def spectral_norm_before_a_normalizer(bug: bool) -> Setup:
    """InstanceNorm after a spectrally normalized convolution undoes its scale."""
    norm = (lambda n: nn.InstanceNorm2d(n, affine=True)) if bug else (lambda n: nn.Identity())
    model = convnet(norm)
    model.conv1 = parametrizations.spectral_norm(nn.Conv2d(3, 8, 1, bias=False), n_power_iterations=50)
    model(images(4))
    return Setup(model.eval(), options={"input_shape": (3, 8, 8)})


class _Shared(nn.Module):
    """Two layers, one normalizer."""

    def __init__(self, *, shared: bool, norm: type[nn.Module]) -> None:
        super().__init__()
        self.fc1, self.fc2 = (nn.Linear(16, 16, bias=norm is not nn.BatchNorm1d) for _ in range(2))
        self.norm, self.head = norm(16), nn.Linear(16, 3)
        self.other = self.norm if shared else norm(16)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.norm(self.fc1(x)).relu()
        return self.head(self.other(self.fc2(x)).relu())


@case("pytorch/pytorch/issues/1738", "NS213", "norm")
def batch_norm_shared(bug: bool) -> Setup:
    """One BatchNorm serves two layers, whose statistics differ."""
    x = torch.randn(128, 16)
    return Setup(train(_Shared(shared=bug, norm=nn.BatchNorm1d), x), options={"input_shape": (16,)})


@case("keras-team/keras/issues/8794", "NS213", "norm")
def layer_norm_shared(bug: bool) -> Setup:
    """One LayerNorm serves two layers of different kind."""
    return Setup(_Shared(shared=bug, norm=nn.LayerNorm), torch.randn(64, 16))


class _Unused(nn.Module):
    """A block with a normalizer that forward forgets."""

    def __init__(self, *, used: bool) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(16, 16), nn.LayerNorm(16)
        self.fc2, self.norm2 = nn.Linear(16, 16), nn.LayerNorm(16)
        self.head, self.used = nn.Linear(16, 3), used

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        x = self.fc2(self.norm1(self.fc1(x)).relu())
        return self.head((self.norm2(x) if self.used else x).relu())


@case("lucidrains/PaLM-rlhf-pytorch/issues/46", "NS105", "norm2")
def never_called(bug: bool) -> Setup:
    """A normalizer is built and forward never calls it."""
    return Setup(_Unused(used=not bug), torch.randn(64, 16))


@case("fastai/fastai2/issues/107", "NS106", "norm")
def output_normalized(bug: bool) -> Setup:
    """BatchNorm right before the output of a regression forces its mean and variance."""
    model = named(fc1=nn.Linear(16, 16), act=nn.ReLU(), fc2=nn.Linear(16, 1, bias=not bug),
                  norm=nn.BatchNorm1d(1) if bug else nn.Identity())  # fmt: skip
    return Setup(train(model, torch.randn(128, 16)), options={"input_shape": (16,)})


@case("Lab41/attalos/pull/89", "NS106", "norm")
def logits_normalized(bug: bool) -> Setup:
    """The logits of a classifier are normalized."""
    model = named(fc1=nn.Linear(16, 16), act=nn.ReLU(), fc2=nn.Linear(16, 5, bias=not bug),
                  norm=nn.LayerNorm(5) if bug else nn.Identity())  # fmt: skip
    return Setup(train(model, torch.randn(128, 16)), options={"input_shape": (16,)})


@case("luigibonati/mlcolvar/pull/205", "NS215", "norm")
def dropout_before_batch_norm(bug: bool) -> Setup:
    """Dropout right before BatchNorm: the variance of training is not that of evaluation."""
    drop, norm = ("drop", nn.Dropout(0.3)), ("norm", nn.BatchNorm1d(16))
    inner = dict((drop, norm) if bug else (norm, drop))
    model = named(fc1=nn.Linear(16, 16), act=nn.ReLU(), **inner, fc2=nn.Linear(16, 3))
    return Setup(train(model, torch.randn(128, 16)), options={"input_shape": (16,)})


@case("FengAoWang/TMO-Net/issues/12", "NS215", "norm")
def dropout_then_norm_then_activation(bug: bool) -> Setup:
    """Linear, dropout, BatchNorm, activation."""
    drop, norm = ("drop", nn.Dropout(0.5)), ("norm", nn.BatchNorm1d(16))
    inner = dict((drop, norm) if bug else (norm, ("act", nn.ReLU()), drop))
    last = {"act": nn.ReLU()} if bug else {}
    model = named(fc1=nn.Linear(16, 16, bias=False), **inner, **last, fc2=nn.Linear(16, 3))
    return Setup(model, options={"input_shape": (16,)})


@case("yjh0410/yolov2-yolov3_PyTorch/issues/35", "NS101", "fc1")
def bias_before_a_wide_batch_norm(bug: bool) -> Setup:
    """The same in a fully connected network."""
    model = mlp(nn.BatchNorm1d)
    for name in ("fc1", "fc2"):
        setattr(model, name, nn.Linear(16, 16, bias=bug))
    return Setup(model, options={"input_shape": (16,)})
