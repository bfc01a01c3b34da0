"""What can be measured: the arms, and the answers they are asked for."""

from typing import NamedTuple

from eval.frontier.arms import FRONTIER, GUARD, LONG, Arm


class Experiment(NamedTuple):
    """One comparison.

    Attributes:
        arms: The control among them.
        max_tokens: Longest answer.
        ignore_eos: Whether every answer gets that long, so that it can be cut into windows.
        repetition_penalty: vLLM's; 1 for none. A small model that may not stop falls into loops without.
    """

    arms: tuple[Arm, ...]
    max_tokens: int
    ignore_eos: bool = False
    repetition_penalty: float = 1.0


EXPERIMENTS = {
    "frontier": Experiment(FRONTIER, max_tokens=96),
    "long": Experiment(LONG, max_tokens=2000, ignore_eos=True, repetition_penalty=1.1),
    "guard": Experiment(GUARD, max_tokens=1024),
}

# Every arm once, strict first, then in the order of the experiments.
KNOWN_ARMS = tuple(dict.fromkeys(arm for experiment in EXPERIMENTS.values() for arm in experiment.arms))
