"""Bugs of statistics, scales, axes and optimizers, written from their threads before anyone looked at the rules."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Setup, case, convnet, images, mlp, named, train


def batch_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the two normalizers of the small convolutional network."""
    return [model.bn1, model.bn2]


@case("MultimediaTechLab/YOLO/issues/122", "NS403", "bn1 bn2")
def shifts_at_rate_zero(bug: bool) -> Setup:
    """After the warm-up the group of the biases has learning rate zero."""
    model = convnet()
    convolutions = [p for p in model.parameters() if p.ndim > 1]
    scales = [bn.weight for bn in batch_norms(model)]
    shifts = [p for n, p in model.named_parameters() if n.endswith("bias")]
    groups = [
        {"params": shifts, "lr": 0.0 if bug else 0.01, "weight_decay": 0.0},
        {"params": convolutions, "weight_decay": 5e-4},
        {"params": scales, "weight_decay": 0.0},
    ]
    return Setup(model, images(), torch.optim.SGD(groups, lr=0.01, momentum=0.937), {"purpose": "train"})


class _ReZero(nn.Module):
    """A residual block whose branch has one learned weight, zero at first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.resweight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Add the weighted branch."""
        return x + self.resweight * torch.relu(self.fc(x))


@case("majumderb/rezero/issues/14", "NS401", "block1 block2 block3")
def gates_of_branches_decay(bug: bool) -> Setup:
    """Weight decay pulls the weights of the residual branches back to zero, where the branch is closed."""
    model = named(block1=_ReZero(), block2=_ReZero(), block3=_ReZero(), out=nn.Linear(16, 4))
    few = [p for p in model.parameters() if p.ndim < 2]
    many = [p for p in model.parameters() if p.ndim > 1]
    groups = [{"params": few, "weight_decay": 0.1 if bug else 0.0}, {"params": many, "weight_decay": 0.1}]
    return Setup(model, torch.randn(128, 16), torch.optim.AdamW(groups, lr=1e-3), {"purpose": "train"})


