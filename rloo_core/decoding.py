"""The decoding loop on shared rows: a row is a prompt, computed and kept once, and the completions that branch off it.

    columns of a row:   prompt | first tokens of its branches | second tokens | …

Each step appends one column a branch, so memory is written in place; a mask says which columns a branch sees
(`visibility`). When many branches have ended, what is left is gathered into fewer and shorter rows, and prompts that
wait take the room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rloo_core.layout import branches_per_row, row_scale
from rloo_core.row_cache import filled_cache, gathered, row_cache
from rloo_core.types import Ids
from rloo_core.visibility import PADDING, PROMPT, attention_masks

WORTH_MOVING = 0.75  # rows are gathered anew when no more than this share of their branches is alive
EMPTY = -1


class Seat(NamedTuple):
    """Completions that share a row; those that have begun are in `row`, at `slots` of it."""

    prompt: int
    completions: list[int]
    row: int = EMPTY
    slots: tuple[int, ...] = ()


@dataclass
class Board:
    """The rows that are being decoded.

    Attributes:
        cache: Keys and values of the columns so far.
        branch: Whom each column belongs to, see `visibility`. Shape [R, C].
        position: Of each column's token. Shape [R, C].
        prompts: Which prompt each row has.
        completions: Which completion each branch of a row is; EMPTY once it has ended. Shape [R, B], on the CPU.
        tokens: The last token of each branch, not yet in the cache. Shape [R, B].
        next_position: Its position. Shape [R, B].
    """

    cache: Any
    branch: Tensor
    position: Tensor
    prompts: list[int]
    completions: Tensor
    tokens: Tensor
    next_position: Tensor

    def alive(self) -> int:
        return int((self.completions != EMPTY).sum())

    def seats(self) -> list[Seat]:
        """The rows with living branches."""
        rows = enumerate(zip(self.prompts, self.completions.tolist(), strict=True))
        found = [(row, prompt, [s for s, c in enumerate(slots) if c != EMPTY], slots) for row, (prompt, slots) in rows]
        return [
            Seat(prompt, [slots[s] for s in alive], row, tuple(alive)) for row, prompt, alive, slots in found if alive
        ]


@dataclass
class Decoder:
    """Decodes the completions of some prompts within a budget of tokens.

    Args:
        model: A Hugging Face causal language model that takes the shared layout.
        decoder: Its decoder, whose configuration says which masks it takes.
        prompts: Token ids of each prompt.
        group_size: K; completion p·K + k is the k-th of prompt p.
        max_new_tokens: Longest completion.
        max_tokens: Budget of a batch: rows x columns. A single completion may exceed it.
        pad_id: Fills rows up; never seen.
        draw: From logits [N, V] and the completions [N] they belong to, the next tokens [N] and which of them are the
            last [N].
    """

    model: Any
    decoder: Any
    prompts: Sequence[Ids]
    group_size: int
    max_new_tokens: int
    max_tokens: int
    pad_id: int
    draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    board: Board | None = None
    waiting: list[Seat] = field(default_factory=list)

    def run(self) -> None:
        """Decode all; what is drawn is the caller's to keep."""
        self.waiting = self._units()
        while self.waiting or self.board is not None:
            board = self.board
            if board is None or board.alive() <= WORTH_MOVING * board.completions.numel():
                self._seat_anew()
            if self.board is not None:
                self._step(self.board)

    def _units(self) -> list[Seat]:
        """Completions that start together in a row, those of the longest prompts first."""
        order = sorted(range(len(self.prompts)), key=lambda i: (-len(self.prompts[i]), i))
        scale = row_scale(self.decoder.config)
        units = []
        for prompt in order:
            room = (self.max_tokens - len(self.prompts[prompt])) // self.max_new_tokens
            # while decoding, a row has half of its columns on average
            best = branches_per_row(len(self.prompts[prompt]), self.max_new_tokens, self.group_size, 2 * scale)
            each = max(1, min(best, room))
            own = list(range(prompt * self.group_size, (prompt + 1) * self.group_size))
            units += [Seat(prompt, own[start : start + each]) for start in range(0, len(own), each)]
        return units

    def _step(self, board: Board) -> None:
        """One more token for every living branch."""
        alive = board.completions != EMPTY
        slots = torch.arange(1, alive.shape[1] + 1, device=board.branch.device)
        owner = torch.where(alive.to(slots.device), slots, PADDING)
        board.branch = torch.cat([board.branch, owner], dim=1)
        board.position = torch.cat([board.position, board.next_position], dim=1)
        logits = self._forward(board.tokens, board.branch, board.position, board.cache, alive.shape[1])
        board.next_position = board.next_position + 1
        row, slot = alive.nonzero(as_tuple=True)
        self._draw(board, logits[row, slot], row, slot)

    def _draw(self, board: Board, logits: Tensor, row: Tensor, slot: Tensor) -> None:
        tokens, last = self.draw(logits, board.completions[row, slot])
        board.tokens[row, slot] = tokens
        last = last.cpu()
        board.completions[row[last], slot[last]] = EMPTY
        if len(last) == int(last.sum()) and board.alive() == 0:
            self.board = None

    def _forward(self, ids: Tensor, branch: Tensor, position: Tensor, cache: Any, keep: int) -> Tensor:
        queries = ids.shape[1]
        masks = attention_masks(self.decoder.config, self.model.dtype, branch, position, queries)
        output = self.model(
            input_ids=ids, attention_mask=masks, position_ids=position[:, -queries:], cache=cache, use_cache=True,
            logits_to_keep=keep,
        )  # fmt: skip
        logits: Tensor = output.logits
        return logits

    def _seat_anew(self) -> None:
        """Gather the living branches into rows that fit them, and let those in that wait and fit."""
        board = self.board
        old = [] if board is None else board.seats()
        living = max((len(seat.completions) for seat in old), default=0)
        new = self._admitted(old, living)
        if board is not None and not new:
            old = _packed(old)
            width = max(len(seat.completions) for seat in old)
            if len(old) * width > WORTH_MOVING * board.completions.numel():
                return
        self._move(board, old, new)

    def _admitted(self, old: list[Seat], living: int) -> list[Seat]:
        """The next of those that wait, as many as the budget has room for; at least one if there is nothing else."""
        columns = max((self._columns(seat) for seat in old), default=0)
        admitted: list[Seat] = []
        width = living
        while self.waiting:
            seat = self.waiting[0]
            width, columns = max(width, len(seat.completions)), max(columns, len(self.prompts[seat.prompt]))
            rows = len(old) + len(admitted) + 1
            if rows * (columns + width * self.max_new_tokens) > self.max_tokens and rows > 1:
                break
            admitted.append(self.waiting.pop(0))
        return admitted

    def _columns(self, seat: Seat) -> int:
        assert self.board is not None
        own = torch.tensor([PROMPT, *(slot + 1 for slot in seat.slots)], device=self.board.branch.device)
        return int(torch.isin(self.board.branch[seat.row], own).sum())

    def _move(self, board: Board | None, old: list[Seat], new: list[Seat]) -> None:
        """Make a new board of what is left of the old one and of prompts that begin."""
        width = max(len(seat.completions) for seat in old + new)
        kept = None if board is None or not old else _kept_columns(board, old, width)
        first = None if not new else self._prefill(new)
        columns = max(0 if part is None else part.branch.shape[1] for part in (kept, first))
        parts = [_widened(part, columns) for part in (kept, first) if part is not None]
        capacity = columns + width * self.max_new_tokens
        device = parts[0].branch.device
        completions = torch.tensor([seat.completions + [EMPTY] * (width - len(seat.completions)) for seat in old + new])
        tokens = torch.full(completions.shape, self.pad_id, dtype=torch.long, device=device)
        positions = torch.zeros_like(tokens)
        if kept is not None:
            assert board is not None
            for row, seat in enumerate(old):
                slots = list(seat.slots)
                tokens[row, : len(slots)] = board.tokens[seat.row, slots]
                positions[row, : len(slots)] = board.next_position[seat.row, slots]
        for row, seat in enumerate(new, start=len(old)):
            positions[row] = len(self.prompts[seat.prompt])
        branch, position = (torch.cat([getattr(part, name) for part in parts]) for name in ("branch", "position"))
        cache = filled_cache([part.states for part in parts], capacity)
        prompts = [seat.prompt for seat in old + new]
        self.board = Board(cache, branch, position, prompts, completions, tokens, positions)
        if first is not None:
            begun = torch.tensor([row for row, seat in enumerate(new) for _ in seat.completions])
            slot = torch.tensor([slot for seat in new for slot in range(len(seat.completions))])
            self._draw(self.board, first.logits[begun], begun + len(old), slot)

    def _prefill(self, seats: list[Seat]) -> "Part":
        """Each prompt once through the model, however many rows begin with it."""
        distinct = sorted({seat.prompt for seat in seats})
        device = next(self.model.parameters()).device
        columns = max(len(self.prompts[p]) for p in distinct)
        ids = torch.full((len(distinct), columns), self.pad_id, dtype=torch.long)
        branch, position = torch.full_like(ids, PADDING), torch.zeros_like(ids)
        for row, prompt in enumerate(distinct):
            length = len(self.prompts[prompt])
            ids[row, columns - length :] = torch.tensor(self.prompts[prompt], dtype=torch.long)
            branch[row, columns - length :] = PROMPT
            position[row, columns - length :] = torch.arange(length)
        ids, branch, position = ids.to(device), branch.to(device), position.to(device)
        cache = row_cache(columns)
        logits = self._forward(ids, branch, position, cache, 1)[:, -1]
        source = torch.tensor([distinct.index(seat.prompt) for seat in seats], device=device)
        every = torch.arange(columns, device=device).expand(len(seats), -1)
        return Part(branch[source], position[source], gathered(cache, source, every), logits[source])


