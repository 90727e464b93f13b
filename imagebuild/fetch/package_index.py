"""The package index that pip is configured with: which files a release has, and where they are.

No index is named here: the addresses come from pip's configuration, and pip's default index from
the library that reads it. Hashes that an index states are hints for a better message; what counts
is the pin.
"""

from __future__ import annotations

import datetime as dt
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urljoin, urlsplit

from imagebuild.digest import Sha256, parse_sha256
from imagebuild.errors import SourceError
from imagebuild.fetch import pip_settings, transport
from imagebuild.fetch.transport import Patience, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import requests
    from pypi_simple import DistributionPackage, ProjectPage

    from imagebuild.fetch.pip_settings import PipSettings

NEXT = "python -m pip config list"


@dataclass(frozen=True)
class IndexFile:
    """One file that an index offers.

    Attributes:
        name: its file name.
        url: where its bytes are, `http(s):` or `file:`; without credentials.
        sha256: the digest that the index states, or None.
        size: its size in bytes, as the index states it, or None.
        uploaded: when it was uploaded (UTC), or None.
        yanked: whether its release was withdrawn.
    """

    name: str
    url: str
    sha256: Sha256 | None = None
    size: int | None = None
    uploaded: dt.datetime | None = None
    yanked: bool = False


class PackageIndex:
    """The indexes of pip's configuration, in pip's order, local ones first.

    A context manager; its HTTP connections live as long as it is open.
    """

    def __init__(self, settings: PipSettings, patience: Patience = Patience()) -> None:  # noqa: B008
        """Prepare to read the indexes of `settings`; nothing is read yet."""
        import pypi_simple  # noqa: PLC0415  (kept out of start-up)
        import requests  # noqa: PLC0415

        default = pypi_simple.PYPI_SIMPLE_ENDPOINT
        urls = [default if url is None else url for url in settings.index_urls]
        self._accounts: dict[str, tuple[str, str]] = {}
        for url in urls:
            account = requests.utils.get_auth_from_url(url)
            if any(account):
                self._accounts[_host(url)] = account
        self.bases = sorted(map(_bare, urls), key=lambda url: not url.startswith("file:"))
        self.timeout = settings.timeout
        self.patience = patience
        self._links = [path for link in settings.find_links if (path := _folder(link))]
        self._pages: dict[tuple[str, str], tuple[IndexFile, ...] | None] = {}
        self.session = requests.Session()
        self.session.headers["User-Agent"] = "vllm-sm120"
        self.session.auth = self._authorise
        if settings.cert:
            self.session.verify = settings.cert
        self.session.cert = settings.client_cert
        if settings.proxy:
            self.session.proxies = {"http": settings.proxy, "https": settings.proxy}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close()

    def release_files(self, project: str, version: str) -> tuple[IndexFile, ...]:
        """Return the files of one release, from the first index that has any.

        Raises:
            SourceError: if no index answers, or none has the project or the release.
        """
        from packaging.version import Version  # noqa: PLC0415  (kept out of start-up)

        failures: list[SourceError] = []
        seen: list[IndexFile] = []
        for files in self._every(project, failures):
            wanted = tuple(file for file in files if _version(file.name) == Version(version))
            if wanted:
                return wanted
            seen += files
        raise self._missing(project, f"{project}-{version}.tar.gz", seen, failures)

    def every_file(self, project: str) -> dict[str, IndexFile]:
        """Return all files of a project by name; SourceError if any index fails or none has it."""
        failures: list[SourceError] = []
        pages = list(self._every(project, failures))
        if failures or not any(pages):
            raise self._missing(project, project, [], failures)
        return {file.name: file for page in reversed(pages) for file in page}

    def find(self, project: str, filename: str, sha256: str | None = None) -> IndexFile:
        """Return the file of that name from the first index that offers it.

        Args:
            project: the project that the file belongs to.
            filename: the file's whole name.
            sha256: the digest it should have; an index that states it goes before one that does
                not.

        Raises:
            SourceError: if no index answers, or none has the project or the file.
        """
        failures: list[SourceError] = []
        seen: list[IndexFile] = []
        for files in self._every(project, failures):
            seen += files
            for file in files:
                if file.name == filename and sha256 in {None, file.sha256}:
                    return file
        named = next((file for file in seen if file.name == filename), None)
        if named is None:
            raise self._missing(project, filename, seen, failures)
        return named

    def _missing(
        self, project: str, name: str, seen: list[IndexFile], failures: list[SourceError]
    ) -> SourceError:
        """Return the error for a file that no index has: the first index that failed, if any."""
        if failures:
            return failures[0]
        names = [file.name for file in seen]
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[-3:]
        return SourceError(
            f"the package index does not have {name if names else f'the project {project}'}",
            file=", ".join(map(redacted, self.bases)) or "no index (pip's no-index is set)",
            expected=name,
            found=f"{len(names)} other files, such as {', '.join(close)}" if names else "nothing",
            next_command=NEXT,
        )

    def _every(self, project: str, failures: list[SourceError]) -> Iterator[tuple[IndexFile, ...]]:
        """Yield what each index has of the project; an index that fails is left out and noted."""
        for folder in self._links:
            yield tuple(
                IndexFile(path.name, path.as_uri())
                for path in sorted(folder.glob(f"{project.replace('-', '_')}-*"))
            )
        for base in self.bases:
            try:
                files = self._page(base, project)
            except SourceError as error:
                failures.append(error)
            else:
                if files is not None:
                    yield files

    def _page(self, base: str, project: str) -> tuple[IndexFile, ...] | None:
        if (base, project) not in self._pages:
            self._pages[base, project] = self._read_page(base, project)
        return self._pages[base, project]

    def _read_page(self, base: str, project: str) -> tuple[IndexFile, ...] | None:
        import pypi_simple  # noqa: PLC0415  (kept out of start-up)
        from packaging.utils import canonicalize_name  # noqa: PLC0415

        url = urljoin(base, f"{canonicalize_name(project)}/")
        try:
            page = (
                _local_page(url, project) if url.startswith("file:") else self._http(url, project)
            )
        except (
            pypi_simple.UnsupportedContentTypeError,
            pypi_simple.UnsupportedRepoVersionError,
            ValueError,
        ) as error:
            raise SourceError(
                "the package index answers with something else than a project's page",
                file=redacted(url),
                expected="a page of the simple repository API",
                found=type(error).__name__,
                next_command=NEXT,
            ) from error
        return None if page is None else tuple(map(_index_file, page.packages))

    def _http(self, url: str, project: str) -> ProjectPage | None:
        import pypi_simple  # noqa: PLC0415  (kept out of start-up)

        headers = {"Accept": pypi_simple.ACCEPT_ANY}

        def once() -> requests.Response:
            return transport.get(self.session, url, timeout=self.timeout, headers=headers)

        response = transport.attempt(once, url, self.patience, NEXT)
        if response.status_code == 404:  # noqa: PLR2004
            return None
        if not response.ok:
            raise SourceError(
                "the package index refuses to answer",
                file=redacted(url),
                expected="HTTP 200",
                found=f"HTTP {response.status_code}",
                next_command=NEXT,
            )
        return pypi_simple.ProjectPage.from_response(response, project)

    def _authorise(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the credentials that the configuration or the user's netrc has for the host."""
        import requests  # noqa: PLC0415  (kept out of start-up)

        url = request.url or ""
        account = self._accounts.get(_host(url)) or requests.utils.get_netrc_auth(url)
        return requests.auth.HTTPBasicAuth(*account)(request) if account else request


def configured(patience: Patience = Patience()) -> PackageIndex:  # noqa: B008
    """Return the indexes that pip is configured with on this machine."""
    return PackageIndex(pip_settings.read(), patience)


def _index_file(package: DistributionPackage) -> IndexFile:
    stated = package.digests.get("sha256", "").lower()
    try:
        sha256 = parse_sha256(stated)
    except ValueError:
        sha256 = None
    return IndexFile(
        package.filename,
        _bare(package.url, folder=False),
        sha256,
        package.size,
        package.upload_time and package.upload_time.astimezone(dt.UTC),
        package.is_yanked,
    )


def _local_page(url: str, project: str) -> ProjectPage | None:
    import pypi_simple  # noqa: PLC0415  (kept out of start-up)

    path = Path(unquote(urlsplit(url).path)) / "index.html"
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return pypi_simple.ProjectPage.from_html(project, content, base_url=url)


def _version(filename: str) -> object:
    """Return the version in a file's name, or None."""
    from packaging.utils import (  # noqa: PLC0415  (kept out of start-up)
        InvalidSdistFilename,
        InvalidWheelFilename,
        parse_sdist_filename,
        parse_wheel_filename,
    )

    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


def _bare(url: str, *, folder: bool = True) -> str:
    """Return `url` without user and password; a folder's ends in a slash."""
    parts = urlsplit(url)
    if not parts.scheme:
        parts = urlsplit(Path(url).absolute().as_uri())
    path = parts.path.rstrip("/") + "/" if folder else parts.path
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path, fragment="").geturl()


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def _folder(link: str) -> Path | None:
    path = Path(unquote(urlsplit(link).path)) if link.startswith("file:") else Path(link)
    return path if "://" not in str(path) and path.is_dir() else None
