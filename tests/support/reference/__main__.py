"""Write every generated table into its page."""

from tests.support.reference.pages import filled, pages_with_tables

for page in pages_with_tables():
    text = filled(page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
