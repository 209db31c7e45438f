"""NS218: InstanceNorm that uses running statistics in evaluation."""

from torch import nn

from normscope.doctor.rule import Certainty, Findings, Rule, Subject

_KINDS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every InstanceNorm that tracks statistics."""
    for path, module in subject.model.named_modules():
        if isinstance(module, _KINDS) and module.track_running_stats and module.running_mean is not None:
            yield rule.finding(
                path,
                f"{type(module).__name__} tracks running statistics: in evaluation it uses them for every sample and "
                "no longer normalizes each sample by itself",
                {"channels": module.num_features},
            )


RULE = Rule(
    code="NS218",
    title="InstanceNorm that does not normalize in evaluation",
    certainty=Certainty.PROVED,
    why="With track_running_stats=True, InstanceNorm normalizes each sample by itself in train mode and by averages "
    "over all training samples in evaluation, as BatchNorm does. Contrast and brightness of a sample, which later "
    "layers never saw in training, then pass through.",
    effect="pictures or scores in evaluation are much worse than in training, on the same data",
    fix="use track_running_stats=False, the default",
    example="model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True), nn.ReLU())\n"
    "options = {'input_shape': (3, 8, 8)}",
    good="model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.InstanceNorm2d(8), nn.ReLU())\n"
    "options = {'input_shape': (3, 8, 8)}",
    needs=(),
    threads=("junyanz/pytorch-CycleGAN-and-pix2pix/issues/395", "yunjey/stargan/issues/140"),
)
