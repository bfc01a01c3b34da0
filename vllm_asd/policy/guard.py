"""When an answer has gone wrong: it runs in a circle, or nearly every token of it is an exception.

Everything is told from the output's tail, a block at a time, by what is kept of it: for each period the run
of tokens that repeat the ones that many places before, and which of the last tokens were exceptions.
"""

import torch
from torch import Tensor

# A loop is what eval/frontier counts as one: a passage of at most 64 tokens, three times over and for at
# least 24 tokens. Twice is what lists and refrains do, and of SmolLM2's loops a quarter was longer than 16.
LONGEST_PERIOD = 64
ROUNDS = 3
LEAST_TOKENS = 24

# A cluster is more than 12 exceptions in 64 tokens, so at least 20 in 100: over three times the 5.6 in 100
# that the default limits come to on SmolLM2, and above the mean of lax ones, up to 15 in 100.
CLUSTER_WINDOW = 64
MOST_EXCEPTIONS = 12


def extend_runs(runs: Tensor, recent: Tensor, emitted: Tensor, count: Tensor) -> Tensor:
    """Follow, for each period p, how many of the last tokens equal the one p places before them.

    With the output ``5 6 5`` so far and ``6 5 9`` to come, the run of period 2 is 1 (the second 5) before
    that, 3 behind the next two tokens, and 0 at the end.

    Args:
        runs: [R, P] float64, tokens; column k is that of period ``P - k``.
        recent: [R, P] float64, the last P tokens, in order; what is no token holds a value that no token has.
        emitted: [R, E] float64, the tokens that follow; behind ``count``, anything.
        count: [R] int64, how many those are.

    Returns:
        [R, P] float64.
    """
    periods, width = recent.shape[1], emitted.shape[1]
    # The P tokens before each of those emitted: a view, the oldest first.
    before = torch.cat((recent, emitted), dim=1).unfold(1, periods, 1)[:, :width]
    place = torch.arange(1, width + 1, device=emitted.device).unsqueeze(1)
    breaks = (before != emitted.unsqueeze(2)) & (place <= count.view(-1, 1, 1))
    last_break = (breaks * place).amax(1)
    return torch.where(last_break > 0, 0, runs) + (count.unsqueeze(1) - last_break)


def shift_in(window: Tensor, values: Tensor, count: Tensor) -> Tensor:
    """Append each row's first ``count`` [R] values [R, E] to its window [R, W], whose oldest drop out."""
    column = torch.arange(window.shape[1], device=window.device)
    return torch.cat((window, values), dim=1).gather(1, column + count.unsqueeze(1))


def is_looping(runs: Tensor) -> Tensor:
    """Whether the output ends in a loop: [R] bool, for the runs [R, P] of :func:`extend_runs`."""
    period = torch.arange(runs.shape[1], 0, -1, device=runs.device)
    # The first round repeats nothing.
    return (runs + period >= (ROUNDS * period).clamp(min=LEAST_TOKENS)).any(1)


def is_clustered(exceptions: Tensor) -> Tensor:
    """Whether too many of the last tokens are exceptions: [R] bool, for flags [R, W] of 0 and 1."""
    return exceptions.sum(1) > MOST_EXCEPTIONS
