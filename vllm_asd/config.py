"""What the operator may set (``--speculative-config``) and what a request may set (``vllm_xargs``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

METHOD = "asd"
KEY_PREFIX = "asd_"

Pricing = Literal["remaining", "realized"]
Scope = Literal["all", "reasoning", "phases"]
Protect = Literal["stop", "none"]
Mode = Literal["enforce", "shadow"]
Sampling = Literal["off", "gumbel"]
Guard = Literal["off", "on"]

# Scope "phases": the key that holds in the answer, and its counterpart, which then holds in the reasoning.
ANSWER_KEYS = {
    f"asd_answer_{limit}": f"{KEY_PREFIX}{limit}" for limit in ("budget", "gate", "block_cap", "refill")
}

# Where the values of a key are words: each from the laxest to the strictest.
_LAXEST_FIRST = {
    "asd_mode": ("enforce", "shadow"),
    "asd_sampling": ("gumbel", "off"),
    "asd_guard": ("off", "on"),
}


class AsdConfigError(ValueError):
    """A setting that cannot be honoured; the message is one line that names the key and the fix."""


@dataclass(frozen=True)
class RequestLimits:
    """The limits in force for one request, after its own wishes met the server's.

    Attributes:
        budget: Nats of logit regret the request may spend.
        gate: Largest regret per unit of q that one exception may cost.
        block_cap: Exceptions allowed in one verification block.
        refill: Budget that each emitted token gives back, up to ``budget``.
        shadow: Decide and count, but emit what strict verification emits.
        answer: Limits of its own outside the model's reasoning (scope "phases"); None: the same everywhere.
        guard: Turn strict for good once the answer loops or exceptions cluster.
    """

    budget: float
    gate: float
    block_cap: int
    refill: float = 0.0
    shadow: bool = False
    answer: RequestLimits | None = None
    guard: bool = False

    @property
    def is_strict(self) -> bool:
        """Whether no exception can ever be approved under these limits, in any phase."""
        strict = self.budget <= 0 or self.gate <= 0 or self.block_cap <= 0
        return strict and (self.answer is None or self.answer.is_strict)


def _number(value: object) -> object:
    """Refuse what pydantic would quietly turn into a number: booleans and strings."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError("must be a finite number")
    return value


Nats = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=0, le=128)]


