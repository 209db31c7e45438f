"""Follow channels through gains, parameters that multiply each channel by a number (layer scale, BatchNorm weights)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.geometry.channels.labels import ChannelGain, ChannelLabels
from normscope.geometry.flow import Point


@dataclass(frozen=True, eq=False)
class GainPath:
    """Channels after multiplication by a sequence of gains."""

    channels: tuple[int, ...]  #: the channels after the gains
    #: the parameters they were multiplied by, and the flat position in each for every channel
    gains: tuple[tuple[str, Tensor], ...] = ()
    #: what else they were multiplied by: the inverse deviation of a BatchNorm with fixed statistics
    constant: Tensor | float = 1.0
    offsets: Mapping[str, float] = field(default_factory=dict)  #: what is added to a gain, by its name

    def factors(self, point: Point) -> Tensor:
        """Return the product of all gains, one number per channel."""
        found = torch.ones(len(self.channels), dtype=torch.float64) * self.constant
        for name, index in self.gains:
            found = found * (point[name].reshape(-1)[index] + self.offsets.get(name, 0.0))
        return found


class Gains:
    """The gains of a network with the channels before and after each.

    What multiplies all channels by one number, as normalizers do, is followed only where ``links`` says so, and then
    BatchNorms with fixed statistics are not.
    """

    def __init__(self, labels: ChannelLabels, *, links: bool = False) -> None:
        self._labels = labels
        self._entries = {entry.parameter: entry.labels for entry in labels.entries}
        self._steps: list[tuple[str, dict[int, tuple[int, int]], Tensor | float]] = [
            (gain.parameter, self._of_gain(gain), 1.0) for gain in labels.gains
        ]
        if links:
            pairs = [(a, b) for a, b in labels.links if a.shape[-1:] == b.shape[-1:]]
            self._steps[:0] = [("", self._of_gain(ChannelGain("", torch.zeros_like(a), a, b)), 1.0) for a, b in pairs]
            return
        self._steps += [
            (f.gamma, self._pairs(f.inputs, torch.arange(len(f.inputs)), f.outputs), f.inverse)
            for f in labels.fixed_batch_norms
        ]

    def paths(self, start: Tensor) -> list[GainPath]:
        """Return every path of channels through gains only: the trivial one first, then one for each gain reached."""
        first = GainPath(self._labels.channels(start))
        found = {first.channels: first}
        waiting = [first]
        while waiting:
            path = waiting.pop(0)
            for parameter, step, constant in self._steps:
                if not all(channel in step for channel in path.channels):
                    continue
                index = torch.tensor([step[channel][0] for channel in path.channels])
                after = tuple(step[channel][1] for channel in path.channels)
                if after not in found:
                    more = constant[index] if isinstance(constant, Tensor) else constant
                    gains = (*path.gains, (parameter, index)) if parameter else path.gains
                    found[after] = GainPath(after, gains, path.constant * more, self._labels.offsets)
                    waiting.append(found[after])
        return list(found.values())

    def behind(self, parameter: str) -> list[GainPath]:
        """Return the nontrivial paths of the channels to which a vector is added."""
        start = self._entries.get(parameter)
        return [] if start is None else self.paths(start.reshape(-1))[1:]

    def _of_gain(self, gain: ChannelGain) -> dict[int, tuple[int, int]]:
        """Return the step through a gain, with constant axes cut to length one."""
        parts = torch.broadcast_tensors(gain.inputs, gain.index, gain.outputs)
        for dim in range(parts[0].ndim):
            if all(bool((part == part.narrow(dim, 0, 1)).all()) for part in parts):
                parts = tuple(part.narrow(dim, 0, 1) for part in parts)
        return self._pairs(*parts)

    def _pairs(self, before: Tensor, index: Tensor, after: Tensor) -> dict[int, tuple[int, int]]:
        """Map each channel to its position in the gain and the channel after it; empty if that is not unique."""
        rows = torch.unique(torch.stack([t.reshape(-1) for t in (before, index, after)]), dim=1)
        channels, places = self._labels.channels, rows[1].tolist()
        found = {b: (i, a) for b, i, a in zip(channels(rows[0]), places, channels(rows[2]), strict=True)}
        return found if len(found) == len(places) else {}
