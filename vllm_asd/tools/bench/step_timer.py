"""Timers around a model runner's own methods, for one engine step at a time."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

# What a step is made of; they add up to it.
PARTS = ("inputs", "target forward", "logits", "verification", "the rule", "draft", "rest")
_RULE = ("begin", "relax", "finish", "admit", "release")


class StepTimer:
    """Replaces methods of a runner (V1 or V2) by timed ones until :meth:`remove`."""

    def __init__(self, runner: Any, batch: int) -> None:
        """Attach.

        Args:
            runner: The model runner, in this process.
            batch: Requests of a step that counts; steps with a prefill or fewer requests do not.
        """
        self._batch = batch
        self._runner = runner
        self._wait = _wait_for(runner.device)
        self._current: dict[str, float] = {}
        self._counts = False
        self._steps: list[dict[str, float]] = []
        self._originals: list[tuple[Any, str, Any]] = []
        self._wrap(runner, "execute_model", "execute")
        # V1 alone has this. In V2 the forward may be a replayed graph, which nothing parts from its inputs.
        self._wrap(runner, "_model_forward", "target forward")
        self._wrap(runner.model, "compute_logits", "logits")
        self._wrap(runner, "_sample", "sample")
        self._wrap(runner, "sample", "sample")
        self._wrap(runner, "propose_draft_token_ids", "draft")
        self._wrap(getattr(runner, "speculator", None), "propose", "draft")
        for name in _RULE:
            self._wrap(runner.asd_verifier, name, "the rule")

    def step(self, step: Callable[[], Any]) -> None:
        """Run one engine step."""
        self._current, self._counts = {}, False
        self._wait()
        start = perf_counter()
        step()
        self._wait()
        self._current["step"] = perf_counter() - start
        if self._counts:
            self._steps.append(self._current)

    def remove(self) -> None:
        """Put the methods back."""
        for owner, name, original in reversed(self._originals):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._originals.clear()

    def summary(self) -> dict[str, Any]:
        """Means over the counted steps.

        Returns:
            `steps`, `mean_ms` by part and of the whole `step`, `p50_ms` likewise, and `rule_share`.

        Raises:
            ValueError: No step counted: the outputs were too short.
        """
        if not self._steps:
            raise ValueError(f"no step decoded {self._batch} requests at a time: raise --max-tokens")
        rows = [_parts(step) for step in self._steps]
        mean = {name: 1e3 * float(np.mean([row[name] for row in rows])) for name in rows[0]}
        median = {name: 1e3 * float(np.median([row[name] for row in rows])) for name in rows[0]}
        return {
            "steps": len(rows),
            "mean_ms": mean,
            "p50_ms": median,
            "rule_share": mean["the rule"] / mean["step"],
        }

    def _wrap(self, owner: Any, name: str, part: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            if part == "execute":
                self._counts = self._whole_batch_decodes(args[0])
            self._wait()
            start = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._wait()
                self._current[part] = self._current.get(part, 0.0) + perf_counter() - start

        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, timed)

    def _whole_batch_decodes(self, scheduled: Any) -> bool:
        return len(scheduled.num_scheduled_tokens) == self._batch and not scheduled.scheduled_new_reqs


def _parts(step: dict[str, float]) -> dict[str, float]:
    """Inclusive times to parts that add up. V2 computes the logits while it samples, V1 before."""
    logits, forward = step.get("logits", 0.0), step.get("target forward", 0.0)
    execute, sample = step["execute"], step["sample"]
    rule, draft = step.get("the rule", 0.0), step.get("draft", 0.0)
    if forward:
        inputs, verification = execute - forward - logits, sample - rule
    else:
        inputs, forward, verification = 0.0, execute, sample - rule - logits
    return {
        "step": step["step"],
        "inputs": inputs,
        "target forward": forward,
        "logits": logits,
        "verification": verification,
        "the rule": rule,
        "draft": draft,
        "rest": step["step"] - execute - sample - draft,
    }


def _wait_for(device: Any) -> Callable[[], None]:
    if device.type != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize
