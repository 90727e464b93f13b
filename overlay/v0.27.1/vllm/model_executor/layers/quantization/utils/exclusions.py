# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which vLLM modules a checkpoint's exclude list keeps out of quantization.

ModelOpt's `exclude_modules` (or `ignore`) holds module paths and shell wildcards;
compressed-tensors' `ignore` holds exact paths and `re:` regular expressions. Both
are written in the checkpoint's names, for modules that are not fused yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from fnmatch import translate
from typing import TYPE_CHECKING, Literal

import regex as re

from vllm.logger import init_logger
from vllm.model_executor.layers.quantization.utils.checkpoint_tensors import (
    CheckpointTensors,
)

if TYPE_CHECKING:
    from vllm.model_executor.models.utils import WeightsMapper

logger = init_logger(__name__)

Syntax = Literal["modelopt", "compressed-tensors"]

_WILDCARD = re.compile(r"[*?\[]")
_EXPERT_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class _Match(IntEnum):
    NONE = 0
    # "layers.1*" on layer 10: by its spelling only.
    NUMBER = 1
    # "vision*" on "vision_tower": the wildcard ends a component.
    PARTIAL = 2
    # At the boundaries of path components.
    WHOLE = 3


_Graded = tuple[_Match, str | None]
"""A match, and the entry to name if it is not at boundaries."""
_NONE: _Graded = (_Match.NONE, None)
_WHOLE: _Graded = (_Match.WHOLE, None)


def _is_stem(pattern: str) -> bool:
    """Whether `pattern` is "module_path*", meaning the tree at module_path."""
    return len(pattern) >= 2 and pattern[-1] == "*" and pattern[-2] not in ".*"


def checkpoint_names(prefix: str, mappers: Sequence["WeightsMapper"]) -> list[str]:
    """Names a checkpoint may use for the vLLM module `prefix`, itself first."""
    names = [prefix]
    dotted = f"{prefix}."
    for mapper in mappers:
        renames = (
            *mapper.orig_to_new_prefix.items(),
            *mapper.orig_to_new_substr.items(),
        )
        for old, new in renames:
            if new is None or new not in dotted:
                continue
            name = dotted.replace(new, old, 1)
            if name[:-1] not in names and mapper._map_name(name) == dotted:
                names.append(name[:-1])
    if prefix.startswith("mtp."):
        names.append(f"model.{prefix}")
    return names


def _without_mtp_root(path: str) -> str:
    """The name in vLLM of a drafter module written as "model.mtp.fc"."""
    is_mtp = path == "model.mtp" or path.startswith("model.mtp.")
    return path.removeprefix("model.") if is_mtp else path


def _lengths_by_first_part(paths: Iterable[str]) -> dict[str, list[int]]:
    lengths = dict[str, set[int]]()
    for path in paths:
        parts = path.split(".")
        lengths.setdefault(parts[0], set()).add(len(parts))
    return {part: sorted(found) for part, found in lengths.items()}


def _spelled(part: str, stems: Mapping[str, str], best: _Graded) -> _Graded:
    """The better of `best` and what a stem that `part` continues makes of it."""
    for stem, entry in stems.items():
        if len(part) > len(stem) and part.startswith(stem):
            is_number = stem[-1].isdigit() and part[len(stem)].isdigit()
            grade = _Match.NUMBER if is_number else _Match.PARTIAL
            if grade > best[0]:
                best = (grade, entry)
    return best


