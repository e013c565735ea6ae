"""Gather the pages of the documentation site: `make docs` runs this before the site generator.

The site has the folders of the repository, so that links between pages work in both. Files that a page links to come
along, with `.txt` appended where a browser would not show them. `llms.txt` lists the pages for language models.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
MERMAID = ROOT / "build/mermaid/package/dist/mermaid.min.js"
"""Draws the diagrams. A page that has some loads it from the site; the theme would load it from elsewhere."""
SCRIPT = Path("assets/mermaid.min.js")
API = (
    "apc_agents",
    "apc_client",
    "apc_minds.llm",
    "apc_minds.pydantic_ai",
    "apc_minds.tools",
    "apc_contracts",
    "apc_bus",
    "apc_log.queries",
)
LEFT_OUT = {".github", "tests"}
IMAGES = {".png", ".svg"}
LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]+)?(\))")


def pages() -> list[Path]:
    """Return the Markdown files of the repository that belong on the site."""
    run = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(name) for name in run.stdout.splitlines()]
    return [file for file in files if file.parts[0] not in LEFT_OUT and (ROOT / file).is_file()]


def gather() -> None:
    """Write the sources of the site again."""
    shutil.rmtree(SITE, ignore_errors=True)
    found = pages()
    for page in found:
        _write(page, with_script(page, page_of_the_site(page, set(found))))
    (SITE / SCRIPT).parent.mkdir()
    shutil.copyfile(MERMAID, SITE / SCRIPT)
    for package in API:
        _write(Path("api") / f"{package}.md", f"# {package}\n\n::: {package}\n")
    _write(Path("llms.txt"), index_for_models(found))


def index_for_models(found: list[Path]) -> str:
    """Return `llms.txt`: every page with the first sentence of its text."""
    lines = [
        "# apc-bus",
        "",
        f"> {_first_sentence((ROOT / 'README.md').read_text(encoding='utf-8'))}",
        "",
        "## Pages",
        "",
    ]
    for page in found:
        text = (ROOT / page).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        lines.append(f"- [{title[1] if title else page}]({page}): {_first_sentence(text)}")
    return "\n".join(lines) + "\n"


def with_script(page: Path, text: str) -> str:
    """Return the text of a page that loads the script for diagrams, if it has diagrams."""
    if "```mermaid" not in text:
        return text
    return f'{text}\n<script src="{"../" * (len(page.parts) - 1)}{SCRIPT}"></script>\n'


def _write(page: Path, text: str) -> None:
    target = SITE / page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def page_of_the_site(page: Path, known: set[Path]) -> str:
    """Return the text of a page with links as the site needs them; what they lead to and is no page comes along."""

    def rewritten(link: re.Match[str]) -> str:
        target = (ROOT / page).parent.joinpath(link[2]).resolve().relative_to(ROOT)
        if target in known:
            return link[0]
        if (ROOT / target).is_dir():
            readme = target / "README.md"
            return f"{link[1]}{link[2].rstrip('/')}/README.md{link[4]}" if readme in known else f"{link[1]}#{link[4]}"
        end = "" if target.suffix in IMAGES else ".txt"
        copied = SITE / f"{target}{end}"
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / target, copied)
        return f"{link[1]}{link[2]}{end}{link[4]}"

    return LINK.sub(rewritten, (ROOT / page).read_text(encoding="utf-8"))


def _first_sentence(text: str) -> str:
    return next(_sentences(text), "")


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n"):
        plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).split())
        if plain and not plain.startswith(("#", "|", "<!--", "-")):
            yield re.split(r"(?<=[.:]) ", plain)[0]


if __name__ == "__main__":
    gather()
