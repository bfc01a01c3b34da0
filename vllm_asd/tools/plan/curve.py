"""A measured cost by draft length or by concurrency, with straight lines between the measured points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Curve:
    """Straight lines through the points, level before the first; behind the last their slope, never falling.

    Attributes:
        points: (x, y) by rising x, at least one.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def through(cls, points: Mapping[float, float]) -> Curve:
        """Build from x -> y.

        Raises:
            ValueError: No point, or a value that is not above 0.
        """
        if not points:
            raise ValueError("a cost curve needs at least one point")
        if any(not 0 < value < float("inf") for pair in points.items() for value in pair):
            raise ValueError("points of a cost curve must be finite and above 0")
        return cls(tuple(sorted((float(x), float(y)) for x, y in points.items())))

    def __call__(self, x: float) -> float:
        """The cost at `x`."""
        first, last = self.points[0], self.points[-1]
        if x <= first[0]:
            return first[1]
        for (x0, y0), (x1, y1) in pairwise(self.points):
            if x <= x1:
                return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        if len(self.points) == 1:
            return last[1]
        before = self.points[-2]
        slope = max(0.0, (last[1] - before[1]) / (last[0] - before[0]))
        return last[1] + slope * (x - last[0])

    def scaled(self, factor: float) -> Curve:
        """The same curve in another unit."""
        return Curve(tuple((x, y * factor) for x, y in self.points))


def parse_curve(text: str) -> float | Curve:
    """Read `1.2`, or `4=1.1,8=1.4`.

    Raises:
        ValueError: Neither.
    """
    try:
        if "=" not in text:
            return float(text)
        pairs = [part.split("=") for part in text.split(",")]
        points = {float(x): float(y) for x, y in pairs}
    except ValueError:
        raise ValueError(f"expected a number or X=COST,X=COST,..., got {text!r}") from None
    return Curve.through(points)
