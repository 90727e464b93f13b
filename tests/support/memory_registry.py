"""A registry in memory whose every answer a test can replace: for faults that no real one shows.

What it does right is what the OCI distribution spec 1.1 asks for; the real registry stands in
test_push.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from imagebuild.digest import sha256_bytes
from imagebuild.images.oci import INDEX
from tests.support.scripted_registry import Answer, Request, ScriptedRegistry

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.baseimage import BaseImage


@dataclass
class MemoryRegistry:
    """Holds blobs and manifests by repository.

    Attributes:
        fault: asked first; an answer of its own goes out instead of the right one.
        referrers: whether the referrers API is there.
        mounts: whether blobs are mounted from other repositories.
        blobs: by repository and digest.
        manifests: by repository, and digest or tag.
        asked: every request, in order.
    """

    fault: Callable[[Request], Answer | None] = lambda _: None
    referrers: bool = False
    mounts: bool = True
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    _uploads: dict[str, bytes] = field(default_factory=dict)

    def serve(self) -> ScriptedRegistry:
        """Return the server."""
        return ScriptedRegistry(self.answer)

    def hold(self, base: BaseImage, name: str) -> None:
        """Take over every blob of a layout, as manifest and as blob."""
        for path in (base.root / "blobs" / "sha256").iterdir():
            data = path.read_bytes()
            self.blobs[name, f"sha256:{path.name}"] = data
            kind = re.search(rb'"mediaType":"([^"]+(?:index|manifest)[^"]+)","', data)
            self.manifests[name, f"sha256:{path.name}"] = (data, kind[1].decode() if kind else "")

    def tags(self, name: str) -> list[str]:
        """Return the tags of a repository."""
        return [ref for repo, ref in self.manifests if repo == name and ":" not in ref]

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request."""
        self.asked.append(request)
        own = self.fault(request)
        if own is not None:
            return own
        parts = urlsplit(request.path)
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs/uploads|blobs|referrers)/(.*)", parts.path)
        if match is None:
            return Answer(404)
        name, kind, rest = match.groups()
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if kind == "blobs/uploads":
            return self._upload(request, name, rest, query)
        if kind == "blobs":
            data = self.blobs.get((name, rest))
            return Answer(404) if data is None else Answer(200, data)
        if kind == "manifests":
            return self._manifest(request, name, rest)
        return self._referrers(name, rest) if self.referrers else Answer(404)

    def _referrers(self, name: str, digest: str) -> Answer:
        found = []
        for (repository, ref), (data, kind) in self.manifests.items():
            document = json.loads(data)
            about = (document.get("subject") or {}).get("digest")
            if repository == name and ref.startswith("sha256:") and about == digest:
                entry = {"mediaType": kind, "digest": ref, "size": len(data)}
                found.append(entry | {"artifactType": document["artifactType"]})
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}
        return Answer(200, json.dumps(index).encode())

    def _manifest(self, request: Request, name: str, ref: str) -> Answer:
        if request.method == "PUT":
            digest = f"sha256:{sha256_bytes(request.body)}"
            entry = (request.body, request.content_type or "")
            self.manifests[name, digest] = self.manifests[name, ref] = entry
            head = {"OCI-Subject": "yes"} if self.referrers and b'"subject"' in request.body else {}
            return Answer(201, headers={"Docker-Content-Digest": digest, **head})
        found = self.manifests.get((name, ref))
        return Answer(404) if found is None else Answer(200, found[0])

    def _upload(self, request: Request, name: str, rest: str, query: dict[str, str]) -> Answer:
        if request.method == "POST":
            known = self.blobs.get((query.get("from", ""), query.get("mount", "")))
            if known is not None and self.mounts:
                self.blobs[name, query["mount"]] = known
                return Answer(201)
            session = f"u{len(self._uploads)}"
            self._uploads[session] = b""
            return Answer(202, headers={"Location": f"/v2/{name}/blobs/uploads/{session}"})
        here = {"Location": f"/v2/{name}/blobs/uploads/{rest}"}
        if rest not in self._uploads:
            return Answer(404)
        if request.method == "PATCH":
            self._uploads[rest] += request.body
        size = len(self._uploads[rest])
        if request.method == "PUT":
            data = self._uploads[rest] + request.body
            if query["digest"] != f"sha256:{sha256_bytes(data)}":
                return Answer(400)
            self.blobs[name, query["digest"]] = data
            return Answer(201)
        here["Range"] = f"0-{max(size - 1, 0)}"
        return Answer(202 if request.method == "PATCH" else 204, headers=here)
