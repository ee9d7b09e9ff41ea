"""Outputs of a network for many draws: vectorized where that works and pays, else in a loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from credo._arguments import check_option
from credo._devices import seconds
from credo.errors import CredoError, InputError
from credo.evaluation.captured import CAPTURED_BYTES, CapturedDraws, Findings, balanced, fingerprint
from credo.evaluation.carried import CarriedStates
from credo.evaluation.choice import TRIAL_DRAWS, Sharing, Workload, describe, draws_at_once, signature
from credo.evaluation.shared_work import SharedWork, SharedWorkError
from credo.evaluation.together import evaluate_together
from credo.functional import Draw, Replica, Sampler, describe_modules
from credo.nests import count_rows, default_batch_size, first_rows, split_rows, tensors
from credo.posteriors.base import Posterior
from credo.probing import ROWS, trace_rows
from credo.seeding import NoRandomness, RandomnessError, derive, reproducible, seeded

WAYS = ("auto", "vmap", "fold", "loop")
"""What ``vectorize`` may be."""
_KEPT_BYTES = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}
"""Draws held at once; all are kept from the second batch on, if they fit. 784-1200-1200-10 took 0.98 forwards per draw
on an H200 with 128 MiB, 0.88 with 256, 0.85 with 512 and 0.84 with 1,100."""
_LOOP_BYTES = 64 * 2**20
"""Draws that a loop generates together, on several threads: 784-1200-1200-10 took 1.52 forwards of CPU time per draw
with 12 MiB on two threads, 1.38 with 24, 1.34 with 48 and 1.25 with 64."""
_MIN_DRAWS_TO_SHARE = 4
_LIVE_ACTIVATIONS = 4
"""Activations of the largest size that a forward pass holds at once: input and output of a layer, and a temporary."""


class Evaluator:
    """Evaluates a network for S draws, which stay the same from batch to batch.

    Args:
        build: makes a private network, ready to predict.
        posterior: how the network is called with a draw; ``None``: with the draw in place of its parameters.
        sampler: gives the draws of some numbers.
        samples: number of draws, S.
        seed: governs what the network itself draws, if it does.
        found: what earlier predictions found out; what this one does is added.
        net: the network that ``build`` copies, if predictions may be captured and replayed.
    """

    def __init__(
        self,
        build: Callable[[], Replica],
        posterior: Posterior | None,
        sampler: Sampler,
        samples: int,
        seed: int,
        found: Findings,
        net: nn.Module | None = None,
    ) -> None:
        self._build, self._posterior, self._sampler = build, posterior, sampler
        self.samples, self.seed = samples, seed
        self._found, self._net = found, net
        self._kept: list[Draw] = []
        self._is_repeated = False
        self._shared: SharedWork | None = None
        self._carried = CarriedStates()
        self._row_bytes: float | None = None
        self._is_started = self._is_prepared = self._is_stateful = False
        self._only_loop = samples == 1 or posterior is None
        self._draws_itself: bool | None = None
        self._obstacles: list[tuple[Hashable, str]] = []
        self._independent_rows: bool | None = None

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Tensor:
        """Outputs ``[S, B, ...]`` for the rows of ``x``; beyond rounding they depend on no other argument."""
        check_option(vectorize, "vectorize", WAYS)
        key = self._capture_key(x, batch_size, vectorize)
        if key is None:
            return self._outputs(x, batch_size, vectorize)
        if self._found.captured.is_due(key):
            return self._capture(key, x, vectorize)
        captured = self._found.captured.get(key)
        outputs = None if captured is None else captured(self._sampler, self.samples, x)
        return self._outputs(x, batch_size, vectorize) if outputs is None else outputs

    def _capture_key(self, x: Any, batch_size: int | None, vectorize: str) -> Hashable | None:
        """What a captured prediction of ``x`` depends on; ``None``: it is not to be captured."""
        is_one_batch = 0 < count_rows(x) <= (batch_size or default_batch_size(x))
        if self._net is None or self._posterior is None or self.samples == 1 or vectorize == "loop" or not is_one_batch:
            return None
        kind = getattr(self._sampler, "kind", None)
        return fingerprint(self._net, x, self.samples, vectorize, type(self._posterior), kind)

    def _capture(self, key: Hashable, x: Any, vectorize: str) -> Tensor:
        """The outputs; from now on draws are evaluated together and replayed if that is faster."""
        device, found, posterior = _device(x), [], self._posterior
        eager = seconds(lambda: found.append(self._outputs(x, None, vectorize)), device)
        only_loop = self._only_loop or self._draws_itself or self._replica.is_stateful()
        if only_loop or posterior is None or not posterior.can_vectorize(self._replica, x):
            self._found.captured.reject(key)
        else:

            def relative_time(captured: CapturedDraws) -> float:
                return seconds(lambda: captured(self._sampler, self.samples, x), device) / eager

            self._found.captured.add(key, lambda: self._make_captured(x), relative_time)
        return found[0]

    def _make_captured(self, x: Any) -> CapturedDraws:
        posterior, replica = self._posterior, self._build()
        assert posterior is not None
        posterior.prepare(replica, x)
        shared = None if self._shared is None else SharedWork(replica, self._shared.calls)

        def run(draws: list[Draw], x: Any) -> Tensor:
            return evaluate_together(posterior, replica, shared, posterior.vectorization, draws, x)

        def begin(draws: list[Draw], x: Any) -> None:
            if shared is not None:
                shared.record_only(lambda: posterior.call(replica, draws[0], x), draws[0])

        at_once = draws_at_once(x, self._bytes_per_draw, self._row_bytes, CAPTURED_BYTES)
        size = balanced(self.samples, at_once)
        return CapturedDraws(replica, run, self._sampler, size, x, None if shared is None else begin)

    def _start(self) -> None:
        """Copy the network, and see how large a draw is."""
        self._replica = self._build()
        first = self._sampler([0])[0]
        self._bytes_per_draw = sum(t.numel() * t.element_size() for t in first.values())
        self._numbers_per_draw = sum(t.numel() for t in first.values())
        self._drawn_names = set(first)
        self._kept_bytes = _KEPT_BYTES["cuda" if any(t.is_cuda for t in first.values()) else "cpu"]
        self._is_started = True

    def _outputs(self, x: Any, batch_size: int | None, vectorize: str) -> Tensor:
        if not self._is_started:
            self._start()
        parts = list(split_rows(x, batch_size or default_batch_size(x)))
        if batch_size is None and len(parts) > 1 and not self._has_independent_rows(parts[0]):
            parts = [x]
        self._prepare(parts[0])
        blocks = [parts] if self._shared is None else [[part] for part in parts]
        outputs = []
        for block in blocks:
            outputs.append(self._evaluate(block, vectorize))
            self._is_repeated = True
        return _concatenate(outputs, dim=1)

    def _has_independent_rows(self, x: Any) -> bool:
        """Whether rows along dim 0 are predicted independently, so that a batch may be split."""
        if self._independent_rows is None:
            network = self._build()

            def run(part: Any) -> tuple[Tensor, list[Tensor]]:
                with network.preserve_buffers():
                    return reproducible(lambda: network({}, part), tensors(part)[0].device), []

            trace = trace_rows(run, x)
            self._independent_rows = trace is not None and trace.input_dim == 0
        return self._independent_rows

    def _prepare(self, x: Any) -> None:
        """On the first batch, see on a few rows which work all draws share, and how large activations are."""
        if self._is_prepared or self._posterior is None or count_rows(x) == 0:
            return
        self._is_prepared = True
        self._posterior.prepare(self._replica, x)
        if self.samples < _MIN_DRAWS_TO_SHARE or not self._may_share(x):
            return
        net = self._replica.net
        key = (signature(net, x), describe_modules(net), frozenset(self._drawn_names))
        if key not in self._found.sharing:
            self._found.sharing[key] = self._find_sharing(first_rows(x, ROWS))
        found = self._found.sharing[key]
        self._row_bytes, self._draws_itself = found.row_bytes, True if found.draws_itself else None
        if found.calls:
            self._shared = SharedWork(self._replica, found.calls)

    def _find_sharing(self, few: Any) -> Sharing:
        """See on a few rows whether a pass can go on from what an earlier one computed, to the same output."""
        draws = self._sampler([0, 1])
        work = SharedWork(self._replica)
        agree, row_bytes = False, None
        try:
            with NoRandomness():
                work.record(lambda: self._call(draws[0], few), draws[0])
                if work.is_worthwhile():
                    shared, plain = work.reuse(lambda: self._call(draws[1], few)), self._call(draws[1], few)
                    agree = torch.allclose(shared, plain, equal_nan=True)
            row_bytes = _LIVE_ACTIVATIONS * work.largest / count_rows(few)
        except CredoError:
            raise
        except RandomnessError:
            return Sharing(draws_itself=True)
        except Exception:  # a network that cannot be called on a few rows, or goes on from what it left behind
            agree = False
        finally:
            if self._replica.is_stateful():
                agree, self._replica = False, self._build()
        return Sharing(work.calls if agree else frozenset(), row_bytes)

    def _may_share(self, x: Any) -> bool:
        """Whether there is enough besides the drawn weights for shared work to be worth looking for."""
        parameters = dict(self._replica.net.named_parameters())
        drawn = sum(p.numel() for name, p in parameters.items() if name in self._drawn_names)
        total = sum(p.numel() for p in parameters.values())
        return 10 * drawn <= 9 * total or _device(x).type == "cuda"

    def _evaluate(self, parts: Sequence[Any], vectorize: str) -> Tensor:
        """The outputs of all draws for ``parts``, with the work they share done once."""
        try:
            return self._run_draws(parts, vectorize)
        except SharedWorkError:
            self._shared, self._replica = None, self._build()
            return self._run_draws(parts, vectorize)

    def _run_draws(self, parts: Sequence[Any], vectorize: str) -> Tensor:
        self._obstacles.clear()
        outputs = [] if self._shared is None else [self._record_shared(self._shared, parts[0])]
        way = self._find_way(parts, vectorize, outputs)
        rest = None if way == "loop" else self._attempt(way, _count(outputs), self.samples, parts)
        if rest is None:
            rest = self._looped(_count(outputs), self.samples, parts)
        for obstacle in self._obstacles:  # only now: inputs on which a loop fails too say nothing of the network
            self._only_loop = True
            self._found.add_obstacle(*obstacle)
        return torch.cat([*outputs, rest])

    def _record_shared(self, shared: SharedWork, x: Any) -> Tensor:
        """The output of draw 0, ``[1, B, ...]``; keeps what all draws share."""
        draw = self._kept[0] if self._kept else self._sampler([0])[0]
        return shared.record(lambda: self._call(draw, x), draw).clone().unsqueeze(0)

    def _find_way(self, parts: Sequence[Any], vectorize: str, outputs: list[Tensor]) -> str:
        """The way asked for, that of the rule, or the fastest; draws evaluated to find out join ``outputs``."""
        x, posterior = parts[0], self._posterior
        if self._only_loop or posterior is None or count_rows(x) == 0 or self._draws_itself or vectorize == "loop":
            return "loop"
        together = posterior.vectorization
        load = self._describe(x, together)
        way = vectorize if vectorize != "auto" else load.choose_by_rule(together) or self._found.ways.get(load.key)
        if way == "loop" or (vectorize == "auto" and load.key in self._found.looped):
            return "loop"
        if way not in (together, None) or not posterior.can_vectorize(self._replica, x):
            if vectorize != "auto":
                kind = f"draws of a {type(posterior).__name__}"
                other = "'loop'" if way == together else f"{together!r} or 'loop'"
                raise InputError(
                    f"vectorize={vectorize!r} is not possible for {kind} with this network, but {other} is"
                )
            return "loop"
        if way is None:
            way = self._found.ways[load.key] = self._measure(together, parts, outputs)
        return way

    def _describe(self, x: Any, together: str) -> Workload:
        """What is to be computed for every draw."""
        shared = set() if self._shared is None else set(self._shared.modules())
        rest = [module for module in self._replica.net.modules() if module not in shared]
        weights = self._numbers_per_draw
        if together == "fold":
            weights = sum(p.numel() for module in rest for p in module.parameters(recurse=False))
        convolves = any(isinstance(module, _ConvNd) for module in rest)
        return describe(self._replica.net, x, weights, convolves, self.samples)

    def _measure(self, together: str, parts: Sequence[Any], outputs: list[Tensor]) -> str:
        """The faster of ``together`` and a loop, by a few draws of each; their outputs join ``outputs``."""
        device, times = _device(parts[0]), {}
        for way in (together, "loop"):
            for is_trial in (False, True):  # the first time finds kernels and memory
                start = _count(outputs)
                stop = start + (TRIAL_DRAWS if is_trial or way != "loop" else 1)
                found: list[Tensor | None] = []

                def run(way: str = way, start: int = start, stop: int = stop, found: list[Any] = found) -> None:
                    found.append(
                        self._looped(start, stop, parts) if way == "loop" else self._attempt(way, start, stop, parts)
                    )

                times[way] = seconds(run, device)
                if found[0] is None:
                    return "loop"
                outputs.append(found[0])
        return min(times, key=times.__getitem__)

    def _attempt(self, way: str, start: int, stop: int, parts: Sequence[Any]) -> Tensor | None:
        """The outputs of some draws, evaluated together; ``None``, and the obstacle, where that fails."""
        reason = "it keeps state from call to call"
        try:
            outputs = self._together(way, start, stop, parts)
            if not self._replica.is_stateful():
                return outputs
        except (CredoError, SharedWorkError):
            raise
        except Exception as error:  # a missing batching rule, an in-place buffer, a data-dependent branch
            reason = str(error).strip().split("\n")[0][:160] or "it draws random numbers"
        self._replica = self._build()
        if self._shared is not None and self._posterior is not None:
            self._posterior.prepare(self._replica, parts[0])
            self._shared = SharedWork(self._replica, self._shared.calls)
            self._record_shared(self._shared, parts[0])
        self._obstacles.append((self._describe(parts[0], way).key, reason))
        return None

    def _together(self, way: str, start: int, stop: int, parts: Sequence[Any]) -> Tensor:
        """The outputs of draws ``start`` to ``stop``, as many at once as memory allows."""
        posterior = self._posterior
        assert posterior is not None

        def evaluate(draws: list[Draw], x: Any) -> Tensor:
            return evaluate_together(posterior, self._replica, self._shared, way, draws, x)

        size = min(draws_at_once(part, self._bytes_per_draw, self._row_bytes) for part in parts)
        while True:
            try:
                groups = self._groups(start, stop, size)
                chunks = [_concatenate([evaluate(draws, part) for part in parts], dim=1) for _, draws in groups]
                return _concatenate(chunks)
            except torch.cuda.OutOfMemoryError:
                if size == 1:
                    raise
                size = -(-size // 2)

    def _groups(self, start: int, stop: int, size: int) -> Iterator[tuple[int, list[Draw]]]:
        """Draws in groups of at most ``size``, each with the number of its first; all are kept if they are repeated."""
        at_once = max(1, self._kept_bytes // max(self._bytes_per_draw, 1))
        if self._is_repeated and self.samples <= at_once and not self._kept:
            self._kept = self._sampler(range(self.samples))
        size = min(size, at_once)
        for first in range(start, stop, size):
            last = min(first + size, stop)
            yield first, self._kept[first:last] or self._sampler(range(first, last))

    def _looped(self, start: int, stop: int, parts: Sequence[Any]) -> Tensor:
        outputs: Tensor | None = None
        for first, draws in self._groups(start, stop, max(1, _LOOP_BYTES // max(self._bytes_per_draw, 1))):
            for s, draw in enumerate(draws, first):
                output = _concatenate([self._evaluate_one(s, draw, part, k) for k, part in enumerate(parts)])
                if outputs is None:  # small tensors kept between large ones would break up the memory
                    outputs = output.new_empty(stop - start, *output.shape)
                outputs[s - start] = output
        assert outputs is not None
        return outputs

    def _evaluate_one(self, s: int, draw: Draw, x: Any, part: int) -> Tensor:
        """One draw on one part; a stateful network is replaced by a fresh copy after each call."""
        self._carried.resume(self._replica.net, s, part)
        output = self._run_one(s, draw, x)
        if _shares_memory(output, draw):
            output = output.clone()
        if self._is_stateful or (s == 0 and self._replica.is_stateful()):
            self._is_stateful = True
            self._carried.keep(self._replica.net, s, part)
            self._replica = self._build()
        return output

    def _run_one(self, s: int, draw: Draw, x: Any) -> Tensor:
        """The output of draw ``s``; where the network draws random numbers itself, they are a function of the seed."""
        if self._shared is not None:
            return self._shared.reuse(lambda: self._call(draw, x))
        if not self._draws_itself:
            try:
                with nullcontext() if self._draws_itself is False else NoRandomness():
                    output = self._call(draw, x)
            except RandomnessError:
                self._draws_itself = True
                self._replica = self._build()
            else:
                self._draws_itself = False
                return output
        with seeded(derive(self.seed, s), tensors(x)[0].device):
            return self._call(draw, x)

    def _call(self, draw: Draw, x: Any) -> Tensor:
        if self._posterior is None:
            return self._replica(draw, x)
        return self._posterior.call(self._replica, draw, x)


def _device(x: Any) -> torch.device:
    return tensors(x)[0].device


def _count(outputs: Sequence[Tensor]) -> int:
    return sum(len(output) for output in outputs)


def _concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


def _shares_memory(output: Tensor, draw: Draw) -> bool:
    """Whether ``output`` is a view of the draw itself, which the next draw may overwrite."""
    storage = output.untyped_storage().data_ptr()
    return any(weight.untyped_storage().data_ptr() == storage for weight in draw.values())
