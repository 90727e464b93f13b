"""Labels: a pure function of facts."""

from __future__ import annotations

from dataclasses import replace

from imagebuild.images.labels import image_labels, rfc3339
from tests.support.artifacts import image_facts

BASE = "sha256:" + "0" * 64


def test_the_labels_are_the_contracts() -> None:
    assert image_labels(image_facts(BASE)) == {
        "io.github.vllm-sm120.flashinfer.version": "0.7.2.post1",
        "io.github.vllm-sm120.lock.sha256": "4" * 64,
        "io.github.vllm-sm120.patchset.names": "state-index-bounds,kv-scale-warning",
        "io.github.vllm-sm120.patchset.sha256": "3" * 64,
        "io.github.vllm-sm120.torch.version": "2.14.0",
        "io.github.vllm-sm120.upstream.revision": "0123456ab",
        "io.github.vllm-sm120.upstream.version": "1.2.3",
        "org.opencontainers.image.base.digest": BASE,
        "org.opencontainers.image.base.name": "docker.io/vllm/vllm-openai:v1.2.3",
        "org.opencontainers.image.created": "2026-11-02T10:12:56Z",
        "org.opencontainers.image.description": (
            "vLLM 1.2.3 with a typed, tested patch set for consumer Blackwell "
            "(RTX 5090, RTX PRO 6000, DGX Spark)"
        ),
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": "5" * 40,
        "org.opencontainers.image.source": "https://example.org/vllm-sm120",
        "org.opencontainers.image.title": "vLLM for SM120 and SM121",
        "org.opencontainers.image.url": "https://example.org/vllm-sm120",
        "org.opencontainers.image.vendor": "vllm-sm120",
        "org.opencontainers.image.version": "1.2.3+sm120.1",
    }


def test_a_fact_that_is_not_known_has_no_label() -> None:
    labels = image_labels(replace(image_facts(BASE), revision=None))
    assert "org.opencontainers.image.revision" not in labels


def test_architectures_are_stated_for_what_we_compile_and_for_nothing_else() -> None:
    key = "io.github.vllm-sm120.cuda.archs"
    assert key not in image_labels(image_facts(BASE))
    assert image_labels(replace(image_facts(BASE), cuda_archs="12.0;12.1"))[key] == "12.0;12.1"


def test_times_are_utc() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00Z"