class _ConvNeXtBlock(nn.Module):
    """Normalize, mix features, multiply by a learned layer scale, add."""

    def __init__(self, width: int = 16, scale: float = 0.5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(scale * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix."""
        return x + self.gamma * self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


@case("2noise/ChatTTS/issues/732", "NS605", "block1 block2")
def layer_scale_lost_at_loading(bug: bool) -> Setup:
    """The loader renames gamma to weight, so the layer scale is not found and keeps its tiny first value."""
    model = named(block1=_ConvNeXtBlock(), block2=_ConvNeXtBlock(), norm=nn.LayerNorm(16), out=nn.Linear(16, 4))
    train(model, torch.randn(64, 16), lr=0.05)
    with torch.no_grad():
        for block in (model.block1, model.block2) if bug else ():
            block.gamma.fill_(1e-6)
    return Setup(model, torch.randn(64, 16), options={"purpose": "inference"})


@case("slothkong/DNN-Pruning/issues/8", "NS205 NS203", "bn1 bn2")
def only_means_copied(bug: bool) -> Setup:
    """The pruned network gets the running means of the old one; the variances keep their first value."""
    model, x = convnet(), images()
    with torch.no_grad():
        model.conv1.weight.mul_(3), model.conv2.weight.mul_(4)
    train(model, x)
    for bn in batch_norms(model) if bug else ():
        bn.running_var.fill_(1.0)
    return Setup(model, x, options={"purpose": "inference"})


@case("baidu-baige/LoongForge/pull/109", "NS606", "norm2")
def shift_not_in_the_key_mapping(bug: bool) -> Setup:
    """The conversion has no entry for one LayerNorm's bias, which is zero in the converted model."""
    model = mlp()
    with torch.no_grad():
        for norm in (model.norm1, model.norm2):
            norm.bias.copy_(0.5 * torch.randn(16))
    train(model, torch.randn(64, 16), lr=0.05)
    before = copy.deepcopy(model)
    with torch.no_grad():
        if bug:
            model.norm2.bias.zero_()
    return Setup(model, torch.randn(64, 16), options={"before": before})


@case("open-mmlab/mmdetection/issues/2924", "NS205", "bn1 bn2")
def fused_weights_in_the_unfused_network(bug: bool) -> Setup:
    """A checkpoint with folded normalizers is loaded into the network that has them: they are new, the shifts lost."""
    model, x = convnet(), 1 + 2 * images()
    train(model, x)
    with torch.no_grad():
        for conv, bn in zip((model.conv1, model.conv2), batch_norms(model), strict=True):
            if bug:
                conv.weight.mul_((bn.weight / (bn.running_var + bn.eps).sqrt())[:, None, None, None])
                bn.reset_running_stats(), bn.reset_parameters()
    return Setup(model, x, options={"purpose": "inference"})


@case("pytorch/pytorch/issues/8208", "NS607", "fc1 fc2")
def spectral_norm_removed_with_raw_weights(bug: bool) -> Setup:
    """Removing spectral normalization puts the raw weight in place, which the network never computed with."""
    wrap = nn.utils.parametrizations.spectral_norm
    x, pair = torch.randn(128, 16), []
    for _ in range(2):  # not a copy: copies of a parametrized layer share its class
        torch.manual_seed(1)
        critic = named(fc1=wrap(nn.Linear(16, 32)), act1=nn.LeakyReLU(0.2), fc2=wrap(nn.Linear(32, 32)),
                       act2=nn.LeakyReLU(0.2), out=nn.Linear(32, 1))  # fmt: skip
        with torch.no_grad():
            for fc in (critic.fc1, critic.fc2):
                fc.parametrizations.weight.original.mul_(8)
        pair.append(train(critic, x, lr=0.01))
    before, model = pair
    for fc in (model.fc1, model.fc2):
        nn.utils.parametrize.remove_parametrizations(fc, "weight", leave_parametrized=not bug)
    return Setup(model, x, options={"before": before, "purpose": "gan"})


@case("qqwweee/keras-yolo3/issues/451", "NS301 NS303 NS606", "bn1")
def larger_eps_after_conversion(bug: bool) -> Setup:
    """Weights trained with eps = 1e-5 run with the other framework's default of 1e-3; variances are small."""
    model, x = convnet(), 0.05 * images()
    for bn in batch_norms(model):
        bn.running_var.fill_(1e-3)
    train(model, x)
    before = copy.deepcopy(model)
    for bn in batch_norms(model) if bug else ():
        bn.eps = 1e-3
    return Setup(model, x, options={"before": before, "purpose": "inference"})


class _Window(nn.Module):
    """Normalize each window of a series by its own mean and deviation."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        var, mean = torch.var_mean(x, dim=1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


@case("unit8co/darts/issues/2739", "NS301", "rin")
def windows_of_tiny_values(bug: bool) -> Setup:
    """Series of small values are not brought to unit variance, because eps is far larger than their variance."""
    model = named(rin=_Window(1e-5 if bug else 1e-15), fc1=nn.Linear(24, 32), act=nn.ReLU(), fc2=nn.Linear(32, 6))
    return Setup(model, 1e-4 * torch.randn(128, 24).cumsum(1))


class _Averaging(nn.Module):
    """A batch normalizer for vectors with averages of its own."""

    def __init__(self, width: int, keep: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width)), self.register_buffer("running_var", torch.ones(width))
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by the batch in training, by the averages in evaluation."""
        if self.training:
            var, mean = torch.var_mean(x, dim=0)
            with torch.no_grad():
                self.running_mean.copy_(self.keep * self.running_mean + (1 - self.keep) * mean)
                self.running_var.copy_(self.keep * self.running_var + (1 - self.keep) * var)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


@case("bonlime/pytorch-tools/issues/97", "NS203", "norm1 norm2")
def average_of_the_last_batch(bug: bool) -> Setup:
    """The weights of old and new statistics are the wrong way round: the average is almost the last batch."""
    model = mlp(lambda n: _Averaging(n, 0.1 if bug else 0.98))
    x = torch.randn(256, 16)
    train(model, x)
    model.train()
    with torch.no_grad():
        for _ in range(10):
            for part in x[torch.randperm(256)].split(4):
                model(part)
    return Setup(model.eval(), x, options={"purpose": "inference"})


class _Instances(nn.Module):
    """Instance and layer statistics, mixed by a learned weight."""

    def __init__(self, channels: int, *, nested: bool) -> None:
        super().__init__()
        self.rho = nn.Parameter(torch.full((1, channels, 1, 1), 0.5))
        self.gamma, self.beta = (nn.Parameter(f(1, channels, 1, 1)) for f in (torch.ones, torch.zeros))
        self.nested = nested

    def _var(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        if not self.nested:
            return x.var(axes, keepdim=True)
        for axis in axes:
            x = x.var(axis, keepdim=True)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Normalize both ways and mix."""
        alone = (x - x.mean((2, 3), keepdim=True)) / torch.sqrt(self._var(x, (2, 3)) + 1e-5)
        all_ = (x - x.mean((1, 2, 3), keepdim=True)) / torch.sqrt(self._var(x, (1, 2, 3)) + 1e-5)
        return (self.rho * alone + (1 - self.rho) * all_) * self.gamma + self.beta


@case("znxlwm/UGATIT-pytorch/issues/30", "NS608", "bn1 bn2")
def variance_of_variances(bug: bool) -> Setup:
    """The variance over two axes is taken as the variance along one of the variances along the other."""
    model = convnet(lambda n: _Instances(n, nested=bug))
    return Setup(train(model, images(), lr=0.02), images())


class _Standardize(nn.Module):
    """Bring features to mean zero and deviation one, by constants of the data."""

    def __init__(self, mean: Tensor, std: Tensor, *, wrong: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", mean), self.register_buffer("std", std)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        """Standardize."""
        return x - self.mean / self.std if self.wrong else (x - self.mean) / self.std


@case("andrewliao11/gail-tf/issues/8", "NS608", "norm")
def mean_divided_before_subtraction(bug: bool) -> Setup:
    """A bracket is in the wrong place: the mean is divided by the deviation, the observation is not."""
    x = torch.randn(256, 16) * torch.logspace(-2, 2, 16) + torch.linspace(-50, 200, 16)
    norm = _Standardize(x.mean(0), x.std(0), wrong=bug)
    return Setup(named(norm=norm, fc1=nn.Linear(16, 32), act=nn.Tanh(), fc2=nn.Linear(32, 4)), x)


@case("fastai/fastai/issues/3370", "NS203", "norm2")
def standardized_twice(bug: bool) -> Setup:
    """The transform that subtracts the data's mean and divides by its deviation is in the pipeline twice."""
    x = (0.45 + 0.22 * images()).clamp(0, 1)
    mean, std = x.mean((0, 2, 3))[:, None, None], x.std((0, 2, 3))[:, None, None]
    second = _Standardize(mean, std) if bug else nn.Identity()
    model = named(norm1=_Standardize(mean, std), norm2=second, **dict(convnet().named_children()))
    return Setup(train(model, x), x)


class _Directions(nn.Module):
    """A convolution with weights of a direction and a learned length."""

    def __init__(self, inputs: int, outputs: int, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.v = nn.Parameter(0.05 * torch.randn(outputs, inputs, 3, 3) * torch.rand(outputs, 1, 1, 1))
        self.g, self.b = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        v = self.v / self.v.square().sum(self.axes, keepdim=True).sqrt()
        return nn.functional.conv2d(x, v * self.g[:, None, None, None], self.b, padding=1)


@case("openai/iaf/issues/7", "NS211", "conv1")
def directions_along_the_outputs(bug: bool) -> Setup:
    """Weight normalization divides by norms over the output channels, so the filters do not have length one."""
    model = named(conv1=_Directions(3, 16, (0, 2, 3) if bug else (1, 2, 3)), act=nn.ELU(),
                  pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), out=nn.Linear(16, 4))  # fmt: skip
    return Setup(model, images())


class _Length(nn.Module):
    """Divide by the length along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return nn.functional.normalize(x, dim=self.axis) * x.shape[1] ** 0.5


@case("lucidrains/lightweight-gan/issues/17", "NS211", "norm")
def pixels_normalized_along_the_width(bug: bool) -> Setup:
    """The pixel normalization after the first layer of a generator runs along the last axis, which is the width."""
    model = named(unflat=nn.Unflatten(1, (16, 1, 1)), init=nn.ConvTranspose2d(16, 12, 4),
                  norm=_Length(-1 if bug else 1), conv1=nn.Conv2d(12, 8, 3, padding=1), act=nn.LeakyReLU(0.2),
                  conv2=nn.Conv2d(8, 3, 3, padding=1), tanh=nn.Tanh())  # fmt: skip
    return Setup(model, torch.randn(128, 16), options={"purpose": "gan"})


class _Reshaping(nn.Module):
    """A batch normalizer that reshapes whatever it is given to its number of channels."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        flat = x.reshape(x.shape[0], len(self.weight), -1)
        out = nn.functional.batch_norm(flat, self.running_mean, self.running_var, self.weight, self.bias, self.training)
        return out.reshape(x.shape)


@case("vacancy/Synchronized-BatchNorm-PyTorch/issues/31", "NS211", "bn1")
def twice_as_many_channels(bug: bool) -> Setup:
    """The normalizer is built for twice the channels and silently takes half images for channels."""
    model = convnet(_Reshaping)
    if bug:
        model.bn1 = _Reshaping(16)
    return Setup(train(model, images()), images())


class _Causal(nn.Conv1d):
    """A convolution that sees no later time."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad the past and convolve."""
        return super().forward(nn.functional.pad(x, (self.kernel_size[0] - 1, 0)))


class _Frames(nn.LayerNorm):
    """A layer normalizer of each time's channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


@case("espnet/espnet/issues/5900", "NS219", "norm1 norm2")
def causal_network_normalized_over_time(bug: bool) -> Setup:
    """The convolutions are causal, the normalizers take their statistics over all time."""
    norm = (lambda: nn.GroupNorm(1, 8)) if bug else (lambda: _Frames(8))
    model = named(conv1=_Causal(4, 8, 3), norm1=norm(), act1=nn.ReLU(), conv2=_Causal(8, 8, 3), norm2=norm(),
                  act2=nn.ReLU(), out=nn.Conv1d(8, 2, 1))  # fmt: skip
    return Setup(model, torch.randn(64, 4, 50))


@case("google/flax/issues/5577", "NS403", "fc1 fc2")
def lengths_that_do_not_learn(bug: bool) -> Setup:
    """The lengths of the normalized weights are no parameters, so only directions train."""
    wrap = nn.utils.parametrizations.weight_norm
    model = named(fc1=wrap(nn.Linear(16, 32)), act1=nn.ReLU(), fc2=wrap(nn.Linear(32, 32)), act2=nn.ReLU(),
                  out=nn.Linear(32, 4))  # fmt: skip
    for fc in (model.fc1, model.fc2):
        fc.parametrizations.weight.original0.requires_grad_(not bug)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    return Setup(model, torch.randn(128, 16), optimizer, {"purpose": "train"})