class _Glob:
    """One ModelOpt wildcard entry whose wildcard is not at the end alone."""

    def __init__(self, entry: str, is_renamed: bool) -> None:
        self.entry = entry
        # Written for vLLM's names by now, so not to be tried against others.
        self.is_renamed = is_renamed
        self.is_stem = _is_stem(entry)
        body = entry[:-1] if self.is_stem else entry
        # Nearly all are "*body", "*body.*" or "*body*": no regex needed.
        self.text = body[1:].removesuffix("*") if body[:1] == "*" else ""
        self.raw: re.Pattern | None = None
        if not self.text or _WILDCARD.search(self.text) is not None:
            self.raw = re.compile(translate(entry))
            self.whole = re.compile(translate(body))
            self.below = re.compile(translate(f"{body}.*"))
            self.number = re.compile(translate(f"{body}[0-9]*"))

    def match(self, name: str) -> _Match:
        if self.raw is not None:
            return self._match_regex(name)
        if not self.is_stem:
            inside = self.entry[-1] == "*"
            found = self.text in name if inside else name.endswith(self.text)
            return _Match.WHOLE if found else _Match.NONE
        best = _Match.NONE
        start = name.find(self.text)
        while start >= 0:
            after = name[start + len(self.text) :][:1]
            if after in ("", "."):
                return _Match.WHOLE
            is_number = self.text[-1].isdigit() and after.isdigit()
            best = max(best, _Match.NUMBER if is_number else _Match.PARTIAL)
            start = name.find(self.text, start + 1)
        return best

    def _match_regex(self, name: str) -> _Match:
        assert self.raw is not None
        if self.raw.match(name) is None:
            return _Match.NONE
        if not self.is_stem or self.whole.match(name) or self.below.match(name):
            return _Match.WHOLE
        is_number = self.entry[-2].isdigit() and self.number.match(name)
        return _Match.NUMBER if is_number else _Match.PARTIAL


class _Compiled:
    """One exclude list, ready to be asked about unfused module names."""

    def __init__(
        self,
        syntax: Syntax,
        mapped: Sequence[str],
        original: Sequence[str] | None,
        mappers: Sequence["WeightsMapper"],
    ) -> None:
        self.mappers = mappers
        self.exact = set[str]()
        self.exact_ends = set[str]()
        self.paths = set[str]()
        # Of "a.b.c*": {"a.b": {"c": "a.b.c*"}}.
        self.stems = dict[str, dict[str, str]]()
        self.renamed = set[str]()
        self.experts = set[str]()
        self.regexes: list[re.Pattern] = []
        self.globs = list[_Glob]()
        entries = mapped if original is None else original
        if syntax == "compressed-tensors":
            for entry in dict.fromkeys((*mapped, *entries)):
                if entry.startswith("re:"):
                    self.regexes.append(re.compile(entry[3:]))
                else:
                    self.exact |= {entry, self._renamed(entry)}
            self.exact_ends = {name.rpartition(".")[2] for name in self.exact}
        else:
            for entry in dict.fromkeys(entries):
                self._add_modelopt(entry)
            for entry in mapped:
                path = entry.removesuffix(".*")
                if path not in self.renamed and _WILDCARD.search(path) is None:
                    self._add_path(path)
        self.path_lengths = _lengths_by_first_part(self.paths)
        self.single_stems = self.stems.pop("", {})
        self.stem_lengths = _lengths_by_first_part(self.stems)
        ends = {path.rpartition(".")[2] for path in self.paths}
        self.ends = tuple(ends.union(self.single_stems, *self.stems.values()))
        self.needs_checkpoint_names = bool(self.regexes or self.globs)

    def _add_modelopt(self, entry: str) -> None:
        is_stem = _is_stem(entry)
        path = entry[:-1] if is_stem else entry.removesuffix(".*")
        if _WILDCARD.search(path) is not None:
            renamed = entry
            for mapper in self.mappers:
                renamed = mapper._map_name(renamed) or renamed
            self.globs.append(_Glob(renamed, is_renamed=renamed != entry))
            return
        name = self._renamed(path)
        if name != path:
            self.renamed.add(path)
        self._add_path(name)
        if is_stem:
            parent, _, last = name.rpartition(".")
            self.stems.setdefault(parent, {})[last] = entry

    def _add_path(self, name: str) -> None:
        self.paths.add(name)
        head, experts, _ = f"{name}.".rpartition(".experts.")
        if experts:
            self.experts.add(f"{head}.experts")

    def _renamed(self, path: str) -> str:
        """`path` as vLLM names it; "model.visual" needs the dot to be mapped."""
        name = f"{path}."
        for mapper in self.mappers:
            name = mapper._map_name(name) or name
        return _without_mtp_root(name.removesuffix("."))

    def names(self, prefix: str) -> list[str]:
        """The names of `prefix` to ask about, vLLM's own first."""
        if self.needs_checkpoint_names:
            return checkpoint_names(prefix, self.mappers)
        return [prefix]

    def names_any(self, leaves: Iterable[str]) -> bool:
        """Whether an entry can reach as far as one of these last components."""
        if self.needs_checkpoint_names:
            return True
        for leaf in leaves:
            if leaf.startswith(self.ends) or leaf in self.exact_ends:
                return True
        return False

    def match(self, modules: Sequence[Sequence[str]]) -> list[_Graded]:
        """How each module, given by its names, is matched."""
        globs: Sequence[_Glob] = ()
        if self.globs:
            text = "\n".join([name for names in modules for name in names])
            globs = [g for g in self.globs if g.raw is not None or g.text in text]
        return [self._match_one(names, globs) for names in modules]

    def _match_one(self, names: Sequence[str], globs: Sequence[_Glob]) -> _Graded:
        if names[0] in self.exact:
            return _WHOLE
        best = self._match_paths(names[0]) if self.paths else _NONE
        if best[0] == _Match.WHOLE:
            return best
        if self.regexes and any(r.match(n) for r in self.regexes for n in names):
            return _WHOLE
        for glob in globs:
            for name in names[:1] if glob.is_renamed else names:
                grade = glob.match(name)
                if grade == _Match.WHOLE:
                    return _WHOLE
                if grade > best[0]:
                    best = (grade, glob.entry)
        return best

    def _match_paths(self, prefix: str) -> _Graded:
        parts = prefix.split(".")
        for start, part in enumerate(parts):
            lengths = self.path_lengths.get(part)
            if lengths is None:
                continue
            for length in lengths:
                if ".".join(parts[start : start + length]) in self.paths:
                    return _WHOLE
        best = _NONE
        if any(stem in prefix for stem in self.single_stems):
            for part in parts:
                best = _spelled(part, self.single_stems, best)
        for start, part in enumerate(parts) if self.stems else ():
            for length in self.stem_lengths.get(part, ()):
                parent = ".".join(parts[start : start + length])
                if parent in self.stems and start + length < len(parts):
                    best = _spelled(parts[start + length], self.stems[parent], best)
        return best

    def checkpoint_key(self, module: str) -> str:
        """The key under which the checkpoint holds the weight of `module`."""
        names = checkpoint_names(module, self.mappers)
        own = module.startswith("mtp.") or len(names) == 1
        return f"{names[0 if own else 1]}.weight"


