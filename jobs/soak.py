"""Do runs survive whatever happens to them? `make soak`.

    python -m jobs.soak --config conf/soak.yaml --minutes 30

Writes the knowledge of a small catalog once in peace. Then, round after round, writes it again
while an actor or the job itself is killed, the job is terminated, or half a part is left behind,
at random moments; the same command goes on until it is done. After every round each entity must
have one row, equal to that of the undisturbed run, and nothing may be left over. A round that
holds is removed, one that does not stays in `<run>/rounds` to be looked at.

The last line on stdout is one JSON object. Exit code 5 if any round was broken.
"""

import json
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from jobs import build_catalog, cli, group_entities, train_embeddings
from jobs.processes import start_job
from jobs.soak_checks import broken, rewritten, stored_parts
from jobs.soak_faults import FAULTS, Fault
from jobs.soak_shop import make_shop
from pipeline.config import RunConfig
from pipeline.errors import CheckError, ConfigError, DataError
from pipeline.store import Store

log = logging.getLogger("jobs.soak")

SHOP = Path(".cache/soak")  # made if the config reads from it
_OPTIONS = {
    "minutes": "how long rounds are begun (default 30)",
    "seed": "of faults and moments (default: the config's)",
}
_INPUTS = ("users", "items", "interactions", "embeddings", "groups")
_JOB = "jobs.generate_knowledge"
_MOST_FAULTS = 3  # in a round
_LONGEST = 600.0  # s, of one try; then it hangs
_EARLIEST = 0.05  # of the time of the undisturbed job, which may have been slower than others


@dataclass
class Round:
    """One run: what was done to it, and what did not hold afterwards."""

    store: Store
    events: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # that struck
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """What all rounds share."""

    config: Path
    rounds: Path
    calm: Store
    seconds: float  # of the undisturbed job

    def arguments(self, name: str) -> list[str]:
        """Of the job that writes the knowledge of a round."""
        overrides = (f"artifacts={self.rounds}", f"run={name}")
        return [
            "--config",
            str(self.config),
            *(part for one in overrides for part in ("--set", one)),
        ]


def run(
    config: RunConfig, store: Store, minutes: str | None = None, seed: str | None = None
) -> None:
    """Print a line for every round and one of JSON.

    Raises:
        CheckError: a round was broken.
        ConfigError: the rule is not strict, or an option is no number.
    """
    limit = _number("minutes", minutes, 30.0)
    chosen = int(_number("seed", seed, config.seed))
    if config.generation.rule != "strict":
        raise ConfigError("a soak compares token by token; set generation.rule=strict")
    began = time.monotonic()
    setting = _prepare(config, store)
    random, rounds = np.random.default_rng(chosen), list[Round]()
    while not rounds or time.monotonic() - began < limit * 60:
        rounds.append(_round(setting, f"round-{len(rounds)}", random))
        print(_line(rounds[-1]), flush=True)
    print(json.dumps(_totals(rounds, chosen, time.monotonic() - began)))
    lost = [one for one in rounds if one.complaints]
    if lost:
        raise CheckError(
            f"{len(lost)} of {len(rounds)} rounds were broken, the first: "
            f"{'; '.join(lost[0].complaints)}; look into {lost[0].store.root}"
        )


def _number(name: str, text: str | None, default: float) -> float:
    try:
        number = default if text is None else float(text)
    except ValueError as error:
        raise ConfigError(f"--{name} takes a number, got {text!r}") from error
    if not number >= 0:
        raise ConfigError(f"--{name} takes a number from 0 on, got {text!r}")
    return number


def _prepare(config: RunConfig, store: Store) -> Setting:
    """The catalog up to its groups, and its knowledge written in peace."""
    rounds = store.root / "rounds"
    shutil.rmtree(rounds, ignore_errors=True)  # of an earlier soak
    rounds.mkdir()
    if Path(config.language_model.path).is_relative_to(SHOP):
        make_shop(SHOP, config.seed)
    path = rounds / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    calm = Store(rounds / "calm")
    for stage in (build_catalog, train_embeddings, group_entities):
        stage.run(config, calm)
    setting = Setting(path, rounds, calm, 0.0)
    began = time.monotonic()
    output = rounds / "calm.txt"
    with _started(setting, calm, output) as job:
        code = _wait(job)
    if code:
        raise DataError(f"the undisturbed run ended with exit code {code}; see {output}")
    seconds = time.monotonic() - began
    log.info("undisturbed: %d rows in %.0f s", calm.require("knowledge").num_rows, seconds)
    return Setting(path, rounds, calm, seconds)


def _round(setting: Setting, name: str, random: np.random.Generator) -> Round:
    """One run under up to three faults."""
    one = Round(Store(setting.rounds / name))
    for dataset in _INPUTS:
        shutil.copytree(setting.calm.path(dataset), one.store.path(dataset))
    for fault in random.choice(len(FAULTS), int(random.integers(1, _MOST_FAULTS + 1))).tolist():
        moment = setting.seconds * _EARLIEST ** float(random.uniform())
        if _try(setting, one, FAULTS[fault], moment):
            break
    else:
        _try(setting, one, None, 0.0)
    one.complaints += broken(setting.calm, one.store)
    if not one.complaints:
        shutil.rmtree(one.store.root)
        _output(setting, one).unlink()
    return one


def _try(setting: Setting, one: Round, fault: Fault | None, moment: float) -> bool:
    """Run the job once; at a moment (s) the fault strikes it. Says whether all is written."""
    before = stored_parts(one.store)
    with _started(setting, one.store, _output(setting, one)) as job:
        struck = False
        if fault is not None and not _ends_within(job, moment):
            struck = fault.strike(job, one.store)
        code = _wait(job)
    expected = (0, *fault.codes) if fault and struck else (0,)
    what = f"{fault.name} at {moment:.1f} s" if fault and struck else "undisturbed"
    one.events.append(f"{what}: exit {'none, it hung' if code is None else code}")
    one.faults += [fault.name] if fault and struck else []
    if code not in expected:
        one.complaints.append(f"{one.events[-1]}, not {' or '.join(map(str, expected))}")
    one.complaints += rewritten(before, stored_parts(one.store))
    return code == 0


@contextmanager
def _started(setting: Setting, store: Store, output: Path) -> Iterator[subprocess.Popen]:
    """The job of a run, which does not outlive the block."""
    job = start_job(_JOB, setting.arguments(store.root.name), output)
    try:
        yield job
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()


def _output(setting: Setting, one: Round) -> Path:
    return setting.rounds / f"{one.store.root.name}.txt"


def _ends_within(job: subprocess.Popen, seconds: float) -> bool:
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _wait(job: subprocess.Popen) -> int | None:
    """Exit code of the job, None if it does not end."""
    return job.returncode if _ends_within(job, _LONGEST) else None


def _line(one: Round) -> str:
    verdict = f"BROKEN: {'; '.join(one.complaints)}" if one.complaints else "as undisturbed"
    return f"{one.store.root.name}: {', '.join(one.events)}: {verdict}"


def _totals(rounds: Sequence[Round], seed: int, seconds: float) -> dict[str, object]:
    """The last line: how often each fault struck, and how many rounds did not hold."""
    return {
        "minutes": round(seconds / 60, 1),
        "seed": seed,
        "rounds": len(rounds),
        "faults": dict(Counter(name for one in rounds for name in one.faults)),
        "broken": sum(bool(one.complaints) for one in rounds),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv, _OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
