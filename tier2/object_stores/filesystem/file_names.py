"""Where the object of a key lies below the store's directory, and back.

Each part of a key is one path component; the last one is the file. A part without capitals is its own component. A part
with capitals becomes

    lower-case part, "~", hexadecimal number whose bit i says that character i was a capital

so two keys that differ in case alone differ on every disk ("~" is not in the grammar of keys, so nothing else looks
like that). A part of 200 characters makes a component of at most 251 bytes; file systems allow 255.
"""

from tier2.object_stores.object_key import is_part

_MARK = "~"


def component_of_part(part: str) -> str:
    """The path component for one part of a key."""
    capitals = sum(1 << place for place, letter in enumerate(part) if letter.isupper())
    return f"{part.lower()}{_MARK}{capitals:x}" if capitals else part


def part_of_component(component: str) -> str | None:
    """The part of a key for a path component; None for a name that component_of_part never makes."""
    name, mark, capitals = component.partition(_MARK)
    part = name
    if mark:
        try:
            places = int(capitals, 16)
        except ValueError:
            return None
        part = "".join(
            letter.upper() if places >> place & 1 else letter for place, letter in enumerate(name)
        )
    if not is_part(part) or component_of_part(part) != component:
        return None
    return part


def path_of_key(directory: str, key: str) -> str:
    """Absolute path of the file for a valid key."""
    return "/".join([directory, *map(component_of_part, key.split("/"))])


def parent_of_path(path: str) -> str:
    """The directory that holds the name."""
    return path.rpartition("/")[0] or "/"