class ModuleExclusions:
    """Decides which modules the exclude list of one checkpoint excludes.

    The list itself stays where it was, in the quantization config, since models
    rewrite it there; this keeps what is lost when names are mapped.
    """

    def __init__(self, syntax: Syntax) -> None:
        self.syntax: Syntax = syntax
        self._original: list[str] | None = None
        self._mapped: list[str] = []
        self._mappers: list[WeightsMapper] = []
        self._compiled: _Compiled | None = None
        self._compiled_from: list[str] = []
        self._warned = set[str]()

    def record_mapping(
        self, before: Sequence[str], after: Sequence[str], mapper: "WeightsMapper"
    ) -> None:
        """Remember the checkpoint's own entries and how they were renamed."""
        if self._original is None or list(before) != self._mapped:
            self._original = list(before)
            self._mappers = []
        if mapper not in self._mappers:
            self._mappers.append(mapper)
        self._mapped = list(after)
        self._compiled = None

    def _compile(self, entries: Sequence[str]) -> _Compiled:
        if self._compiled is None or entries != self._compiled_from:
            known = self._original is not None and list(entries) == self._mapped
            original = self._original if known else None
            mappers = self._mappers if known else []
            self._compiled = _Compiled(self.syntax, entries, original, mappers)
            self._compiled_from = list(entries)
        return self._compiled

    def is_excluded(
        self,
        entries: Sequence[str],
        prefix: str,
        fused_mapping: Mapping[str, list[str]],
        tensors: CheckpointTensors | None = None,
    ) -> bool:
        """Whether `entries` exclude the vLLM module `prefix`.

        Args:
            entries: The exclude list as the quantization config holds it now.
            prefix: Name of the module in vLLM.
            fused_mapping: Last component of a fused module to those of its shards.
            tensors: Asked where the list alone is ambiguous.

        Raises:
            ValueError: Only some shards of a fused module are excluded, and the
                tensors do not settle it.

        """
        if not entries:
            return False
        compiled = self._compile(entries)
        names = compiled.names(prefix)
        leaf = prefix.rpartition(".")[2]
        shard_leaves = fused_mapping.get(leaf, ())
        if leaf == "experts" and not shard_leaves:
            return self._are_experts_excluded(compiled, names, tensors)
        if not shard_leaves or list(shard_leaves) == [leaf]:
            own = compiled.match([names])[0]
            if own[0] in (_Match.NONE, _Match.WHOLE):
                return own[0] == _Match.WHOLE
            return self._settle(compiled, prefix, [prefix], [own], own, tensors)
        heads = [name[: len(name) - len(leaf)] for name in names]
        if compiled.names_any(shard_leaves):
            own, *matches = compiled.match(
                [names, *([head + shard for head in heads] for shard in shard_leaves)]
            )
        else:
            own = compiled.match([names])[0]
            if own[0] in (_Match.NONE, _Match.WHOLE):
                return own[0] == _Match.WHOLE
            matches = [own] * len(shard_leaves)
        shards = [f"{heads[0]}{shard}" for shard in shard_leaves]
        grades = {grade for grade, _ in matches}
        if grades == {_Match.WHOLE}:
            return True
        if grades == {_Match.NONE}:
            return own[0] == _Match.WHOLE
        if own[0] == _Match.WHOLE and prefix in compiled.paths | compiled.exact:
            return True
        return self._settle(compiled, prefix, shards, matches, own, tensors)

    def _are_experts_excluded(
        self,
        compiled: _Compiled,
        names: Sequence[str],
        tensors: CheckpointTensors | None,
    ) -> bool:
        own, *projections = compiled.match(
            [
                names,
                *([f"{n}.0.{leaf}" for n in names] for leaf in _EXPERT_PROJECTIONS),
            ]
        )
        if own[0] == _Match.WHOLE:
            return True
        prefix = names[0]
        if prefix in compiled.experts:
            stored = self._stored(compiled, [prefix], tensors)
            return stored is not True
        return all(grade == _Match.WHOLE for grade, _ in projections)

    def _stored(
        self,
        compiled: _Compiled,
        modules: Sequence[str],
        tensors: CheckpointTensors | None,
    ) -> bool | None:
        if tensors is None:
            return None
        names = [
            name
            for module in modules
            for name in checkpoint_names(module, compiled.mappers)
        ]
        return tensors.is_quantized(names)

    def _settle(
        self,
        compiled: _Compiled,
        prefix: str,
        shards: Sequence[str],
        matches: Sequence[_Graded],
        own: _Graded,
        tensors: CheckpointTensors | None,
    ) -> bool:
        """Decide a module that the list excludes only in part or by spelling."""
        stored = self._stored(compiled, shards, tensors)
        if stored is not None:
            return not stored
        grades = [grade for grade, _ in matches]
        if all(grade >= _Match.PARTIAL for grade in grades):
            return True
        if _Match.WHOLE not in grades:
            entry = next(name for _, name in matches if name is not None)
            if entry not in self._warned:
                self._warned.add(entry)
                logger.warning(
                    "Exclude entry %r also fits %s by its spelling. It is read as the "
                    "module %r and what is below it, so %s and others like it are "
                    "loaded as quantized. If that is wrong, list the modules in full.",
                    entry,
                    prefix,
                    entry[:-1],
                    prefix,
                )
            return False
        if own[0] == _Match.WHOLE:
            return True
        raise ValueError(self._partial_message(compiled, prefix, shards, grades))

    @staticmethod
    def _partial_message(
        compiled: _Compiled,
        prefix: str,
        shards: Sequence[str],
        grades: Sequence[_Match],
    ) -> str:
        excluded = [s for s, g in zip(shards, grades) if g >= _Match.PARTIAL]
        others = [s for s in shards if s not in excluded]

        def keys(modules: Sequence[str]) -> str:
            return ", ".join(compiled.checkpoint_key(m) for m in modules)

        def shard_names(modules: Sequence[str]) -> str:
            return ", ".join(m.rpartition(".")[2] for m in modules)

        return (
            f"Only some shards of the fused module {prefix} are excluded from "
            f"quantization. Excluded: {shard_names(excluded)} (checkpoint keys "
            f"{keys(excluded)}). Not excluded: {shard_names(others)} (checkpoint keys "
            f"{keys(others)}). vLLM loads them as one weight, so all must be "
            "quantized or none, and the checkpoint's tensors do not settle it. "
            "Exclude all of them or none in the checkpoint's quantization config, "
            "and export the checkpoint again if its tensors differ."
        )
