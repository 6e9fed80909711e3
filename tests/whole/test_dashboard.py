"""The dashboard in a real browser: it loads, follows, explains, survives a restart, and everybody can use it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from loadtest.fleet import NginxProcess, RouterProcess, find_nginx
from loadtest.simworker import SimConfig
from loadtest.simworker.process import SimProcess, start_workers
from tests.whole.conftest import QUICK_HEALTH, require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODEL = "sim-model"
# A name that would do harm if it ever got into the page as markup.
HOSTILE = "<img src=x onerror=alert(1)>"
KEY = "open-sesame"
PHONE = {"width": 390, "height": 844}
PROMPT = "A beginning that is longer than a block of the map, told again and again. " * 40
CONFIG = SimConfig(
    models=(MODEL, HOSTILE),
    prefill_tokens_per_second=200_000.0,
    decode_seconds_per_token=0.0005,
    enable_prompt_tokens_details=True,
)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with start_workers(2, CONFIG) as fleet:
        yield [worker.url for worker in fleet]


@contextmanager
def replica(directory: Path, workers: list[str], **environment: str) -> Iterator[RouterProcess]:
    """One replica that ends quickly."""
    quick = {**QUICK_HEALTH, "ROUTER_TIMEOUTS__DRAIN_DELAY": "0.05", **environment}
    with RouterProcess(directory, workers, environment=quick) as router:
        httpx.get(f"{router.url}/health", trust_env=False).raise_for_status()
        yield router


@pytest.fixture(scope="module")
def router(workers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with replica(tmp_path_factory.mktemp("dashboard"), workers) as started:
        started.wait_ready(2)
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    require(binary, "chromium")
    require("playwright" if importlib.util.find_spec("playwright") else None, "playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        # Containers give the browser's own sandbox no name spaces, and it sees nothing but this page.
        chromium = play.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page, and everything that went wrong in it."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(45_000)
        self.errors: list[str] = []
        self.page.on("console", lambda message: self.errors.extend([message.text] * (message.type == "error")))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.goto(f"{url}/router/dashboard")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def shown(self) -> Page:
        """The page, once it shows data."""
        self.page.locator("#board").wait_for()
        return self.page


def ask(router: RouterProcess, request_id: str, *, model: str = MODEL, text: str = PROMPT) -> str:
    """One request; the worker that answered."""
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(
        f"{router.url}/v1/chat/completions", json=body, headers={"x-request-id": request_id}, trust_env=False
    )
    answer.raise_for_status()
    return answer.headers["x-router-worker"]


def test_it_loads_and_shows_the_fleet(browser: Browser, router: RouterProcess) -> None:
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        page.locator("#status", has_text="serving").wait_for()
        assert page.locator("#fleet tr").count() == 2
        assert page.locator("#fleet .pill", has_text="ready").count() == 2
        assert page.locator("#findings li").count() >= 1
        assert page.title() == "prefix-router"
        assert visit.errors == []


def test_it_says_how_much_a_worker_holds_since_when_and_who_says_so(browser: Browser, router: RouterProcess) -> None:
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        heads = page.locator("#fleet-head th").all_inner_texts()
        row = page.locator("#fleet tr").first.locator("td")
        assert row.nth(heads.index("Cache holds")).inner_text().endswith("tokens\nas declared")
        assert row.nth(heads.index("Cache since")).inner_text().endswith("s\nits start")
        sources = page.locator("#sources")
        assert not sources.locator("dl").is_visible()
        page.get_by_text("Where these figures come from").click()
        sources.locator("dl").wait_for()
        named = sources.locator("dt").all_inner_texts()
        assert [name for name in named if not any(head.startswith(name) for head in heads)] == []
        assert visit.errors == []


def test_a_capacity_that_was_learned_and_a_cache_that_was_found_empty_are_told(
    browser: Browser, router: RouterProcess
) -> None:
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        said = page.evaluate(
            """() => {
              const cells = (worker) => [holds(worker), since(worker)].map((parts) =>
                [parts].flat().map((part) => part instanceof Node ? part.textContent : part).filter(Boolean));
              const cache = { capacity_tokens: 131072, learned_capacity_tokens: 98000 };
              const life = { epoch: 1, epoch_age_seconds: 60, epoch_from: "emptied", emptied: 1 };
              const unsaid = { capacity_tokens: null, learned_capacity_tokens: null };
              return [
                cells({ cache, ...life }),
                cells({ cache: { ...cache, capacity_tokens: null }, ...life, emptied: 2 }),
                cells({ cache: unsaid, ...life, epoch_from: "seen" }),
                cells({ cache: unsaid, ...life, epoch: null, epoch_from: null, emptied: 0 }),
              ];
            }"""
        )
        assert said == [
            [["98.0 k tokens", "learned, not 131 k"], ["60 s", "found empty"]],
            [["98.0 k tokens", "learned"], ["60 s", "found empty, emptied 2×"]],
            [["–"], ["60 s", "it was seen, emptied 1×"]],
            [["–"], ["unknown"]],
        ]


def test_of_a_large_fleet_it_shows_a_part_and_all_on_request(browser: Browser, tmp_path: Path) -> None:
    with SimProcess(CONFIG, count=14) as fleet, replica(tmp_path, fleet.urls) as router:
        router.wait_ready(14)
        with Visit(browser, router.url) as visit:
            page = visit.shown()
            button = page.get_by_role("button", name="Show all 14 workers")
            button.wait_for()
            assert page.locator("#fleet tr").count() == 12
            button.click()
            page.get_by_role("button", name="Show 12 of them").wait_for()
            assert page.locator("#fleet tr").count() == 14
            assert visit.errors == []


def test_it_follows_without_being_asked(browser: Browser, router: RouterProcess) -> None:
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        ask(router, "followed-1")
        page.get_by_role("button", name="Explain decision followed-1").wait_for()
        # The rows of the history come every few seconds.
        page.locator("#chart rect.hit, #chart rect.miss, #chart rect.short").first.wait_for()
        assert visit.errors == []


def test_a_click_explains_a_decision(browser: Browser, router: RouterProcess) -> None:
    ask(router, "explained-1", text="Explained. " + PROMPT)
    worker = ask(router, "explained-2", text="Explained. " + PROMPT)
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        page.get_by_role("button", name="Explain decision explained-2").click()
        dialog = page.get_by_role("dialog")
        dialog.wait_for()
        assert "hit" in dialog.locator("h2").inner_text()
        candidates = dialog.get_by_role("table", name="Candidates of this decision").locator("tbody tr")
        assert candidates.count() == 2
        chosen = dialog.locator("tr.chosen")
        assert worker in chosen.inner_text()
        assert "chosen" in chosen.inner_text()
        said = dialog.locator("#because li").all_inner_texts()
        assert any("to compute" in sentence or "could resume" in sentence for sentence in said)
        assert any(sentence.startswith("The engine reported") for sentence in said)
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert visit.errors == []


def test_under_policy_work_the_parts_of_the_score_are_shown(
    browser: Browser, workers: list[str], tmp_path: Path
) -> None:
    with replica(tmp_path, workers, ROUTER_POLICY__NAME="work") as router, Visit(browser, router.url) as visit:
        router.wait_ready(2)
        page = visit.shown()
        ask(router, "scored-1", text="Scored. " + PROMPT)
        page.get_by_role("button", name="Explain decision scored-1").click()
        dialog = page.get_by_role("dialog")
        dialog.locator("tr.chosen").wait_for()
        heads = dialog.locator("th").all_inner_texts()
        assert heads[-5:] == ["queued", "uncached", "decoding", "score", "Verdict"]
        cells = dialog.locator("tr.chosen td").all_inner_texts()
        assert int(cells[heads.index("score")].replace(",", "")) > 0
        assert visit.errors == []


def test_it_survives_a_restart_of_the_router(browser: Browser, workers: list[str], tmp_path: Path) -> None:
    with replica(tmp_path, workers) as router, Visit(browser, router.url) as visit:
        page = visit.shown()
        before = page.locator("#about").inner_text()
        assert visit.errors == []
        router.stop()
        page.locator("#board.stale").wait_for(state="attached")
        router.start()
        router.wait_ready(2)
        page.locator("#board:not(.stale)").wait_for()
        ask(router, "after-the-restart")
        page.get_by_role("button", name="Explain decision after-the-restart").wait_for()
        assert page.locator("#about").inner_text() != before
        # The browser itself writes down that nobody answered for a while; nothing else went wrong.
        assert [error for error in visit.errors if not error.startswith("Failed to load resource")] == []


def test_listening_does_not_keep_a_replica_from_ending(browser: Browser, workers: list[str], tmp_path: Path) -> None:
    # A drain would wait two minutes for requests in flight.
    with replica(tmp_path, workers) as router, Visit(browser, router.url) as visit:
        visit.shown()
        router.signal(signal.SIGTERM)
        assert router.wait(20) == 0


def test_behind_a_balancer_the_replica_that_decided_is_found(
    browser: Browser, workers: list[str], tmp_path: Path
) -> None:
    require(find_nginx(), "nginx")
    with ExitStack() as stack:
        routers = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            routers.append(stack.enter_context(replica(tmp_path / name, workers)))
            routers[-1].wait_ready(2)
        nginx = stack.enter_context(NginxProcess(tmp_path, [router.port for router in routers]))
        visit = stack.enter_context(Visit(browser, nginx.url))
        page = visit.shown()
        for number, router in enumerate(routers):
            for again in range(3):
                ask(router, f"balanced-{number}-{again}")
        # The page listens to one of them, and asks whichever it meets about a decision.
        rows = page.get_by_role("button", name="Explain decision balanced")
        rows.nth(2).wait_for()
        for row in range(3):
            rows.nth(row).click()
            page.get_by_role("dialog").locator("tr.chosen").wait_for()
            assert page.get_by_role("dialog").locator("#candidates tr").count() == 2
            page.keyboard.press("Escape")
        assert visit.errors == []


def test_it_asks_for_the_key_where_one_is_needed(browser: Browser, workers: list[str], tmp_path: Path) -> None:
    with replica(tmp_path, workers, ROUTER_AUTH__ADMIN_KEY=KEY) as router, Visit(browser, router.url) as visit:
        page = visit.page
        key = page.get_by_label("Admin key")
        key.wait_for()
        assert visit.errors == [], "nothing is asked for before there is a key"
        key.fill("wrong")
        page.get_by_role("button", name="Show the dashboard").click()
        page.get_by_role("alert").filter(has_text="refuses this key").wait_for()
        visit.errors.clear()
        key.fill(KEY)
        page.get_by_role("button", name="Show the dashboard").click()
        visit.shown()
        ask(router, "behind-the-key")
        page.get_by_role("button", name="Explain decision behind-the-key").click()
        page.get_by_role("dialog").locator("tr.chosen").wait_for()
        page.keyboard.press("Escape")
        page.reload()
        visit.shown()
        page.get_by_role("button", name="Forget key").click()
        key.wait_for()
        assert page.locator("#board").is_hidden()
        assert KEY not in json.dumps(page.evaluate("({...sessionStorage, ...localStorage})"))
        assert visit.context.cookies() == []
        assert visit.errors == []


def test_it_fits_a_phone(browser: Browser, router: RouterProcess) -> None:
    ask(router, "phone-1")
    with Visit(browser, router.url, viewport=PHONE, is_mobile=True, has_touch=True) as visit:
        page = visit.shown()
        button = page.get_by_role("button", name="Explain decision phone-1")
        button.wait_for()
        wide = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        assert not page.evaluate(wide)
        button.tap()
        dialog = page.get_by_role("dialog")
        dialog.locator("tr.chosen").wait_for()
        box = dialog.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
        assert not page.evaluate(
            "document.querySelector('dialog').scrollWidth > document.querySelector('dialog').clientWidth"
        )
        assert visit.errors == []


def test_nothing_is_wider_than_the_window(browser: Browser, router: RouterProcess) -> None:
    ask(router, "narrow-1")
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        page.get_by_role("button", name="Explain decision narrow-1").wait_for()
        for width in (320, 390, 700, 941, 1081, 1400):
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate(
                """[document.scrollingElement, ...document.querySelectorAll(".card")]
                  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.outerHTML.slice(0, 80))"""
            )
            assert wide == [], width
        assert visit.errors == []


def contrast(page: Page, selector: str, behind: str) -> float:
    """The contrast of an element's text against what is behind it, as WCAG defines it."""
    return float(
        page.evaluate(
            """([selector, behind]) => {
              const light = (of, what) => {
                const parts = getComputedStyle(document.querySelector(of))[what].match(/[\\d.]+/g).slice(0, 3);
                const linear = (c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
                const [r, g, b] = parts.map((n) => linear(n / 255));
                return .2126 * r + .7152 * g + .0722 * b;
              };
              const [a, b] = [light(selector, "color"), light(behind, "backgroundColor")];
              return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
            }""",
            [selector, behind],
        )
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_both_schemes(browser: Browser, router: RouterProcess, scheme: Any) -> None:
    with Visit(browser, router.url, color_scheme=scheme) as visit:
        page = visit.shown()
        page.locator("#fleet td").first.wait_for()
        red = int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))
        assert (red > 128) == (scheme == "light")
        assert contrast(page, "#share", ".card") >= 7
        assert contrast(page, "#share-of", ".card") >= 4.5
        assert contrast(page, "#about", "body") >= 4.5
        assert visit.errors == []


