"""Drives a headless Chromium over its DevTools pipe. Needs one on the path, and no Python package.

Knows nothing of what the page under test is for.
"""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
PATIENCE_S = 20.0


class Chromium:
    """A headless browser; messages of the DevTools protocol go through a pipe, each ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        flags = ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        flags += ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]
        # The browser expects the pipe at descriptors 3 and 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "-", str(CHROMIUM), *flags],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._pending = b""
        self._ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        message: dict[str, Any] = {"id": next(self._ids), "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while (reply := self._receive(deadline)).get("id") != message["id"]:
            self.events.append(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser does not answer")
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._write)
        os.close(self._read)


class Tab:
    """One page in a browser context of its own, used as a person would: by mouse and keyboard."""

    def __init__(self, browser: Chromium, size: tuple[int, int] = (1440, 900)) -> None:
        self._browser = browser
        browser.events.clear()
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.resize(*size)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        screen = {"width": width, "height": height, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", deviceScaleFactor=2 if mobile else 1, **screen)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def wait(self, expression: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)
        return value

    def appears(self, selector: str) -> None:
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")

    def text(self, selector: str) -> str:
        found: str = self.value(f"document.querySelector({json.dumps(selector)}).textContent")
        return found

    def click(self, selector: str) -> None:
        """Clicks its middle; fails where something else lies there."""
        x, y = self.value(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "nearest"}});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                return element.contains(document.elementFromPoint(x, y)) ? [x, y] : [null, null];
            }})()"""
        )
        assert x is not None, f"{selector} cannot be clicked"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, shift: bool = False) -> None:
        codes = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
        code, text = codes[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def heard(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self._browser.events if event.get("method") == method]

    def check(self, address: str) -> None:
        """Nothing from elsewhere, no violation, no error."""
        urls = [params["request"]["url"] for params in self.heard("Network.requestWillBeSent")]
        assert urls
        assert [url for url in urls if not url.startswith(f"{address}/")] == []
        issues = [params["issue"] for params in self.heard("Audits.issueAdded")]
        assert [issue for issue in issues if issue["code"] == "ContentSecurityPolicyIssue"] == []
        assert self.heard("Runtime.exceptionThrown") == []
        entries = [params["entry"] for params in self.heard("Log.entryAdded")]
        # That an answer was refused is in the log as well: some tests ask for it.
        assert [entry for entry in entries if entry["source"] != "network"] == []

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
