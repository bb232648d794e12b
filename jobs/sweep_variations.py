"""The experiments of the sweep: what is varied, and what each variation is held against."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jobs.sweep_rows import Setting, Texts
from pipeline.config import RunConfig
from retrieval_pools.grouping import cluster

OURS = ("own", "group", "global")
_IN_GROUP = ("own", "group")
_EVERYWHERE = ("own", "global")
_ONE = "one pool"


@dataclass(frozen=True)
class Arm:
    """One variation; an arm is named by its series and its value."""

    experiment: str
    series: str
    value: str
    settings: Sequence[Setting]  # one for each seed, or a single one where nothing is random
    against: tuple[str, str]  # series and value of another arm of the experiment

    @property
    def name(self) -> tuple[str, str]:
        """Series and value."""
        return self.series, self.value


class Variations:
    """All arms of one kind of entity. The last wave's rows are held out of all pools."""

    def __init__(self, config: RunConfig, texts: Texts, kind: str) -> None:
        self._sweep = config.sweep
        self._texts = texts
        self._is_kind = texts.kinds == kind
        self._past = np.flatnonzero(texts.is_past)
        self._past_of_kind = np.flatnonzero(texts.is_past & self._is_kind)
        self._seeds = [config.seed + number for number in range(config.sweep.seeds)]
        self.base = Setting(
            _by_label(texts.groups, self._past),
            texts.groups,
            np.flatnonzero(~texts.is_past & self._is_kind),
            OURS,
            config.pools.depth,
            config.engine.draft_nodes,
        )

    def arms(self) -> Iterator[Arm]:
        """Experiment by experiment."""
        yield from self._scopes()
        yield from self._numbers_of_groups()
        yield from self._pool_sizes()
        yield from self._sources()
        yield from self._first_texts()
        for depth in self._sweep.depths:
            yield self._step("depth", depth, replace(self.base, depth=depth), self._sweep.depths)
        for nodes in self._sweep.nodes:
            yield self._step("nodes", nodes, replace(self.base, nodes=nodes), self._sweep.nodes)

    def _step(self, name: str, value: int, setting: Setting, values: Sequence[int]) -> Arm:
        return Arm(name, "own + group + global", str(value), [setting], (
            "own + group + global", str(values[0])
        ))  # fmt: skip

    def _scopes(self) -> Iterator[Arm]:
        """Groups, random groups of the same sizes, and one pool, large or as small as a group's."""
        shuffled = [self._shuffled(seed) for seed in self._seeds]
        sampled = [self._sampled(seed) for seed in self._seeds]
        everything = ("global", "")
        for series, settings, against in (
            ("group + global", [self.base], ("random + global", "")),
            ("random + global", shuffled, everything),
            ("kind + global", [self._by_kind()], everything),
            ("global", [_using(self.base, _EVERYWHERE)], ("own text only", "")),
            ("group", [_using(self.base, _IN_GROUP)], ("random group", "")),
            ("random group", [_using(one, _IN_GROUP) for one in shuffled], ("sample of all", "")),
            ("sample of all", [_using(one, _IN_GROUP) for one in sampled], ("own text only", "")),
            ("own text only", [_using(self.base, ("own",))], everything),
        ):
            yield Arm("scope", series, "", settings, against)

    def _numbers_of_groups(self) -> Iterator[Arm]:
        for number in self._sweep.groups:
            settings = [self._regrouped(number, seed) for seed in self._seeds]
            for series, sources in (("group + global", OURS), ("group", _IN_GROUP)):
                one = (series, str(self._sweep.groups[0]))
                own = [_using(setting, sources) for setting in settings]
                yield Arm("groups", series, str(number), own, one)

    def _pool_sizes(self) -> Iterator[Arm]:
        """As many texts of the row's group, of its kind, and of all; drawn at random."""
        for number in [*self._sweep.texts, None]:
            value = "all" if number is None else str(number)
            drawn = [self._drawn(number, seed) for seed in self._seeds]
            groups, kinds, everything = zip(*drawn, strict=True)
            yield Arm("texts", "group", value, groups, ("kind", value))
            yield Arm("texts", "kind", value, kinds, ("users and items", value))
            yield Arm("texts", "users and items", value, everything, ("kind", value))

    def _sources(self) -> Iterator[Arm]:
        for sources in (
            OURS,
            _IN_GROUP,
            _EVERYWHERE,
            ("group", "global"),
            *((source,) for source in OURS),
        ):
            setting = _using(self.base, sources)
            yield Arm("sources", ", ".join(sources), "", [setting], (", ".join(OURS), ""))

    def _first_texts(self) -> Iterator[Arm]:
        """Pools of a few texts per group, chosen in one way or another; all others are replayed."""
        texts, everyone = self._texts, np.flatnonzero(self._is_kind)
        chosen = everyone[texts.waves[everyone] == 0]
        nearest = self._picked(chosen, texts.distances)
        settings: dict[str, list[Setting]] = {}
        for seed in self._seeds:
            order = np.random.default_rng(seed).permutation(len(texts))
            drawn = self._picked(chosen, order)
            rows = np.setdiff1d(everyone, np.concatenate([chosen, nearest, drawn]))
            for series, first in (
                ("random", drawn),
                ("representatives", chosen),
                ("nearest", nearest),
                ("no texts", chosen[:0]),
            ):
                pools = _by_label(texts.groups, first)
                settings.setdefault(series, []).append(replace(self.base, pools=pools, rows=rows))
        for series, own in settings.items():
            yield Arm("first texts", series, "", own, ("random", ""))

    def _picked(self, chosen: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """As many entities of every group as were `chosen`, those of least `rank` (n,)."""
        members = _by_label(self._texts.groups, np.flatnonzero(self._is_kind))
        counts = _by_label(self._texts.groups, chosen)
        return np.concatenate(
            [
                members[group][np.argsort(rank[members[group]], kind="stable")[: len(taken)]]
                for group, taken in counts.items()
            ]
        )

    def _regrouped(self, number: int, seed: int) -> Setting:
        """`number` collaborative groups; attribute groups and those of the other kind stay."""
        labels = self._texts.groups.copy()
        warm = self._is_kind & self._texts.is_collaborative
        clusters = cluster(self._texts.vectors[warm], number, seed)
        labels[warm] = [f"group {group}" for group in clusters.assignment]
        return replace(self.base, pools=_by_label(labels, self._past), pool_of=labels)

    def _by_kind(self) -> Setting:
        """One pool for each kind of entity."""
        kinds = self._texts.kinds.astype(object)
        return replace(self.base, pools=_by_label(kinds, self._past), pool_of=kinds)

    def _shuffled(self, seed: int) -> Setting:
        """Pools as large as the groups', with texts of the same kind drawn at random."""
        labels = self._texts.groups.copy()
        order = np.random.default_rng(seed).permutation(self._past_of_kind)
        labels[order] = labels[self._past_of_kind]
        return replace(self.base, pools=_by_label(labels, self._past))

    def _sampled(self, seed: int) -> Setting:
        """Pools with as many tokens as the groups', drawn from the texts of both kinds."""
        random, lengths = np.random.default_rng(seed), self._texts.lengths
        pools = {}
        for group, members in self.base.pools.items():
            order = random.permutation(self._past)
            pools[group] = order[np.cumsum(lengths[order]) <= lengths[members].sum()]
        return replace(self.base, pools=pools)

    def _drawn(self, number: int | None, seed: int) -> tuple[Setting, Setting, Setting]:
        """At most `number` texts per pool: of the group, of the kind, of all."""
        random, base = np.random.default_rng(seed), _using(self.base, _IN_GROUP)
        pools = {
            group: random.permutation(members)[:number] for group, members in base.pools.items()
        }
        one = np.full(len(self._texts), _ONE, object)
        of_kind, of_all = (
            replace(base, pools={_ONE: random.permutation(members)[:number]}, pool_of=one)
            for members in (self._past_of_kind, self._past)
        )
        return replace(base, pools=pools), of_kind, of_all


def _using(setting: Setting, sources: tuple[str, ...]) -> Setting:
    return replace(setting, sources=sources)


def _by_label(labels: np.ndarray, members: np.ndarray) -> dict[str, np.ndarray]:
    """The members (m,) int of every label, in their order."""
    names: Collection[str] = sorted(set(labels[members].tolist()))
    return {name: members[labels[members] == name] for name in names}
