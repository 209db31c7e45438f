"""Bugs of statistics, scales, axes and optimizers, written from their threads before anyone looked at the rules."""

from __future__ import annotations

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


class _Standardize(nn.Module):
    """Bring features to mean zero and deviation one, by constants of the data."""

    def __init__(self, mean: Tensor, std: Tensor, *, wrong: bool = False) -> None:
        super().__init__()
        self.register_buffer("mean", mean), self.register_buffer("std", std)
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        """Standardize."""
        return x - self.mean / self.std if self.wrong else (x - self.mean) / self.std


@case("fastai/fastai/issues/3370", "NS203", "norm2")
def standardized_twice(bug: bool) -> Setup:
    """The transform that subtracts the data's mean and divides by its deviation is in the pipeline twice."""
    x = (0.45 + 0.22 * images()).clamp(0, 1)
    mean, std = x.mean((0, 2, 3))[:, None, None], x.std((0, 2, 3))[:, None, None]
    second = _Standardize(mean, std) if bug else nn.Identity()
    model = named(norm1=_Standardize(mean, std), norm2=second, **dict(convnet().named_children()))
    return Setup(train(model, x), x)


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
