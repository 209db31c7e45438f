"""Bugs written from their threads before anyone looked at what the doctor says of them; seventeen of twenty-four.

After "Must say" stands what a finding at one of the places has to tell, in words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Setup, case, convnet, images, mlp, named, sequences, train


@case("kdexd/virtex/issues/16", "NS207", "bn1 bn2")
def linear_probe_moves_statistics(bug: bool) -> Setup:
    """A linear probe freezes every parameter but those of the classifier, and calls train() on the whole network.

    Must say: the frozen BatchNorm is in training mode, so it uses batches and its running statistics still move.
    """
    model = train(convnet(), images())
    model.requires_grad_(False)
    model.fc.requires_grad_(True)
    model.train()
    if not bug:
        model.bn1.eval(), model.bn2.eval()
    return Setup(model, images(), torch.optim.SGD(model.fc.parameters(), lr=0.1), {"purpose": "finetune"})


@case("namisan/mt-dnn/pull/37", "NS401", "norm1 norm2")
def decay_excluded_by_equal_names(bug: bool) -> Setup:
    """Names are compared with "in" on a list of endings, so nothing is ever excluded from weight decay.

    Must say: scales (and shifts) of the LayerNorms are in a group with weight decay.
    """
    model = mlp()
    endings = ("bias", "norm1.weight", "norm2.weight")
    excluded = [n for n, _ in model.named_parameters() if not bug and n.endswith(endings)]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in excluded], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n in excluded], "weight_decay": 0.0},
    ]
    return Setup(model, torch.randn(64, 16), torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3))


class _ByHand(nn.Module):
    """Layer normalization by hand; how the variance becomes a divisor, and in which precision, is given."""

    def __init__(self, width: int, divisor: Callable[[Tensor], Tensor], *, upcast: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.divisor, self.upcast = divisor, upcast

    def forward(self, x: Tensor) -> Tensor:
        """Center and scale."""
        wide = x.float() if self.upcast else x
        centered = wide - wide.mean(-1, keepdim=True)
        normalized = centered / self.divisor(centered.square().mean(-1, keepdim=True))
        return normalized.to(x.dtype) * self.weight + self.bias


@case("131250208/TPlinker-joint-extraction/issues/37", "NS608", "norm1 norm2")
def variance_squared_not_rooted(bug: bool) -> Setup:
    """The deviation is computed as the square of the variance, not as its root.

    Must say: the layer does not normalize: its outputs do not have variance one, or depend on the input's scale.
    """
    power = 2.0 if bug else 0.5
    return Setup(mlp(lambda n: _ByHand(n, lambda var: (var + 1e-12) ** power)), 3 * torch.randn(64, 16))


@case("pyg-team/pytorch_geometric/pull/2917", "NS308", "norm")
def epsilon_outside_of_the_root(bug: bool) -> Setup:
    """Some nodes have constant features: the root of a zero variance has an infinite derivative.

    Must say: gradients are not finite (NaN) at a constant input, or the epsilon is outside of the root.
    """
    x = sequences()
    x[:, -3:] = 0.0
    norm = _ByHand(16, lambda var: var.sqrt() + 1e-5 if bug else (var + 1e-5).sqrt())
    return Setup(named(lift=nn.Linear(16, 16, bias=False), norm=norm, act=nn.ReLU(), out=nn.Linear(16, 4)), x)


@case("ultralytics/ultralytics/issues/18691", "NS203", "bn1 bn2")
def normalized_again_after_fusing(bug: bool) -> Setup:
    """The convolution took over the BatchNorm, and the fused forward still applies the BatchNorm.

    Must say: the running statistics are not those of the layer's inputs (it normalizes twice).
    """
    model = train(convnet(), images() + 0.5)
    for conv, bn in (("conv1", "bn1"), ("conv2", "bn2")):
        fused = nn.utils.fusion.fuse_conv_bn_eval(getattr(model, conv), getattr(model, bn))
        setattr(model, conv, fused)
        if not bug:
            setattr(model, bn, nn.Identity())
    return Setup(model, images() + 0.5, options={"purpose": "inference"})


@case("VectorInstitute/FL4Health/pull/39", "NS210", "bn1 bn2")
def server_momentum_makes_variances_negative(bug: bool) -> Setup:
    """The server's optimizer with momentum also updates the running variances, and some of them become negative.

    Must say: a running variance is negative, evaluation gives NaN.
    """
    model = train(convnet(), images())
    if bug:
        with torch.no_grad():
            model.bn2.running_var[::3] *= -0.2
    return Setup(model, images())


class _MaskedInstanceNorm(nn.Module):
    """Instance normalization over the frames that are not padding."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of each sequence over its own frames."""
        mask = (x != 0).any(1, keepdim=True).float()
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        mean = (x * mask).sum(-1, keepdim=True) / count
        var = ((x - mean).square() * mask).sum(-1, keepdim=True) / count
        return (x - mean) / (var + 1e-5).sqrt() * mask


