"""Swarm settings: each seed draws its own world, so small that splits, evictions and rollovers abound (H81).

Values only. tests/sim/world.py maps them onto the settings of the rooms.
"""

from dataclasses import dataclass, field, replace
from random import Random

from tests.sim.object_store import StoreFaults

_LOOKS_IN_A_WAIT = 300
"""How often Tier 2 is looked after in the longest trouble of a world."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How the nodes of one world are configured. Sizes in bytes, times in seconds."""

    container_count: int
    frame_bytes_max: int
    frame_operations_max: int
    frames_in_flight_max: int
    journal_bytes: int
    cache_bytes_max: int
    checkpoint_commits_min: int
    """A checkpoint is due after this many commits."""
    flush_bytes: int
    flush_seconds: float
    chunk_bytes_max: int
    active_segments_max: int
    garbage_grace_seconds: float
    takeover: bool
    """A new process takes the logs over from a living one; else it waits for their locks."""
    objects_in_files: bool
    """Tier 2 lies on the same disk as Tier 1, not in an object store elsewhere."""
    tier2_cache_bytes: int
    """Each of the caches of records, run blocks and chunk indexes."""
    executor_workers: int
    """0: as many as there are jobs."""
    objects_in_volumes: bool = False
    """Tier 2 lies in volumes, on the same disk as Tier 1."""
    volume_index_kept: bool = False
    """Their index outlives the process."""
    attribute_bytes_max: int = 1 << 25
    """Memory of extended attributes, the places of tables' keys among them."""
    maintenance_seconds: float = field(default=1.0, repr=False)
    """Tier 2 is looked after this often while little is published. Not in the text that seeds other draws."""


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """What the clients do."""

    append_bytes_max: int
    segment_count: int
    actor_count: int
    operations_per_actor: int
    pipeline_max: int
    """Appends that one writer has in flight."""
    think_seconds_mean: float
    table_count: int = 0
    """Tables, each with a keeper of its own."""


