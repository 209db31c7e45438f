"""Running statistics: lost, stale, mixed, of another scale."""

from __future__ import annotations

import copy

import torch
from torch import nn

from benchmarks.doctor.case import Setup, case, convnet, images, mlp, named, train

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def _fresh(bn: nn.Module) -> None:
    """Make the statistics those of a new layer."""
    bn.running_mean.zero_()
    bn.running_var.fill_(1.0)
    bn.num_batches_tracked.zero_()


@case("hiwonjoon/tf-frrn/issues/2", "NS205", "bn1")
def lost_in_saving(bug: bool) -> Setup:
    """The checkpoint held parameters only, so the running statistics are those of a new network."""
    x = images()
    trained = train(convnet(), x)
    state = trained.state_dict()
    kept = {k: v for k, v in state.items() if not (bug and k.endswith(_BUFFERS))}
    model = convnet()
    model.load_state_dict(kept, strict=False)
    return Setup(model.eval(), options={"input_shape": (3, 8, 8)})


@case("CuriousAI/mean-teacher/issues/9", "NS205", "bn1")
def ema_of_parameters_only(bug: bool) -> Setup:
    """The averaged copy follows the parameters, and its buffers are never written."""
    x = images()
    average = convnet()
    model = train(copy.deepcopy(average), x)
    with torch.no_grad():
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(other, 0.9)
        if not bug:
            for mine, other in zip(average.buffers(), model.buffers(), strict=True):
                mine.copy_(other)
    return Setup(average.eval(), x)


@case("FlyreelAI/sesemi/issues/36", "NS205", "bn2")
def one_layer_lost(bug: bool) -> Setup:
    """A key that did not match left one layer with new statistics."""
    x = images()
    model = train(convnet(), x)
    if bug:
        _fresh(model.bn2)
    return Setup(model, x)


@case("facebookresearch/higher/issues/55", "NS205", "bn1")
def patched_modules_do_not_update(bug: bool) -> Setup:
    """The inner loop trains a functional copy, so the statistics of the original never move."""
    x = images()
    model = train(convnet(), x)
    if bug:
        for bn in (model.bn1, model.bn2):
            _fresh(bn)
    return Setup(model, options={"input_shape": (3, 8, 8)})


@case("pytorch/ignite/issues/2590", "NS203 NS206", "bn2")
def statistics_of_an_early_step(bug: bool) -> Setup:
    """The averaged model kept the statistics of early training at one layer."""
    x = images()
    model = train(convnet(), x)
    if bug:
        model.bn2.running_mean.mul_(0.1).add_(0.5)
        model.bn2.running_var.mul_(0.05)
        model.bn2.num_batches_tracked.fill_(3)
    return Setup(model, x)


@case("fadel/pytorch_ema/issues/13", "NS203", "bn1")
def statistics_of_other_weights(bug: bool) -> Setup:
    """Averaged parameters are copied in, and the statistics still belong to the old ones."""
    x = images() + 1.0
    model = train(convnet(), x)
    if bug:
        with torch.no_grad():
            model.conv1.weight.mul_(3.0)
    return Setup(model, x)


@case("apache/mxnet/issues/12063", "NS203", "bn1")
def unscaled_input(bug: bool) -> Setup:
    """The network was trained on normalized images and is given pixels from 0 to 255."""
    x = images()
    model = train(convnet(), x)
    return Setup(model, (x * 58 + 116) if bug else x)


@case("Priyanshu-byte-coder/devtrack/issues/927", "NS203", "bn1")
def scaled_twice(bug: bool) -> Setup:
    """Preprocessing divides by 255 what the network divides again."""
    x = torch.rand(128, 3, 8, 8)
    model = train(convnet(), x)
    return Setup(model, x / 255 if bug else x)


@case("facebookresearch/detectron2/pull/3160", "NS203", "bn2")
def variance_changed_in_conversion(bug: bool) -> Setup:
    """A converter rescaled the running variance of one layer."""
    x = images()
    model = train(convnet(), x)
    if bug:
        model.bn2.running_var.mul_(100.0)
    return Setup(model, x)


