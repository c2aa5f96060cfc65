"""Draw the card that social media show for a link to the docs. Needs playwright and Chromium.

python .ci/draw_card.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import browser  # noqa: E402  beside the tests

PAGE = """
<style>
  body { margin: 0; width: 1200px; height: 630px; box-sizing: border-box; padding: 88px 96px; color: #fff;
         background: #283593; font-family: "DejaVu Sans", sans-serif }
  header { display: flex; align-items: center; gap: 40px; font-size: 88px; font-weight: bold }
  header svg { width: 128px; filter: drop-shadow(0 4px 16px #0006) }
  p { font-size: 44px; line-height: 1.4; margin: 52px 0 64px }
  ol { display: flex; align-items: center; gap: 20px; list-style: none; margin: 0; padding: 0;
       font: 28px "DejaVu Sans Mono", monospace }
  li { padding: 14px 22px; border: 2px solid #fff8; border-radius: 14px }
  li + li::before { content: "→"; position: absolute; margin-left: -52px }
  li + li { margin-left: 28px }
</style>
<header>LOGO swe_gym</header>
<p>Software-engineering tasks<br>as Gymnasium environments.<br>Hidden tests decide the reward.</p>
<ol><li>reset</li><li>step</li><li>patch</li><li>counter-test</li><li>reward</li></ol>
"""

if __name__ == "__main__":
    logo = (ROOT / "docs/images/logo.svg").read_text(encoding="utf-8")
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1200, "height": 630})
        page.set_content(PAGE.replace("LOGO", logo))
        page.screenshot(path=ROOT / "docs/images/card.png")
