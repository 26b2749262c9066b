"""Data directories of nodes that come and go, over the one disk of their store's Tier 2."""

from pathlib import Path


def new_node(tmp_path: Path, name: str) -> Path:
    """A data directory with nothing but a link to the disk, which is `tmp_path`/disk and is there already."""
    path = tmp_path / name
    path.mkdir()
    (path / "tier2").symlink_to(tmp_path / "disk", target_is_directory=True)
    return path
