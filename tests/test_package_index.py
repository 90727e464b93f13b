"""The package index that pip is configured with."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import sys
from typing import TYPE_CHECKING

import pytest

from imagebuild.errors import SourceError
from imagebuild.fetch import package_index, pip_settings
from tests.support.simple_index import JSON, Fault, Sleeps, closed_port, configure, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.simple_index import SimpleIndex

SDIST = "vllm-1.2.3.tar.gz"
WHEEL = "vllm-1.2.3-cp38-abi3-manylinux_2_28_x86_64.whl"
OLDER = "vllm-1.2.2.tar.gz"


@pytest.fixture
def index() -> Iterator[SimpleIndex]:
    with serving() as server:
        server.files = {OLDER: b"older", SDIST: b"sdist", WHEEL: b"wheel"}
        yield server


def test_a_file_comes_with_its_address_and_digest_from_the_index_in_pips_configuration_file(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {index.url}\n")
    configure(monkeypatch, config_file=str(settings))
    with package_index.configured() as opened:
        found = opened.find("vllm", SDIST)
    assert found.url == f"http://{index.host}/files/{SDIST}"
    assert found.sha256 == hashlib.sha256(b"sdist").hexdigest()
    assert not found.yanked


def test_the_environment_goes_before_pips_configuration_file(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nindex-url = {closed_port()}\n")
    configure(monkeypatch, config_file=str(settings), index_url=index.url)
    with package_index.configured() as opened:
        assert opened.find("vllm", SDIST).name == SDIST


def test_without_pip_its_environment_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, index_url="http://index.invalid/simple", default_timeout="7")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert pip_settings.read() == pip_settings.PipSettings(
        index_urls=("http://index.invalid/simple",), timeout=7.0
    )


def test_a_json_page_gives_size_and_time_of_upload_and_withdrawal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(kind=JSON) as index:
        index.files = {SDIST: b"sdist"}
        index.yanked = {SDIST}
        configure(monkeypatch, index_url=index.url)
        with package_index.configured() as opened:
            (found,) = opened.release_files("vllm", "1.2.3")
    assert found.size == 5
    assert found.uploaded == dt.datetime(2026, 11, 2, 10, 12, 56, tzinfo=dt.UTC)
    assert found.yanked


def test_a_release_is_its_sdist_and_its_wheels(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, index_url=index.url)
    with package_index.configured() as opened:
        found = opened.release_files("vllm", "1.2.3")
    assert [file.name for file in found] == [SDIST, WHEEL]


def test_an_extra_index_is_asked_for_what_the_first_does_not_have(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as first:
        first.files = {OLDER: b"older"}
        configure(monkeypatch, index_url=first.url, extra_index_url=index.url)
        with package_index.configured() as opened:
            assert opened.find("vllm", SDIST).url.startswith(f"http://{index.host}/")
        assert first.asked


def test_an_index_that_states_the_pinned_digest_goes_before_one_that_states_another(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as first:
        first.files = {SDIST: b"something else of that name"}
        configure(monkeypatch, index_url=first.url, extra_index_url=index.url)
        pinned = hashlib.sha256(b"sdist").hexdigest()
        with package_index.configured() as opened:
            assert opened.find("vllm", SDIST).url.startswith(f"http://{first.host}/")
            assert opened.find("vllm", SDIST, pinned).url.startswith(f"http://{index.host}/")


def test_an_index_in_a_folder_is_asked_first_and_may_lack_the_project(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has, lacks = tmp_path / "has" / "simple", tmp_path / "lacks" / "simple"
    (has / "vllm").mkdir(parents=True)
    lacks.mkdir(parents=True)
    (has / "vllm" / "index.html").write_text(f'<a href="../../files/{OLDER}">{OLDER}</a>')
    configure(monkeypatch, index_url=index.url, extra_index_url=f"{lacks.as_uri()} {has.as_uri()}")
    with package_index.configured() as opened:
        assert opened.find("vllm", OLDER).url == (tmp_path / "has/files" / OLDER).as_uri()
        assert not index.asked
        assert opened.find("vllm", SDIST).url.startswith("http:")


def test_with_no_index_only_the_folders_of_find_links_count(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / SDIST).write_bytes(b"sdist")
    configure(monkeypatch, index_url=index.url, no_index="1", find_links=str(tmp_path))
    with package_index.configured() as opened:
        assert opened.find("vllm", SDIST).url == (tmp_path / SDIST).as_uri()
        with pytest.raises(SourceError):
            opened.find("vllm", WHEEL)
    assert not index.asked


def test_an_index_without_the_file_is_an_error_that_names_what_is_there(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, index_url=index.url)
    with package_index.configured() as opened, pytest.raises(SourceError) as caught:
        opened.find("vllm", "vllm-1.2.4.tar.gz")
    assert caught.value.expected == "vllm-1.2.4.tar.gz"
    assert SDIST in str(caught.value.found)
    assert index.url in str(caught.value.file)
    assert caught.value.next_command == "python -m pip config list"


def test_an_index_without_the_project_is_an_error(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, index_url=index.url)
    with package_index.configured() as opened, pytest.raises(SourceError, match="project llvm"):
        opened.release_files("llvm", "1.0")


def test_no_network_is_an_error_after_a_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    address, sleeps = closed_port(), Sleeps()
    configure(monkeypatch, index_url=address)
    with (
        package_index.configured(sleeps.patience()) as opened,
        pytest.raises(SourceError, match="no network") as caught,
    ):
        opened.find("vllm", SDIST)
    assert caught.value.found == "Connection refused"
    assert caught.value.file == f"{address}vllm/"
    assert sleeps == [0.5, 1.0]


def test_a_busy_index_is_asked_again_after_the_time_it_names(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = Sleeps()
    index.page_faults = [Fault(status=429, headers={"Retry-After": "7"}), Fault(status=503)]
    configure(monkeypatch, index_url=index.url)
    with package_index.configured(sleeps.patience()) as opened:
        assert opened.find("vllm", SDIST).name == SDIST
    assert sleeps == [7.0, 1.0]


def test_an_index_that_names_a_very_long_time_is_not_waited_for(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = Sleeps()
    index.page_faults = [Fault(status=429, headers={"Retry-After": "86400"})]
    configure(monkeypatch, index_url=index.url)
    with (
        package_index.configured(sleeps.patience()) as opened,
        pytest.raises(SourceError) as caught,
    ):
        opened.find("vllm", SDIST)
    assert "86400 s" in str(caught.value.found)
    assert sleeps == []


@pytest.mark.parametrize(("kind", "page"), [("image/png", b"\x89PNG"), (JSON, b"{")])
def test_an_index_that_answers_with_something_else_is_an_error(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, kind: str, page: bytes
) -> None:
    index.kind, index.page = kind, page
    configure(monkeypatch, index_url=index.url)
    with package_index.configured() as opened, pytest.raises(SourceError, match="something else"):
        opened.find("vllm", SDIST)


def test_an_index_that_refuses_is_an_error_that_shows_its_status(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.page_faults = [Fault(status=403)]
    configure(monkeypatch, index_url=index.url)
    with package_index.configured() as opened, pytest.raises(SourceError) as caught:
        opened.find("vllm", SDIST)
    assert caught.value.found == "HTTP 403"


def test_credentials_in_the_address_reach_the_index_and_no_message(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, index_url=index.url.replace("//", "//someone:s%40cret@"))
    with package_index.configured() as opened:
        found = opened.find("vllm", SDIST)
        with pytest.raises(SourceError) as caught:
            opened.find("vllm", "vllm-9.tar.gz")
    assert basic(index) == "someone:s@cret"
    assert "cret" not in f"{found} {caught.value.diagnostics()} {caught.value.facts()}"


def test_credentials_come_from_the_users_netrc_too(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, index_url=index.url)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with package_index.configured() as opened:
        opened.find("vllm", SDIST)
    assert basic(index) == "someone:secret"


def basic(index: SimpleIndex) -> str:
    scheme, _, encoded = index.asked[-1].headers["Authorization"].partition(" ")
    assert scheme == "Basic"
    return base64.b64decode(encoded).decode()


def test_settings_of_the_commands_go_before_global_ones_and_unknown_ones_are_left_out() -> None:
    listing = """\
global.index-url='http://global.invalid/simple'
install.index-url='http://install.invalid/simple'
wheel.index-url='http://wheel.invalid/simple'
global.timeout='not a number'
global.cert='/a/bundle.pem'
download.extra-index-url='\\nhttp://a.invalid\\nhttp://b.invalid'
a line of no form
"""
    assert pip_settings.parse(listing) == pip_settings.PipSettings(
        index_urls=("http://install.invalid/simple", "http://a.invalid", "http://b.invalid"),
        cert="/a/bundle.pem",
        timeout=15.0,
    )


def test_where_pip_names_no_index_its_own_default_counts() -> None:
    import pypi_simple  # noqa: PLC0415

    with package_index.PackageIndex(pip_settings.parse("")) as opened:
        assert opened.bases == [pypi_simple.PYPI_SIMPLE_ENDPOINT]
