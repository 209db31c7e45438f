"""One pass over labelled data: the scores of every sample, and statistics of the inputs."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from normscope.core.errors import InputError
from normscope.generalization.margins import margins
from normscope.generalization.partition import Partition
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run

#: Samples of a batch made from whole tensors, and random inputs that are kept.
_BATCH, KEPT = 256, 1920


@dataclass(frozen=True)
class Scores:
    """Scores of a network on a data set, and statistics of its inputs."""

    outputs: Tensor  #: scores, one row for each sample
    labels: Tensor  #: the right classes
    cells: Tensor  #: the cell of each input
    square: float  #: sum of the squared norms of the inputs
    largest: float  #: the largest entry of an input, without sign
    some: Tensor  #: random inputs, for measurements at single points
    chosen: Tensor  #: their places among the samples
    codes: Tensor  #: a number for each sample, the same for the same input and label
    refusal: str = ""  #: why the partition may not be used, if it was built from these inputs

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return len(self.labels)

    @property
    def margins(self) -> Tensor:
        """Return the margin of every sample in float64."""
        return margins(self.outputs.double(), self.labels)

    @property
    def errors(self) -> int:
        """Return how many samples are wrong; a tie is wrong."""
        return int((~(self.margins > 0)).sum())

    @property
    def classes(self) -> int:
        """Return how many classes there are."""
        return self.outputs.shape[1]


def labelled(data: Any, what: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of inputs and integer labels from a pair of tensors, a loader, or a data set of the zoo."""
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        x, y = data
        if len(x) != len(y):
            raise InputError(f"Expected as many labels as inputs in {what}, got {len(y)} and {len(x)}.")
        data = list(zip(x.split(_BATCH), y.split(_BATCH), strict=True))
    if not isinstance(data, Iterable) or isinstance(data, Iterator):
        raise InputError(
            f"Expected {what} data that can be read more than once, a pair of tensors or a loader of (inputs, labels), "
            f"got {type(data).__name__}."
        )
    for batch in data:
        if not (isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)):
            raise InputError(f"Expected (inputs, labels) in {what}: bounds on the error need labels.")
        inputs, labels = batch
        if labels.is_floating_point() or labels.ndim != 1:
            raise InputError(
                f"Expected one integer class per sample in {what}, got labels of shape {tuple(labels.shape)} and type "
                f"{str(labels.dtype).removeprefix('torch.')}. Bounds are for classification."
            )
        if len(inputs) != len(labels):
            raise InputError(f"Expected as many labels as inputs in {what}, got {len(labels)} and {len(inputs)}.")
        if len(labels):
            yield inputs, labels.long()


def sample_count(data: Any) -> int | None:
    """Return the number of samples, if it is known without reading them."""
    if isinstance(data, tuple | list):
        pair = len(data) == 2 and all(isinstance(t, Tensor) for t in data)
        return len(data[0]) if pair else sum(len(batch[1]) for batch in data)
    if isinstance(data, DataLoader):
        plain = data.batch_size is not None and type(data.sampler) in (RandomSampler, SequentialSampler)
        return len(data.sampler) if plain else None  # type: ignore[arg-type]
    return len(data) if hasattr(data, "records") else None


def scored(
    captured: Captured, data: Any, what: str, partition: Partition | None, seed: int, say: Callable[[str], None]
) -> Scores:
    """Run a network over labelled data once, and check inputs and labels."""
    outputs, truth, cells, codes = [], [], [], []
    square, largest, seen, refusal = 0.0, 0.0, 0, ""
    kept = _Kept(seed)
    for inputs, labels in labelled(data, what):
        _check_inputs(inputs, captured, what)
        scores = class_scores(captured, captured.tensors, inputs)
        if not bool(scores.isfinite().all()):
            raise InputError(f"The scores of some {what} samples are not finite, so no bound applies to this network.")
        if int(labels.min()) < 0 or int(labels.max()) >= scores.shape[1]:
            wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
            raise InputError(f"Expected labels from 0 to {scores.shape[1] - 1} in {what}, got {wrong}.")
        outputs.append(scores)
        truth.append(labels)
        flat = inputs.flatten(1)
        codes.append(_codes(flat, labels))
        if partition is not None and not refusal:
            try:
                partition.require_independent(flat)
                cells.append(partition.assign(flat))
            except InputError as error:
                refusal = str(error)
        kept.add(inputs)
        square += float(flat.double().square().sum())
        largest = max(largest, float(flat.abs().max()))
        seen += len(labels)
        say(f"scores of {what}: {seen} samples")
    if not outputs:
        raise InputError(f"The {what} data is empty.")
    index = torch.cat(cells) if cells and not refusal else torch.zeros(seen, dtype=torch.long)
    some = (kept.inputs, kept.places, torch.cat(codes))
    return Scores(torch.cat(outputs), torch.cat(truth), index, square, largest, *some, refusal)


