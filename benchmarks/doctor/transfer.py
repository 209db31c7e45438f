"""Finetuning, adapters, teachers, averaged weights, generators and privacy."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import Setup, case, convnet, images, named, train


def _resnet(width: int = 8) -> nn.Module:
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig(
        num_channels=3, embedding_size=width, hidden_sizes=[width, 2 * width], depths=[1, 1], layer_type="basic",
        num_labels=4,
    ))  # fmt: skip


class _LowRank(nn.Module):
    """A frozen convolution with a trained correction of low rank."""

    def __init__(self, base: nn.Conv2d) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Conv2d(base.in_channels, 2, 1, bias=False)
        self.up = nn.Conv2d(2, base.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return self.base(x) + self.up(self.down(x))


@case("huggingface/peft/issues/1732", "NS207", "bn1 bn2")
def adapters_move_the_statistics(bug: bool) -> Setup:
    """Only adapters train, yet model.train() lets the frozen base's running statistics move."""
    model = train(convnet(), images())
    model.requires_grad_(False)
    model.conv2 = _LowRank(model.conv2)
    model.train()
    if not bug:
        for layer in (model.bn1, model.bn2):
            layer.eval()
    return Setup(model, options={"input_shape": (3, 8, 8), "purpose": "finetune"})


@case("pytorch/pytorch/issues/86590", "NS207", "resnet.embedder.embedder.normalization")
def frozen_backbone_of_a_library(bug: bool) -> Setup:
    """The backbone is frozen with requires_grad_(False) and trains on with model.train()."""
    model = _resnet()
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(images(32, size=32))
    model.resnet.requires_grad_(False)
    if not bug:
        model.resnet.eval()
    return Setup(model, options={"input_shape": (3, 32, 32), "purpose": "finetune"})


@case("lightning-uq-box/lightning-uq-box/pull/173", "NS204", "norm")
def train_mode_for_the_sake_of_dropout(bug: bool) -> Setup:
    """For samples of dropout the whole model is put into train mode, and BatchNorm with it."""
    model = named(
        fc=nn.Linear(6, 32, bias=False),
        norm=nn.BatchNorm1d(32),
        act=nn.ReLU(),
        drop=nn.Dropout(0.2),
        out=nn.Linear(32, 2),
    )
    train(model, torch.randn(128, 6))
    model.train()
    if not bug:
        model.norm.eval()
    return Setup(model, torch.randn(128, 6), options={"purpose": "inference"})


@case("timgaripov/swa/issues/15", "NS203", "bn1 bn2")
def averaged_weights_with_the_last_statistics(bug: bool) -> Setup:
    """Weights are averaged over a run, and the statistics are those of its last step."""
    x = images()
    ends = []
    for seed in range(4):
        torch.manual_seed(seed)
        ends.append(train(convnet(), x, lr=0.2))
    model = copy.deepcopy(ends[-1])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.stack([dict(e.named_parameters())[name] for e in ends]).mean(0))
    if not bug:
        model.train()
        with torch.no_grad():
            for _ in range(60):
                model(x)
        model.eval()
    return Setup(model, x)


@case("boschresearch/OASIS/issues/21", "NS205 NS203", "g.norm1")
def averaged_generator(bug: bool) -> Setup:
    """The generator whose weights are averaged never runs in train mode, so its statistics stay at zero and one."""
    source = train(_generator(), torch.randn(64, 6, 1, 1))
    model = _generator()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not (bug and ("running" in name or "tracked" in name)):
                value.copy_(source.state_dict()[name])
    return Setup(named(g=model).eval(), torch.randn(64, 6, 1, 1))


def _generator(*, last: str = "") -> nn.Sequential:
    end = {"out": nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=not last)}
    if last:
        end[last] = nn.BatchNorm2d(3)
    return named(
        up1=nn.ConvTranspose2d(6, 8, 4, bias=False), norm1=nn.BatchNorm2d(8), act1=nn.ReLU(),
        up2=nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False), norm2=nn.BatchNorm2d(8), act2=nn.ReLU(),
        **end, tanh=nn.Tanh(),
    )  # fmt: skip


@case("naoto0804/chainer-cyclegan/pull/2", "NS106", "last")
def norm_before_the_final_tanh(bug: bool) -> Setup:
    """A normalizer before the last tanh forces every image to the same contrast."""
    return Setup(_generator(last="last" if bug else ""), torch.randn(64, 6, 1, 1))


@case("eriklindernoren/Keras-GAN/pull/66", "NS208", "norm1 norm2")
def critic_with_batch_norm(bug: bool) -> Setup:
    """The gradient penalty is one per sample, and BatchNorm makes every sample depend on the others."""
    norm = nn.BatchNorm1d if bug else nn.LayerNorm
    model = named(fc1=nn.Linear(12, 24, bias=not bug), norm1=norm(24), act1=nn.LeakyReLU(0.2),
                  fc2=nn.Linear(24, 24, bias=not bug), norm2=norm(24), act2=nn.LeakyReLU(0.2),
                  out=nn.Linear(24, 1))  # fmt: skip
    return Setup(model, torch.randn(64, 12), options={"purpose": "gan"})


@case("meta-pytorch/opacus/issues/319", "NS208", "norm2")
def private_network_with_one_batch_norm(bug: bool) -> Setup:
    """One BatchNorm was forgotten when the others became GroupNorm."""
    model = convnet(lambda n: nn.GroupNorm(4, n))
    names = {"bn1": "norm1", "bn2": "norm2"}
    parts = {names.get(name, name): part for name, part in model.named_children()}
    if bug:
        parts["norm2"] = nn.BatchNorm2d(8)
    return Setup(named(**parts), options={"input_shape": (3, 8, 8), "purpose": "private"})


