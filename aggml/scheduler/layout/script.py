"""Script: native plans of splits, and the actions of a layout with what each waits for.

Here: what each action reads and writes. Not here: the order that follows (order.py), the way of a
copy (copies.py), enqueuing (run.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aggml.memory.buffer import HOST
from aggml.scheduler.deciding.assign import VIEW_OPS
from aggml.scheduler.layout.actions import COPY, EXPERTS, PLAN, SET, WHOLE, Action
from aggml.scheduler.layout.copies import Route, pieces, route
from aggml.scheduler.layout.memory import SplitMemory
from aggml.scheduler.layout.order import ordering
from aggml.scheduler.layout.place import Placing
from aggml.tensor import new_like

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from aggml.backend import Backend
    from aggml.native import _native
    from aggml.plan import DevicePlan
    from aggml.scheduler.deciding.split import Copy
    from aggml.stream.slices import Steps
    from aggml.tensor import Tensor

__all__ = ["Scripting"]


class Scripting(Placing):
    """The third part of making a Layout."""

    def compile(self) -> Steps[list[DevicePlan | None]]:
        """A plan for each split; None where nothing is computed."""
        plans: list[DevicePlan | None] = []
        blocks = tuple(self.blocks)
        for i, (part, graph) in enumerate(zip(self.program.splits, self.graphs, strict=True)):
            if all(n.op in VIEW_OPS for n in graph.nodes):
                plans.append(None)
                continue
            backend = self.backend(self.of[i])
            block = blocks[0] if blocks else self.q.types[part.backend].alloc_buffer(0)
            graph.memory = SplitMemory(block, graph, backend, self.addresses, blocks)
            plans.append((yield from backend._compile(graph, graph.memory)))
        return plans

    def resource(self, tensor: Tensor) -> Hashable:
        """What stands for the bytes of a tensor when actions are put in order.

        Storages have one each; those that share memory with others have one per such memory.
        """
        root = tensor.view_src or tensor
        placement = root.placement
        if root not in self.at or placement is None:
            return placement or ("scratch", self.at.get(root, -1))
        buffer = placement.buffer
        for key, blocks in self.layout.buffers:
            if isinstance(key, tuple) and key[0] != "slot" and buffer in blocks:
                return key
        return placement

    def backend(self, place: int) -> Backend:
        """Whose stream the splits of a place are on."""
        b, lane = self.places[place]
        return self.lane(f"compute {lane}", b) if lane else self.q.backends[b]

    def actions(self, plans: list[DevicePlan | None]) -> None:
        """The script, in program order, with what each action waits for."""
        program, q = self.program, self.q
        # The backend's own stream may wait for other devices: inputs do not wait with it.
        into = "in" if self.layout.slot is None else "feed"
        rows: list[tuple[_native.Stream, set[Hashable], set[Hashable]]] = []
        found: list[Action] = []
        touched: dict[int, set[_native.Stream]] = {}
        written: set[int] = set()

        def add(
            kind: str,
            backend: Backend,
            reads: Sequence[Tensor],
            writes: Sequence[Tensor],
            split: int,
            *,
            source: Tensor | None = None,
            target: Tensor | None = None,
            plan: DevicePlan | None = None,
            extra: Hashable = None,
            who: Tensor | None = None,
        ) -> None:
            r = {self.resource(t) for t in reads}
            w = {self.resource(t) for t in writes}
            if extra is not None:
                w.add(extra)
            rows.append((backend.stream.native, r, w))
            placed = False
            for group, writing in ((reads, False), (writes, True)):
                for t in group:
                    root = t.view_src or t
                    if root not in self.at and root in self.homes:
                        placed = True
                        touched.setdefault(self.homes[root], set()).add(backend.stream.native)
                        if writing:
                            written.add(self.homes[root])
            found.append(
                Action(
                    kind,
                    backend,
                    (),
                    source,
                    target,
                    plan,
                    split,
                    tuple(reads) if kind == WHOLE else () if who is None else (who,),
                    placed,
                )
            )

        def move(source: Tensor, target: Tensor, a: int, b: int, split: int) -> None:
            here, there = source.buffer, target.buffer
            assert here is not None
            assert there is not None
            way = route(q.backends[a].device, here.type, q.backends[b].device, there.type)
            if way is not Route.STAGED:
                side = self.lane("down", a) if way is Route.PUSH else self.lane("up", b)
                add(COPY, side, [source], [target], split, source=source, target=target)
                return
            down, up = self.lane("down", a), self.lane("up", b)
            through = down.device.host_buffer_type or up.device.host_buffer_type
            parts = pieces(source, target, through) if through else pieces(source, target)
            for p in parts:
                self.homes.pop(p.staging, None)
                add(COPY, down, [p.source], [p.staging], split, source=p.source, target=p.staging)
                add(COPY, up, [p.staging], [p.target], split, source=p.staging, target=p.target)
            if len(parts) > 1:  # a piece fills a part only: now the whole is good, or is not
                add(WHOLE, up, [p.staging for p in parts], [target], split, target=target)

        def choose(source: Tensor, target: Tensor, ids: Tensor, copy: Copy, split: int) -> None:
            """Copy some experts; ids that lie elsewhere come to host memory first."""
            at = program.at(program.experts[copy])
            if not ids.buffer or not ids.buffer.is_host:
                down = self.lane("down", at)
                staging = new_like(ids, "none", ())
                (down.device.host_buffer_type or HOST).alloc_tensors([staging])
                add(COPY, down, [ids], [staging], split, source=ids, target=staging)
                ids = staging
            up = self.lane("up", copy.backend)
            add(EXPERTS, up, [ids, source], [target], split, source=source, target=target, who=ids)

        self.homes = {
            t: b
            for t, b in program.found.backend.items()
            if t.view_src is None and (t.placement is not None) and t not in program.floating
        }
        self.homes.update({self.twins[t]: b for t, b in self.homes.items() if t in self.twins})
        for leaf in program.leafs:
            if leaf in program.direct:
                twin = self.twins[leaf]
                add(SET, self.lane(into, self.at[twin]), [], [twin], 0, source=leaf, target=twin)
        for i, part in enumerate(program.splits):
            for copy in part.inputs:
                target = self.copies[copy]
                b = copy.backend
                if program.is_upload(copy):
                    add(SET, self.lane(into, b), [], [target], i, source=copy.tensor, target=target)
                elif copy in program.experts:
                    ids = self.twins[program.experts[copy]]
                    choose(self.twins[copy.tensor], target, ids, copy, i)
                else:
                    move(self.twins[copy.tensor], target, program.at(copy.tensor), b, i)
            plan = plans[i]
            if plan is not None:
                nodes = self.graphs[i].nodes
                writes = [n for n in nodes if n.op not in VIEW_OPS]
                writes = [n for n in writes if (n.view_src or n).placement is not None]
                add(
                    PLAN,
                    self.backend(self.of[i]),
                    [t for t in self.graphs[i].leafs if t.placement is not None],
                    writes,
                    i,
                    plan=plan,
                    extra=self.keys[self.of[i]],
                )
        # Computing of other submissions may still use memory that is shared.
        layout = self.layout
        before = [
            (self.backend(i).stream.native, {key})
            for i, key in enumerate(self.keys)
            if layout.slot is not None
        ]
        layout.script = [
            action._replace(waits=tuple(waits))
            for action, waits in zip(found, ordering(rows, before), strict=True)
        ]
        layout.touched = touched
        layout.streams = list(dict.fromkeys(a.backend.stream.native for a in found))
        for b, streams in touched.items():
            home = q.backends[b].stream.native
            others = [s for s in streams if s != home]
            if others:
                layout.foreign[home] = others
        layout.writes_placed = sorted(written)
        for root, b in self.homes.items():
            where = root.placement
            if where is None or root in self.at:
                continue
            sharers = layout.sharers.setdefault(b, [])
            for i, backend in enumerate(q.backends):
                if i != b and backend not in sharers and q.reads(i, where.buffer.type):
                    sharers.append(backend)
