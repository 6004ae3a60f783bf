"""Where the processor time of policy steps goes, by the part that takes it.

    python -m tests.diagnostics.step_profile [SETTING=VALUE ...]    the policy stage of `rloo run --no-prefect`; stages
                                                                    before it are reused where they are finished
    python -m tests.diagnostics.step_profile NAME                   our side of a benchmark step, e.g. step_tiny

Shares of all processor time between the first step and the last, other threads' included; they add up to 100 %. What
a part calls counts for the part: sampling for validation is validation. `tracking` is what the training's thread spends
on telling, and all that other threads do.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from accelerate import Accelerator

from rloo_core import api
from rloo_core.algorithms import collecting
from rloo_core.algorithms.online import OnlineMethod
from rloo_core.rewards import CombinedReward
from rloo_core.stages import policy
from rloo_core.trainer import TrainingLoop
from tests.benchmarks.cases import CASES

PARTS: dict[str, list[tuple[Any, str]]] = {
    "sampling": [(collecting, "sample_with_logprobs")],
    "scoring": [(CombinedReward, "__call__")],
    "forward": [(OnlineMethod, "_forward")],
    "backward": [(Accelerator, "backward")],
    "optimiser": [(torch.optim.AdamW, "step")],
    "validation": [(OnlineMethod, "evaluate")],
}


ORDER = ("sampling", "scoring", "reference", "forward", "backward", "optimiser", "validation")


class Profile:
    """Processor seconds of the training's thread by part, and of all threads."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.steps, self.own, self.everything = 0, 0.0, 0.0
        self._running = self._inside = False

    def count(self, owner: Any, attribute: str, part: str) -> None:
        """Count a function for a part from now on."""
        setattr(owner, attribute, self.counted(getattr(owner, attribute), part))

    def counted(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The same function; its time counts unless it is called by one that counts already."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside or not self._running:
                return function(*arguments, **named)
            self._inside, started = True, time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self.parts[part] += time.thread_time() - started
                self._inside = False

        return call

    def loop(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A training loop that is profiled; of several in a run, the one of an online method."""

        @wraps(run)
        def call(loop: TrainingLoop, method: Any) -> None:
            if not isinstance(method, OnlineMethod):
                run(loop, method)
                return
            self._running, own, everything = True, time.thread_time(), time.process_time()
            run(loop, method)
            self._running, self.steps = False, loop.steps
            self.own, self.everything = time.thread_time() - own, time.process_time() - everything

        return call

    def lines(self) -> list[str]:
        """The table."""
        told = self.parts["tracking"]
        parts = {part: self.parts[part] for part in ORDER} | {"tracking": told + self.everything - self.own}
        parts["the rest"] = self.everything - sum(parts.values())
        lines = [f"{self.everything / self.steps:.3f} s a step, {self.steps} steps"]
        for part, seconds in parts.items():
            each = 1e3 * seconds / self.steps
            lines.append(f"{part:<12} {100 * seconds / self.everything:5.1f} %  {each:8.1f} ms a step")
        return [*lines, f"of tracking in the training's thread: {1e3 * told / self.steps:.1f} ms a step"]


def instrumented() -> Profile:
    """Count every part from now on."""
    profile = Profile()
    for part, places in PARTS.items():
        for owner, attribute in places:
            profile.count(owner, attribute, part)
    for module, name in ((policy, "reference_logprobs"), (api, "reference_logprobs")):
        make = getattr(module, name)
        setattr(module, name, lambda *given, make=make: profile.counted(make(*given), "reference"))
    TrainingLoop.run = profile.loop(TrainingLoop.run)  # type: ignore[method-assign]
    return profile


def main(arguments: list[str]) -> None:
    """Run, then print."""
    profile = instrumented()
    if arguments and arguments[0] in CASES and CASES[arguments[0]][0].kind == "step":
        from tests.benchmarks.ours import measure

        torch.set_num_threads(1)
        measure(CASES[arguments[0]][0])
    else:
        from pipelines.cli import main as rloo
        from pipelines.execution import StageObserver

        for told in ("metrics", "table", "figure", "message"):
            profile.count(StageObserver, told, "tracking")
        sys.argv = ["rloo", "run", "--no-prefect", "--until", "policy", "--force", "policy", *arguments]
        _finished(rloo)
    print("\n".join(profile.lines()))


def _finished(command: Callable[[], None]) -> None:
    """Run a command that ends in `sys.exit`; only a failure ends this program, too."""
    try:
        command()
    except SystemExit as error:
        if error.code:
            raise


if __name__ == "__main__":
    main(sys.argv[1:])
