"""Points in time as the protocol writes them; inside they are Unix milliseconds."""

from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

_LATEST_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999


def iso_date(milliseconds: int) -> str:
    """As in XML and in lock headers: 2026-11-21T12:00:00.000Z."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


def http_date(milliseconds: int) -> str:
    """As in Last-Modified."""
    return format_datetime(datetime.fromtimestamp(milliseconds // 1000, UTC), usegmt=True)


def parse_iso_date(text: str) -> int:
    """Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    return _milliseconds(moment)


def parse_http_date(text: str) -> int | None:
    """None if it is none: conditions of that kind are ignored."""
    try:
        return _milliseconds(parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        milliseconds = int(moment.timestamp() * 1000)
    except OverflowError as error:
        raise ValueError("a date out of range") from error
    if milliseconds > _LATEST_MS:
        # Of the last year in a place west of Greenwich: it could be kept, but not be written again.
        raise ValueError("a date out of range")
    return milliseconds
