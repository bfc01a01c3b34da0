"""Where a request is: inside the model's reasoning or not, kept on the device per request."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_asd.slots import SlotTable


class ThinkMarkers(NamedTuple):
    """Token ids that open and close the model's reasoning, from vLLM's reasoning configuration."""

    start: int
    end: int


def starts_thinking(prompt_ids: Sequence[int] | None, markers: ThinkMarkers) -> bool:
    """Whether a prompt leaves the model inside its reasoning: its last marker is the opening one."""
    for token in reversed(prompt_ids or ()):
        if token == markers.start:
            return True
        if token == markers.end:
            return False
    return False


def thinking_after(ids: Tensor, thinking: Tensor, markers: ThinkMarkers) -> Tensor:
    """Follow the phase through tokens.

    Args:
        ids: [R, W] int, tokens in order; -1 is padding.
        thinking: [R] bool, the phase before the first token.
        markers: The two ids.

    Returns:
        [R, W] bool, the phase after each token.
    """
    start, end = ids == markers.start, ids == markers.end
    position = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    last_marker = torch.where(start | end, position, 0).cummax(1).values
    opened = torch.nn.functional.pad(start, (1, 0)).gather(1, last_marker)
    return torch.where(last_marker > 0, opened, thinking.unsqueeze(1))


def in_reasoning(draft_ids: Tensor, thinking: Tensor, markers: ThinkMarkers) -> Tensor:
    """Mark the draft positions that lie inside the reasoning; the markers themselves do not.

    Args:
        draft_ids: [R, K] int, padded with -1.
        thinking: [R] bool, the phase before the block.
        markers: The two ids.

    Returns:
        [R, K] bool.
    """
    after = thinking_after(draft_ids, thinking, markers)
    before = torch.cat((thinking.unsqueeze(1), after[:, :-1]), dim=1)
    return before & (draft_ids != markers.start) & (draft_ids != markers.end)


def before_marker(draft_ids: Tensor, markers: ThinkMarkers) -> Tensor:
    """Mark the draft positions that lie in the phase in which the block begins, wherever that is.

    Args:
        draft_ids: [R, K] int, padded with -1.
        markers: The two ids.

    Returns:
        [R, K] bool, False at the block's first marker and behind it.
    """
    is_marker = (draft_ids == markers.start) | (draft_ids == markers.end)
    return is_marker.cumsum(1) == 0


class PhaseTable(SlotTable):
    """Whether each request is inside its reasoning."""

    def __init__(self, capacity: int, device: torch.device | str, pin_memory: bool = False) -> None:
        """Allocate an empty table; the arguments are :class:`SlotTable`'s."""
        super().__init__(capacity, 1, device, pin_memory)

    def admit(self, request_id: str, thinking: bool) -> None:
        """Start following a request; an id that is there already keeps its phase."""
        self.open(request_id, (float(thinking),))

    def move(self, request_id: str, thinking: bool) -> None:
        """Say where a request is now that its text has grown by more than what a step emitted.

        Raises:
            KeyError: It is not followed.
        """
        self._pending[self._slot_by_id[request_id]] = (float(thinking),)

    def thinking(self, slots: Tensor) -> Tensor:
        """[R] bool for slots [R]."""
        return self._state[slots, 0] != 0

    def follow(self, slots: Tensor, emitted_ids: Tensor, markers: ThinkMarkers, thinking: Tensor) -> None:
        """Move the phases of slots [R] through the tokens [R, W] that a step emitted (-1 = none).

        Args:
            slots: From :meth:`slots`.
            emitted_ids: In order.
            markers: The two ids.
            thinking: [R] bool, the phases before them, from :meth:`thinking`.
        """
        after = thinking_after(emitted_ids, thinking, markers)[:, -1]
        self._state[slots, 0] = torch.where(slots > 0, after, False).to(torch.float64)

    def restore(self, slots: Tensor, thinking: Tensor) -> None:
        """Put the phases of slots [R] back to what they were: [R] bool, from :meth:`thinking`."""
        self._flush()
        self._state[slots, 0] = thinking.to(torch.float64)