@case("pytorch/pytorch/issues/81985", "NS214", "norm")
def instances_normalized_with_padding(bug: bool) -> Setup:
    """Sequences are padded with zeros, and InstanceNorm counts the zeros, so outputs depend on the padding.

    Must say: padding enters the layer's statistics.
    """
    x = torch.randn(32, 16, 40) + 2.0
    for i, length in enumerate(torch.linspace(6, 40, 32).int().tolist()):
        x[i, :, length:] = 0.0
    norm = nn.InstanceNorm1d(16) if bug else _MaskedInstanceNorm()
    return Setup(named(norm=norm, conv=nn.Conv1d(16, 8, 3, padding=1), act=nn.ReLU(), pool=nn.AdaptiveMaxPool1d(1),
                       flat=nn.Flatten(), out=nn.Linear(8, 4)), x)  # fmt: skip


@case("deepspeedai/DeepSpeed/issues/581", "NS307", "norm")
def epsilon_vanishes_in_half_precision(bug: bool) -> Setup:
    """An epsilon of 1e-12 is zero in float16, and padded positions have variance zero: NaN.

    Must say: the epsilon is too small for float16, or the output is not finite there.
    """
    x = sequences()
    x[:, -4:] = 0.0
    norm = _ByHand(16, lambda var: (var + 1e-12).sqrt(), upcast=not bug)
    model = named(norm=norm, fc=nn.Linear(16, 16), act=nn.GELU(), out=nn.Linear(16, 4))
    return Setup(model, x, options={"dtype": torch.float16})


class _ActNorm(nn.Module):
    """Scale and shift that are set from the first batch."""

    def __init__(self, width: int, *, flag_is_saved: bool) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width))
        if flag_is_saved:
            self.register_buffer("ready", torch.tensor(False))
        else:
            self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        """Set the parameters once, then apply them."""
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0)), self.scale.copy_(1 / (x.std(0) + 1e-6))
                if isinstance(self.ready, Tensor):
                    self.ready.fill_(True)
                else:
                    self.ready = True
        return (x + self.shift) * self.scale


@case("VincentStimper/normalizing-flows/pull/2", "NS001", "norm1 norm2")
def first_batch_after_loading_overwrites(bug: bool) -> Setup:
    """The flag "was set from data" is not in the checkpoint: the first batch overwrites the trained parameters.

    Must say: a forward pass (in evaluation) changes the layer's parameters, or the layer waits for its first batch.
    """
    model, x = mlp(lambda n: _ActNorm(n, flag_is_saved=not bug)), 3.0 + torch.randn(128, 16)
    trained = train(model, x).state_dict()
    loaded = mlp(lambda n: _ActNorm(n, flag_is_saved=not bug))
    loaded.load_state_dict(trained)
    return Setup(loaded.eval(), x, options={"purpose": "inference"})


