"""Sizes and durations as arguments of commands."""

import click

from segmentstore.codec.quantities import parse_bytes, parse_seconds


class BytesType(click.ParamType[int]):
    """`64MiB`, `1MB`, `100`."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SecondsType(click.ParamType[float]):
    """`10s`, `250ms`, `2`."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


BYTES = BytesType()
SECONDS = SecondsType()
