"""NVFlare starts our nodes: an executor for the sites, and a processor of results for the server.

    {"executors": [{"tasks": ["decor"], "executor": {
        "path": "decor.doors.nvflare.NodeExecutor", "args": {"federation": "tumour"}}}]}

The job names a federation. What that means at a site is in the site's own workspace, in the file
`local/decor-SITE.toml`. Models go from node to node; NVFlare's messages carry how a node has ended.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from decor.errors import require
from decor.federation.exit_codes import (
    DONE,
    INCOMPLETE,
    INTERRUPTED,
    NEEDS_A_PERSON,
    PRIVACY,
    TRANSIENT,
)

from .site_node import run_site_node

require("nvflare", "doors", "launching nodes in NVFlare")

from nvflare.apis.client import Client  # noqa: E402
from nvflare.apis.executor import Executor  # noqa: E402
from nvflare.apis.fl_constant import ReturnCode  # noqa: E402
from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.apis.shareable import Shareable, make_reply  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.abstract.response_processor import ResponseProcessor  # noqa: E402

RETURN_CODES = {
    DONE: ReturnCode.OK,
    INCOMPLETE: ReturnCode.OK,
    # the only ones after which a job may be submitted again as it is
    TRANSIENT: ReturnCode.SERVICE_UNAVAILABLE,
    INTERRUPTED: ReturnCode.TASK_ABORTED,
    # never tried again; UNSAFE_JOB would end the nodes of all other sites too
    NEEDS_A_PERSON: ReturnCode.EXECUTION_EXCEPTION,
    PRIVACY: ReturnCode.EXECUTION_EXCEPTION,
}


class NodeExecutor(Executor):
    """Runs the site's node for a task, until it ends or NVFlare aborts the task.

    Args:
        federation: Name of a table in `local/decor-SITE.toml` of the site's workspace.
    """

    def __init__(self, federation: str) -> None:
        super().__init__()
        self.federation = federation

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Runs the node.

        Args:
            task_name: Not used.
            shareable: Not used: a server cannot tell a node anything.
            fl_ctx: Where the site's workspace is.
            abort_signal: When it is triggered the node stops, as on SIGTERM.

        Returns:
            A reply with a return code, and with what is public of the run.
        """
        workspace = fl_ctx.get_engine().get_workspace()
        site = workspace.get_file_path_in_site_config(f"decor-{fl_ctx.get_identity_name()}.toml")
        # lines stay at the site: as events they could be streamed to the server
        log = partial(self.log_info, fl_ctx, fire_event=False)
        outcome = run_site_node(Path(site), self.federation, log, lambda: abort_signal.triggered)
        reply = make_reply(RETURN_CODES.get(outcome.code, ReturnCode.EXECUTION_EXCEPTION))
        reply.update(outcome.public)
        return reply


class NodeResults(ResponseProcessor):
    """For the server's `BroadcastAndProcess`: logs how each node has ended.

    A site that fails ends nobody else's node: they go on without it, as their federation file says.
    The job has succeeded if all nodes are done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}

    def create_task_data(self, task_name: str, fl_ctx: FLContext) -> Shareable:
        """Nothing: sites have what they need.

        Args:
            task_name: Not used.
            fl_ctx: Not used.
        """
        self.results = {}
        return Shareable()

    def process_client_response(
        self, client: Client, task_name: str, response: Shareable, fl_ctx: FLContext
    ) -> bool:
        """Logs a site's reply.

        Args:
            client: The site.
            task_name: Not used.
            response: What `NodeExecutor` has returned.
            fl_ctx: For the log.
        """
        is_done = response.get_return_code() == ReturnCode.OK
        public = {name: value for name, value in response.items() if not name.startswith("__")}
        self.results[client.name] = {"done": is_done, **public}
        self.log_info(fl_ctx, f"{client.name}: {self.results[client.name]}")
        return True

    def final_process(self, fl_ctx: FLContext) -> bool:
        """Whether all nodes are done.

        Args:
            fl_ctx: For the log.
        """
        left = [name for name, result in self.results.items() if not result["done"]]
        if left or not self.results:
            self.log_error(fl_ctx, f"no final model at: {', '.join(sorted(left)) or 'any site'}")
        return bool(self.results) and not left
