"""A browser for tests of pages: the Chromium that the system has, without a window."""

import contextlib
import os
import shutil

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAPTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextlib.contextmanager
def chromium():
    """Starts the browser; skips the test where there is none, fails it under CI."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        missing = "no Chromium is installed: see CONTRIBUTING.md"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox does not start as root, nor in many containers.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


class Watched:
    """A page, and what it should not do.

    Args:
        page: The page.
        home: What the addresses begin with that it may ask for.

    Attributes:
        page: As given.
        asked: Addresses that it asked for below `home`.
        faults: Messages of its console, errors of its scripts, and requests elsewhere.
    """

    def __init__(self, page, home):
        self.page, self.home = page, home
        self.asked = []
        self.faults = []
        page.on("console", lambda message: self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.set_default_timeout(60_000)

    def _dialog(self, dialog):
        self.faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request):
        if request.url.startswith(self.home):
            self.asked.append(request.url.removeprefix(self.home))
        elif not request.url.startswith("data:"):
            self.faults.append(f"a request of {request.url}")

    def go(self, hash_):
        """Goes to a place of the page, and waits until all of it is there."""
        if self.page.url.startswith(self.home):
            self.page.evaluate("hash => { location.hash = hash }", hash_)
        else:
            self.page.goto(self.home + hash_)
        self.settle()

    def arrive(self, pattern):
        """Waits until the page is at an address, and shows what it says."""
        self.page.wait_for_url(pattern)
        self.settle()

    def settle(self):
        """Waits until the page shows what its address says."""
        self.page.wait_for_function(
            """() => document.querySelector("main").dataset.shown === location.hash"""
        )

    def tab_to(self, text):
        """Goes on with the key Tab to what begins with a text, as without a mouse."""
        for _ in range(100):
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate("document.activeElement.textContent")
            if focused.startswith(text):
                return
        raise AssertionError(f"Tab does not reach {text!r}")

    def text(self, selector="main"):
        """Returns what a part of the page says."""
        return self.page.inner_text(selector)