@dataclass(frozen=True, slots=True)
class TroubleSettings:
    """What goes wrong while faults are on."""

    seconds: float
    """Length of the phase with faults."""
    event_seconds_mean: float
    """Mean time between two events of trouble."""
    crash: float
    """Weights of the kinds of event; 0 means that this world does not know it."""
    power_loss: float
    pause: float
    failing_sync: float
    disk_full: float
    store_down: float
    store_full: float
    cut_off: float
    clock_step: float
    pause_seconds_max: float
    store_down_seconds_max: float
    job_seconds_mean: float
    """How long a call in an executor takes: most of them are the disk's."""
    store: StoreFaults
    power_loss_behind_crash: float = 0.3
    """How likely the power fails right behind the recovery from a crash, in a world that knows power cuts."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """All that one seed decided beforehand."""

    node: NodeSettings
    work: WorkSettings
    trouble: TroubleSettings


def draw_swarm(random: Random) -> Swarm:
    """The world of a seed."""
    swarm = Swarm(_draw_node(random), _draw_work(random), _draw_trouble(random))
    return _with_long_waits(_with_volumes(_with_tables(swarm, Random(repr(swarm)))))


def _with_tables(swarm: Swarm, random: Random) -> Swarm:
    """Two worlds of five have tables; the draws of the others do not depend on it."""
    if random.random() >= 0.4:
        return swarm
    node = replace(swarm.node, attribute_bytes_max=random.choice((1, 1000, 1 << 25)))
    work = replace(swarm.work, table_count=random.choice((1, 2)))
    return replace(swarm, node=node, work=work)


def _with_volumes(swarm: Swarm) -> Swarm:
    """One world of six keeps Tier 2 in volumes; the draws of the others do not depend on it."""
    random = Random(f"objects with volumes {swarm}")
    if swarm.node.objects_in_files or random.random() >= 0.22:
        return swarm
    kept = random.random() < 0.5
    node = replace(swarm.node, objects_in_volumes=True, volume_index_kept=kept)
    return replace(swarm, node=node)


def _with_long_waits(swarm: Swarm) -> Swarm:
    """A world whose troubles last an hour mostly waits: Tier 2 is looked after some hundred times meanwhile.

    While clients work it is looked after as ever, behind every few publications.
    """
    trouble = swarm.trouble
    longest = max(
        trouble.pause_seconds_max if trouble.pause else 0.0,
        trouble.store_down_seconds_max if trouble.store_down or trouble.cut_off else 0.0,
    )
    seconds = max(swarm.node.maintenance_seconds, longest / _LOOKS_IN_A_WAIT)
    return replace(swarm, node=replace(swarm.node, maintenance_seconds=seconds))


def _draw_node(random: Random) -> NodeSettings:
    cache_bytes_max = 4096 * random.choice((6, 12, 32, 200))
    return NodeSettings(
        container_count=random.choice((1, 1, 2, 4)),
        frame_bytes_max=random.choice((256, 512, 1024, 4096, 65536)),
        frame_operations_max=random.choice((1, 2, 3, 10, 100)),
        frames_in_flight_max=random.choice((1, 2, 3, 8)),
        journal_bytes=random.choice((8 * 1024, 16 * 1024, 64 * 1024)),
        cache_bytes_max=cache_bytes_max,
        checkpoint_commits_min=random.choice((2, 5, 20, 100)),
        flush_bytes=random.choice((10, 100, 1000, 10_000)),
        flush_seconds=random.choice((0.01, 0.1, 1.0, 10.0)),
        chunk_bytes_max=random.choice((64, 512, 4096, 65536)),
        active_segments_max=random.choice((2, 4, 10, 1000)),
        garbage_grace_seconds=random.choice((1.0, 30.0, 600.0)),
        takeover=random.random() < 0.8,
        objects_in_files=random.random() < 0.25,
        tier2_cache_bytes=random.choice((1024, 16 * 1024, 1 << 20)),
        executor_workers=random.choice((0, 1, 2)),
    )


def _draw_work(random: Random) -> WorkSettings:
    return WorkSettings(
        append_bytes_max=random.choice((16, 40, 200, 2000)),
        segment_count=random.choice((1, 2, 5, 12)),
        actor_count=random.choice((3, 6, 10)),
        operations_per_actor=random.choice((10, 20, 40)),
        pipeline_max=random.choice((1, 3, 10)),
        think_seconds_mean=random.choice((0.001, 0.01, 0.1)),
    )


def _draw_trouble(random: Random) -> TroubleSettings:
    return TroubleSettings(
        seconds=random.choice((2.0, 5.0, 10.0)),
        event_seconds_mean=random.choice((0.3, 1.0, 3.0)),
        crash=_weight(random, 0.8),
        power_loss=_weight(random, 0.7),
        pause=_weight(random, 0.6),
        failing_sync=_weight(random, 0.3),
        disk_full=_weight(random, 0.3),
        store_down=_weight(random, 0.4),
        store_full=_weight(random, 0.2),
        cut_off=_weight(random, 0.3),
        clock_step=_weight(random, 0.2),
        pause_seconds_max=random.choice((0.5, 10.0, 1000.0)),
        store_down_seconds_max=random.choice((1.0, 30.0, 3600.0)),
        job_seconds_mean=random.choice((0.0002, 0.001, 0.01, 0.05)),
        store=_draw_store_faults(random),
    )


QUIET_STORE = StoreFaults(
    error_before=0.0,
    error_after=0.0,
    late=0.0,
    late_seconds_max=1.0,
    own_retry=0.0,
    stale_list_seconds=0.0,
    latency_seconds_mean=0.0005,
    slow_request=0.0,
    bytes_per_second=1e9,
)
"""Tier 2 answers at once and always. For worlds that are about something else."""


def without_troubles(trouble: TroubleSettings) -> TroubleSettings:
    """Nothing breaks. For worlds that then name the one thing that does."""
    return replace(
        trouble,
        crash=0.0,
        power_loss=0.0,
        pause=0.0,
        failing_sync=0.0,
        disk_full=0.0,
        store_down=0.0,
        store_full=0.0,
        cut_off=0.0,
        clock_step=0.0,
        store=QUIET_STORE,
    )


def _draw_store_faults(random: Random) -> StoreFaults:
    return StoreFaults(
        error_before=_probability(random, 0.1),
        error_after=_probability(random, 0.1),
        late=_probability(random, 0.1),
        late_seconds_max=random.choice((1.0, 60.0, 7200.0)),
        own_retry=_probability(random, 0.2),
        stale_list_seconds=random.choice((0.0, 0.0, 5.0, 1000.0)),
        latency_seconds_mean=random.choice((0.0005, 0.005, 0.05)),
        slow_request=_probability(random, 0.05),
        bytes_per_second=random.choice((1e4, 1e6, 1e9)),
    )


def _weight(random: Random, how_often: float) -> float:
    return random.random() if random.random() < how_often else 0.0


def _probability(random: Random, highest: float) -> float:
    return random.random() * highest if random.random() < 0.5 else 0.0