def test_everything_has_a_name(browser: Browser, router: RouterProcess) -> None:
    ask(router, "named-1")
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        page.get_by_role("button", name="Explain decision named-1").wait_for()
        for name in ("Fleet", "Recent decisions"):
            assert page.get_by_role("table", name=name).count() == 1
        for name in ("decisions in", "Time to first byte", "Cached tokens"):
            page.get_by_role("img", name=name).wait_for()
        regions = page.get_by_role("region")
        assert regions.count() == page.locator("section").count()
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, input:not([hidden]), th, summary, [role=img]")]
              .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
              .map((one) => one.outerHTML)"""
        )
        assert nameless == []
        button = page.get_by_role("button", name="Pause")
        button.click()
        assert page.get_by_role("button", name="Go on").get_attribute("aria-pressed") == "true"
        assert visit.errors == []


def test_names_that_clients_invent_stay_text(browser: Browser, router: RouterProcess) -> None:
    ask(router, "hostile-1", model=HOSTILE)
    with Visit(browser, router.url) as visit:
        page = visit.shown()
        page.get_by_role("button", name="Explain decision hostile-1").click()
        page.get_by_role("dialog").locator("tr.chosen").wait_for()
        assert HOSTILE in page.locator("#fields").text_content()  # type: ignore[operator]
        assert page.locator("img").count() == 0
        assert visit.errors == []


def test_paused_it_stands_still(browser: Browser, router: RouterProcess) -> None:
    with Visit(browser, router.url) as visit, ExitStack() as stack:
        page = visit.shown()
        page.get_by_role("button", name="Pause").click()
        stack.callback(page.get_by_role("button", name="Go on").click)
        ask(router, "paused-1")
        row = page.get_by_role("button", name="Explain decision paused-1")
        assert row.count() == 0
        page.get_by_role("button", name="Go on").click()
        row.wait_for()
        stack.pop_all()
        assert visit.errors == []