class _BatchRenorm(nn.Module):
    """Batch renormalization by hand, with limits one and zero, the statistics buffers or mere attributes."""

    def __init__(self, width: int, *, saved: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, width, 1, 1)), nn.Parameter(torch.zeros(1, width, 1, 1))
        mean, std = torch.zeros(1, width, 1, 1), torch.ones(1, width, 1, 1)
        if saved:
            self.register_buffer("running_mean", mean), self.register_buffer("running_std", std)
        else:
            self.running_mean, self.running_std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the batch in training, by the moving averages in evaluation."""
        mean, std = self.running_mean, self.running_std
        if self.training:
            mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True) + 1e-5
            self.running_mean = self.running_mean + 0.1 * (mean.detach() - self.running_mean)
            self.running_std = self.running_std + 0.1 * (std.detach() - self.running_std)
        return (x - mean) / std * self.weight + self.bias


@case("vlomonaco/ar1-pytorch/pull/1", "NS205", "bn1 bn2")
def moving_averages_not_in_the_checkpoint(bug: bool) -> Setup:
    """The moving averages are attributes and not buffers; a loaded model has those of a new one.

    Must say: the statistics are not saved with the model (not buffers), or they do not fit the data.
    """
    x = images() * 4.0 + 1.0
    trained = train(convnet(lambda n: _BatchRenorm(n, saved=not bug)), x).state_dict()
    loaded = convnet(lambda n: _BatchRenorm(n, saved=not bug))
    loaded.load_state_dict(trained)
    return Setup(loaded.eval(), x)


@case("pytorch/pytorch/issues/51800", "NS506", "fc1 fc2")
def spectral_norm_without_iterations(bug: bool) -> Setup:
    """A network with spectral normalization is used in evaluation first: its vectors are random, weights far too large.

    Must say: the power iteration has not converged, the layer's norm is not one.
    """
    parts = [nn.utils.spectral_norm(nn.Linear(64, 64)) for _ in range(2)]
    model, x = named(fc1=parts[0], act=nn.ReLU(), fc2=parts[1], out=nn.Linear(64, 1)), torch.randn(64, 64)
    if not bug:
        with torch.no_grad():
            for _ in range(200):
                model(x)
    return Setup(model.eval(), x)


@case("tensorflow/models/issues/7604", "NS203", "bn1")
def images_not_normalized_at_inference(bug: bool) -> Setup:
    """Training subtracted the mean of the pixels and divided by their deviation, the inference script does not.

    Must say: the running statistics do not fit the data given (inputs are on another scale).
    """
    pixels = torch.rand(128, 3, 8, 8) * 0.9
    normalized = (pixels - 0.45) / 0.225
    return Setup(train(convnet(), normalized), pixels if bug else normalized, options={"purpose": "inference"})


class _Observations(nn.Module):
    """Standardizes observations by stored statistics."""

    def __init__(self, mean: Tensor, std: Tensor, *, misplaced: bool) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.misplaced = misplaced

    def forward(self, x: Tensor) -> Tensor:
        """Standardize."""
        return x - self.mean / self.std if self.misplaced else (x - self.mean) / self.std


@case("openai/baselines/issues/802", "NS608", "norm")
def bracket_closed_too_late(bug: bool) -> Setup:
    """Observations minus (mean over deviation) is taken for standardized observations.

    Must say: what leaves the normalizer is not normalized (mean far from zero, deviation far from one).
    """
    x = torch.randn(256, 16) * torch.logspace(-1, 2, 16) + torch.linspace(-30, 30, 16)
    norm = _Observations(x.mean(0), x.std(0), misplaced=bug)
    return Setup(named(norm=norm, fc=nn.Linear(16, 32), act=nn.Tanh(), out=nn.Linear(32, 4)).eval(), x)


@case("akanazawa/fpo/issues/13", "NS203", "norm")
def deviation_decays_with_every_batch(bug: bool) -> Setup:
    """The sum of squares is overwritten and not added to: after k batches the deviation is too small by sqrt(k).

    Must say: the stored deviation does not fit the data, or what leaves the normalizer is much too large.
    """
    x = 2.0 + torch.randn(256, 16) * torch.linspace(0.5, 3.0, 16)
    norm = _Observations(x.mean(0), x.std(0) / (100.0**0.5 if bug else 1.0), misplaced=False)
    return Setup(named(norm=norm, fc=nn.Linear(16, 32), act=nn.Tanh(), out=nn.Linear(32, 4)).eval(), x)


@case("LibreYOLO/libreyolo/pull/531", "NS201", "norm1 norm2")
def few_samples_on_each_device(bug: bool) -> Setup:
    """A batch is split over many devices, and BatchNorm is not synchronized: each sees two samples.

    Must say: with a batch of two the BatchNorm's statistics are mostly noise.
    """
    model, x = mlp(nn.BatchNorm1d).train(), torch.randn(128, 16)
    return Setup(model, x, options={"purpose": "train", "batch_size": 2 if bug else 64})


@case("thangvubk/SoftGroup/issues/196", "NS205", "norm1 norm2")
def trained_in_evaluation_from_the_start(bug: bool) -> Setup:
    """train() puts every BatchNorm back to evaluation, in a network trained from nothing: nothing is normalized.

    Must say: the BatchNorm is in evaluation during training with the statistics of a new layer.
    """
    model = mlp(nn.BatchNorm1d).train()
    if bug:
        model.norm1.eval(), model.norm2.eval()
    x = 4.0 * torch.randn(128, 16)
    return Setup(model, x, torch.optim.SGD(model.parameters(), lr=0.1), {"purpose": "train"})


@case("huggingface/transformers/issues/11809", "NS606", "norm1 norm2")
def scales_under_other_names(bug: bool) -> Setup:
    """The checkpoint calls scale and shift gamma and beta; loaded without strictness they stay at their defaults.

    Must say: the normalizers have the scales and shifts of new layers, those of the earlier model are lost.
    """
    model = mlp()
    with torch.no_grad():
        for norm in (model.norm1, model.norm2):
            norm.weight.copy_(torch.rand(16) + 0.5), norm.bias.copy_(0.3 * torch.randn(16))
    trained = train(model, torch.randn(64, 16))
    loaded = mlp()
    names = {k: k.replace("weight", "gamma").replace("bias", "beta") if bug and "norm" in k else k
             for k in trained.state_dict()}  # fmt: skip
    loaded.load_state_dict({names[k]: v for k, v in trained.state_dict().items()}, strict=False)
    return Setup(loaded.eval(), torch.randn(64, 16), options={"before": trained, "purpose": "inference"})