class AsdConfig(BaseModel):
    """The server's ASD settings: the flat ``asd_*`` keys of ``--speculative-config``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    asd_budget: Nats = Field(default=8.0, description="nats of logit regret per request, 0 = strict")
    asd_gate: Nats = Field(default=0.25, description="largest regret per unit of q, 0 = strict")
    asd_block_cap: Count = Field(default=2, description="exceptions per block, 0 = strict")
    asd_pricing: Pricing = Field(default="remaining", description="what q is")
    asd_refill: Nats = Field(default=0.0, description="budget given back per emitted token")
    asd_scope: Scope = Field(default="all", description="where exceptions are allowed, from which pool")
    asd_protect: Protect = Field(default="stop", description="tokens never relaxed to nor away from")
    asd_mode: Mode = Field(default="enforce", description="shadow: decide and count, emit strict")
    asd_sampling: Sampling = Field(default="off", description="gumbel: relax sampled requests too")
    asd_guard: Guard = Field(default="off", description="on: strict once the answer loops")
    asd_answer_budget: Nats | None = Field(default=None, description="the answer's budget, scope phases")
    asd_answer_gate: Nats | None = Field(default=None, description="the answer's gate, scope phases")
    asd_answer_block_cap: Count | None = Field(default=None, description="the answer's cap, scope phases")
    asd_answer_refill: Nats | None = Field(default=None, description="the answer's refill, scope phases")

    @model_validator(mode="before")
    @classmethod
    def _complete_answer(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """Give an answer key that was left out its counterpart's value, in scope "phases"."""
        if keys.get("asd_scope") != "phases":
            return keys
        defaults = {key: cls.model_fields[key].default for key in ANSWER_KEYS.values()}
        answer = {key: keys.get(own, defaults[own]) for key, own in ANSWER_KEYS.items()}
        return answer | {key: value for key, value in keys.items() if value is not None or key not in answer}

    @model_validator(mode="after")
    def _refuse_answer_without_phases(self) -> AsdConfig:
        given = [key for key in ANSWER_KEYS if getattr(self, key) is not None]
        if given and self.asd_scope != "phases":
            raise ValueError(
                f'{given[0]} needs "asd_scope": "phases", and here it is "{self.asd_scope}": '
                f"set that, or drop {given[0]}"
            )
        return self

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> AsdConfig:
        """Validate the server's ``asd_*`` keys.

        Raises:
            AsdConfigError: Unknown key or bad value, in one line.
        """
        try:
            return cls(**keys)
        except ValidationError as error:
            raise AsdConfigError(_explain(cls, error)) from None

    @property
    def limits(self) -> RequestLimits:
        """The limits of a request that asks for nothing."""
        shadow = self.asd_mode == "shadow"
        answer = None
        if self.asd_scope == "phases":
            budget, gate, block_cap, refill = (getattr(self, key) for key in ANSWER_KEYS)
            answer = RequestLimits(budget, gate, block_cap, refill, shadow)
        guard = self.asd_guard == "on"
        return RequestLimits(
            self.asd_budget, self.asd_gate, self.asd_block_cap, self.asd_refill, shadow, answer, guard
        )

    @property
    def largest_gate(self) -> float:
        """No request's gate is above it, in any phase."""
        return max(self.asd_gate, self.asd_answer_gate or 0.0)

    @property
    def largest_block_cap(self) -> int:
        """No request's cap is above it, in any phase."""
        return max(self.asd_block_cap, self.asd_answer_block_cap or 0)

    def in_force(self) -> dict[str, Any]:
        """The keys and their values, without those that mean nothing in this scope."""
        return self.model_dump(exclude_none=True)

    def limits_for(self, extra_args: Mapping[str, Any] | None) -> RequestLimits:
        """Resolve a request's ``vllm_xargs``: :meth:`settings_for`, the limits alone."""
        return self.settings_for(extra_args).limits

    def settings_for(self, extra_args: Mapping[str, Any] | None) -> AsdConfig:
        """Resolve a request's ``vllm_xargs`` against the server's: stricter is allowed, laxer is not.

        Args:
            extra_args: ``SamplingParams.extra_args``; keys without the prefix ``asd_`` are somebody else's.

        Returns:
            The server's settings with the request's wishes in their place. In scope "phases" a wish for the
            reasoning tightens the answer as well, unless the request sends the answer's own key: a budget of
            0 is strict everywhere.

        Raises:
            AsdConfigError: Unknown ``asd_`` key, bad value, or laxer than the server allows; one line.
        """
        # Offline, vLLM takes any object and keys of any type here.
        given = extra_args if isinstance(extra_args, Mapping) else {}
        wishes = {k: v for k, v in given.items() if isinstance(k, str) and k.startswith(KEY_PREFIX)}
        if not wishes:
            return self
        asked = RequestKeys.from_keys(wishes)
        for key in sorted(asked.model_fields_set):
            self._refuse_laxer(key, getattr(asked, key))
        update = asked.model_dump(exclude_unset=True)
        if self.asd_scope == "phases":
            for key, own in ANSWER_KEYS.items():
                if own in update:
                    update.setdefault(key, min(getattr(self, key), update[own]))
        return self.model_copy(update=update)

    def _refuse_laxer(self, key: str, asked: Any) -> None:
        allowed = getattr(self, key)
        if key in ANSWER_KEYS and self.asd_scope != "phases":
            raise AsdConfigError(
                f'{key} needs a server with "asd_scope": "phases", and this one\'s is "{self.asd_scope}": '
                f"leave {key} out"
            )
        if words := _LAXEST_FIRST.get(key):
            if words.index(asked) < words.index(allowed):
                raise AsdConfigError(
                    f"{key}={asked!r} is laxer than the server's {allowed!r}: "
                    f"leave {key} out or send {allowed!r}"
                )
        elif asked > allowed:
            raise AsdConfigError(
                f"{key}={asked} is laxer than this server allows: send a value between 0 and {allowed}"
            )