@case("tensorflow/tensorflow/issues/18334", "NS210", "bn1")
def negative_variance(bug: bool) -> Setup:
    """The running variance of a channel is negative, and evaluation gives NaN."""
    x = images()
    model = train(convnet(), x)
    if bug:
        model.bn1.running_var[3] = -0.02
    return Setup(model, x)


@case("pytorch/pytorch/issues/1206", "NS002", "bn2")
def nan_statistics(bug: bool) -> Setup:
    """One bad batch wrote NaN into the running statistics; training went on, evaluation gives NaN."""
    x = images()
    model = train(convnet(), x)
    if bug:
        model.bn2.running_mean[1] = float("nan")
    return Setup(model, x)


@case("google-deepmind/sonnet/issues/174", "NS205 NS301 NS203", "bn1")
def variance_starts_at_zero(bug: bool) -> Setup:
    """The moving variance is initialized with zero instead of one."""
    x = images()
    model = train(convnet(), x)
    if bug:
        model.bn1.running_var.zero_()
    return Setup(model, x)


@case("Cadene/pretrained-models.pytorch/issues/44", "NS212", "bn1")
def momentum_of_another_framework(bug: bool) -> Setup:
    """momentum=0.9 was copied from a framework where it weighs the past."""
    return Setup(convnet(lambda n: nn.BatchNorm2d(n, momentum=0.9 if bug else 0.1)))


@case("kazuto1011/deeplab-pytorch/issues/79", "NS212", "bn1")
def momentum_nearly_one(bug: bool) -> Setup:
    """momentum=0.999: the running mean is the mean of the last batch."""
    return Setup(convnet(lambda n: nn.BatchNorm2d(n, momentum=0.999 if bug else 0.001)))


@case("pytorch/vision/issues/8250", "NS212", "bn2")
def one_momentum_wrong(bug: bool) -> Setup:
    """Only the layers of one kind of block got momentum=0.99."""
    model = convnet()
    model.bn2.momentum = 0.99 if bug else 0.01
    return Setup(model)


@case("Cadene/pretrained-models.pytorch/issues/5", "NS212", "bn1")
def momentum_zero(bug: bool) -> Setup:
    """momentum=0: the running statistics never move."""
    return Setup(convnet(lambda n: nn.BatchNorm2d(n, momentum=0.0 if bug else 0.1)))


@case("NVIDIA/apex/pull/380", "NS206 NS203", "body.bn2")
def statistics_from_two_runs(bug: bool) -> Setup:
    """Layers were gathered from two checkpoints of different length."""
    x = images()
    model = named(a=convnet(), b=nn.Identity()).a
    model = train(model, x)
    deep = named(stem=model[:3], body=model[3:6], more=nn.Sequential(nn.Conv2d(8, 8, 1, bias=False),
                 nn.BatchNorm2d(8), nn.ReLU()), tail=model[6:])  # fmt: skip
    deep = train(deep, x)
    if bug:
        deep.body.bn2.num_batches_tracked.fill_(7)
        deep.body.bn2.running_var.mul_(6.0)
    deep.stem.bn1.num_batches_tracked.fill_(60)
    deep.more[1].num_batches_tracked.fill_(60)
    if not bug:
        deep.body.bn2.num_batches_tracked.fill_(60)
    return Setup(deep, options={"input_shape": (3, 8, 8)}) if bug else Setup(deep, x)


@case("Tomiinek/Multilingual_Text_to_Speech/issues/81", "NS301", "norm1")
def channel_without_variance(bug: bool) -> Setup:
    """A feature that is constant in training leaves a running variance near zero."""
    x = torch.randn(128, 16)
    model = train(mlp(nn.BatchNorm1d), x)
    if bug:
        model.norm1.running_var[:4] = 1e-8
    return Setup(model, options={"input_shape": (16,)})
