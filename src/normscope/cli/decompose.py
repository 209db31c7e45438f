"""``normscope decompose``: where the error of a trained model comes from, on a problem whose truth is known."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer

from normscope.cli.console import guarded, show


@guarded
def decompose(
    features: Annotated[int, typer.Option(min=1, max=150, help="Polynomials in the family.")] = 6,
    samples: Annotated[int, typer.Option(min=1, help="Training samples.")] = 30,
    steps: Annotated[int, typer.Option(min=0, help="Steps of gradient descent.")] = 100,
    noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of the noise.")] = 0.1,
    radius: Annotated[float, typer.Option(help="Bound on the norm of the weights.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Split the error of a model into approximation, optimization and generalization, every term computed exactly.

    The truth is sin(pi x) on [-1, 1], the family polynomials with bounded weights, trained by gradient descent. Its
    best member, the minimizer of the training loss and the largest deviation over the family are known.
    """
    from normscope.generalization import Problem, train_synthetic

    run = train_synthetic(Problem(features, radius=radius, noise=noise), samples, steps, seed)
    parts = run.decomposition
    if json:
        document = {
            "schema_version": 1,
            "kind": "decomposition",
            "setting": {"features": features, "samples": samples, "steps": steps, "noise": noise, "radius": radius},
            "seed": seed,
            **asdict(parts),
            "slides_total": parts.slides_total,
            "largest_deviation": run.largest_deviation,
            "residuals": parts.residuals(),
            "adds_up": parts.adds_up(),
        }
        print(json_module.dumps(document, indent=1, allow_nan=False))
        return
    from normscope.report.numbers import digits
    from normscope.report.table import Section, Table

    rows = (
        ("total", "F(P, h_o) - F(P, y*)", digits(parts.total)),
        ("  approximation", "F(P, h*) - F(P, y*)", digits(parts.approximation)),
        ("  estimation", "F(P, h_o) - F(P, h*)", digits(parts.estimation)),
        ("    optimization", "F(D, h_o) - F(D, h_o*)", digits(parts.optimization)),
        ("    generalization", "F(P, h_o) - F(D, h_o)", digits(parts.generalization)),
        ("    selection", "F(D, h_o*) - F(P, h*)", digits(parts.selection)),
    )
    bound = "-" if parts.bound is None else digits(parts.bound)
    title = f"error of a model with {features} features, {samples} samples, {steps} steps, noise {noise:g}"
    after = (
        f"the parts add up: {'yes' if parts.adds_up() else 'NO'}",
        f"the slides' summary, without selection: {digits(parts.slides_total)}",
        f"the slides' bound on the estimation error, optimization + 2 sup |F(P, h) - F(D, h)|: {bound}",
    )
    show([Section(title, table=Table(("part", "is", "value"), rows, frozenset(("part", "is"))), after=after)])
