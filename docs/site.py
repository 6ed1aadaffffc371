"""Makes pages that read well on GitHub a site, too: links out of docs/ lead to copies in the site.

A link such as ``../examples/own_method.py`` names a file of the repository. The site gets each file
that is linked so, at its path in the repository (a folder as the list of its files), and links are
rewritten to lead there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dovetail import __version__

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\(|\]: )([^)\s#]+)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def site_path(path: str) -> str:
    """Where a file of the repository, or the page that lists a folder, lies in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":  # in the site's root it would pass for the first page
        return "readme.md"
    return f"{path}/files.md" if (ROOT / path).is_dir() else path


def origin(site: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if site == "readme.md":
        return "README.md"
    outside = ROOT / site.removesuffix("/files.md")
    return site if outside.exists() else f"docs/{site}"


def target(page: str, link: str) -> str | None:
    """The file of the repository that a link on a page of it leads to; None for other links."""
    if "://" in link or link.startswith(("mailto:", "#", "/")):
        return None
    path = os.path.normpath(PurePosixPath(page).parent / link)
    return path if (ROOT / path).exists() and not path.startswith("..") else None


def text_of(path: str) -> str:
    """A file's text; a folder's is a list of links to its files."""
    if not (ROOT / path).is_dir():
        return (ROOT / path).read_text()
    names = sorted(each.name for each in (ROOT / path).iterdir() if each.is_file())
    return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def linked(page: str, text: str) -> list[str]:
    """The files of the repository that a page's links lead to."""
    # What stands in a folder's list is in that folder, not beside it.
    page = f"{page}/files.md" if (ROOT / page).is_dir() else page
    links = [target(page, match[2]) for match in LINK.finditer(FENCE.sub("", text))]
    return [link for link in links if link is not None]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Say on every page which version it is of."""
    config.site_name = f"{config.site_name} {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what that links to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for path in linked(page, text_of(page)):
            if path in seen or path.startswith("docs/"):
                continue
            seen.add(path)
            if (ROOT / path).is_dir() or path.endswith(".md"):
                waiting.append(path)
                files.append(File.generated(config, site_path(path), content=text_of(path)))
            else:
                content = (ROOT / path).read_bytes()
                files.append(File.generated(config, site_path(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links of this page to where the site has the files."""
    here = origin(page.file.src_uri)
    base = f"{here}/files.md" if (ROOT / here).is_dir() else here

    def lead(match: re.Match[str]) -> str:
        path = target(base, match[2])
        if path is None:
            return match[0]
        start = PurePosixPath(page.file.src_uri).parent
        return match[1] + PurePosixPath(os.path.relpath(site_path(path), start)).as_posix()

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(each if each.startswith("```") else LINK.sub(lead, each) for each in parts)