class RequestKeys(BaseModel):
    """The keys a request may send in ``vllm_xargs``: types and signs; the server's limits come after."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    asd_budget: Nats = 0.0
    asd_gate: Nats = 0.0
    asd_block_cap: Count = 0
    asd_refill: Nats = 0.0
    asd_mode: Mode = "enforce"
    asd_sampling: Sampling = "gumbel"
    asd_guard: Guard = "off"
    asd_answer_budget: Nats = 0.0
    asd_answer_gate: Nats = 0.0
    asd_answer_block_cap: Count = 0
    asd_answer_refill: Nats = 0.0

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> RequestKeys:
        """Validate what a request sends, apart from any server.

        Raises:
            AsdConfigError: Unknown key or bad value, in one line.
        """
        for key in keys:
            if key not in cls.model_fields:
                raise AsdConfigError(_unknown_request_key(key))
        try:
            return cls(**keys)
        except ValidationError as error:
            raise AsdConfigError(_explain(cls, error)) from None


def most_permissive(configs: Sequence[AsdConfig]) -> AsdConfig:
    """Combine the laxest of each key that a request may send; the others are the first's.

    The first is one with scope "phases", if there is any: it alone takes the answer's keys.
    """
    phased = [config for config in configs if config.asd_scope == "phases"]
    laxest: dict[str, Any] = {}
    for key in RequestKeys.model_fields:
        values = [getattr(config, key) for config in (phased if key in ANSWER_KEYS else configs)]
        if words := _LAXEST_FIRST.get(key):
            laxest[key] = min(values, key=words.index)
        else:
            laxest[key] = max(values, default=None)
    return (phased or configs)[0].model_copy(update=laxest)


def split_speculative_config(raw: Mapping[str, Any]) -> tuple[dict[str, Any], AsdConfig | None]:
    """Part vLLM's keys from ours.

    Args:
        raw: The dictionary given as ``--speculative-config``; dashes count as underscores, as in vLLM.

    Returns:
        vLLM's own keys (with ``rejection_sample_method`` back at its default when it was ``"asd"``), and
        the validated ASD settings, or None when ASD was not asked for.

    Raises:
        AsdConfigError: An ``asd_*`` key that is unknown, wrong, or given without the method.
    """
    keys = {k.replace("-", "_"): v for k, v in raw.items()}
    ours = {k: v for k, v in keys.items() if k.startswith(KEY_PREFIX)}
    if keys.get("rejection_sample_method") != METHOD:
        if ours:
            raise AsdConfigError(
                f'{sorted(ours)[0]} needs "rejection_sample_method": "asd" in --speculative-config: '
                "add it, or drop the asd_ keys"
            )
        return keys, None
    native = {k: v for k, v in keys.items() if k not in ours and k != "rejection_sample_method"}
    return native, AsdConfig.from_keys(ours)


def _unknown_request_key(key: str) -> str:
    known = ", ".join(RequestKeys.model_fields)
    if key in AsdConfig.model_fields:
        return f"{key} can only be set by the server (--speculative-config); a request may send: {known}"
    return f"{key} is not an ASD key; a request may send: {known}"


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    """Turn pydantic's first finding into one line that names the key and what is allowed."""
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"])
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"{key} is not an ASD key; known keys: {', '.join(model.model_fields)}"
    wrong = f"{key}={_short(first['input'])}"
    if first["type"] == "literal_error":
        return f"{wrong} is not allowed: send {first['ctx']['expected']}"
    allowed = "an integer from 0 to 128" if key.endswith("block_cap") else "a finite number >= 0"
    return f"{wrong} is not allowed: {key} must be {allowed}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
