"""Values that a user may tune in automatic scaling."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoScaleSettings:
    """Times in seconds."""

    interval_seconds: float = 10.0
    """Between two looks at the lengths of all segments of streams that scale."""
    windows_seconds: tuple[float, ...] = (120.0, 300.0, 600.0, 1200.0)
    """Over which rates are averaged, ascending; the last one decides what is cold."""
    hot_factors: tuple[float, ...] = (5.0, 2.0, 1.0)
    """How far above the target a rate must be to split, for each window but the last."""
    cool_down_seconds: float = 120.0
    """Between two automatic scales of one stream."""
    segments_per_stream_max: int = 1_024
    """Splits stop here."""
    streams_max: int = 100_000
    """Streams watched at once; further ones are not scaled."""
    refresh_seconds: float = 60.0
    """Between two passes over all streams that read their policies."""

    def __post_init__(self) -> None:
        assert len(self.hot_factors) == len(self.windows_seconds) - 1, (
            f"a factor for each window but the last factors={self.hot_factors} windows={self.windows_seconds}"
        )
        assert list(self.windows_seconds) == sorted(self.windows_seconds), (
            f"windows are not ascending windows={self.windows_seconds}"
        )
