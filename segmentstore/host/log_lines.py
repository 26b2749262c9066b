"""The service's log on stderr: one line an event, for people as key=value, for machines as JSON.

    2026-11-21T09:30:00.123Z INFO segmentstore.host.standalone ready containers=4
    {"time":"2026-11-21T09:30:00.123Z","level":"info","logger":"...","message":"ready containers=4"}

Messages carry their facts as key=value at the end, in both forms. A message never breaks its line.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from segmentstore.host.settings import LogSettings


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send everything to one stream (default stderr) in the configured form. Replaces what was configured before."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for chatty in ("asyncio", "aiobotocore", "botocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # One line per request is the business of metrics; at DEBUG it drowns everything else.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """time LEVEL logger message."""

    def format(self, record: logging.LogRecord) -> str:
        message = _one_line(record.getMessage())
        line = f"{_time(record)} {record.levelname} {record.name} {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, separators=(",", ":"))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n") if "\n" in message else message
