"""Draws cuts of a stream: what a client that is somewhere in the middle of a scaled stream holds."""

from collections.abc import Mapping
from random import Random

from tests.controller.random_runs.stream_model import StreamModel


def draw_cut(random: Random, model: StreamModel, floor: Mapping[int, int]) -> dict[int, int]:
    """Segments that cover the keys, of one epoch or of several, each with the start of an event.

    Empty if nothing is known. `floor`: offsets that it does not go below.
    """
    if not model.ranges:
        return {}
    epochs = list(model.epochs.values())
    of_one = bool(epochs) and random.random() < 0.5
    chosen = random.choice(epochs) if of_one else _tiles(random, model, floor)
    return {segment_id: _offset(random, model, segment_id, floor) for segment_id in chosen}


def _tiles(random: Random, model: StreamModel, floor: Mapping[int, int]) -> list[int]:
    """Each key in whatever segment it may have been: also cuts that run around a segment on both sides."""
    tiles: list[int] = []
    low = 0.0
    while low < 1.0:
        fits = [
            segment_id
            for segment_id, keys in model.ranges.items()
            if keys[0] == low and not (floor and model.lies_behind(segment_id, floor))
        ]
        if not fits:
            return []
        tiles.append(random.choice(fits))
        low = model.ranges[tiles[-1]][1]
    return tiles


def _offset(random: Random, model: StreamModel, segment_id: int, floor: Mapping[int, int]) -> int:
    known = model.segment(segment_id)
    lowest = max(floor.get(segment_id, 0), 0)
    offsets = [at for at in (*known.events, known.parsed) if at >= lowest]
    return random.choice([lowest, *offsets])