@case("xuexingyu24/License_Plate_Detection_Pytorch/issues/22", "NS204", "scale")
def mean_over_the_whole_batch(bug: bool) -> Setup:
    """Feature maps are divided by a mean square over the whole batch: the accuracy depends on the batch size."""
    model = named(
        conv=nn.Conv2d(3, 8, 3), act=nn.ReLU(), scale=_Context(whole=bug), flat=nn.Flatten(), out=nn.Linear(288, 4)
    )
    return Setup(train(model, images()), images())


class _Context(nn.Module):
    """Divide a map by its mean square, of each sample or of the batch."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """Scale."""
        power = x.square()
        mean = power.mean() if self.whole else power.mean((1, 2, 3), keepdim=True)
        return x / (mean + 1e-5)


@case("jack-willturner/batchnorm-pruning/issues/4", "NS403", "bn1 bn2")
def optimizer_built_too_early(bug: bool) -> Setup:
    """The normalizers were replaced after the optimizer had been built."""
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.bn1, model.bn2 = nn.GroupNorm(2, 8), nn.GroupNorm(2, 8)
    if not bug:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Setup(model, images(), optimizer)


@case("qualcomm/aimet/issues/2586", "NS203", "bn1")
def folded_and_still_there(bug: bool) -> Setup:
    """BatchNorm was folded into the convolution and acts a second time."""
    x = images()
    model = train(convnet(), x)
    if bug:
        scale = model.bn1.weight / (model.bn1.running_var + model.bn1.eps).sqrt()
        with torch.no_grad():
            model.bn1.running_mean.add_(2.0)  # what it saw before it was folded
            model.conv1.weight.mul_(scale[:, None, None, None])
    return Setup(model, x)


@case("CuriousAI/mean-teacher/issues/9", "NS205", "module.bn1 bn1")
def statistics_lost_in_a_parallel_wrapper(bug: bool) -> Setup:
    """A checkpoint without buffers is loaded into a model wrapped for several devices."""
    trained, model = train(convnet(), images()), convnet()
    model.load_state_dict(trained.state_dict())
    if bug:
        for layer in (model.bn1, model.bn2):
            layer.reset_running_stats()
    return Setup(nn.DataParallel(model.eval()), options={"input_shape": (3, 8, 8)})


@case("MinfengZhu/DM-GAN/issues/17", "NS506", "critic.fc1")
def power_iteration_never_ran(bug: bool) -> Setup:
    """Weights are loaded under spectral normalization whose vectors are new."""
    torch.manual_seed(3)
    critic = named(fc1=nn.Linear(64, 64), act=nn.LeakyReLU(0.2), fc2=nn.Linear(64, 1))
    critic.fc1 = nn.utils.spectral_norm(critic.fc1, n_power_iterations=1)
    with torch.no_grad():
        u, v = torch.randn(64), torch.randn(64)
        critic.fc1.weight_orig.copy_(0.1 * torch.randn(64, 64) + 3 * torch.outer(u / u.norm(), v / v.norm()))
    if not bug:
        critic.train()
        for _ in range(60):
            critic(torch.randn(2, 64))
    return Setup(named(critic=critic).eval(), torch.randn(32, 64))


@case("arcchang1236/CA-NoiseGAN/issues/3", "NS104", "conv")
def weight_norm_under_instance_norm(bug: bool) -> Setup:
    """Weight normalization of a convolution whose scale InstanceNorm takes out again."""
    conv = nn.Conv1d(4, 8, 3, bias=False)
    if bug:
        conv = nn.utils.parametrizations.weight_norm(conv)
    model = named(
        conv=conv, norm=nn.InstanceNorm1d(8, affine=True), act=nn.ReLU(), flat=nn.Flatten(), out=nn.Linear(8 * 14, 2)
    )
    return Setup(model, torch.randn(32, 4, 16))


@case("pytorch/ignite/issues/2590", "NS206 NS203 NS205", "teacher.bn1 teacher.bn2")
def teacher_that_never_learned_its_statistics(bug: bool) -> Setup:
    """The averaged model is put into evaluation, so its buffers stay as they were when it was copied."""
    x = images() * 3 + 1
    early = train(convnet(), x, steps=1)
    for layer in (early.bn1, early.bn2):
        layer.reset_running_stats()
        layer.train()
    early(x[:4])
    late = train(copy.deepcopy(early), x, steps=40, lr=0.3)
    teacher = copy.deepcopy(late)
    if bug:
        for a, b in zip(teacher.buffers(), early.buffers(), strict=True):
            a.copy_(b)
    return Setup(named(teacher=teacher).eval(), x)


@case("yassouali/pytorch-segmentation/issues/8", "NS201", "pool_norm")
def image_pooling_with_two_samples(bug: bool) -> Setup:
    """The branch that pools the whole image has two values per channel to normalize with."""
    model = _Pyramid()
    return Setup(model, options={"input_shape": (3, 16, 16), "batch_size": 2 if bug else 32, "purpose": "train"})


class _Pyramid(nn.Module):
    """Two branches of a segmentation head: local, and pooled over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.local, self.local_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.pool_conv, self.pool_norm = (
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(3, 8, 1, bias=False),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Segment."""
        a = self.local_norm(self.local(x)).relu()
        b = self.pool_norm(self.pool_conv(self.pool(x))).relu().expand_as(a)
        return self.head(torch.cat([a, b], 1))
