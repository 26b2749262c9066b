"""Keeps the runs of a root few: merges what is due, beside publications, and commits under the lock."""

import logging

from tier2.storage.components import Components
from tier2.storage.object_names import ObjectKind
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.root import Run
from tier2.storage.root_publisher import Attempt
from tier2.storage.run_merge import RunMerge
from tier2.storage.run_tiers import MergeChoice, choose_merge

_LOG = logging.getLogger(__name__)


async def merge_runs(*, owned: OwnedRoot, components: Components) -> bool:
    """Merge one group of runs if one is due. One at a time. Raises as Storage.publish()."""
    async with owned.lock:
        await owned.settle()
        root = owned.root
    choice = choose_merge(root.runs, components.settings)
    if choice is None and len(root.runs) >= components.settings.run_count_max:
        choice = MergeChoice(0, len(root.runs) - 1)
    if choice is None:
        return False
    inputs = choice.of(root.runs)
    replaced = [(ObjectKind.RUN, part.identity) for run in inputs for part in run]
    uploader = owned.uploader()
    merge = RunMerge(
        runs=inputs,
        additions=owned.garbage_entries(replaced),
        with_oldest=inputs[-1] is root.runs[-1],
        files=components.files,
        uploader=uploader,
        settings=components.settings,
        executor=components.executor,
    )
    committing = False
    try:
        merged = await merge.run()
        async with owned.lock:
            await owned.settle()
            runs = replace_runs(owned.root.runs, inputs, merged)
            if any(pin.root.version > root.version for pin in await owned.pins()):
                # Pinned while it was merged: that root names the inputs, and their records say that they had gone.
                entries = owned.garbage_entries(replaced)
                runs = (await owned.upload_run(dict(entries), uploader), *runs)
            attempt = Attempt(
                root=owned.next_root(runs),
                garbage_count=len(replaced),
            )
            committing = True
            await owned.commit(attempt)
    except BaseException:
        if not committing:
            owned.publisher.abandon(uploader.uploaded)
        raise
    for run in inputs:
        for part in run:
            components.files.forget(part)
    _LOG.debug(
        "container %d: merged %d runs into one of %d parts",
        root.container_id,
        len(inputs),
        len(merged),
    )
    return True


def replace_runs(runs: tuple[Run, ...], inputs: tuple[Run, ...], merged: Run) -> tuple[Run, ...]:
    """The runs with the inputs, which still lie side by side, replaced by what was merged from them."""
    first = runs.index(inputs[0])
    end = first + len(inputs)
    assert runs[first:end] == inputs, f"runs moved while they were merged first={first}"
    return (*runs[:first], merged, *runs[end:])
