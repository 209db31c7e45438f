"""``normscope decompose``: where the error of a trained model comes from, on a problem whose truth is known."""

from typing import Annotated

from typer import Option

from normscope.cli import options
from normscope.cli.console import finish, guarded


@guarded
def decompose(
    features: Annotated[int, Option(min=1, max=150, help="Number of polynomials in the family.")] = 6,
    samples: Annotated[int, Option(min=1, help="Training samples.")] = 30,
    steps: Annotated[int, Option(min=0, help="Number of gradient descent steps.")] = 100,
    noise: Annotated[float, Option(min=0.0, help="Standard deviation of the noise.")] = 0.1,
    radius: Annotated[float, Option(help="Bound on the norm of the weights.")] = 2.0,
    seed: Annotated[int, Option(min=0, max=options.LARGEST_SEED, help="Random seed of the data.")] = 0,
    json: options.PlainJson = False,
) -> None:
    """Split the error of a model into approximation, optimization and generalization, every term computed exactly.

    The truth is sin(pi x) on [-1, 1]; the family is polynomials with bounded weights, trained by gradient descent. The
    best member, the minimizer of the training loss and the largest deviation over the family are known.
    """
    from normscope.generalization.synthetic import decompose_synthetic

    finish(
        decompose_synthetic(features, samples=samples, steps=steps, noise=noise, radius=radius, seed=seed), json=json
    )
