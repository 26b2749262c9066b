"""Points in time as the protocol writes them; inside they are Unix milliseconds."""

from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime


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
    except (ValueError, TypeError, IndexError):
        return None


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return int(moment.timestamp() * 1000)
    except OverflowError as error:
        raise ValueError("a date out of range") from error
