"""Declare topics in a file, and find out what has to change for a cluster to have them.

The plan is pure: what is wanted, and what is there, give the list of changes. `Client.plan_topics` and
`Client.apply_topic` fetch and act. A plan never deletes a topic or a partition: what a file no longer names stays.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ledgermq.client.admin.topics import setting_texts
from ledgermq.client.messages.descriptions import TopicDescription, check_topic_text
from ledgermq.errors import InvalidConfig

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
"""By how a file's name ends."""
_FIELDS = frozenset({"name", "partitions", "settings"})


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as a program or a file wants it. `partitions`: 0 leaves the number to the cluster. `settings`: all that
    are set; every other one has its default, so a setting that a cluster has beyond these is reset.
    """

    name: str
    partitions: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What makes a topic as it is wanted. `partitions`: the new number, 0 if it stays. `settings`: what is changed
    or added. `unset`: what gets its default back.
    """

    name: str
    action: Literal["create", "alter", "unchanged"]
    partitions: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    unset: Sequence[str] = ()


def plan_topics(wanted: Iterable[TopicSpec], found: Iterable[TopicDescription]) -> list[TopicChange]:
    """Return a change for each wanted topic, in the order given. Raises InvalidTopicName, InvalidConfig."""
    there = {topic.name: topic for topic in found}
    specs = list(wanted)
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidConfig(f"these topics are declared more than once: {', '.join(twice)}")
    return [_change(spec, there.get(spec.name)) for spec in specs]


def _change(spec: TopicSpec, found: TopicDescription | None) -> TopicChange:
    check_topic_text(spec.name)
    settings = setting_texts(spec.settings)
    if found is None:
        return TopicChange(spec.name, "create", spec.partitions, settings)
    count = len(found.partitions)
    if 0 < spec.partitions < count:
        raise InvalidConfig(
            f"topic {spec.name} has {count} partitions, and {spec.partitions} are declared: partitions cannot be"
            " removed. Declare as many as there are, or 0 to leave their number alone"
        )
    grown = spec.partitions if spec.partitions > count else 0
    changed = {name: value for name, value in settings.items() if found.settings.get(name) != value}
    unset = tuple(sorted(found.settings.keys() - settings.keys()))
    action: Literal["alter", "unchanged"] = "alter" if grown or changed or unset else "unchanged"
    return TopicChange(spec.name, action, grown, changed, unset)


def read_topics(text: str, form: str, source: str) -> list[TopicSpec]:
    """Return the topics that a file declares: a mapping with the one key `topics`, a list of topics with `name`,
    and if wanted `partitions` and `settings`.

    `form`: yaml, json or toml. `source`: the name of the file, for errors. Raises InvalidConfig.
    """
    document = _loaded(text, form, source)
    if not isinstance(document, dict) or document.keys() != {"topics"} or not isinstance(document["topics"], list):
        raise InvalidConfig(f"{source}: expected one key, topics, with a list of topics")
    return [_spec(entry, f"{source}: topic {number}") for number, entry in enumerate(document["topics"], 1)]


def _spec(entry: object, where: str) -> TopicSpec:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidConfig(f"{where} has no name: each topic needs one, as text")
    where = f"{where} ({entry['name']})"
    if unknown := sorted(str(key) for key in entry.keys() - _FIELDS):
        raise InvalidConfig(f"{where}: unknown {', '.join(unknown)}; a topic has name, partitions and settings")
    partitions = entry.get("partitions", 0)
    if type(partitions) is not int or not 0 <= partitions < 2**32:
        raise InvalidConfig(f"{where}: partitions must be a whole number of 0 or more, not {partitions!r}")
    settings = entry.get("settings") or {}
    if not isinstance(settings, dict):
        raise InvalidConfig(f"{where}: settings must map names to values, not {settings!r}")
    return TopicSpec(entry["name"], partitions, dict(_flat(settings, where)))


def _flat(settings: Mapping[object, object], where: str, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield settings with their whole names: in TOML, `retention.ms = "7d"` is a mapping in a mapping."""
    for name, value in settings.items():
        whole = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _flat(value, where, f"{whole}.")
        elif isinstance(name, str) and isinstance(value, str | int | float):
            yield whole, value
        else:
            raise InvalidConfig(f"{where}: the setting {whole!r} must be text, a number, true or false, not {value!r}")


def _loaded(text: str, form: str, source: str) -> Any:
    try:
        if form == "toml":
            return tomllib.loads(text)
        if form == "json":
            return json.loads(text)
        return _yaml(text, source)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{source} is not valid {form.upper()}: {error}") from error


def _yaml(text: str, source: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise InvalidConfig(
            f'{source}: YAML needs PyYAML: pip install "ledgermq[yaml]", or write the file as TOML or JSON'
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