class Part(NamedTuple):
    """Rows of a new board: whose columns, where, their keys and values by layer, and logits of what follows."""

    branch: Tensor
    position: Tensor
    states: list[tuple[Tensor, Tensor]]
    logits: Tensor


def _packed(seats: list[Seat]) -> list[Seat]:
    """The same branches in rows of as many branches as wastes the fewest places; a row may become several."""

    def split(width: int) -> list[Seat]:
        return [
            Seat(s.prompt, s.completions[i : i + width], s.row, s.slots[i : i + width])
            for s in seats
            for i in range(0, len(s.completions), width)
        ]

    widths = range(max(len(seat.completions) for seat in seats), 0, -1)
    return min(
        (split(width) for width in widths), key=lambda found: len(found) * max(len(s.completions) for s in found)
    )


def _kept_columns(board: Board, seats: list[Seat], width: int) -> Part:
    """What the living branches see, moved to the right end of shorter rows."""
    device = board.branch.device
    rows = torch.tensor([seat.row for seat in seats], device=device)
    renamed = torch.full((len(seats), board.completions.shape[1] + 1), PADDING, device=device)
    renamed[:, 0] = PROMPT
    for row, seat in enumerate(seats):
        for new, slot in enumerate(seat.slots):
            renamed[row, slot + 1] = new + 1
    old = board.branch[rows]
    branch = torch.where(old == PADDING, PADDING, renamed.gather(1, old.clamp(min=0)))
    seen = branch != PADDING
    columns = int(seen.sum(1).max())
    order = seen.int().argsort(dim=1, stable=True)[:, -columns:]  # what is not seen comes first, the rest in its order
    return Part(
        branch.gather(1, order),
        board.position[rows].gather(1, order),
        gathered(board.cache, rows, order),
        torch.empty(0, device=device),
    )


def _widened(part: Part, columns: int) -> Part:
    """The same rows with padding on the left."""
    missing = columns - part.branch.shape[1]
    if missing == 0:
        return part

    def pad(values: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(values, (missing, 0), value=fill)

    states = [
        (torch.nn.functional.pad(k, (0, 0, missing, 0)), torch.nn.functional.pad(v, (0, 0, missing, 0)))
        for k, v in part.states
    ]
    return Part(pad(part.branch, PADDING), pad(part.position, 0), states, part.logits)
