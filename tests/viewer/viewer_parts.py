"""A page in a real browser, and what tests ask of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

TIMEOUT = 30_000
"""Milliseconds before a wait fails, with room for a busy machine."""

NASTY = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1><svg onload=window.owned=1>"

CONTRAST = """(selector) => {
    const light = (colour) => {
        const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const behind = (node) => {
        for (let one = node; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (colour !== "rgba(0, 0, 0, 0)" && colour !== "transparent") return colour;
        }
        return "rgb(255, 255, 255)";
    };
    return [...document.querySelectorAll(selector)].map((node) => {
        const pair = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    });
}"""


class Pages:
    """Opens addresses in the tab of a module, one after another, and records their requests and console messages."""

    def __init__(self, tab: "Page") -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._tab = tab
        self._listeners: dict[Any, Any] = {
            "console": self._note,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "request": lambda request: self.asked.append(request.url),
        }
        for event, listener in self._listeners.items():
            tab.on(event, listener)

    def __call__(
        self, url: str, *, shows: str = "main section", color_scheme: Any = "light", width: int = 1280
    ) -> "Page":
        """Open an address, and wait until the page shows an element."""
        page = self._tab
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=color_scheme)
        page.goto(url)
        try:
            page.wait_for_selector(shows)
        except Exception as error:
            raise AssertionError(f"nothing is shown; {self.asked=} {self.complaints=} {page.content()}") from error
        return page

    def _note(self, message: Any) -> None:
        if "ERR_NETWORK_CHANGED" not in message.text:  # containers of other tests start and end
            self.complaints.append(message.text)

    def close(self) -> None:
        """Leave the page, so that nothing of it reaches the next test."""
        for event, listener in self._listeners.items():
            self._tab.remove_listener(event, listener)
        self._tab.goto("about:blank")


def until(page: "Page", condition: str) -> None:
    """Wait for a JavaScript condition. The page's policy forbids Playwright's `wait_for_function`."""
    page.evaluate(
        f"""new Promise((done, fail) => {{
            const look = () => (({condition}) ? done() : requestAnimationFrame(look));
            setTimeout(() => fail(new Error("never came")), {TIMEOUT});
            look();
        }})"""
    )


def until_text(page: "Page", selector: str, text: str) -> None:
    page.locator(selector, has_text=text).first.wait_for()
