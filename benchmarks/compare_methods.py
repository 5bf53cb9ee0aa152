"""`python -m benchmarks.compare_methods`: which way to tell two sides apart holds its error rate, and what it finds.

Comparisons are simulated: so many repeats of two runs each, six figures of a run whose noise is half in common. Three
ways decide, each with six figures at a time (Holm's first step, which decides whether anything is found at all):

- paired: Student's t over the differences within repeats (what `loadgen compare` does);
- unpaired: Student's t of the two sides' means, repeats not held together;
- bootstrap: percentiles of the mean difference over repeats drawn anew with replacement.

Noise is `plain`; `drift`, where repeats differ among each other five times as much as runs of one repeat do, as on a
machine that others use; `bursts`, where every tenth run is slowed; and `tails`, Student's t with 3 degrees of freedom.
Whatever finds a difference between equal sides in more than 5 % of comparisons is not to be used.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from loadgen.experiments.statistics import ERROR_RATE, t_quantile

FIGURES = 6
SLOWER = math.log(1.1)
NOISES = ("plain", "drift", "bursts", "tails")
DRAWS = 400  # of the bootstrap

Array = NDArray[np.float64]


def simulate(noise: str, comparisons: int, repeats: int, deviation: float, random: np.random.Generator) -> Array:
    """Logarithms of figures, as (comparison, repeat, side, figure): those of one run scatter by about `deviation`."""
    shape = (comparisons, repeats, 2, FIGURES)
    run = (*shape[:3], 1)

    def draw(size: tuple[int, ...]) -> Array:
        return random.standard_t(3, size) / math.sqrt(3) if noise == "tails" else random.standard_normal(size)

    figures: Array = deviation * math.sqrt(0.5) * (draw(shape) + draw(run))
    if noise == "drift":
        figures += 5 * deviation * random.standard_normal((comparisons, repeats, 1, 1))
    if noise == "bursts":
        figures += 3 * deviation * random.exponential(1, run) * (random.random(run) < 0.1)
    return figures


def paired(a: Array, b: Array, _: np.random.Generator) -> Array:
    """Whether each comparison finds anything."""
    repeats = a.shape[1]
    differences = b - a
    t = np.abs(differences.mean(1)) / (differences.std(1, ddof=1) / math.sqrt(repeats))
    return np.asarray((t > t_quantile(ERROR_RATE / FIGURES, repeats - 1)).any(1))


def unpaired(a: Array, b: Array, _: np.random.Generator) -> Array:
    """The same without holding repeats together."""
    repeats = a.shape[1]
    t = np.abs(b.mean(1) - a.mean(1)) / np.sqrt((a.var(1, ddof=1) + b.var(1, ddof=1)) / repeats)
    return np.asarray((t > t_quantile(ERROR_RATE / FIGURES, 2 * repeats - 2)).any(1))


def bootstrap(a: Array, b: Array, random: np.random.Generator) -> Array:
    """The same by percentiles over repeats drawn anew."""
    repeats = a.shape[1]
    means = (b - a)[:, random.integers(0, repeats, (DRAWS, repeats))].mean(2)
    outside = ERROR_RATE / FIGURES / 2
    low, high = np.quantile(means, (outside, 1 - outside), axis=1)
    return np.asarray(((low > 0) | (high < 0)).any(1))


METHODS: dict[str, Callable[[Array, Array, np.random.Generator], Array]] = {
    "paired": paired,
    "unpaired": unpaired,
    "bootstrap": bootstrap,
}


def rates(method: str, noise: str, comparisons: int, repeats: int, deviation: float) -> tuple[float, float]:
    """The shares of comparisons that find anything between equal sides, and with one 10 % slower."""
    random = np.random.default_rng(1)
    runs = simulate(noise, comparisons, repeats, deviation, random)
    a, b = runs[:, :, 0], runs[:, :, 1]
    decide = METHODS[method]
    return float(decide(a, b, random).mean()), float(decide(a, b + SLOWER, random).mean())


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_methods", description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=2000, metavar="N", help="of each kind (default: 2000)")
    parser.add_argument("--deviation", type=float, default=0.03, help="of a run's figures (default: 0.03)")
    options = parser.parse_args(argv)
    if options.comparisons < 1 or not options.deviation > 0:
        parser.error("expected numbers above 0")
    table = Table(title=f"equal sides / one 10 % slower, runs scatter by {options.deviation:.0%}", title_justify="left")
    table.add_column("noise")
    table.add_column("repeats", justify="right")
    for method in METHODS:
        table.add_column(method, justify="right")
    for noise in NOISES:
        for repeats in (3, 4, 6, 8, 12):
            cells = [rates(method, noise, options.comparisons, repeats, options.deviation) for method in METHODS]
            table.add_row(noise, str(repeats), *(f"{false:.1%} / {found:.1%}" for false, found in cells))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
