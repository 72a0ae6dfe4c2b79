"""The Jupyter server extension: serves the landing page at ``/accelerando`` and says when the room is open."""

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado.httpclient import AsyncHTTPClient
from tornado.web import authenticated

from .. import machine
from . import page

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

_PATH = "accelerando"
_HIDDEN_PLUGINS = ("@jupyter/nbgrader", "@jupyterlab/apputils-extension:announcements")
_ANSWER_LIMIT_S = 60.0


class LandingPage(JupyterHandler):
    """The ten lessons and how far the learner is, made anew on each visit."""

    @authenticated
    async def get(self) -> None:
        """Send the page."""
        text = await asyncio.to_thread(_render, self.base_url)
        self.set_header("Cache-Control", "no-store")
        self.finish(text)


def _render(base_url: str) -> str:
    return page.render(page.gather(_machine()), base_url)


@cache
def _machine() -> machine.Machine:
    """Probe this machine once for the life of the server: it takes seconds and does not change."""
    return machine.probe()


def hide_plugins(_handler: Any, page_config: dict[str, Any]) -> dict[str, Any]:
    """Take out of JupyterLab what would be in a learner's way: nbgrader's teacher tools and the question about news."""
    disabled = page_config.get("disabledExtensions", [])
    page_config["disabledExtensions"] = sorted({*disabled, *_HIDDEN_PLUGINS})
    return page_config


async def announce(server: "ServerApp") -> None:
    """Print the address once the landing page really answers there; end the server when it does not."""
    host = "127.0.0.1" if server.ip in ("0.0.0.0", "::", "*", "") else server.ip
    address = url_path_join(f"http://{host}:{server.port}", server.base_url, _PATH)
    token = server.identity_provider.token
    full_address = f"{address}?token={token}" if token else address
    try:
        await AsyncHTTPClient().fetch(full_address, request_timeout=_ANSWER_LIMIT_S)
    except Exception as error:  # whatever it was: a person waits for an address or for a reason
        server.web_app.settings["accelerando_failure"] = f"the landing page does not answer at {address}: {error}"
        server.stop()
        return
    print(f"The course is open at {full_address}   (Ctrl-C closes it)", flush=True)  # noqa: T201


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: "ServerApp") -> None:
    settings = server.web_app.settings
    settings["page_config_hook"] = hide_plugins
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], _PATH) + "/?", LandingPage)])


async def _start_jupyter_server_extension(server: "ServerApp") -> None:
    await announce(server)
