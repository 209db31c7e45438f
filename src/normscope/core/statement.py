"""The statement registry: which function implements which numbered statement of which paper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

#: Papers that may be cited, by key.
PAPERS = {
    "than2025": "K. Than, The Hidden Power of Normalization Layers in Neural Networks, 2025",
    "than2025slides": "K. Than, Why do deep neural networks perform really well? A guarantee from normalization "
    "methods (slides, 2023)",
    "than2025summary": "a published summary of Than, The Hidden Power of Normalization, 2025",
    "akbar2025": "U. Akbar, Deep Network Normalization Through Gradient Flow Dynamics, Implicit Regularization, and "
    "Riemannian Geometry",
    "cisneros2025": "P. Cisneros-Velarde et al., Optimization and Generalization Guarantees for Weight Normalization "
    "(a published summary), 2025",
    "kuczynski1992": "J. Kuczynski and H. Wozniakowski, Estimating the largest eigenvalue by the power and "
    "Lanczos algorithms with a random start, 1992",
    "rump2006": "S. M. Rump, Verification of positive definiteness, 2006",
    "clopper1934": "C. J. Clopper and E. S. Pearson, The use of confidence or fiducial limits, 1934",
    "bartlett2017": "P. L. Bartlett, D. J. Foster, M. Telgarsky, Spectrally-normalized margin bounds for neural "
    "networks, 2017",
    "bartlett2019": "P. L. Bartlett, N. Harvey, C. Liaw, A. Mehrabian, Nearly-tight VC-dimension bounds for piecewise "
    "linear neural networks, 2019",
    "golowich2018": "N. Golowich, A. Rakhlin, O. Shamir, Size-independent sample complexity of neural networks, 2018",
    "gonon2024": "A. Gonon et al., A path-norm toolkit for modern networks, 2024",
    "hou2023": "S. Hou, P. Kassraie, A. Kratsios, A. Krause, J. Rothfuss, Instance-dependent generalization bounds via "
    "optimal transport, 2023",
    "jiang2020": "Y. Jiang et al., Fantastic generalization measures and where to find them, 2020",
    "lyu2022": "K. Lyu, Z. Li, S. Arora, Understanding the generalization benefit of normalization layers, 2022",
    "maurer2004": "A. Maurer, A note on the PAC Bayesian theorem, 2004",
    "neyshabur2018": "B. Neyshabur, S. Bhojanapalli, N. Srebro, A PAC-Bayesian approach to spectrally-normalized "
    "margin bounds for neural networks, 2018",
    "thanphan2025": "K. Than and D. Phan, Non-vacuous generalization bounds for deep neural networks without any "
    "modification to the trained models, first version, 2025",
    "normscope": "proved in the documentation of this project (docs/theory.md)",
}


@dataclass(frozen=True)
class Statement:
    """A numbered statement and the function that computes it."""

    paper: str
    number: str
    holds: str
    function: str

    @property
    def label(self) -> str:
        """Return the short name used in results, e.g. ``than2025 Lemma 1``."""
        return f"{self.paper} {self.number}"


_REGISTRY: list[Statement] = []


def statement(paper: str, number: str, *, holds: str = "as stated") -> Callable[[F], F]:
    """Tie a function to the statement it implements; the function itself is unchanged.

    Args:
        paper: a key of :data:`PAPERS`.
        number: the statement's number in that paper, e.g. ``"Lemma 1"``.
        holds: the hypotheses under which it is true, or ``"printed"`` for a formula that is not a bound.

    Raises:
        KeyError: if the paper is unknown.

    >>> @statement("than2025", "Lemma 5")
    ... def product(norms):
    ...     return 1.0
    >>> [s.function for s in statements() if s.number == "Lemma 5"][-1].endswith("product")
    True
    >>> _ = _REGISTRY.pop()  # an example only
    """
    if paper not in PAPERS:
        raise KeyError(f"Unknown paper {paper!r}. Known papers: {', '.join(sorted(PAPERS))}.")

    def register(function: F) -> F:
        name = f"{function.__module__}.{function.__qualname__}"
        _REGISTRY.append(Statement(paper, number, holds, name))
        return function

    return register


def statements() -> tuple[Statement, ...]:
    """Return every statement registered by the modules imported so far."""
    return tuple(_REGISTRY)
