"""What a server's /metrics says, as numbers."""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Sample(NamedTuple):
    """One line of /metrics."""

    name: str
    labels: dict[str, str]
    value: float


class Metrics:
    """One reading of /metrics."""

    def __init__(self, samples: list[Sample]) -> None:
        """Wrap the samples; `parse` is the usual way in."""
        self._samples = samples

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        """Parse the Prometheus text format."""
        families = text_string_to_metric_families(text)
        return cls([Sample(s.name, dict(s.labels), s.value) for family in families for s in family.samples])

    def samples(self, name: str, **labels: str) -> Iterator[Sample]:
        """The samples of that name whose labels include those given."""
        return (s for s in self._samples if s.name == name and labels.items() <= s.labels.items())

    def total(self, name: str, **labels: str) -> float:
        """The sum over all matching samples.

        Raises:
            KeyError: If there is none: a misspelt name must not read as zero.
        """
        values = [sample.value for sample in self.samples(name, **labels)]
        if not values:
            raise KeyError(f"no metric {name} with labels {labels}")
        return sum(values)

    def names(self) -> set[str]:
        """Every sample's name."""
        return {sample.name for sample in self._samples}
