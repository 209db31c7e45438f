"""Train and evaluation mode, frozen layers, teachers, and what the model is used for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Setup, case, convnet, images, named, train


def _freeze(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def _finetuning(bug: bool) -> nn.Module:
    """Return a trained backbone that is frozen, with a new head, in train mode."""
    model = train(convnet(), images())
    backbone = named(**dict(list(model.named_children())[:-1]))
    _freeze(backbone)
    whole = named(backbone=backbone, head=nn.Linear(8, 2)).train()
    if not bug:
        backbone.eval()
    return whole


@case("pytorch/pytorch/issues/86590", "NS207", "backbone.bn1")
def frozen_backbone_in_train_mode(bug: bool) -> Setup:
    """requires_grad is off, and the running statistics still move."""
    return Setup(_finetuning(bug), options={"input_shape": (3, 8, 8), "purpose": "finetune"})


@case("pgniewko/gt-pyg/issues/112", "NS207", "bn1")
def freeze_undone_by_train(bug: bool) -> Setup:
    """freeze() called eval() on the normalizers, and the next model.train() undid it."""
    model = train(convnet(), images())
    _freeze(model.bn1)
    _freeze(model.bn2)
    model.train()
    if not bug:
        model.bn1.eval()
        model.bn2.eval()
    return Setup(model, options={"input_shape": (3, 8, 8)})


class _Distillation(nn.Module):
    """A student beside its teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = train(convnet(), images()), convnet()
        _freeze(self.teacher)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what both say."""
        return self.student(x), self.teacher(x)


@case("Sharpiless/yolov5-knowledge-distillation/issues/5", "NS207", "teacher.bn1")
def teacher_in_train_mode(bug: bool) -> Setup:
    """The teacher of a distillation follows model.train()."""
    model = _Distillation().train()
    if not bug:
        model.teacher.eval()
    return Setup(model, options={"input_shape": (3, 8, 8)})


@case("yunjey/pytorch-tutorial/issues/62", "NS204", "bn1")
def inference_in_train_mode(bug: bool) -> Setup:
    """model.eval() is missing before testing."""
    x = images()
    return Setup(train(convnet(), x).train(bug), x, options={"purpose": "inference"})


@case("filipradenovic/cnnimageretrieval-pytorch/issues/19", "NS204", "bn2")
def one_layer_left_in_train_mode(bug: bool) -> Setup:
    """A module overrides train() and leaves its normalizer in train mode."""
    model = train(convnet(), images())
    model.bn2.train(bug)
    return Setup(model, options={"input_shape": (3, 8, 8)})


@case("uci-cbcl/UFold/issues/18", "NS204", "bn1")
def no_running_statistics(bug: bool) -> Setup:
    """track_running_stats=False: an answer depends on the other samples of its batch."""
    model = convnet(lambda n: nn.BatchNorm2d(n, track_running_stats=not bug))
    return Setup(train(model, images()), options={"input_shape": (3, 8, 8)})


class _Functional(nn.Module):
    """A layer that calls the functional form."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, bias=False), nn.Linear(8, 4)
        self.norm = _FunctionalNorm(always=always)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


class _FunctionalNorm(nn.Module):
    """Batch normalization by hand."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return nn.functional.batch_norm(x, self.mean, self.var, training=self.always or self.training)


@case("dragen1860/MAML-Pytorch/issues/44", "NS204", "norm")
def functional_always_training(bug: bool) -> Setup:
    """F.batch_norm is called with training=True whatever the mode."""
    return Setup(train(_Functional(always=bug), images()), options={"input_shape": (3, 8, 8)})


def _critic(bug: bool) -> nn.Module:
    norm = nn.BatchNorm2d if bug else lambda n: nn.GroupNorm(2, n)
    return convnet(norm)


@case("LynnHo/DCGAN-LSGAN-WGAN-GP-DRAGAN-Tensorflow-2/issues/3", "NS208", "bn1")
def gradient_penalty(bug: bool) -> Setup:
    """The critic of a WGAN-GP has BatchNorm, so the penalty of one sample depends on the others."""
    return Setup(_critic(bug), options={"input_shape": (3, 8, 8), "purpose": "gan"})


@case("meta-pytorch/opacus/issues/319", "NS208", "bn1")
def differential_privacy(bug: bool) -> Setup:
    """Per-sample gradients do not exist where BatchNorm couples samples."""
    return Setup(_critic(bug), options={"input_shape": (3, 8, 8), "purpose": "private"})


@case("facebookresearch/moco/issues/137", "NS208", "bn1")
def contrastive_leak(bug: bool) -> Setup:
    """Batch statistics tell the network which samples belong together."""
    return Setup(_critic(bug), options={"input_shape": (3, 8, 8), "purpose": "contrastive"})
