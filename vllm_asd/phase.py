"""Where a request is: inside the model's reasoning or not, kept on the device per request."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_asd.kernels import ThinkMarkers, follow_phases
from vllm_asd.slots import SlotTable

__all__ = ["PhaseTable", "ThinkMarkers", "starts_thinking"]


def starts_thinking(prompt_ids: Sequence[int] | None, markers: ThinkMarkers) -> bool:
    """Whether a prompt leaves the model inside its reasoning: its last marker is the opening one."""
    for token in reversed(prompt_ids or ()):
        if token == markers.start:
            return True
        if token == markers.end:
            return False
    return False


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

    def follow(
        self,
        slots: Tensor,
        emitted_ids: Tensor,
        markers: ThinkMarkers,
        thinking: Tensor,
        num_tokens: Tensor | None = None,
        discarded: Tensor | None = None,
    ) -> None:
        """Move the phases of slots [R] through the tokens [R, W] that a step emitted (-1 = none).

        Args:
            slots: From :meth:`slots`.
            emitted_ids: In order.
            markers: The two ids.
            thinking: [R] bool, the phases before them, from :meth:`thinking`.
            num_tokens: [R] int, how many of the tokens count; None for all.
            discarded: [R] bool, rows none of whose tokens counts; None for none.
        """
        follow_phases(self._state, slots, emitted_ids, num_tokens, discarded, thinking, markers)

    def restore(self, slots: Tensor, thinking: Tensor) -> None:
        """Put the phases of slots [R] back to what they were: [R] bool, from :meth:`thinking`."""
        self._flush()
        self._state[slots, 0] = thinking.to(torch.float64)