def _check_inputs(inputs: Tensor, captured: Captured, what: str) -> None:
    """Raise unless the inputs are finite and have the shape on which the network was captured."""
    if not inputs.is_floating_point():
        raise InputError(f"Expected floating-point inputs in {what}, got {inputs.dtype}.")
    shape = tuple(captured.example[0].shape[1:])
    if tuple(inputs.shape[1:]) != shape:
        raise InputError(f"Expected inputs of shape {shape} in {what}, got {tuple(inputs.shape[1:])}.")
    if not bool(inputs.isfinite().all()):
        raise InputError(f"Expected finite inputs in {what}; some are NaN or infinite.")


def _codes(flat: Tensor, labels: Tensor) -> Tensor:
    """Return a hash of each sample; different samples collide with a probability of about 2^-32."""
    source = torch.Generator().manual_seed(1)
    factors = torch.randint(-(2**62), 2**62, (flat.shape[1] + 1,), generator=source)
    bits = flat.detach().cpu().float().contiguous().view(torch.int32).long()
    return (torch.cat([bits, labels.cpu()[:, None]], 1) * (2 * factors + 1)).sum(1)


def repeated(train: Scores, test: Scores) -> int:
    """Return how many test samples, input and label, are training samples too."""
    return int(torch.isin(test.codes, train.codes).sum())


def class_scores(captured: Captured, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Return the class scores of a network whose tensors may have been replaced."""
    with torch.no_grad():
        found = run(captured.graph, tensors, [inputs.to(captured.example[0].dtype)])
    scores = found[0]
    if len(found) != 1 or scores.ndim != 2 or len(scores) != len(inputs) or scores.shape[1] < 2:
        raise InputError(
            f"Expected one row of class scores per sample, got outputs of shape {tuple(scores.shape)}. Bounds are for "
            "classifiers."
        )
    return scores


class _Kept:
    """A uniform random sample of a stream (reservoir sampling): the inputs with the smallest random keys."""

    def __init__(self, seed: int) -> None:
        self.source = torch.Generator().manual_seed(seed)
        self.keys, self.places, self.inputs, self.seen = torch.zeros(0), torch.zeros(0).long(), torch.zeros(0), 0

    def add(self, batch: Tensor) -> None:
        """Add a batch of the stream."""
        keys = torch.cat([self.keys, torch.rand(len(batch), generator=self.source, dtype=torch.float64)])
        places = torch.cat([self.places, torch.arange(self.seen, self.seen + len(batch))])
        order = keys.argsort()[:KEPT]
        inputs = torch.cat([self.inputs, batch]) if self.seen else batch
        self.keys, self.places, self.inputs = keys[order], places[order], inputs[order]
        self.seen += len(batch)


def stored(folder: Path | None, key: str, make: Callable[[], Scores]) -> Scores:
    """Return the scores saved in a folder under a key, or compute and save them, so that a later call can resume."""
    if folder is None:
        return make()
    file = folder / f"{key}-{len(fields(Scores))}.pt"
    if file.exists():
        return Scores(**torch.load(file, weights_only=True))
    found = make()
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    torch.save(vars(found), part)
    part.replace(file)
    return found


def fingerprint(*parts: object) -> str:
    """Return a hash of texts, tensors and mappings to tensors."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(bytes(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()))
        elif isinstance(part, Mapping):
            digest.update(fingerprint(*(x for item in sorted(part.items()) for x in item)).encode())
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()[:16]


def fingerprint_of_data(data: Any, what: str) -> str:
    """Return a hash of the first batch of labelled data and, where it is known, its length."""
    first = next(iter(labelled(data, what)), None)
    if first is None:
        return ""
    pair = isinstance(data, tuple) and isinstance(data[0], Tensor)
    return fingerprint(*first, len(data[0]) if pair else getattr(data, "__len__", int)())
